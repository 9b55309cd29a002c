"""Statistics of single rows, averaged over the eligible rows of a sequence."""

# ruff: noqa: D102 (what the methods are for, Probe says)

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import ClassVar

import torch
from jaxtyping import Int
from torch import Tensor

from interp.attention.rows import Rows

from .base import HeadMean, RowMean, integers, per_key

__all__ = [
    "DistanceHistogram",
    "Entropy",
    "ExpectedDistance",
    "GradientTimesWeight",
    "LabelMass",
    "LabelMatch",
    "MaxWeight",
    "OffsetMass",
    "PositionMass",
    "StrongestOffset",
    "TargetMass",
]


@dataclass(frozen=True, eq=False)
class Entropy(HeadMean):
    """Entropy −Σ p ln p of a row, in nats; between 0 and ln(number of permitted keys). A sink is an outcome."""

    needs: ClassVar[frozenset[str]] = frozenset({"scores"})

    def measure(self, rows: Rows) -> tuple[Tensor, None]:
        return rows.entropy, None


@dataclass(frozen=True, eq=False)
class MaxWeight(HeadMean):
    """Largest weight of a row, in [0, 1] (Voita et al. 2019 call its mean over text a head's confidence)."""

    def measure(self, rows: Rows) -> tuple[Tensor, None]:
        return rows.max_weight, None


@dataclass(frozen=True, eq=False)
class OffsetMass(HeadMean):
    """Weight on the key at each offset *before* the query: 0 is the current token, 1 the previous one, −1 the next.

    Eligible are rows whose key at that offset exists and may be read.
    """

    offsets: Sequence[int] = (0, 1)
    aligned: ClassVar[bool] = True

    def __post_init__(self) -> None:
        if not len(self.offsets):
            raise ValueError("OffsetMass needs at least one offset")

    def axes(self) -> tuple[tuple[str, Sequence[object]], ...]:
        return (("offset", list(self.offsets)),)

    def measure(self, rows: Rows) -> tuple[Tensor, Tensor]:
        weights = torch.stack([rows.at_offset(offset) for offset in self.offsets], dim=-1)
        return weights, _may_read(rows, self.offsets)


@dataclass(frozen=True, eq=False)
class PositionMass(HeadMean):
    """Weight on the key at each position of its sequence; 0 is the first token that is not padding.

    Eligible are rows that may read that key. ``first_position=1`` leaves out the row that stands on position 0 itself.
    """

    positions: Sequence[int] = (0,)

    def __post_init__(self) -> None:
        if not len(self.positions) or min(self.positions) < 0:
            raise ValueError(f"PositionMass needs positions from 0 on; got {list(self.positions)}")

    def axes(self) -> tuple[tuple[str, Sequence[object]], ...]:
        return (("position", list(self.positions)),)

    def measure(self, rows: Rows) -> tuple[Tensor, Tensor]:
        keys = torch.cat([rows.mask.key_at(position) for position in self.positions], dim=1)
        return rows.at_keys(keys[:, None, None, :].expand(-1, 1, rows.stop - rows.start, -1))


@dataclass(frozen=True, eq=False)
class LabelMass(HeadMean):
    """Weight on the keys of each label (separator, punctuation, …).

    Args:
        labels: label of each key, 0 to ``n_labels`` − 1, or −1 for none; [key] or [batch, key].
        n_labels: number of labels.

    Eligible for a label are rows that may read at least one key of it.
    """

    labels: Int[Tensor, "#batch key"] | None = None
    n_labels: int = 1

    def __post_init__(self) -> None:
        integers(self, "labels")
        assert self.labels is not None
        if self.labels.numel() and not (int(self.labels.min()) >= -1 and int(self.labels.max()) < self.n_labels):
            raise ValueError(
                f"LabelMass.labels must lie in −1 … n_labels − 1 = {self.n_labels - 1}; got "
                f"{int(self.labels.min())} … {int(self.labels.max())}"
            )

    def axes(self) -> tuple[tuple[str, Sequence[object]], ...]:
        return (("label", list(range(self.n_labels))),)

    def measure(self, rows: Rows) -> tuple[Tensor, Tensor]:
        labels = per_key(self, "labels", rows).long()
        members = torch.nn.functional.one_hot(labels + 1, self.n_labels + 1)[..., 1:].bool()
        return rows.mass_on(members, self), rows.can_read(members)


