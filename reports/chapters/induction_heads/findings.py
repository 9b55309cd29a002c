"""Which heads are called what, in words. Numbers are read from the tables, never worked out here."""

import pandas as pd

from reports import words
from reports.chapters import Cell, Finding, Rows, Sentence
from reports.chapters.induction_heads import causes, formation
from reports.chapters.reading import KEYS, Reading, Row, because, first, head_rows, reasons, records

ALPHA = 0.05  # heads are called at this level, by p-values that the analysis has corrected
_NAMES = {"previous_token": "previous-token head", "duplicate_token": "duplicate-token head"}
_TARGETS = {"previous_token": "the previous token", "duplicate_token": "the earlier copy of the current token"}
_LOOKING_LIMITS = (
    "what the model does with what the head reads, nor what the head does in natural text: the score says where a head "
    "looks on random tokens."
)
_COPYING_LIMITS = (
    "what becomes of the head's output: the score follows the direct path to the logits and passes over later heads "
    "and MLPs."
)
_OTHER_LIMITS = "that this is all these heads do: a head is named for one behaviour on one kind of text."


def findings(reading: Reading) -> tuple[Finding, ...]:
    """All that can be said of this run, the most important first."""
    made = (
        induction(reading), copying(reading), causes.behaviour(reading), causes.ablation(reading),
        causes.composition(reading), causes.reach(reading), other_kinds(reading), formation.formation(reading),
    )  # fmt: skip
    return tuple(finding for finding in made if finding is not None)


def called(reading: Reading, kind: str = "induction") -> pd.DataFrame:
    """The heads that are called a kind, strongest first."""
    rows = reading.table("kinds", kind=kind)
    return rows.loc[rows["called"].astype(bool)].sort_values("value", ascending=False) if len(rows) else rows


def lead(reading: Reading) -> Sentence:
    """The sentence that the page opens with: what was run on what, and the main finding."""
    weights = f" ({reading.weights})" if reading.weights else ""
    scored = f"the {words.count(reading.n_heads, 'attention head')} of {reading.model_name}{weights}"
    if why := undefined_because(reading, "prefix_matching"):
        link = (Rows("heads", {"metric": "prefix_matching"}),)
        return Sentence(f"On {scored}, prefix matching is not defined: {why}.", link)
    rows = called(reading)
    if rows.empty:
        return Sentence(f"Of {scored}, none is called an induction head.", (Rows("kinds", {"kind": "induction"}),))
    best, n = first(rows), len(rows)
    which = reading.name(best) if n == 1 else f"the strongest, {reading.name(best)},"
    are = words.agree(n, "is an induction head", "are induction heads")
    return Sentence(
        f"Of {scored}, {words.number_word(n)} {are}: {which} gives {words.number(best['value'])} of its attention on "
        f"repeated random tokens to what followed last time, where chance is {words.number(best['chance'])}.",
        (head_rows("kinds", best, kind="induction"),),
    )


def induction(reading: Reading) -> Finding | None:
    """Which heads are called induction heads, how strong they are, and which fall short."""
    kinds = reading.table("kinds", kind="induction")
    if reading.measured("kinds", "value", kind="induction").empty:
        return _not_applicable(reading, kinds)
    rows = called(reading)
    are = words.agree(len(rows), "is called an induction head", "are called induction heads")
    which = f": {reading.named(rows)}" if len(rows) else ""
    verdict = f"{words.number_word(len(rows))} of {words.count(len(kinds), 'head')} {are}{which}."
    where: dict[str, Cell] = {"kind": "induction", "called": True} if len(rows) else {"kind": "induction"}
    strongest = first(rows if len(rows) else kinds.sort_values("value", ascending=False))
    support = (
        _strength(reading, strongest, called=len(rows) > 0),
        _bound(strongest),
        *_remark(reading, strongest),
        *_short_of(reading, kinds),
        *_induction_on_text(reading, strongest),
    )
    return Finding(Sentence(words.sentence_case(verdict), (Rows("kinds", where),)), support, _LOOKING_LIMITS)


