"""Paired p-values, their correction over heads, and when there are too few sequences for either."""

from collections.abc import Iterator, Sequence
from math import ceil, log2
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy import stats

from interp.statistics.units import Units, checked, unit_means

_EXACT_UNITS = 14  # 2¹⁴ = 16,384 sign patterns are all tried; beyond, some are drawn
_LEAST_DRAWS = 10_000
_DRAWS_PER_HEAD = 100
_ELEMENTS = 2**22  # of the largest temporary array: 32 MB


def paired_p(
    values: ArrayLike,
    control: ArrayLike,
    units: Units | None = None,
    *,
    n_draws: int | None = None,
    seed: int = 0,
) -> NDArray[np.float64]:
    """p-value per head that values are not above their control: one-sided sign flips of the paired differences.

    Under the null hypothesis differences lie symmetrically around zero, so that each unit's sign is a coin flip; p is
    the share of sign patterns whose mean difference is at least the observed one. All patterns are tried up to 14
    units; beyond, ``(b + 1) / (n_draws + 1)`` of random ones (Phipson & Smyth 2010).

    Args:
        values: [sequence, ...].
        control: the same shape: the same statistic where the behaviour is known to be destroyed. NaN in either leaves
            a sequence out of its column.
        units: a label per sequence (its document). None: every sequence is a unit.
        n_draws: random patterns beyond 14 units. None: 100 per head and at least 10,000, so that a single head can
            still be significant at 0.05 after correction over all heads.
        seed: the same seed draws the same patterns.

    Returns:
        [...] uncorrected p-values; NaN for a head with fewer than two pairs.

    Raises:
        ValueError: values and control differ in shape, or hold an infinity.
    """
    values, control = checked(values), checked(control)
    if values.shape != control.shape:
        raise ValueError(f"control must be paired with values, shape {list(values.shape)}; got {list(control.shape)}")
    differences = unit_means(values - control, units)
    shape, differences = differences.shape[1:], differences.reshape(len(differences), -1)
    n_units, n_heads = differences.shape
    pairs = (~np.isnan(differences)).sum(0)
    differences = np.nan_to_num(differences, nan=0.0)  # a flipped zero changes no mean
    if n_units <= _EXACT_UNITS:
        reached, tried = _at_least_observed(differences, _all_flips(n_units, n_heads)), 2**n_units
    else:
        n_draws = n_draws or max(_LEAST_DRAWS, _DRAWS_PER_HEAD * n_heads)
        reached = _at_least_observed(differences, _random_flips(n_units, n_heads, n_draws, seed)) + 1
        tried = n_draws + 1
    return np.where(pairs >= 2, reached / tried, np.nan).reshape(shape)


def benjamini_hochberg(p: ArrayLike, family: Sequence[Any] | NDArray[Any] | None = None) -> NDArray[np.float64]:
    """p-values corrected to control the false discovery rate (Benjamini & Hochberg 1995; SciPy's).

    Args:
        p: p-values of any shape; NaN stays NaN and does not count.
        family: a label per p-value, of the same shape: each family (the heads within one metric) is corrected by
            itself. None: all are one family.

    Raises:
        ValueError: a p-value outside [0, 1], or family of another shape.
    """
    p = np.asarray(p, dtype=np.float64)
    labels = np.zeros(p.shape) if family is None else np.asarray(family)
    if labels.shape != p.shape:
        raise ValueError(f"family needs one label per p-value, shape {list(p.shape)}; got {list(labels.shape)}")
    if ((p < 0) | (p > 1)).any():
        raise ValueError(f"p-values must lie within 0 and 1; got {np.nanmin(p):.6g} to {np.nanmax(p):.6g}")
    corrected = np.full(p.shape, np.nan)
    for label in np.unique(labels):
        members = (labels == label) & ~np.isnan(p)
        if members.any():
            corrected[members] = stats.false_discovery_control(p[members], method="bh")
    return corrected


def too_few(n_units: int, n_heads: int, alpha: float = 0.05) -> str:
    """The sentence to print where heads / 2ⁿ > alpha; an empty text, which is false, where there are enough.

    With n units a sign-flip p-value is at least 1/2ⁿ: below that many, no single head among n_heads can be significant
    after correction, however strong it is.
    """
    if n_heads <= alpha * 2.0**n_units:
        return ""
    return (
        f"too few sequences for p-values: with {n_units} none is below 1/2^{n_units}, so that one head among {n_heads} "
        f"cannot be significant at {alpha:g}; use at least {ceil(log2(n_heads / alpha))}"
    )


def _at_least_observed(differences: NDArray[np.float64], patterns: Iterator[NDArray[np.float64]]) -> NDArray[np.int64]:
    """How many patterns leave a column's mean at least as large.

    They do where the differences that they flip add up to nothing or less.
    """
    rounding = 1e-12 * np.abs(differences).sum(0)
    reached = np.zeros(differences.shape[1], dtype=np.int64)
    for flipped in patterns:
        reached += (flipped @ differences <= rounding).sum(0)
    return reached


def _all_flips(n_units: int, n_heads: int) -> Iterator[NDArray[np.float64]]:
    """Every pattern, ``[pattern, unit]``, 1 where a unit's sign is flipped."""
    for rows in _blocks(2**n_units, n_units, n_heads):
        yield (rows[:, None] >> np.arange(n_units) & 1).astype(np.float64)


def _random_flips(n_units: int, n_heads: int, n_draws: int, seed: int) -> Iterator[NDArray[np.float64]]:
    rng = np.random.default_rng(seed)
    for rows in _blocks(n_draws, n_units, n_heads):
        yield rng.integers(2, size=(len(rows), n_units), dtype=np.int8).astype(np.float64)


def _blocks(n_rows: int, n_units: int, n_heads: int) -> Iterator[NDArray[np.int64]]:
    height = max(1, _ELEMENTS // max(n_units, n_heads, 1))
    for start in range(0, n_rows, height):
        yield np.arange(start, min(start + height, n_rows))
