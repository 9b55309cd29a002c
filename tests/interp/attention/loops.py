"""What probes should say, taken with loops over the rows of a whole pattern."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.testing import assert_close

from interp.attention import SiteShape
from interp.attention.probes import Reading
from tests.interp.attention.cases import Case, valid_rows


@dataclass(frozen=True, eq=False)
class Seen:
    """A whole pattern in float64, and what a probe may know of it."""

    case: Case
    pattern: Tensor
    permitted: Tensor
    sink: Tensor

    @property
    def valid(self) -> Tensor:
        return valid_rows(self.case, self.permitted)

    def at(self, row: int) -> int:
        """The key index at which a query stands."""
        mask, (_, _, n_queries, n_keys) = self.case.mask, self.case.sizes
        usual = 0 if mask.cross else n_keys - n_queries
        return row + (usual if mask.query_offset is None else mask.query_offset)

    def real(self, b: int, key: int) -> bool:
        """Whether a key exists and is no padding."""
        key_valid = self.case.mask.key_valid
        return 0 <= key < self.case.sizes[3] and (key_valid is None or bool(key_valid[b, key]))


def seen(case: Case) -> Seen:
    whole = case.reference
    return Seen(case, whole.pattern, whole.permitted, whole.sink_weight)


def uniform(case: Case) -> Seen:
    """Uniform attention under the same mask: what chance is taken from."""
    permitted = case.reference.permitted
    pattern = permitted.double() / permitted.sum(-1, keepdim=True).clamp_min(1)
    return Seen(case, pattern, permitted, torch.zeros(permitted.shape[:-1], dtype=torch.float64))


OfRow = Callable[[Seen, int, int, int, list[float], list[bool]], Sequence[float | None]]
"""(seen, sequence, head, row, weights, permitted keys) -> the statistic by label; None where it is not eligible."""


def mean_over_rows(look: Seen, of_row: OfRow) -> tuple[Tensor, Tensor]:
    """Means and numbers of rows [batch, head, label], one row after the other."""
    batch, n_heads, n_queries, _ = look.case.sizes
    weights, permitted, valid = look.pattern.tolist(), look.permitted.tolist(), look.valid.tolist()
    values, n = [], []
    for b in range(batch):
        for h in range(n_heads):
            rows = [
                of_row(look, b, h, i, weights[b][h][i], permitted[b][h][i]) if valid[b][h][i] else None
                for i in range(n_queries)
            ]
            labels = max((len(row) for row in rows if row is not None), default=0)
            columns = [[row[c] for row in rows if row is not None and row[c] is not None] for c in range(labels)]
            values.append([math.fsum(c) / len(c) if c else math.nan for c in columns])  # type: ignore[arg-type]
            n.append([len(c) for c in columns])
    labels = max(map(len, values))
    padded = [row + [math.nan] * (labels - len(row)) for row in values]
    counts = [row + [0] * (labels - len(row)) for row in n]
    shape = (batch, n_heads, labels)
    return torch.tensor(padded, dtype=torch.float64).view(shape), torch.tensor(counts).view(shape)


# What each probe should say of one row -------------------------------------------------------------------------------


def entropy(look: Seen, b: int, h: int, i: int, weights: list[float], permitted: list[bool]) -> list[float | None]:
    outcomes = [*weights, float(look.sink[b, h, i])]
    return [-math.fsum(p * math.log(p) for p in outcomes if p > 0)]


def max_weight(look: Seen, b: int, h: int, i: int, weights: list[float], permitted: list[bool]) -> list[float | None]:
    return [max(weights)]


def expected_distance(
    look: Seen, b: int, h: int, i: int, weights: list[float], permitted: list[bool]
) -> list[float | None]:
    return [math.fsum(p * abs(look.at(i) - j) for j, p in enumerate(weights)) / math.fsum(weights)]


def offset_mass(offsets: Sequence[int]) -> OfRow:
    def of_row(look: Seen, b: int, h: int, i: int, weights: list[float], permitted: list[bool]) -> list[float | None]:
        keys = [look.at(i) - offset for offset in offsets]
        return [weights[j] if 0 <= j < len(weights) and permitted[j] else None for j in keys]

    return of_row


def position_mass(positions: Sequence[int], first_position: int = 0) -> OfRow:
    def of_row(look: Seen, b: int, h: int, i: int, weights: list[float], permitted: list[bool]) -> list[float | None]:
        real = [j for j in range(len(weights)) if look.real(b, j)]
        own = i if look.case.mask.cross else sum(j <= look.at(i) for j in real) - 1
        if not look.case.mask.cross and look.case.mask.key_valid is None:
            own = min(max(look.at(i), 0), len(weights) - 1)
        keys = [real[p] if p < len(real) else None for p in positions]
        late = own >= first_position
        return [weights[j] if late and j is not None and permitted[j] else None for j in keys]

    return of_row


def label_mass(labels: Tensor, n_labels: int) -> OfRow:
    def of_row(look: Seen, b: int, h: int, i: int, weights: list[float], permitted: list[bool]) -> list[float | None]:
        of_key = labels[b % len(labels)].tolist()
        members = [[j for j, label in enumerate(of_key) if label == wanted] for wanted in range(n_labels)]
        return [math.fsum(weights[j] for j in keys) if any(permitted[j] for j in keys) else None for keys in members]

    return of_row


def target_mass(targets: Tensor) -> OfRow:
    def of_row(look: Seen, b: int, h: int, i: int, weights: list[float], permitted: list[bool]) -> list[float | None]:
        keys = [j for j in targets[b % len(targets), i].tolist() if 0 <= j < len(weights) and permitted[j]]
        return [math.fsum(weights[j] for j in keys) if keys else None]

    return of_row


def label_match(labels: Tensor, shift: int, query_labels: Tensor | None) -> OfRow:
    def of_row(look: Seen, b: int, h: int, i: int, weights: list[float], permitted: list[bool]) -> list[float | None]:
        of_key = labels[b % len(labels)].tolist()
        at = None if query_labels is not None else look.at(i)
        if at is not None and not 0 <= at < len(weights):
            return [None]
        own = of_key[at] if at is not None else query_labels[b % len(query_labels), i].item()  # type: ignore[index]
        keys = [
            j for j in range(len(weights))
            if permitted[j] and look.real(b, j - shift) and j - shift != at and own == of_key[j - shift] >= 0
        ]  # fmt: skip
        return [math.fsum(weights[j] for j in keys) if keys else None]

    return of_row


def distance_histogram(n_bins: int) -> OfRow:
    def of_row(look: Seen, b: int, h: int, i: int, weights: list[float], permitted: list[bool]) -> list[float | None]:
        bins = [0.0] * n_bins
        for j, p in enumerate(weights):
            bins[min(abs(look.at(i) - j).bit_length(), n_bins - 1)] += p
        return list(bins)

    return of_row


def strongest_offset(first: int, last: int) -> OfRow:
    def of_row(look: Seen, b: int, h: int, i: int, weights: list[float], permitted: list[bool]) -> list[float | None]:
        best = [j for j, p in enumerate(weights) if p == max(weights)]
        return [(look.at(i) - offset in best) / len(best) for offset in range(first, last + 1)]

    return of_row


# Comparing ----------------------------------------------------------------------------------------------------------


def check(reading: Reading, values: Tensor, n: Tensor, tolerance: float) -> None:
    found = reading.values.reshape(*reading.values.shape[:2], -1)
    counts = reading.n.reshape(*reading.n.shape[:2], -1).expand(values.shape) if values.numel() else n
    if values.shape[2] == 0:  # no row was valid, so the loops know no labels
        assert found.isnan().all()
        return
    assert_close(found.expand(values.shape), values, rtol=0, atol=tolerance, equal_nan=True)
    assert (counts == n).all()


def shape_of(case: Case) -> SiteShape:
    batch, n_heads, n_queries, n_keys = case.sizes
    bound = case.mask.bind(batch, n_heads, n_queries, n_keys, case.query.device)
    return SiteShape(batch, n_heads, case.key.shape[1], n_queries, n_keys, case.query.device, bound)
