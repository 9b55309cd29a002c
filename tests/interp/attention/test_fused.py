"""The fused engine gives what the row-block engine gives: on a GPU where there is one, else in Triton's interpreter."""

import dataclasses
import math
from collections.abc import Sequence
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor
from torch.testing import assert_close

from interp.attention import AlibiSlopes, Mask, NonFiniteError, RelativeBuckets, attend, edits, probes
from interp.attention.block import Call
from interp.attention.edits import Edit
from interp.attention.fused import why_not
from interp.attention.probes import Probe
from tests.interp.attention.cases import Case, cases, tensors, valid_rows, with_edits

launch = pytest.importorskip("interp.attention.launch", reason="Triton is not installed (it comes for Linux alone)")
DEVICE = "cuda" if torch.cuda.is_available() else "cpu"  # without a GPU in Triton's interpreter: tests/conftest.py
EXACT = {torch.float32: 2e-5, torch.float16: 4e-3, torch.bfloat16: 3e-2}


def asked(n_keys: int, n_queries: int, cross: bool) -> list[Probe]:
    """Every probe that the kernel reads."""
    labels = torch.arange(n_keys) % 4 - 1
    found: list[Probe] = [
        probes.Entropy(),
        probes.MaxWeight(first_position=1),
        probes.RelativeEntropy(),
        probes.PositionMass((0, 2)),
        probes.LabelMass(labels, 3),
        probes.SetMass(torch.stack([labels >= 0, labels > 1], -1)),
        probes.MassReceived(),
        probes.StrongestEdges(4),
        probes.TargetMass(torch.stack([torch.arange(n_queries) - 1, torch.arange(n_queries)], -1)),
    ]
    if not cross:
        found += [probes.OffsetMass((0, 1, -1)), probes.ExpectedDistance(), probes.DistanceHistogram(5)]
    return found


def on_device(case: Case) -> tuple[Any, ...]:
    query, key, value, mask, *rest = case.arguments
    return query.to(DEVICE), key.to(DEVICE), value.to(DEVICE), mask.to(DEVICE), *rest


def reason(case: Case, made: Sequence[Edit] = (), read: Sequence[Probe] = ()) -> str | None:
    query, _, value, mask, *_ = on_device(case)
    assert isinstance(query, Tensor)
    assert isinstance(value, Tensor)
    assert isinstance(mask, Mask)
    return why_not(Call(mask, 1.0, None, tuple(made)), query, value, read)


def compare(case: Case, made: Sequence[Edit] = (), within: float = 2e-5) -> None:
    read = asked(case.sizes[3], case.sizes[2], case.mask.cross)
    arguments = on_device(case)
    ours, found = attend(*arguments, probes=read, edits=made, engine="fused")
    assert {reading.engine for reading in found} == {"fused"}
    theirs, expected = attend(*arguments, probes=read, edits=made, engine="blocked")
    assert_close(ours, theirs, rtol=within, atol=within)
    for a, b in zip(found, expected, strict=True):
        if isinstance(a.probe, probes.StrongestEdges):
            same_edges(a.values, b.values, within)
            continue
        scale = max(1.0, float(case.sizes[3])) if isinstance(a.probe, probes.ExpectedDistance) else 1.0
        assert (a.n.expand(a.values.shape) == b.n.expand(b.values.shape)).all(), a.probe
        assert_close(
            a.values, b.values, rtol=within, atol=scale * within, equal_nan=True, msg=lambda m, p=a.probe: f"{p}\n{m}"
        )


def same_edges(ours: Tensor, theirs: Tensor, within: float) -> None:
    """Weights in falling order, and the edges: those that are near the next one may have changed places."""
    weight = theirs[..., 0]
    assert_close(ours[..., 0], weight, rtol=within, atol=within)
    near = (weight[..., :, None] - weight[..., None, :]).abs() <= 4 * within
    settled = (near.sum(-1) == 1) & (torch.arange(weight.shape[-1], device=weight.device) < weight.shape[-1] - 1)
    assert (ours[settled | (weight == 0)][:, 1:] == theirs[settled | (weight == 0)][:, 1:]).all()


