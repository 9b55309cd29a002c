"""Every probe of whole sequences, and those that need values or gradients, against loops over the whole pattern."""

import math
from dataclasses import replace
from types import SimpleNamespace

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor
from torch.testing import assert_close

from interp.attention import Mask, Site, Trace, Traces, attend, edits, probes
from interp.attention.blocked import chance
from tests.interp.attention.cases import ORDERS, Case, cases, tensors
from tests.interp.attention.loops import (
    Seen,
    check,
    entropy,
    max_weight,
    mean_over_rows,
    position_mass,
    seen,
    shape_of,
    uniform,
)

BLOCKS = st.sampled_from((1, 2, 3, 5, 7, None))


@settings(max_examples=60, deadline=None)
@given(cases((torch.float64,)), BLOCKS)
def test_mass_received(case: Case, block_rows: int | None) -> None:
    _, (reading,) = attend(*case.arguments, probes=[probes.MassReceived()], block_rows=block_rows)
    for look, found in (
        (seen(case), reading),
        (uniform(case), chance(case.mask, shape_of(case), [probes.MassReceived()])[0]),
    ):
        assert found is not None
        read = look.permitted & look.valid[..., None]
        expected = (look.pattern * read).sum(2) / read.sum(2)
        assert_close(found.values, expected, rtol=0, atol=1e-12, equal_nan=True)
        assert (found.n == read.sum(2)).all()


def strongest_edges(look: Seen, k: int) -> Tensor:
    batch, n_heads, n_queries, n_keys = look.case.sizes
    found = torch.zeros(batch, n_heads, k, 3, dtype=torch.float64)
    found[..., 1:] = -1
    for b in range(batch):
        for h in range(n_heads):
            edges = [
                (-float(look.pattern[b, h, i, j]), i, j)
                for i in range(n_queries) for j in range(n_keys) if look.valid[b, h, i] and look.pattern[b, h, i, j] > 0
            ]  # fmt: skip
            for rank, (weight, query, key) in enumerate(sorted(edges)[:k]):
                found[b, h, rank] = torch.tensor([-weight, query, key], dtype=torch.float64)
    return found


@settings(max_examples=25, deadline=None)
@given(cases((torch.float64,)), st.sampled_from((1, 4, 300)), BLOCKS)
def test_strongest_edges(case: Case, k: int, block_rows: int | None) -> None:
    _, (reading,) = attend(*case.arguments, probes=[probes.StrongestEdges(k)], block_rows=block_rows)
    expected = strongest_edges(seen(case), k)
    # Weights that differ in their last digits alone may change places, except the ones that are 1 or 0
    weight = expected[..., 0]
    near = (weight[..., :, None] - weight[..., None, :]).abs() < 1e-9
    settled = (near.sum(-1) == 1) & (torch.arange(k) < k - 1) | (weight == 1) | (weight == 0)
    assert_close(reading.values[..., 0], expected[..., 0], rtol=0, atol=1e-12)
    assert (reading.values[settled][:, 1:] == expected[settled][:, 1:]).all()
    assert (reading.n[..., 0] == (expected[..., 1] >= 0)).all()


@pytest.mark.parametrize("block_rows", [1, 2, 3, 7, None])
def test_of_equal_edges_the_earliest_are_kept(block_rows: int | None) -> None:
    case = Case(torch.zeros(2, 3, 9, 4), *tensors(n_heads=3, n_queries=9, n_keys=9, d_head=4)[1:], Mask(causal=True))
    _, (reading,) = attend(*case.arguments, probes=[probes.StrongestEdges(8)], block_rows=block_rows)
    edges = reading.values[1, 2, :, 1:].int().tolist()
    assert edges == [[0, 0], [1, 0], [1, 1], [2, 0], [2, 1], [2, 2], [3, 0], [3, 1]]
    (by_chance,) = chance(case.mask, shape_of(case), [probes.StrongestEdges(8)])
    assert by_chance is not None
    assert by_chance.values.shape == (2, 3, 8, 3)
    assert by_chance.values[0, 0, :, 1:].int().tolist() == edges


