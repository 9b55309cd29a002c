"""What each head attends to, in words. Numbers are read from the tables, never worked out here."""

from collections import Counter

import pandas as pd

from reports import glossary, words
from reports.chapters import Finding, Rows, Sentence
from reports.chapters.head_specialization.called import called, main_data, n_called, present
from reports.chapters.reading import KEYS, Reading, Row, first, head_rows, records

_MARGIN = 5  # heads or relations named in one sentence
_KIND_LIMITS = (
    "what the heads are for: a name says where a head looks on this text, not what the model does with what it reads. "
    "A head that is not called may still do it, more weakly or on other text."
)
_SYNTAX_LIMITS = (
    "that the model uses the relation: a head's strongest word may be right by cues that go with it. Pairs of words "
    "that a causal head cannot see are left out of its accuracy, and their share is in the table."
)
_COREFERENCE_LIMITS = "that the head resolves entities: agreement in gender, number or topic would do as well."
_SINK_LIMITS = (
    "that heads which rest on the first position do nothing: the other weights may still matter where they are not "
    "small, and a sink's value may carry a constant that later layers need."
)
_GROUP_LIMITS = (
    "that heads of one group have one function: they attend alike on this text. The number of groups is the one with "
    "the best silhouette, which says little where silhouettes are low."
)
_REDUNDANT_LIMITS = "that one of two could go without loss: they attend alike, but may read and write different things."
_STABILITY_LIMITS = "that single heads keep their scores: a correlation over heads speaks of their order."
_COMPOSITION_LIMITS = (
    "that the path is used: these are sizes of products of weights, whatever the model reads in fact, and norms "
    "between the heads are folded in as a constant."
)


def findings(reading: Reading) -> tuple[Finding, ...]:
    """All that can be said of this run, the most important first."""
    made = (
        kinds(reading), syntax(reading), coreference(reading), sinks(reading), groups(reading), redundant(reading),
        stability(reading), composition(reading),
    )  # fmt: skip
    return tuple(finding for finding in made if finding is not None)


def lead(reading: Reading) -> Sentence:
    """The sentence that the page opens with: what was run on what, and how many heads are called what."""
    weights = f" ({reading.weights})" if reading.weights else ""
    scored = f"the {words.count(reading.n_heads, 'attention head')} of {reading.model_name}{weights}"
    rows = called(reading)
    if rows.empty:
        return Sentence(f"Of {scored}, none is called anything on this text.", (Rows("kinds"),))
    listed = [(kind, n_called(called(reading, kind))) for kind in present(reading)]
    listed = sorted(listed, key=lambda pair: -pair[1])
    told = words.join(words.count(n, glossary.KINDS[kind]) for kind, n in listed[:_MARGIN])
    more = f", and {words.few(len(listed) - _MARGIN, 'further kind')}" if len(listed) > _MARGIN else ""
    n = n_called(rows)
    are = words.agree(n, "is called something", "are called something")
    who = f"All of {scored}" if n == reading.n_heads else f"Of {scored}, {words.number_word(n)}"
    return Sentence(f"{who} {are}: {told}{more}.", (Rows("kinds", {"called": True}),))


def kinds(reading: Reading) -> Finding | None:
    """How many heads are called what, and the strongest of each kind."""
    if not reading.has("kinds"):
        return None
    rows = called(reading)
    link = (Rows("kinds", {"called": True}),)
    n, several = n_called(rows), _of_several_kinds(rows)
    verdict = f"{words.number_word(n)} of {words.count(reading.n_heads, 'head')} {words.agree(n, 'is', 'are')} called"
    verdict += f" something, {words.number_word(several)} of them more than one thing." if n else " anything."
    support = [_strongest(reading, kind) for kind in present(reading) if kind != "redundant"]
    absent = _absent(reading)
    return Finding(Sentence(words.sentence_case(verdict), link), (*support, *absent), _KIND_LIMITS)


