"""Each edit alone: addresses, determinism, what is replayed, what is refused. Their formulas and gradients, all of them
together, are in test_blocked."""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor
from torch.testing import assert_close

from interp.attention import Block, Mask, Site, Trace, Traces, attend, edits, probes
from interp.attention.edits import Edit
from tests.interp.attention.cases import Case, all_rows, cases, tensors, with_edits

BLOCKS = st.sampled_from((1, 2, 3, 5, 7, None))
SITE = Site("blocks.3.attn", 3)


def pattern_under(case: Case, made: Sequence[Edit], block_rows: int | None = None, site: Site | None = None) -> Tensor:
    """The pattern after some edits; 0 where a row is empty or padding."""
    _, (reading,) = attend(*case.arguments, probes=[all_rows(case)], edits=made, block_rows=block_rows, site=site)
    return reading.values.nan_to_num(0.0)


# One by one, in closed form ------------------------------------------------------------------------------------------


def test_a_gate_of_zero_removes_a_head() -> None:
    plain = attend(*tensors())
    gated = attend(*tensors(), edits=[edits.GateHeads({1: 0.0, 4: 2.0})])
    assert (gated[:, 1] == 0).all()
    assert_close(gated[:, 4], 2 * plain[:, 4])
    assert (gated[:, [0, 2, 3, 5]] == plain[:, [0, 2, 3, 5]]).all()
    by_row = torch.arange(7.0)
    assert_close(
        attend(*tensors(), edits=[edits.GateHeads({1: by_row})], block_rows=2)[:, 1], plain[:, 1] * by_row[:, None]
    )
    by_sequence = torch.tensor([[0.0], [1.0]])
    assert_close(
        attend(*tensors(), edits=[edits.GateHeads({1: by_sequence})])[:, 1], plain[:, 1] * by_sequence[..., None]
    )


def test_a_gate_is_as_precise_as_what_it_gates() -> None:
    calls = tensors(dtype=torch.float64)
    assert_close(
        attend(*calls, edits=[edits.GateHeads({0: 0.1})])[:, 0], 0.1 * attend(*calls)[:, 0], rtol=1e-15, atol=0
    )


def test_z_is_replaced() -> None:
    g = torch.Generator().manual_seed(5)
    one, by_row, everything = (torch.randn(*shape, generator=g) for shape in ((3,), (7, 3), (2, 7, 3)))
    found = attend(*tensors(), edits=[edits.ReplaceZ({0: one, 3: by_row, 5: everything})], block_rows=3)
    assert (found[:, 0] == one).all()
    assert (found[:, 3] == by_row).all()
    assert (found[:, 5] == everything).all()


def test_temperature_and_exponent_are_scales() -> None:
    query, key, value = tensors(d_head=16, dtype=torch.float64)
    colder = attend(query, key, value, scale=0.5)
    assert_close(attend(query, key, value, scale=1.0, edits=[edits.Temperature(dict.fromkeys(range(6), 2.0))]), colder)
    assert_close(attend(query, key, value, edits=[edits.ScaleExponent(dict.fromkeys(range(6), 0.25))]), colder)
    assert_close(
        attend(query, key, value, scale=9.0, edits=[edits.ScaleExponent(dict.fromkeys(range(6), 0.5))]),
        attend(query, key, value),
    )
    mixed = attend(query, key, value, scale=1.0, edits=[edits.ScaleExponent({2: 0.25})])
    assert_close(mixed[:, 2], colder[:, 2])
    assert_close(mixed[:, :2], attend(query, key, value, scale=1.0)[:, :2])


def test_added_logits() -> None:
    case = Case(*tensors(), Mask(causal=True))
    doubled = pattern_under(case, [edits.AddLogits({0: torch.full((7, 1), math.log(2)) * (torch.arange(7) == 0)})], 3)
    plain = case.reference.pattern[:, 0]
    expected = plain * (1 + (torch.arange(7) == 0).double())
    assert_close(doubled[:, 0], expected / expected.sum(-1, keepdim=True), rtol=0, atol=1e-6)
    forbidden = torch.zeros(7, 7).masked_fill(torch.eye(7, dtype=torch.bool), float("-inf"))
    for lowest in (float("-inf"), torch.finfo(torch.float32).min):
        logits = forbidden.clamp_min(lowest)
        cut = pattern_under(case, [edits.AddLogits({0: logits, 1: logits})], 2)
        same = pattern_under(case, [edits.KnockOut([(i, i) for i in range(7)], [0, 1])], 2)
        assert (cut == same).all()
        assert (cut[:, :2].diagonal(dim1=-2, dim2=-1) == 0).all()
        assert (cut[:, :2].triu(1) == 0).all()