@dataclass(frozen=True, eq=False)
class TargetMass(HeadMean):
    """Weight on the target keys of each row, summed: induction, duplicates, a dependency's head.

    Args:
        targets: key indices [query, target] or [batch, query, target]; −1 for none. A key counts once per row, so
            no key may be named twice in a row.

    Eligible are rows with at least one target that they may read.
    """

    targets: Int[Tensor, "#batch query target"] | None = None

    def __post_init__(self) -> None:
        integers(self, "targets")
        assert self.targets is not None
        if self.targets.ndim not in (2, 3):
            raise ValueError(
                f"TargetMass.targets must be [query, target] or [batch, query, target]; got {list(self.targets.shape)}"
            )
        ordered = self.targets.sort(-1).values
        if ((ordered[..., 1:] == ordered[..., :-1]) & (ordered[..., 1:] >= 0)).any():
            raise ValueError("TargetMass.targets names a key twice in one row, which would count its weight twice")

    def measure(self, rows: Rows) -> tuple[Tensor, Tensor]:
        assert self.targets is not None
        targets = self.targets[None] if self.targets.ndim == 2 else self.targets
        if targets.shape[1] != rows.mask.n_queries or targets.shape[0] not in (1, rows.mask.batch):
            raise ValueError(
                f"TargetMass.targets must be [batch, query, target] with batch 1 or {rows.mask.batch} and "
                f"{rows.mask.n_queries} queries; got {list(self.targets.shape)}"
            )
        weights, permitted = rows.at_keys(targets[:, None, rows.start : rows.stop].to(rows.mask.device))
        return (weights * permitted).sum(-1), permitted.any(-1)


@dataclass(frozen=True, eq=False)
class LabelMatch(HeadMean):
    """Weight on keys whose label, ``shift`` tokens earlier, is the query's own label.

    ``shift=0`` with token ids reads duplicate-token heads (the query itself left out), ``shift=1`` reads induction on
    any text: keys that follow an earlier occurrence of the current token.

    Args:
        labels: label of each key, −1 for none (never matches); [key] or [batch, key].
        query_labels: labels of the queries where they are not those of the keys (cross-attention); [query] or
            [batch, query].

    Eligible are rows that may read at least one such key. A key whose earlier token is padding matches nothing.
    """

    labels: Int[Tensor, "#batch key"] | None = None
    shift: int = 0
    query_labels: Int[Tensor, "#batch query"] | None = None

    def __post_init__(self) -> None:
        integers(self, "labels")
        if self.query_labels is not None:
            integers(self, "query_labels")

    @property
    def aligned(self) -> bool:  # type: ignore[override]
        """Without labels of their own, queries are tokens among the keys."""
        return self.query_labels is None

    def measure(self, rows: Rows) -> tuple[Tensor, Tensor]:
        source = rows.key_index - self.shift
        key_label = self._labels_at(source, rows)[:, None, :]
        match = (self._query_labels(rows)[:, :, None] == key_label) & (key_label >= 0)
        if self.query_labels is None:
            match = match & (source[None, :] != rows.query_key_index[:, None])
        match = match[:, None] & rows.allowed
        return (rows.pattern * match).sum(-1), match.any(-1)

    def _labels_at(self, source: Tensor, rows: Rows) -> Tensor:
        """Labels of some keys [batch or 1, key]; −1 where there is no such key, or it is padding."""
        exists = ((source >= 0) & (source < rows.mask.n_keys))[None]
        source = source.clamp(0, rows.mask.n_keys - 1)
        if rows.mask.mask.key_valid is not None:
            exists = exists & rows.mask.mask.key_valid[:, source]
        return torch.where(exists, per_key(self, "labels", rows)[:, source], -1)

    def _query_labels(self, rows: Rows) -> Tensor:
        if self.query_labels is None:
            return rows.of_queries(per_key(self, "labels", rows))
        own = self.query_labels[None] if self.query_labels.ndim == 1 else self.query_labels
        if own.ndim != 2 or own.shape[1] != rows.mask.n_queries or own.shape[0] not in (1, rows.mask.batch):
            raise ValueError(
                f"LabelMatch.query_labels must be [query] or [batch, query] for batch {rows.mask.batch} and "
                f"{rows.mask.n_queries} queries; got {list(self.query_labels.shape)}"
            )
        return own[:, rows.start : rows.stop].to(rows.mask.device)


