"""Rows of tables: means with intervals, of all texts and of each predicted class."""

from collections.abc import Iterator, Mapping

import numpy as np
from numpy.typing import NDArray

from interp.statistics import mean_interval

ALL = "all"


def by_class(classes: NDArray[np.object_]) -> Iterator[tuple[str, NDArray[np.bool_]]]:
    """Which texts are in each class: all of them first, then, where there are at most four, each predicted class."""
    yield ALL, np.ones(len(classes), dtype=bool)
    names = sorted(set(classes.tolist()))
    if len(names) <= 4:
        for name in names:
            yield str(name), classes == name


def mean_row(
    values: NDArray[np.float64], bounds: tuple[float, float] | None = None, seed: int = 0, *, events: bool = False
) -> dict[str, float]:
    """``value, ci_low, ci_high, n``: the mean over texts that have a value, with its 95 % interval."""
    if not len(values) or np.isnan(values).all():
        return {"value": np.nan, "ci_low": np.nan, "ci_high": np.nan, "n": 0}
    found = mean_interval(values, bounds=bounds, seed=seed, events=events)
    return {
        "value": float(found.value), "ci_low": float(found.low), "ci_high": float(found.high), "n": int(found.n)
    }  # fmt: skip


def share_row(truth: NDArray[np.float64]) -> dict[str, float]:
    """``value, ci_low, ci_high, n``: a share, with the exact interval of a binomial (Clopper & Pearson 1934).

    Where some texts count in part (ties), the interval is that of their mean.
    """
    return mean_row(truth, (0.0, 1.0), events=True)


def quantile(values: NDArray[np.float64], share: float = 0.5) -> float:
    """A quantile of the values there are; NaN where there are none."""
    known = values[~np.isnan(values)]
    return float(np.quantile(known, share)) if len(known) else float("nan")


def share_of(truth: NDArray[np.bool_]) -> float:
    """How many of some are true; NaN of none."""
    return float(truth.mean()) if len(truth) else float("nan")


def kind_of(encoder: str, attention: str, seed: int) -> Mapping[str, str | int]:
    """The columns that say which classifier a row is of."""
    return {"encoder": encoder, "attention": attention, "seed": seed}