def test_cold_temperatures_forbid_no_more_and_no_less() -> None:
    """Forbidden scores divided by a small temperature overflow; the keys stay forbidden, the statistics finite."""
    case = Case(*tensors(), Mask(causal=True))
    made = [edits.Temperature(dict.fromkeys(range(6), 1e-3)), edits.KnockOut([(None, 0)])]
    output, readings = attend(*case.arguments, edits=made, probes=probes.basic(), block_rows=3)
    assert output.isfinite().all()
    assert (output[:, :, 0] == 0).all()
    assert readings[0].values.isfinite().all()
    assert (readings[0].n == 6).all()


def test_a_knocked_out_edge_leaves_its_weight_to_the_others() -> None:
    case = Case(*tensors(), Mask(causal=True))
    plain = case.reference.pattern
    as_tensor = torch.zeros(7, 7, dtype=torch.bool)
    as_tensor[:, 2], as_tensor[5, 4] = True, True
    for edges in ([(None, 2), (5, 4)], as_tensor, as_tensor.expand(2, 7, 7)):
        found = pattern_under(case, [edits.KnockOut(edges, heads=[1])], 3)
        left = plain[:, 1].clone()
        left[:, :, 2], left[:, 5, 4] = 0, 0
        assert_close(found[:, 1], left / left.sum(-1, keepdim=True), rtol=0, atol=1e-6)
        assert_close(found[:, 0], plain[:, 0], rtol=0, atol=1e-6)


def test_a_row_that_loses_all_its_keys_is_empty() -> None:
    output, (spread, received) = attend(
        *tensors(), Mask(causal=True), edits=[edits.KnockOut([(3, None)], [1]), edits.KnockOut([(0, 0)])],
        probes=[probes.MaxWeight(), probes.MassReceived()],
    )  # fmt: skip
    assert (output[:, 1, 3] == 0).all()
    assert (output[:, :, 0] == 0).all()
    assert spread.n.expand(2, 6)[0].tolist() == [6, 5, 6, 6, 6, 6]
    assert received.n[0, :, 0].tolist() == [6, 5, 6, 6, 6, 6]
    everything = attend(*tensors(), edits=[edits.KnockOut([(None, None)])])
    assert (everything == 0).all()


def test_uniform_rows_leave_knocked_out_edges_alone() -> None:
    case = Case(*tensors(), Mask(causal=True))
    found = pattern_under(case, [edits.Uniform([0]), edits.KnockOut([(None, 1)])], 3)
    expected = torch.ones(7, 7, dtype=torch.float64).tril()
    expected[:, 1] = 0
    assert_close(found[:, 0], (expected / expected.sum(-1, keepdim=True)).expand(2, 7, 7), rtol=0, atol=1e-7)
    permuted = pattern_under(case, [edits.Permute([0]), edits.KnockOut([(None, 1)])], 3)
    assert (permuted[:, 0, :, 1] == 0).all()


def test_uniform_rows_leave_a_sink_its_share() -> None:
    case = Case(*tensors(), Mask(causal=True, sinks=torch.arange(6.0)))
    _, (rows, spread) = attend(*case.arguments, probes=[all_rows(case), probes.Entropy()], edits=[edits.Uniform()])
    share = case.reference.sink_weight
    n = torch.arange(1, 8).double()
    assert_close(rows.values[..., 0], (1 - share) / n, rtol=0, atol=1e-6)
    expected = -torch.special.xlogy(1 - share, (1 - share) / n) + torch.special.entr(share)
    assert_close(spread.values, expected.mean(-1), rtol=0, atol=1e-5)


def test_what_a_replaced_row_leaves_is_the_sinks() -> None:
    row = torch.tensor([[0.5, 0.25, 0, 0, 0, 0, 0]])
    made = [edits.ReplaceRows({h: (range(1, 7), row.expand(6, 7)) for h in range(6)})]
    case = Case(*tensors(), Mask(causal=True, sinks=torch.arange(6.0)))
    _, (spread,) = attend(*case.arguments, probes=[probes.Entropy(first_position=1)], edits=made)
    assert_close(spread.values, torch.full((2, 6), 1.5 * math.log(2)).double(), rtol=0, atol=1e-6)


