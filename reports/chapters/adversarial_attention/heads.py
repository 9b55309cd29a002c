"""What the page says of the model's own heads: how far their attention can go at the same output."""

from collections.abc import Mapping
from typing import Any

import numpy as np
import pandas as pd

from interp.results import RunFolder
from reports import words
from reports.chapters import Finding, Rows, Sentence, TableNote
from reports.chapters.reading import Reading, Row, first

TABLES = {
    "heads": TableNote("Means over sequences of what was found for each head's rows.", "", "metric=freedom_share"),
    "freedom_rows": TableNote(
        "Every row: the largest divergence there is, how far it was moved at the same output and at the same head "
        "output, and what substitutes do. Only searched rows have all of it.", "share", "searched=True",
    ),
    "freedom_by_keys": TableNote("Shares of the largest divergence by number of keys, means over sequences."),
    "freedom_worth": TableNote("Rank correlations over heads with what the mean pattern does to other text."),
    "patterns": TableNote("Weights of a few rows as they are and as far as they can go.", "-weight"),
}  # fmt: skip
_NEARLY = 0.9
KINDS_FROM = ("head-specialization", "induction-heads")


def lead(reading: Reading) -> Sentence | None:
    """How many rows of attention are nearly free, how many are pinned."""
    rows = reading.measured("freedom_rows", "share", searched=True)
    scores = reading.measured("heads", "value", metric="freedom_share")
    if rows.empty or scores.empty:
        return None
    free, pinned = int((rows["share"].to_numpy() > _NEARLY).sum()), int(rows["pinned"].to_numpy().sum())
    text = (
        f"Of {words.count(len(rows), 'row')} of attention of {words.count(len(scores), 'head')} of "
        f"{reading.model_name}, {free or 'none'} can be replaced by nearly the farthest there is (more than "
        f"{_percent(_NEARLY)} of the largest divergence) while the output moves by at most {epsilon(reading):g}; "
        f"{pinned or 'none'} {'is' if pinned == 1 else 'are'} pinned to what "
        f"{'it attends' if pinned == 1 else 'they attend'} to."
    )
    return Sentence(text, (Rows("freedom_rows", {"searched": True}),))


def findings(reading: Reading) -> tuple[Finding, ...]:
    """Freedom, where it comes from, what else says how much attention matters, and what freedom is worth."""
    made = (_freedom(reading), _source(reading), _others(reading), _worth(reading))
    return tuple(finding for finding in made if finding is not None)


def epsilon(reading: Reading) -> float:
    """The change of the output that was allowed."""
    return float(reading.config.get("head_epsilon", 0.01))


def pinned_below(reading: Reading) -> float:
    """The share below which a row counts as pinned."""
    return float(reading.config.get("pinned", 0.1))


def kinds(run: RunFolder | None) -> Mapping[tuple[int, int], str]:
    """What another analysis of the same run calls heads, by layer and head."""
    for analysis in KINDS_FROM:
        if run is None or analysis not in run.analyses():
            continue
        table = run.load(analysis).tables.get("kinds")
        if table is not None and {"layer", "head", "kind", "called"} <= set(table.columns):
            called = table.loc[table["called"].astype(bool)]
            return {(int(row["layer"]), int(row["head"])): str(row["kind"]) for _, row in called.iterrows()}
    return {}


