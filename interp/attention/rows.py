"""What a probe or an edit sees: a block of query rows of one attention site, every head at once."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cached_property

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from .bound import BoundMask

__all__ = ["Block", "Rows", "Site", "SiteShape"]


@dataclass(frozen=True, eq=False)
class Site:
    """Where in a model an attention call sits.

    Args:
        name: ``blocks.3.attn``, ``decoder.0.cross_attn``, or a module's path.
        layer: its layer number, or None where a model has none.
        weights: gives the site's per-head weights when a probe asks for them (``W_O``, ...), or None.
    """

    name: str
    layer: int | None = None
    weights: Callable[[], object] | None = field(default=None, repr=False)


@dataclass(frozen=True, eq=False)
class SiteShape:
    """The sizes of one attention call, given to a probe before the first block; ``value`` where a probe needs it."""

    batch: int
    n_heads: int
    n_kv_heads: int
    n_queries: int
    n_keys: int
    device: torch.device
    mask: BoundMask
    site: Site | None = None
    value: Float[Tensor, "batch kv_head key d_head"] | None = None


@dataclass(eq=False, kw_only=True)
class Block:
    """Geometry of a block of query rows: what an edit of scores knows.

    Attributes:
        start, stop: the block's query rows.
        low, high: its key range; keys outside weigh nothing.
        mask: the bound mask, which also knows positions.
        site: where in the model, or None.
        cut: edges that a :class:`~interp.attention.edits.KnockOut` forbids beside the mask, or None.
    """

    start: int
    stop: int
    low: int
    high: int
    mask: BoundMask
    site: Site | None = None
    cut: Bool[Tensor, "#batch head row key"] | None = field(default=None, repr=False)
    _known: dict[str, Tensor] = field(default_factory=dict, repr=False)

    @property
    def query_index(self) -> Int[Tensor, " row"]:
        """Row numbers of the block's queries."""
        return torch.arange(self.start, self.stop, device=self.mask.device)

    @property
    def query_key_index(self) -> Int[Tensor, " row"]:
        """Key indices at which the block's queries stand."""
        return self.mask.query_index(self.start, self.stop)

    @property
    def key_index(self) -> Int[Tensor, " key"]:
        """Indices of the block's keys."""
        return torch.arange(self.low, self.high, device=self.mask.device)

    @property
    def allowed(self) -> Bool[Tensor, "#batch #head row key"]:
        """Which keys the mask lets each query of the block read."""
        return self._once("allowed", lambda: self.mask.allowed(self.start, self.stop, self.low, self.high))

    @property
    def n_allowed(self) -> Int[Tensor, "#batch #head row"]:
        """How many keys the mask lets each query read."""
        return self._once("n_allowed", lambda: self.allowed.sum(-1))

    @property
    def readable(self) -> Bool[Tensor, "#batch #head row key"]:
        """Which keys each query may read when edges were cut as well."""
        return self.allowed if self.cut is None else self.allowed & ~self.cut

    def can_read(self, members: Bool[Tensor, "#batch all_keys set"]) -> Bool[Tensor, "#batch #head row set"]:
        """Whether each query may read at least one key of each set."""
        if self.mask.is_listed:
            inside = members[:, None, self.low : self.high].float()
            return self.allowed.float() @ inside > 0
        # order and window alone: each query reads one stretch of keys
        running = torch.nn.functional.pad(members.int().cumsum(1), (0, 0, 1, 0))
        first, last = self.mask.stretch(self.start, self.stop)
        return (running[:, last] > running[:, first])[:, None]

    def _once(self, name: str, compute: Callable[[], Tensor]) -> Tensor:
        """Computed when first asked for, and shared by all views of the block (``dataclasses.replace``)."""
        if name not in self._known:
            self._known[name] = compute()
        return self._known[name]


