"""Heads in clusters and in two dimensions, from how far they are apart, and how stable the clusters are."""

from collections.abc import Iterable, Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray
from scipy.cluster.hierarchy import cut_tree, linkage
from scipy.spatial.distance import squareform
from sklearn.manifold import MDS
from sklearn.metrics import adjusted_rand_score, silhouette_samples

from interp.statistics.resampling import draws

MOST_CLUSTERS = 12
RESAMPLES = 100
_NO_DISTANCE = 1e-9  # nats: heads no farther apart than rounding cannot be laid out


class Clustering(NamedTuple):
    """One number of clusters.

    Attributes:
        labels: [head] clusters, 0 being the largest.
        silhouettes: [head] Rousseeuw 1987, −1 to 1.
        agreement: [resample] adjusted Rand index with the clusters of resampled sequences, 1 if they are the same.
        recovered: [head] how well the head's cluster is found again in resamples: mean of the largest Jaccard
            similarity (Hennig 2007).
    """

    labels: NDArray[np.intp]
    silhouettes: NDArray[np.float64]
    agreement: NDArray[np.float64]
    recovered: NDArray[np.float64]


def clusterings(
    matrix: NDArray[np.float64], resampled: Iterable[NDArray[np.float64]], most: int = MOST_CLUSTERS
) -> dict[int, Clustering]:
    """Clusters of heads by Ward's linkage, from two to ``most``; none where all heads are at one place.

    Args:
        matrix: [head, head] mean JSD. resampled: the same from resampled sequences.
    """
    numbers = list(range(2, min(most, len(matrix) - 1) + 1))
    if not numbers or matrix.max() < _NO_DISTANCE:
        return {}
    distance = np.sqrt(matrix)
    cuts = _cut(distance, numbers)
    again = [_cut(np.sqrt(other), numbers) for other in resampled]
    found = {}
    for place, n in enumerate(numbers):
        labels = _largest_first(cuts[:, place])
        others = [other[:, place] for other in again]
        found[n] = Clustering(
            labels,
            silhouette_samples(distance, labels, metric="precomputed"),
            np.array([adjusted_rand_score(labels, other) for other in others]),
            _recovered(labels, others),
        )
    return found


def embedding(matrix: NDArray[np.float64], seed: int) -> tuple[NDArray[np.float64], float]:
    """Heads in two dimensions by metric multidimensional scaling of their JSD (Clark et al. 2019).

    From the classical solution on, so that it is the same every time; turned so that most spread is along x.

    Returns:
        [head, 2] places in nats, and the normalised stress (0 perfect, 0.1 fair, 0.2 poor; Kruskal 1964).
    """
    if matrix.max() < _NO_DISTANCE or len(matrix) < 3:
        apart = matrix[0] - matrix[0].mean()
        return np.stack([apart, np.zeros(len(matrix))], 1), 0.0
    scaling: Any = MDS(
        2, metric="precomputed", init="classical_mds", n_init=1, max_iter=1000, normalized_stress=True,  # pyright: ignore[reportArgumentType]: its types are read off a default
        random_state=seed,
    )  # fmt: skip
    places = scaling.fit_transform(matrix)
    places = places - places.mean(0)
    places = places @ np.linalg.svd(places, full_matrices=False)[2].T
    signs = np.sign(places[np.abs(places).argmax(0), [0, 1]])
    return places * np.where(signs == 0, 1.0, signs), float(scaling.stress_)


def resampled(by_unit: NDArray[np.float64], seed: int) -> Iterator[NDArray[np.float64]]:
    """Mean by pair over units drawn with replacement, [pair] each; none where there are too few units."""
    if len(by_unit) < 2:
        return
    present = ~np.isnan(by_unit)
    known = np.where(present, by_unit, 0.0)
    overall = mean_of_units(by_unit)
    for _, counts in draws(len(by_unit), RESAMPLES, seed):
        for times in counts:
            n = times @ present
            yield np.where(n > 0, times @ known / np.maximum(n, 1), overall)


def _cut(distance: NDArray[np.float64], numbers: Sequence[int]) -> NDArray[np.intp]:
    """Clusters [head, number] for each number of clusters."""
    tree = linkage(squareform(distance, checks=False), "ward")
    return cut_tree(tree, n_clusters=list(numbers))


def _largest_first(labels: NDArray[np.intp]) -> NDArray[np.intp]:
    """The same clusters, numbered by size, then by their first head."""
    names, first, counts = np.unique(labels, return_index=True, return_counts=True)
    order = np.lexsort((first, -counts))
    rank = np.empty(len(names), dtype=np.intp)
    rank[order] = np.arange(len(names))
    return rank[np.searchsorted(names, labels)]


def _recovered(labels: NDArray[np.intp], others: Sequence[NDArray[np.intp]]) -> NDArray[np.float64]:
    """How well each head's cluster is found again: mean over resamples of the largest Jaccard similarity."""
    if not others:
        return np.full(len(labels), np.nan)
    own = labels[:, None] == np.unique(labels)
    best = np.zeros((len(others), own.shape[1]))
    for row, other in enumerate(others):
        theirs = (other[:, None] == np.unique(other)).astype(float)
        shared = own.T.astype(float) @ theirs
        best[row] = (shared / (own.sum(0)[:, None] + theirs.sum(0) - shared)).max(1)
    return best.mean(0)[labels]


def medoids(matrix: NDArray[np.float64], labels: NDArray[np.intp]) -> NDArray[np.bool_]:
    """The head of each cluster that is nearest to the others of it."""
    medoid = np.zeros(len(labels), dtype=bool)
    for cluster in np.unique(labels):
        members = np.flatnonzero(labels == cluster)
        medoid[members[matrix[np.ix_(members, members)].sum(1).argmin()]] = True
    return medoid


def one_cluster(n_heads: int) -> Clustering:
    """All heads in one cluster: there is nothing to be told apart by."""
    nothing = np.full(n_heads, np.nan)
    return Clustering(np.zeros(n_heads, dtype=np.intp), nothing, np.array([]), nothing)


def spread(agreement: NDArray[np.float64]) -> dict[str, float]:
    """Mean adjusted Rand index over resamples, and where 95 % of them lie."""
    if not len(agreement):
        return {"stability": np.nan, "ci_low": np.nan, "ci_high": np.nan}
    low, high = np.quantile(agreement, [0.025, 0.975])
    return {"stability": float(agreement.mean()), "ci_low": float(low), "ci_high": float(high)}


def mean_of_units(by_unit: NDArray[np.float64]) -> NDArray[np.float64]:
    """Mean over units that have a value; NaN where none has."""
    present = ~np.isnan(by_unit)
    n = present.sum(0)
    return np.divide(np.where(present, by_unit, 0.0).sum(0), n, out=np.full(n.shape, np.nan), where=n > 0)
