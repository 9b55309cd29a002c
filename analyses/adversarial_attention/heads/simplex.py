"""A linear program solved again and again, with other objectives and more bounds: the simplex method on a tableau.

    maximise c · x  over  x ≥ 0,  Σ x = 1,  E x = e,  B x ≤ b

Climbs solve thousands of such programs, each of which differs from the one before by its objective or by a few bounds.
Then the last basis is a few pivots from the next: another objective leaves it feasible (primal steps), another bound
leaves it optimal but for that bound (dual steps). The first one is optimal without any bound, all weight on the largest
c. Every answer is computed anew from the data by its basis and checked: it must be feasible and no variable may have a
reduced cost that would improve it. `None` says that it was not, and the caller asks a solver with safeguards.
"""

from __future__ import annotations

import numpy as np
from jaxtyping import Float
from numpy.typing import NDArray

__all__ = ["Simplex"]

Vector = Float[NDArray[np.float64], " variable"]
Matrix = Float[NDArray[np.float64], "row variable"]

_ZERO = 1e-10  # of a reduced cost or a right side that counts as none
_PIVOT = 1e-8  # the least element that is divided by
_ALLOWED = 1e-8  # by which a checked answer may break a bound


class Simplex:
    """The program's last basis.

    Args:
        equal: E [row, variable]; equals: e. A first row Σ x = 1 is added.
    """

    def __init__(self, equal: Matrix, equals: NDArray[np.float64]) -> None:
        self._rows = np.vstack([np.ones((1, equal.shape[1])), equal])
        self._right = np.concatenate([[1.0], equals])
        self._fixed = len(self._rows)
        self._tableau: NDArray[np.float64] | None = None  # rows, then the objective; variables, slacks, right side
        self._basis: list[int] = []  # of each row: a variable, a slack n + i of bound i, or −1 of an equality

    @property
    def _n(self) -> int:
        return self._rows.shape[1]

    def bound(self, rows: Matrix, right: NDArray[np.float64]) -> None:
        """Add bounds B x ≤ b."""
        if self._tableau is not None:
            for row, limit in zip(rows, right, strict=True):
                self._append(row, float(limit))
        self._rows, self._right = np.vstack([self._rows, rows]), np.concatenate([self._right, right])

    def best(self, objective: Vector) -> Vector | None:
        """The best x, which adds up to 1; None where none was found that stands the check."""
        if self._tableau is None:
            self._begin(objective)
        else:
            self._price(objective)
        assert self._tableau is not None
        # another objective and other bounds at once: what is feasible is improved, what is not is begun again
        if (self._tableau[-1, :-1] > _ZERO).any() and self._broken().any():
            self._begin(objective)
        found = self._checked(objective) if self._dual() and self._primal() else None
        if found is None:
            self._tableau = None  # errors have added up, or it stands on its head: the next one begins again
        return found

    def _begin(self, objective: Vector) -> None:
        """All weight on the largest of the objective: optimal, were it not for bounds."""
        n_bounds, first = len(self._rows) - self._fixed, int(np.argmax(objective))
        slacks = np.vstack([np.zeros((self._fixed, n_bounds)), np.eye(n_bounds)])
        table = np.hstack([self._rows, slacks, self._right[:, None]])
        table[1:] -= table[1:, first, None] * table[0]
        self._basis = [first, *[-1] * (self._fixed - 1), *range(self._n, self._n + n_bounds)]
        self._tableau = np.vstack([table, np.zeros(table.shape[1])])
        self._price(objective)

    def _price(self, objective: Vector) -> None:
        """The objective's row: reduced costs."""
        assert self._tableau is not None
        row = np.zeros(self._tableau.shape[1])
        row[: self._n] = objective
        held = [i for i, variable in enumerate(self._basis) if 0 <= variable < self._n]
        row -= objective[[self._basis[i] for i in held]] @ self._tableau[held]
        self._tableau[-1] = row

    def _append(self, row: Vector, limit: float) -> None:
        assert self._tableau is not None
        table = np.insert(self._tableau, -1, 0.0, axis=1)
        new = np.concatenate([row, np.zeros(table.shape[1] - self._n - 2), [1.0, limit]])
        held = [i for i, variable in enumerate(self._basis) if 0 <= variable < self._n]
        new -= row[[self._basis[i] for i in held]] @ table[held]
        self._basis.append(table.shape[1] - 2)
        self._tableau = np.insert(table, -1, new, axis=0)

    def _broken(self) -> NDArray[np.float64]:
        """By how much each row's variable is on the wrong side of 0: below, or for an equality at all."""
        assert self._tableau is not None
        right = self._tableau[:-1, -1]
        amount = np.where(np.array(self._basis) < 0, np.abs(right), -right)
        return np.where(amount > _ZERO, amount, 0.0)

    def _dual(self) -> bool:
        """Pivot until every bound holds."""
        table = self._tableau
        assert table is not None
        for _ in range(10 * sum(table.shape)):
            broken = self._broken()
            if not broken.any():
                return True
            leaving = int(np.argmax(broken))
            row = table[leaving, :-1] if table[leaving, -1] < 0 else -table[leaving, :-1]
            able = np.flatnonzero(row < -_PIVOT)
            if not len(able):
                return False
            ratio = np.minimum(table[-1, able], 0.0) / row[able]
            close = able[ratio <= ratio.min() + _ZERO]
            self._pivot(leaving, int(close[np.argmin(row[close])]))
        return False

    def _primal(self) -> bool:
        """Pivot until nothing improves the objective."""
        table = self._tableau
        assert table is not None
        for _ in range(10 * sum(table.shape)):
            entering = int(np.argmax(table[-1, :-1]))
            if table[-1, entering] <= _ZERO:
                return True
            column, right = table[:-1, entering], np.maximum(table[:-1, -1], 0.0)
            column = np.where(np.array(self._basis) < 0, np.abs(column), column)  # an equality may not be left
            able = np.flatnonzero(column > _PIVOT)
            if not len(able):
                return False
            ratio = right[able] / column[able]
            close = able[ratio <= ratio.min() + _ZERO]
            self._pivot(int(close[np.argmax(column[close])]), entering)
        return False

    def _pivot(self, row: int, column: int) -> None:
        table = self._tableau
        assert table is not None
        table[row] /= table[row, column]
        factors = table[:, column].copy()
        factors[row] = 0.0
        table -= factors[:, None] * table[row]
        self._basis[row] = column

    def _checked(self, objective: Vector) -> Vector | None:
        """The basis' x and prices, from the program's own data."""
        basis, n_rows = np.array(self._basis), len(self._rows)
        matrix, value = np.zeros((n_rows, n_rows)), np.zeros(n_rows)
        own = (basis >= 0) & (basis < self._n)
        matrix[:, own] = self._rows[:, basis[own]]
        value[own] = objective[basis[own]]
        for at in np.flatnonzero(~own):  # the unit vector of its own row
            matrix[at if basis[at] < 0 else self._fixed + basis[at] - self._n, at] = 1.0
        try:
            weights, prices = np.linalg.solve(matrix, self._right), np.linalg.solve(matrix.T, value)
        except np.linalg.LinAlgError:
            return None
        point = np.zeros(self._n)
        point[basis[own]] = weights[own]
        scale = max(1.0, float(np.abs(objective).max()))
        holds = (
            (weights[basis >= 0] >= -_ALLOWED).all()
            and (np.abs(weights[basis < 0]) <= _ALLOWED).all()
            and (objective - prices @ self._rows <= _ALLOWED * scale).all()
            and (prices[self._fixed :] >= -_ALLOWED * scale).all()
        )
        return np.maximum(point, 0.0) if holds else None
