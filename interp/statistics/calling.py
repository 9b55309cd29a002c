"""Which heads are called something, and the reason in words."""

from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray

from interp.statistics.intervals import Bounds, simultaneous_lower
from interp.statistics.significance import benjamini_hochberg, paired_p, too_few
from interp.statistics.units import Units, checked, unit_means


class Calls(NamedTuple):
    """Heads that are called something; every field has the trailing shape of the values.

    Attributes:
        called: which.
        reason: a sentence for each, called or not.
        value: mean over units.
        low: lower end of its interval, simultaneous over heads.
        control: mean of the control; NaN without one.
        p_corrected: of the paired difference, corrected over the heads; NaN without a control.
    """

    called: NDArray[np.bool_]
    reason: NDArray[np.object_]
    value: NDArray[np.float64]
    low: NDArray[np.float64]
    control: NDArray[np.float64]
    p_corrected: NDArray[np.float64]


def called(
    values: ArrayLike,
    control: ArrayLike | None,
    threshold: float,
    *,
    units: Units | None = None,
    level: float = 0.95,
    alpha: float = 0.05,
    bounds: Bounds | None = None,
    events: bool = False,
    seed: int = 0,
) -> Calls:
    """Call heads that are above a threshold for sure and differ from their control.

    A head is called where the lower end of its interval, simultaneous over all heads, is above the threshold and its
    paired difference from the control is significant after correction over all heads. Where no control is known to
    destroy the behaviour, the lower end alone decides, no p-value is computed, and the reason says so.

    Args:
        values: [sequence, ...], the trailing axes being the heads; NaN where a sequence has no value.
        control: the same statistic on the paired control sequences, or None where there is none.
        threshold: above which a head is called.
        units: a label per sequence (its document). None: every sequence is a unit.
        level: of the simultaneous lower ends.
        alpha: of the corrected p-values.
        bounds: the range of the statistic, such as (0, 1).
        events: values are shares of things that happen or do not (`simultaneous_lower`).
        seed: the same seed gives the same calls.

    Raises:
        ValueError: values and control are not paired, hold an infinity, or lie outside bounds; a wrong level.
    """
    low = simultaneous_lower(values, units, level=level, bounds=bounds, events=events, seed=seed)
    value, n = _mean_and_n(values, units)
    p_corrected, control_mean = np.full(low.shape, np.nan), np.full(low.shape, np.nan)
    if control is not None:
        p_corrected = benjamini_hochberg(paired_p(values, control, units, seed=seed))
        control_mean, _ = _mean_and_n(control, units)
    above = low > threshold
    is_called = above if control is None else above & (p_corrected <= alpha)
    reason = np.empty(low.shape, dtype=object)
    for head in np.ndindex(low.shape):
        reason[head] = _reason(
            value=float(value[head]),
            low=float(low[head]),
            n=int(n[head]),
            threshold=threshold,
            control=None if control is None else float(control_mean[head]),
            p=float(p_corrected[head]),
            alpha=alpha,
            n_heads=low.size,
        )
    return Calls(is_called, reason, value, low, control_mean, p_corrected)


def _mean_and_n(values: ArrayLike, units: Units | None) -> tuple[NDArray[np.float64], NDArray[np.int64]]:
    means = unit_means(checked(values), units)
    present = ~np.isnan(means)
    n = present.sum(0)
    return np.where(n > 0, np.where(present, means, 0.0).sum(0) / np.maximum(n, 1), np.nan), n


def _reason(
    *,
    value: float,
    low: float,
    n: int,
    threshold: float,
    control: float | None,
    p: float,
    alpha: float,
    n_heads: int,
) -> str:
    """Why one head is called or not."""
    if n == 0:
        return "not defined: no sequence has an eligible row"
    if n == 1:
        return f"{value:.3f} in a single sequence, which has no interval"
    if not low > threshold:
        return f"{value:.3f}, but its lower end {low:.3f} is not above {threshold:g}"
    above = f"{value:.3f}, at least {low:.3f} with all heads considered, above {threshold:g}"
    if control is None:
        return f"{above}; no control is defined"
    if np.isnan(p):
        return f"{above}, but fewer than two sequences are paired with a control"
    if p <= alpha:
        return f"{above}; its control is {control:.3f} (p = {p:.2g})"
    few = too_few(n, n_heads, alpha)
    return f"{above}, but not told apart from its control {control:.3f} (p = {p:.2g})" + (f"; {few}" if few else "")
