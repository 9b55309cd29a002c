"""Every probe of single rows against the same statistic taken with loops from the reference's whole pattern."""

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor
from torch.testing import assert_close

from interp.attention import Mask, Rows, attend, edits, probes
from interp.attention.blocked import chance
from interp.attention.probes import Probe, RowMean
from tests.interp.attention.cases import ORDERS, Case, cases, tensors
from tests.interp.attention.loops import (
    OfRow,
    check,
    distance_histogram,
    entropy,
    expected_distance,
    label_mass,
    label_match,
    max_weight,
    mean_over_rows,
    offset_mass,
    position_mass,
    seen,
    shape_of,
    strongest_offset,
    target_mass,
    uniform,
)

BLOCKS = st.sampled_from((1, 2, 3, 5, 7, None))

Made = tuple[RowMean, OfRow]


def row_probes(case: Case, seed: int) -> dict[str, Made]:
    """Each probe of single rows with arguments that fit a case, and what it should say."""
    batch, _, n_queries, n_keys = case.sizes
    g = torch.Generator().manual_seed(seed)
    labels = torch.randint(-1, 3, (batch, n_keys), generator=g)
    query_labels = torch.randint(-1, 3, (1, n_queries), generator=g) if case.mask.cross else None
    order = torch.rand(batch, n_queries, n_keys, generator=g).argsort(-1)[..., : min(3, n_keys)]
    targets = order.masked_fill(torch.rand(order.shape, generator=g) < 0.4, -1)
    one_for_all = labels[:1]
    made: dict[str, Made] = {
        "entropy": (probes.Entropy(), entropy),
        "max_weight": (probes.MaxWeight(), max_weight),
        "position_mass": (probes.PositionMass([0, 2, 99]), position_mass([0, 2, 99])),
        "later rows": (probes.PositionMass([0], first_position=2), position_mass([0], 2)),
        "label_mass": (probes.LabelMass(labels, 3), label_mass(labels, 3)),
        "label_mass of all": (probes.LabelMass(one_for_all[0].int(), 3), label_mass(one_for_all, 3)),
        "target_mass": (probes.TargetMass(targets), target_mass(targets)),
        "target_mass of all": (probes.TargetMass(targets[0].int()), target_mass(targets[:1])),
        **{
            f"label_match {shift}": (
                probes.LabelMatch(labels.int(), shift, query_labels), label_match(labels, shift, query_labels)
            ) for shift in (0, 1, -1, 50)
        },
    }  # fmt: skip
    if not case.mask.cross:
        made |= {
            "offset_mass": (probes.OffsetMass([0, 1, -1, 4, 40]), offset_mass([0, 1, -1, 4, 40])),
            "expected_distance": (probes.ExpectedDistance(), expected_distance),
            "distance_histogram": (probes.DistanceHistogram(4), distance_histogram(4)),
            "one bin": (probes.DistanceHistogram(1), distance_histogram(1)),
            "many bins": (probes.DistanceHistogram(9), distance_histogram(9)),
        }
    return made


@settings(max_examples=120, deadline=None)
@given(cases((torch.float32, torch.float64)), st.integers(0, 99), BLOCKS)
def test_probes_of_single_rows(case: Case, seed: int, block_rows: int | None) -> None:
    made = row_probes(case, seed)
    _, readings = attend(*case.arguments, probes=[probe for probe, _ in made.values()], block_rows=block_rows)
    look = seen(case)
    tolerance = case.tolerance(case.reference.scores) * case.sizes[3]
    for reading, (_, of_row) in zip(readings, made.values(), strict=True):
        check(reading, *mean_over_rows(look, of_row), tolerance)


