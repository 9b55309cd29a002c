"""Intervals of means: of each head by itself, and lower ends that hold for all heads at once."""

from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy import stats

from interp.statistics.resampling import Columns, resampled_t, summarise
from interp.statistics.units import FEW_UNITS, Units, check_level, unit_means

Bounds = tuple[float, float]


class MeanInterval(NamedTuple):
    """A mean with its confidence interval; every field has the trailing shape of the values.

    Attributes:
        value: mean over units.
        low, high: ends of the interval; NaN with fewer than two units.
        n: units that had a value.
    """

    value: NDArray[np.float64]
    low: NDArray[np.float64]
    high: NDArray[np.float64]
    n: NDArray[np.int64]


def mean_interval(
    values: ArrayLike,
    units: Units | None = None,
    *,
    level: float = 0.95,
    n_resamples: int = 2000,
    seed: int = 0,
    bounds: Bounds | None = None,
    events: bool = False,
) -> MeanInterval:
    """Mean over units with an interval for it, for every column by itself.

    From 16 units up a studentised bootstrap over units, ``[mean − t*_(high)·se, mean − t*_(low)·se]`` with the
    quantiles of t* = (mean* − mean)/se* over resamples (Efron & Tibshirani 1993, ch. 12.5); below, Student's t. For
    skewed masses it covers nearer to the level than percentile or BCa intervals (docs/statistics.md).

    Args:
        values: [sequence, ...]; NaN where a sequence has no value.
        units: a label per sequence (its document); each unit weighs the same. None: every sequence is a unit.
        level: of confidence.
        n_resamples: of the bootstrap.
        seed: the same seed gives the same ends.
        bounds: the range of the statistic, such as (0, 1), which the ends are clipped to.
        events: values are shares of things that happen or do not, 0 to 1. Where every unit has 0 or 1, the interval
            is the exact one of a binomial (Clopper & Pearson 1934): what happened in none of n units may happen yet.

    Raises:
        ValueError: values is no array of sequences, holds an infinity or lies outside bounds; a wrong level.
    """
    check_level(level)
    bounds = (0.0, 1.0) if events and bounds is None else bounds
    means, shape = _flat_units(values, units, bounds)
    columns = summarise(means)
    t_low, t_high = _student_quantiles(columns.n, level)
    for block in resampled_t(columns, columns.n >= FEW_UNITS, n_resamples, seed):
        ends = np.quantile(block.t, [(1 - level) / 2, (1 + level) / 2], axis=0)
        t_low[block.index], t_high[block.index] = np.minimum(ends[0], 0.0), np.maximum(ends[1], 0.0)
    low, high = columns.mean - t_high * columns.error, columns.mean - t_low * columns.error
    if bounds is not None:
        low, high = np.clip(low, *bounds), np.clip(high, *bounds)
    if events:
        told = _yes_or_no(means)
        happened, n = np.rint(columns.mean[told] * columns.n[told]), columns.n[told]
        low[told] = exact_lower(happened, n, (1 - level) / 2)
        high[told] = 1 - exact_lower(n - happened, n, (1 - level) / 2)
    return MeanInterval(columns.mean.reshape(shape), low.reshape(shape), high.reshape(shape), columns.n.reshape(shape))