def copying(reading: Reading) -> Finding | None:
    """Whether the induction heads' weights also copy what they attend to."""
    rows = reading.table("heads", metric="copying")
    if rows.empty:
        return None
    link = (Rows("heads", {"metric": "copying"}),)
    if why := undefined_because(reading, "copying"):
        text = f"Copying is not defined for this model: {why}."
        return Finding(Sentence(text, link), (), "that no head copies: the score needs a direct path to the logits.")
    of = _of_called(reading, rows.dropna(subset="value"))
    if of.empty:
        best = rows.sort_values("value", ascending=False).head(3)
        text = f"The highest copying scores are those of {reading.named(best)}{_chance(best)}."
        return Finding(Sentence(text, link), (), _COPYING_LIMITS)
    above = of.loc[of["ci_low"] > of["chance"]]
    n, of_all = len(above), words.part_of(len(above), len(of), "induction head")
    raises, attends = words.agree(n, "raises", "raise"), words.agree(n, "it attends", "they attend")
    listed = reading.named(above if n else of)
    verdict = f"by its weights, {of_all} {raises} the logit of what {attends} to beyond chance: {listed}{_chance(of)}."
    verdict = words.sentence_case(verdict.replace("its", words.agree(n, "its", "their"), 1))
    return Finding(Sentence(verdict, link), tuple(_eigenvalues(reading)), _COPYING_LIMITS)


def other_kinds(reading: Reading) -> Finding | None:
    """The previous-token and duplicate-token heads."""
    found, support, links = [], [], []
    for kind, target in _TARGETS.items():
        if reading.measured("kinds", "value", kind=kind).empty:
            continue
        rows = called(reading, kind)
        where: dict[str, Cell] = {"kind": kind, "called": True} if len(rows) else {"kind": kind}
        links.append(Rows("kinds", where))
        found.append(words.few(len(rows), _NAMES[kind]))
        if rows.empty:
            continue
        chance = words.number(first(rows)["chance"])
        support.append(Sentence(f"Attention to {target}: {reading.named(rows)}; chance is {chance}.", (links[-1],)))
        support += _on_text(reading, first(rows)) if kind == "previous_token" else []
    if not found:
        return None
    verdict = words.sentence_case(f"{words.join(found)} {words.agree(len(found), 'is', 'are')} called.")
    return Finding(Sentence(verdict, tuple(links)), tuple(support), _OTHER_LIMITS)


def undefined_because(reading: Reading, metric: str) -> str:
    """Why no head has this score; '' where some head has."""
    rows = reading.table("heads", metric=metric)
    return reasons(rows, "note") if len(rows) and rows.dropna(subset="value").empty else ""


def _strength(reading: Reading, row: Row, called: bool) -> Sentence:
    """How strong one head is: interval, chance and control."""
    metric = str(row["metric"])
    score = reading.score(metric, "repeated", row)
    sure = "" if score is None else words.with_interval(score["ci_low"], score["ci_high"], score["n"])
    control = words.number(row["control"])
    unrepeated = "" if pd.isna(row["control"]) else f", and the same offset on unrepeated tokens gets {control}"
    which = f"{reading.name(row)} gives" if called else f"The highest score is that of {reading.name(row)}, which gives"
    return Sentence(
        f"{which} {words.number(row['value'])}{sure} of its attention to the token that followed the "
        f"current one last time; uniform attention would give it {words.number(row['chance'])}{unrepeated}.",
        (head_rows("heads", row, metric=metric, data="repeated"),),
    )


def _bound(row: Row) -> Sentence:
    """What a head's being called, or not, rests on."""
    p = words.p_value(row["p_corrected"])
    tested = (
        ""
        if pd.isna(row["p_corrected"])
        else f"; the difference from the control has a corrected p\N{NO-BREAK SPACE}{p}"
    )
    return Sentence(
        f"The lower end of its interval that holds for all heads at once is {words.number(row['simultaneous_low'])}, "
        f"against a threshold of {words.number(row['threshold'])}{tested}.",
        (head_rows("kinds", row, kind=str(row["kind"])),),
    )


def _remark(reading: Reading, row: Row) -> list[Sentence]:
    """What the table says has to be known to read a head's score."""
    score = reading.score(str(row["metric"]), "repeated", row)
    note = because(score["note"]) if score is not None else ""
    link = head_rows("heads", row, metric=str(row["metric"]), data="repeated")
    return [Sentence(f"Of this score, the table remarks: {note}.", (link,))] if note else []


