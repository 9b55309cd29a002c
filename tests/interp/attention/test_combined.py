"""Probes that combine or restrict others, against loops over whole patterns."""

import math
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor
from torch.testing import assert_close

from interp.attention import Mask, Site, attend, probes
from interp.attention.blocked import chance
from tests.interp.attention.cases import ORDERS, Case, cases, tensors
from tests.interp.attention.loops import (
    OfRow,
    Seen,
    check,
    entropy,
    expected_distance,
    label_mass,
    max_weight,
    mean_over_rows,
    offset_mass,
    position_mass,
    seen,
    shape_of,
    uniform,
)

BLOCKS = st.sampled_from((1, 2, 3, 5, 7, None))


def relative_entropy(look: Seen, b: int, h: int, i: int, weights: list[float], permitted: list[bool]) -> list[Any]:
    n = sum(permitted) + (float(look.sink[b, h, i]) > 0)
    return [entropy(look, b, h, i, weights, permitted)[0] / math.log(n) if sum(permitted) > 1 else None]  # type: ignore


def set_mass(members: Tensor) -> OfRow:
    def of_row(look: Seen, b: int, h: int, i: int, weights: list[float], permitted: list[bool]) -> list[Any]:
        sets = [[j for j, inside in enumerate(one) if inside] for one in members[b % len(members)].T.tolist()]
        return [math.fsum(weights[j] for j in keys) if any(permitted[j] for j in keys) else None for keys in sets]

    return of_row


def largest_among(keys: Tensor) -> OfRow:
    def of_row(look: Seen, b: int, h: int, i: int, weights: list[float], permitted: list[bool]) -> list[Any]:
        counted = [j for j in range(len(weights)) if keys[b % len(keys), j]]
        return [max(weights[j] for j in counted) if any(permitted[j] for j in counted) else None]

    return of_row


def without(keys: Tensor, inner: OfRow) -> OfRow:
    def of_row(look: Seen, b: int, h: int, i: int, weights: list[float], permitted: list[bool]) -> Any:
        left = [0.0 if keys[b % len(keys), j] else p for j, p in enumerate(weights)]
        total = math.fsum(left)
        no_sink = Seen(look.case, look.pattern, look.permitted, torch.zeros_like(look.sink))
        return inner(no_sink, b, h, i, [p / total for p in left], permitted) if total > 0 else [None]

    return of_row


def signed_histogram(n_bins: int) -> OfRow:
    def of_row(look: Seen, b: int, h: int, i: int, weights: list[float], permitted: list[bool]) -> list[Any]:
        bins = [0.0] * (2 * n_bins - 1)
        for j, p in enumerate(weights):
            away = look.at(i) - j
            place = min(abs(away).bit_length(), n_bins - 1)
            bins[place if away >= 0 or not place else n_bins - 1 + place] += p
        return list(bins)

    return of_row


def made(case: Case, seed: int) -> dict[str, tuple[probes.RowMean, OfRow]]:
    batch, _, _, n_keys = case.sizes
    g = torch.Generator().manual_seed(seed)
    members = torch.rand(batch, n_keys, 3, generator=g) < 0.4
    keys = torch.rand(batch, n_keys, generator=g) < 0.5
    found: dict[str, tuple[probes.RowMean, OfRow]] = {
        "relative_entropy": (probes.RelativeEntropy(), relative_entropy),
        "set_mass": (probes.SetMass(members), set_mass(members)),
        "set_mass of all": (probes.SetMass(members[0]), set_mass(members[:1])),
        "largest_among": (probes.LargestAmong(keys), largest_among(keys)),
        "entropy without": (probes.WithoutKeys(probes.Entropy(), keys), without(keys, entropy)),
        "max without": (probes.WithoutKeys(probes.MaxWeight(), keys[0]), without(keys[:1], max_weight)),
    }
    if not case.mask.cross:
        found["distance without"] = (
            probes.WithoutKeys(probes.ExpectedDistance(), keys),
            without(keys, expected_distance),
        )
        found["signed"] = (probes.DistanceHistogram(4, signed=True), signed_histogram(4))
    return found


@settings(max_examples=80, deadline=None)
@given(cases((torch.float64,)), st.integers(0, 99), BLOCKS)
def test_against_loops(case: Case, seed: int, block_rows: int | None) -> None:
    parts = made(case, seed)
    _, readings = attend(*case.arguments, probes=[probe for probe, _ in parts.values()], block_rows=block_rows)
    for reading, (_, of_row) in zip(readings, parts.values(), strict=True):
        check(reading, *mean_over_rows(seen(case), of_row), 1e-9)


@settings(max_examples=60, deadline=None)
@given(cases((torch.float64,)), st.integers(0, 99))
def test_chance(case: Case, seed: int) -> None:
    parts = made(case, seed)
    readings = chance(case.mask, shape_of(case), [probe for probe, _ in parts.values()])
    for reading, (_, of_row) in zip(readings, parts.values(), strict=True):
        assert reading is not None
        values, _ = mean_over_rows(uniform(case), of_row)
        if values.shape[2]:
            found = reading.values.reshape(*reading.values.shape[:2], -1).expand(values.shape)
            assert_close(found, values, rtol=0, atol=1e-12, equal_nan=True)


