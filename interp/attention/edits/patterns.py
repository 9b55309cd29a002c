"""Edits of the pattern, after the softmax."""

# ruff: noqa: D102 (what the methods are for, Edit says)

from __future__ import annotations

import zlib
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, ClassVar, Self

import torch
from jaxtyping import Float, Int
from torch import Tensor

from interp.attention.rows import Block

from .base import Address, Edit, Stage, check_size, put

if TYPE_CHECKING:
    from interp.attention.traces import Traces

__all__ = ["Permute", "ReplaceRows", "Replay", "Uniform"]


@dataclass(frozen=True, eq=False)
class Uniform(Edit):
    """Spread each row's weight evenly over the keys that it may read; what a sink took of it stays with the sink."""

    heads: Collection[Address] | None = None
    stage: ClassVar[Stage] = "pattern"

    def apply(self, x: Tensor, block: Block) -> Tensor:
        heads = self.selected(x.shape[1])
        readable = block.readable.to(x.dtype)
        even = (readable / readable.sum(-1, keepdim=True).clamp_min(1)).expand_as(x)[:, heads]
        return put(x, heads, even * x[:, heads].sum(-1, keepdim=True))


@dataclass(frozen=True, eq=False)
class Permute(Edit):
    """Shuffle each row's weights among the keys that it may read, every row in its own way.

    The same seed gives the same permutations on every device and for every block size.
    """

    heads: Collection[Address] | None = None
    seed: int = 0
    stage: ClassVar[Stage] = "pattern"

    def apply(self, x: Tensor, block: Block) -> Tensor:
        heads = self.selected(x.shape[1])
        noise = self._noise(x.shape[0], heads, block)
        readable = block.readable.expand_as(x)[:, heads]
        last = torch.iinfo(torch.int64).max
        shuffled = noise.masked_fill(~readable, last).argsort(dim=-1, stable=True)
        in_order = (~readable).int().argsort(dim=-1, stable=True)
        moved = x[:, heads].gather(-1, shuffled)
        return put(x, heads, torch.zeros_like(moved).scatter(-1, in_order, moved))

    def _noise(self, batch: int, heads: list[int], block: Block) -> Int[Tensor, "batch head row key"]:
        """Counter-based random integers: a hash of (seed, site, sequence, head, query, key)."""
        device = block.mask.device
        site = zlib.crc32(block.site.name.encode()) if block.site is not None else 0
        x = _mix(torch.arange(batch, device=device)[:, None, None, None] + self.seed * 1_000_003 + site)
        x = _mix(x + torch.tensor(heads, device=device)[None, :, None, None])
        x = _mix(x + block.query_key_index[None, None, :, None])
        return _mix(x + block.key_index[None, None, None, :])


@dataclass(frozen=True, eq=False)
class ReplaceRows(Edit):
    """Put given weights in place of chosen rows.

    Args:
        heads: address → (queries, weights): row indices [n], and weights broadcastable to [batch, n, key]. Weights
            may be learned; weight on a key that the row may not read is an error.
    """

    heads: Mapping[Any, tuple[Sequence[int] | Tensor, Float[Tensor, "#batch n key"]]]
    stage: ClassVar[Stage] = "pattern"
    per_head: ClassVar[bool] = True

    def parameters(self) -> dict[str, Tensor]:
        """The weights, which may be learned."""
        return {str(head): weights for head, (_, weights) in self.heads.items()}

    def with_parameters(self, values: dict[str, Tensor]) -> Self:
        """The same edit over other weights."""
        return replace(self, heads={h: (q, values.get(str(h), w)) for h, (q, w) in self.heads.items()})

    def apply(self, x: Tensor, block: Block) -> Tensor:
        for head in self.selected(x.shape[1]):
            queries, weights = self.heads[head]
            queries = torch.as_tensor(queries, device=x.device)
            weights = weights[None] if weights.ndim == 2 else weights
            self._check(queries, weights, x.shape[0], block)
            here = ((queries >= block.start) & (queries < block.stop)).nonzero().flatten()
            if not len(here):
                continue
            chosen = self._permitted(weights[:, here.to(weights.device)].to(x), queries[here], head, block)
            rows = chosen[..., block.low : block.high].expand(x.shape[0], -1, -1)
            new = x[:, head].index_copy(1, queries[here] - block.start, rows)
            x = put(x, [head], new[:, None])
        return x

    @staticmethod
    def _check(queries: Tensor, weights: Tensor, batch: int, block: Block) -> None:
        if weights.ndim != 3 or queries.ndim != 1:
            raise ValueError(
                "ReplaceRows takes row indices [n] and weights [n, key] or [batch, n, key]; got "
                f"{list(queries.shape)} and {list(weights.shape)}"
            )
        check_size("ReplaceRows", "batch", weights.shape[0], batch if weights.shape[0] != 1 else 1)
        check_size("ReplaceRows", "rows", weights.shape[1], len(queries))
        check_size("ReplaceRows", "key", weights.shape[2], block.mask.n_keys)
        outside = (queries < 0) | (queries >= block.mask.n_queries)
        if bool(outside.any()) or len(queries.unique()) < len(queries):
            raise ValueError(
                f"ReplaceRows: rows must lie in 0 … {block.mask.n_queries - 1}, each named once; got {queries.tolist()}"
            )

    @staticmethod
    def _permitted(weights: Tensor, queries: Tensor, head: int, block: Block) -> Tensor:
        """The weights, with no gradient where there can be none."""
        key = torch.arange(block.mask.n_keys, device=weights.device)
        permitted = block.mask.permits(queries[None, None, :, None], key[None, None, None, :])
        permitted = permitted[:, head if permitted.shape[1] > 1 else 0]
        if ((weights != 0) & ~permitted).any():
            raise ValueError(f"ReplaceRows puts weight of head {head} on a key that its row may not read")
        return weights.masked_fill(~permitted, 0.0)


@dataclass(frozen=True, eq=False)
class Replay(Edit):
    """Force another run's patterns: rows are recomputed from that run's kept queries and keys, block by block.

    Args:
        traces: from ``model.run(tokens, keep="qk").traces``; every site that the edit meets must be in it.
        heads: None for every head.
    """

    traces: Traces
    heads: Collection[Address] | None = None
    stage: ClassVar[Stage] = "pattern"

    def apply(self, x: Tensor, block: Block) -> Tensor:
        heads = self.selected(x.shape[1])
        rows = self.traces.rows_of(block.site, block.start, block.stop, (block.low, block.high))
        if rows.pattern.shape != x.shape:
            raise ValueError(
                f"Replay: the kept run had pattern rows of shape {list(rows.pattern.shape)}, this one has "
                f"{list(x.shape)}; run both on the same number of sequences and tokens"
            )
        return put(x, heads, rows.pattern.to(x)[:, heads])


def _mix(x: Tensor) -> Tensor:
    """One round of splitmix64 on int64 (multiplication wraps, shifts are made logical)."""
    x = x * -7046029254386353131
    x = (x ^ ((x >> 30) & 0x3FFFFFFFF)) * -4658895280553007687
    x = (x ^ ((x >> 27) & 0x1FFFFFFFFF)) * -7723592293110705685
    return x ^ ((x >> 31) & 0x1FFFFFFFF)
