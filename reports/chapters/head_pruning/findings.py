"""How many heads can go, which matter, and how far the scores can be trusted, in words. Numbers are the tables'."""

import pandas as pd

from reports import glossary, words
from reports.chapters import Finding, Rows, Sentence
from reports.chapters.head_pruning import smaller
from reports.chapters.head_pruning.smaller import percent
from reports.chapters.reading import Reading, Row, first, head_rows, records

_WAYS = {
    "resample": "replaced by its output on another sequence",
    "mean": "replaced by its mean output",
    "zero": "set to zero",
    "mean_pattern": "computed with its mean pattern",
}
_FREE_LIMITS = (
    "that a smaller model is as good elsewhere: the loss is that of these sequences, and heads are gated, with nothing "
    "trained afterwards."
)
_ORDER_LIMITS = "that no better order exists: heads are scored one at a time, and what one does depends on the others."
_HEADS_LIMITS = (
    "that a head without an effect does nothing: another may do the same and make up for it, and the sequences may not "
    "call for what it does."
)
_AGREEMENT_LIMITS = (
    "how the heads rank that were not ablated, nor how sets of heads do: ablation is of one head at a time. "
    "The nearest score was picked by the correlations that are given, which favours it; noise in both pulls all "
    "towards 0."
)
_TRANSFER_LIMITS = "that the order is the same on every text: two kinds of data were compared."
_DIRECT_LIMITS = "which later heads or MLPs make up for the head, or pass on what it writes."
_GATES_LIMITS = "that other heads could not stay as well: gates are trained once, from one start."
_BEST_LIMITS = (
    "what happens when several layers are cut down at once. A rise is sure where its own 95 % interval is above 0: "
    "with many layers, a few are so by chance."
)


def lead(reading: Reading) -> Sentence:
    """The sentence that the page opens with."""
    free = _free(reading, "importance")
    scored = f"the {words.count(reading.n_heads, 'attention head')} of {reading.model_name}"
    scored += f" ({reading.weights})" if reading.weights else ""
    if free is None:
        return Sentence(f"The {scored.removeprefix('the ')} were scored; no curve was measured.", (Rows("heads"),))
    verdict = (
        f"Of {scored}, {_share(free)} can go in the order of importance before the loss leaves the interval of the "
    )
    random = reading.table("free", order="random", leaves="interval")
    others = ""
    if len(random):
        low, high = min(random["share"]), max(random["share"])
        others = f"; in random orders {percent(low)}" + ("" if low == high else f" to {percent(high)}")
    return Sentence(f"{verdict}unpruned model{others}.", (Rows("free", {"leaves": "interval"}),))


def findings(reading: Reading) -> tuple[Finding, ...]:
    """All that can be said of this run, the most important first."""
    made = (
        _how_many(reading), _order(reading), _which(reading), _agreement(reading), _direct(reading), _transfer(reading),
        smaller.cost_finding(reading), _gates(reading), _best(reading), smaller.from_scratch_finding(reading),
    )  # fmt: skip
    return tuple(finding for finding in made if finding is not None)


def _how_many(reading: Reading) -> Finding | None:
    free = _free(reading, "importance")
    if free is None:
        return None
    certain = reading.table("free", order="importance", leaves="certain")
    half = _at(reading, "importance", 0.5)
    support = []
    if len(certain):
        last = float(first(certain)["share"])
        text = (
            f"Paired by sequence, the loss is up to {percent(last)} of the heads pruned not above the unpruned "
            "model's for sure"
            if last > 0
            else "Paired by sequence, the loss is above the unpruned model's for sure at the first step already"
        )
        support.append(Sentence(f"{text}.", (Rows("free", {"order": "importance", "leaves": "certain"}),)))
    if half is not None:
        change = words.measured(half["change"], half["change_low"], half["change_high"], sign=True)
        link = Rows("curve", {"order": "importance", "n_pruned": int(half["n_pruned"])})
        support.append(Sentence(f"With {percent(half['share'])} of the heads gone it changes by {change}.", (link,)))
    verdict = (
        f"{_share(free)} of the heads are free: so many go in the order of importance before the mean loss rises by "
    )
    verdict += f"more than {words.number(free['room'])}, which is how sure the unpruned model's loss is."
    link = (Rows("free", {"order": "importance", "leaves": "interval"}),)
    return Finding(Sentence(words.sentence_case(verdict), link), tuple(support), _FREE_LIMITS)