def syntax(reading: Reading) -> Finding | None:
    """Relations on which a head beats the best fixed offset."""
    table = reading.measured("relations", "accuracy", best=True)
    if table.empty:
        return None
    rows = table.sort_values("difference", ascending=False)
    found = rows.loc[rows["called"].astype(bool)]
    n = len(found)
    margin = reading.config.get("syntactic_margin")
    beyond = f"by more than {words.number(100 * margin, 0)} points" if margin else "by the margin"
    if n:
        best = first(found)
        verdict = (
            f"On {words.number_word(n)} of {words.count(len(rows), 'relation')} (each direction by itself) a head "
            f"beats the best fixed offset {beyond}: most on {_relation(best)}, where {reading.name(best)} is right in "
            f"{_accuracy(best)} of words and the offset in {words.number(best['baseline'])}."
        )
    else:
        best = first(rows)
        verdict = (
            f"On none of {words.count(len(rows), 'relation')} (each direction by itself) does a head "
            f"beat the best fixed offset {beyond}; the nearest is {reading.name(best)} on {_relation(best)}, with "
            f"{_accuracy(best)} against {words.number(best['baseline'])}."
        )
    support = [_relation_sentence(reading, row) for row in records(found.iloc[1:_MARGIN])]
    if len(weak := rows.loc[rows["difference_high"] < 0]):
        told = words.some([_relation(row) for row in records(weak)])
        support.append(
            Sentence(f"Even the best head is worse than the offset on {told}.", (Rows("relations", {"best": True}),))
        )
    return Finding(Sentence(verdict, (_relation_rows(best),)), tuple(support), _SYNTAX_LIMITS)


def coreference(reading: Reading) -> Finding | None:
    """Whether a head finds an earlier mention of the same entity."""
    chosen = reading.measured("coreference", "accuracy", best=True)
    if chosen.empty:
        return None
    best, n = first(chosen), len(reading.table("coreference", called=True))
    accuracy = words.measured(best["accuracy"], best["ci_low"], best["ci_high"])
    against = (
        f"the nearest mention is right in {words.number(best['nearest'])} and the nearest with the same head word in "
        f"{words.number(best['head_match'])}"
    )
    name = reading.name(best)
    verdict = (
        f"{name}'s strongest earlier mention is of the same entity in {accuracy} of mentions, on the half of the "
        f"documents that did not choose this head; {against}."
    )
    if not n:
        verdict = f"No head finds earlier mentions clearly better than the baselines: {verdict}"
    return Finding(Sentence(verdict, (head_rows("coreference", best),)), (), _COREFERENCE_LIMITS)


def sinks(reading: Reading) -> Finding | None:
    """The head that rests most on the first position, and what is left of it when values are counted in."""
    plain = reading.measured("heads", "value", metric="first_position", data=main_data(reading))
    if plain.empty:
        return None
    best = first(plain.sort_values("value", ascending=False))
    n = n_called(called(reading, "sink"))
    size = words.measured(best["value"], best["ci_low"], best["ci_high"])
    verdict = (
        f"{words.sentence_case(words.few(n, 'head') if n else 'no head')} {words.agree(n, 'has', 'have')} a sink on "
        f"the first position; {reading.name(best)} rests on it most, with {size} of its attention."
    )
    support = []
    weighted = reading.score("first_position_norm", main_data(reading), best)
    if weighted is not None:
        size = words.measured(weighted["value"], weighted["ci_low"], weighted["ci_high"])
        link = head_rows("heads", best, metric="first_position_norm", data=main_data(reading))
        support.append(
            Sentence(f"Weighted by the size of the values, ‖αf(x)‖, the share of that position is {size}.", (link,))
        )
    links = (Rows("kinds", {"kind": "sink", "called": True}), head_rows("heads", best, metric="first_position"))
    return Finding(Sentence(verdict, links), tuple(support), _SINK_LIMITS)


