"""Reading a pattern that a model has built itself gives what the engine gives."""

from dataclasses import replace

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor
from torch.testing import assert_close

from interp.attention import Mask, Site, attend, blocked, edits, probes
from interp.attention.dense import mask_of_scores, read_pattern
from interp.attention.edits import Edit
from tests.interp.attention.cases import Case, cases, padding, tensors

LOWEST = torch.finfo(torch.float32).min


def as_a_model_has_it(case: Case) -> tuple[Tensor, Tensor]:
    """Scores with the lowest number added where nothing may be read, and their softmax."""
    whole = case.reference
    scores = (whole.scores + torch.zeros(()).masked_fill(~whole.permitted, LOWEST)).float()
    return scores, scores.softmax(-1)


def mask_seen(case: Case, scores: Tensor) -> Mask:
    batch, n_heads, n_queries, n_keys = case.sizes
    valid = case.mask.bind(batch, n_heads, n_queries, n_keys, scores.device).query_valid
    valid = torch.ones(batch, n_queries, dtype=torch.bool) if valid is None else valid
    return mask_of_scores(scores, valid, cross=False)


@settings(max_examples=50, deadline=None)
@given(st.booleans(), st.integers(0, 999), st.sampled_from(("left", "right")), st.sampled_from((1 << 8, 1 << 23)))
def test_readings_are_those_of_the_engine(causal: bool, seed: int, side: str, block_bytes: int) -> None:
    key_valid = padding(3, 11, side, torch.Generator().manual_seed(seed))
    case = Case(*tensors(3, n_queries=11, n_keys=11, seed=seed), Mask(causal=causal, key_valid=key_valid))
    scores, pattern = as_a_model_has_it(case)
    with pytest.MonkeyPatch.context() as patch:
        for limit in (blocked.BLOCK_BYTES, blocked.TALL_BYTES):
            patch.setitem(limit, "cpu", block_bytes)
        asked = [
            *probes.basic(),
            probes.MassReceived(),
            probes.StrongestEdges(3),
            probes.LabelMass(torch.arange(11) % 2, 2),
        ]
        same, readings = read_pattern(scores, pattern, mask_seen(case, scores), asked)
    assert same is pattern
    _, expected = attend(*case.arguments, probes=asked)
    for ours, theirs in zip(readings, expected, strict=True):
        if isinstance(ours.probe, probes.StrongestEdges):
            assert_close(ours.values[..., 0], theirs.values[..., 0], rtol=0, atol=1e-5)
            continue
        assert_close(ours.values, theirs.values, rtol=0, atol=1e-4, equal_nan=True)
        assert (ours.n.expand(ours.values.shape) == theirs.n.expand(ours.values.shape)).all()


MADE: list[Edit] = [
    edits.Temperature({0: 0.3, 5: 2.0}),
    edits.AddLogits({1: torch.linspace(-3, 3, 11)}),
    edits.KnockOut([(None, 3), (4, 1)], [0, 2]),
    edits.Uniform([2, 3]),
    edits.Permute([3, 4], seed=2),
    edits.ReplaceRows({4: ([2], torch.nn.functional.one_hot(torch.tensor([1]), 11).float())}),
    edits.GateHeads({1: 0.5, 4: 0.0}),
]


@settings(max_examples=60, deadline=None)
@given(
    st.lists(st.sampled_from(MADE), min_size=1, max_size=4, unique=True),
    st.booleans(),
    st.sampled_from((1 << 8, 1 << 23)),
)
def test_edits_are_those_of_the_engine(made: list[Edit], causal: bool, block_bytes: int) -> None:
    case = Case(*tensors(n_queries=11, n_keys=11), Mask(causal=causal))
    scores, pattern = as_a_model_has_it(case)
    with pytest.MonkeyPatch.context() as patch:
        for limit in (blocked.BLOCK_BYTES, blocked.TALL_BYTES):
            patch.setitem(limit, "cpu", block_bytes)
        changed, _ = read_pattern(scores, pattern, mask_seen(case, scores), (), made)
    output = changed.double() @ case.value.double().repeat_interleave(2, 1)
    assert_close(output, attend(*case.arguments, edits=made).double(), rtol=0, atol=1e-5)


