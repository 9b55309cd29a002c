"""What the curves say: means with intervals, areas against random orders, and the share of heads that is free."""

import numpy as np
import pandas as pd
from jaxtyping import Float
from numpy.typing import NDArray

from analyses.head_pruning.config import Config
from analyses.head_pruning.curves import areas, by_order
from interp.statistics import mean_interval, unit_means

_RESAMPLES = 2000
Curve = Float[NDArray[np.float64], "sequence step"]


def curve_table(values: pd.DataFrame, units: NDArray[np.int64], config: Config) -> pd.DataFrame:
    """The table ``curve``: the metric at each share with its interval, and its change from the unpruned model, paired
    by sequence, with its own."""
    counts = _counts(values)
    parts = []
    for (name, draw), curve in by_order(values).items():
        value = mean_interval(curve, units, seed=config.seed)
        change = mean_interval(curve - curve[:, :1], units, seed=config.seed)
        parts.append(
            pd.DataFrame(
                {"order": name, "draw": draw, "share": counts / counts[-1], "n_pruned": counts, "value": value.value,
                 "ci_low": value.low, "ci_high": value.high, "change": change.value, "change_low": change.low,
                 "change_high": change.high, "n": value.n}
            )
        )  # fmt: skip
    return pd.concat(parts, ignore_index=True)


def area_table(values: pd.DataFrame, units: NDArray[np.int64], config: Config) -> pd.DataFrame:
    """The table ``areas``: each order's area under the curve, and by how much that of importance is smaller
    (``margin``, paired by sequence, with its interval): above 0 where importance does better."""
    found = {key: areas(curve, _counts(values)) for key, curve in by_order(values).items()}
    importance = found["importance", 0]
    rows = []
    for (name, draw), area in found.items():
        value = mean_interval(area, units, seed=config.seed)
        margin = mean_interval(area - importance, units, seed=config.seed)
        rows.append(
            {"order": name, "draw": draw, "area": float(value.value), "area_low": float(value.low),
             "area_high": float(value.high), "margin": float(margin.value), "ci_low": float(margin.low),
             "ci_high": float(margin.high), "n": int(value.n)}
        )  # fmt: skip
    return pd.DataFrame(rows)


def free_table(values: pd.DataFrame, units: NDArray[np.int64], config: Config) -> pd.DataFrame:
    """The table ``free``: the share of heads that goes before the curve leaves the unpruned model.

    ``leaves``: "interval", where the mean metric rises above the upper end of the unpruned model's interval; "certain",
    where the paired change is first above 0 for sure (the lower end of its interval). The first is read between steps,
    linearly, with an interval from a bootstrap over sequences; the second is the step before.
    """
    shares = _counts(values) / _counts(values)[-1]
    rows = []
    for (name, draw), curve in by_order(values).items():
        means = unit_means(curve, units)
        whole = mean_interval(curve[:, 0], units, seed=config.seed)
        room = float(whole.high - whole.value)
        free, low, high = _crossing(means - means[:, :1], room, shares, config.seed)
        rows.append({"order": name, "draw": draw, "leaves": "interval", "share": free, "ci_low": low, "ci_high": high,
                     "room": room})  # fmt: skip
        change = mean_interval(curve - curve[:, :1], units, seed=config.seed)
        certain = np.flatnonzero(change.low[1:] > 0)
        step = len(shares) - 1 if not len(certain) else int(certain[0])
        rows.append({"order": name, "draw": draw, "leaves": "certain", "share": shares[step], "ci_low": np.nan,
                     "ci_high": np.nan, "room": 0.0})  # fmt: skip
    return pd.DataFrame(rows)


def _crossing(change: Curve, room: float, shares: NDArray[np.float64], seed: int) -> tuple[float, float, float]:
    """Where the mean change first exceeds the room, with a percentile interval over sequences."""
    if np.isnan(room):
        return np.nan, np.nan, np.nan
    rng = np.random.default_rng(seed)
    value = crossing(change.mean(0), room, shares)
    resampled = (change[rng.integers(len(change), size=len(change))].mean(0) for _ in range(_RESAMPLES))
    drawn = [crossing(each, room, shares) for each in resampled]
    low, high = np.quantile(drawn, [0.025, 0.975])
    return value, float(min(low, value)), float(max(high, value))


def crossing(change: Float[NDArray[np.float64], " step"], room: float, shares: NDArray[np.float64]) -> float:
    """The share at which a curve that starts at 0 first exceeds some room; 1 where it never does."""
    above = np.flatnonzero(change > room)
    if not len(above):
        return 1.0
    step = int(above[0])
    before, after = change[step - 1], change[step]
    return float(shares[step - 1] + (room - before) / (after - before) * (shares[step] - shares[step - 1]))


def _counts(values: pd.DataFrame) -> NDArray[np.int64]:
    """Heads pruned at each step."""
    return values.groupby("step")["n_pruned"].first().to_numpy()
