"""The engine against the reference, values and gradients, over anything that the mask language can say."""

import gc
import weakref
from collections.abc import Sequence
from itertools import pairwise
from unittest import mock

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor
from torch.testing import assert_close
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from interp.attention import Mask, attend, blocked, edits, probes
from interp.attention.bias import AlibiSlopes
from interp.attention.edits import Edit
from tests.interp.attention.cases import Case, all_rows, as_float64, cases, tensors, with_edits

BLOCKS = st.sampled_from((1, 2, 3, 5, 7, None))
ROUNDING = {torch.float16: 2**-11, torch.bfloat16: 2**-8}


@settings(max_examples=300, deadline=None)
@given(cases((torch.float32, torch.float64)), BLOCKS)
def test_output_and_pattern(case: Case, block_rows: int | None) -> None:
    expected = case.reference
    output, (reading,) = attend(*case.arguments, probes=[all_rows(case)], block_rows=block_rows)
    tolerance = case.tolerance(expected.scores)
    assert output.dtype is case.query.dtype
    assert_close(output.double(), expected.output, rtol=0, atol=tolerance * float(case.value.abs().max() + 1))
    pattern = reading.values.nan_to_num(0.0)
    valid = reading.n.bool().expand_as(pattern)
    assert_close(pattern[valid], expected.pattern[valid], rtol=0, atol=tolerance)
    assert (pattern[~expected.permitted] == 0).all()
    assert (output[~expected.permitted.any(-1)] == 0).all()


@settings(max_examples=200, deadline=None)
@given(cases((torch.float32, torch.float64)))
def test_heads_in_parts(case: Case) -> None:
    """Long rows are computed a few heads at a time; here any rows are, one kv head after the other."""
    every = [
        *(probe for probe in probes.basic() if not (case.mask.cross and probe.aligned)), probes.RelativeEntropy(),
        probes.MassReceived(), probes.SetMass(members=torch.ones(case.sizes[3], 1, dtype=torch.bool)),
        probes.Together(parts=(probes.Entropy(), probes.MaxWeight(first_position=1))),
    ]  # fmt: skip
    whole, expected = attend(*case.arguments, probes=every, block_rows=3)
    with mock.patch.dict(blocked.BLOCK_BYTES, {"cpu": 1}):
        output, readings = attend(*case.arguments, probes=every)
    tolerance = case.tolerance(case.reference.scores)
    assert_close(output, whole, rtol=0, atol=tolerance * float(case.value.abs().max() + 1))
    for found, other in zip(readings, expected, strict=True):
        assert_close(found.values, other.values, rtol=0, atol=100 * tolerance, equal_nan=True)
        assert (found.n == other.n).all()


def test_what_needs_all_heads_sees_all_heads() -> None:
    query, key, value = tensors(n_heads=6, n_kv_heads=3)
    seen: list[int] = []

    class Whole(probes.RowMean):
        def measure(self, rows: blocked.Rows) -> tuple[Tensor, None]:
            seen.append(rows.pattern.shape[1])
            return rows.pattern.sum(-1), None

    class EachHead(Whole):
        by_head = True

    never = Mask(allowed=lambda batch, head, query, key: key <= query + head)
    gate = edits.GateHeads({5: 0.5})
    with mock.patch.dict(blocked.BLOCK_BYTES, {"cpu": 1}):
        for probe, mask, made, heads in (
            (EachHead(), Mask(), [], [2, 2, 2]), (Whole(), Mask(), [], [6]), (EachHead(), never, [], [6]),
            (EachHead(), Mask(), [gate], [6]),
        ):  # fmt: skip
            seen.clear()
            attend(query, key, value, mask, probes=[probe], edits=made)
            assert seen == heads


