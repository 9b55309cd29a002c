"""The oracle itself, against what others compute and against closed forms."""

import math
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch.nn.functional import scaled_dot_product_attention
from torch.testing import assert_close
from transformers.models.gemma2 import modeling_gemma2
from transformers.models.gpt_oss import modeling_gpt_oss
from transformers.models.llama import modeling_llama

from interp.attention import AlibiSlopes, Mask, RelativeBuckets, reference
from tests.interp.attention.cases import tensors

F64 = torch.float64


def lowest_where(forbidden: torch.Tensor) -> torch.Tensor:
    """The additive mask that transformers' eager attention is given."""
    return torch.zeros(forbidden.shape, dtype=F64).masked_fill(forbidden, torch.finfo(F64).min)


@pytest.mark.parametrize("n_kv_heads", [1, 2, 3, 6])
@pytest.mark.parametrize("causal", [False, True])
def test_sdpa(n_kv_heads: int, causal: bool) -> None:
    query, key, value = tensors(n_kv_heads=n_kv_heads, n_queries=11, n_keys=11, dtype=F64)
    found = reference(query, key, value, Mask(causal=causal))
    expected = scaled_dot_product_attention(query, key, value, is_causal=causal, enable_gqa=True)
    assert_close(found.output, expected, rtol=0, atol=1e-13)


def test_sdpa_with_padding_bias_and_fewer_queries_than_keys() -> None:
    query, key, value = tensors(n_queries=3, n_keys=11, dtype=F64)
    key_valid = torch.arange(11)[None] >= torch.tensor([[2], [4]])
    bias = torch.randn(2, 6, 3, 11, dtype=F64, generator=torch.Generator().manual_seed(1))
    found = reference(query, key, value, Mask(causal=True, key_valid=key_valid, bias=bias), scale=0.3)
    forbidden = (torch.arange(11)[None] > torch.arange(8, 11)[:, None]) | ~key_valid[:, None, None]
    expected = scaled_dot_product_attention(
        query, key, value, bias.masked_fill(forbidden, float("-inf")), scale=0.3, enable_gqa=True
    )
    assert_close(found.output, expected, rtol=0, atol=1e-13)
    assert (found.pattern[forbidden.expand_as(found.pattern)] == 0).all()
    assert_close(found.pattern.sum(-1), torch.ones(2, 6, 3, dtype=F64))


def test_transformers_eager() -> None:
    query, key, value = tensors(dtype=F64)
    module: Any = SimpleNamespace(num_key_value_groups=2, training=False)
    forbidden = torch.ones(7, 7, dtype=torch.bool).triu(1)
    output, pattern = modeling_llama.eager_attention_forward(
        module, query, key, value, lowest_where(forbidden), scaling=0.4
    )
    found = reference(query, key, value, Mask(causal=True), scale=0.4)
    # transformers takes the softmax in float32
    assert_close(found.pattern, pattern.double(), rtol=0, atol=1e-6)
    assert_close(found.output, output.transpose(1, 2).double(), rtol=0, atol=1e-5)


def test_transformers_softcap() -> None:
    query, key, value = tensors(dtype=F64)
    module: Any = SimpleNamespace(num_key_value_groups=2, training=False, head_dim=5)
    forbidden = torch.ones(7, 7, dtype=torch.bool).triu(1)
    _, pattern = modeling_gemma2.eager_attention_forward(
        module, query, key, value, lowest_where(forbidden), scaling=0.4, softcap=2.0
    )
    found = reference(query, key, value, Mask(causal=True), scale=0.4, softcap=2.0)
    assert_close(found.pattern, pattern.double(), rtol=0, atol=1e-6)
    assert (found.scores.abs() <= 2).all()