@dataclass(eq=False, kw_only=True)
class Rows(Block):
    """A block of query rows, after the edits.

    The memory of ``pattern`` and ``scores`` is used again for the next block: copy what is to be kept.

    Attributes:
        pattern: weights [batch, head, row, key]; exactly 0 where a key may not be read.
        scores: pre-softmax scores (after scale, softcap, bias and edits), the lowest of all (−1e38) where a key may
            not be read; None where no probe asked for them, and where there are none (a model that computes its own
            softmax, chance rows).
        value: value vectors [batch, kv_head, key, d_head] of the key range.
        sink_weight: what the learned sink took of each row [batch, head, row], or None.
        valid: rows that take part in statistics, broadcastable to [batch, head, row]; None when all do.
        edited: the pattern is no longer the softmax of the scores.
        grad_pattern: gradient with respect to ``pattern``, in a backward pass only.
        scratch: gives room for a temporary of a given shape, or None when a new tensor must be made.
    """

    pattern: Float[Tensor, "batch head row key"]
    scores: Float[Tensor, "batch head row key"] | None = None
    value: Float[Tensor, "batch kv_head key d_head"] | None = None
    sink_weight: Float[Tensor, "batch head row"] | None = None
    valid: Bool[Tensor, "#batch #head row"] | None = None
    edited: bool = False
    grad_pattern: Float[Tensor, "batch head row key"] | None = None
    scratch: Callable[[str, tuple[int, ...]], Tensor | None] | None = field(default=None, repr=False)

    @cached_property
    def max_weight(self) -> Float[Tensor, "batch head row"]:
        """Largest weight of each row."""
        return self.pattern.amax(-1)

    @cached_property
    def lse(self) -> Float[Tensor, "batch head row"]:
        """Log of the softmax's denominator, the sink included."""
        if self.scores is None:
            raise ValueError("these rows have no scores, so no log-sum-exp; read the pattern instead")
        log_sum, sinks = self.scores.logsumexp(-1), self.mask.mask.sinks
        return log_sum if sinks is None else torch.logaddexp(log_sum, sinks.to(log_sum)[None, :, None])

    @cached_property
    def entropy(self) -> Float[Tensor, "batch head row"]:
        """Entropy of each row in nats; a learned sink counts as one more outcome.

        From the scores, where the pattern is their softmax: ``log Z + Σ p (s_max − s)`` with
        ``Z = Σ exp(s − s_max)``, two terms that are never negative, so that sharp rows lose no digits.
        """
        pattern = self.pattern
        if self.scores is None or self.edited or self.sink_weight is not None:
            entropy = torch.special.entr(pattern).sum(-1)
            return entropy if self.sink_weight is None else entropy + torch.special.entr(self.sink_weight)
        largest = self.scores.amax(-1, keepdim=True)
        room = self.scratch("rows", tuple(pattern.shape)) if self.scratch is not None else None
        below = torch.sub(largest, self.scores, out=room)
        below = below.mul_(pattern) if room is not None else below * pattern
        return below.sum(-1) - self.max_weight.clamp_min(torch.finfo(pattern.dtype).tiny).log()

    @property
    def total(self) -> Float[Tensor, "batch head row"]:
        """Sum of each row's weights: 1, or less where a learned sink takes its share."""
        return self.pattern.sum(-1)

    @property
    def distance(self) -> Float[Tensor, "batch head row"]:
        """Σ p |query − key|."""
        if not self.mask.mask.causal:
            apart = (self.query_key_index[:, None] - self.key_index[None, :]).abs().to(self.pattern.dtype)
            return (self.pattern * apart).sum(-1)
        # Counted from the block's first query, so that near keys carry small numbers and keep digits
        before_block = (self.start + self.mask.offset - self.key_index).to(self.pattern.dtype)
        softmax = not self.edited and self.sink_weight is None and self.valid is None  # its rows sum to 1
        within_block = (self.query_index - self.start).to(self.pattern.dtype)
        return self.pattern @ before_block + (within_block if softmax else within_block * self.total)

    def by_distance(self, n_bins: int, signed: bool) -> Float[Tensor, "batch head row bin"]:
        """Weight by distance in bins 0, 1, 2–3, 4–7, …, the last one open; with ``signed``, keys after the query follow
        in bins of their own.

        Sums over key ranges as differences of one running sum: in float64, and without scattered writes, which are not
        deterministic on a GPU.
        """
        running = torch.nn.functional.pad(self.pattern.cumsum(-1, dtype=torch.float64), (1, 0))
        at, width = self.query_key_index - self.low, self.high - self.low
        beyond = self.mask.n_keys + abs(self.mask.offset) + 1  # farther than any key
        bins, forward = [], []
        for b in range(n_bins):
            near = 0 if b == 0 else 2 ** (b - 1)
            far = 2**b if b < n_bins - 1 else beyond
            near, far = min(near, beyond), min(far, beyond)
            mass = _between(running, at - far + 1, at - near + 1, width)
            if signed and b > 0:
                forward.append(_between(running, at + near, at + far, width))
            elif not signed and not self.mask.mask.causal:
                mass = mass + _between(running, at + max(near, 1), at + far, width)
            bins.append(mass)
        return torch.stack([*bins, *forward], dim=-1)

    def mass_on(
        self, members: Bool[Tensor, "#batch all_keys set"], probe: object
    ) -> Float[Tensor, "batch head row set"]:
        """Weight on the keys of each set. ``probe``: whose sets they are, by which an engine that has summed them
        already knows them."""
        return self.pattern @ members[:, None, self.low : self.high].to(self.pattern)

    def received(self, counted: Bool[Tensor, "#batch #head row"] | None) -> Float[Tensor, "batch head key"]:
        """The weight that each key of the block's range gets from the rows that count (None: all), in float64."""
        pattern = self.pattern
        if counted is not None:
            pattern = torch.where(counted[..., None], pattern, torch.zeros_like(pattern))
        return pattern.sum(-2, dtype=torch.float64)

    def at_keys(
        self, keys: Int[Tensor, "#batch #head row target"]
    ) -> tuple[Float[Tensor, "batch head row target"], Bool[Tensor, "#batch #head row target"]]:
        """Weights at given keys of each row, and whether each key exists and may be read.

        Args:
            keys: key indices; anything outside the keys (such as -1) does not exist.
        """
        exists = (keys >= 0) & (keys < self.mask.n_keys)
        inside = (keys >= self.low) & (keys < self.high)
        query = self.query_index[None, None, :, None]
        permitted = exists & self.mask.permits(query, keys.clamp(0, self.mask.n_keys - 1))
        sizes = (*torch.broadcast_shapes(self.pattern.shape[:3], keys.shape[:3]), keys.shape[-1])
        column = (keys - self.low).clamp(0, self.high - self.low - 1).long().expand(sizes)
        weights = self.pattern.expand(*sizes[:3], -1).gather(-1, column)
        return weights.masked_fill(~inside, 0.0), permitted

    def at_offset(self, offset: int) -> Float[Tensor, "batch head row"]:
        """Weight on the key ``offset`` before each query (after it, when negative); 0 where there is none."""
        weights = self.pattern.new_zeros(self.pattern.shape[:-1])
        rows, keys = self.pattern.shape[-2:]
        shift = self.start + self.mask.offset - offset - self.low
        first, last = max(0, -shift), min(rows, keys - shift)
        if first < last:
            weights[..., first:last] = self.pattern.diagonal(shift, -2, -1)
        return weights

    def of_queries(self, labels: Int[Tensor, "#batch key"]) -> Int[Tensor, "#batch row"]:
        """Each query's own label, where labels are given per key; −1 for a query that stands at no key."""
        at = self.query_key_index
        exists = (at >= 0) & (at < self.mask.n_keys)
        return labels[:, at.clamp(0, self.mask.n_keys - 1)].masked_fill(~exists, -1)


def _between(running: Tensor, first: Tensor, last: Tensor, width: int) -> Tensor:
    """Differences of a running sum between two places of each row."""
    index = torch.stack([first, last]).clamp(0, width)[:, None, None, :, None]
    index = index.expand(2, *running.shape[:2], -1, 1)
    low, high = (running.gather(-1, i).squeeze(-1) for i in index)
    return high - low