@pytest.mark.parametrize("size", [5, 7, 12])
def test_a_mask_of_other_heads_is_refused_also_in_parts(size: int) -> None:
    query, key, value = tensors(n_heads=6, n_kv_heads=3, n_queries=7, n_keys=7)
    for mask in (
        Mask(sinks=torch.zeros(size)), Mask(bias=AlibiSlopes(torch.ones(size))),
        Mask(bias=torch.zeros(1, size, 7, 7)), Mask(allowed=torch.ones(1, size, 7, 7, dtype=torch.bool)),
    ):  # fmt: skip
        with pytest.raises(ValueError, match=r"6|heads") as whole:
            attend(query, key, value, mask, block_rows=3)
        with mock.patch.dict(blocked.BLOCK_BYTES, {"cpu": 1}), pytest.raises(ValueError, match=r"6|heads") as parts:
            attend(query, key, value, mask)
        assert str(parts.value) == str(whole.value)


@settings(max_examples=60, deadline=None)
@given(cases((torch.float16, torch.bfloat16)), BLOCKS)
def test_half_precision_is_rounded_once(case: Case, block_rows: int | None) -> None:
    """Scores, softmax and sums are float32: all that is lost is the rounding of the output."""
    expected = case.reference
    output = attend(*case.arguments, block_rows=block_rows)
    assert output.dtype is case.query.dtype
    size = 1 + float(case.value.abs().max())
    tolerance = case.tolerance(expected.scores) * size + 1e-7
    assert_close(output.double(), expected.output, rtol=ROUNDING[case.query.dtype], atol=tolerance)


@settings(max_examples=120, deadline=None)
@given(cases(), BLOCKS)
def test_gradients(case: Case, block_rows: int | None) -> None:
    case = as_float64(case)
    leaves = [case.query, case.key, case.value, *case.mask.parameters().values()]
    upstream = torch.randn(case.reference.output.shape, dtype=torch.float64, generator=torch.Generator().manual_seed(1))
    expected = torch.autograd.grad(case.reference.output, leaves, upstream, allow_unused=True, materialize_grads=True)
    output = attend(*case.arguments, block_rows=block_rows)
    found = torch.autograd.grad(output, leaves, upstream)
    for ours, theirs in zip(found, expected, strict=True):
        assert_close(ours, theirs, rtol=1e-9, atol=1e-11)


@settings(max_examples=40, deadline=None)
@given(cases(), BLOCKS)
def test_gradients_in_float32(case: Case, block_rows: int | None) -> None:
    exact = as_float64(case)
    leaves = [exact.query, exact.key, exact.value]
    expected = torch.autograd.grad(exact.reference.output.sum(), leaves)
    query, key, value = (t.detach().requires_grad_() for t in (case.query, case.key, case.value))
    output = attend(query, key, value, case.mask, case.scale, case.softcap, block_rows=block_rows)
    for found, theirs in zip(torch.autograd.grad(output.sum(), (query, key, value)), expected, strict=True):
        tolerance = case.tolerance(exact.reference.scores) * max(1.0, float(theirs.abs().max()))
        assert_close(found.double(), theirs, rtol=0, atol=10 * tolerance)


# Edits, each made densely in cases.with_edits -----------------------------------------------------------------------


def _learned(edit: Edit) -> list[Tensor]:
    return list(edit.parameters().values())


