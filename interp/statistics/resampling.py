"""The studentised bootstrap: how far resampled means fall from the mean, in their own standard errors."""

from collections.abc import Iterator
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

#: A resample's standard error counts as at least this share of the sample's. Where one sequence differs from all
#: others, resamples without it have none at all, and that head's t would swamp those of every other.
_LEAST_ERROR = 0.1
_ELEMENTS = 2**22  # of the largest temporary array: 32 MB


class Columns(NamedTuple):
    """Columns of units summed up: how many units have a value, their mean, its standard error, and what is left.

    Attributes:
        n: [column].
        mean: [column]; NaN without units.
        error: [column] standard error of the mean, sd / √n with n − 1 degrees of freedom; NaN below two units.
        scaled: [unit, column] deviations from the mean in standard errors; 0 where missing or where all are equal.
        present: [unit, column]; None where nothing is missing.
    """

    n: NDArray[np.int64]
    mean: NDArray[np.float64]
    error: NDArray[np.float64]
    scaled: NDArray[np.float64]
    present: NDArray[np.float64] | None


class Resampled(NamedTuple):
    """A block of columns: which ones, and their t [resample, column]."""

    index: NDArray[np.intp]
    t: NDArray[np.float64]


def summarise(values: NDArray[np.float64]) -> Columns:
    """Mean, standard error and scaled deviations of each column of ``[unit, column]``; NaN is missing."""
    present = ~np.isnan(values)
    n = present.sum(0)
    known = np.where(present, values, 0.0)
    mean = np.divide(known.sum(0), n, out=np.full(n.shape, np.nan), where=n > 0)
    deviations = np.where(present, known - mean, 0.0)
    # where all values are equal, their mean may differ from them by rounding, which must not pass for spread
    equal = np.where(present, values, -np.inf).max(0) == np.where(present, values, np.inf).min(0)
    deviations[:, equal] = 0.0
    degrees = np.where(n > 1, (n - 1) * n, np.nan)
    error = np.sqrt((deviations**2).sum(0) / degrees)
    scaled = np.divide(deviations, error, out=np.zeros_like(deviations), where=error > 0)
    return Columns(n, mean, error, scaled, None if present.all() else present.astype(np.float64))


def resampled_t(columns: Columns, which: NDArray[np.bool_], n_resamples: int, seed: int) -> Iterator[Resampled]:
    """t of resampled means, (mean* − mean) / error*, a block of columns at a time.

    Units are drawn with replacement, the same ones for every column, so that what columns share is kept. A resample
    that leaves a column fewer than two units has t = 0 there.

    Args:
        columns: from `summarise`.
        which: [column] the columns wanted.
        n_resamples: how often.
        seed: the same seed draws the same units.
    """
    index = np.flatnonzero(which)
    width = max(1, _ELEMENTS // n_resamples)
    for start in range(0, len(index), width):
        block = index[start : start + width]
        present = None if columns.present is None else columns.present[:, block]
        yield Resampled(block, _block_of_t(columns.scaled[:, block], present, n_resamples, seed))


def _block_of_t(
    scaled: NDArray[np.float64], present: NDArray[np.float64] | None, n_resamples: int, seed: int
) -> NDArray[np.float64]:
    n_of_column = np.full(scaled.shape[1], len(scaled), float) if present is None else present.sum(0)
    squares = scaled**2
    t = np.empty((n_resamples, scaled.shape[1]))
    for rows, counts in draws(len(scaled), n_resamples, seed):
        n = n_of_column if present is None else counts @ present
        at_least_one = np.maximum(n, 1)
        shift = counts @ scaled / at_least_one
        variance = (counts @ squares / at_least_one - shift**2) / np.maximum(n - 1, 1)
        error = np.sqrt(np.maximum(variance, 0.0))
        t[rows] = np.where(n > 1, shift / np.maximum(error, _LEAST_ERROR), 0.0)
    return t


def draws(n_units: int, n_resamples: int, seed: int) -> Iterator[tuple[slice, NDArray[np.float64]]]:
    """How often each unit is drawn in each resample, ``[resample, unit]``, some resamples at a time."""
    rng = np.random.default_rng(seed)
    height = max(1, _ELEMENTS // n_units)
    for start in range(0, n_resamples, height):
        rows = min(height, n_resamples - start)
        drawn = rng.integers(n_units, size=(rows, n_units)) + n_units * np.arange(rows)[:, None]
        counts = np.bincount(drawn.ravel(), minlength=rows * n_units).reshape(rows, n_units)
        yield slice(start, start + rows), counts.astype(np.float64)
