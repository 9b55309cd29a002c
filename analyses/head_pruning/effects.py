"""What happens when heads are ablated one by one: in all, by their direct path alone, and one head left of a layer."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import pandas as pd
from jaxtyping import Float
from numpy.typing import NDArray

from analyses.head_pruning.config import Config
from analyses.head_pruning.inputs import Data, is_cheap
from analyses.head_pruning.scores import Scores
from interp import HookedModel
from interp.ablation import Kind, ablation_effects, all_but_one
from interp.direct import direct_effects, known_weights, why_no_direct_effect
from interp.results import Workspace
from interp.results.tables import empty_table
from interp.statistics import benjamini_hochberg, mean_interval, paired_p, too_few

KINDS: tuple[Kind, ...] = ("resample", "mean", "zero", "mean_pattern")
_ALPHA = 0.05

Head = tuple[str, int]


def chosen_heads(scores: Scores, data: str, config: Config) -> NDArray[np.intp]:
    """Numbers of the heads that are ablated: those of highest and of lowest importance, in order of execution."""
    order = np.argsort(-scores.importance(data), kind="stable")
    n = config.n_ablated(len(order))
    return np.sort(np.concatenate([order[: n - n // 2], order[len(order) - n // 2 :]]))


def kinds_of(model: HookedModel, config: Config, work: Workspace) -> tuple[Kind, ...]:
    """The ways of ablation that are run, after saying which are not."""
    if own := [site.name for site in model.sites if site.source == "softmax"]:
        work.skip("ablations but zero", f"{own[0]} computes its own attention, so only its heads' gates are in reach")
        return ("zero",)
    if config.is_full or is_cheap(model):
        return KINDS
    work.skip("mean, zero and mean-pattern ablation of single heads", "budget is report")
    return ("resample",)


def samples(
    model: HookedModel, data: Data, scores: Scores, numbers: NDArray[np.intp], config: Config, work: Workspace
) -> pd.DataFrame:
    """The change of the metric in each reported sequence: ``ablation, path, number, sequence, change, value``.

    ``path``: "total", or "direct" for resample ablation (zero, where that is all there is). Steps by kind, so that an
    interrupted run loses little.
    """
    heads = [_head(scores, number) for number in numbers]
    parts = []
    for kind in kinds_of(model, config, work):
        made = work.step(f"ablation-{kind}", lambda kind=kind: _total(model, data, heads, numbers, kind, config, work))
        parts.append(made["samples"])
    kind: Kind = parts[0]["ablation"].iloc[0]
    parts.append(work.step("direct", lambda: _direct(model, data, heads, numbers, kind, config, work))["samples"])
    return pd.concat(parts, ignore_index=True)


def table(samples: pd.DataFrame, scores: Scores, data: Data, config: Config) -> pd.DataFrame:
    """The table ``effects``: mean change with its interval; p-values, corrected over the heads of one kind and path in
    both directions together; and a verdict: "needed" where the metric rises without the head, "harmful" where it falls,
    "undecided" otherwise."""
    units = data.units(data.reported_on)
    importance = scores.importance(data.name)
    rank = np.empty(len(importance), int)
    rank[np.argsort(-importance, kind="stable")] = np.arange(1, len(importance) + 1)
    parts = []
    groups: Any = samples.groupby(["ablation", "path"], sort=False)
    for (kind, path), group in groups:
        wide = group.pivot(index="sequence", columns="number", values="change")
        change, numbers = wide.to_numpy(), wide.columns.to_numpy()
        found = mean_interval(change, units, seed=config.seed)
        nothing = np.zeros_like(change)
        p = np.stack([paired_p(sign * change, nothing, units, seed=config.seed) for sign in (1, -1)])
        rises, falls = benjamini_hochberg(p)
        verdict = np.where(rises <= _ALPHA, "needed", np.where(falls <= _ALPHA, "harmful", "undecided"))
        few = too_few(int(found.n.max()), 2 * len(numbers), _ALPHA)
        parts.append(
            scores.heads.iloc[numbers].reset_index(drop=True).assign(
                ablation=kind, path=path, change=found.value, ci_low=found.low, ci_high=found.high,
                p_needed=rises, p_harmful=falls, verdict=verdict, importance=importance[numbers],
                importance_rank=rank[numbers], n=found.n, note=few,
            )
        )  # fmt: skip
    return pd.concat(parts, ignore_index=True)


def best_heads(model: HookedModel, data: Data, scores: Scores, config: Config, work: Workspace) -> pd.DataFrame:
    """The table ``best_head``: each layer with the one head that it does best with (Michel et al., table 4).

    The head is chosen on the scoring part, the change of the metric is measured on the other.
    """
    columns = {
        "site": str,
        "layer": int,
        "kept_head": int,
        "change": float,
        "ci_low": float,
        "ci_high": float,
        "n": int,
    }
    sets = all_but_one(model)
    if not sets:
        work.skip("one head left of each layer", "no layer has more than one")
    elif not config.is_full and not is_cheap(model):
        work.skip("one head left of each layer", "budget is report")
    else:
        return work.step("best-head", lambda: {"best": _best(model, data, scores, sets, config, work)})["best"]
    return empty_table(columns)


def _best(
    model: HookedModel, data: Data, scores: Scores, sets: dict[Head, tuple[Head, ...]], config: Config, work: Workspace
) -> pd.DataFrame:
    def run(rows: NDArray[np.intp], heads: Sequence[Head]) -> Float[NDArray[np.float64], "set sequence"]:
        batches = data.batches(model, rows, config)
        chosen = [sets[head] for head in heads]
        return ablation_effects(model, batches, data.measure.metric, chosen, ("zero",), replay=True,
                                watch=work.progress).change[0]  # fmt: skip

    tried = pd.DataFrame(list(sets), columns=pd.Index(["site", "head"]))
    tried["change"] = run(data.scored_on, list(sets)).mean(1)
    best = tried.loc[tried.groupby("site", sort=False)["change"].idxmin()]
    heads: list[Head] = list(zip(best["site"], best["head"].astype(int), strict=True))
    found = mean_interval(run(data.reported_on, heads).T, data.units(data.reported_on), seed=config.seed)
    layer = {site.name: site.layer for site in model.sites}
    return pd.DataFrame(
        {"site": [site for site, _ in heads], "layer": [layer[site] for site, _ in heads],
         "kept_head": [head for _, head in heads], "change": found.value, "ci_low": found.low, "ci_high": found.high,
         "n": found.n}
    )  # fmt: skip


def _total(
    model: HookedModel, data: Data, heads: list[Head], numbers: NDArray[np.intp], kind: Kind, config: Config,
    work: Workspace,
) -> dict[str, pd.DataFrame]:  # fmt: skip
    found = ablation_effects(
        model, data.batches(model, data.reported_on, config), data.measure.metric, [[head] for head in heads], (kind,),
        others=data.batches(model, data.scored_on, config), replay=True,
        at_once=1 if model.device.type == "cpu" else max(site.n_heads for site in model.sites), watch=work.progress,
    )  # fmt: skip
    return {"samples": _long(kind, "total", numbers, found.change[0], found.ablated[0])}


def _direct(
    model: HookedModel, data: Data, heads: list[Head], numbers: NDArray[np.intp], kind: Kind, config: Config,
    work: Workspace,
) -> dict[str, pd.DataFrame]:  # fmt: skip
    nothing = _long(kind, "direct", numbers[:0], np.empty((0, 0)), np.empty((0, 0)))
    if any(site.source == "softmax" for site in model.sites):
        work.skip("direct effects", "the model computes its own attention, whose outputs are out of reach")
        return {"samples": nothing}
    weights = known_weights(model)
    why = {site.name: why_no_direct_effect(weights, site.path) for site in model.sites}
    for reason in dict.fromkeys(filter(None, why.values())):
        work.skip(f"direct effects at {sum(r == reason for r in why.values())} of {len(why)} sites", reason)
    kept = [i for i, (site, _) in enumerate(heads) if not why[site]]
    if not kept:
        return {"samples": nothing}
    change = direct_effects(
        model, data.batches(model, data.reported_on, config), data.measure.metric, [heads[i] for i in kept], kind,
        others=data.batches(model, data.scored_on, config), weights=weights,
    )  # fmt: skip
    return {"samples": _long(kind, "direct", numbers[kept], change, np.full_like(change, np.nan))}


def _head(scores: Scores, number: int) -> Head:
    row = scores.heads.iloc[int(number)]
    return str(row["site"]), int(row["head"])


def _long(
    kind: Kind, path: str, numbers: NDArray[np.intp], change: NDArray[np.float64], value: NDArray[np.float64]
) -> pd.DataFrame:
    n_heads, n = change.shape if change.size else (0, 0)
    words = {
        name: pd.Series([word] * (n_heads * n), dtype=object) for name, word in (("ablation", kind), ("path", path))
    }
    return pd.DataFrame(
        {**words, "number": np.repeat(numbers, n).astype(int), "sequence": np.tile(np.arange(n), n_heads).astype(int),
         "change": change.ravel(), "value": value.ravel()}
    )  # fmt: skip