@pytest.mark.parametrize("edit", [edit for edit in MADE if not isinstance(edit, (edits.KnockOut, edits.ReplaceRows))])
def test_rows_of_padding_stay_what_the_model_makes_of_them(edit: Edit) -> None:
    key_valid = torch.arange(11) >= torch.tensor([[0], [4]])
    case = Case(*tensors(n_queries=11, n_keys=11), Mask(causal=True, key_valid=key_valid))
    scores, pattern = as_a_model_has_it(case)
    changed, _ = read_pattern(scores, pattern, mask_seen(case, scores), (), [edit])
    assert_close(changed[1, :, :4], pattern[1, :, :4], rtol=0, atol=0)
    assert not torch.equal(changed[1, :, 4:], pattern[1, :, 4:])


def test_edits_pass_gradients() -> None:
    case = Case(*tensors(dtype=torch.float64), Mask(causal=True))
    scores, _ = as_a_model_has_it(case)
    logits = torch.zeros(7, requires_grad=True)
    scores.requires_grad_()
    made = [edits.AddLogits({0: logits})]
    changed, _ = read_pattern(scores, scores.softmax(-1), mask_seen(case, scores), (), made)
    weights = torch.arange(7.0)
    found = torch.autograd.grad((changed * weights).sum(), (scores, logits))
    expected = torch.autograd.grad((scores.softmax(-1) * weights).sum(), scores)[0]
    assert_close(found[0], expected, rtol=0, atol=1e-5)
    assert_close(found[1], expected[:, 0].sum((0, 1)), rtol=0, atol=1e-5)


@settings(max_examples=50, deadline=None)
@given(cases(orders=("free", "causal", "window", "causal window")))
def test_who_may_read_whom_is_seen_in_the_scores(case: Case) -> None:
    case = replace(case, mask=replace(case.mask, sinks=None))
    scores, _ = as_a_model_has_it(case)
    mask = mask_seen(case, scores)
    assert isinstance(mask.allowed, Tensor)
    assert (mask.allowed == case.reference.permitted.any(1, keepdim=True)).all()
    infinite = scores.masked_fill(~case.reference.permitted, float("-inf"))
    again = mask_seen(case, infinite).allowed
    assert isinstance(again, Tensor)
    assert (again == mask.allowed).all()


def test_a_model_without_padding_needs_no_key_valid() -> None:
    scores, _ = as_a_model_has_it(Case(*tensors(), Mask(causal=True)))
    assert mask_of_scores(scores, None, cross=False).key_valid is None
    assert mask_of_scores(scores, torch.ones(2, 7, dtype=torch.bool), cross=True).key_valid is None
    assert mask_of_scores(scores, None, cross=True).cross


def test_what_is_out_of_reach_is_refused() -> None:
    case = Case(*tensors(), Mask(causal=True))
    scores, pattern = as_a_model_has_it(case)
    site = Site("blocks.3.attn", 3)
    for probe in (probes.NormWeighted(probes.MaxWeight()), probes.GradientTimesWeight()):
        with pytest.raises(ValueError, match=r"its own attention keeps to itself at blocks.3.attn"):
            read_pattern(scores, pattern, case.mask, [probe], site=site)
    for edit in (edits.ScaleExponent({0: 0.5}), edits.ReplaceZ({0: torch.zeros(3)})):
        with pytest.raises(ValueError, match="cannot be made on a pattern that the model has built itself"):
            read_pattern(scores, pattern, case.mask, (), [edit])
    with pytest.raises(IndexError, match=r"site blocks.3.attn has heads 0 … 5"):
        read_pattern(scores, pattern, case.mask, (), [edits.Uniform([(3, 6)])], site)
