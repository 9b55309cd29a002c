"""From rows to tables: heads with their intervals, shares by number of keys, texts to be drawn twice."""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pandas as pd

from analyses.adversarial_attention.config import Config
from analyses.adversarial_attention.heads.continuations import Continuation
from analyses.adversarial_attention.heads.search import Freedom
from analyses.adversarial_attention.heads.substitutes import SUBSTITUTES
from interp.data import token_texts
from interp.statistics import mean_interval

__all__ = ["by_keys", "drawn_twice", "heads_table", "shown"]

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
    searched = rows.loc[rows["searched"]]
    columns = {
        "freedom_share": (searched, "share"), "nullspace_share": (searched, "nullspace_share"),
        "random_values_share": (searched, "random_values_share"), "jsd_ceiling": (searched, "ceiling"),
        **{f"{name}_tvd": (searched, f"{name}_tvd") for name in SUBSTITUTES},
        "tau_gradient": (searched, "tau_gradient"), "tau_knockout": (searched, "tau_knockout"),
    }  # fmt: skip
    parts = [_scores(table, column, metric, config) for metric, (table, column) in columns.items()]
    mine = importance.merge(rows.loc[:, _HEAD].drop_duplicates(), on=_HEAD)
    mine = mine.assign(document=mine["sequence"])
    parts.append(_scores(mine, "importance", "derivative", config))
    table = pd.concat(parts, ignore_index=True)
    table["data"] = rows["data"].iloc[0]
    chance = table.loc[table["metric"] == "random_values_share"].set_index(_HEAD)["value"]
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
    whole: Any = rows.groupby(["document", "sequence", *_HEAD], sort=False)[column].mean().unstack(_HEAD)  # type: ignore[arg-type]
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
    while edges[-1] <= rows["n_keys"].to_numpy().max():
        edges.append(2 * edges[-1])
    found = []
    for low, high in itertools.pairwise(edges):
        inside = rows.loc[(rows["n_keys"] >= low) & (rows["n_keys"] < high)]
        for column, metric in metrics.items():
            known = inside.loc[inside[column].notna()]
            if not len(known):
                continue
            means: Any = known.groupby(["document", "sequence"])[column].mean()
            units = means.index.get_level_values("document").to_numpy()
            interval = mean_interval(means.to_numpy()[:, None], units=units, bounds=(0, 1), seed=config.seed)
            found.append({
                "low": low, "high": high - 1, "metric": metric, "value": float(interval.value[0]),
                "ci_low": float(interval.low[0]), "ci_high": float(interval.high[0]), "n": int(interval.n[0]),
                "rows": len(known),
            })  # fmt: skip
    return pd.DataFrame(found)


def shown(continuation: Continuation, found: Sequence[Freedom], here: dict[str, Any]) -> dict[str, pd.DataFrame]:
    """The tables ``patterns`` and ``tokens`` of one sequence: rows far from the model's own with the same output, to be
    drawn on text.

    Args:
        here: ``data``, ``sequence`` and ``query``.
    """
    model, far = continuation.model, [each for each in found if each.point is not None]
    rows = pd.DataFrame([
        {"site": each.row.site, "n_keys": len(each.row.keys), "share": each.share, "max_weight": each.row.pattern.max()}
        for each in far
    ])  # fmt: skip
    patterns = []
    for freedom in [far[i] for i in telling(rows)]:
        row, point = freedom.row, freedom.point
        assert point is not None
        for which, weights in (("original", row.pattern), ("adversarial", point)):
            output = continuation.outputs(row, weights)[0]
            answer = int(output.argmax())
            told = token_texts(model.tokenizer, [answer])[0] if output.shape[-1] == model.d_vocab else str(answer)
            patterns.append(pd.DataFrame({
                "site": row.site, "layer": model.site(row.site).layer, "head": row.head, **here, "key": row.keys,
                "which": which, "weight": weights[: len(row.keys)], "jsd": freedom.jsd, "tvd": freedom.tvd,
                "answer": told, "probability": float(output[answer]),
            }))  # fmt: skip
    if not patterns:
        return {}
    ids = continuation.tokens[0].tolist()
    tokens = {"data": here["data"], "sequence": here["sequence"], "position": range(len(ids)), "token": ids}
    return {
        "patterns": pd.concat(patterns, ignore_index=True),
        "tokens": pd.DataFrame({**tokens, "text": token_texts(model.tokenizer, ids)}),
    }


def telling(rows: pd.DataFrame) -> list[int]:
    """Which rows to draw: of every site at most one; of those with few enough keys and most of the freedom there is,
    where there are such, the ones in which a single key weighs most.

    Args:
        rows: ``site, n_keys, share, max_weight``.
    """
    if not len(rows):
        return []
    order = rows.assign(long=rows["n_keys"] > _LONGEST, near=~(rows["share"] >= _FAR), flat=-rows["max_weight"])
    order = order.sort_values(["long", "near", "flat"], kind="stable").drop_duplicates("site")
    return [int(place) for place in rows.index.get_indexer_for(order.index[:_SHOWN])]


def drawn_twice(tables: Mapping[str, pd.DataFrame], rows: pd.DataFrame) -> dict[str, pd.DataFrame]:
    """Of what each sequence would show, the rows that tell most."""
    if "patterns" not in tables:
        return {}
    keys = ["site", "head", "sequence", "query"]
    searched = rows.loc[rows["searched"] & rows["share"].notna()].reset_index(drop=True)
    best = searched.iloc[telling(searched)].loc[:, keys]
    patterns = tables["patterns"].merge(best, on=keys)
    tokens = tables["tokens"].drop_duplicates(["sequence", "position"])
    return {
        "patterns": patterns,
        "tokens": tokens.loc[tokens["sequence"].isin(best["sequence"])].reset_index(drop=True),
    }
