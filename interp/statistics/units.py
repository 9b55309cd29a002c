"""What counts as one observation: a sequence, or the sequences of one document together."""

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

#: Labels that tell which sequences belong together: document numbers or names, one a sequence.
Units = Sequence[Any] | NDArray[Any]

#: Below this many units the bootstrap has too little to draw from, and Student's t takes its place.
FEW_UNITS = 16


def unit_means(values: ArrayLike, units: Units | None = None) -> NDArray[np.float64]:
    """Mean of each unit's sequences, so that every document weighs the same however many windows it was cut into.

    Args:
        values: [sequence, ...]; NaN where a sequence has no value (no eligible row), which is left out column by
            column.
        units: a label per sequence; None: every sequence is a unit.

    Returns:
        [unit, ...] in float64, units in the order of their first sequence; NaN where none of a unit's sequences has a
        value.

    Raises:
        ValueError: values is no array of sequences, holds an infinity, or has another length than units.
    """
    values = checked(values)
    if units is None:
        return values
    index, n_units = unit_index(units, len(values))
    if n_units == len(values):
        return values
    present = ~np.isnan(values)
    sums = np.zeros((n_units, *values.shape[1:]))
    counts = np.zeros(sums.shape)
    np.add.at(sums, index, np.where(present, values, 0.0))
    np.add.at(counts, index, present)
    return np.where(counts > 0, sums / np.maximum(counts, 1), np.nan)


def halves(units: Units | int, seed: int) -> tuple[NDArray[np.intp], NDArray[np.intp]]:
    """Split sequences in two at random: select on one half, report on the other.

    Args:
        units: a label per sequence, or how many sequences there are if each is a unit. Sequences of one unit stay in
            one half.
        seed: the split repeats exactly for the same seed.

    Returns:
        Indices of the sequences of either half, ascending. The numbers of units differ by at most one.

    Raises:
        ValueError: fewer than two units.
    """
    labels = np.arange(units) if isinstance(units, int) else units
    index, n_units = unit_index(labels, len(labels))
    if n_units < 2:
        raise ValueError(f"a split into halves needs at least 2 units (sequences or documents); got {n_units}")
    first = np.zeros(n_units, dtype=bool)
    first[np.random.default_rng(seed).permutation(n_units)[: (n_units + 1) // 2]] = True
    return np.flatnonzero(first[index]), np.flatnonzero(~first[index])


def unit_index(units: Units, n_sequences: int) -> tuple[NDArray[np.intp], int]:
    """Number of each sequence's unit, in the order of first appearance, and how many units there are.

    Raises:
        ValueError: not one label per sequence.
    """
    labels = np.asarray(units)
    if labels.shape != (n_sequences,):
        raise ValueError(f"units needs one label per sequence, {n_sequences}; got shape {list(labels.shape)}")
    _, first, inverse = np.unique(labels, return_index=True, return_inverse=True)
    order = np.empty(len(first), dtype=np.intp)
    order[np.argsort(first)] = np.arange(len(first))
    return order[inverse], len(first)


def checked(values: ArrayLike) -> NDArray[np.float64]:
    """Values as float64 ``[sequence, ...]``.

    Raises:
        ValueError: no axis, no sequence, or an infinity.
    """
    values = np.asarray(values, dtype=np.float64)
    if values.ndim == 0 or len(values) == 0:
        raise ValueError(f"values must be [sequence, ...] with at least one sequence; got shape {list(values.shape)}")
    if np.isinf(values).any():
        where = np.argwhere(np.isinf(values))[0].tolist()
        raise ValueError(f"values must be finite (NaN where a sequence has none); got an infinity at {where}")
    return values


def check_level(level: float) -> None:
    """Raise ValueError unless a confidence level lies between 0 and 1."""
    if not 0 < level < 1:
        raise ValueError(f"level must lie between 0 and 1, as 0.95; got {level}")