@settings(max_examples=60, deadline=None)
@given(cases((torch.float64,)), BLOCKS)
def test_selected_rows(case: Case, block_rows: int | None) -> None:
    queries = sorted({0, case.sizes[2] - 1, case.sizes[2] // 2}, reverse=True)
    _, (reading,) = attend(*case.arguments, probes=[probes.SelectedRows(queries)], block_rows=block_rows)
    look = seen(case)
    valid = look.valid[:, :, queries]
    assert (reading.n[..., 0].bool() == valid).all()
    assert_close(reading.values[valid], look.pattern[:, :, queries][valid], rtol=0, atol=1e-12)
    assert reading.values[~valid].isnan().all()


@settings(max_examples=40, deadline=None)
@given(cases((torch.float32, torch.float64)), BLOCKS)
def test_head_divergence(case: Case, block_rows: int | None) -> None:
    _, (reading,) = attend(*case.arguments, probes=[probes.HeadDivergence()], block_rows=block_rows)
    look = seen(case)
    outcomes = torch.cat([look.pattern, look.sink[..., None]], -1)
    one, other = outcomes[:, :, None], outcomes[:, None]
    middle = (one + other) / 2
    divergence = sum(torch.special.xlogy(p, p / middle.clamp_min(1e-300)).sum(-1) / 2 for p in (one, other))
    valid = look.valid[:, :, None] & look.valid[:, None]
    expected = (divergence * valid).sum(-1) / valid.sum(-1)
    assert_close(reading.values, expected, rtol=0, atol=case.tolerance(case.reference.scores), equal_nan=True)
    assert (reading.n.expand(valid.shape[:3]) == valid.sum(-1)).all()
    found = reading.values[~reading.values.isnan()]
    assert (found >= 0).all()
    assert (found <= math.log(2) + 1e-6).all()


def strongest_group(look: Seen, groups: Tensor, n_groups: int) -> Tensor:
    batch, n_heads, n_queries, n_keys = look.case.sizes
    found = torch.zeros(batch, n_heads, n_groups, 2, dtype=torch.float64)
    found[..., 0] = -1
    for b in range(batch):
        of_key = groups[b % len(groups)].tolist()
        for h in range(n_heads):
            for word in range(n_groups):
                own = [
                    i for i in range(n_queries)
                    if 0 <= look.at(i) < n_keys and of_key[look.at(i)] == word and look.valid[b, h, i]
                ]  # fmt: skip
                by_word = [
                    sum(float(look.pattern[b, h, i, j]) for i in own for j in range(n_keys) if of_key[j] == other)
                    / max(len(own), 1)
                    for other in range(n_groups)
                ]
                by_word[word] = 0.0
                if max(by_word) > 0:
                    found[b, h, word] = torch.tensor([by_word.index(max(by_word)), max(by_word)], dtype=torch.float64)
    return found


def words_of(batch: int, n_keys: int, g: torch.Generator) -> Tensor:
    """Words of one to three tokens with separators between some, other ones in each sequence."""
    steps = (torch.rand(batch, n_keys, generator=g) < 0.5).long()
    words = steps.cumsum(-1) - steps[:, :1]
    return words.masked_fill(torch.rand(batch, n_keys, generator=g) < 0.2, -1)


@settings(max_examples=40, deadline=None)
@given(cases((torch.float64,), ORDERS[:-1]), st.integers(0, 99), BLOCKS)
def test_strongest_group(case: Case, seed: int, block_rows: int | None) -> None:
    batch, _, _, n_keys = case.sizes
    groups = words_of(batch, n_keys, torch.Generator().manual_seed(seed))
    probe = probes.StrongestGroup(groups.int(), n_keys)
    _, (reading,) = attend(*case.arguments, probes=[probe], block_rows=block_rows)
    assert_close(reading.values, strongest_group(seen(case), groups, n_keys), rtol=0, atol=1e-12)
    assert (reading.n[..., 0].bool() == (reading.values[..., 0] >= 0)).all()


def test_chance_of_the_strongest_group_knows_each_sequence() -> None:
    """The mask is the same for all sequences, their words are not."""
    case = Case(*tensors(n_queries=6, n_keys=6), Mask(causal=True))
    groups = torch.tensor([[0, 0, 1, 1, 1, 2], [0, 1, 1, 1, 2, 2]])
    (reading,) = chance(case.mask, shape_of(case), [probes.StrongestGroup(groups, 3)])
    assert reading is not None
    assert_close(reading.values, strongest_group(uniform(case), groups, 3), rtol=0, atol=1e-12)


def test_a_split_word_goes_over_block_borders() -> None:
    """Two sequences whose words end at different rows; each word's rows are averaged, its tokens summed."""
    groups = torch.tensor([[0, 0, 0, 1, 1], [0, 1, 1, 1, 2]])
    case = Case(*tensors(n_heads=2, n_kv_heads=2, n_queries=5, n_keys=5, dtype=torch.float64))
    pattern = case.reference.pattern
    for block_rows in range(1, 6):
        _, (reading,) = attend(*case.arguments, probes=[probes.StrongestGroup(groups, 3)], block_rows=block_rows)
        assert_close(
            reading.values[0, 1, 0], torch.stack([torch.ones(()).double(), pattern[0, 1, :3, 3:].sum(-1).mean()])
        )
        to_others = torch.stack([pattern[1, 0, 1:4, 0].mean(), pattern[1, 0, 1:4, 4].mean()])
        assert_close(reading.values[1, 0, 1, 1], to_others.max())
        assert reading.values[0, 0, 2].tolist() == [-1, 0]


# Probes that need values, weights or gradients ------------------------------------------------------------------------


def site_with(w_o: Tensor) -> Site:
    return Site("blocks.0.attn", 0, lambda: SimpleNamespace(W_O=w_o))


@settings(max_examples=50, deadline=None)
@given(cases((torch.float32, torch.float64)), BLOCKS)
def test_norm_weighted(case: Case, block_rows: int | None) -> None:
    n_heads = case.sizes[1]
    w_o = torch.randn(n_heads, 3, 7, generator=torch.Generator().manual_seed(0))
    asked = [
        probes.NormWeighted(probes.MaxWeight()),
        probes.NormWeighted(probes.PositionMass([0])),
        probes.NormWeighted(probes.Entropy()),
    ]
    _, readings = attend(*case.arguments, probes=asked, block_rows=block_rows, site=site_with(w_o))
    value = case.value.double().repeat_interleave(n_heads // case.value.shape[1], 1)
    look = seen(case)
    weighted = look.pattern * (value @ w_o.double()).norm(dim=-1)[:, :, None]
    weighted = weighted / weighted.sum(-1, keepdim=True).clamp_min(1e-300)
    look = replace(look, pattern=weighted, sink=torch.zeros_like(look.sink))
    tolerance = 10 * case.tolerance(case.reference.scores)
    for reading, of_row in zip(readings, (max_weight, position_mass([0]), entropy), strict=True):
        check(reading, *mean_over_rows(look, of_row), tolerance)


def test_norm_weighted_says_what_it_needs() -> None:
    with pytest.raises(ValueError, match="needs the site's W_O"):
        attend(*tensors(), probes=[probes.NormWeighted(probes.MaxWeight())])
    for wrong in (probes.GradientTimesWeight(), probes.StrongestEdges()):
        with pytest.raises(ValueError, match="statistic of single rows"):
            probes.NormWeighted(wrong)  # type: ignore[arg-type]
    assert probes.NormWeighted(probes.MaxWeight()).name == "norm_weighted_max_weight"
    assert probes.NormWeighted(probes.OffsetMass([3])).axes() == (("offset", [3]),)
    assert probes.NormWeighted(probes.OffsetMass([3])).aligned


@settings(max_examples=50, deadline=None)
@given(cases((torch.float64,)), BLOCKS)
def test_gradient_times_weight(case: Case, block_rows: int | None) -> None:
    query = case.query.requires_grad_()
    output, (reading,) = attend(*case.arguments, probes=[probes.GradientTimesWeight()], block_rows=block_rows)
    upstream = torch.linspace(-1, 2, output.numel(), dtype=torch.float64).view_as(output)
    with pytest.raises(RuntimeError, match="only after backward"):
        _ = reading.values
    output.backward(upstream)
    look = seen(replace(case, query=query.detach()))
    value = case.value.repeat_interleave(case.sizes[1] // case.value.shape[1], 1)
    product = (look.pattern * (upstream @ value.mT)).abs().sum(-1)
    expected = (product * look.valid).sum(-1) / look.valid.sum(-1)
    assert_close(reading.values, expected, rtol=0, atol=1e-11, equal_nan=True)


def test_gradients_are_read_of_edited_patterns_too() -> None:
    """A uniform pattern depends on nothing, and the loss on it; a replaced z does not depend on the pattern."""
    query, key, value = (t.requires_grad_() for t in tensors(dtype=torch.float64))
    made = [edits.Uniform([1]), edits.ReplaceZ({2: torch.zeros(3)}), edits.GateHeads({3: 0.5})]
    output, (reading,) = attend(query, key, value, edits=made, probes=[probes.GradientTimesWeight()], block_rows=3)
    output.sum().backward()
    wide = value.detach().repeat_interleave(2, 1).sum(-1)
    assert_close(reading.values[:, 1], wide[:, 1].abs().mean(-1))
    assert (reading.values[:, 2] == 0).all()
    pattern = Case(query.detach(), key.detach(), value.detach()).reference.pattern
    assert_close(reading.values[:, 3], (0.5 * pattern[:, 3] * wide[:, 3, None]).abs().sum(-1).mean(-1))

    everywhere = [edits.Uniform()]
    output, (reading,) = attend(
        query, key, value, edits=everywhere, probes=[probes.GradientTimesWeight()], block_rows=3
    )
    output.sum().backward()
    assert_close(reading.values, wide.abs().mean(-1))
    constant = [edits.Replay(Traces({"": Trace(query.detach(), key.detach(), Mask(), 0.0, None)}))]
    output, (reading,) = attend(query, key, value, edits=constant, probes=[probes.GradientTimesWeight()], block_rows=3)
    output.sum().backward()
    assert_close(reading.values, wide.abs().mean(-1))
    nothing = [edits.ReplaceZ({h: torch.zeros(3) for h in range(6)})]
    output, (reading,) = attend(query, key, value, edits=nothing, probes=[probes.GradientTimesWeight()], block_rows=3)
    output.sum().backward()
    assert (reading.values == 0).all()


def test_a_second_backward_pass_is_read_anew() -> None:
    query, key, value = (t.requires_grad_() for t in tensors())
    output, (early, late) = attend(
        query, key, value, probes=[probes.MaxWeight(), probes.GradientTimesWeight()], block_rows=2
    )
    output.sum().backward(retain_graph=True)
    first, before = late.values.clone(), early.values.clone()
    (3 * output).sum().backward()
    assert_close(late.values, 3 * first)
    assert_close(early.values, before)
    assert (late.n == 7).all()