def _order(reading: Reading) -> Finding | None:
    random = reading.measured("areas", "margin", order="random")
    if random.empty:
        return None
    least = first(random.sort_values("margin"))
    beaten = len(random.loc[random["ci_low"] > 0])
    margin = words.measured(least["margin"], least["ci_low"], least["ci_high"])
    does = "does better than" if beaten == len(random) else "does not clearly do better than"
    which = words.part_of(len(random) if beaten == len(random) else beaten, len(random), "random order")
    if beaten == len(random):
        verdict = f"The order of importance {does} {which}: the area under its curve is smaller by {margin} at least."
    else:
        verdict = f"The order of importance is clearly better than {which}: the smallest margin is {margin}."
    link = (Rows("areas", {"order": "random"}),)
    support = []
    for name, text in (("importance_rescored", "Scored again at every step, importance has an area that is larger by"),
                       ("exact", "The order of exact ablation has an area that is larger by"),
                       ("weight_norm", "The order of the weights' norm has an area that is larger by"),
                       ("worst_first", "With the most important heads first, it is larger by")):  # fmt: skip
        rows = reading.measured("areas", "margin", order=name)
        if len(rows):
            row = first(rows)
            size = words.measured(row["margin"], row["ci_low"], row["ci_high"])
            support.append(Sentence(f"{text} {size}.", (Rows("areas", {"order": name}),)))
    return Finding(Sentence(verdict, link), tuple(support), _ORDER_LIMITS)


def _which(reading: Reading) -> Finding | None:
    table = main_effects(reading)
    if table.empty:
        return None
    kind = str(table["ablation"].iloc[0])
    n = {verdict: len(table.loc[table["verdict"] == verdict]) for verdict in ("needed", "harmful", "undecided")}
    are = words.agree(n["needed"], "is", "are")
    harm = f"{words.number_word(n['harmful'])} {words.agree(n['harmful'], 'does', 'do')} harm"
    verdict = (
        f"Of {words.count(len(table), 'head')} ablated one by one, {words.number_word(n['needed'])} {are} needed, "
        f"{harm}, and {words.number_word(n['undecided'])} {words.agree(n['undecided'], 'makes', 'make')} no sure "
        "difference."
    )
    link = (Rows("effects", {"ablation": kind, "path": "total"}),)
    support = []
    worst = table.loc[table["verdict"] == "needed"].sort_values("change", ascending=False)
    if len(worst):
        named = words.some([_effect(reading, row) for row in records(worst)], 5)
        support.append(Sentence(f"The loss rises most without {named}; the head's output is {_WAYS[kind]}.", link))
    harmful = table.loc[table["verdict"] == "harmful"].sort_values("change")
    if len(harmful):
        named = words.some([_effect(reading, row) for row in records(harmful)], 5)
        text = f"It falls without {named}: these heads help when they are removed."
        support.append(Sentence(text, (Rows("effects", {**link[0].where, "verdict": "harmful"}),)))
    return Finding(Sentence(verdict, link), tuple(support), _HEADS_LIMITS)


def _agreement(reading: Reading) -> Finding | None:
    table = reading.measured("agreement", "rho")
    if table.empty:
        return None
    kind = str(table["ablation"].iloc[0])
    rows = table.loc[table["ablation"] == kind].sort_values("rho", ascending=False)
    best, importance = first(rows), rows.loc[rows["score"] == "importance"]
    verdict = (
        f"Of the scores that need no ablation, {_score(best)} is nearest to what ablating heads shows: Spearman's ρ is "
        f"{words.measured(best['rho'], best['ci_low'], best['ci_high'])} over "
        f"{words.count(int(best['n_heads']), 'head')}."
    )
    support = []
    for row in records(importance):
        if row["score"] != best["score"]:
            size = words.measured(row["rho"], row["ci_low"], row["ci_high"])
            support.append(Sentence(f"Importance has {size}.", (_of_score(row),)))
    for row in records(rows.loc[rows["score"] == "weight_norm"]):
        size = words.measured(row["rho"], row["ci_low"], row["ci_high"])
        support.append(Sentence(f"The norm of the weights, which sees no data, has {size}.", (_of_score(row),)))
    return Finding(Sentence(verdict, (_of_score(best),)), tuple(support), _AGREEMENT_LIMITS)


