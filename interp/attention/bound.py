"""A mask bound to the sizes of one attention call: who may read whom, and with what bias, for any block of rows."""

from __future__ import annotations

from collections.abc import Iterator
from functools import cached_property
from typing import TYPE_CHECKING

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from .bias import AlibiSlopes, RelativeBuckets, forbids

if TYPE_CHECKING:
    from .mask import Mask

__all__ = ["BoundMask"]


class BoundMask:
    """A :class:`Mask` and the sizes of one call: answers for any block of query rows."""

    def __init__(self, mask: Mask, batch: int, n_heads: int, n_queries: int, n_keys: int, device: torch.device) -> None:
        self.mask = mask
        self.batch, self.n_heads, self.n_queries, self.n_keys = batch, n_heads, n_queries, n_keys
        self.device = device
        self.offset = mask.query_offset if mask.query_offset is not None else 0 if mask.cross else n_keys - n_queries
        self._key_at: dict[int, Tensor] = {}
        self._check()
        self.allowed_tensor = _four_dimensions(mask.allowed) if isinstance(mask.allowed, Tensor) else None

    @property
    def bias_tensor(self) -> Float[Tensor, "#batch #head #query #key"] | None:
        """The bias where it is a tensor. A view made at each use, so that gradients find their way through it."""
        return _four_dimensions(self.mask.bias) if isinstance(self.mask.bias, Tensor) else None

    def _check(self) -> None:
        mask, sizes = self.mask, (self.batch, self.n_heads, self.n_queries, self.n_keys)
        if mask.causal and self.offset < 0:
            raise ValueError(
                f"causal attention needs every query among the keys; got {self.n_queries} queries, {self.n_keys} keys "
                f"and query_offset {self.offset}. Pass the keys of all queries, or cross=True"
            )
        for name, value, shape in (
            ("key_valid", mask.key_valid, (self.batch, self.n_keys)),
            ("query_valid", mask.query_valid, (self.batch, self.n_queries)),
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
                _check_broadcast(name, value, sizes)
        for name, value in _tensors(mask):
            if value.device != self.device:
                raise ValueError(
                    f"Mask.{name} is on {value.device}, query on {self.device}; move it with Mask.to(device)"
                )
        _check_bias(mask.bias, self.n_heads)

    # Sizes and ranges -------------------------------------------------------------------------------------------

    def key_range(self, start: int, stop: int) -> tuple[int, int]:
        """Keys ``[low, high)`` outside of which causal order and window leave nothing to queries ``[start, stop)``."""
        low, high, window = 0, self.n_keys, self.mask.window
        if self.mask.causal:
            high = stop + self.offset
        elif window is not None:
            high = stop + self.offset + window - 1
        if window is not None:
            low = start + self.offset - window + 1
        low = min(max(low, 0), self.n_keys)
        return low, min(max(low, high), self.n_keys)

    def stretch(self, start: int, stop: int) -> tuple[Int[Tensor, " row"], Int[Tensor, " row"]]:
        """The keys ``[first, last)`` that causal order and window leave to each query."""
        at = self.query_index(start, stop)
        first, last = torch.zeros_like(at), torch.full_like(at, self.n_keys)
        if self.mask.window is not None:
            first, last = at - self.mask.window + 1, at + self.mask.window
        if self.mask.causal:
            last = at + 1
        first = first.clamp(0, self.n_keys)
        return first, torch.maximum(last.clamp(0, self.n_keys), first)

    @property
    def may_have_empty_rows(self) -> bool:
        """Whether some row could have no permitted key at all."""
        inside = self.mask.cross or 0 <= self.offset <= self.n_keys - self.n_queries
        ordered = self.mask.causal or self.mask.window is not None
        return self.is_listed or (ordered and not inside) or self.n_keys == 0

    @property
    def is_listed(self) -> bool:
        """Whether more than causal order and window decides who may read whom."""
        return self.mask.key_valid is not None or self.mask.allowed is not None or self.bias_tensor is not None

    def query_index(self, start: int, stop: int) -> Int[Tensor, " row"]:
        """Key indices at which queries ``[start, stop)`` stand."""
        return torch.arange(start + self.offset, stop + self.offset, device=self.device)

    # Statistics' view of padding --------------------------------------------------------------------------------

    @cached_property
    def query_valid(self) -> Bool[Tensor, "batch query"] | None:
        """Rows that take part in statistics; None when all do."""
        if self.mask.query_valid is not None:
            return self.mask.query_valid
        if self.mask.key_valid is None or self.mask.cross or self.n_keys == 0:
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

    def key_at(self, position: int) -> Int[Tensor, "#batch 1"]:
        """Index of the valid key at a position of its sequence; −1 where there is none."""
        if position not in self._key_at:
            found = self.key_position == position
            if self.mask.key_valid is not None:
                found = found & self.mask.key_valid
            index = torch.arange(self.n_keys, device=self.device)
            self._key_at[position] = torch.where(found, index, -1).amax(1, keepdim=True)
        return self._key_at[position]

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

    def permits(self, query: Int[Tensor, ...], key: Int[Tensor, ...]) -> Bool[Tensor, ...]:
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
        elif self.mask.allowed is not None:
            permitted = permitted & self._predicate(batch, head, query, key)
        if (bias := self.bias_tensor) is not None:
            permitted = permitted & ~forbids(_pick(bias, batch, head, query, key))
        return permitted

    def _in_order(self, query: Int[Tensor, ...], key: Int[Tensor, ...]) -> Bool[Tensor, ...]:
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
        elif self.mask.allowed is not None:
            batch = torch.arange(self.batch, device=self.device)[:, None, None, None]
            head = torch.arange(self.n_heads, device=self.device)[None, :, None, None]
            permitted = permitted & self._predicate(batch, head, query, key)
        if (bias := self.bias_tensor) is not None:
            permitted = permitted & ~forbids(_slice(_slice(bias, 2, start, stop), 3, low, high))
        return permitted

    def _predicate(self, batch: Tensor, head: Tensor, query: Tensor, key: Tensor) -> Tensor:
        """What a function given as ``Mask.allowed`` says."""
        assert callable(self.mask.allowed)
        permitted = self.mask.allowed(batch, head, query + self.offset, key)
        if permitted.dtype is not torch.bool:
            raise ValueError(f"a function given as Mask.allowed must return booleans; got {permitted.dtype}")
        return permitted

    def ragged(self, start: int, stop: int, low: int, high: int) -> Iterator[tuple[int, int]]:
        """Key ranges of a block in which causal order or window forbids something."""
        first_at, last_at, window = start + self.offset, stop - 1 + self.offset, self.mask.window
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

    def bias(
        self, start: int, stop: int, low: int, high: int, dtype: torch.dtype
    ) -> Float[Tensor, "#batch #head row key"] | None:
        """What is added to the scores of queries ``[start, stop)`` and keys ``[low, high)``.

        0 where it forbids a key, which :meth:`allowed` takes care of: an infinite score times a zero gradient is NaN.
        """
        bias = self.mask.bias
        if bias is None:
            return None
        if (tensor := self.bias_tensor) is not None:
            rows = _slice(_slice(tensor, 2, start, stop), 3, low, high)
            return rows.masked_fill(forbids(rows), 0.0).to(dtype)
        query = self.query_index(start, stop)[:, None]
        key = torch.arange(low, high, device=self.device)[None, :]
        if isinstance(bias, AlibiSlopes | RelativeBuckets):
            return bias.rows(query, key, dtype)
        assert callable(bias)
        rows = bias(query, key)
        if rows.requires_grad:
            raise ValueError(
                "a function given as Mask.bias is a constant, but returned a tensor that requires grad; "
                "use AlibiSlopes, RelativeBuckets or a tensor for a bias that learns"
            )
        if rows.is_floating_point() and forbids(rows).any():
            raise ValueError("a function given as Mask.bias returned -inf; forbid keys with Mask.allowed instead")
        return rows.reshape(*[1] * (4 - rows.ndim), *rows.shape).to(dtype)


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


def _check_bias(bias: object, n_heads: int) -> None:
    if isinstance(bias, Tensor) and not bias.is_floating_point():
        raise ValueError(f"Mask.bias must be floating (booleans belong in Mask.allowed); got {bias.dtype}")
    if not isinstance(bias, AlibiSlopes | RelativeBuckets):
        return
    values = bias.slopes if isinstance(bias, AlibiSlopes) else bias.table
    name = f"{type(bias).__name__} in Mask.bias"
    if values.shape[-1] != n_heads:
        raise ValueError(f"{name} must cover {n_heads} heads; got {values.shape[-1]}")
    if forbids(values).any():
        raise ValueError(f"{name} must be finite; forbid keys with Mask.allowed instead")


def _tensors(mask: Mask) -> Iterator[tuple[str, Tensor]]:
    for name in ("key_valid", "query_valid", "allowed"):
        value = getattr(mask, name)
        if isinstance(value, Tensor):
            yield name, value
    yield from mask.parameters().items()