# Permutations --------------------------------------------------------------------------------------------------------


@settings(max_examples=80, deadline=None)
@given(cases((torch.float64,)), BLOCKS, st.integers(0, 5))
def test_permuted_rows_hold_the_same_weights_on_permitted_keys(case: Case, block_rows: int | None, seed: int) -> None:
    plain, permuted = pattern_under(case, [], block_rows), pattern_under(case, [edits.Permute(seed=seed)], block_rows)
    assert (plain.sort(-1).values == permuted.sort(-1).values).all()
    assert (permuted[~case.reference.permitted] == 0).all()
    assert_close(permuted, pattern_under(case, [edits.Permute(seed=seed)], 4), rtol=0, atol=1e-13)


def test_permutations_differ_by_seed_site_sequence_head_and_row() -> None:
    case = Case(torch.zeros(2, 3, 29, 4), *tensors(n_heads=3, n_queries=29, n_keys=29, d_head=4)[1:])
    weights = torch.linspace(0, 5, 29)
    logits = edits.AddLogits(dict.fromkeys(range(3), weights))
    first = pattern_under(case, [logits, edits.Permute()])
    orders = [tuple(row) for row in first.argsort(-1).flatten(0, 2).tolist()]
    assert len(set(orders)) == len(orders)
    others = [
        pattern_under(case, [logits, edits.Permute(seed=1)]),
        pattern_under(case, [logits, edits.Permute()], site=Site("a")),
        pattern_under(case, [logits, edits.Permute()], site=Site("b")),
    ]
    for i, one in enumerate([first, *others]):
        for other in others[i:]:
            assert (one != other).any()


def test_permutations_are_even() -> None:
    """Over many rows each weight lands on each key about equally often."""
    n, n_keys = 4000, 5
    query, (_, key, value) = torch.zeros(1, 1, n, 4), tensors(1, 1, 1, 1, n_keys, 4)
    logits = edits.AddLogits({0: torch.linspace(0, 6, n_keys)})
    _, (reading,) = attend(
        query, key, value, Mask(cross=True), probes=[probes.SelectedRows(range(n))], edits=[logits, edits.Permute()]
    )
    landed = reading.values[0, 0].argsort(-1)
    for rank in range(n_keys):
        share = landed[:, rank].bincount(minlength=n_keys) / n
        assert_close(share, torch.full((n_keys,), 1 / n_keys), rtol=0, atol=5 * math.sqrt(0.16 / n))


# Replaced rows and replayed runs --------------------------------------------------------------------------------------


def test_replaced_rows() -> None:
    case = Case(*tensors(), Mask(causal=True))
    row = torch.tensor([0.5, 0.25, 0.25, 0, 0, 0, 0])
    by_sequence = torch.stack([row, row.flip(0).roll(4)])[:, None]
    made = [edits.ReplaceRows({2: ([6, 3], torch.stack([row, row])), 4: (torch.tensor([5]), by_sequence)})]
    for block_rows in (1, 2, 4, None):
        found = pattern_under(case, made, block_rows)
        assert (found[:, 2, [3, 6]] == row).all()
        assert (found[:, 4, 5] == by_sequence[:, 0]).all()
        untouched = torch.ones(6, 7, dtype=torch.bool)
        untouched[2, [3, 6]], untouched[4, 5] = False, False
        assert_close(found[:, untouched], case.reference.pattern[:, untouched], rtol=0, atol=1e-6)


def trace_of(case: Case, name: str = SITE.name) -> Trace:
    scale = case.query.shape[-1] ** -0.5 if case.scale is None else case.scale
    return Trace(case.query, case.key, case.mask, scale, case.softcap, Site(name))