def _short_of(reading: Reading, kinds: pd.DataFrame) -> list[Sentence]:
    """Heads above the threshold that are not called, heads that differ from the control below it, heads untested."""
    link = (Rows("kinds", {"kind": str(kinds["kind"].iloc[0]), "called": False}),)
    rest = kinds.loc[~kinds["called"].astype(bool)]
    above = rest.loc[rest["value"] > rest["threshold"]].sort_values("value", ascending=False)
    weak = rest.loc[(rest["value"] <= rest["threshold"]) & (rest["p_corrected"] <= ALPHA)]
    untested = rest.loc[rest["value"].notna() & rest["p_corrected"].isna()]
    made = []
    if n := len(above):
        scores, are = words.agree(n, "head scores", "heads score"), words.agree(n, "is", "are")
        made.append(
            f"{words.number_word(n)} other {scores} above the threshold but {are} not called: {_why(reading, above)}."
        )
    if n := len(weak):
        differ, stay = words.agree(n, "head differs", "heads differ"), words.agree(n, "stays", "stay")
        from_control = f"from the unrepeated control (corrected p ≤ {ALPHA})"
        made.append(f"{words.number_word(n)} further {differ} {from_control} but {stay} below the threshold.")
    if n := len(untested):
        have = words.agree(n, "head has", "heads have")
        made.append(f"{words.number_word(n)} {have} no p-value: no control is paired.")
    return [Sentence(words.sentence_case(text), link) for text in made]


def _why(reading: Reading, rows: pd.DataFrame, most: int = 3) -> str:
    """``L14H2 (0.41, but …)``: heads with the table's own reasons."""
    told = [f"{reading.name(row)} ({words.visible(str(row['reason']))})" for row in records(rows)]
    return words.some(told, most)


def _chance(rows: pd.DataFrame) -> str:
    level = first(rows)["chance"]
    return "" if pd.isna(level) else f"; chance is {words.number(level)}, pure copying 1"


def _eigenvalues(reading: Reading) -> list[Sentence]:
    """The same by eigenvalues, against random rotations of the head's weights."""
    of = _of_called(reading, reading.measured("heads", "value", metric="copying_eigenvalues"))
    if of.empty:
        return []
    link = (Rows("heads", {"metric": "copying_eigenvalues"}),)
    listed = f"By the eigenvalues of the same path, from −1 to 1, they score {reading.named(of)}"
    if "null_high" not in of or of.dropna(subset="null_high").empty:
        return [Sentence(f"{listed}.", link)]
    beyond = len(of.loc[of["value"] > of["null_high"]])
    which, are = words.part_of(beyond, len(of), "head"), words.agree(beyond, "is", "are")
    return [Sentence(f"{listed}; {which} {are} above what 95 % of random rotations of a head's weights give.", link)]


def _of_called(reading: Reading, rows: pd.DataFrame) -> pd.DataFrame:
    induction_heads = called(reading)
    if induction_heads.empty or rows.empty:
        return rows.iloc[:0]
    return induction_heads.filter(KEYS).merge(rows, on=KEYS).sort_values("value", ascending=False)


def _on_text(reading: Reading, row: Row) -> list[Sentence]:
    score = reading.score(str(row["metric"]), "text", row)
    if score is None:
        return []
    size = f"{words.number(score['value'])}{words.with_interval(score['ci_low'], score['ci_high'], score['n'])}"
    link = head_rows("heads", row, metric=str(row["metric"]), data="text")
    return [Sentence(f"On text, {reading.name(row)} gives the previous token {size}.", (link,))]


def _induction_on_text(reading: Reading, row: Row) -> list[Sentence]:
    """What the strongest head gives to what followed in a text, where tokens recur."""
    score = reading.score(str(row["metric"]), "text", row)
    if score is None:
        return []
    size = f"{words.number(score['value'])}{words.with_interval(score['ci_low'], score['ci_high'], score['n'])}"
    chance = words.number(score["chance"])
    text = f"On text, it gives {size} to what followed earlier occurrences of the token; chance is {chance}."
    return [Sentence(text, (head_rows("heads", row, metric=str(row["metric"]), data="text"),))]


def _not_applicable(reading: Reading, kinds: pd.DataFrame) -> Finding | None:
    why = undefined_because(reading, "prefix_matching") or (reasons(kinds) if len(kinds) else "")
    if not why:
        return None
    link = (Rows("heads", {"metric": "prefix_matching"}),)
    verdict = Sentence(f"Prefix matching is not defined for this model: {why}.", link)
    return Finding(verdict, (), "that the model has no such behaviour: it was not measured.")