def _direct(reading: Reading) -> Finding | None:
    total, table = main_effects(reading), reading.table("effects", path="direct")
    if total.empty or table.empty:
        return None
    both = total.merge(table, on=["site", "layer", "head", "ablation"], suffixes=("", "_direct"))
    needed = both.loc[both["verdict"] == "needed"].sort_values("change", ascending=False)
    if needed.empty:
        return None
    less = len(needed.loc[needed["ci_high_direct"] < needed["ci_low"]])
    more = len(needed.loc[needed["ci_low_direct"] > needed["ci_high"]])
    verdict = (
        f"Of {words.few(len(needed), 'needed head')} with a direct path to the logits, {words.number_word(less)} "
        f"{words.agree(less, 'does', 'do')} more by way of later layers than directly, and {words.number_word(more)} "
        f"{words.agree(more, 'is', 'are')} partly made up for by them."
    )
    row = first(needed)
    direct = words.measured(row["change_direct"], row["ci_low_direct"], row["ci_high_direct"], sign=True)
    text = f"{reading.name(row)}: {_size(row)} in all, {direct} by its direct path alone."
    return Finding(
        Sentence(verdict, (Rows("effects", {"path": "direct"}),)),
        (Sentence(text, (head_rows("effects", row),)),),
        _DIRECT_LIMITS,
    )


def _transfer(reading: Reading) -> Finding | None:
    table = reading.measured("transfer", "r")
    if table.empty:
        return None
    row = first(table)
    on = glossary.DATA.get(str(row["other"]), str(row["other"]).replace("_", " "))
    size = words.measured(row["r"], row["ci_low"], row["ci_high"])
    verdict = (
        f"On {on}, importance correlates with that on {glossary.DATA.get(str(row['data']), row['data'])} by r = {size}."
    )
    return Finding(Sentence(verdict, (Rows("transfer"),)), (), _TRANSFER_LIMITS)


def _gates(reading: Reading) -> Finding | None:
    table = reading.measured("gates_path", "loss")
    if table.empty:
        return None
    table = table.sort_values("penalty")
    least = first(table.sort_values("kept"))
    fine = table.loc[table["ci_low"] <= 0].sort_values("kept")
    n = reading.n_heads
    row = first(fine) if len(fine) else first(table)
    kept, at = f"{int(row['kept'])} of {words.count(n, 'head')}", f"at λ = {row['penalty']:g}"
    if len(fine):
        verdict = f"Learned gates keep {kept} without a sure rise of the loss: {_size(row)} {at}."
    else:
        verdict = f"Learned gates raise the loss at every penalty tried: by {_size(row)} with {kept} open {at}."
    text = f"At λ = {least['penalty']:g}, {int(least['kept'])} stay open and the loss changes by {_size(least)}."
    links = tuple(Rows("gates_path", {"penalty": float(each["penalty"])}) for each in (row, least))
    return Finding(Sentence(verdict, links[:1]), (Sentence(text, links[1:]),), _GATES_LIMITS)


def _best(reading: Reading) -> Finding | None:
    table = reading.measured("best_head", "change")
    if table.empty:
        return None
    fine = table.loc[table["ci_low"] <= 0]
    worst = first(table.sort_values("change", ascending=False))
    rises = (
        "the loss rises whichever layer it is"
        if fine.empty
        else f"the loss does not surely rise in {words.part_of(len(fine), len(table), 'layer')}"
    )
    verdict = f"With one head left of a layer and all others as they are, {rises}."
    text = f"It rises most in layer {int(worst['layer'])}, by {_size(worst)} with head {int(worst['kept_head'])} left."
    return Finding(Sentence(verdict, (Rows("best_head"),)), (Sentence(text, (Rows("best_head"),)),), _BEST_LIMITS)


def main_effects(reading: Reading) -> pd.DataFrame:
    """The total effects by the ablation that was run first (resample, where there is a choice)."""
    table = reading.table("effects", path="total")
    return table.loc[table["ablation"] == table["ablation"].iloc[0]] if len(table) else table


def free_row(reading: Reading) -> Row | None:
    """The free share in the order of importance."""
    return _free(reading, "importance")


def _free(reading: Reading, order: str) -> Row | None:
    rows = reading.measured("free", "share", order=order, leaves="interval")
    return None if rows.empty else first(rows)


def _at(reading: Reading, order: str, share: float) -> Row | None:
    rows = records(reading.table("curve", order=order))
    return min(rows, key=lambda row: abs(row["share"] - share), default=None)


def _share(row: Row) -> str:
    ends = "" if pd.isna(row["ci_low"]) else f" [{100 * row['ci_low']:.0f}, {100 * row['ci_high']:.0f}]"
    return f"{percent(row['share'])}{ends}"


def _size(row: Row) -> str:
    return words.measured(row["change"], row["ci_low"], row["ci_high"], sign=True)


def _effect(reading: Reading, row: Row) -> str:
    return f"{reading.name(row)} ({words.signed(row['change'])})"


def _score(row: Row) -> str:
    return glossary.metric_name(str(row["score"]))


def _of_score(row: Row) -> Rows:
    return Rows("agreement", {"score": str(row["score"]), "ablation": str(row["ablation"])})