def edges_of(pattern: Tensor, valid: Tensor, k: int) -> Tensor:
    """The k strongest edges of a whole pattern, the earlier one where two are equal."""
    n_keys = pattern.shape[-1]
    weight, place = (pattern * valid[..., None]).flatten(2).sort(dim=-1, descending=True, stable=True)
    found = torch.stack([weight, place // n_keys, place % n_keys], -1)[:, :, :k]
    found = torch.nn.functional.pad(found, (0, 0, 0, k - found.shape[2]))
    found[..., 1:].masked_fill_(found[..., :1] == 0, -1)
    return found


@settings(max_examples=60, deadline=None)
@given(cases())
def test_any_call_is_read_alike_or_refused_with_a_reason(case: Case) -> None:
    why = reason(case, (), asked(case.sizes[3], case.sizes[2], case.mask.cross))
    if why is not None:
        assert case.mask.allowed is not None or not isinstance(case.mask.bias, Tensor | AlibiSlopes | None)
        with pytest.raises(ValueError, match="the fused engine cannot compute this call"):
            attend(*on_device(case), engine="fused")
        return
    query, key, _value, *_ = case.arguments
    largest = float((query.abs().amax() * key.abs().amax() * query.shape[-1]) or 1)
    compare(case, within=1e-5 * max(1.0, math.sqrt(largest)))


@pytest.mark.parametrize(
    ("n_queries", "n_keys", "d_head", "d_value", "group"),
    [(70, 70, 24, 20, 2), (33, 97, 80, 64, 1), (1, 65, 16, 16, 3), (65, 65, 128, 128, 1), (40, 40, 256, 96, 1)],
)
def test_sizes_that_are_no_powers_of_two_and_tiles_that_do_not_fit(
    n_queries: int, n_keys: int, d_head: int, d_value: int, group: int
) -> None:
    query, key, value = tensors(1, group, 1, n_queries, n_keys, d_head, d_value)
    compare(Case(query / d_head**0.5, key, value, Mask(causal=True)), within=5e-5)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
def test_half_precision_keeps_statistics_in_full(dtype: torch.dtype) -> None:
    """Products of half-precision inputs are exact in float32, so that statistics do not see the output's rounding."""
    case = Case(*tensors(1, 2, 1, 50, 50, 16, 16, dtype=dtype), Mask(causal=True))
    read = [probes.Entropy(), probes.MaxWeight(), probes.ExpectedDistance(), probes.LabelMass(torch.arange(50) % 3, 3)]
    ours, found = attend(*on_device(case), probes=read, engine="fused")
    query, key, value = (t.double() for t in (case.query, case.key, case.value))
    theirs, expected = attend(query, key, value, case.mask, probes=read)
    assert_close(ours.cpu().double(), theirs, rtol=EXACT[dtype], atol=EXACT[dtype])
    for a, b in zip(found, expected, strict=True):
        assert_close(a.values.cpu(), b.values, rtol=2e-5, atol=2e-5)


@pytest.mark.parametrize("sharpness", [0.0, 1.0, 30.0, 3000.0])
def test_flat_rows_sharp_rows_and_ties(sharpness: float) -> None:
    query, key, value = tensors(1, 2, 1, 64, 64, 8, 8)
    key[:, :, 1::2] = key[:, :, ::2]  # every score twice
    query = (query * sharpness).round() / 2  # and products that float32 holds exactly
    case = Case(query, (key * 4).round() / 4, value, Mask(causal=True))
    read = [probes.Entropy(), probes.MaxWeight()]
    _, found = attend(*on_device(case), probes=read, engine="fused")
    _, expected = attend(query.double(), case.key.double(), value.double(), case.mask, probes=read)
    for a, b in zip(found, expected, strict=True):
        assert_close(a.values.cpu(), b.values, rtol=2e-5, atol=2e-5)


MADE: list[Edit] = [
    edits.GateHeads({0: 0.0, 3: 0.5}),
    edits.ReplaceZ({1: torch.arange(6.0)}),
    edits.ScaleExponent({0: 0.3, 2: 1.0}),
]


def logits(*shape: int, holes: float = 0.0) -> Tensor:
    """Random logits, a share of them −inf."""
    g = torch.Generator().manual_seed(len(shape))
    return torch.randn(shape, generator=g).masked_fill(torch.rand(shape, generator=g) < holes, float("-inf"))


ADDED: list[list[Edit]] = [
    [edits.AddLogits({1: logits(20)}), edits.AddLogits({3: torch.tensor(0.7), 1: logits(2, 1, 20, holes=0.4)})],
    [edits.AddLogits({0: logits(20, 1), 2: logits(2, 20, 1)})],
    [edits.AddLogits({2: logits(20, 20, holes=0.4)}), edits.AddLogits({0: logits(20, 20), 2: logits(20, 20)})],
    [edits.AddLogits({2: logits(20, holes=1.0)})],  # nothing is left to read
]


@settings(max_examples=15, deadline=None)
@given(
    st.lists(st.sampled_from(MADE), unique=True), st.sampled_from(ADDED), st.sampled_from((None, 3.0)),
    st.sampled_from((None, logits(20, 20, holes=0.2).half(), AlibiSlopes(torch.tensor([0.1, 0.2, 0.3, 0.0])))),
)  # fmt: skip
def test_edits_of_scale_and_output_and_added_logits_stay_in_the_kernel(
    made: list[Edit], added: list[Edit], softcap: float | None, bias: Tensor | AlibiSlopes | None
) -> None:
    query, key, value = tensors(2, 4, 2, 20, 20, 8, 6)
    mask = Mask(causal=True, bias=bias, sinks=torch.tensor([0.0, 1.0, -1.0, 2.0]))
    case = Case(query, key, value, mask, None, softcap)
    compare(case, [*made, *added], within=5e-5)
    dense = with_edits(case, [*made, *added])
    output, (edges,) = attend(
        *on_device(case), probes=[probes.StrongestEdges(9)], edits=[*made, *added], engine="fused"
    )
    assert_close(output.cpu().double(), dense.output, rtol=5e-5, atol=5e-5)
    has_keys = (dense.pattern > 0).any(-1)
    same_edges(edges.values.cpu(), edges_of(dense.pattern, has_keys, 9), 5e-5)


@settings(max_examples=20, deadline=None)
@given(cases(), st.sampled_from((1, 7, 300)))
def test_strongest_edges_are_those_of_the_whole_pattern(case: Case, k: int) -> None:
    if reason(case) is None:
        _, (found,) = attend(*on_device(case), probes=[probes.StrongestEdges(k)], engine="fused")
        whole = case.reference
        expected = edges_of(whole.pattern, valid_rows(case, whole.permitted), k)
        assert ((found.n[..., 0] > 0).cpu() == (expected[..., 0] > 0)).all()
        same_edges(found.values.cpu(), expected, 1e-3)


@pytest.mark.parametrize(("batch", "n_queries"), [(0, 5), (2, 0)])
def test_no_edges_of_nothing(batch: int, n_queries: int) -> None:
    query, key, value = tensors(batch, 4, 2, n_queries, 5, 4, 4)
    case = Case(query, key, value, Mask(causal=True), 1.0)
    read = [probes.StrongestEdges(3), *probes.basic()]
    ours, theirs = (attend(*on_device(case), probes=read, engine=engine)[1] for engine in ("fused", "blocked"))
    for one, other in zip(ours, theirs, strict=True):
        assert one.values.shape == other.values.shape
        assert (one.n == 0).all()


@pytest.mark.parametrize("sharpness", [0.0, 4000.0])
@pytest.mark.parametrize("sinks", [None, torch.tensor([0.0, 3.0])])
@pytest.mark.parametrize("mask", [Mask(), Mask(causal=True), Mask(window=5)])
def test_of_equal_edges_the_earliest_are_kept(sharpness: float, sinks: Tensor | None, mask: Mask) -> None:
    """Many rows with one key that takes everything, or several that share it: scores are whole numbers."""
    query, key, value = tensors(2, 2, 1, 40, 40, 4, 4)
    query, key = (query * sharpness).round(), key.round()
    key[:, :, 1::2] = key[:, :, ::2]
    case = Case(query, key, value, dataclasses.replace(mask, sinks=sinks), 1.0)
    read = [probes.StrongestEdges(12)]
    (ours,), (theirs,) = (attend(*on_device(case), probes=read, engine=engine)[1] for engine in ("fused", "blocked"))
    assert (ours.values[..., 1:] == theirs.values[..., 1:]).all()
    assert_close(ours.values, theirs.values, rtol=2e-6, atol=0)


@pytest.mark.parametrize(
    ("made", "read", "mask", "words"),
    [
        ([edits.Uniform([0])], [], Mask(), "edit Uniform"),
        ([edits.Temperature({0: 2.0})], [], Mask(), "edit Temperature"),
        ([edits.KnockOut([(1, 0)])], [], Mask(), "edit KnockOut"),
        ([edits.AddLogits({0: torch.ones(7, 1), 1: torch.ones(7)})], [], Mask(), "AddLogits of several shapes"),
        ([], [probes.SelectedRows([0])], Mask(), "probe SelectedRows"),
        ([], [probes.DistanceHistogram(4, signed=True)], Mask(), "probe DistanceHistogram"),
        ([], [probes.LabelMass(torch.zeros(7, dtype=torch.long), 65)], Mask(), "more than 64 labels"),
        ([], [probes.DistanceHistogram(4), probes.DistanceHistogram(5)], Mask(), "several numbers of bins"),
        ([], [], Mask(allowed=torch.ones(7, 7, dtype=torch.bool)), "tensor or function of allowed keys"),
        ([], [], Mask(bias=RelativeBuckets(torch.zeros(8, 6))), "bias of kind RelativeBuckets"),
    ],
)
def test_what_it_cannot_do_is_said_and_left_to_row_blocks(
    made: list[Edit], read: list[Probe], mask: Mask, words: str
) -> None:
    case = Case(*tensors(), mask)
    assert words in str(reason(case, made, read))
    with pytest.raises(ValueError, match=words):
        attend(*on_device(case), probes=read, edits=made, engine="fused")
    attend(*on_device(case), probes=read, edits=made)


def test_float64_and_wide_heads_are_left_to_row_blocks() -> None:
    assert "float64" in str(reason(Case(*tensors(dtype=torch.float64))))
    assert "256 features" in str(reason(Case(*tensors(1, 1, 1, 3, 3, 300, 3))))


def test_what_is_not_finite_is_found() -> None:
    """NaN in a bias or in added logits is no key that may not be read."""
    case = Case(*tensors(), Mask())
    nan = torch.tensor([0.0, math.nan, 0, 0, 0, 0, 0])
    with pytest.raises(NonFiniteError):
        attend(*on_device(case), edits=[edits.AddLogits({2: nan})], engine="fused")
    with pytest.raises(NonFiniteError):
        attend(*on_device(dataclasses.replace(case, mask=Mask(bias=nan[None]))), engine="fused")
    with pytest.raises(ValueError, match="dimension key must be 1 or 7"):
        attend(*on_device(case), edits=[edits.AddLogits({0: torch.ones(6)})], engine="fused")


def test_gradients_are_those_of_row_blocks() -> None:
    gradients = []
    engines: tuple[Any, ...] = ("fused", "blocked")
    for engine in engines:
        query, key, value = (t.to(DEVICE).requires_grad_() for t in tensors(1, 4, 2, 18, 18, 8, 6))
        slopes = torch.full((4,), 0.1, device=DEVICE, requires_grad=True)
        gate = torch.tensor(0.7, device=DEVICE, requires_grad=True)
        added = logits(18).to(DEVICE).requires_grad_()
        mask = Mask(causal=True, bias=AlibiSlopes(slopes))
        made = [edits.GateHeads({1: gate}), edits.AddLogits({2: added})]
        output = attend(query, key, value, mask, edits=made, engine=engine)
        gradients.append(torch.autograd.grad(output.square().sum(), (query, key, value, slopes, gate, added)))
    for ours, theirs in zip(*gradients, strict=True):
        assert_close(ours, theirs, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("engine", ["fused", "blocked"])
def test_a_million_rows_lose_no_digits(engine: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Row statistics are summed in float64, and what a key receives with what rounding takes kept beside it: the means
    of a million different rows agree with float64 to the last digit of float32."""
    if DEVICE == "cpu":  # fewer and larger tiles: a step of the interpreter takes a millisecond
        monkeypatch.setattr(launch, "tile", lambda *_: (4096, 16, {}))
    n = 1 << 20
    query, key, value = tensors(1, 1, 1, n, 3, 2, 1)
    read = [probes.MassReceived(), probes.Entropy(), probes.MaxWeight()]
    _, found = attend(query.to(DEVICE), key.to(DEVICE), value.to(DEVICE), Mask(cross=True), probes=read, engine=engine)
    pattern = (query.double() @ key.double().mT / 2**0.5).softmax(-1)
    expected = pattern.mean(2), torch.special.entr(pattern).sum(-1).mean(-1), pattern.amax(-1).mean(-1)
    for reading, value in zip(found, expected, strict=True):
        assert_close(reading.values.cpu(), value, rtol=torch.finfo(torch.float32).eps, atol=0)
