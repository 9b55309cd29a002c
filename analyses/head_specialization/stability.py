"""How stable each score is: does another half of the text, or a text of another kind, rank the heads alike?"""

from collections.abc import Sequence

import numpy as np
import pandas as pd
from numpy.typing import NDArray
from scipy import stats

from analyses.head_specialization.scores import Scores, Values
from interp.results import Workspace
from interp.statistics import halves, unit_means

_SPLITS = 100


def table(found: dict[str, Scores], names: Sequence[str], work: Workspace) -> pd.DataFrame:
    """The table ``stability``: Spearman's rank correlation over heads of each score's means.

    Between halves: of documents, split at random 100 times; the value is the median over splits, the interval holds
    95 % of them. Between text kinds: of the two texts' means, with an interval from leaving out one document after the
    other (jackknife of Fisher's z). Noise pulls both towards zero: they are lower bounds of what more text would give.
    """
    first, *others = found.values()
    rows = []
    if len(np.unique(first.units)) < 2:
        work.skip("stability between halves of the text", "the text is one document")
    else:
        rows += [_between_halves(first, metric) for metric in work.progress(names, "scores' stability")]
    if others:
        rows += [_between_texts(first, others[0], metric) for metric in names]
    else:
        work.skip("stability between text kinds", "there is one text: --other-text takes a second")
    columns = ["metric", "between", "spearman", "ci_low", "ci_high", "n_heads"]
    made = pd.DataFrame([row for row in rows if row is not None], columns=columns)
    kinds = {"metric": str, "between": str, "spearman": float, "ci_low": float, "ci_high": float, "n_heads": int}
    return made.astype(kinds)


def _between_halves(found: Scores, metric: str) -> tuple[str, str, float, float, float, int] | None:
    means = _defined(unit_means(found.one(metric), found.units))
    n_units, n_heads = means.shape
    if n_heads < 3 or n_units < 2:
        return None
    correlations = []
    for split in range(_SPLITS):
        one, other = (np.nanmean(means[half], axis=0) for half in halves(n_units, found.seed + split))
        correlations.append(_spearman(one, other))
    if np.isnan(correlations).all():
        return None
    low, middle, high = np.nanquantile(correlations, [0.025, 0.5, 0.975])
    return metric, "halves", float(middle), float(low), float(high), n_heads


def _between_texts(first: Scores, other: Scores, metric: str) -> tuple[str, str, float, float, float, int] | None:
    one, two = (unit_means(each.one(metric), each.units) for each in (first, other))
    both = _present(one) & _present(two)
    one, two = one[:, both], two[:, both]
    if both.sum() < 3 or not len(one) or not len(two):
        return None
    rho = _spearman(np.nanmean(one, 0), np.nanmean(two, 0))
    if np.isnan(rho):
        return None
    width = 1.96 * np.sqrt(_jackknife(one, np.nanmean(two, 0)) + _jackknife(two, np.nanmean(one, 0)))
    ends = np.tanh(np.arctanh(np.clip(rho, -1 + 1e-12, 1 - 1e-12)) + np.array([-width, width]))
    return metric, "text kinds", float(rho), float(ends[0]), float(ends[1]), int(both.sum())


def _jackknife(means: Values, against: Values) -> float:
    """Variance of Fisher's z when one document of ``means`` is left out at a time; NaN with fewer than two."""
    n = len(means)
    if n < 2:
        return float("nan")
    rho = np.array([_spearman(np.nanmean(np.delete(means, i, 0), 0), against) for i in range(n)])
    z = np.arctanh(np.clip(rho, -0.9999, 0.9999))
    return float((n - 1) / n * np.sum((z - z.mean()) ** 2))


def _spearman(x: Values, y: Values) -> float:
    """NaN where fewer than three heads have values, or where most of them share one: ties have no order to keep."""
    both = ~np.isnan(x + y)
    if both.sum() < 3 or any(_most_are_equal(side[both]) for side in (x, y)):
        return float("nan")
    return float(np.corrcoef(stats.rankdata(x[both]), stats.rankdata(y[both]))[0, 1])


def _most_are_equal(x: Values) -> bool:
    _, counts = np.unique(x, return_counts=True)
    return 2 * int(counts.max()) > len(x)


def _present(means: Values) -> NDArray[np.bool_]:
    """Heads that have a value in at least two documents, or the only one."""
    return (~np.isnan(means)).sum(0) >= min(2, len(means))


def _defined(means: Values) -> Values:
    """Heads with a value in every document, on the documents that have values at all."""
    kept = means[~np.isnan(means).all(1)]
    return kept[:, ~np.isnan(kept).any(0)]
