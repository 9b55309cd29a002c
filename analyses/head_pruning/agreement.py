"""How well a score ranks heads as ablating them does, and whether importance is the same on another text."""

from collections.abc import Callable

import numpy as np
import pandas as pd
from numpy.typing import NDArray
from scipy import stats

from analyses.head_pruning.config import Config
from analyses.head_pruning.scores import Samples, Scores
from interp.results.tables import empty_table
from interp.statistics import ends_over_sequences, unit_means

_RESAMPLES = 1000
_Mean = Callable[[NDArray[np.float64]], NDArray[np.float64]]


def table(effects: pd.DataFrame, scores: Scores, data: str, units: NDArray[np.int64], config: Config) -> pd.DataFrame:
    """The table ``agreement``: Spearman's ρ over the ablated heads between a score and the change that ablation makes.

    Scores come from the scoring part, changes from the other, so that no noise is shared; the interval is over the
    sequences of both (`correlation`).

    Args:
        effects: changes by sequence, as `effects.samples` gives them.
        scores: of all heads. data: the name of the first data.
        units: of the reported sequences.
    """
    rows = []
    for kind, group in effects[effects["path"] == "total"].groupby("ablation", sort=False):
        wide = group.pivot(index="sequence", columns="number", values="change")
        numbers, change = wide.columns.to_numpy(), wide.to_numpy()
        for name, samples, mean in _scores(scores, data):
            x = (samples, scores.units[data], lambda v, mean=mean, which=numbers: mean(v)[which])
            rho, low, high = correlation(x, (change, units, _plain), "spearman", config.seed)
            rows.append(
                {"score": name, "ablation": kind, "rho": rho, "ci_low": low, "ci_high": high, "n_heads": len(numbers),
                 "n": len(unit_means(change, units))}
            )  # fmt: skip
    return pd.DataFrame(rows)


def transfer(scores: Scores, config: Config) -> pd.DataFrame:
    """The table ``transfer``: Pearson's r over all heads, of importance on one data and the other (Michel et al.)."""
    columns = {"data": str, "other": str, "r": float, "ci_low": float, "ci_high": float, "n_heads": int}
    names = list(scores.derivative)
    if len(names) < 2:
        return empty_table(columns)
    both = [(scores.derivative[name], scores.units[name], scores.normalised) for name in names]
    r, low, high = correlation(both[0], both[1], "pearson", config.seed)
    found = {"data": names[0], "other": names[1], "r": r, "ci_low": low, "ci_high": high, "n_heads": len(scores.heads)}
    return pd.DataFrame([found])


def correlation(
    x: tuple[Samples, NDArray[np.int64], _Mean],
    y: tuple[Samples, NDArray[np.int64], _Mean],
    how: str,
    seed: int,
) -> tuple[float, float, float]:
    """Correlation over heads of two means over sequences, with a 95 % interval over the sequences.

    Sequences (units) of both are drawn anew; `interp.statistics.ends_over_sequences` says what the interval is for.

    Args:
        x, y: samples [sequence, head], units, and what is correlated: a function of the mean over units.

    Returns:
        The correlation and its ends; NaN where it is not defined.
    """
    means = [(unit_means(values, units), of) for values, units, of in (x, y)]
    rng = np.random.default_rng(seed)
    value = _correlation([of(v.mean(0)) for v, of in means], how)
    if np.isnan(value):
        return np.nan, np.nan, np.nan
    drawn = np.array([
        _correlation([of(v[rng.integers(len(v), size=len(v))].mean(0)) for v, of in means], how)
        for _ in range(_RESAMPLES)
    ])  # fmt: skip
    return value, *ends_over_sequences(value, drawn, min(len(v) for v, _ in means))


def _scores(scores: Scores, data: str) -> list[tuple[str, Samples, _Mean]]:
    """Each score with its samples and what it makes of their mean."""
    found: list[tuple[str, Samples, _Mean]] = [
        ("importance", scores.derivative[data], scores.normalised), ("derivative", scores.derivative[data], _plain),
    ]  # fmt: skip
    found += [(name, samples, _plain) for name, samples in scores.estimates.items()]
    if not np.isnan(scores.weight_norm).any():
        norms = np.broadcast_to(scores.weight_norm, scores.derivative[data].shape)
        found.append(("weight_norm", norms, _plain))
    return found


def _plain(values: NDArray[np.float64]) -> NDArray[np.float64]:
    return values


def _correlation(pair: list[NDArray[np.float64]], how: str) -> float:
    x, y = pair
    if how == "spearman":
        x, y = stats.rankdata(x), stats.rankdata(y)
    x, y = x - x.mean(), y - y.mean()
    size = np.sqrt((x**2).sum() * (y**2).sum())
    return float((x * y).sum() / size) if size > 0 else np.nan