@settings(max_examples=60, deadline=None)
@given(cases((torch.float32, torch.float64)), BLOCKS)
def test_a_replayed_run_has_the_other_runs_pattern(case: Case, block_rows: int | None) -> None:
    g = torch.Generator().manual_seed(9)
    other = replace(case, query=torch.randn(case.query.shape, generator=g).to(case.query.dtype))
    replay = edits.Replay(Traces({SITE.name: trace_of(other)}))
    assert_close(pattern_under(case, [replay], block_rows, SITE), pattern_under(other, [], block_rows, SITE))
    if case.sizes[1] > 1:
        found = pattern_under(case, [replace(replay, heads=[(SITE.name, 1)])], block_rows, SITE)
        assert_close(found[:, 1], pattern_under(other, [], block_rows, SITE)[:, 1])
        assert_close(found[:, 0], pattern_under(case, [], block_rows, SITE)[:, 0])


def test_traces_yield_the_same_rows_of_several_sites() -> None:
    one, other = (Case(*tensors(seed=seed), Mask(causal=True)) for seed in (1, 2))
    traces = Traces({"one": trace_of(one, "one"), "other": trace_of(other, "other")})
    assert list(traces) == ["one", "other"]
    assert len(traces) == 2
    blocks = list(traces.row_blocks())
    for name, case in (("one", one), ("other", other)):
        rows = torch.cat([block[name].pattern for block in blocks], 2)
        assert_close(rows.double(), case.reference.pattern, rtol=0, atol=1e-6)
    assert list(traces.row_blocks([])) == []
    assert [list(block) for block in traces.row_blocks(["other"])] == [["other"]]
    scored = next(traces.row_blocks(["one"], keep_scores=True))["one"]
    assert scored.scores is not None
    assert traces["one"].nbytes == one.query.nbytes + one.key.nbytes
    with pytest.raises(KeyError, match="no queries and keys were kept for site 'two'; kept: one, other"):
        traces["two"]
    uneven = Traces({"one": trace_of(one), "short": trace_of(Case(*tensors(n_queries=3), Mask(causal=True)))})
    with pytest.raises(ValueError, match="same number of queries"):
        next(uneven.row_blocks())


def test_what_cannot_be_replayed() -> None:
    case = Case(*tensors(), Mask(causal=True))
    replay = edits.Replay(Traces({"one": trace_of(case), "other": trace_of(case)}))
    with pytest.raises(ValueError, match="no site, so which of several kept sites"):
        pattern_under(case, [replay])
    assert_close(pattern_under(case, [edits.Replay(Traces({"one": trace_of(case)}))]), pattern_under(case, []))
    with pytest.raises(KeyError, match=r"kept for site 'blocks.3.attn'"):
        pattern_under(case, [replay], site=SITE)
    longer = Traces({SITE.name: trace_of(Case(*tensors(n_queries=9, n_keys=9), Mask()))})
    with pytest.raises(ValueError, match="kept run read keys 0 … 9, this one reads 0 … 7"):
        pattern_under(Case(*tensors()), [edits.Replay(longer)], site=SITE)
    fewer = Traces({SITE.name: trace_of(Case(*tensors(batch=1), Mask(causal=True)))})
    with pytest.raises(ValueError, match="same number of sequences"):
        pattern_under(case, [edits.Replay(fewer)], site=SITE)


# Composition, addresses ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "made",
    [
        [edits.Temperature({0: 2.0}), edits.AddLogits({0: torch.arange(7.0)})],
        [edits.AddLogits({0: torch.arange(7.0)}), edits.Temperature({0: 2.0})],
        [edits.ReplaceRows({0: ([3], torch.tensor([[1.0, 0, 0, 0, 0, 0, 0]]))}), edits.Uniform([0])],
        [edits.Uniform([0]), edits.ReplaceRows({0: ([3], torch.tensor([[1.0, 0, 0, 0, 0, 0, 0]]))})],
        [edits.GateHeads({0: 2.0}), edits.ReplaceZ({0: torch.ones(3)})],
        [edits.ReplaceZ({0: torch.ones(3)}), edits.GateHeads({0: 2.0})],
    ],
)
def test_edits_of_a_stage_compose_in_the_order_given(made: list[Edit]) -> None:
    case = Case(*tensors(), Mask(causal=True))
    found, turned = (attend(*case.arguments, edits=order, block_rows=2) for order in (made, made[::-1]))
    assert_close(found.double(), with_edits(case, made).output, rtol=0, atol=1e-5)
    assert (found[:, 0] - turned[:, 0]).abs().max() > 0.1


