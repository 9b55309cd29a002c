"""The farthest row within linear bounds against enumeration of the vertices, and null spaces that are known."""

from itertools import combinations
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray
from scipy.optimize import approx_fprime

from analyses.adversarial_attention.heads.nullspace import farthest_null, farthest_random
from analyses.adversarial_attention.heads.polytope import Polytope, beginnings, effects_of, gradient
from analyses.adversarial_attention.heads.rows import Row
from interp.statistics import jensen_shannon


def row(keys: int, d_head: int, seed: int) -> Row:
    rng = np.random.default_rng(seed)
    pattern = rng.dirichlet(np.full(keys, 0.6))
    return Row("site", 0, keys, np.arange(keys), pattern, rng.standard_normal((keys, d_head)))


def enumerated(pattern: NDArray[np.float64], equations: NDArray[np.float64]) -> float:
    """The largest divergence over all vertices of {x ≥ 0, Σ x = 1, A x = A α}."""
    whole = np.vstack([np.ones(len(pattern)), equations])
    best = 0.0
    for chosen in combinations(range(len(pattern)), len(whole)):
        square = whole[:, chosen]
        if abs(np.linalg.det(square)) < 1e-9:
            continue
        weights = np.linalg.solve(square, whole @ pattern)
        if (weights > -1e-9).all():
            vertex = np.zeros(len(pattern))
            vertex[list(chosen)] = np.maximum(weights, 0)
            best = max(best, float(jensen_shannon(pattern, vertex / vertex.sum())))
    return best


@settings(max_examples=25, deadline=None)
@given(keys=st.integers(3, 9), d_head=st.integers(1, 4), seed=st.integers(0, 10_000))
def test_null_space_against_all_vertices(keys: int, d_head: int, seed: int) -> None:
    given_row = row(keys, d_head, seed)
    assert given_row.values is not None
    found = farthest_null(given_row, 16, np.random.default_rng(seed))
    assert found is not None
    point, divergence = found
    exact = enumerated(given_row.pattern, effects_of(given_row.values))
    assert divergence <= exact + 1e-7  # a lower bound
    assert divergence >= 0.8 * exact - 1e-7
    assert point.min() >= 0
    assert point.sum() == pytest.approx(1)
    assert point @ given_row.values == pytest.approx(given_row.pattern @ given_row.values, abs=1e-6)


def test_several_starts_find_nearly_all_there_is() -> None:
    shares = []
    for seed in range(12):
        given_row = row(9, 3, seed)
        assert given_row.values is not None
        found = farthest_null(given_row, 16, np.random.default_rng(seed))
        assert found is not None
        shares.append(found[1] / enumerated(given_row.pattern, effects_of(given_row.values)))
    assert np.mean(shares) > 0.98


@pytest.mark.parametrize(("keys", "d_head", "free"), [(9, 8, False), (9, 9, False), (10, 8, True), (40, 8, True)])
def test_freedom_begins_with_more_keys_than_equations(keys: int, d_head: int, free: bool) -> None:
    found = farthest_null(row(keys, d_head, 3), 4, np.random.default_rng(0))
    assert found is not None
    assert (found[1] > 1e-4) == free


def test_equal_values_are_free() -> None:
    """Two keys with one value can be swapped, and all alike leave everything free."""
    swapped = Row("site", 0, 3, np.arange(3), np.array([0.7, 0.1, 0.2]), np.array([[1.0], [1.0], [0.0]]))
    found = farthest_null(swapped, 4, np.random.default_rng(0))
    assert found is not None
    assert found[0] == pytest.approx([0.0, 0.8, 0.2])
    alike = Row("site", 0, 4, np.arange(4), np.array([0.4, 0.3, 0.2, 0.1]), np.ones((4, 6)))
    found = farthest_null(alike, 4, np.random.default_rng(0))
    assert found is not None
    assert found[1] == pytest.approx(alike.ceiling)


def test_values_out_of_reach() -> None:
    closed = Row("site", 0, 4, np.arange(4), np.full(4, 0.25), None)
    assert farthest_null(closed, 2, np.random.default_rng(0)) is None
    assert np.isnan(farthest_random(closed, 2, np.random.default_rng(0)))


def test_random_values_have_the_same_number_of_equations() -> None:
    """As many keys as equations leave nothing, whatever the values; values of rank 1 leave nearly everything."""
    assert farthest_random(row(9, 8, 0), 4, np.random.default_rng(0)) == 0
    low = row(30, 8, 1)
    assert low.values is not None
    flat = Row("site", 0, 30, low.keys, low.pattern, low.values[:, :1] @ np.ones((1, 8)))
    assert farthest_random(flat, 4, np.random.default_rng(0)) > farthest_random(low, 4, np.random.default_rng(0))


def test_bounds_with_slack_hold_on_one_side_or_both() -> None:
    pattern, rng = np.full(6, 1 / 6), np.random.default_rng(0)
    effects = rng.standard_normal((2, 6))
    for both in (True, False):
        point, divergence = Polytope(pattern, effects, 0.05, both).farthest(beginnings(pattern, 4, rng))
        moved = effects @ (point - pattern)
        assert (moved <= 0.05 + 1e-7).all()
        assert divergence > 0
        assert not both or (moved >= -0.05 - 1e-7).all()


def test_gradient_is_the_divergences() -> None:
    rng = np.random.default_rng(0)
    pattern, point = rng.dirichlet(np.ones(5)), rng.dirichlet(np.ones(5))

    def at(x: NDArray[np.float64]) -> float:  # without the check that x adds up to 1
        middle = (pattern + x) / 2
        return float((pattern * np.log(pattern / middle) + x * np.log(x / middle)).sum() / 2)

    # the mass that x has too much or too little counts as ½ a unit, which is the same for every key
    numeric: Any = approx_fprime(point, at, 1e-7)
    difference = numeric - gradient(pattern, point)
    assert difference == pytest.approx(np.full(5, difference[0]), abs=1e-5)
