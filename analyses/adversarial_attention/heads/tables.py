"""From rows to tables: heads with their intervals, shares by number of keys, texts to be drawn twice."""

from __future__ import annotations

import itertools
from collections.abc import Sequence

import numpy as np
import pandas as pd

from analyses.adversarial_attention.config import Config
from analyses.adversarial_attention.heads.continuations import Continuation, Watched
from analyses.adversarial_attention.heads.inputs import Inputs, Place, token_texts
from analyses.adversarial_attention.heads.search import Freedom
from analyses.adversarial_attention.heads.substitutes import SUBSTITUTES
from interp import HookedModel
from interp.statistics import mean_interval

__all__ = ["by_keys", "heads_table", "shown"]

_WHY = {
    "freedom_share": "no row was searched, or no other row was found that leaves the output where it is",
    "nullspace_share": "the head's values are out of reach",
    "random_values_share": "the head's values are out of reach",
    "tau_gradient": "no row whose weights and gradients vary",
    "tau_knockout": "no row whose weights and effects vary",
}
_SHOWN, _LONGEST, _FAR = 3, 64, 0.8  # texts drawn twice, their keys at most, and their freedom at least
_HEAD = ["site", "layer", "head"]


def heads_table(rows: pd.DataFrame, importance: pd.DataFrame, config: Config) -> pd.DataFrame:
    """The table ``heads``: means over sequences of what was found for the rows of each head.

    The chance level of the null space's share is that of values drawn at random.
    """
    searched = rows[rows["searched"]]
    columns = {
        "freedom_share": (searched, "share"), "nullspace_share": (searched, "nullspace_share"),
        "random_values_share": (searched, "random_values_share"), "jsd_ceiling": (searched, "ceiling"),
        **{f"{name}_tvd": (searched, f"{name}_tvd") for name in SUBSTITUTES},
        "tau_gradient": (searched, "tau_gradient"), "tau_knockout": (searched, "tau_knockout"),
    }  # fmt: skip
    parts = [_scores(table, column, metric, config) for metric, (table, column) in columns.items()]
    mine = importance.merge(rows[_HEAD].drop_duplicates(), on=_HEAD)
    mine = mine.assign(document=mine["sequence"])
    parts.append(_scores(mine, "importance", "derivative", config))
    table = pd.concat(parts, ignore_index=True)
    table["data"] = rows["data"].iloc[0]
    chance = table[table["metric"] == "random_values_share"].set_index(_HEAD)["value"]
    is_null = table["metric"] == "nullspace_share"
    table["chance"] = np.nan
    table.loc[is_null, "chance"] = chance.reindex(pd.MultiIndex.from_frame(table.loc[is_null, _HEAD])).to_numpy()
    table["p_corrected"] = np.nan
    table["note"] = [
        "" if np.isfinite(value) else _WHY.get(metric, "not measured on any row")
        for metric, value in zip(table["metric"], table["value"], strict=True)
    ]
    return table


def _scores(rows: pd.DataFrame, column: str, metric: str, config: Config) -> pd.DataFrame:
    """Means over sequences by head, with intervals over documents."""
    whole = rows.groupby(["document", "sequence", *_HEAD], sort=False)[column].mean().unstack(_HEAD)  # type: ignore[arg-type]
    bounds = (-1, 1) if metric.startswith("tau") else (0, None) if metric == "derivative" else (0, 1)
    found = mean_interval(
        whole.to_numpy(dtype=float), units=whole.index.get_level_values("document").to_numpy(),
        bounds=(bounds[0], np.inf if bounds[1] is None else bounds[1]), seed=config.seed,
    )  # fmt: skip
    table = whole.columns.to_frame(index=False)
    return table.assign(metric=metric, value=found.value, ci_low=found.low, ci_high=found.high, n=found.n)


def by_keys(rows: pd.DataFrame, config: Config) -> pd.DataFrame:
    """The table ``freedom_by_keys``: shares by number of keys, in doublings; means over heads, then over
    sequences."""
    metrics = {
        "nullspace_share": "nullspace_share",
        "random_values_share": "random_values_share",
        "share": "freedom_share",
    }
    edges = [config.least_keys]
    while edges[-1] <= rows["n_keys"].max():
        edges.append(2 * edges[-1])
    found = []
    for low, high in itertools.pairwise(edges):
        inside = rows[(rows["n_keys"] >= low) & (rows["n_keys"] < high)]
        for column, metric in metrics.items():
            known = inside.dropna(subset=[column])
            if not len(known):
                continue
            means = known.groupby(["document", "sequence"])[column].mean()
            units = means.index.get_level_values("document").to_numpy()
            interval = mean_interval(means.to_numpy()[:, None], units=units, bounds=(0, 1), seed=config.seed)
            found.append({
                "low": low, "high": high - 1, "metric": metric, "value": float(interval.value[0]),
                "ci_low": float(interval.low[0]), "ci_high": float(interval.high[0]), "n": int(interval.n[0]),
                "rows": len(known),
            })  # fmt: skip
    return pd.DataFrame(found)


def shown(
    model: HookedModel, given: Inputs, found: Sequence[tuple[Place, Freedom]], config: Config
) -> dict[str, pd.DataFrame]:
    """The tables ``patterns`` and ``tokens``: rows far from the model's own, with the same output, to be drawn on text.

    Of every layer at most one row: of those with few enough keys and most of the freedom there is, where there are
    such, the ones in which a single key weighs most.
    """
    best: list[tuple[Place, Freedom]] = []
    far = [each for each in found if each[1].point is not None]
    for place, freedom in sorted(far, key=_telling):
        if all(freedom.row.site != other.row.site for _, other in best) and len(best) < _SHOWN:
            best.append((place, freedom))
    patterns, tokens = [], []
    for place, freedom in best:
        row, point = freedom.row, freedom.point
        assert point is not None
        sequence = given.changed.tokens[place.sequence][None]
        continuation = Continuation(
            model, sequence, place.searched, [row.site], Watched(config.horizon, config.position)
        )
        site = model.site(row.site)
        for which, weights in (("original", row.pattern), ("adversarial", point)):
            output = continuation.outputs(row, weights)[0]
            answer = int(output.argmax())
            patterns.append(pd.DataFrame({
                "site": row.site, "layer": site.layer, "head": row.head, "data": given.data,
                "sequence": place.sequence, "query": place.searched, "key": row.keys, "which": which,
                "weight": weights[: len(row.keys)], "jsd": freedom.jsd, "tvd": freedom.tvd,
                "answer": token_texts(model, [answer])[0] if output.shape[-1] == model.d_vocab else str(answer),
                "probability": float(output[answer]),
            }))  # fmt: skip
        ids = sequence[0].tolist()
        tokens.append(pd.DataFrame({
            "data": given.data, "sequence": place.sequence, "position": range(len(ids)), "token": ids,
            "text": token_texts(model, ids),
        }))  # fmt: skip
    if not patterns:
        return {}
    return {
        "patterns": pd.concat(patterns, ignore_index=True),
        "tokens": pd.concat(tokens, ignore_index=True).drop_duplicates(["sequence", "position"], ignore_index=True),
    }


def _telling(each: tuple[Place, Freedom]) -> tuple[bool, bool, float]:
    row = each[1].row
    return len(row.keys) > _LONGEST, each[1].share < _FAR, -float(row.pattern.max())
