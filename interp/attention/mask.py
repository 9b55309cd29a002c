"""Which keys a query may read, and what is added to its scores: said in words, handed out a block of rows at a time.

A :class:`Mask` holds no query × key tensor unless its user gives it one. It is bound to the sizes of one call
(:meth:`Mask.bind`), which checks it; a :class:`~interp.attention.bound.BoundMask` then answers for any block of query
rows.

Indices: queries count from 0 to ``n_queries - 1``; keys from 0 to ``n_keys - 1``. Query ``i`` stands at key index
``i + offset`` (by default the queries are the last ones of the keys, as in cached decoding).
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from dataclasses import dataclass, replace

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from .bias import AlibiSlopes, IndexBias, RelativeBuckets
from .bound import BoundMask

__all__ = ["Mask"]

IndexPredicate = Callable[[Tensor, Tensor, Tensor, Tensor], Tensor]
"""``(batch, head, query, key) -> permitted``: broadcastable index tensors in, booleans out. Query and key indices
are counted along the keys."""


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
            :class:`RelativeBuckets`, or a function of query and key index. In a tensor, ``-inf`` or its dtype's
            lowest number forbids a key.
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
    bias: Float[Tensor, ...] | AlibiSlopes | RelativeBuckets | IndexBias | None = None
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

    def of_heads(self, heads: slice) -> Mask | None:
        """The mask of some heads; None where a function, which is given numbers of heads, decides for each."""
        if callable(self.allowed) or callable(self.bias):
            return None

        def cut(tensor: Tensor) -> Tensor:
            return tensor[:, heads] if tensor.ndim == 4 and tensor.shape[1] > 1 else tensor

        bias = self.bias
        if isinstance(bias, AlibiSlopes):
            bias = replace(bias, slopes=bias.slopes[heads])
        elif isinstance(bias, RelativeBuckets):
            bias = replace(bias, table=bias.table[:, heads])
        elif bias is not None:
            bias = cut(bias)
        allowed = None if self.allowed is None else cut(self.allowed)
        return replace(self, allowed=allowed, bias=bias, sinks=None if self.sinks is None else self.sinks[heads])

    def to(self, device: torch.device | str) -> Mask:
        """The same mask with its tensors on another device."""

        def moved(value: object) -> object:
            if isinstance(value, Tensor):
                return value.to(device)
            if isinstance(value, AlibiSlopes):
                return replace(value, slopes=value.slopes.to(device))
            if isinstance(value, RelativeBuckets):
                return replace(value, table=value.table.to(device))
            return value

        return Mask(**{field.name: moved(getattr(self, field.name)) for field in dataclasses.fields(self)})  # type: ignore[arg-type]
