"""Which keys a query may read, and what is added to its scores: said in words, handed out a block of rows at a time.

A :class:`Mask` holds no query × key tensor unless its user gives it one. It is bound to the sizes of one call
(:meth:`Mask.bind`), which checks it; a :class:`BoundMask` then answers for any block of query rows.

Indices: queries count from 0 to ``n_queries - 1``; keys from 0 to ``n_keys - 1``. Query ``i`` stands at key index
``i + offset`` (by default the queries are the last ones of the keys, as in cached decoding).
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import cached_property

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

__all__ = ["AlibiSlopes", "BoundMask", "Mask", "RelativeBuckets"]

IndexPredicate = Callable[[Tensor, Tensor, Tensor, Tensor], Tensor]
"""``(batch, head, query, key) -> permitted``: broadcastable index tensors in, booleans out. Query and key indices
are counted along the keys."""

IndexBias = Callable[[Tensor, Tensor], Tensor]
"""``(query, key) -> bias``: index tensors of shapes [row, 1] and [1, key], counted along the keys; returns a tensor
broadcastable to [batch, head, row, key]. Treated as a constant: it has no gradient."""


@dataclass(frozen=True, eq=False)
class AlibiSlopes:
    """ALiBi (Press et al. 2022): adds ``-slope · |query − key|`` to the scores of each head.

    Bloom's form ``slope · key`` differs by a constant per row, which the softmax removes.
    """

    slopes: Float[Tensor, " head"]

    def rows(self, query: Int[Tensor, "row 1"], key: Int[Tensor, "1 key"]) -> Float[Tensor, "1 head row key"]:
        return -self.slopes[None, :, None, None] * (query - key).abs().to(self.slopes.dtype)


@dataclass(frozen=True, eq=False)
class RelativeBuckets:
    """T5's relative position bias: a learned value per head and bucket of distance (Raffel et al. 2020).

    Half of the buckets (of each direction, when ``bidirectional``) hold one distance each; the others grow
    logarithmically up to ``max_distance``, and the last holds everything beyond.
    """

    table: Float[Tensor, "bucket head"]
    bidirectional: bool = True
    max_distance: int = 128

    def buckets(self, query: Int[Tensor, "row 1"], key: Int[Tensor, "1 key"]) -> Int[Tensor, "row key"]:
        ahead = key - query
        n_buckets = self.table.shape[0]
        first = torch.zeros_like(ahead)
        if self.bidirectional:
            n_buckets //= 2
            first = (ahead > 0) * n_buckets
            distance = ahead.abs()
        else:
            distance = (-ahead).clamp_min(0)
        exact = n_buckets // 2
        growth = torch.log(distance.clamp_min(1).float() / exact) / math.log(self.max_distance / exact)
        logarithmic = exact + (growth * (n_buckets - exact)).long()
        return first + torch.where(distance < exact, distance, logarithmic.clamp_max(n_buckets - 1))

    def rows(self, query: Int[Tensor, "row 1"], key: Int[Tensor, "1 key"]) -> Float[Tensor, "1 head row key"]:
        return self.table[self.buckets(query, key)].permute(2, 0, 1)[None]


@dataclass(frozen=True, eq=False)
class Mask:
    """Which keys each query may read, and what is added to its scores.

    Args:
        causal: a query sees keys up to and including its own position.
        window: a query sees itself and the ``window - 1`` keys before it (and after it, when not causal).
        key_valid: False marks padding keys, on either side; nothing ever reads them.
        query_valid: False marks padding rows. They are computed, but left out of every statistic. By default the
            queries' own entries of ``key_valid``; give it for cross-attention.
        allowed: further restrictions, as a boolean tensor ([query, key] or [batch, head, query, key] with sizes 1
            where they broadcast; three dimensions are ambiguous and refused) or as a function of indices.
        bias: added to the scores after scale and softcap: a tensor shaped as ``allowed``, :class:`AlibiSlopes`,
            :class:`RelativeBuckets`, or a function of query and key index. ``-inf`` forbids a key.
        sinks: one learned logit per head that takes part in the softmax and carries no value (gpt-oss); rows then
            sum to less than 1.
        query_offset: key index of query 0. By default ``n_keys - n_queries`` (0 when ``cross``).
        cross: queries and keys come from different sequences, so that distances between them mean nothing.
    """

    causal: bool = False
    window: int | None = None
    key_valid: Bool[Tensor, "batch key"] | None = None
    query_valid: Bool[Tensor, "batch query"] | None = None
    allowed: Bool[Tensor, "#batch #head #query #key"] | Bool[Tensor, "query key"] | IndexPredicate | None = None
    bias: Float[Tensor, "..."] | AlibiSlopes | RelativeBuckets | IndexBias | None = None
    sinks: Float[Tensor, " head"] | None = None
    query_offset: int | None = None
    cross: bool = False

    def __post_init__(self) -> None:
        if self.window is not None and self.window < 1:
            raise ValueError(f"window must be at least 1 (a query always sees itself); got {self.window}")
        if self.cross and (self.causal or self.window is not None):
            raise ValueError("cross-attention has no common order of queries and keys: causal and window do not apply")

    def bind(self, batch: int, n_heads: int, n_queries: int, n_keys: int, device: torch.device) -> BoundMask:
        """Check the mask against the sizes of one call. Raises ValueError that names the field and both shapes."""
        return BoundMask(self, batch, n_heads, n_queries, n_keys, device)

    def parameters(self) -> dict[str, Tensor]:
        """The floating tensors that gradients may flow to, by a name that :meth:`with_parameters` understands."""
        found: dict[str, Tensor] = {}
        if isinstance(self.bias, Tensor):
            found["bias"] = self.bias
        elif isinstance(self.bias, AlibiSlopes):
            found["slopes"] = self.bias.slopes
        elif isinstance(self.bias, RelativeBuckets):
            found["table"] = self.bias.table
        if self.sinks is not None:
            found["sinks"] = self.sinks
        return found

    def with_parameters(self, values: dict[str, Tensor]) -> Mask:
        """The same mask over other tensors: how a block is recomputed on detached leaves in a backward pass."""
        bias = self.bias
        if "bias" in values:
            bias = values["bias"]
        elif isinstance(bias, AlibiSlopes) and "slopes" in values:
            bias = replace(bias, slopes=values["slopes"])
        elif isinstance(bias, RelativeBuckets) and "table" in values:
            bias = replace(bias, table=values["table"])
        return replace(self, bias=bias, sinks=values.get("sinks", self.sinks))

    def to(self, device: torch.device | str) -> Mask:
        """The same mask with its tensors on another device."""

        def moved(value: object) -> object:
            if isinstance(value, Tensor):
                return value.to(device)
            if isinstance(value, AlibiSlopes):
                return AlibiSlopes(value.slopes.to(device))
            if isinstance(value, RelativeBuckets):
                return replace(value, table=value.table.to(device))
            return value

        return Mask(**{field.name: moved(getattr(self, field.name)) for field in dataclasses.fields(self)})  # type: ignore[arg-type]


class BoundMask:
    """A :class:`Mask` and the sizes of one call: answers for any block of query rows."""

    def __init__(
        self, mask: Mask, batch: int, n_heads: int, n_queries: int, n_keys: int, device: torch.device
    ) -> None:
        self.mask = mask
        self.batch, self.n_heads, self.n_queries, self.n_keys = batch, n_heads, n_queries, n_keys
        self.device = device
        self.offset = (
            mask.query_offset if mask.query_offset is not None else 0 if mask.cross else n_keys - n_queries
        )
        self._check()
        self.allowed_tensor = _four_dimensions(mask.allowed) if isinstance(mask.allowed, Tensor) else None
        self.bias_tensor = _four_dimensions(mask.bias) if isinstance(mask.bias, Tensor) else None

    def _check(self) -> None:
        mask, batch, device = self.mask, self.batch, self.device
        if mask.causal and self.offset < 0:
            raise ValueError(
                f"causal attention needs every query among the keys; got {self.n_queries} queries, {self.n_keys} keys "
                f"and query_offset {self.offset}. Pass the keys of all queries, or cross=True"
            )
        for name, value, shape in (
            ("key_valid", mask.key_valid, (batch, self.n_keys)),
            ("query_valid", mask.query_valid, (batch, self.n_queries)),
            ("sinks", mask.sinks, (self.n_heads,)),
        ):
            if value is not None and tuple(value.shape) != shape:
                raise ValueError(f"Mask.{name} must have shape {list(shape)}; got {list(value.shape)}")
        for name in ("key_valid", "query_valid", "allowed"):
            value = getattr(mask, name)
            if isinstance(value, Tensor) and value.dtype is not torch.bool:
                raise ValueError(f"Mask.{name} must be boolean (True: may be read); got {value.dtype}")
        for name in ("allowed", "bias"):
            value = getattr(mask, name)
            if isinstance(value, Tensor):
                _check_broadcast(name, value, (batch, self.n_heads, self.n_queries, self.n_keys))
        for name, n_heads in (("AlibiSlopes", _heads_of(mask.bias)),):
            if n_heads is not None and n_heads != self.n_heads:
                raise ValueError(f"{name} in Mask.bias must cover {self.n_heads} heads; got {n_heads}")
        for name, value in _tensors(mask):
            if value.device != device:
                raise ValueError(f"Mask.{name} is on {value.device}, query on {device}; move it with Mask.to(device)")

    # Sizes and ranges -------------------------------------------------------------------------------------------

    def key_range(self, start: int, stop: int) -> tuple[int, int]:
        """Keys ``[low, high)`` outside of which causal order and window leave nothing to queries ``[start, stop)``."""
        low, high = 0, self.n_keys
        if self.mask.causal:
            high = min(high, stop + self.offset)
        if self.mask.window is not None:
            low = max(low, start + self.offset - self.mask.window + 1)
            if not self.mask.causal:
                high = min(high, stop + self.offset + self.mask.window - 1)
        return min(low, high), max(high, 0)

    @property
    def may_have_empty_rows(self) -> bool:
        """Whether some row could have no permitted key at all."""
        restricted = self.mask.key_valid is not None or self.mask.allowed is not None or self.mask.bias is not None
        inside = self.mask.cross or 0 <= self.offset <= self.n_keys - self.n_queries
        ordered = self.mask.causal or self.mask.window is not None
        return restricted or (ordered and not inside) or self.n_keys == 0

    def query_index(self, start: int, stop: int) -> Int[Tensor, " row"]:
        """Key indices at which queries ``[start, stop)`` stand."""
        return torch.arange(start + self.offset, stop + self.offset, device=self.device)

    # Statistics' view of padding --------------------------------------------------------------------------------

    @cached_property
    def query_valid(self) -> Bool[Tensor, "batch query"] | None:
        """Rows that take part in statistics; None when all do."""
        if self.mask.query_valid is not None:
            return self.mask.query_valid
        if self.mask.key_valid is None or self.mask.cross:
            return None
        index = self.query_index(0, self.n_queries)
        inside = (index >= 0) & (index < self.n_keys)
        return self.mask.key_valid[:, index.clamp(0, self.n_keys - 1)] & inside

    @cached_property
    def key_position(self) -> Int[Tensor, "#batch key"]:
        """Each key's place among the valid keys of its sequence: the first valid key is 0, whatever the padding."""
        if self.mask.key_valid is None:
            return torch.arange(self.n_keys, device=self.device)[None]
        return self.mask.key_valid.long().cumsum(-1) - 1

    @cached_property
    def query_position(self) -> Int[Tensor, "#batch query"]:
        """Each query's place in its own sequence, counted as :attr:`key_position`."""
        if self.mask.cross:
            if self.mask.query_valid is None:
                return torch.arange(self.n_queries, device=self.device)[None]
            return self.mask.query_valid.long().cumsum(-1) - 1
        index = self.query_index(0, self.n_queries)
        return self.key_position[:, index.clamp(0, max(self.n_keys - 1, 0))]

    # Who may read whom ------------------------------------------------------------------------------------------

    def permits(self, query: Int[Tensor, "..."], key: Int[Tensor, "..."]) -> Bool[Tensor, "..."]:
        """Whether query row may read key, elementwise.

        Args:
            query: row indices (from 0), broadcastable with ``key``; dimensions [batch, head, ...].
            key: key indices, all within the keys.

        Returns:
            Booleans of the broadcast shape (batch and head of size 1 where the mask does not depend on them).
        """
        permitted = self._in_order(query, key)
        batch = torch.arange(self.batch, device=self.device).view(-1, *[1] * (max(query.ndim, key.ndim) - 1))
        head = torch.arange(self.n_heads, device=self.device).view(1, -1, *[1] * (max(query.ndim, key.ndim) - 2))
        if self.mask.key_valid is not None:
            permitted = permitted & self.mask.key_valid[batch, key]
        if self.allowed_tensor is not None:
            permitted = permitted & _pick(self.allowed_tensor, batch, head, query, key)
        elif callable(self.mask.allowed):
            permitted = permitted & self.mask.allowed(batch, head, query + self.offset, key)
        if self.bias_tensor is not None:
            permitted = permitted & ~torch.isneginf(_pick(self.bias_tensor, batch, head, query, key))
        return permitted

    def _in_order(self, query: Int[Tensor, "..."], key: Int[Tensor, "..."]) -> Bool[Tensor, "..."]:
        """What causal order and window alone permit, elementwise."""
        at = query + self.offset
        permitted = torch.ones(torch.broadcast_shapes(query.shape, key.shape), dtype=torch.bool, device=self.device)
        if self.mask.causal:
            permitted = permitted & (key <= at)
        if self.mask.window is not None:
            permitted = permitted & ((at - key).abs() < self.mask.window)
        return permitted

    def allowed(self, start: int, stop: int, low: int, high: int) -> Bool[Tensor, "#batch #head row key"]:
        """Permitted keys ``[low, high)`` of queries ``[start, stop)``."""
        query = torch.arange(start, stop, device=self.device)[None, None, :, None]
        key = torch.arange(low, high, device=self.device)[None, None, None, :]
        permitted = self._in_order(query, key)
        if self.mask.key_valid is not None:
            permitted = permitted & self.mask.key_valid[:, None, None, low:high]
        if self.allowed_tensor is not None:
            permitted = permitted & _slice(_slice(self.allowed_tensor, 2, start, stop), 3, low, high)
        elif callable(self.mask.allowed):
            batch = torch.arange(self.batch, device=self.device)[:, None, None, None]
            head = torch.arange(self.n_heads, device=self.device)[None, :, None, None]
            permitted = permitted & self.mask.allowed(batch, head, query + self.offset, key)
        if self.bias_tensor is not None:
            permitted = permitted & ~torch.isneginf(_slice(_slice(self.bias_tensor, 2, start, stop), 3, low, high))
        return permitted

    def forbid(
        self, scores: Float[Tensor, "batch head row key"], start: int, low: int, value: float, in_place: bool
    ) -> Float[Tensor, "batch head row key"]:
        """Put ``value`` where a query may not read a key.

        With nothing but order and window to respect, only the ragged ends of a block are touched.
        """
        rows, keys = scores.shape[-2:]
        if rows == 0 or keys == 0:
            return scores
        mask = self.mask
        everywhere = mask.key_valid is not None or mask.allowed is not None or self.bias_tensor is not None
        if everywhere or not in_place:
            forbidden = ~self.allowed(start, start + rows, low, low + keys)
            return scores.masked_fill_(forbidden, value) if in_place else scores.masked_fill(forbidden, value)
        for first, last in self._ragged(start, rows, low, low + keys):
            forbidden = ~self.allowed(start, start + rows, first, last)
            scores[..., first - low : last - low].masked_fill_(forbidden, value)
        return scores

    def _ragged(self, start: int, rows: int, low: int, high: int) -> Iterator[tuple[int, int]]:
        """Key ranges of a block in which causal order or window may forbid something."""
        first_at, last_at, window = start + self.offset, start + rows - 1 + self.offset, self.mask.window
        open_from, open_to = low, high
        if window is not None:
            open_from = max(low, last_at - window + 1)
        if self.mask.causal:
            open_to = min(high, first_at + 1)
        elif window is not None:
            open_to = min(high, first_at + window)
        if open_from >= open_to:
            yield low, high
            return
        if low < open_from:
            yield low, open_from
        if open_to < high:
            yield open_to, high

    def bias(self, start: int, stop: int, low: int, high: int) -> Float[Tensor, "#batch #head row key"] | None:
        """What is added to the scores of queries ``[start, stop)`` and keys ``[low, high)``; ``-inf`` reads as 0,
        since :meth:`forbid` takes care of it."""
        bias = self.mask.bias
        if bias is None:
            return None
        if self.bias_tensor is not None:
            rows = _slice(_slice(self.bias_tensor, 2, start, stop), 3, low, high)
            return rows.masked_fill(torch.isneginf(rows), 0.0)
        query = torch.arange(start + self.offset, stop + self.offset, device=self.device)[:, None]
        key = torch.arange(low, high, device=self.device)[None, :]
        if isinstance(bias, AlibiSlopes | RelativeBuckets):
            return bias.rows(query, key)
        assert callable(bias)
        rows = bias(query, key)
        if rows.requires_grad:
            raise ValueError(
                "a function given as Mask.bias is a constant, but returned a tensor that requires grad; "
                "use AlibiSlopes, RelativeBuckets or a tensor for a bias that learns"
            )
        if torch.isneginf(rows).any():
            raise ValueError("a function given as Mask.bias returned -inf; forbid keys with Mask.allowed instead")
        return rows.reshape(*[1] * (4 - rows.ndim), *rows.shape)


