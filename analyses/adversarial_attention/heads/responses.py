"""The output's linear response to a row: what a few runs tell about every other row.

A row enters the model as z = Σ α_j v_j, in d_head dimensions, however many keys it has. So the responses to as many
rows as the values have dimensions say, to first order, how the output answers to any row. Vertices are run whose values
span the others' best (QR with column pivoting), and what they do to the output is carried over to all outcomes.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from jaxtyping import Float, Int
from numpy.typing import NDArray
from scipy.linalg import qr

from analyses.adversarial_attention.heads.polytope import Polytope, gradient
from analyses.adversarial_attention.heads.rows import Row
from interp.statistics import jensen_shannon

__all__ = ["Known", "Response", "spanning"]

Point = NDArray[np.float64]

_KEPT = 1024  # outcomes of the model at each position whose probabilities answer most
_HELD = 4096  # those from which these are chosen anew as more is known
_RANK = 1e-4  # directions of the values below this share of the largest are left out
_SLACK = 1.02  # beyond a level that counts as within it
_GAIN = 1e-4  # of divergence, in nats, that is worth another step
_MOST = 48  # cuts, beyond which those that do not bind are dropped
_STEPS = 60  # linear programs of one climb


@dataclass(frozen=True, eq=False)
class Known:
    """What the model answered to some points in a row's place, at the outcomes where the first of them told most.

    Attributes:
        row: which. points: in its place. outcomes: of the model [position, answer]. answers: change of their
            probabilities.
    """

    row: Row
    points: Float[NDArray[np.float64], "point outcome"]
    outcomes: Int[NDArray[np.int64], "position answer"]
    answers: Float[NDArray[np.float32], "point position answer"]

    @classmethod
    def of(
        cls,
        row: Row,
        points: Float[NDArray[np.float64], "point outcome"],
        answers: Float[NDArray[np.float32], "point position answer"],
    ) -> Known:
        """From the change of the probabilities of all outcomes."""
        outcomes = _strongest(answers, _HELD)
        return cls(row, points, outcomes, np.take_along_axis(answers, outcomes[None], -1))

    def and_also(self, point: Point, answer: Float[NDArray[np.float32], "position outcome"]) -> Known:
        """With another point and the change of the probabilities of all outcomes."""
        held = np.take_along_axis(answer, self.outcomes, -1)[None]
        return replace(self, points=np.vstack([self.points, point]), answers=np.concatenate([self.answers, held]))


@dataclass(frozen=True, eq=False)
class Response:
    """The output's answer M (x − α) to a row x, by position and outcome of the model.

    Attributes:
        pattern: the row α. matrix: M [position, answer, outcome of the row].
    """

    pattern: Float[NDArray[np.float64], " outcome"]
    matrix: Float[NDArray[np.float32], "position answer outcome"]

    @classmethod
    def of(cls, known: Known) -> Response:
        """From what the model answered to some rows."""
        kept = np.take_along_axis(known.answers, _strongest(known.answers, _KEPT)[None], -1)
        carried = _carried(known.row, known.points).astype(np.float32)
        return cls(known.row.pattern, np.einsum("kpa,ko->pao", kept, carried, optimize=True))

    def __call__(self, point: Point) -> tuple[Float[NDArray[np.float64], " position"], NDArray[np.float64]]:
        """Total variation distance at each position, to first order, and its slopes [position, outcome]."""
        answer = self.matrix @ (point - self.pattern).astype(np.float32)
        slopes = np.einsum("pa,pao->po", np.sign(answer), self.matrix) / 2
        return np.abs(answer).sum(-1).astype(np.float64) / 2, slopes.astype(np.float64)

    def of_vertices(self) -> Float[NDArray[np.float64], " outcome"]:
        """The change that each vertex would make, to first order."""
        own = self.matrix @ self.pattern.astype(np.float32)
        return np.abs(self.matrix - own[..., None]).sum(1).max(0).astype(np.float64) / 2

    def farthest(self, levels: Sequence[float], starts: NDArray[np.float64]) -> list[tuple[int, int, Point]]:
        """The farthest rows whose change is within each level, to first order, as (level, start, row); each once.

        The change is a largest of linear functions, so every row beyond a level gives cuts that hold everywhere and
        for every level (Kelley 1960); within them the divergence is climbed by Frank–Wolfe steps.
        """
        cuts = np.zeros((0, len(self.pattern)))
        found: list[tuple[int, int, Point]] = []
        for number, start in enumerate(starts):
            at = start
            for level, limit in enumerate(levels):
                point, cuts = self._climb(limit, at, cuts)
                if not any(np.abs(point - other).max() < 1e-6 for _, _, other in found):
                    found.append((level, number, point))
                at = 0.99 * point + 0.01 * self.pattern
        return found

    def _climb(self, limit: float, start: Point, cuts: NDArray[np.float64]) -> tuple[Point, NDArray[np.float64]]:
        best, jsd, direction, last = self.pattern, 0.0, gradient(self.pattern, start), self.pattern
        within = Polytope(self.pattern, cuts, limit, both=False)
        for _ in range(_STEPS):
            point = within.best(direction)
            if point is None:
                break
            change, slopes = self(point)
            if (beyond := change > _SLACK * limit).any():
                if len(cuts) > _MOST:  # those that bind nowhere near; they come back if they are needed
                    cuts = cuts[cuts @ (point - self.pattern) > limit / 2]
                    within = Polytope(self.pattern, cuts, limit, both=False)
                cuts = np.vstack([cuts, slopes[beyond]])
                within.cut(slopes[beyond], limit)
                last = self.pattern + limit / change.max() * (point - self.pattern)
                continue
            if (reached := float(jensen_shannon(self.pattern, point))) <= jsd + _GAIN:
                break
            best, jsd, direction = point, reached, gradient(self.pattern, 0.999 * point + 0.001 * self.pattern)
        return (last if best is self.pattern else best), cuts


def _strongest(answers: Float[NDArray[np.float32], "point position answer"], n: int) -> NDArray[np.int64]:
    """At each position, the n outcomes whose probabilities answered most."""
    n = min(n, answers.shape[-1])
    return np.argpartition(-np.abs(answers).sum(0), n - 1, axis=-1)[:, :n]


def _carried(row: Row, points: NDArray[np.float64]) -> Float[NDArray[np.float64], "point outcome"]:
    """How much of each point's answer an outcome's weight brings about.

    Moving weight onto outcome o moves the head's output by v_o − z, which is, as nearly as it can be, a combination of
    the points' own moves (x − α) V. Without values, every outcome is a direction of its own.
    """
    values = np.eye(len(row.pattern)) if row.values is None else row.values
    moves, of_outcomes = (points - row.pattern) @ values, values - row.pattern @ values
    return np.asarray(np.linalg.lstsq(moves.T, of_outcomes.T, rcond=_RANK)[0], dtype=np.float64)


def spanning(row: Row, n: int) -> list[int]:
    """Outcomes whose values, seen from the head's output, span those of the others best; at most n. Where values are
    not known, the outcomes with the least weight, which lie farthest."""
    if row.values is None:
        return np.argsort(row.pattern, kind="stable")[:n].tolist()
    moved = row.values - row.pattern @ row.values
    factored: Any = qr(moved.T, mode="economic", pivoting=True)
    _, r, order = factored
    size = np.abs(np.diag(r))
    n_directions = int((size > _RANK * max(size[0], np.finfo(float).tiny)).sum())
    return order[: max(1, min(n, n_directions))].tolist()
