"""What the model does with its induction heads, in words: copying, what breaks without them, what feeds them, reach."""

import pandas as pd

from reports import words
from reports.chapters import Finding, Rows, Sentence
from reports.chapters.reading import Reading, Row, because, first, records

ABLATIONS = {
    "resample": "replaced by their outputs on other sequences",
    "mean": "replaced by their mean output",
    "zero": "set to zero",
    "pattern_preserving": "set to zero while every pattern stays that of the untouched model",
}
_SHORT = {"resample": "resampled", "mean": "mean", "zero": "zero", "pattern_preserving": "zero with patterns kept"}
_PAIR = ("source_layer", "source_head", "target_layer", "target_head")
_COPYING_LIMITS = (
    "by which heads it does so; and loss on random tokens is far from the loss on text that the model was trained for."
)
_ABLATION_LIMITS = (
    "that nothing else copies: later heads may make up for those removed, and a replaced output is not one the model "
    "was trained on."
)
_COMPOSITION_LIMITS = "that no other head takes part: only pairs of heads found above were tried, one source at a time."
_REACH_LIMITS = "what happens farther back, or between copies that differ."


def behaviour(reading: Reading) -> Finding | None:
    """Whether the model copies at all: its loss on the later copies against the first."""
    rows = {str(row["metric"]): row for row in records(reading.table("behaviour"))}
    gain = rows.get("copying_gain")
    if gain is None:
        return None
    link = (Rows("behaviour", {"metric": "copying_gain"}),)
    if pd.isna(gain["value"]):
        text = f"The model's loss was not measured: {because(gain['note'])}."
        on_text = rows.get("in_context_learning")
        same = on_text is not None and on_text["note"] == gain["note"]
        return Finding(Sentence(text, link), () if same else tuple(_in_context(rows)), "whether the model copies.")
    side = "lower" if gain["value"] >= 0 else "higher"
    size = f"{words.number(abs(gain['value']))} nats per token {side} on later copies"
    verdict = f"{_gain_verdict(gain)}: its loss is {size}{_interval_of_gain(gain)}."
    return Finding(Sentence(verdict, link), (*_before_and_after(rows), *_in_context(rows)), _COPYING_LIMITS)


def ablation(reading: Reading) -> Finding | None:
    """What breaks when the top heads go, against random heads."""
    table = reading.measured("ablation", "loss_change")
    top = table.loc[table["chosen"] == "top"] if len(table) else table
    if top.empty:
        return None
    most = top.loc[top["n_heads"] == max(top["n_heads"])]
    kind = next((kind for kind in ABLATIONS if kind in set(most["ablation"])), str(most["ablation"].iloc[0]))
    chosen = first(most.loc[most["ablation"] == kind])
    same = table.loc[(table["ablation"] == kind) & (table["n_heads"] == chosen["n_heads"])]
    where = {"ablation": kind, "n_heads": int(chosen["n_heads"])}
    links = (Rows("ablation", {"chosen": "top", **where}), Rows("ablation", {"chosen": "random", **where}))
    verdict = Sentence(_ablation_verdict(chosen, same.loc[same["chosen"] == "random"]), links)
    removed = _removed(str(chosen["heads"]).split(), ABLATIONS.get(kind, kind))
    support = [Sentence(removed, links[:1]), *_other_ablations(most.loc[most["ablation"] != kind])]
    return Finding(verdict, tuple(support), _ABLATION_LIMITS)


def _removed(heads: list[str], how: str) -> str:
    if len(heads) == 1:
        return f"The head is {heads[0]}; its output is {how.replace('their', 'its')}."
    return f"The heads are {', '.join(heads)}; their outputs are {how}."


def composition(reading: Reading) -> Finding | None:
    """Which previous-token head feeds which induction head."""
    table = reading.measured("composition", "change", path="key_input")
    if table.empty:
        return None
    row = first(table.sort_values("change"))
    source, target = (_end(reading, row, side) for side in ("source", "target"))
    effect = words.measured(row["change"], row["ci_low"], row["ci_high"], sign=True)
    pair = {key: int(row[key]) for key in _PAIR}
    link = (Rows("composition", {**pair, "path": "key_input"}),)
    if not row["ci_high"] < 0:
        text = (
            "No previous-token head was found to feed an induction head by its keys: the largest change is "
            f"{effect} ({source} to {target})."
        )
        return Finding(Sentence(text, link), (), _COMPOSITION_LIMITS)
    verdict = (
        f"{source} feeds {target}: taken out of {target}'s key input alone, it changes prefix matching by {effect}, to "
        f"{words.number(row['prefix_matching'])}."
    )
    support = [*_everywhere(reading, source, pair), *_how_many_pairs(table)]
    if note := because(row["note"]):
        support.append(Sentence(f"{words.sentence_case(note)}.", link))
    return Finding(Sentence(verdict, link), tuple(support), _COMPOSITION_LIMITS)