def _four_dimensions(tensor: Tensor) -> Tensor:
    return tensor[None, None] if tensor.ndim == 2 else tensor


def _slice(tensor: Tensor, dim: int, start: int, stop: int) -> Tensor:
    return tensor if tensor.shape[dim] == 1 else tensor.narrow(dim, start, stop - start)


def _pick(tensor: Tensor, batch: Tensor, head: Tensor, query: Tensor, key: Tensor) -> Tensor:
    """Elements of a [batch, head, query, key] tensor whose dimensions of size 1 broadcast."""
    index = (batch, head, query, key)
    return tensor[tuple(i if size > 1 else torch.zeros_like(i) for i, size in zip(index, tensor.shape, strict=True))]


def _check_broadcast(name: str, tensor: Tensor, shape: tuple[int, int, int, int]) -> None:
    if tensor.ndim not in (2, 4):
        raise ValueError(
            f"Mask.{name} must have 2 dimensions [query, key] or 4 [batch, head, query, key], so that batch and heads "
            f"cannot be confused; got {list(tensor.shape)}"
        )
    given = tuple(_four_dimensions(tensor).shape)
    if any(size not in (1, full) for size, full in zip(given, shape, strict=True)):
        raise ValueError(
            f"Mask.{name} must broadcast to [batch, head, query, key] = {list(shape)}; got {list(tensor.shape)}"
        )


def _heads_of(bias: object) -> int | None:
    if isinstance(bias, AlibiSlopes):
        return bias.slopes.shape[0]
    return bias.table.shape[1] if isinstance(bias, RelativeBuckets) else None


def _tensors(mask: Mask) -> Iterator[tuple[str, Tensor]]:
    for name in ("key_valid", "query_valid", "allowed"):
        value = getattr(mask, name)
        if isinstance(value, Tensor):
            yield name, value
    yield from mask.parameters().items()