def groups(reading: Reading) -> Finding | None:
    """How many groups there are, how stable they are, and what their heads are called."""
    chosen = reading.table("clusterings", chosen=True)
    if chosen.empty:
        return None
    support, told = [], []
    for row in records(chosen):
        stack = str(row["stack"])
        of = f" of the {stack}" if stack and len(chosen) > 1 else ""
        sure = words.measured(row["stability"], row["ci_low"], row["ci_high"])
        told.append(
            f"the heads{of} fall into {words.few(int(row['clusters']), 'group')} (silhouette "
            f"{words.number(row['silhouette'])}, adjusted Rand index under resampling {sure})"
        )
        members = reading.table("groups", stack=stack)
        for cluster in sorted(members["cluster"].unique()) if len(members) else ():
            support.append(_group(reading, members.loc[members["cluster"] == cluster], len(chosen) > 1))
    verdict = words.sentence_case(f"{words.join(told)}.")
    return Finding(Sentence(verdict, (Rows("clusterings", {"chosen": True}),)), tuple(support), _GROUP_LIMITS)


def redundant(reading: Reading) -> Finding | None:
    """Heads whose rows are those of another head."""
    judged = reading.measured("kinds", "value", kind="redundant")
    if judged.empty:
        return None
    rows = called(reading, "redundant")
    best = first(rows if len(rows) else judged.sort_values("value"))
    n = n_called(rows)
    pair = f"{reading.name(best)} and {words.visible(str(best['detail']))}, {words.number(best['value'])} nats apart"
    limit = words.number(best["threshold"])
    if n:
        verdict = (
            f"{words.sentence_case(words.few(n, 'head'))} {words.agree(n, 'attends', 'attend')} as another head does, "
            f"less than {limit} nats apart with and without the sink: nearest are {pair}."
        )
    else:
        verdict = (
            f"No two heads are surely less than {limit} nats apart, with and without the sink: nearest are {pair}."
        )
    return Finding(Sentence(verdict, (head_rows("kinds", best, kind="redundant"),)), (), _REDUNDANT_LIMITS)


def stability(reading: Reading) -> Finding | None:
    """Which scores depend on the sample of text, and which on its kind."""
    table = reading.measured("stability", "spearman")
    if table.empty:
        return None
    said = []
    for between, what in (("halves", "two halves of the text"), ("text kinds", "two kinds of text")):
        rows = table.loc[table["between"] == between].sort_values("spearman")
        if len(rows):
            worst, best = records(rows)[0], records(rows)[-1]
            link = Rows("stability", {"between": between})
            ranges = f"from {_correlation(worst)} to {_correlation(best)}"
            said.append(Sentence(f"Between {what}, heads keep their order with rank correlations {ranges}.", (link,)))
    return Finding(said[0], tuple(said[1:]), _STABILITY_LIMITS) if said else None


def composition(reading: Reading) -> Finding | None:
    """The pair of heads whose weights fit best beyond chance."""
    table = reading.measured("composition", "excess")
    if table.empty:
        return None
    strongest = [records(part.nlargest(1, "excess"))[0] for _, part in table.groupby("path", sort=False)]
    told = words.join(_composed(reading, row) for row in strongest)
    verdict = f"By their weights, later heads read most of earlier ones where {told}."
    keys = ("source_layer", "source_head", "target_layer", "target_head")
    links = tuple(Rows("composition", {**{k: int(r[k]) for k in keys}, "path": str(r["path"])}) for r in strongest)
    return Finding(Sentence(verdict, links), (), _COMPOSITION_LIMITS)


def _of_several_kinds(rows: pd.DataFrame) -> int:
    each = rows.drop_duplicates([*KEYS, "kind"]) if len(rows) else rows
    return len(each.loc[each.duplicated(KEYS)].drop_duplicates(KEYS)) if len(each) else 0