def _freedom(reading: Reading) -> Finding | None:
    rows = reading.measured("freedom_rows", "share", searched=True)
    scores = reading.measured("heads", "value", metric="freedom_share")
    if rows.empty or scores.empty:
        return None
    middle, pinned = float(np.median(rows["share"])), int(rows["pinned"].to_numpy().sum())
    least = scores.sort_values("value").head(3)
    how = "usually go far" if middle > 0.75 else "often go far" if middle > 0.4 else "seldom go far"
    verdict = (
        f"A single row of attention can {how} before the output notices: of {words.count(len(rows), 'row')}, half "
        f"reach at least {_percent(middle)} of the largest divergence that any row could have, and {pinned or 'none'} "
        f"{'is' if pinned == 1 else 'are'} pinned below {_percent(pinned_below(reading))}."
    )
    horizon = int(reading.config.get("horizon", 4))
    support = (
        Sentence(f"The least free are {reading.named(least)}.", (Rows("heads", {"metric": "freedom_share"}),)),
        *_by_query(rows),
        Sentence(
            f"The output is watched over {words.count(horizon, 'position')} from the row's own on, and may move by at "
            f"most {epsilon(reading):g} in total variation at any of them. Every row was run in the untouched model: "
            f"the largest change among those reported is {words.number(float(np.max(rows['tvd'])), 4)}.",
            (Rows("freedom_rows", {"searched": True}),),
        ),
    )
    return Finding(
        Sentence(verdict, (Rows("freedom_rows", {"searched": True}),)), support,
        "that attention does nothing. One row of one head is moved at a time, and later positions read many others: a "
        "head whose rows are free one by one may matter all the same. What is found is a lower bound: a row that is "
        "called free is free, one that is called pinned resisted every start, every vertex and every ray tried.",
    )  # fmt: skip


def _by_query(rows: pd.DataFrame) -> tuple[Sentence, ...]:
    """Whether freedom differs more between queries or between heads: shares of its variance."""
    table: Any = rows.pivot_table(index=["sequence", "query"], columns=["layer", "head"], values="share")
    table = table.dropna(axis="columns")
    if min(table.shape) < 2 or not (whole := float(np.var(table.to_numpy()))) > 0:
        return ()
    n_queries, n_heads = table.shape
    of_queries, of_heads = (float(np.var(table.mean(axis=axis).to_numpy())) / whole for axis in (1, 0))
    which = "between queries than between heads" if of_queries > of_heads else "between heads than between queries"
    middle = table.median(axis=1).sort_values()
    each = [_percent(float(value)) for value in middle]
    medians = words.join(each) if len(each) <= 4 else f"from {each[0]} to {each[-1]}"
    return (
        Sentence(
            f"Freedom differs more {which}: the query says {_percent(of_queries)} of its variance (by chance "
            f"{_percent((n_queries - 1) / (n_queries * n_heads - 1))}), the head {_percent(of_heads)} (by chance "
            f"{_percent((n_heads - 1) / (n_queries * n_heads - 1))}). Medians by query are {medians}.",
            (Rows("freedom_rows", {"searched": True}),),
        ),
    )


def _source(reading: Reading) -> Finding | None:
    rows = reading.measured("freedom_rows", "nullspace_share", searched=True)
    rows = rows.dropna(subset="share") if len(rows) else rows
    if rows.empty:
        return None
    null, whole = float(np.mean(rows["nullspace_share"])), float(np.mean(rows["share"]))
    by_keys = reading.measured("freedom_by_keys", "value", metric="nullspace_share").sort_values("low")
    longest = first(by_keys.tail(1)) if len(by_keys) else None
    verdict = (
        f"{'Most' if null < whole / 2 else 'Much'} of this freedom "
        f"{'does not come' if null < whole / 2 else 'comes'} from the head's own arithmetic: at exactly the same head "
        f"output, rows reach {_percent(null)} of the largest divergence on average, at the same output of the model "
        f"{_percent(whole)}."
    )
    support = []
    if longest is not None:
        random = reading.measured("freedom_by_keys", "value", metric="random_values_share", low=int(longest["low"]))
        beside = f"; values drawn at random leave {_measured(first(random))}" if len(random) else ""
        support.append(Sentence(
            f"With {longest['low']} to {longest['high']} keys the same head output leaves {_measured(longest)}"
            f"{beside}. With no more keys than the values have dimensions nothing is left, unless keys share a value.",
            (Rows("freedom_by_keys", {"metric": "nullspace_share"}),),
        ))  # fmt: skip
    return Finding(
        Sentence(verdict, (Rows("freedom_rows", {"searched": True}),)), tuple(support),
        "that attention is not identifiable in practice: weights that give the same head output exist by counting "
        "equations (Brunner et al. 2020), whether or not any training would ever reach them.",
    )  # fmt: skip