def test_transformers_sinks() -> None:
    query, key, value = tensors(dtype=F64)
    sinks = torch.linspace(-2, 3, 6, dtype=F64)
    module: Any = SimpleNamespace(num_key_value_groups=2, training=False, sinks=sinks)
    forbidden = torch.ones(7, 7, dtype=torch.bool).triu(1)
    output, pattern = modeling_gpt_oss.eager_attention_forward(
        module, query, key, value, lowest_where(forbidden), scaling=0.4
    )
    found = reference(query, key, value, Mask(causal=True, sinks=sinks), scale=0.4)
    assert_close(found.pattern, pattern, rtol=0, atol=1e-13)
    assert_close(found.output, output.transpose(1, 2), rtol=0, atol=1e-13)
    assert_close(found.pattern.sum(-1) + found.sink_weight, torch.ones(2, 6, 7, dtype=F64))


def test_one_key_takes_all() -> None:
    query, key, value = tensors(n_queries=4, n_keys=1, dtype=F64)
    assert_close(reference(query, key, value).output, value.repeat_interleave(2, 1).expand(-1, -1, 4, -1))


def test_equal_scores_give_the_mean() -> None:
    _, key, value = tensors(dtype=F64)
    found = reference(torch.zeros(2, 6, 7, 5), key, value, Mask(causal=True))
    steps = torch.arange(1, 8, dtype=F64)[:, None]
    assert_close(found.output, value.repeat_interleave(2, 1).cumsum(-2) / steps)


def test_two_keys_are_a_sigmoid() -> None:
    query, key, value = tensors(n_queries=3, n_keys=2, n_kv_heads=6, dtype=F64)
    difference = (query @ (key[:, :, 1] - key[:, :, 0])[..., None])[..., 0] / math.sqrt(5)
    assert_close(reference(query, key, value).pattern[..., 1], difference.sigmoid())


def test_a_row_without_keys_is_zero() -> None:
    query, key, value = tensors(dtype=F64)
    key_valid = torch.tensor([[False] * 3 + [True] * 4, [False] * 7])
    for sinks in (None, torch.zeros(6)):
        found = reference(query, key, value, Mask(causal=True, key_valid=key_valid, sinks=sinks))
        assert (found.output[0, :, :3] == 0).all()
        assert (found.output[1] == 0).all()
        assert found.output.isfinite().all()
        assert (found.output[0, :, 3:] != 0).all()


def test_the_lowest_number_of_a_dtype_forbids_like_minus_infinity() -> None:
    """Added to a score it leaves a finite number, so that a search for infinities finds no mask."""
    query, key, value = tensors()
    forbidden = torch.ones(7, 7, dtype=torch.bool).triu(1)
    forbidden[2] = True
    for dtype in (torch.float16, torch.bfloat16, torch.float32, F64):
        bias = torch.zeros(7, 7, dtype=dtype).masked_fill(forbidden, torch.finfo(dtype).min)
        found = reference(query, key, value, Mask(bias=bias))
        assert (found.permitted == ~forbidden).all()
        assert (found.output[:, :, 2] == 0).all()


def test_grouped_heads_read_their_group() -> None:
    """Eight query heads, two kv heads: 0, 0, 0, 0, 1, 1, 1, 1, not 0, 1, 0, 1, …"""
    query, key, _ = tensors(n_heads=8, n_kv_heads=2)
    value = torch.tensor([0.0, 1.0]).view(1, 2, 1, 1).expand(2, 2, 7, 1)
    assert reference(query, key, value).output[0, :, 0, 0].round().tolist() == [0, 0, 0, 0, 1, 1, 1, 1]


def test_bias_in_words_is_the_bias_as_a_tensor() -> None:
    query, key, value = tensors(dtype=F64)
    distance = (torch.arange(7)[:, None] - torch.arange(7)).abs()
    slopes, table = torch.rand(6, dtype=F64), torch.randn(32, 6, dtype=F64)
    as_tensor = reference(query, key, value, Mask(bias=(-slopes[:, None, None] * distance)[None])).output
    assert_close(reference(query, key, value, Mask(bias=AlibiSlopes(slopes))).output, as_tensor)
    # up to a distance of 8, T5's buckets hold one distance each, those ahead in the upper half
    ahead = (torch.arange(7) > torch.arange(7)[:, None]) * 16
    as_tensor = reference(query, key, value, Mask(bias=table[distance + ahead].permute(2, 0, 1)[None])).output
    assert_close(reference(query, key, value, Mask(bias=RelativeBuckets(table))).output, as_tensor)
