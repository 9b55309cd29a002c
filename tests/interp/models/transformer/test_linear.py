"""Linear attention against its definition, in which the pattern is written out."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor
from torch.testing import assert_close
from torch.utils._python_dispatch import TorchDispatchMode

from interp.models.transformer.linear import elu_features as elu
from interp.models.transformer.linear import (
    linear_attention,
    performer_features,
    random_directions,
)


def normal(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def unit(*shape: int, seed: int = 0) -> Tensor:
    return torch.nn.functional.normalize(normal(*shape, seed=seed), dim=-1)


def written_out(query: Tensor, key: Tensor, value: Tensor, causal: bool, valid: Tensor | None = None) -> Tensor:
    group = query.shape[1] // key.shape[1]
    kernel = query @ key.repeat_interleave(group, 1).mT
    kernel = kernel.tril() if causal else kernel
    kernel = kernel if valid is None else kernel * valid[:, None, None]
    return kernel / kernel.sum(-1, keepdim=True) @ value.repeat_interleave(group, 1)


@settings(deadline=None)
@given(st.integers(1, 40), st.integers(1, 17), st.booleans(), st.sampled_from([1, 2, 4]))
def test_sums_give_what_the_pattern_gives(length: int, chunk: int, causal: bool, n_kv_heads: int) -> None:
    query, key = normal(2, 4, length, 5).exp(), normal(2, n_kv_heads, length, 5, seed=1).exp()
    value = normal(2, n_kv_heads, length, 3, seed=2)
    found, _ = linear_attention(query, key, value, causal=causal, chunk=chunk)
    assert_close(found, written_out(query, key, value, causal))


def test_padding_is_left_out_and_a_query_that_sees_nothing_gives_zero() -> None:
    query, key, value = normal(2, 2, 9, 5).exp(), normal(2, 2, 9, 5, seed=1).exp(), normal(2, 2, 9, 3, seed=2)
    valid = torch.arange(9) >= torch.tensor([[0], [4]])
    found, _ = linear_attention(query, key, value, causal=True, key_valid=valid)
    seen = valid[:, None, :, None].expand(2, 2, 9, 3)
    assert_close(found[seen], written_out(query, key, value, True, valid)[seen])
    assert not found[1, :, :4].any()


@pytest.mark.parametrize("causal", [True, False])
def test_gradients_are_those_of_the_pattern(causal: bool) -> None:
    inputs = [normal(1, 2, 7, 3, seed=seed).requires_grad_() for seed in range(3)]
    given_back = normal(1, 2, 7, 3, seed=9)
    mine = torch.autograd.grad(linear_attention(elu(inputs[0]), elu(inputs[1]), inputs[2], causal=causal, chunk=4)[0],
                               inputs, given_back)  # fmt: skip
    theirs = torch.autograd.grad(written_out(elu(inputs[0]), elu(inputs[1]), inputs[2], causal), inputs, given_back)
    for one, other in zip(mine, theirs, strict=True):
        assert_close(one, other)


class Largest(TorchDispatchMode):
    """The largest tensor that any operation makes, and how many numbers all make."""

    def __init__(self) -> None:
        super().__init__()
        self.largest, self.total = 0, 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        out = func(*args, **(kwargs or {}))
        for tensor in out if isinstance(out, tuple | list) else [out]:
            if isinstance(tensor, Tensor):
                self.largest = max(self.largest, tensor.numel())
                self.total += tensor.numel()
        return out


def test_nothing_of_queries_times_keys_is_made_and_work_grows_with_length() -> None:
    found = {}
    for length in (1024, 2048):
        query, key, value = (torch.rand(1, 2, length, 8) for _ in range(3))
        with Largest() as seen:
            linear_attention(query, key, value, causal=True)
        found[length] = seen
    assert found[2048].largest <= 2 * 2048 * 8
    assert found[2048].total == pytest.approx(2 * found[1024].total, rel=0.01)


@pytest.mark.parametrize("n_features", [3, 8, 20])
def test_orthogonal_directions_are_so_within_blocks_and_as_long_as_normal_ones(n_features: int) -> None:
    generator = torch.Generator().manual_seed(0)
    drawn = random_directions(n_features, 8, generator=generator).double()
    for start in range(0, n_features, 8):
        block = drawn[start : start + 8]
        assert_close(block @ block.T, torch.diag(block.square().sum(1)), rtol=0, atol=1e-5)
    long = random_directions(4096, 8, generator=generator)
    assert float(long.square().sum(1).mean()) == pytest.approx(8, rel=0.05)


@pytest.mark.parametrize("orthogonal", [True, False])
def test_performer_features_estimate_the_exponential_without_bias(orthogonal: bool) -> None:
    x, y = unit(6, 4) / 2, unit(6, 4, seed=1) / 2
    generator = torch.Generator().manual_seed(0)
    directions = random_directions(40_000, 4, orthogonal=orthogonal, generator=generator)
    estimate = performer_features(x, directions) @ performer_features(y, directions).T
    assert_close(estimate, (x @ y.T).exp(), rtol=0.03, atol=0)


def test_orthogonal_directions_estimate_with_less_variance() -> None:
    x, y, errors = unit(10, 8) / 2, unit(10, 8, seed=1) / 2, {}
    for orthogonal in (True, False):
        generator = torch.Generator().manual_seed(0)
        drawn = [random_directions(8, 8, orthogonal=orthogonal, generator=generator) for _ in range(2000)]
        estimates = torch.stack([performer_features(x, w) @ performer_features(y, w).T for w in drawn])
        errors[orthogonal] = float((estimates - (x @ y.T).exp()).square().mean())
    assert errors[True] < 0.95 * errors[False]


def test_a_query_s_largest_feature_cancels_in_its_weights() -> None:
    query, key, value = normal(1, 1, 6, 4), normal(1, 1, 6, 4, seed=1), normal(1, 1, 6, 4, seed=2)
    directions = random_directions(16, 4, generator=torch.Generator().manual_seed(0))
    keys = performer_features(key, directions)
    plain, below = (performer_features(query, directions, below=below) for below in (False, True))
    assert float(below.amax(-1).max()) == pytest.approx(1 / 4)
    found = [linear_attention(features, keys, value, causal=True)[0] for features in (plain, below)]
    assert_close(*found)
    assert torch.isfinite(performer_features(300 * query, directions, below=True)).all()