def simultaneous_lower(
    values: ArrayLike,
    units: Units | None = None,
    *,
    level: float = 0.95,
    n_resamples: int = 5000,
    seed: int = 0,
    bounds: Bounds | None = None,
    events: bool = False,
) -> NDArray[np.float64]:
    """Lower ends that all lie below their heads' true means at once, with the probability ``level``.

    ``mean − c·se`` with one c for all heads: the quantile of the largest t* over heads, units being resampled for all
    heads together (max-t, Romano & Wolf 2005). Heads with fewer than 16 units take Student's t with Bonferroni's share
    of the error instead, and leave the rest to the others.

    Args:
        values: [sequence, ...], the trailing axes being the heads that the ends hold for together; NaN where a
            sequence has no value.
        units: a label per sequence (its document). None: every sequence is a unit.
        level: the probability that no end is above its head's true mean.
        n_resamples: of the bootstrap.
        seed: the same seed gives the same ends.
        bounds: the range of the statistic, such as (0, 1), which the ends are clipped to.
        events: values are shares of things that happen or do not, 0 to 1. A head with 0 or 1 in every unit then has
            the exact lower end of a binomial with Bonferroni's share of the error.

    Returns:
        [...] lower ends; NaN for a head with fewer than two units.

    Raises:
        ValueError: values is no array of sequences, holds an infinity or lies outside bounds; a wrong level.
    """
    check_level(level)
    bounds = (0.0, 1.0) if events and bounds is None else bounds
    means, shape = _flat_units(values, units, bounds)
    columns = summarise(means)
    told = _yes_or_no(means) if events else np.zeros(columns.n.shape, dtype=bool)
    judged, many = columns.n >= 2, (columns.n >= FEW_UNITS) & ~told
    error_per_head = (1 - level) / max(judged.sum(), 1)
    factor = np.full(columns.n.shape, np.nan)
    few = judged & ~many & ~told
    factor[few] = stats.t.ppf(1 - error_per_head, columns.n[few] - 1)
    if many.any():
        factor[many] = _max_t(columns, many, 1 - error_per_head * many.sum(), n_resamples, seed)
    low = columns.mean - factor * columns.error
    told &= judged
    low[told] = exact_lower(np.rint(columns.mean[told] * columns.n[told]), columns.n[told], error_per_head)
    return (low if bounds is None else np.clip(low, *bounds)).reshape(shape)


def exact_lower(happened: ArrayLike, n: ArrayLike, error: float) -> NDArray[np.float64]:
    """The lower end of a share with so much error, of what happened so often in n (Clopper & Pearson 1934)."""
    happened, n = np.asarray(happened, dtype=np.float64), np.asarray(n, dtype=np.float64)
    return np.where(happened > 0, stats.beta.ppf(error, np.maximum(happened, 1), n - happened + 1), 0.0)


def _yes_or_no(means: NDArray[np.float64]) -> NDArray[np.bool_]:
    """[column] which columns have 0 or 1 in all units that have a value, at least two of them."""
    return ((means == 0) | (means == 1) | np.isnan(means)).all(0) & ((~np.isnan(means)).sum(0) >= 2)


def _max_t(columns: Columns, which: NDArray[np.bool_], level: float, n_resamples: int, seed: int) -> float:
    """Quantile of the largest t over columns."""
    largest = np.full(n_resamples, -np.inf)
    for block in resampled_t(columns, which, n_resamples, seed):
        np.maximum(largest, block.t.max(1), out=largest)
    return float(np.quantile(largest, level))


def _student_quantiles(n: NDArray[np.int64], level: float) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """−t and t of the two-sided interval; NaN below two units."""
    high = stats.t.ppf((1 + level) / 2, np.where(n > 1, n - 1, np.nan))
    return -high, high


def _flat_units(
    values: ArrayLike, units: Units | None, bounds: Bounds | None
) -> tuple[NDArray[np.float64], tuple[int, ...]]:
    """Unit means as [unit, column], and the shape that columns go back into.

    Raises:
        ValueError: a mean lies outside the bounds by more than rounding.
    """
    means = unit_means(values, units)
    shape = means.shape[1:]
    if bounds is not None:
        low, high = bounds
        slack = 1e-5 * (high - low)
        if (means < low - slack).any() or (means > high + slack).any():
            raise ValueError(
                f"values must lie within bounds, {low} to {high}; got {np.nanmin(means):.6g} to {np.nanmax(means):.6g}"
            )
        means = np.clip(means, low, high)
    return means.reshape(len(means), -1), shape