@settings(max_examples=60, deadline=None)
@given(cases((torch.float64,), ORDERS[:-1]), BLOCKS)
def test_strongest_offset(case: Case, block_rows: int | None) -> None:
    asked = [probes.StrongestOffset(-3, 5), probes.StrongestOffset(-3, 5, where_possible=True)]
    _, (reading, possible) = attend(*case.arguments, probes=asked, block_rows=block_rows)
    check(reading, *mean_over_rows(seen(case), strongest_offset(-3, 5)), 1e-12)

    def of_row(look: Any, b: int, h: int, i: int, weights: list[float], permitted: list[bool]) -> list[Any]:
        """The same, where a key at the offset may be read."""
        shares = strongest_offset(-3, 5)(look, b, h, i, weights, permitted)
        keys = [look.at(i) - offset for offset in range(-3, 6)]
        return [s if 0 <= j < len(weights) and permitted[j] else None for s, j in zip(shares, keys, strict=True)]

    check(possible, *mean_over_rows(seen(case), of_row), 1e-12)


@settings(max_examples=100, deadline=None)
@given(cases((torch.float64,)), st.integers(0, 99))
def test_chance_is_the_same_statistic_of_uniform_attention(case: Case, seed: int) -> None:
    made = row_probes(case, seed)
    if not case.mask.cross:
        made["strongest_offset"] = (probes.StrongestOffset(-3, 5), strongest_offset(-3, 5))
    readings = chance(case.mask, shape_of(case), [probe for probe, _ in made.values()])
    look = uniform(case)
    for reading, (_, of_row) in zip(readings, made.values(), strict=True):
        assert reading is not None
        values, n = mean_over_rows(look, of_row)
        if values.shape[2]:
            found = reading.values.reshape(*reading.values.shape[:2], -1).expand(values.shape)
            assert_close(found, values, rtol=0, atol=1e-12, equal_nan=True)
            assert (reading.n.reshape(*reading.n.shape[:2], -1).expand(n.shape) == n).all()


def test_chance_in_closed_form() -> None:
    case = Case(*tensors(n_queries=10, n_keys=10), Mask(causal=True))
    asked = [
        probes.MaxWeight(),
        probes.Entropy(),
        probes.OffsetMass([1]),
        probes.PositionMass([0]),
        probes.NormWeighted(probes.MaxWeight()),
    ]
    *found, none = chance(case.mask, shape_of(case), asked)
    assert none is None
    rows = range(1, 11)
    expected = [
        sum(1 / n for n in rows) / 10,
        sum(math.log(n) for n in rows) / 10,
        sum(1 / n for n in rows[1:]) / 9,
        sum(1 / n for n in rows) / 10,
    ]
    assert [r.values.flatten().tolist() for r in found if r is not None] == [
        [pytest.approx(e, abs=1e-14)] for e in expected
    ]


# Precision, and how readings behave -----------------------------------------------------------------------------------


def test_a_mean_over_very_many_rows_loses_no_digits() -> None:
    n = 300_000
    query, key, value = tensors(1, 1, 1, 1, 3)
    one = [
        r.values for r in attend(query, key, value, Mask(cross=True), probes=[probes.MaxWeight(), probes.Entropy()])[1]
    ]
    _, many = attend(
        query.expand(-1, -1, n, -1), key, value, Mask(cross=True), probes=[probes.MaxWeight(), probes.Entropy()]
    )
    for single, reading in zip(one, many, strict=True):
        assert_close(reading.values, single, rtol=1e-7, atol=0)
        assert (reading.n == n).all()


@pytest.mark.parametrize("gap", [0.0, 0.1, 2.0, 10.0, 17.0, 30.0, 90.0, 1e4])
def test_entropy_of_sharp_rows(gap: float) -> None:
    """Two keys a gap apart: H = ln(1 + e^−g) + g / (1 + e^g), in float32, also beside keys that are forbidden."""
    query, value = torch.ones(1, 1, 1, 1), torch.ones(1, 1, 3, 1)
    key = torch.tensor([gap, 0.0, 50.0]).view(1, 1, 3, 1)
    mask = Mask(allowed=torch.tensor([[True, True, False]]))
    _, (reading,) = attend(query, key, value, mask, scale=1.0, probes=[probes.Entropy()])
    expected = math.log1p(math.exp(-gap)) + (gap / (1 + math.exp(gap)) if gap < 700 else 0.0)
    assert float(reading.values) == pytest.approx(expected, abs=2e-7)
    assert float(reading.values) >= 0