def test_stages_follow_the_computation_whatever_the_order() -> None:
    case = Case(*tensors(), Mask(causal=True))
    made = [edits.GateHeads({0: 3.0}), edits.Uniform([0]), edits.KnockOut([(None, 0)]), edits.ScaleExponent({1: 0.1})]
    assert (attend(*case.arguments, edits=made) == attend(*case.arguments, edits=made[::-1])).all()


@pytest.mark.parametrize("address", [4, (3, 4), ("blocks.3.attn", 4)])
def test_three_ways_to_address_a_head(address: Any) -> None:
    found = attend(*tensors(), edits=[edits.GateHeads({address: 0.0})], site=SITE)
    assert [bool((found[:, head] == 0).all()) for head in range(6)] == [False] * 4 + [True, False]
    for made in (edits.Uniform([address]), edits.Permute([address]), edits.KnockOut([(None, 0)], [address])):
        changed = attend(*tensors(), edits=[made], site=SITE) != attend(*tensors())
        assert [bool(changed[:, head].any()) for head in range(6)] == [False] * 4 + [True, False]


def test_other_layers_are_left_alone() -> None:
    made = [edits.GateHeads({(2, 0): 0.0, ("blocks.2.attn", 1): 0.0}), edits.Uniform([(7, 0)])]
    assert (attend(*tensors(), edits=made, site=SITE) == attend(*tensors())).all()
    mixed = edits.GateHeads({(2, 0): 0.0, (3, 1): 0.0})
    assert mixed.addresses() == ((2, 0), (3, 1))
    here = mixed.at(SITE)
    assert here is not None
    assert here.heads == {1: 0.0}
    assert edits.Uniform().addresses() == ()


def test_an_edit_of_ones_own() -> None:
    @dataclass(frozen=True, eq=False)
    class KeepBest(Edit):
        """All weight on the strongest key."""

        heads: Any = None
        stage: ClassVar[Any] = "pattern"

        def apply(self, x: Tensor, block: Block) -> Tensor:
            return torch.nn.functional.one_hot(x.argmax(-1), x.shape[-1]).to(x) * block.readable

    @dataclass(frozen=True, eq=False)
    class Instead(Edit):
        """Scores given once for all, as an expanded tensor that must not be written to."""

        given: Tensor
        heads: Any = None
        stage: ClassVar[Any] = "scores"

        def apply(self, x: Tensor, block: Block) -> Tensor:
            return self.given[: block.high].expand_as(x)

    case = Case(*tensors(), Mask(causal=True))
    best = pattern_under(case, [KeepBest()], 3)
    assert (best.argmax(-1) == case.reference.pattern.argmax(-1)).all()
    assert (best.sum(-1) == 1).all()
    scores = torch.arange(7.0)
    expected = scores.expand(7, 7).masked_fill(torch.ones(7, 7).triu(1) > 0, float("-inf")).softmax(-1)
    assert_close(pattern_under(case, [Instead(scores)], 3), expected.double().expand(2, 6, 7, 7), rtol=0, atol=1e-6)
    assert (scores == torch.arange(7.0)).all()


# What is refused -----------------------------------------------------------------------------------------------------

YES = torch.ones(7, 7, dtype=torch.bool)
ROW = torch.tensor([[1.0, 0, 0, 0, 0, 0, 0]])


