"""The farthest rows that leave the output where it is: freedom of attention at ε.

Everything that is reported was run: a point counts only if the untouched model, with the row replaced by it, moves its
output by at most ε. What is found is therefore a lower bound of the freedom. Points to try come from

- vertices: all weight on one outcome, in the order of their divergence, which is the order of possible results;
- the null space: the farthest row with the same head output;
- cuts: the output's change g(x) is nearly convex and symmetric about the row, so each slope ∇g at a point y on the
  border bounds the rows that can be feasible, |∇g · (x − α)| ≤ ε − g(y) + ∇g · (y − α) (Kelley's cutting planes). The
  farthest row within all cuts so far is run; if it moves the output too much, its ray gives the next cut;
- rays: the last feasible point on the way from the row to a point that is not feasible, by bisection.

docs/attention-freedom.md has the reasons.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from analyses.adversarial_attention.heads.continuations import Continuation
from analyses.adversarial_attention.heads.polytope import Polytope, beginnings
from analyses.adversarial_attention.heads.rows import Row
from interp.statistics import jensen_shannon

__all__ = ["Freedom", "Settings", "find"]

Point = NDArray[np.float64]

_CLOSE = 1e-6  # of a ceiling: there is nothing more to find


@dataclass(frozen=True)
class Settings:
    """What a search may cost, for each row.

    Attributes:
        epsilon: the largest change of the output, in TVD. pinned: share of the ceiling below which a row is pinned.
        vertices: tried first, the farthest ones; the rest is tried where a row would be called pinned without them.
        starts: of climbs within the cuts. rounds: of cuts. rays: that are followed to the border, in ``bisections``.
    """

    epsilon: float = 0.01
    pinned: float = 0.1
    vertices: int = 8
    starts: int = 3
    rounds: int = 4
    rays: int = 2
    bisections: int = 4


@dataclass
class Freedom:
    """What was found for one row.

    Attributes:
        row: the row. point: the farthest feasible one found, or None.
        jsd: their divergence. tvd: the change of the output, measured. by: what found it.
        null: the null space's point, and its divergence.
        runs: of the model that it took.
    """

    row: Row
    null: tuple[Point, float] | None = None
    point: Point | None = None
    jsd: float = float("nan")
    tvd: float = float("nan")
    by: str = "none"
    runs: int = 0
    cuts: list[Point] = field(default_factory=list)
    slack: list[float] = field(default_factory=list)
    beyond: list[tuple[Point, float]] = field(default_factory=list)  # infeasible points and their change
    tried: set[int] = field(default_factory=set)  # vertices

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
            self.beyond.append((point, tvd))
            return False
        if not (jsd := float(jensen_shannon(self.row.pattern, point))) <= self.jsd:
            self.point, self.jsd, self.tvd, self.by = point, jsd, tvd, by
        return True


def find(
    continuation: Continuation,
    rows: Sequence[Row],
    nulls: Sequence[tuple[Point, float] | None],
    settings: Settings,
    rng: np.random.Generator,
) -> list[Freedom]:
    """Search for each row of one site; rows are changed one at a time, in copies of the sequence run together."""
    found = [Freedom(row, null) for row, null in zip(rows, nulls, strict=True)]
    search = _Search(continuation, settings)
    search.try_vertices(found, settings.vertices)
    search.try_null_spaces(found)
    search.cut([each for each in found if not each.is_whole], rng)
    search.follow_rays(found)
    while left := [each for each in found if not each.share >= settings.pinned and search.untried(each)]:
        search.try_vertices(left, settings.vertices)
    return found


@dataclass
class _Search:
    continuation: Continuation
    settings: Settings

    def run(self, asked: Sequence[tuple[Freedom, Point, str]], slopes: bool = False) -> list[tuple[bool, float, Point]]:
        """Run points: whether each is feasible, its change, and the slopes, where asked for."""
        if not asked:
            return []
        rows, points = [each.row for each, _, _ in asked], [point for _, point, _ in asked]
        effects = self.continuation.effects(rows, points, slopes)
        given = effects.slopes or [np.empty(0)] * len(asked)
        return [
            (each.take(point, float(tvd), by, self.settings.epsilon), float(tvd), slope)
            for (each, point, by), tvd, slope in zip(asked, effects.tvd, given, strict=True)
        ]

    @staticmethod
    def untried(found: Freedom) -> list[int]:
        """Vertices that were not tried and are farther than what was found, the farthest first."""
        divergence = found.row.vertices
        best = 0.0 if np.isnan(found.jsd) else found.jsd
        order = np.argsort(-divergence, kind="stable").tolist()
        return [j for j in order if j not in found.tried and divergence[j] > best + _CLOSE]

    def try_vertices(self, found: Sequence[Freedom], n: int) -> None:
        """Run the farthest vertices of each row."""
        asked = []
        for each in found:
            chosen = self.untried(each)[:n]
            each.tried.update(chosen)
            asked += [(each, _vertex(each.row, j), "vertex") for j in chosen]
        self.run(asked)

    def try_null_spaces(self, found: Sequence[Freedom]) -> None:
        """Run the null spaces' points, whose change is rounding."""
        self.run([(each, each.null[0], "null space") for each in found if each.null is not None and each.null[1] > 0])

    def cut(self, found: Sequence[Freedom], rng: np.random.Generator) -> None:
        """Climb within cuts, run what is reached, and cut where it is not feasible."""
        starts = {id(each): dict(enumerate(beginnings(each.row.pattern, self.settings.starts, rng))) for each in found}
        for _ in range(self.settings.rounds):
            climbs = [climb for each in found for climb in self._climbs(each, starts[id(each)])]
            results = self.run([(each, point, f"start {start}") for each, start, point in climbs])
            border = []
            for (each, start, point), (feasible, tvd, _) in zip(climbs, results, strict=True):
                if feasible:
                    del starts[id(each)][start]  # the farthest that this start can reach
                elif np.isfinite(tvd):
                    border.append((each, _between(each.row.pattern, point, self.settings.epsilon / tvd), "ray"))
            for (each, point, _), (_, tvd, slope) in zip(border, self.run(border, slopes=True), strict=True):
                self._add_cut(each, point, tvd, slope)

    def _climbs(self, found: Freedom, starts: dict[int, Point]) -> list[tuple[Freedom, int, Point]]:
        """The farthest rows within the cuts from each start that is left; starts that lead below what was found, or to
        where another led, are given up."""
        slack = np.array(found.slack)
        polytope = Polytope(found.row.pattern, np.array(found.cuts).reshape(-1, len(found.row.pattern)), slack)
        reached: list[tuple[Freedom, int, Point]] = []
        for start, beginning in list(starts.items()):
            point, jsd = polytope.climb(beginning)
            again = any(np.abs(point - other).max() < 1e-9 for _, _, other in reached)
            if again or (jsd <= found.jsd + _CLOSE):
                if not again:
                    del starts[start]
                continue
            reached.append((found, start, point))
        return reached

    def _add_cut(self, found: Freedom, point: Point, tvd: float, slope: Point) -> None:
        if not np.isfinite(slope).all():
            return
        rise = float(slope @ (point - found.row.pattern))
        found.cuts.append(slope)
        found.slack.append(max(self.settings.epsilon - tvd + rise, self.settings.epsilon / 4))

    def follow_rays(self, found: Sequence[Freedom]) -> None:
        """Bisect the ways to those infeasible points whose borders promise most."""
        ways = [(each, *way) for each in found for way in self._ways(each)]
        between = [[0.0, 1.0] for _ in ways]
        guess = [min(1.0, self.settings.epsilon / tvd) for _, _, tvd in ways]
        for _ in range(self.settings.bisections):
            asked = [(each, _between(each.row.pattern, point, at), "ray") for (each, point, _), at in zip(ways, guess)]
            for number, (feasible, tvd, _) in enumerate(self.run(asked)):
                at, ends = guess[number], between[number]
                ends[0 if feasible else 1] = at
                straight = at * self.settings.epsilon / max(tvd, 1e-12) * 0.98
                guess[number] = straight if ends[0] < straight < ends[1] else (ends[0] + ends[1]) / 2

    def _ways(self, found: Freedom) -> list[tuple[Point, float]]:
        """The infeasible points to which the way seems to lead farthest before its border."""
        if found.is_whole:
            return []
        reach = []
        for point, tvd in found.beyond:
            if np.isfinite(tvd):
                border = _between(found.row.pattern, point, self.settings.epsilon / tvd)
                reach.append((float(jensen_shannon(found.row.pattern, border)), point, tvd))
        reach.sort(key=lambda way: -way[0])
        best = 0.0 if np.isnan(found.jsd) else found.jsd
        return [(point, tvd) for jsd, point, tvd in reach[: self.settings.rays] if jsd > best * 0.8]


def _vertex(row: Row, outcome: int) -> Point:
    vertex = np.zeros(len(row.pattern))
    vertex[outcome] = 1.0
    return vertex


def _between(start: Point, end: Point, share: float) -> Point:
    return start + min(share, 1.0) * (end - start)