def test_small_shares_of_a_sink_keep_their_digits() -> None:
    """Whether the sink takes nearly all or nearly nothing, what is left is right to float32's last digits."""
    query, key, value = tensors(1, 1, 1, 3, 4)
    for sink in (-25.0, 25.0):
        case = Case(query, key, value, Mask(sinks=torch.tensor([sink]), cross=True))
        _, (rows, spread) = attend(*case.arguments, probes=[probes.SelectedRows([0, 1, 2]), probes.Entropy()])
        assert_close(rows.values, case.reference.pattern, rtol=1e-5, atol=0)
        check(spread, *mean_over_rows(seen(case), entropy), 1e-6)


def test_log_sum_exp() -> None:
    @dataclass(frozen=True, eq=False)
    class LogSumExp(RowMean):
        needs = frozenset({"scores"})

        def measure(self, rows: Rows) -> tuple[Tensor, None]:
            return rows.lse, None

    for sinks in (None, torch.tensor([0.0, 1, 2, 30, -30, 3])):
        case = Case(*tensors(), Mask(causal=True, sinks=sinks))
        _, (reading,) = attend(*case.arguments, probes=[LogSumExp()])
        scores = case.reference.scores.masked_fill(~case.reference.permitted, float("-inf"))
        if sinks is not None:
            scores = torch.cat([scores, sinks.double().view(1, 6, 1, 1).expand(2, -1, 7, -1)], -1)
        assert_close(reading.values, scores.logsumexp(-1).mean(-1), rtol=0, atol=1e-5)


@pytest.mark.parametrize("block_rows", [1, 2, None])
def test_weights_at_keys_of_ones_own(block_rows: int | None) -> None:
    """Keys before the window, after the query, and outside of all keys weigh nothing."""
    keys = torch.tensor([-1, 0, 3, 6, 7, 99]).view(1, 1, 1, 6)

    @dataclass(frozen=True, eq=False)
    class AtKeys(RowMean):
        def axes(self) -> tuple[tuple[str, list[int]], ...]:
            return (("key", keys.flatten().tolist()),)

        def measure(self, rows: Rows) -> tuple[Tensor, None]:
            weights, permitted = rows.at_keys(keys.expand(1, 1, rows.stop - rows.start, -1))
            assert (weights[~permitted.expand_as(weights)] == 0).all()
            return weights, None

    case = Case(*tensors(), Mask(causal=True, window=3))
    _, (reading,) = attend(*case.arguments, probes=[AtKeys()], block_rows=block_rows)
    expected = torch.zeros(2, 6, 6, dtype=torch.float64)
    expected[..., 1:4] = case.reference.pattern.mean(-2)[..., [0, 3, 6]]
    assert_close(reading.values, expected, rtol=0, atol=1e-6)


def test_the_documented_example_of_a_probe() -> None:
    @dataclass(frozen=True, eq=False)
    class Collision(RowMean):
        def measure(self, rows: Rows) -> tuple[Tensor, None]:
            return rows.pattern.square().sum(-1), None

    case = Case(*tensors(), Mask(causal=True))
    _, (plain, later) = attend(*case.arguments, probes=[Collision(), Collision(first_position=3)], block_rows=2)
    square = case.reference.pattern.square().sum(-1)
    assert_close(plain.values, square.mean(-1), rtol=0, atol=1e-6)
    assert_close(later.values, square[..., 3:].mean(-1), rtol=0, atol=1e-6)
    assert plain.probe.name == "collision"


def test_readings_know_where_they_come_from() -> None:
    _, readings = attend(*tensors(), probes=probes.basic(), site="somewhere")
    assert {r.site.name for r in readings if r.site is not None} == {"somewhere"}
    assert [r.probe.name for r in readings] == [
        "entropy",
        "max_weight",
        "offset_mass",
        "position_mass",
        "expected_distance",
    ]
    assert all(r.values is r.values for r in readings)
    assert all(r.values.dtype is torch.float64 for r in readings)