@dataclass(frozen=True, eq=False)
class ExpectedDistance(HeadMean):
    """Mean distance |query − key| in tokens under the row's weights (a sink's share left out).

    Eligible are rows of which a sink leaves something to the keys.
    """

    aligned: ClassVar[bool] = True

    def measure(self, rows: Rows) -> tuple[Tensor, Tensor | None]:
        distance = rows.distance
        if rows.sink_weight is None:
            return distance, None
        return distance / rows.total.clamp_min(torch.finfo(distance.dtype).tiny), rows.total > 0


@dataclass(frozen=True, eq=False)
class DistanceHistogram(HeadMean):
    """Weight by distance |query − key| in log₂ bins: 0, 1, 2–3, 4–7, …; the last bin holds everything beyond.

    Args:
        n_bins: number of bins; bin b > 0 starts at distance 2^(b−1).
        signed: keys after the query have bins of their own, −1, −2–3, …, which follow the others.
    """

    n_bins: int = 16
    signed: bool = False
    aligned: ClassVar[bool] = True

    def __post_init__(self) -> None:
        if self.n_bins < 1:
            raise ValueError(f"DistanceHistogram needs at least one bin; got {self.n_bins}")

    def axes(self) -> tuple[tuple[str, Sequence[object]], ...]:
        back = [0, *(2 ** (b - 1) for b in range(1, self.n_bins))]
        return (("distance_from", [*back, *(-low for low in back[1:])] if self.signed else back),)

    def measure(self, rows: Rows) -> tuple[Tensor, None]:
        return rows.by_distance(self.n_bins, self.signed), None


@dataclass(frozen=True, eq=False)
class StrongestOffset(HeadMean):
    """Share of rows whose strongest key stands at each offset from ``first`` to ``last`` (1 is the previous token).

    Keys of equal weight share their row.

    Args:
        where_possible: eligible for an offset are the rows that may read a key there; else all rows are.
    """

    first: int = -8
    last: int = 8
    where_possible: bool = False
    aligned: ClassVar[bool] = True

    def __post_init__(self) -> None:
        if self.first > self.last:
            raise ValueError(f"StrongestOffset needs first ≤ last; got {self.first} and {self.last}")

    def axes(self) -> tuple[tuple[str, Sequence[object]], ...]:
        return (("offset", list(range(self.first, self.last + 1))),)

    def measure(self, rows: Rows) -> tuple[Tensor, Tensor | None]:
        strongest = (rows.pattern == rows.max_weight[..., None]).to(rows.pattern.dtype)
        shares = replace(rows, pattern=strongest / strongest.sum(-1, keepdim=True))
        offsets = range(self.first, self.last + 1)
        found = torch.stack([shares.at_offset(offset) for offset in offsets], dim=-1)
        return found, _may_read(rows, offsets) if self.where_possible else None


@dataclass(frozen=True, eq=False)
class GradientTimesWeight(RowMean):
    """Σ_j |A_ij ∂L/∂A_ij| of a row: how much the loss would feel each weight, summed. Needs a backward pass."""

    needs: ClassVar[frozenset[str]] = frozenset({"grad_pattern"})

    def measure(self, rows: Rows) -> tuple[Tensor, None]:
        assert rows.grad_pattern is not None
        return (rows.pattern * rows.grad_pattern).abs().sum(-1), None


def _may_read(rows: Rows, offsets: Sequence[int]) -> Tensor:
    """Whether each row may read the key at each offset before it: [batch or 1, head or 1, row, offset]."""
    query = rows.query_index[None, None, :, None]
    key = rows.query_key_index[None, None, :, None] - torch.tensor(list(offsets), device=rows.mask.device)
    exists = (key >= 0) & (key < rows.mask.n_keys)
    return exists & rows.mask.permits(query, key.clamp(0, rows.mask.n_keys - 1))
