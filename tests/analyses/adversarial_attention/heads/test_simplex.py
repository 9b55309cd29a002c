"""Linear programs solved again and again, against HiGHS: ties, equalities, later bounds, none that is feasible."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray
from scipy.optimize import linprog

from analyses.adversarial_attention.heads import polytope
from analyses.adversarial_attention.heads.polytope import Polytope, effects_of, gradient
from analyses.adversarial_attention.heads.simplex import Simplex

Rows = NDArray[np.float64]


def by_highs(objective: Rows, equal: Rows, equals: Rows, below: Rows, limit: Rows) -> float | None:
    whole, right = np.vstack([np.ones(len(objective)), equal]), np.concatenate([[1.0], equals])
    bounds = {"A_ub": below, "b_ub": limit} if len(below) else {}
    solved = linprog(-objective, A_eq=whole, b_eq=right, **bounds, method="highs")
    return -solved.fun if solved.status == 0 else None


@settings(max_examples=60, deadline=None)
@given(
    keys=st.integers(2, 40), n_equal=st.integers(0, 12), n_below=st.integers(0, 10), ties=st.booleans(),
    seed=st.integers(0, 10_000),
)  # fmt: skip
def test_against_highs(keys: int, n_equal: int, n_below: int, ties: bool, seed: int) -> None:
    """Other objectives and further bounds, one after the other, from the same beginning."""
    rng = np.random.default_rng(seed)
    inside = rng.dirichlet(np.full(keys, 0.5))
    equal, below = (rng.standard_normal((n, keys)) for n in (n_equal, n_below))
    if ties:  # keys that are alike, so that many vertices are equally good
        equal[:, : keys // 2] = equal[:, keys - keys // 2 :]
        below = np.round(below)
    equal = np.linalg.svd(equal - equal.mean(1, keepdims=True), full_matrices=False)[2][: min(n_equal, keys - 1)]
    equals, limit = equal @ inside, below @ inside + rng.uniform(0, 0.1, n_below)
    simplex = Simplex(equal, equals)
    simplex.bound(below, limit)
    for step in range(6):
        objective = rng.standard_normal(keys) if step % 2 else np.round(rng.standard_normal(keys))
        found, best = simplex.best(objective), by_highs(objective, equal, equals, below, limit)
        assert best is not None
        if found is not None:  # None is an answer that did not stand the check, for which HiGHS is asked
            assert found.min() >= 0
            assert found.sum() == pytest.approx(1, abs=1e-7)
            assert equal @ found == pytest.approx(equals, abs=1e-7)
            assert (below @ found <= limit + 1e-7).all()
            assert objective @ found == pytest.approx(best, abs=1e-6)
        if step == 2:
            more = rng.standard_normal((2, keys))
            below, limit = np.vstack([below, more]), np.concatenate([limit, more @ inside + 0.01])
            simplex.bound(more, more @ inside + 0.01)


def test_programs_like_those_of_a_search_need_no_other_solver(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[int] = []
    monkeypatch.setattr(polytope, "linprog", lambda *_, **__: pytest.fail("HiGHS was asked"))
    rng = np.random.default_rng(0)
    for keys, d_head in ((20, 8), (70, 64), (132, 64), (40, 16)):
        pattern, values = rng.dirichlet(np.full(keys, 0.3)), rng.standard_normal((keys, d_head))
        null = Polytope(pattern, effects_of(values))
        cut = Polytope(pattern, np.zeros((0, keys)), 0.01, both=False)
        for _ in range(6):
            direction = gradient(pattern, 0.99 * rng.dirichlet(np.full(keys, 0.1)) + 0.01 * pattern)
            for polytope_ in (null, cut):
                point = polytope_.best(direction)
                assert point is not None
                asked.append(keys)
            cut.cut(rng.standard_normal((2, keys)) * 0.1, 0.01)
    assert len(asked) == 48


def test_nothing_feasible_is_no_answer() -> None:
    simplex = Simplex(np.zeros((0, 3)), np.zeros(0))
    simplex.bound(np.eye(3), np.full(3, 0.2))
    assert simplex.best(np.array([1.0, 2.0, 3.0])) is None
    equal = Simplex(np.array([[1.0, 0.0, 0.0]]), np.array([2.0]))
    assert equal.best(np.array([1.0, 2.0, 3.0])) is None


def test_a_program_that_was_infeasible_can_be_asked_again() -> None:
    """After None the next answer begins from scratch."""
    simplex = Simplex(np.zeros((0, 3)), np.zeros(0))
    simplex.bound(np.eye(3)[:1], np.array([0.25]))
    assert simplex.best(np.array([3.0, 1.0, 0.0])) == pytest.approx([0.25, 0.75, 0.0])
    assert simplex.best(np.array([0.0, 0.0, 1.0])) == pytest.approx([0.0, 0.0, 1.0])
    simplex.bound(np.eye(3)[2:], np.array([0.5]))
    assert simplex.best(np.array([0.0, 0.0, 1.0]))[2] == pytest.approx(0.5)  # pyright: ignore[reportOptionalSubscript]
