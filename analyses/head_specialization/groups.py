"""Which heads do alike: the tables ``divergences``, ``groups`` and ``clusterings``, and heads that are redundant.

The mean JSD of two heads over rows is a squared distance: its root is Euclidean (Fuglede & Topsøe 2004), so Ward's
linkage and silhouettes are taken of it. The embedding is Clark's: metric multidimensional scaling of the JSD itself.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from analyses.head_specialization.clustering import (
    clusterings,
    embedding,
    mean_of_units,
    medoids,
    one_cluster,
    resampled,
    spread,
)
from analyses.head_specialization.comparing import Compared, compare
from analyses.head_specialization.config import Config
from interp import HookedModel
from interp.results import Workspace
from interp.results.tables import empty_table
from interp.statistics import MeanInterval, halves, mean_interval, simultaneous_lower, unit_means
from interp.statistics.units import Units

_MOST = float(np.log(2))
_PAIR_RESAMPLES = 500  # of the bootstrap of each pair: there are tens of thousands
_PAIRS = 100_000  # whose intervals are taken at once
_HEAD = {"site": str, "layer": int, "head": int}
_COLUMNS: dict[str, dict[str, type]] = {
    "divergences": {
        **{f"{name}_{side}": kind for side in "ab" for name, kind in _HEAD.items()}, "jsd": float, "ci_low": float,
        "ci_high": float, "jsd_without_sink": float, "n": int,
    },
    "groups": {
        **_HEAD, "stack": str, "cluster": int, "medoid": bool, "silhouette": float, "stability": float, "x": float,
        "y": float,
    },
    "clusterings": {
        "stack": str, "clusters": int, "silhouette": float, "stability": float, "ci_low": float, "ci_high": float,
        "stress": float, "chosen": bool,
    },
    "redundant": {
        **_HEAD, "kind": str, "metric": str, "detail": str, "value": float, "simultaneous_low": float,
        "threshold": float, "chance": float, "control": float, "p_corrected": float, "called": bool, "reason": str,
    },
}  # fmt: skip

Tables = dict[str, pd.DataFrame]


def tables(
    model: HookedModel,
    passes: Sequence[Mapping[str, Any]],
    units: Units | None,
    config: Config,
    work: Workspace,
) -> Tables:
    """``divergences``, ``groups``, ``clusterings``, and rows for ``kinds`` under the name ``redundant``.

    Args:
        model: whose heads are compared.
        passes: arguments of `HookedModel.run`, a forward pass each; all sequences of the text, in their order.
        units: a label per sequence: its document.
        config: the settings.
        work: progress, and what is left out.
    """
    stacks = compare(model, passes, config.compared_rows, config.seed, work)
    parts: dict[str, list[pd.DataFrame]] = {name: [] for name in _COLUMNS}
    for compared in stacks:
        parts["divergences"].append(divergences(compared, units, config.seed))
        for name, table in grouped(compared, units, config.seed, work).items():
            parts[name].append(table)
        parts["redundant"].append(redundant(compared, units, config))
    return {name: pd.concat([empty_table(_COLUMNS[name]), *found], ignore_index=True) for name, found in parts.items()}


def divergences(compared: Compared, units: Units | None, seed: int) -> pd.DataFrame:
    """How far every pair of heads is apart, over all sequences; the interval is of ``jsd``."""
    blocks = [
        mean_interval(
            compared.whole[:, start : start + _PAIRS], units, bounds=(0.0, _MOST + 1e-6), seed=seed,
            n_resamples=_PAIR_RESAMPLES,
        )
        for start in range(0, compared.whole.shape[1], _PAIRS)
    ]  # fmt: skip
    whole = MeanInterval(*(np.concatenate(parts) for parts in zip(*blocks, strict=True)))
    ends = {}
    for side, numbers in zip("ab", compared.pairs, strict=True):
        for place, name in enumerate(("site", "layer", "head")):
            column = np.array([head[place] for head in compared.heads])
            ends[f"{name}_{side}"] = column[numbers]
    found = {"jsd": whole.value, "ci_low": whole.low, "ci_high": whole.high, "n": whole.n}
    return pd.DataFrame({**ends, **found, "jsd_without_sink": mean_of_units(unit_means(compared.without_sink, units))})


def grouped(compared: Compared, units: Units | None, seed: int, work: Workspace) -> Tables:
    """Clusters of heads, how stable they are, and where heads lie in two dimensions; ``groups`` and ``clusterings``."""
    by_unit = unit_means(compared.whole, units)
    matrix = compared.square(mean_of_units(by_unit))
    known = np.flatnonzero(~np.isnan(matrix).all(1, where=~np.eye(len(matrix), dtype=bool)))
    known = known[~np.isnan(matrix[np.ix_(known, known)]).any(1)]
    if len(known) < len(matrix):
        work.skip(
            f"{len(matrix) - len(known)} of {len(matrix)} heads from the groups",
            "they have no row in common with the others",
        )
    if len(known) < 2:
        return {}
    among = matrix[np.ix_(known, known)]
    found = clusterings(among, (compared.square(mean)[np.ix_(known, known)] for mean in resampled(by_unit, seed)))
    best = max(found, key=lambda n: float(found[n].silhouettes.mean())) if found else 1
    chosen = found.get(best) or one_cluster(len(known))
    places, stress = embedding(among, seed)
    heads = [compared.heads[number] for number in known]
    groups = pd.DataFrame(heads, columns=["site", "layer", "head"]).assign(
        stack=compared.stack, cluster=chosen.labels, medoid=medoids(among, chosen.labels),
        silhouette=chosen.silhouettes, stability=chosen.recovered, x=places[:, 0], y=places[:, 1],
    )  # fmt: skip
    rows = [
        {"stack": compared.stack, "clusters": n, "silhouette": float(each.silhouettes.mean()), "stress": stress,
         **spread(each.agreement), "chosen": n == best}
        for n, each in found.items()
    ]  # fmt: skip
    return {"groups": groups, "clusterings": pd.DataFrame(rows, columns=list(_COLUMNS["clusterings"]))}


def redundant(compared: Compared, units: Units | None, config: Config) -> pd.DataFrame:
    """One row a head: the head that it is least different from, and whether the two are one.

    Two heads count as far apart as the larger of their divergences with and without the sink: two heads that rest on
    the first position alike are no pair. The partner is found on one half of the sequences and judged on the other,
    where the upper end, simultaneous over all heads, has to lie below the threshold. ``control`` is the mean
    divergence from all other heads; no p-value is meaningful.
    """
    apart = np.fmax(compared.whole, compared.without_sink).astype(np.float64)
    labels = np.arange(len(apart)) if units is None else np.asarray(units)
    if len(np.unique(labels)) < 2:
        return empty_table(_COLUMNS["redundant"])
    select, report = halves(labels, config.seed)
    partner, pair = _partners(compared, mean_of_units(unit_means(apart[select], labels[select])))
    found = np.flatnonzero(partner >= 0)
    if not len(found):
        return empty_table(_COLUMNS["redundant"])
    judged, judged_units = apart[report][:, pair[found]], labels[report]
    value = mean_of_units(unit_means(judged, judged_units))
    high = -simultaneous_lower(-judged, judged_units, seed=config.seed, bounds=(-_MOST - 1e-6, 0.0))
    among = compared.square(mean_of_units(unit_means(apart[report], judged_units)))
    control = np.nanmean(np.where(np.eye(len(among), dtype=bool), np.nan, among), 1)[found]
    called = high < config.redundant_divergence
    names = [_name(compared, number) for number in partner[found]]
    heads = pd.DataFrame([compared.heads[number] for number in found], columns=["site", "layer", "head"])
    return heads.assign(
        kind="redundant", metric="divergence", detail=names, value=value, simultaneous_low=np.nan,
        threshold=config.redundant_divergence, chance=np.nan, control=control, p_corrected=np.nan, called=called,
        reason=[_reason(*each, config.redundant_divergence) for each in zip(names, value, high, called, strict=True)],
    )  # fmt: skip


def _partners(compared: Compared, apart: NDArray[np.float64]) -> tuple[NDArray[np.intp], NDArray[np.intp]]:
    """Each head's nearest other head, −1 for none, and the number of that pair."""
    matrix = compared.square(np.where(np.isnan(apart), np.inf, apart))
    np.fill_diagonal(matrix, np.inf)
    partner = matrix.argmin(1)
    numbers = compared.square(np.arange(len(apart), dtype=np.float64)).astype(np.intp)
    pair = numbers[np.arange(len(matrix)), partner]
    return np.where(np.isfinite(matrix.min(1)), partner, -1), pair


def _reason(name: str, value: float, high: float, called: bool, threshold: float) -> str:
    if np.isnan(high):
        return f"{value:.3f} nats from {name}; with fewer than two sequences to judge on there is no interval"
    end = f"{value:.3f} nats from {name}, at most {high:.3f} with all heads considered"
    return f"{end}, {'below' if called else 'not below'} {threshold:g}"


def _name(compared: Compared, number: int) -> str:
    _, layer, head = compared.heads[number]
    return f"L{layer}H{head}"
