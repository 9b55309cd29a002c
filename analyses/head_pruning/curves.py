"""Pruning heads 10 % at a time in several orders: what the metric does, how many go for free, what is left where."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd
from jaxtyping import Float
from numpy.typing import NDArray

from analyses.head_pruning import metrics
from analyses.head_pruning.config import Config
from analyses.head_pruning.effects import Head
from analyses.head_pruning.inputs import Data, is_cheap, site_kind
from analyses.head_pruning.scores import Scores
from interp import HookedModel
from interp.attention.edits import GateHeads
from interp.importance import michel
from interp.results import Workspace

_REVERSED = "worst_first"


@dataclass(frozen=True, eq=False)
class Order:
    """An order in which heads are pruned.

    Attributes:
        name: "importance", "importance_rescored", "exact", "weight_norm", "random" or "worst_first".
        draw: number of a random order.
        numbers: of the heads, the first to go first.
    """

    name: str
    draw: int
    numbers: NDArray[np.intp]


def orders(
    model: HookedModel, data: Data, scores: Scores, samples: pd.DataFrame, config: Config, work: Workspace
) -> pd.DataFrame:
    """The table ``order``: when each head goes in each order (``rank`` from 0), with its kind of site.

    All are made on the scoring part, but ``exact``: it ranks by resample ablation (zero, where that is all there is) on
    the reported part, on which it is judged too, so that it can only look better than it is.
    """
    importance = scores.importance(data.name)
    found = [Order("importance", 0, np.argsort(importance, kind="stable"))]
    if config.is_full or is_cheap(model):
        made = work.step("rescored", lambda: {"rank": _rescored(model, data, scores, config, work)})["rank"]
        found.append(Order("importance_rescored", 0, np.argsort(made["rank"].to_numpy())))
    else:
        work.skip("importance scored again at each step of pruning", "budget is report")
    total = samples[(samples["path"] == "total") & (samples["ablation"] == samples["ablation"].iloc[0])]
    exact: Any = total.groupby("number")["change"].mean()
    if len(exact) == len(importance):
        found.append(Order("exact", 0, exact.sort_index().to_numpy().argsort(kind="stable")))
    else:
        work.skip("the order of exact ablation", f"{len(exact)} of {len(importance)} heads were ablated")
    if not np.isnan(scores.weight_norm).any():
        found.append(Order("weight_norm", 0, np.argsort(scores.weight_norm, kind="stable")))
    rng = np.random.default_rng(config.seed)
    found += [Order("random", draw, rng.permutation(len(importance))) for draw in range(config.random_orders)]
    found.append(Order(_REVERSED, 0, found[0].numbers[::-1].copy()))
    kind: Any = {site.name: site_kind(site) for site in model.sites}
    parts = []
    for order in found:
        rank = np.empty(len(importance), int)
        rank[order.numbers] = np.arange(len(importance))
        parts.append(scores.heads.assign(site_kind=scores.heads["site"].map(kind), order=order.name, draw=order.draw,
                                         rank=rank))  # fmt: skip
    return pd.concat(parts, ignore_index=True)


def measured(model: HookedModel, data: Data, order: pd.DataFrame, config: Config, work: Workspace) -> pd.DataFrame:
    """The metric in each reported sequence at each share: ``order, draw, step, n_pruned, sequence, value``.

    A step for each order, so that an interrupted run loses one of them; another for what all have in common, the
    unpruned model and the one without any head.
    """
    names = order.drop_duplicates(["site", "head"])
    every: list[Head] = list(zip(names["site"], names["head"].astype(int), strict=True))
    counts = config.counts(len(every))
    batches = data.batches(model, data.reported_on, config)

    def curve(going: list[Head], steps: list[int]) -> dict[str, pd.DataFrame]:
        parts = []
        for step in work.progress(steps, "steps of pruning"):
            gates = dict.fromkeys(going[: counts[step]], 0.0)
            value = metrics.values_under(model, batches, data.measure.metric, gates)
            parts.append(pd.DataFrame({"step": step, "n_pruned": counts[step], "sequence": range(len(value)),
                                       "value": value}))  # fmt: skip
        return {"values": pd.concat(parts, ignore_index=True)}

    last = len(counts) - 1
    ends = work.step("curve-ends", lambda: curve(every, [0, last]))["values"]
    tables = []
    groups: Any = order.groupby(["order", "draw"], sort=False)
    for (name, draw), group in groups:
        ranked = group.sort_values("rank")
        going: list[Head] = list(zip(ranked["site"], ranked["head"].astype(int), strict=True))
        between = list(range(1, last))
        made = [work.step(f"curve-{name}-{draw}", lambda g=going, b=between: curve(g, b))["values"]] if between else []
        tables.append(pd.concat([ends, *made], ignore_index=True).assign(order=name, draw=draw))
    return pd.concat(tables, ignore_index=True)


def left(order: pd.DataFrame) -> pd.DataFrame:
    """The table ``left``: heads that each site keeps at each share, in the order of importance."""
    mine: Any = order[order["order"] == "importance"]
    parts = []
    for count in Config.counts(len(mine)):
        share = count / len(mine)
        kept = mine[mine["rank"] >= count].groupby("site").size()
        sizes = mine.groupby(["site", "layer", "site_kind"], sort=False).size().rename("n_heads").reset_index()
        parts.append(sizes.assign(share=share, kept=sizes["site"].map(kept).fillna(0).astype(int)))
    return pd.concat(parts, ignore_index=True)


def _rescored(model: HookedModel, data: Data, scores: Scores, config: Config, work: Workspace) -> pd.DataFrame:
    """Rank of each head where importance is scored anew, with what is pruned gone, before every step."""
    batches, n_heads = data.batches(model, data.scored_on, config), len(scores.heads)
    names: list[Head] = list(zip(scores.heads["site"], scores.heads["head"].astype(int), strict=True))
    gone: list[int] = []
    for count in work.progress(config.counts(n_heads)[1:], "steps of pruning"):
        with model.edit(GateHeads({names[number]: 0.0 for number in gone})) if gone else model.edit():
            importance = michel(model, batches, data.measure.scored)["importance"].to_numpy().copy()
        importance[gone] = -1.0
        order = np.argsort(importance, kind="stable")
        gone += [int(number) for number in order[len(gone) : count]]
    rank = np.empty(n_heads, int)
    rank[gone] = np.arange(n_heads)
    return pd.DataFrame({"rank": rank})


def by_order(values: pd.DataFrame) -> Mapping[tuple[str, int], Float[NDArray[np.float64], "sequence step"]]:
    """The metric of every order and draw."""
    groups: Any = values.groupby(["order", "draw"], sort=False)
    return {
        (str(name), int(draw)): group.pivot(index="sequence", columns="step", values="value").to_numpy()
        for (name, draw), group in groups
    }


def areas(
    curve: Float[NDArray[np.float64], "sequence step"], counts: NDArray[np.int64]
) -> Float[NDArray[np.float64], " sequence"]:
    """Mean of the metric along the curve in each sequence, by the trapezoid rule: the area under it."""
    return np.trapezoid(curve, counts / counts[-1], axis=1)