def test_where_no_row_is_eligible_there_is_no_value() -> None:
    key_valid = torch.ones(2, 7, dtype=torch.bool)
    key_valid[1] = False
    _, readings = attend(
        *tensors(), Mask(causal=True, key_valid=key_valid), probes=[*probes.basic(), probes.OffsetMass([99])]
    )
    for reading in readings:
        assert reading.values[1].isnan().all()
        assert (reading.n.expand_as(reading.values)[1] == 0).all()
    assert readings[-1].values.isnan().all()


def test_probes_see_edited_rows() -> None:
    _, (reading,) = attend(*tensors(), Mask(causal=True), probes=[probes.Entropy()], edits=[edits.Uniform()])
    assert_close(reading.values, torch.arange(1, 8).double().log().mean().expand(2, 6), rtol=0, atol=1e-6)


def test_a_probe_cannot_be_run_half() -> None:
    class Nothing(Probe):
        pass

    with pytest.raises(NotImplementedError, match="Nothing must define start"):
        attend(*tensors(), probes=[Nothing()])


class Bare(probes.RowMean):
    def measure(self, rows: Any) -> Any:
        return rows.pattern.sum(-1)


class Wide(probes.RowMean):
    def measure(self, rows: Any) -> Any:
        return rows.pattern, None


LONG, WORDS = torch.zeros(9, dtype=torch.long), torch.tensor([0, 1, 2, 3, 4, 5, 6])


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: probes.OffsetMass([]), "at least one offset"),
        (lambda: probes.PositionMass([]), "positions from 0 on"),
        (lambda: probes.PositionMass([-1]), "positions from 0 on"),
        (lambda: probes.LabelMass(), "LabelMass needs labels="),
        (lambda: probes.LabelMass(torch.tensor([0, 3]), 3), r"must lie in −1 … n_labels − 1 = 2; got 0 … 3"),
        (lambda: probes.LabelMatch(), "LabelMatch needs labels="),
        (lambda: probes.TargetMass(), "TargetMass needs targets="),
        (lambda: probes.TargetMass(torch.tensor([[2, 2]])), "names a key twice in one row"),
        (lambda: probes.TargetMass(LONG), r"\[query, target\] or \[batch, query, target\]; got \[9\]"),
        (lambda: probes.DistanceHistogram(0), "at least one bin"),
        (lambda: probes.StrongestOffset(2, 1), "first ≤ last"),
        (lambda: probes.StrongestEdges(0), "k of at least 1"),
        (lambda: probes.StrongestGroup(), "StrongestGroup needs groups="),
        (lambda: probes.StrongestGroup(torch.tensor([1, 0]), 2), "must not decrease"),
        (lambda: probes.StrongestGroup(torch.tensor([0, 2]), 2), "names word 2, n_groups is 2"),
        (lambda: attend(*tensors(), probes=[probes.LabelMass(LONG, 1)]), r"must be \[key\] .* 7 keys; got \[9\]"),
        (lambda: attend(*tensors(), probes=[probes.LabelMass(LONG.expand(3, 9)[:, :7], 1)]), r"got \[3, 7\]"),
        (lambda: attend(*tensors(), probes=[probes.TargetMass(LONG[:, None])]), r"7 queries; got \[9, 1\]"),
        (lambda: attend(*tensors(), probes=[probes.SelectedRows([7])]), r"must lie in 0 … 6; got \[7\]"),
        (lambda: attend(*tensors(), probes=[probes.LabelMatch(LONG[:7], 0, LONG)]), r"query_labels must be .* \[9\]"),
        (lambda: attend(*tensors(), probes=[Bare()]), r"rows\) must return .* got torch.float32 \[2, 6, 7\] for"),
        (lambda: attend(*tensors(), probes=[Wide()]), r"\[batch, head, row\], .* \[2, 6, 7, 7\], NoneType"),
        (
            lambda: attend(*tensors(), Mask(cross=True), probes=[probes.LabelMatch(LONG[:7])]),
            "LabelMatch reads distances between queries and keys",
        ),
        (
            lambda: attend(*tensors(), Mask(cross=True), probes=[probes.OffsetMass()]),
            "OffsetMass reads distances between queries and keys",
        ),
    ],
)  # fmt: skip
def test_what_probes_refuse(make: Callable[[], Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        make()