def _others(reading: Reading) -> Finding | None:
    medians = {
        name: float(np.median(table["value"]))
        for name in ("mean_pattern_tvd", "uniform_tvd", "permuted_tvd", "first_position_tvd", "tau_gradient",
                     "tau_knockout")
        if len(table := reading.measured("heads", "value", metric=name))
    }  # fmt: skip
    if not {"mean_pattern_tvd", "uniform_tvd"} <= medians.keys():
        return None
    tvd = {name: words.number(value, 3) for name, value in medians.items() if name.endswith("tvd")}
    verdict = (
        f"Without any search, a row's mean over other text moves the output by {tvd['mean_pattern_tvd']} (median over "
        f"heads), uniform weights by {tvd['uniform_tvd']}, its own weights shuffled by "
        f"{tvd.get('permuted_tvd', 'n/a')}, and the first key alone by {tvd.get('first_position_tvd', 'n/a')}."
    )
    support = []
    if {"tau_gradient", "tau_knockout"} <= medians.keys():
        support.append(Sentence(
            f"Weights rank keys as losing each key does by a median τ of {words.number(medians['tau_knockout'])}, and "
            f"as the output's gradient does by {words.number(medians['tau_gradient'])} (1 is the same order, 0 none in "
            "common). A key with little weight has little to lose, so the first agreement is partly built in.",
            (Rows("heads", {"metric": "tau_knockout"}), Rows("heads", {"metric": "tau_gradient"})),
        ))  # fmt: skip
    return Finding(
        Sentence(verdict, (Rows("heads", {"metric": "mean_pattern_tvd"}),)),
        tuple(support),
        "what happens when all rows of a head, or all heads, are replaced together, as Hassid et al. 2022 do.",
    )


def _worth(reading: Reading) -> Finding | None:
    rows = reading.measured("freedom_worth", "value", predictor="freedom", controls="importance")
    if rows.empty:
        return None
    row = first(rows)
    with_layer = reading.measured("freedom_worth", "value", predictor="freedom", controls="importance and layer")
    if not _sure(row):
        opening = "It is not shown that freedom says something about other text that importance does not"
    elif len(with_layer) and _sure(first(with_layer)):
        opening = "Freedom says something about other text that importance and the layer do not"
    else:
        opening = (
            "Freedom says something about other text that importance does not, but nothing is shown beyond what the "
            "head's layer says"
        )
    verdict = (
        f"{opening}: over {words.count(int(row['n_heads']), 'head')}, its rank correlation with what a head's mean "
        f"pattern does there is {words.number(row['value'])} {words.interval(row['ci_low'], row['ci_high'])} with "
        f"importance partialled out (p {words.p_value(float(row['p']))})."
    )
    support = [
        Sentence(f"{name}: {words.number(other['value'])} {words.interval(other['ci_low'], other['ci_high'])}.",
                 (Rows("freedom_worth", {"predictor": str(other["predictor"]), "controls": str(other["controls"])}),))
        for name, other in _other_correlations(reading)
    ]  # fmt: skip
    return Finding(
        Sentence(verdict, (Rows("freedom_worth", {"predictor": "freedom", "controls": "importance"}),)),
        tuple(support),
        "a cause, nor anything about heads that were not looked at. The noise that each measurement has over so few "
        "sequences pulls correlations towards zero; the interval is over sequences for these heads.",
    )


def _sure(row: Row) -> bool:
    return bool(pd.notna(row["p"]) and float(row["p"]) < 0.05)


def _other_correlations(reading: Reading) -> list[tuple[str, Row]]:
    wanted = {
        "Without partialling anything out": ("freedom", "none"),
        "With the layer partialled out too": ("freedom", "importance and layer"),
        "Importance by itself": ("importance", "none"),
    }
    found = []
    for name, (predictor, controls) in wanted.items():
        rows = reading.measured("freedom_worth", "value", predictor=predictor, controls=controls)
        if len(rows):
            found.append((name, first(rows)))
    return found


def _percent(value: float) -> str:
    return f"{100 * value:.0f} %"


def _measured(row: Row) -> str:
    ends = "" if pd.isna(row["ci_low"]) else f" [{_percent(row['ci_low'])}, {_percent(row['ci_high'])}]"
    return f"{_percent(row['value'])}{ends}"
