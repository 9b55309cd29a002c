"""The farthest rows that leave the output where it is: freedom of attention at ε.

Everything that is reported was run: a point counts only if the untouched model, with the row replaced by it, moves its
output by at most ε. What is found is therefore a lower bound of the freedom. Points to try come from

- vertices: all weight on one outcome; those that may lie farthest, and those that the response says do least;
- the null space: the farthest row with the same head output;
- the response (`responses`): the farthest row, from several starts, whose change is within a level of ε to first order.
  Levels below ε make up for what first order leaves out;
- rays: the last feasible point on the way from the row to a point that is not feasible, by bisection.

docs/attention-freedom.md has the reasons.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from analyses.adversarial_attention.heads.continuations import Continuation
from analyses.adversarial_attention.heads.polytope import beginnings
from analyses.adversarial_attention.heads.responses import Known, Response, spanning
from analyses.adversarial_attention.heads.rows import Row
from interp.statistics import jensen_shannon

__all__ = ["Freedom", "Settings", "find"]

Point = NDArray[np.float64]

_CLOSE = 1e-6  # of a ceiling: there is nothing more to find
_PATIENCE = 12  # further bisections of ways on which nothing was feasible yet


@dataclass(frozen=True)
class Settings:
    """What a search may cost, for each row.

    Attributes:
        epsilon: the largest change of the output, in TVD.
        pinned: share of the ceiling below which a row is pinned. Before it is called so, the response is known in all
            dimensions, twice as many starts are climbed from, and every vertex is run.
        basis: vertices that the response is first made from, at most as many as the values have dimensions.
        rounds: in which the response is made from all that is known by then, and the farthest rows are run.
        vertices: that are tried because they may lie farthest, and as many that may do least.
        starts: of climbs. levels: shares of ε that the first-order change is kept within.
        rays: that are followed to the border, in ``bisections``.
    """

    epsilon: float = 0.01
    pinned: float = 0.1
    basis: int = 16
    rounds: int = 2
    vertices: int = 2
    starts: int = 2
    levels: tuple[float, ...] = (1.0, 0.75, 0.5)
    rays: int = 2
    bisections: int = 3


@dataclass
class Freedom:
    """What was found for one row.

    Attributes:
        row: the row. null: the null space's point, and its divergence; None where values are not known.
        point: the farthest feasible one found, or None. jsd: their divergence; NaN where none was found.
        tvd: the change of the output, measured. by: what found it.
        tried: vertices that were run. runs: of the model in all. rng: of its own random starts, so that nothing depends
            on which rows are searched together.
    """

    row: Row
    null: tuple[Point, float] | None = None
    rng: np.random.Generator = field(default_factory=lambda: np.random.default_rng(0), repr=False)
    point: Point | None = None
    jsd: float = float("nan")
    tvd: float = float("nan")
    by: str = "none"
    tried: set[int] = field(default_factory=set)
    runs: int = 0
    beyond: list[tuple[Point, float]] = field(default_factory=list, repr=False)

    @property
    def share(self) -> float:
        """Of the ceiling."""
        return self.jsd / self.row.ceiling

    @property
    def is_whole(self) -> bool:
        """Nothing farther exists."""
        return self.jsd >= self.row.ceiling - _CLOSE

    def take(self, point: Point, tvd: float, by: str, epsilon: float) -> bool:
        """Note what a run showed; whether the point is feasible."""
        self.runs += 1
        if not tvd <= epsilon:
            self.beyond += [(point, tvd)] if np.isfinite(tvd) else []
            return False
        if not (jsd := float(jensen_shannon(self.row.pattern, point))) <= self.jsd:
            self.point, self.jsd, self.tvd, self.by = point, jsd, tvd, by
        return True

    def untried(self) -> list[int]:
        """Vertices that were not run and are farther than what was found, the farthest first."""
        divergence, best = self.row.vertices, 0.0 if np.isnan(self.jsd) else self.jsd
        order = np.argsort(-divergence, kind="stable").tolist()
        return [j for j in order if j not in self.tried and divergence[j] > best + _CLOSE]


def find(
    continuation: Continuation,
    rows: Sequence[Row],
    nulls: Sequence[tuple[Point, float] | None],
    settings: Settings,
    rngs: Sequence[np.random.Generator],
) -> list[Freedom]:
    """Search for each row; rows are changed one at a time, in copies of the sequence that are run together.

    Args:
        nulls: each row's farthest point with the same head output, and its divergence; None: values are not known.
        rngs: of each row's random starts.
    """
    found = [Freedom(row, null, rng) for row, null, rng in zip(rows, nulls, rngs, strict=True)]
    search = _Search(continuation, settings)
    search.vertices({id(each): each.untried()[: settings.vertices] for each in found}, found)
    search.run([(each, each.null[0], "null space") for each in found if each.null is not None and each.null[1] > 0])
    search.by_response([each for each in found if not each.is_whole], settings.basis, settings.starts)
    search.follow_rays(found)
    doubtful = [each for each in found if not each.share >= settings.pinned]
    search.by_response(doubtful, max(len(row.pattern) for row in rows), 2 * settings.starts)
    search.follow_rays(doubtful)
    while left := [each for each in doubtful if not each.share >= settings.pinned and each.untried()]:
        search.vertices({id(each): each.untried()[: continuation.copies] for each in left}, left)
    return found


@dataclass
class _Search:
    continuation: Continuation
    settings: Settings

    def run(self, asked: Sequence[tuple[Freedom, Point, str]]) -> list[tuple[bool, float]]:
        """Run points: whether each is feasible, and its change."""
        if not asked:
            return []
        changes = self.continuation.changes([each.row for each, _, _ in asked], [point for _, point, _ in asked])
        return [
            (each.take(point, float(tvd), by, self.settings.epsilon), float(tvd))
            for (each, point, by), tvd in zip(asked, changes, strict=True)
        ]

    def vertices(self, chosen: dict[int, list[int]], found: Sequence[Freedom]) -> None:
        """Run some vertices of each row."""
        for each in found:
            each.tried.update(chosen[id(each)])
        self.run([(each, _vertex(each.row, j), "vertex") for each in found for j in chosen[id(each)]])

    def by_response(self, found: Sequence[Freedom], basis: int, starts: int) -> None:
        """Run the farthest rows whose change is small to first order, and the vertices that do least. What the model
        answered to them is known in the next round, where the first knew nothing."""
        told = self._bases(found, basis)
        for number in range(self.settings.rounds):
            left = [each for each in found if not each.is_whole]
            more = 1 if number < self.settings.rounds - 1 else starts  # rounds before the last are there to learn
            asked = [(each, point, by) for each in left for point, by in self._farthest(each, told[id(each)], more)]
            rows, points = [each.row for each, _, _ in asked], [point for _, point, _ in asked]
            for (each, point, by), (answer, change) in zip(asked, self.continuation.answers(rows, points), strict=True):
                each.take(point, change, by, self.settings.epsilon)
                told[id(each)] = told[id(each)].and_also(point, answer)

    def _farthest(self, found: Freedom, known: Known, starts: int) -> list[tuple[Point, str]]:
        """Rows to run next, by what is known of the model's answers to some."""
        response = Response.of(known)
        levels = [self.settings.epsilon * level for level in self.settings.levels]
        beginning = beginnings(found.row.pattern, starts, found.rng)
        asked = [
            (point, f"start {start} at {self.settings.levels[level]:g} ε")
            for level, start, point in response.farthest(levels, beginning)
        ]
        change = response.of_vertices()
        for outcome in sorted(found.untried(), key=change.__getitem__)[: self.settings.vertices]:
            found.tried.add(outcome)
            asked.append((_vertex(found.row, outcome), "vertex"))
        return asked

    def _bases(self, found: Sequence[Freedom], basis: int) -> dict[int, Known]:
        """Of each row, vertices whose values span the others' best, which count as tried, and the model's answers."""
        chosen = [spanning(each.row, basis) for each in found]
        asked = [(each, outcome) for each, outcomes in zip(found, chosen, strict=True) for outcome in outcomes]
        told = self.continuation.answers(
            [each.row for each, _ in asked], [_vertex(each.row, outcome) for each, outcome in asked]
        )
        known = {}
        for each, outcomes in zip(found, chosen, strict=True):
            answers = []
            for outcome, (answer, change) in zip(outcomes, itertools.islice(told, len(outcomes)), strict=True):
                each.tried.add(outcome)
                each.take(_vertex(each.row, outcome), change, "vertex", self.settings.epsilon)
                answers.append(answer)
            known[id(each)] = Known.of(each.row, np.eye(len(each.row.pattern))[outcomes], np.stack(answers))
        return known

    def follow_rays(self, found: Sequence[Freedom]) -> None:
        """Bisect the ways to the infeasible points whose borders promise most, at least until something is feasible."""
        ways = [(each, *way) for each in found for way in self._ways(each)]
        between = [[0.0, 1.0] for _ in ways]
        guess = [self.settings.epsilon / tvd for _, _, tvd in ways]
        for step in range(self.settings.bisections + _PATIENCE):
            going = [i for i, ends in enumerate(between) if step < self.settings.bisections or ends[0] == 0]
            asked = [(ways[i][0], _between(ways[i][0].row.pattern, ways[i][1], guess[i]), "ray") for i in going]
            for number, (feasible, tvd) in zip(going, self.run(asked), strict=True):
                at, ends = guess[number], between[number]
                ends[0 if feasible else 1] = at
                straight = 0.98 * at * self.settings.epsilon / max(tvd, 1e-12)
                guess[number] = straight if ends[0] < straight < ends[1] else (ends[0] + ends[1]) / 2

    def _ways(self, found: Freedom) -> list[tuple[Point, float]]:
        """The infeasible points to which the way seems to lead farther, before its border, than what was found."""
        if found.is_whole:
            return []
        reach = []
        for point, tvd in found.beyond:
            border = _between(found.row.pattern, point, self.settings.epsilon / tvd)
            reach.append((float(jensen_shannon(found.row.pattern, border)), point, tvd))
        reach.sort(key=lambda way: -way[0])
        return [(point, tvd) for jsd, point, tvd in reach[: self.settings.rays] if not jsd <= found.jsd * 0.9]


def _vertex(row: Row, outcome: int) -> Point:
    vertex = np.zeros(len(row.pattern))
    vertex[outcome] = 1.0
    return vertex


def _between(start: Point, end: Point, share: float) -> Point:
    return start + min(share, 1.0) * (end - start)