def reach(reading: Reading) -> Finding | None:
    """How far back the strongest heads still find the earlier copy."""
    table = reading.measured("reach", "value")
    if table.empty:
        return None
    farthest = int(max(table["period"]))
    last = table.loc[table["period"] == farthest].sort_values("value", ascending=False)
    best = first(last)
    layer, head = int(best["layer"]), int(best["head"])
    nearest = first(table.loc[(table["layer"] == layer) & (table["head"] == head)].sort_values("period"))
    name, score = reading.name(best), words.measured(best["value"], best["ci_low"], best["ci_high"])
    at = f"At a period of {words.count(farthest, 'token')}, the longest tried,"
    if best["ci_low"] > best["chance"]:
        near = f"at {int(nearest['period'])} it scores {words.number(nearest['value'])}"
        verdict = f"{at} {name} still scores {score}; {near}."
    else:
        chance = words.number(best["chance"])
        verdict = f"{at} no head is clearly above chance ({chance}): the best is {name} with {score}."
    link = Rows("reach", {"layer": layer, "head": head})
    return Finding(Sentence(verdict, (link,)), (_heads_above(last, farthest),), _REACH_LIMITS)


def _end(reading: Reading, row: Row, side: str) -> str:
    """The source or the target of a row of ``composition``."""
    return reading.name({key: row[f"{side}_{key}"] for key in ("site", "layer", "head") if f"{side}_{key}" in row})


def _gain_verdict(gain: Row) -> str:
    if gain["ci_low"] > 0:
        return "The model copies"
    if gain["ci_high"] < 0:
        return "The model does worse on what it has seen before"
    return "The model does not measurably copy"


def _interval_of_gain(row: Row) -> str:
    """The interval of a gain, without the sign that the words beside it already carry."""
    if row["value"] >= 0:
        return words.with_interval(row["ci_low"], row["ci_high"], row["n"])
    return words.with_interval(-row["ci_high"], -row["ci_low"], row["n"])


def _before_and_after(rows: dict[str, Row]) -> list[Sentence]:
    if not {"loss_first_copy", "loss_later_copies"} <= set(rows):
        return []
    before, after = (words.number(rows[metric]["value"]) for metric in ("loss_first_copy", "loss_later_copies"))
    links = tuple(Rows("behaviour", {"metric": metric}) for metric in ("loss_first_copy", "loss_later_copies"))
    return [Sentence(f"It is {before} on the first copy and {after} on later ones.", links)]


def _in_context(rows: dict[str, Row]) -> list[Sentence]:
    row = rows.get("in_context_learning")
    if row is None:
        return []
    link = (Rows("behaviour", {"metric": "in_context_learning"}),)
    if pd.isna(row["value"]):
        return [Sentence(f"The in-context-learning score on text was not measured: {because(row['note'])}.", link)]
    size = f"{words.number(row['value'])} nats{words.with_interval(row['ci_low'], row['ci_high'], row['n'])}"
    return [Sentence(f"On text, the in-context-learning score (loss late minus loss early) is {size}.", link)]


def _ablation_verdict(top: Row, random: pd.DataFrame) -> str:
    n = int(top["n_heads"])
    heads = "its strongest head" if n == 1 else f"its {n} strongest heads by prefix matching"
    effect = words.measured(top["loss_change"], top["ci_low"], top["ci_high"], sign=True)
    change = f"the loss on later copies changes by {effect} nats per token"
    if random.empty:
        return f"Without {heads}, {change}; no random heads were removed to compare."
    low, high = words.signed(min(random["loss_change"])), words.signed(max(random["loss_change"]))
    drawn = low if len(random) == 1 else f"{low} to {high} in {words.count(len(random), 'draw')}"
    against = f"against {drawn} of {words.count(n, 'random head')} of the same layers"
    if top["ci_low"] > max(random["ci_high"]):
        return f"Without {heads} the model copies worse: {change}, {against}."
    return f"Removing {heads} is not clearly worse than removing random ones: {change}, {against}."


def _other_ablations(rows: pd.DataFrame) -> list[Sentence]:
    if rows.empty:
        return []
    listed = words.join(
        f"{words.measured(row['loss_change'], row['ci_low'], row['ci_high'], sign=True)} "
        f"({_SHORT.get(str(row['ablation']), words.visible(str(row['ablation'])))})"
        for row in records(rows)
    )
    link = Rows("ablation", {"chosen": "top", "n_heads": int(rows["n_heads"].iloc[0])})
    change = words.agree(int(rows["n_heads"].iloc[0]), "the same head changes", "the same heads change")
    return [Sentence(f"Removed in other ways, {change} it by {listed}.", (link,))]


def _everywhere(reading: Reading, source: str, pair: dict[str, int]) -> list[Sentence]:
    total = reading.measured("composition", "change", path="total", **pair)
    if total.empty:
        return []
    row = first(total)
    change = words.measured(row["change"], row["ci_low"], row["ci_high"], sign=True)
    return [
        Sentence(
            f"Taken out everywhere, {source} changes it by {change}.", (Rows("composition", {**pair, "path": "total"}),)
        )
    ]


def _how_many_pairs(table: pd.DataFrame) -> list[Sentence]:
    if len(table) < 2:
        return []
    n = len(table.loc[table["ci_high"] < 0])
    has = words.agree(n, "has", "have")
    text = f"Of {words.count(len(table), 'pair')} tried, {words.number_word(n)} {has} an interval below 0."
    return [Sentence(text, (Rows("composition", {"path": "key_input"}),))]


def _heads_above(last: pd.DataFrame, period: int) -> Sentence:
    n = len(last.loc[last["ci_low"] > last["chance"]])
    which, are = words.part_of(n, len(last), "head"), words.agree(n, "is", "are")
    text = f"There, {which} followed {are} above chance ({words.number(max(last['chance']))})."
    return Sentence(text, (Rows("reach", {"period": period}),))
