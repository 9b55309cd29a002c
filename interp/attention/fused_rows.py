"""Rows of the fused engine: statistics that the kernel found, and single weights computed again from queries and keys.

Nothing here holds queries × keys: what a probe asks of :class:`~interp.attention.rows.Rows` is answered in
O(T · d), but for the mask of a block where a probe counts permitted keys that only the mask's tensors know.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from .bias import FORBIDDEN
from .block import compute_dtype
from .rows import Block
from .scoring import Scoring

if TYPE_CHECKING:
    from .launch import Statistics

__all__ = ["FusedRows", "OneRowEach", "strongest"]

GATHERED = 64 << 20
"""Bytes of keys gathered at once for statistics of single weights."""


@dataclass(eq=False, kw_only=True)
class FusedRows(Block):
    """A block of rows as the kernel left them: its statistics, and no weights.

    It answers what a probe of single rows asks :class:`~interp.attention.rows.Rows`; there is no ``pattern``.

    Attributes:
        query, key: of the whole call. found: of all its rows. scoring: how its scores are made.
        columns: where each probe's features stand among ``found.masses``, by the probe's identity.
    """

    query: Float[Tensor, "batch head query d_head"] = field(repr=False)
    key: Float[Tensor, "batch kv_head key d_head"] = field(repr=False)
    found: Statistics = field(repr=False)
    scoring: Scoring = field(repr=False)
    columns: dict[int, slice] = field(repr=False)
    edited: bool = False

    def _of(self, whole: Tensor) -> Tensor:
        return whole[:, :, self.start : self.stop]

    @cached_property
    def valid(self) -> Bool[Tensor, "batch head row"]:
        """Rows that take part in statistics: neither padding nor without a key."""
        some = torch.isfinite(self._of(self.found.log_sum))
        return some if self.mask.query_valid is None else some & self.mask.query_valid[:, None, self.start : self.stop]

    @property
    def n_allowed(self) -> Int[Tensor, "#batch #head row"]:
        """How many keys the mask lets each query read."""
        if self.mask.is_listed:
            return super().n_allowed
        first, last = self.mask.stretch(self.start, self.stop)
        return (last - first)[None, None]

    @property
    def lse(self) -> Float[Tensor, "batch head row"]:
        """Log of the softmax's denominator, the sink included."""
        return self._of(self.found.top) + self._of(self.found.log_sum)

    @property
    def entropy(self) -> Float[Tensor, "batch head row"]:
        """Entropy of each row in nats; a learned sink counts as one more outcome."""
        return self._of(self.found.entropy)

    @property
    def max_weight(self) -> Float[Tensor, "batch head row"]:
        """Largest weight of each row."""
        return self._of(self.found.largest)

    @property
    def sink_weight(self) -> Float[Tensor, "batch head row"] | None:
        """What the learned sink took of each row, or None."""
        return None if self.mask.mask.sinks is None else 1 - self._of(self.found.total)

    @property
    def total(self) -> Float[Tensor, "batch head row"]:
        """Sum of each row's weights."""
        return self._of(self.found.total)

    @property
    def distance(self) -> Float[Tensor, "batch head row"]:
        """Σ p |i − j|."""
        assert self.found.distance is not None
        return self._of(self.found.distance)

    def by_distance(self, n_bins: int, signed: bool) -> Float[Tensor, "batch head row bin"]:
        """Weight by distance in log₂ bins."""
        assert self.found.histogram is not None
        return self._of(self.found.histogram)

    def mass_on(self, members: Tensor, probe: object) -> Float[Tensor, "batch head row feature"]:
        """Weight on the keys of each label or set."""
        assert self.found.masses is not None
        return self._of(self.found.masses)[..., self.columns[id(probe)]]

    def received(self, counted: Bool[Tensor, "#batch #head row"] | None) -> Float[Tensor, "batch head key"]:
        """The weight that each key gets from the counted rows of this block, by the second pass."""
        from . import launch

        some = torch.zeros(self.found.top.shape, dtype=torch.uint8, device=self.query.device)
        some[:, :, self.start : self.stop] = self.valid if counted is None else counted
        return launch.received(self.query, self.key, self.scoring, self.found, some, self.start, self.stop)

    def at_keys(
        self, keys: Int[Tensor, "#batch #head row target"]
    ) -> tuple[Float[Tensor, "batch head row target"], Bool[Tensor, "#batch #head row target"]]:
        """Weights at given keys of each row, and whether each key exists and may be read."""
        exists = (keys >= 0) & (keys < self.mask.n_keys)
        query_index = self.query_index[None, None, :, None]
        inside = keys.clamp(0, self.mask.n_keys - 1)
        permitted = exists & self.mask.permits(query_index, inside)
        weights = [self._weights(inside[:, :, a:b], a, b) for a, b in self._parts(keys.shape[-1])]
        return torch.cat(weights, 2).masked_fill(~permitted, 0.0), permitted

    def at_offset(self, offset: int) -> Float[Tensor, "batch head row"]:
        """Weight on the key ``offset`` before each query; 0 where there is none."""
        keys = (self.query_key_index - offset)[None, None, :, None]
        return self.at_keys(keys)[0][..., 0]

    def _parts(self, n_targets: int) -> Iterator[tuple[int, int]]:
        """Parts of the block, so small that the keys gathered for one stay within :data:`GATHERED`."""
        row = self.mask.batch * self.key.shape[1] * max(n_targets, 1) * self.key.shape[-1] * 4
        height, n = max(1, GATHERED // row), self.stop - self.start
        yield from ((a, min(a + height, n)) for a in range(0, n, height))

    def _weights(self, keys: Int[Tensor, "#batch #head part target"], first: int, last: int) -> Tensor:
        """exp(s − lse) of some keys of rows ``first`` to ``last`` of the block."""
        batch, n_heads, _, d = self.query.shape
        n_kv = self.key.shape[1]
        dtype = compute_dtype(self.query)
        query = self.query[:, :, self.start + first : self.start + last].to(dtype)
        index = keys.expand(batch, -1, -1, -1)
        if index.shape[1] == 1:
            wanted = self.key.gather(2, index.expand(-1, n_kv, -1, -1).flatten(2)[..., None].expand(-1, -1, -1, d))
            wanted = wanted.view(batch, n_kv, 1, *index.shape[2:], d).to(dtype)
            grouped = query.view(batch, n_kv, n_heads // n_kv, *query.shape[2:])
            products = (grouped[..., None, :] * wanted).sum(-1).view(batch, n_heads, *index.shape[2:])
        else:
            own = self.key.repeat_interleave(n_heads // n_kv, 1)
            wanted = own.gather(2, index.flatten(2)[..., None].expand(-1, -1, -1, d)).view(*index.shape, d).to(dtype)
            products = (query[..., None, :] * wanted).sum(-1)
        rows = torch.arange(self.start + first, self.start + last, device=keys.device)[None, None, :, None]
        scores = self.scoring.adjusted(products, rows, keys)
        top, log_sum = (self._of(x)[:, :, first:last, None] for x in (self.found.top, self.found.log_sum))
        return torch.where(torch.isfinite(log_sum), (scores - top - log_sum).exp(), 0.0)


@dataclass(eq=False, kw_only=True)
class OneRowEach:
    """A pattern row of each sequence and head, each a row of its own: what a probe of edges asks of a block.

    Attributes:
        pattern: the rows' weights. start: which row it is. valid: whether it takes part in statistics.
    """

    pattern: Float[Tensor, "batch head 1 key"]
    start: Int[Tensor, "batch head 1"]
    valid: Bool[Tensor, "batch head 1"]
    low: int
    high: int


def strongest(rows: FusedRows, k: int) -> Iterator[OneRowEach]:
    """The rows that hold the k strongest edges of each head, in their order.

    They are the k rows with the largest weights, the earlier one where two are equal: an edge of another row has k
    edges before it, the largest of each of these rows. Their weights are the row's largest, which the kernel found,
    times exp(s − max s) of scores that are computed again.
    """
    found, mask, scoring = rows.found, rows.mask, rows.scoring
    batch, n_heads, _, d = rows.query.shape
    largest = rows.max_weight.masked_fill(~rows.valid, -1.0)
    chosen = largest.argsort(dim=-1, descending=True, stable=True)[..., :k].sort(-1).values
    key = rows.key.to(compute_dtype(rows.query)).transpose(-1, -2)
    index = torch.arange(mask.n_keys, device=mask.device)[None, None, None]
    for row in chosen.split(1, dim=-1):
        query = rows.query.gather(2, row[..., None].expand(-1, -1, -1, d)).to(key)
        products = (query.view(batch, key.shape[1], -1, d) @ key).view(batch, n_heads, 1, -1)
        scores = scoring.adjusted(products, row[..., None], index)
        scores = scores.masked_fill(~mask.permits(row[..., None], index), FORBIDDEN)
        weights = (scores - scores.amax(-1, keepdim=True)).exp() * found.largest.gather(2, row)[..., None]
        yield OneRowEach(pattern=weights, start=row, valid=rows.valid.gather(2, row), low=0, high=mask.n_keys)
