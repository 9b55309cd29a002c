"""Rank correlation over units with its interval."""

from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy import stats

from interp.statistics.units import FEW_UNITS, Units, check_level, unit_means

_LEAST_UNITS = 4
_ELEMENTS = 2**22


class RankCorrelation(NamedTuple):
    """Spearman's ρ with its confidence interval, and how many units had both values. NaN where undefined."""

    value: float
    low: float
    high: float
    n: int


def spearman_interval(
    x: ArrayLike,
    y: ArrayLike,
    units: Units | None = None,
    *,
    level: float = 0.95,
    n_resamples: int = 2000,
    seed: int = 0,
) -> RankCorrelation:
    """Spearman's rank correlation of two measurements of each unit.

    From 16 units up a percentile bootstrap over units; below, Fisher's z with the standard error
    √((1 + ρ²/2)/(n − 3)) (Bonett & Wright 2000). Units are observations (sequences, examples). Heads of one model are
    none: their scores share the sequences that they were measured on.

    Args:
        x, y: [sequence]; NaN where there is none.
        units: a label per sequence (its document), averaged first. None: every sequence is a unit.
        level: of confidence.
        n_resamples: of the bootstrap; those in which x or y does not vary are left out.
        seed: the same seed gives the same ends.

    Returns:
        ρ is NaN where x or y does not vary; the interval is NaN below four units too.

    Raises:
        ValueError: x and y are not one value per sequence each.
    """
    check_level(level)
    x, y = np.asarray(x, dtype=np.float64), np.asarray(y, dtype=np.float64)
    if x.ndim != 1 or x.shape != y.shape:
        raise ValueError(f"x and y must be [sequence] of the same length; got {list(x.shape)} and {list(y.shape)}")
    pairs = unit_means(np.where(np.isnan(x + y)[:, None], np.nan, np.stack([x, y], -1)), units)
    pairs = pairs[~np.isnan(pairs).any(-1)]
    n = len(pairs)
    rho = float(_spearman(pairs.T[0], pairs.T[1])) if n >= 2 else np.nan
    if np.isnan(rho) or n < _LEAST_UNITS:
        return RankCorrelation(rho, np.nan, np.nan, n)
    ends = _fisher(rho, n, level) if n < FEW_UNITS else _resampled(pairs, level, n_resamples, seed)
    return RankCorrelation(rho, *ends, n)


def ends_over_sequences(
    value: float, drawn: NDArray[np.float64], n: int, *, level: float = 0.95
) -> tuple[float, float]:
    """Ends for a correlation over heads of two means over sequences, from resamples of the sequences.

    They are for the correlation that other sequences, as many, would give on average. Noise of the means pulls that
    towards zero, the more the fewer sequences there are, and nothing here undoes it: two scores that would agree fully
    on endless text agree less. A resample adds as much noise again and is pulled once more, so that its percentiles lie
    too low and those of the basic bootstrap too high; only the spread of the resamples is used, on Fisher's scale,
    z = artanh ρ:

        tanh(z − w (z* − mean z*)),    w = √(n/(n − 1)) · t(n − 1) / t(∞)

    with the quantiles of Student's t in w, which makes up for how few sequences are drawn from.

    Args:
        value: the correlation.
        drawn: those of means over sequences drawn anew; NaN where one is not defined.
        n: sequences (units) drawn from; of several measurements the least.
        level: of confidence.

    Returns:
        NaN with fewer than two sequences, or where half of the resamples or more have no correlation.
    """
    check_level(level)
    known = drawn[~np.isnan(drawn)]
    if n < 2 or np.isnan(value) or 2 * len(known) <= len(drawn):
        return float("nan"), float("nan")
    z, known = (np.arctanh(np.clip(v, -1 + 1e-9, 1 - 1e-9)) for v in (value, known))
    tail = (1 + level) / 2
    wider = np.sqrt(n / (n - 1)) * stats.t.ppf(tail, n - 1) / stats.norm.ppf(tail)
    below, above = wider * (np.quantile(known, [1 - tail, tail]) - known.mean())
    return float(min(np.tanh(z - above), value)), float(max(np.tanh(z - below), value))


def _fisher(rho: float, n: int, level: float) -> tuple[float, float]:
    with np.errstate(divide="ignore"):  # ρ = ±1 has z = ±∞, and the interval [ρ, ρ]
        z = np.arctanh(rho)
    width = stats.norm.ppf((1 + level) / 2) * np.sqrt((1 + rho**2 / 2) / (n - 3))
    return float(np.tanh(z - width)), float(np.tanh(z + width))


def _resampled(pairs: NDArray[np.float64], level: float, n_resamples: int, seed: int) -> tuple[float, float]:
    rng = np.random.default_rng(seed)
    n, correlations = len(pairs), []
    height = max(1, _ELEMENTS // n)
    for start in range(0, n_resamples, height):
        drawn = pairs[rng.integers(n, size=(min(height, n_resamples - start), n))]
        correlations.append(_spearman(drawn[..., 0], drawn[..., 1]))
    low, high = np.nanquantile(np.concatenate(correlations), [(1 - level) / 2, (1 + level) / 2])
    return float(low), float(high)


def _spearman(x: NDArray[np.float64], y: NDArray[np.float64]) -> NDArray[np.float64]:
    """Pearson's correlation of mean ranks over the last axis; NaN where either does not vary."""
    middle = (x.shape[-1] + 1) / 2
    ranks_x, ranks_y = stats.rankdata(x, axis=-1) - middle, stats.rankdata(y, axis=-1) - middle
    spread = np.sqrt((ranks_x**2).sum(-1) * (ranks_y**2).sum(-1))
    return np.divide((ranks_x * ranks_y).sum(-1), spread, out=np.full(spread.shape, np.nan), where=spread > 0)