@st.composite
def made_edits(draw: st.DrawFn, case: Case) -> list[Edit]:
    """One to four edits of the case's first and last head, with tensors that learn."""
    batch, n_heads, n_queries, n_keys = case.sizes
    g = torch.Generator().manual_seed(draw(st.integers(0, 9999)))
    heads = tuple({0, n_heads - 1})

    def learned(*shape: int) -> Tensor:
        return torch.rand(shape, generator=g, dtype=torch.float64).requires_grad_()

    row = draw(st.integers(0, n_queries - 1))
    weights = torch.rand(batch, 1, n_keys, generator=g, dtype=torch.float64) * case.reference.permitted[:, 0, [row]]
    kinds: Sequence[Edit] = [
        edits.ScaleExponent(dict.fromkeys(heads, learned())),
        edits.Temperature({0: 1.7} | {heads[-1]: learned()}),
        edits.AddLogits(
            {h: learned(*shape) for h, shape in zip(heads, ((n_queries, 1), (batch, 1, n_keys)), strict=False)}
        ),
        edits.KnockOut([(None, n_keys // 2), (row, None), (row, 0)], heads),
        edits.KnockOut(torch.rand(batch, n_queries, n_keys, generator=g) < 0.4),
        edits.Uniform(heads),
        edits.ReplaceRows({0: ([row], weights.requires_grad_())}),
        edits.GateHeads({0: learned(batch, n_queries)} | {n_heads - 1: learned()}),
        edits.ReplaceZ({h: learned(1, n_queries, 3) for h in heads[-1:]}),
    ]
    return draw(st.lists(st.sampled_from(kinds), min_size=1, max_size=4, unique_by=lambda e: (type(e), id(e))))


@settings(max_examples=250, deadline=None)
@given(cases(), st.data(), BLOCKS)
def test_edits_and_their_gradients(case: Case, data: st.DataObject, block_rows: int | None) -> None:
    case = as_float64(case)
    made = data.draw(made_edits(case))
    expected = with_edits(case, made)
    output, (reading,) = attend(*case.arguments, probes=[all_rows(case)], edits=made, block_rows=block_rows)
    assert_close(output, expected.output, rtol=0, atol=1e-11)
    shown = reading.n.bool().expand_as(reading.values)
    assert_close(reading.values[shown], expected.pattern.detach()[shown], rtol=0, atol=1e-11)

    leaves = {id(t): t for t in (case.query, case.key, case.value, *case.mask.parameters().values())}
    leaves |= {id(t): t for edit in made for t in _learned(edit)}
    upstream = torch.linspace(-1, 1, output.numel(), dtype=torch.float64).view_as(output)
    found = _gradients(output, list(leaves.values()), upstream)
    for ours, theirs in zip(found, _gradients(expected.output, list(leaves.values()), upstream), strict=True):
        assert_close(ours, theirs, rtol=1e-8, atol=1e-10)


def _gradients(output: Tensor, leaves: Sequence[Tensor], upstream: Tensor) -> tuple[Tensor, ...]:
    if not output.requires_grad:
        return tuple(torch.zeros_like(t) for t in leaves)
    return torch.autograd.grad(output, leaves, upstream, allow_unused=True, materialize_grads=True)


def test_permuted_weights_pass_gradients_back_to_where_they_came_from() -> None:
    query, key, value = (t.double().requires_grad_() for t in tensors())
    case = Case(query, key, value, Mask(causal=True))
    made = [edits.Permute(seed=3)]
    output, (reading,) = attend(*case.arguments, probes=[all_rows(case)], edits=made, block_rows=2)
    plain = case.reference.pattern
    source = (reading.values[..., :, None] == 0).new_zeros(()).long() + (
        (reading.values[..., :, None] - plain.detach()[..., None, :]).abs().argmin(-1)
    )
    dense = plain.gather(-1, source).masked_fill(reading.values == 0, 0.0) @ value.repeat_interleave(2, 1)
    assert_close(output, dense, rtol=0, atol=1e-12)
    for ours, theirs in zip(
        torch.autograd.grad(output.square().sum(), (query, key, value)),
        torch.autograd.grad(dense.square().sum(), (query, key, value)),
        strict=True,
    ):
        assert_close(ours, theirs, rtol=1e-9, atol=1e-11)


# Layouts, shared tensors, repeated passes ---------------------------------------------------------------------------


def test_memory_layout_does_not_matter() -> None:
    query, key, value = tensors()
    expected = attend(query, key, value, Mask(causal=True), block_rows=3)
    for change in (
        lambda t: t.transpose(1, 2).contiguous().transpose(1, 2),
        lambda t: t.mT.contiguous().mT,
        lambda t: torch.stack([t, t], -1)[..., 0],
    ):
        strided = change(query), change(key), change(value)
        assert not strided[0].is_contiguous()
        assert_close(attend(*strided, Mask(causal=True), block_rows=3), expected)


def test_expanded_inputs() -> None:
    """Stride 0: one sequence, or one head, seen many times."""
    query, key, value = (t[:1, :1].expand(3, 2, -1, -1) for t in tensors())
    output = attend(query, key, value, Mask(causal=True), block_rows=3)
    assert_close(output.double(), Case(query, key, value, Mask(causal=True)).reference.output, rtol=0, atol=1e-5)
    leaf = query[:1, :1].detach().double().requires_grad_()
    wide = leaf.expand(3, 2, -1, -1)
    (found,) = torch.autograd.grad(attend(wide, key.double(), value.double(), block_rows=2).sum(), leaf)
    dense = Case(wide, key.double(), value.double()).reference.output
    assert_close(found, torch.autograd.grad(dense.sum(), leaf)[0])


def test_one_tensor_as_query_key_and_value() -> None:
    x = torch.randn(2, 3, 7, 5, dtype=torch.float64, requires_grad=True)
    (found,) = torch.autograd.grad(attend(x, x, x, Mask(causal=True), block_rows=2).square().sum(), x)
    (expected,) = torch.autograd.grad(Case(x, x, x, Mask(causal=True)).reference.output.square().sum(), x)
    assert_close(found, expected)


def test_one_gate_for_many_heads_and_edits() -> None:
    query, key, value = tensors(dtype=torch.float64)
    gate = torch.tensor(0.3, dtype=torch.float64, requires_grad=True)
    made = [edits.GateHeads({0: gate, 1: gate}), edits.GateHeads({0: gate, 4: gate})]
    output = attend(query, key, value, edits=made, block_rows=2)
    (found,) = torch.autograd.grad(output.sum(), gate)
    plain = attend(query, key, value).sum((0, 2, 3))
    assert_close(found, 0.6 * plain[0] + plain[1] + plain[4])


def test_a_temperature_learns_beside_a_bias_that_forbids() -> None:
    query, key, value = tensors(dtype=torch.float64)
    temperature = torch.tensor(1.5, dtype=torch.float64, requires_grad=True)
    bias = torch.zeros(7, 7, dtype=torch.float64).masked_fill(torch.eye(7, dtype=torch.bool), float("-inf"))
    case, made = Case(query, key, value, Mask(bias=bias)), [edits.Temperature({0: temperature})]
    (found,) = torch.autograd.grad(attend(*case.arguments, edits=made).sum(), temperature)
    assert_close(found, torch.autograd.grad(with_edits(case, made).output.sum(), temperature)[0])


def test_a_parameter_alone_learns() -> None:
    query, key, value = tensors(dtype=torch.float64)
    for leaf, mask, made in (
        (gate := torch.tensor(0.3, requires_grad=True), Mask(), [edits.GateHeads({0: gate})]),
        (sinks := torch.zeros(6, requires_grad=True), Mask(sinks=sinks), []),
        (logits := torch.zeros(7, requires_grad=True), Mask(), [edits.AddLogits({2: logits})]),
    ):
        output = attend(query, key, value, mask, edits=made, block_rows=3)
        (found,) = torch.autograd.grad(output.square().sum(), leaf)
        assert found.dtype is torch.float32
        assert (found != 0).any()


def test_only_wanted_gradients_are_taken() -> None:
    query, key, value = tensors()
    output = attend(query, key.requires_grad_(), value, block_rows=3)
    output.sum().backward()
    assert key.grad is not None
    assert query.grad is None
    assert value.grad is None


def test_double_backward_is_refused() -> None:
    query, key, value = (t.requires_grad_() for t in tensors())
    output = attend(query, key, value)
    (first,) = torch.autograd.grad(output.sum(), query, create_graph=True)
    with pytest.raises(RuntimeError, match="can be differentiated once"):
        (output + first.square().sum()).sum().backward()


def test_no_graph_without_grad_mode() -> None:
    query, key, value = (t.requires_grad_() for t in tensors())
    with torch.no_grad():
        assert not attend(query, key, value).requires_grad
    with torch.inference_mode():
        assert not attend(query, key, value, probes=probes.basic())[0].requires_grad
    assert attend(query, key, value).requires_grad


def test_inputs_are_left_as_they_were() -> None:
    query, key, value = tensors()
    bias, weights = torch.randn(7, 7), torch.full((1, 7), 1 / 7)
    mask = Mask(bias=bias, sinks=torch.zeros(6), key_valid=torch.ones(2, 7, dtype=torch.bool))
    made = [edits.ReplaceRows({0: ([2], weights)}), edits.AddLogits({1: bias})]
    given = (query, key, value, bias, weights)
    before = [t.clone() for t in given]
    attend(query, key, value, mask, softcap=2.0, probes=probes.basic(), edits=made)
    for now, then in zip(given, before, strict=True):
        assert (now == then).all()


# Precision ---------------------------------------------------------------------------------------------------------


def test_autocast_does_not_reach_the_scores() -> None:
    query, key, value = tensors(d_head=64)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        found = attend(query.requires_grad_(), key, value)
        found.sum().backward()
    assert found.dtype is torch.float32
    assert_close(found.double(), Case(query, key, value).reference.output, rtol=0, atol=1e-4)
    leaf = query.detach().double().requires_grad_()
    Case(leaf, key, value).reference.output.sum().backward()
    assert leaf.grad is not None
    assert query.grad is not None
    assert_close(query.grad.double(), leaf.grad, rtol=0, atol=1e-4)


@pytest.mark.parametrize("setting", ["tf32", "ieee", "none"])
def test_the_precision_of_products_is_put_back(setting: str) -> None:
    matmul = torch.backends.cuda.matmul
    before = matmul.fp32_precision
    try:
        matmul.fp32_precision = setting
        attend(*tensors())
        assert matmul.fp32_precision == setting
        with pytest.raises(ValueError, match="softcap"):
            attend(*tensors(), softcap=0.0)
        assert matmul.fp32_precision == setting
    finally:
        matmul.fp32_precision = before


def test_huge_scores() -> None:
    """Scores of ±1e4: a pattern of ones and zeros, finite gradients, entropy and all."""
    query, key, value = tensors(d_head=16)
    case = Case(query, key, value, Mask(causal=True), scale=1e4)
    output, readings = attend(*case.arguments, probes=probes.basic(), block_rows=2)
    expected = case.reference
    assert expected.scores.abs().max() > 1e4
    assert_close(output.double(), expected.output, rtol=0, atol=case.tolerance(expected.scores))
    for reading in readings:
        assert reading.values[reading.n.expand_as(reading.values) > 0].isfinite().all()


def test_float16_scores_beyond_its_range() -> None:
    """Products above 65504 overflow float16, not the float32 that scores are computed in."""
    query, key, value = tensors(dtype=torch.float16, d_head=16)
    query, key = 100 * query, 100 * key
    assert (query @ key.repeat_interleave(2, 1).mT).isinf().any()
    case = Case(query, key, value, scale=1.0)
    output = attend(*case.arguments)
    assert_close(output.double(), case.reference.output, rtol=2**-10, atol=1e-3)


# Memory ------------------------------------------------------------------------------------------------------------


class Largest(TorchDispatchMode):
    """Records the number of elements of the largest tensor that any operation makes."""

    def __init__(self) -> None:
        super().__init__()
        self.elements = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        result = func(*args, **(kwargs or {}))
        for tensor in tree_leaves(result):
            if isinstance(tensor, Tensor):
                self.elements = max(self.elements, tensor.untyped_storage().nbytes() // tensor.element_size())
        return result


N = 512
WORDS = torch.arange(N) // 2


@pytest.mark.parametrize(
    "mask",
    [
        Mask(causal=True),
        Mask(causal=True, window=40),
        Mask(),
        Mask(causal=True, key_valid=torch.arange(N)[None] >= 5, sinks=torch.zeros(2)),
        Mask(allowed=lambda batch, head, query, key: (query - key) % 3 == 0),
    ],
    ids=["causal", "window", "free", "padding and sinks", "function"],
)
def test_no_query_by_key_tensor_is_made(mask: Mask) -> None:
    query, key, value = (t.requires_grad_() for t in tensors(1, 2, 1, N, N, 8, 8))
    seen = [
        *probes.basic(),
        probes.DistanceHistogram(),
        probes.StrongestOffset(),
        probes.LabelMass(WORDS % 3, 3),
        probes.LabelMatch(WORDS, 1),
        probes.TargetMass(torch.arange(N)[:, None] - 1),
        probes.MassReceived(),
        probes.StrongestEdges(5),
        probes.SelectedRows([3, 200]),
        probes.HeadDivergence(),
        probes.StrongestGroup(WORDS // 8, 32),
        probes.GradientTimesWeight(),
    ]
    made = [edits.Temperature({0: 2.0}), edits.KnockOut([(None, 3)]), edits.Permute([1]), edits.GateHeads({0: 0.5})]
    with Largest() as largest:
        output, readings = attend(query, key, value, mask, probes=seen, edits=made, block_rows=16)
        output.sum().backward()
        for reading in readings:
            assert reading.values is not None
    # A block has 2 heads × 16 rows × its keys; the probes of distances and words want a little more room
    reach = 40 if mask.window is not None else N
    assert 2 * 16 * reach <= largest.elements <= 2 * 2 * 16 * N < N * N


def test_blocks_respect_their_budget(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(blocked.BLOCK_BYTES, "cpu", 1 << 16)
    monkeypatch.setitem(blocked.TALL_BYTES, "cpu", 1 << 16)
    bound = Mask(causal=True).bind(1, 2, N, N, torch.device("cpu"))
    blocks = list(blocked.row_blocks(bound, None, torch.float32))
    assert blocks[0][0] == 0
    assert blocks[-1][1] == N
    assert all(stop == start for (_, stop), (start, _) in pairwise(blocks))
    heights = [stop - start for start, stop in blocks]
    assert all(
        height * stop * 2 * 4 <= (1 << 16) or height == 8 for height, (_, stop) in zip(heights, blocks, strict=True)
    )
    assert heights[0] > heights[-2]


def test_blocks_of_long_rows_stay_tall(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(blocked.BLOCK_BYTES, "cpu", 1)
    bound = Mask().bind(1, 2, N, N, torch.device("cpu"))
    heights = {stop - start for start, stop in blocked.row_blocks(bound, None, torch.float32)}
    assert heights <= {blocked.TALL, N % blocked.TALL}
    monkeypatch.setitem(blocked.TALL_BYTES, "cpu", 32 * N * 2 * 4)
    assert next(blocked.row_blocks(bound, None, torch.float32)) == (0, 32)


def test_readings_do_not_hold_on_to_values() -> None:
    query, key, _ = tensors()
    value = torch.randn(2, 3, 7, 3)
    alive = weakref.ref(value)
    output, readings = attend(
        query.requires_grad_(), key, value, probes=[*probes.basic(), probes.GradientTimesWeight()]
    )
    output.sum().backward()
    del value, output
    gc.collect()
    assert alive() is None
    assert readings[0].values.isfinite().all()


# Sizes at the edge -------------------------------------------------------------------------------------------------


def test_no_keys() -> None:
    query, key, value = tensors(n_queries=3, n_keys=0)
    for mask in (
        Mask(),
        Mask(cross=True),
        Mask(sinks=torch.zeros(6)),
        Mask(key_valid=torch.ones(2, 0, dtype=torch.bool)),
    ):
        seen = [
            p
            for p in (*probes.basic(), probes.MassReceived(), probes.StrongestEdges(2))
            if not (p.aligned and mask.cross)
        ]
        output, readings = attend(query.requires_grad_(), key, value, mask, probes=seen)
        assert (output == 0).all()
        assert output.shape == (2, 6, 3, 3)
        output.sum().backward()
        for reading in readings:
            assert reading.values.shape[:2] == (2, 6)
            assert (reading.n == 0).all()


def test_no_sequences_and_no_queries() -> None:
    for batch, n_queries in ((0, 3), (2, 0)):
        query, key, value = tensors(batch=batch, n_queries=n_queries)
        seen = (*probes.basic(), probes.DistanceHistogram(3), probes.HeadDivergence(), probes.StrongestEdges(2))
        output, readings = attend(query.requires_grad_(), key, value, Mask(causal=True), probes=seen)
        output.sum().backward()
        assert output.shape == (batch, 6, n_queries, 3)
        for reading in readings:
            sizes = tuple(len(labels) or 6 for _, labels in reading.probe.axes())
            assert reading.values.shape == (batch, 6, *sizes)


def test_rows_without_keys_are_zero_and_pass_no_gradient() -> None:
    """Sixteen tokens, a band of four, twelve of them padding: whole blocks see nothing."""
    query, key, value = (t.requires_grad_() for t in tensors(1, 6, 3, 16, 16))
    mask = Mask(causal=True, window=4, key_valid=torch.arange(16)[None] < 4)
    for block_rows in (1, 4, 16):
        output, readings = attend(query, key, value, mask, probes=probes.basic(), block_rows=block_rows)
        assert (output[:, :, 7:] == 0).all()
        assert (output[:, :, :7] != 0).all()
        (grad,) = torch.autograd.grad(output.sum(), query)
        assert grad.isfinite().all()
        assert (grad[:, :, 7:] == 0).all()
        assert (readings[0].n == 4).all()


def test_a_window_beyond_the_first_key_of_fewer_keys_than_queries() -> None:
    """Queries that stand before the first key, within a window that does not reach it."""
    query, key, value = tensors(n_queries=19, n_keys=3)
    case = Case(query, key, value, Mask(window=2))
    for block_rows in (1, 8, None):
        assert_close(attend(*case.arguments, block_rows=block_rows).double(), case.reference.output, rtol=0, atol=1e-5)


def test_queries_whose_window_lies_behind_the_last_key() -> None:
    query, key, value = tensors(n_queries=5, n_keys=5)
    case = Case(query, key, value, Mask(causal=True, window=2, query_offset=4))
    for block_rows in (1, 2, None):
        output, readings = attend(*case.arguments, probes=probes.basic(), block_rows=block_rows)
        assert_close(output.double(), case.reference.output, rtol=0, atol=1e-5)
        assert (output[:, :, 2:] == 0).all()
        assert (readings[0].n == 2).all()


def test_left_padding_gives_what_the_sequence_alone_gives() -> None:
    query, key, value = tensors(batch=1, n_queries=11, n_keys=11)
    alone, readings = attend(query, key, value, Mask(causal=True), probes=probes.basic())
    for n_pads in (1, 2, 3, 8):
        pads = (torch.full((1, t.shape[1], n_pads, t.shape[3]), 9.0) for t in (query, key, value))
        wide = [torch.cat([pad, t], 2) for pad, t in zip(pads, (query, key, value), strict=True)]
        mask = Mask(causal=True, key_valid=torch.arange(11 + n_pads)[None] >= n_pads)
        padded, again = attend(wide[0], wide[1], wide[2], mask, probes=probes.basic(), block_rows=4)
        assert_close(padded[:, :, n_pads:], alone, rtol=0, atol=1e-6)
        for one, other in zip(readings, again, strict=True):
            assert_close(one.values, other.values, rtol=0, atol=1e-6, equal_nan=True)
            assert (one.n == other.n).all()