def _strongest(reading: Reading, kind: str) -> Sentence:
    """``13 induction heads: L18H6 (0.90), …; chance is 0.02``."""
    rows = called(reading, kind).drop_duplicates(KEYS)
    n = len(rows)
    best = first(rows)
    as_chance = "uniform attention has" if kind == "broad" else "by chance"
    chance = "" if pd.isna(best["chance"]) else f"; {as_chance} {words.number(best['chance'])}"
    text = f"{words.sentence_case(words.few(n, glossary.KINDS[kind]))}: {reading.named(rows)}{chance}."
    return Sentence(text, (Rows("kinds", {"kind": kind, "called": True}),))


def _absent(reading: Reading) -> list[Sentence]:
    """The kinds that were looked for and not found."""
    table = reading.measured("kinds", "value")
    judged = set(table["kind"]) if len(table) else set()
    missing = [kind for kind in glossary.KINDS if kind in judged]
    missing = [kind for kind in missing if kind not in present(reading) and kind != "redundant"]
    if not missing:
        return []
    text = f"No head is called {words.join((_article(glossary.KINDS[kind]) for kind in missing), 'or')}."
    return [Sentence(text, (Rows("kinds", {"called": False}),))]


def _article(name: str) -> str:
    return f"{'an' if name[0] in 'aeiou' else 'a'} {name}"


def _relation(row: Row) -> str:
    ends = {"dependent→head": "from the dependent to its head", "head→dependent": "from the head to its dependent"}
    return f"`{words.visible(str(row['relation']))}` {ends.get(str(row['direction']), str(row['direction']))}"


def _accuracy(row: Row) -> str:
    return words.measured(row["accuracy"], row["ci_low"], row["ci_high"])


def _relation_rows(row: Row) -> Rows:
    where = {"relation": str(row["relation"]), "direction": str(row["direction"])}
    return head_rows("relations", row, **where)


def _relation_sentence(reading: Reading, row: Row) -> Sentence:
    text = f"On {_relation(row)}, {reading.name(row)}: {_accuracy(row)} against {words.number(row['baseline'])}."
    return Sentence(text, (_relation_rows(row),))


def _group(reading: Reading, members: pd.DataFrame, with_stack: bool) -> Sentence:
    """How large a group is, which head is its middle, and what its heads are mostly called."""
    middle = first(members.loc[members["medoid"].astype(bool)])
    names = called(reading)
    of = members.filter(["site", "layer", "head"]).merge(names, on=["site", "layer", "head"]) if len(names) else names
    kinds = list(of.drop_duplicates(["site", "layer", "head", "kind"])["kind"]) if len(of) else []
    counts = Counter(kind for kind in kinds if kind in glossary.KINDS).most_common(3)
    told = [words.count(n, glossary.KINDS[kind]) for kind, n in counts]
    among = f", among them {words.join(told)}" if told else ", none of them called anything"
    size = words.count(len(members), "head")
    stack = f"{middle['stack']} " if with_stack else ""
    text = (
        f"{words.sentence_case(f'{stack}group')} {int(middle['cluster']) + 1}: {size} around "
        f"{reading.name(middle)}{among}; found again in resamples with a Jaccard similarity of "
        f"{words.number(middle['stability'])}."
    )
    where = {"cluster": int(middle["cluster"]), **({"stack": str(middle["stack"])} if with_stack else {})}
    return Sentence(text, (Rows("groups", where),))


def _correlation(row: Row) -> str:
    measured = words.measured(row["spearman"], row["ci_low"], row["ci_high"])
    return f"{measured} ({glossary.short_metric(str(row['metric']))})"


def _composed(reading: Reading, row: Row) -> str:
    source, target = (
        reading.name({key: row[f"{end}_{key}"] for key in ("site", "layer", "head") if f"{end}_{key}" in row})
        for end in ("source", "target")
    )
    apart = row.get("distance")
    at = "" if apart is None or pd.isna(apart) else f" at distance {int(apart)}"
    return (
        f"{source} feeds {target} by its {row['path']}{at} ({words.number(row['value'])}, of random weights "
        f"{words.number(row['expected'])})"
    )
