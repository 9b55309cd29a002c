"""The divergence and its ceiling against scipy, brute force and finite differences."""

import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.spatial.distance import jensenshannon
from scipy.special import rel_entr

from analyses.adversarial_attention.bounds import ceiling, divergence, to_vertex


def rows(n: int, keys: int, seed: int, zeros: bool = False) -> torch.Tensor:
    """Random distributions, some of whose keys weigh nothing."""
    rng = np.random.default_rng(seed)
    drawn = rng.dirichlet(np.full(keys, 0.4), n)
    if zeros and keys > 1:
        drawn[:, : keys // 2] *= rng.random((n, keys // 2)) < 0.5
        drawn[:, -1] += 1e-9
    return torch.as_tensor(drawn / drawn.sum(-1, keepdims=True))


@settings(max_examples=40, deadline=None)
@given(keys=st.integers(1, 12), seed=st.integers(0, 10_000), zeros=st.booleans())
def test_divergence_is_scipys(keys: int, seed: int, zeros: bool) -> None:
    p, q = rows(3, keys, seed, zeros), rows(3, keys, seed + 1, zeros)
    scipys = [float(jensenshannon(a, b)) ** 2 for a, b in zip(p.numpy(), q.numpy(), strict=True)]
    assert divergence(p, q).numpy() == pytest.approx(scipys, abs=1e-12)
    assert (divergence(p, q) <= math.log(2) + 1e-12).all()


def test_divergence_has_a_finite_gradient_at_zero_mass() -> None:
    p = torch.tensor([0.5, 0.5, 0.0, 0.0], dtype=torch.float64)
    q = torch.tensor([0.0, 0.2, 0.8, 0.0], dtype=torch.float64, requires_grad=True)
    divergence(p, q).backward()
    assert q.grad is not None
    assert torch.isfinite(q.grad).all()
    assert q.grad[1:3].tolist() == pytest.approx([0.5 * math.log(0.2 / 0.35), 0.5 * math.log(2)])
    assert q.grad[0] < -100
    assert q.grad[3] == 0


@settings(max_examples=40, deadline=None)
@given(keys=st.integers(1, 9), seed=st.integers(0, 10_000), zeros=st.booleans())
def test_a_vertexs_divergence_is_the_general_ones(keys: int, seed: int, zeros: bool) -> None:
    p = rows(2, keys, seed, zeros)
    for key in range(keys):
        vertex = np.eye(keys)[key]
        middle = (p.numpy() + vertex) / 2
        expected = (rel_entr(p.numpy(), middle) + rel_entr(vertex, middle)).sum(-1) / 2
        assert to_vertex(p)[:, key].numpy() == pytest.approx(expected, abs=1e-12)


@settings(max_examples=30, deadline=None)
@given(keys=st.integers(1, 7), seed=st.integers(0, 10_000))
def test_no_distribution_is_farther_than_the_ceiling(keys: int, seed: int) -> None:
    p = rows(1, keys, seed)
    others = torch.cat([rows(500, keys, seed + 2, zeros=True), torch.eye(keys, dtype=torch.float64)])
    assert (divergence(p, others) <= ceiling(p) + 1e-12).all()
    assert divergence(p, torch.eye(keys, dtype=torch.float64)).max().item() == pytest.approx(ceiling(p).item())


def test_known_ceilings() -> None:
    assert ceiling(torch.tensor([0.5, 0.5], dtype=torch.float64)).item() == pytest.approx(0.2157616, abs=1e-6)
    assert ceiling(torch.tensor([1.0])).item() == 0
    assert ceiling(torch.tensor([1.0, 0.0])).item() == pytest.approx(math.log(2))


def test_forbidden_keys_are_no_vertices() -> None:
    pattern = torch.tensor([0.5, 0.5, 0.0])
    assert ceiling(pattern, torch.tensor([True, True, False])).item() == pytest.approx(0.2157616, abs=1e-6)
    assert ceiling(pattern).item() == pytest.approx(math.log(2))
