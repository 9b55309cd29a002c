"""The fused engine gives what the row-block engine gives: on a GPU where there is one, else in Triton's interpreter."""

import math
from collections.abc import Sequence

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor
from torch.testing import assert_close

from interp.attention import AlibiSlopes, Mask, RelativeBuckets, attend, edits, probes
from interp.attention.block import Call
from interp.attention.edits import Edit
from interp.attention.fused import why_not
from interp.attention.probes import Probe
from tests.interp.attention.cases import Case, cases, tensors

pytest.importorskip("triton", reason="Triton is not installed (it comes for Linux alone)")
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
        probes.TargetMass(torch.stack([torch.arange(n_queries) - 1, torch.arange(n_queries)], -1)),
    ]
    if not cross:
        found += [probes.OffsetMass((0, 1, -1)), probes.ExpectedDistance(), probes.DistanceHistogram(5)]
    return found


def on_device(case: Case) -> tuple[object, ...]:
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
    ours, found = attend(*arguments, probes=read, edits=made, engine="fused")  # type: ignore[arg-type]
    assert {reading.engine for reading in found} == {"fused"}
    theirs, expected = attend(*arguments, probes=read, edits=made, engine="blocked")  # type: ignore[arg-type]
    assert_close(ours, theirs, rtol=within, atol=within)
    for a, b in zip(found, expected, strict=True):
        scale = max(1.0, float(case.sizes[3])) if isinstance(a.probe, probes.ExpectedDistance) else 1.0
        assert (a.n.expand(a.values.shape) == b.n.expand(b.values.shape)).all(), a.probe
        assert_close(
            a.values, b.values, rtol=within, atol=scale * within, equal_nan=True, msg=lambda m, p=a.probe: f"{p}\n{m}"
        )


@settings(max_examples=60, deadline=None)
@given(cases())
def test_any_call_is_read_alike_or_refused_with_a_reason(case: Case) -> None:
    why = reason(case, (), asked(case.sizes[3], case.sizes[2], case.mask.cross))
    if why is not None:
        assert case.mask.allowed is not None or not isinstance(case.mask.bias, Tensor | AlibiSlopes | None)
        with pytest.raises(ValueError, match="the fused engine cannot compute this call"):
            attend(*on_device(case), engine="fused")  # type: ignore[arg-type]
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
    ours, found = attend(*on_device(case), probes=read, engine="fused")  # type: ignore[arg-type]
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
    _, found = attend(*on_device(case), probes=read, engine="fused")  # type: ignore[arg-type]
    _, expected = attend(query.double(), case.key.double(), value.double(), case.mask, probes=read)
    for a, b in zip(found, expected, strict=True):
        assert_close(a.values.cpu(), b.values, rtol=2e-5, atol=2e-5)


MADE: list[Edit] = [
    edits.GateHeads({0: 0.0, 3: 0.5}),
    edits.ReplaceZ({1: torch.arange(6.0)}),
    edits.ScaleExponent({0: 0.3, 2: 1.0}),
]


@settings(max_examples=8, deadline=None)
@given(st.lists(st.sampled_from(MADE), min_size=1, unique=True))
def test_edits_of_scale_and_output_stay_in_the_kernel(made: list[Edit]) -> None:
    query, key, value = tensors(1, 4, 2, 20, 20, 8, 6)
    compare(Case(query, key, value, Mask(causal=True)), made, within=5e-5)


@pytest.mark.parametrize(
    ("made", "read", "mask", "words"),
    [
        ([edits.Uniform([0])], [], Mask(), "edit Uniform"),
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
        attend(*on_device(case), probes=read, edits=made, engine="fused")  # type: ignore[arg-type]
    attend(*on_device(case), probes=read, edits=made)  # type: ignore[arg-type]


def test_float64_and_wide_heads_are_left_to_row_blocks() -> None:
    assert "float64" in str(reason(Case(*tensors(dtype=torch.float64))))
    assert "256 features" in str(reason(Case(*tensors(1, 1, 1, 3, 3, 300, 3))))


def test_gradients_are_those_of_row_blocks() -> None:
    gradients = []
    for engine in ("fused", "blocked"):
        query, key, value = (t.to(DEVICE).requires_grad_() for t in tensors(1, 4, 2, 18, 18, 8, 6))
        slopes = torch.full((4,), 0.1, device=DEVICE, requires_grad=True)
        gate = torch.tensor(0.7, device=DEVICE, requires_grad=True)
        mask = Mask(causal=True, bias=AlibiSlopes(slopes))
        output = attend(query, key, value, mask, edits=[edits.GateHeads({1: gate})], engine=engine)  # type: ignore[arg-type]
        gradients.append(torch.autograd.grad(output.square().sum(), (query, key, value, slopes, gate)))
    for ours, theirs in zip(*gradients, strict=True):
        assert_close(ours, theirs, rtol=1e-4, atol=1e-4)


def test_a_million_rows_lose_no_digits() -> None:
    """Row statistics are summed in float64, and what a key receives with what rounding takes kept beside it."""
    n = 1 << 20 if DEVICE == "cuda" else 1 << 13
    query = torch.zeros(1, 1, n, 16, device=DEVICE)
    key = value = torch.zeros(1, 1, 3, 16, device=DEVICE)
    _, (received, entropy) = attend(
        query, key, value, Mask(cross=True), probes=[probes.MassReceived(), probes.Entropy()], engine="fused"
    )
    assert_close(received.values.cpu(), torch.full((1, 1, 3), 1 / 3, dtype=torch.float64), rtol=0, atol=1e-7)
    assert_close(entropy.values.cpu(), torch.full((1, 1), math.log(3), dtype=torch.float64), rtol=0, atol=1e-7)