@settings(max_examples=60, deadline=None)
@given(cases((torch.float64,), ORDERS[:-1]), st.integers(0, 99), BLOCKS)
def test_together_is_its_parts_side_by_side(case: Case, seed: int, block_rows: int | None) -> None:
    batch, _, _, n_keys = case.sizes
    labels = torch.randint(-1, 2, (batch, n_keys), generator=torch.Generator().manual_seed(seed))
    parts: list[tuple[probes.RowMean, OfRow]] = [
        (probes.Entropy(), entropy),
        (probes.PositionMass([0, 1], first_position=1), position_mass([0, 1], 1)),
        (probes.LabelMass(labels, 2), label_mass(labels, 2)),
        (probes.OffsetMass([1]), offset_mass([1])),
    ]
    together = probes.Together([probe for probe, _ in parts])
    assert together.needs == {"scores"}
    assert together.aligned
    assert len(together.axes()[0][1]) == 6
    _, (reading,) = attend(*case.arguments, probes=[together], block_rows=block_rows)
    assert reading.values.shape[2] == 6
    at = 0
    for _, of_row in parts:
        values, n = mean_over_rows(seen(case), of_row)
        width = {0: 1, 1: 2, 3: 2, 5: 1}[at]
        if values.shape[2]:
            assert_close(reading.values[..., at : at + width], values, rtol=0, atol=1e-9, equal_nan=True)
            assert (reading.n[..., at : at + width] == n).all()
        at += width


def test_norm_weighted_together_is_each_norm_weighted() -> None:
    class Weights:
        W_O = torch.randn(6, 3, 8, generator=torch.Generator().manual_seed(1))

    case = Case(*tensors(), Mask(causal=True))
    site = Site("here", weights=Weights)
    parts = [probes.PositionMass([0], first_position=1), probes.MaxWeight()]
    asked = [probes.NormWeighted(probes.Together(parts)), *map(probes.NormWeighted, parts)]
    _, (whole, first, largest) = attend(*case.arguments, probes=asked, site=site)
    assert_close(whole.values, torch.stack([first.values[..., 0], largest.values], -1), rtol=0, atol=0)


def test_mass_received_from_early_rows() -> None:
    case = Case(*tensors(n_queries=9, n_keys=9), Mask(causal=True))
    _, (early,) = attend(*case.arguments, probes=[probes.MassReceived(until_position=4)], block_rows=2)
    pattern = case.reference.pattern[:, :, :4]
    expected = pattern.sum(2) / torch.tensor([4, 3, 2, 1, 0, 0, 0, 0, 0])
    assert_close(early.values, expected, rtol=0, atol=1e-6, equal_nan=True)


def words(pattern: Tensor, groups: Tensor, n_groups: int) -> Tensor:
    """A word-level map: sums over to-tokens, means over from-tokens; the diagonal is 0 (Clark et al.)."""
    whole = torch.zeros(pattern.shape[0], n_groups, n_groups, dtype=torch.float64)
    for one in range(n_groups):
        for other in range(n_groups):
            block = pattern[:, groups == one][:, :, groups == other]
            if one != other and block.numel():
                whole[:, one, other] = block.sum(-1).mean(-1)
    return whole


@pytest.mark.parametrize("causal", [True, False])
@pytest.mark.parametrize("block_rows", [1, 2, 3, None])
def test_words_read_and_reading(causal: bool, block_rows: int | None) -> None:
    groups = torch.tensor([-1, 0, 0, 1, 2, 2, 2, -1, 4, -1])
    case = Case(*tensors(batch=1, n_queries=10, n_keys=10), Mask(causal=causal))
    asked = [probes.StrongestGroup(groups, 5, both_ways=True), probes.StrongestGroup(groups, 5, earlier=True)]
    _, (both, earlier) = attend(*case.arguments, probes=asked, block_rows=block_rows)
    whole = words(case.reference.pattern[0], groups, 5)
    for values, choice, weight in ((whole, 0, 1), (whole.mT, 2, 3)):
        most, best = values.max(-1)
        assert torch.equal(both.values[0, ..., choice], torch.where(most > 0, best, -1).double())
        assert_close(both.values[0, ..., weight], most, rtol=0, atol=1e-6)
    most, best = whole.tril(-1).max(-1)
    assert torch.equal(earlier.values[0, ..., 0], torch.where(most > 0, best, -1).double())


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: probes.SetMass(torch.zeros(3, 2)), "must be a boolean tensor"),
        (lambda: probes.WithoutKeys(probes.Entropy()), "needs keys="),
        (lambda: probes.Together(()), "at least one"),
        (lambda: probes.Together([probes.GradientTimesWeight()]), "no other"),
    ],
)
def test_wrong_arguments(make: Any, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        make()
