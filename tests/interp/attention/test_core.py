"""attend() itself: what it refuses, what it names, how its parts are reached."""

from typing import Any

import pytest
import torch
from torch import Tensor
from torch.testing import assert_close

import interp.attention
from interp.attention import Mask, NonFiniteError, Site, attend, edits, probes
from tests.interp.attention.cases import tensors

SITE = Site("blocks.3.attn", 3)


def test_output_alone_or_with_readings() -> None:
    output = attend(*tensors())
    assert isinstance(output, Tensor)
    again, readings = attend(*tensors(), probes=[probes.MaxWeight()])
    assert (output == again).all()
    assert len(readings) == 1
    assert isinstance(attend(*tensors(), probes=[]), Tensor)
    assert (attend(*tensors(), engine="blocked") == output).all()


def test_output_is_laid_out_as_models_want_it() -> None:
    """[batch, head, query, d_value], with a query's heads side by side in memory."""
    output = attend(*tensors())
    assert output.shape == (2, 6, 7, 3)
    assert output.transpose(1, 2).is_contiguous()


def test_grouped_heads_read_their_group() -> None:
    query, key, _ = tensors(n_heads=8, n_kv_heads=2)
    value = torch.tensor([0.0, 1.0]).view(1, 2, 1, 1).expand(2, 2, 7, 1)
    assert attend(query, key, value)[0, :, 0, 0].round().tolist() == [0, 0, 0, 0, 1, 1, 1, 1]


SHAPES: list[tuple[dict[str, Any], str]] = [
    ({"query": torch.ones(6, 7, 5)}, r"query must be \[batch, head, position, d_head\]; got \[6, 7, 5\]"),
    ({"value": torch.ones(2, 3, 7, 3).int()}, "value must be float32, float64, float16 or bfloat16; got torch.int32"),
    ({"key": torch.ones(2, 3, 7, 5).half()}, "must share device and dtype"),
    ({"key": torch.ones(2, 3, 7, 5, device="meta")}, "must share device and dtype"),
    ({"key": torch.ones(2, 3, 7, 4)}, "query and key in batch and d_head"),
    ({"value": torch.ones(2, 3, 6, 3)}, r"must agree in batch, heads and length, .* value \[2, 3, 6, 3\]"),
    ({"query": torch.ones(3, 6, 7, 5)}, "query and key in batch"),
    ({"query": torch.ones(2, 4, 7, 5)}, "must be a multiple of the number of kv heads; got 4 and 3"),
    ({"query": torch.ones(2, 2, 7, 5)}, "must be a multiple of the number of kv heads; got 2 and 3"),
    ({"query": torch.ones(2, 0, 7, 5)}, "must be a multiple of the number of kv heads; got 0 and 3"),
    ({"key": torch.ones(2, 0, 7, 5), "value": torch.ones(2, 0, 7, 3)}, "got 6 and 0"),
    ({"query": torch.ones(2, 6, 7, 0), "key": torch.ones(2, 3, 7, 0)}, "d_head must be at least 1"),
    ({"engine": "fast"}, "engine must be 'auto', 'blocked' or 'fused'; got 'fast'"),
    ({"block_rows": 0}, "block_rows must be at least 1; got 0"),
    ({"softcap": 0.0}, "softcap must be above 0, or None for none; got 0.0"),
    ({"softcap": -1.0}, "softcap must be above 0"),
    ({"softcap": float("nan")}, "softcap must be above 0"),
]


@pytest.mark.parametrize(("wrong", "message"), SHAPES, ids=[message[:40] for _, message in SHAPES])
def test_arguments_that_do_not_fit(wrong: dict[str, Any], message: str) -> None:
    query, key, value = tensors()
    arguments: dict[str, Any] = {"query": query, "key": key, "value": value} | wrong
    with pytest.raises(ValueError, match=message):
        attend(**arguments)


def test_three_query_heads_and_two_kv_heads() -> None:
    with pytest.raises(ValueError, match=r"blocks.3.attn: the number of query heads must be a multiple"):
        attend(*tensors(n_heads=3, n_kv_heads=2), site=SITE)


@pytest.mark.parametrize("number", [float("nan"), float("inf"), float("-inf")])
def test_nan_and_infinity_are_named(number: float) -> None:
    for place, name in enumerate(("query", "key", "value")):
        calls = list(tensors())
        calls[place][1, 1, 3, 0] = number
        with pytest.raises(
            NonFiniteError, match=f"blocks.3.attn: attention met NaN or infinity in {name}: look for it"
        ):
            attend(calls[0], calls[1], calls[2], site=SITE)
    query, key, value = tensors()
    query[0, 0, 0, 0] = value[0, 0, 0, 0] = number
    with pytest.raises(NonFiniteError, match="in query and value") as caught:
        attend(query, key, value)
    assert isinstance(caught.value, ValueError)


def test_overflow_is_told_from_nan() -> None:
    query, key, value = tensors()
    for leaf in (query, query.clone().requires_grad_()):
        with pytest.raises(NonFiniteError, match=r"from finite inputs: scores overflow \(largest \|query\| .*e\+30"):
            attend(1e30 * leaf, 1e30 * key, value)
    with pytest.raises(NonFiniteError, match="the mask, bias or an edit holds NaN"):
        attend(query, key, value, edits=[edits.GateHeads({0: float("nan")})])
    with pytest.raises(NonFiniteError, match="the mask, bias or an edit holds NaN"):
        attend(query, key, value, Mask(bias=torch.full((7, 7), float("nan"))))
    with pytest.raises(NonFiniteError):
        attend(*tensors(dtype=torch.float16), edits=[edits.GateHeads({0: 1e6})])


def test_scores_too_low_for_a_row_do_not_open_forbidden_keys() -> None:
    """Whatever scores come out, a forbidden key weighs nothing: the row is empty, or the call is refused."""
    query, key, value = tensors(1, 1, 1, 5, 5)
    later = torch.arange(5)[:, None] < torch.arange(5)
    for low in (-1e20, -1e37, -1e38, -3e38):
        bias = torch.full((5, 5), low)
        _, (rows,) = attend(query, key, value, Mask(causal=True, bias=bias), probes=[probes.SelectedRows(range(5))])
        assert (rows.values[0, 0][later].nan_to_num() == 0).all()
        output = attend(query, key, value, Mask(causal=True), edits=[edits.AddLogits({0: bias})])
        assert output.isfinite().all()
        assert_close(output[0, 0, 0], value[0, 0, 0] if low > -5e37 else torch.zeros(3))


def test_garbage_in_padding_is_read_by_nobody() -> None:
    query, key, value = tensors()
    key_valid = torch.arange(7)[None].expand(2, 7) >= 2
    clean = attend(query, key, value, Mask(causal=True, key_valid=key_valid))
    key[:, :, :2], value[:, :, :2] = 1e4, -1e4
    assert_close(attend(query, key, value, Mask(causal=True, key_valid=key_valid)), clean)


def test_everything_is_found_by_its_name() -> None:
    for name in interp.attention.__all__:
        assert hasattr(interp.attention, name)
    for module in (probes, edits):
        assert sorted(module.__all__) == sorted(set(module.__all__))
        for name in module.__all__:
            assert getattr(module, name) is not None


def test_readings_say_what_computed_them() -> None:
    query, key, value = tensors()
    _, (reading,) = attend(query, key, value, probes=[probes.Entropy()])
    assert reading.engine == "blocked"
