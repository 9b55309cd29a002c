"""Rows of attention as far as possible from a given one, among those whose effect stays within bounds.

    maximise JSD(α, x)  over distributions x on the keys with |A (x − α)| ≤ slack

The divergence is convex in x and the feasible set a polytope, so the maximum lies at a vertex of it, and any linear
function below the divergence that is maximised over the polytope leads uphill: x ← argmax ∇JSD(α, x) · y over y
(Frank–Wolfe with full steps, which for a convex maximisation never goes down; Mangasarian 1996). Each step is a linear
program. It ends in a local maximum, so the best of several starts is a lower bound of the maximum.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.optimize import linprog

from analyses.adversarial_attention.heads.simplex import Simplex
from interp.statistics import jensen_shannon

__all__ = ["Polytope", "beginnings", "effects_of"]

Row = NDArray[np.float64]

_STEPS = 30
_INTERIOR = 1e-3  # weight of α in the point whose gradient is taken: at a vertex itself it is infinite
_RANK = 1e-6  # singular values below this share of the largest are rounding in float32


class Polytope:
    """Distributions over the keys of a row whose effects stay near the row's own.

    Args:
        pattern: the row α [key], a distribution: keys that it may read only, and its sink where it has one.
        effects: A [effect, key]; slack: of each effect, or of all; 0 for equality.
        both: whether effects are bounded on both sides; else A (x − α) ≤ slack.
    """

    def __init__(self, pattern: Row, effects: NDArray[np.float64], slack: ArrayLike = 0.0, both: bool = True) -> None:
        self.pattern = pattern
        slack = np.broadcast_to(np.asarray(slack, dtype=np.float64), (len(effects),))
        own, exact = effects @ pattern, slack == 0
        self._equal = np.vstack([np.ones((1, len(pattern))), effects[exact]])
        self._equals = np.concatenate([[1.0], own[exact]])
        self._below, self._limit = np.zeros((0, len(pattern))), np.zeros(0)
        self._simplex = Simplex(self._equal[1:], self._equals[1:])
        for side in (1, -1) if both else (1,):
            self._bound(side * effects[~exact], side * own[~exact] + slack[~exact])

    def cut(self, effects: NDArray[np.float64], slack: float) -> None:
        """Bound further effects, from above: A (x − α) ≤ slack."""
        self._bound(effects, effects @ self.pattern + slack)

    def _bound(self, rows: NDArray[np.float64], limit: NDArray[np.float64]) -> None:
        self._simplex.bound(rows, limit)
        self._below, self._limit = np.vstack([self._below, rows]), np.concatenate([self._limit, limit])

    @property
    def is_point(self) -> bool:
        """Whether equalities alone leave nothing but the row itself."""
        return np.linalg.matrix_rank(self._equal, tol=1e-9 * max(1.0, np.abs(self._equal).max())) == len(self.pattern)

    def best(self, direction: Row) -> Row | None:
        """The point furthest in a direction (a linear program); None where no solver found one."""
        point = self._simplex.best(direction)
        if point is None:
            point = self._best_by_highs(direction)
        return None if point is None else point / point.sum()

    def _best_by_highs(self, direction: Row) -> Row | None:
        below = {"A_ub": self._below, "b_ub": self._limit} if len(self._limit) else {}
        solved = linprog(
            -direction,
            A_eq=self._equal,
            b_eq=self._equals,
            **below,
            bounds=(0, None),
            method="highs-ds",
            options={"presolve": False},
        )
        return None if solved.x is None else np.maximum(solved.x, 0.0)

    def climb(self, start: Row) -> tuple[Row, float]:
        """A local maximum of the divergence, from the gradient at a start, which need not be feasible.

        Returns:
            The point and its divergence; the row itself, and 0, where nothing was found.
        """
        found, divergence, at = self.pattern, 0.0, start
        for _ in range(_STEPS):
            point = self.best(gradient(self.pattern, (1 - _INTERIOR) * at + _INTERIOR * self.pattern))
            if point is None or (reached := float(jensen_shannon(self.pattern, point))) <= divergence + 1e-9:
                break
            found, divergence, at = point, reached, point
        return found, divergence

    def farthest(self, starts: NDArray[np.float64]) -> tuple[Row, float]:
        """The best of several climbs: a lower bound of the maximum."""
        if self.is_point:
            return self.pattern, 0.0
        return max((self.climb(start) for start in starts), key=lambda found: found[1])


def gradient(pattern: Row, point: Row) -> Row:
    """∂ JSD(α, x) / ∂x = ½ ln(x / m), m = (α + x)/2; 0 where neither has weight."""
    middle = (pattern + point) / 2
    with np.errstate(divide="ignore", invalid="ignore"):
        slope = np.log(point / middle) / 2
    return np.nan_to_num(slope, nan=0.0, neginf=-350.0)


def beginnings(pattern: Row, n: int, rng: np.random.Generator) -> NDArray[np.float64]:
    """Starts of climbs [start, key]: uniform, then random sparse distributions."""
    keys = len(pattern)
    return np.vstack([np.full((1, keys), 1 / keys), rng.dirichlet(np.full(keys, 0.3), n - 1)])


def effects_of(values: NDArray[np.float64]) -> NDArray[np.float64]:
    """What must stay the same for a head's output Σ α_j v_j to be the same: an orthonormal basis [effect, key].

    Weights add up to 1, so that the values' mean changes nothing: the basis spans the centred values' columns.

    Args:
        values: [key, d_head]; a zero row for a sink.
    """
    left, spectrum, _ = np.linalg.svd(values - values.mean(0), full_matrices=False)
    return left[:, spectrum > _RANK * max(spectrum.max(initial=0.0), np.finfo(float).tiny)].T