@pytest.mark.parametrize(
    ("edit", "message"),
    [
        (edits.GateHeads({0: torch.ones(6)}), "GateHeads: dimension query must be 1 or 7"),
        (edits.GateHeads({0: torch.ones(3, 7)}), "GateHeads: dimension batch must be 1 or 2"),
        (edits.GateHeads({0: torch.ones(2, 1, 7)}), r"broadcastable to \[batch, query\]; got \[2, 1, 7\]"),
        (edits.ReplaceZ({0: torch.ones(5, 3)}), "ReplaceZ: dimension query must be 1 or 7"),
        (edits.AddLogits({0: torch.ones(7, 6)}), "AddLogits: dimension key must be 1 or 7"),
        (edits.AddLogits({0: torch.ones(6, 7)}), "AddLogits: dimension query must be 1 or 7"),
        (edits.KnockOut(YES[:, :5]), "KnockOut: dimension key must be 1 or 7"),
        (edits.KnockOut(YES[None, None]), r"broadcastable to \[batch, query, key\]"),
        (edits.Temperature({0: 0.0}), r"above 0; got \[0.0\] for heads \[0\]"),
        (edits.Temperature({0: torch.ones(2)}), r"one number a head; got shape \[2\] for 0"),
        (edits.ScaleExponent({0: torch.ones(2)}), "one number a head"),
        (edits.ReplaceRows({0: ([1], ROW.flip(-1))}), "weight of head 0 on a key that its row may not read"),
        (edits.ReplaceRows({0: ([7], ROW)}), r"must lie in 0 … 6, each named once; got \[7\]"),
        (edits.ReplaceRows({0: ([-1], ROW)}), "must lie in 0 … 6"),
        (edits.ReplaceRows({0: ([1, 1], ROW.expand(2, 7))}), "each named once"),
        (edits.ReplaceRows({0: ([1, 2], ROW)}), "dimension rows must be 1 or 2"),
        (edits.ReplaceRows({0: ([1], ROW[:, :5])}), "dimension key must be 1 or 7"),
        (edits.ReplaceRows({0: ([1], ROW.expand(3, 1, 7))}), "dimension batch must be 1 or 2"),
        (edits.ReplaceRows({0: ([1], ROW[0])}), r"weights \[n, key\] or \[batch, n, key\]; got \[1\] and \[7\]"),
        (edits.GateHeads({(3, 0): 1.0}), "names a layer or site, but this attention call has none; use 0"),
    ],
    ids=lambda value: value if isinstance(value, str) else type(value).__name__,
)
def test_edits_that_do_not_fit(edit: Edit, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        attend(*tensors(), Mask(causal=True), edits=[edit])


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (
            lambda: attend(*tensors(), edits=[edits.GateHeads({6: 0.0})]),
            r"this attention call has heads 0 … 5; there is no head 6",
        ),
        (
            lambda: attend(*tensors(), edits=[edits.Uniform([(3, -1)])], site=SITE),
            r"site blocks.3.attn has heads 0 … 5",
        ),
        (lambda: attend(*tensors(), edits=[edits.KnockOut([(0, 7)])]), "key must lie in 0 … 6; got 7"),
        (lambda: attend(*tensors(), edits=[edits.KnockOut([(-1, 0)])]), "query must lie in 0 … 6; got -1"),
    ],
)
def test_heads_and_edges_that_do_not_exist(make: Callable[[], Any], message: str) -> None:
    with pytest.raises(IndexError, match=message):
        make()


def test_more_that_is_refused() -> None:
    with pytest.raises(ValueError, match="names a head twice"):
        attend(*tensors(), edits=[edits.GateHeads({(3, 0): 1.0, ("blocks.3.attn", 0): 2.0})], site=SITE)
    with pytest.raises(ValueError, match="must be boolean"):
        edits.KnockOut(torch.ones(7, 7))
    with pytest.raises(NotImplementedError, match="must define apply"):
        attend(*tensors(), edits=[_Nothing()])
    for needs_heads in (
        edits.GateHeads,
        edits.ReplaceZ,
        edits.Temperature,
        edits.AddLogits,
        edits.ReplaceRows,
        edits.Replay,
    ):
        with pytest.raises(TypeError, match="missing 1 required positional argument"):
            needs_heads()  # type: ignore[call-arg]


@dataclass(frozen=True, eq=False)
class _Nothing(Edit):
    heads: Any = None


def test_weight_on_padding_is_refused() -> None:
    key_valid = torch.ones(2, 7, dtype=torch.bool)
    key_valid[1, 0] = False
    edit = edits.ReplaceRows({0: ([3], ROW)})
    attend(*tensors(), Mask(key_valid=torch.ones(2, 7, dtype=torch.bool)), edits=[edit])
    with pytest.raises(ValueError, match="may not read"):
        attend(*tensors(), Mask(key_valid=key_valid), edits=[edit])


def test_edits_given_the_wrong_way_round_say_how_they_are_given() -> None:
    for edit in (edits.GateHeads, edits.Temperature, edits.AddLogits, edits.ReplaceRows, edits.ReplaceZ):
        with pytest.raises(ValueError, match=rf"{edit.__name__}\(\{{\(layer, head\): …\}}\)"):
            edit([(0, 1)])  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="edges and heads apart"):
        edits.KnockOut({(0, 1): [(5, 2)]})  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="heads is a collection of heads"):
        edits.Uniform(3)  # type: ignore[arg-type]
