"""Accuracies pooled over units: all pairs of all documents count alike, and intervals are over documents."""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from interp.statistics import benjamini_hochberg, paired_p

_RESAMPLES = 2000
_LEAST_DRAWS, _DRAWS_PER_HEAD = 10_000, 40  # one head alone can be significant at 0.05: heads / draws < 0.025

Counts = NDArray[np.float64]


@dataclass(frozen=True, eq=False)
class Pooled:
    """Accuracies of heads beside one baseline on the same pairs; each field but ``n`` and ``baseline`` is [head].

    Attributes:
        p: that a head is not above the baseline, one-sided, not corrected.
        n: pairs.
    """

    accuracy: Counts
    low: Counts
    high: Counts
    baseline: float
    difference: Counts
    difference_low: Counts
    difference_high: Counts
    p: Counts
    n: int


def per_unit(hits: NDArray[np.bool_], units: NDArray[np.intp], n_units: int) -> Counts:
    """Sums over the pairs of each unit: [pair, ...] → [unit, ...]."""
    sums = np.zeros((n_units, *hits.shape[1:]))
    np.add.at(sums, units, hits)
    return sums


def pooled(hits: NDArray[np.bool_], baseline: NDArray[np.bool_], units: NDArray[np.integer], seed: int) -> Pooled:
    """Share of pairs that each head gets right, and how far that is above the baseline.

    Intervals (95 %): percentiles of both ratios when units are drawn with replacement, the head and the baseline on the
    same ones. p: sign flips of each unit's difference in pairs got right (`interp.statistics.paired_p`).

    Args:
        hits: [pair, head].
        baseline: [pair].
        units: which pairs belong to one document, or sentence; [pair].
        seed: of the draws.
    """
    labels, index = np.unique(units, return_inverse=True)
    n_units, n_heads = len(labels), hits.shape[1]
    right, base = per_unit(hits, index, n_units), per_unit(baseline, index, n_units)
    n = np.bincount(index, minlength=n_units).astype(float)
    nothing = np.full(n_heads, np.nan)
    if not len(hits):
        return Pooled(nothing, nothing, nothing, float("nan"), nothing, nothing, nothing, nothing, 0)
    accuracy, of_baseline = right.sum(0) / n.sum(), float(base.sum() / n.sum())
    ends, of_difference, p = np.full((2, n_heads), np.nan), np.full((2, n_heads), np.nan), nothing
    if n_units > 1:
        drawn = (
            np.random.default_rng(seed).multinomial(n_units, np.full(n_units, 1 / n_units), _RESAMPLES).astype(float)
        )
        total = drawn @ n
        ratio = (drawn @ right) / total[:, None]
        ends = np.quantile(ratio, [0.025, 0.975], axis=0)
        of_difference = np.quantile(ratio - (drawn @ base / total)[:, None], [0.025, 0.975], axis=0)
        n_draws = max(_LEAST_DRAWS, _DRAWS_PER_HEAD * n_heads)
        p = paired_p(right, np.broadcast_to(base[:, None], right.shape), n_draws=n_draws, seed=seed)
    return Pooled(
        accuracy,
        ends[0],
        ends[1],
        of_baseline,
        accuracy - of_baseline,
        of_difference[0],
        of_difference[1],
        p,
        len(hits),
    )


def corrected(p: Counts) -> Counts:
    """p-values corrected over all heads that were looked at (Benjamini–Hochberg)."""
    return benjamini_hochberg(p)
