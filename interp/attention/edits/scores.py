"""Edits before the softmax: of the scale, of the scores, of which edges there are."""

# ruff: noqa: D102 (what the methods are for, Edit says)

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from interp.attention.rows import Block

from .base import Address, Edit, Stage, ValueEdit, put, rows_of

__all__ = ["AddLogits", "KnockOut", "ScaleExponent", "Temperature"]


@dataclass(frozen=True, eq=False)
class ScaleExponent(ValueEdit):
    """Scale q · k by d_head^−α instead of the model's own scale: α = ½ is the standard, 0 is no scaling."""

    heads: Mapping[Any, float | Tensor]
    stage: ClassVar[Stage] = "scale"

    def scales(self, scale: Float[Tensor, " head"], d_head: int) -> Float[Tensor, " head"]:
        """The scale of every head."""
        heads = self.selected(scale.shape[0])
        alpha = _one_number_each(self, heads, scale)
        return scale.index_copy(0, torch.tensor(heads, device=scale.device), float(d_head) ** -alpha)


@dataclass(frozen=True, eq=False)
class Temperature(ValueEdit):
    """Divide each head's scores by a positive temperature (number or tensor): above 1 flattens, below 1 sharpens."""

    heads: Mapping[Any, float | Tensor]
    stage: ClassVar[Stage] = "scores"

    def apply(self, x: Tensor, block: Block) -> Tensor:
        heads = self.selected(x.shape[1])
        temperature = _one_number_each(self, heads, x)
        if not bool((temperature > 0).all()):
            raise ValueError(f"Temperature must be above 0; got {temperature.tolist()} for heads {heads}")
        return put(x, heads, x[:, heads] / temperature.view(1, -1, 1, 1))


@dataclass(frozen=True, eq=False)
class AddLogits(ValueEdit):
    """Add numbers or tensors broadcastable to [batch, query, key] to each head's scores; they may be learned.

    A key whose score becomes −inf is forbidden.
    """

    heads: Mapping[Any, float | Float[Tensor, "#batch #query #key"]]
    stage: ClassVar[Stage] = "scores"

    def apply(self, x: Tensor, block: Block) -> Tensor:
        heads = self.selected(x.shape[1])
        added = [rows_of(self.heads[h], ("batch", "query", "key"), block, "AddLogits").to(x) for h in heads]
        return put(x, heads, torch.stack([x[:, h] + logits for h, logits in zip(heads, added, strict=True)], 1))


@dataclass(frozen=True, eq=False)
class KnockOut(Edit):
    """Forbid edges before the softmax, which shares their weight among the remaining keys (Geva et al. 2023).

    A row that loses all its keys gives zeros and enters no statistic.

    Args:
        edges: (query, key) pairs, where None means every one; or a boolean tensor, True where an edge is cut,
            broadcastable to [batch, query, key].
        heads: None for every head.
    """

    edges: Sequence[tuple[int | None, int | None]] | Bool[Tensor, ...] = ()
    heads: Collection[Address] | None = None
    stage: ClassVar[Stage] = "scores"

    def __post_init__(self) -> None:
        super().__post_init__()
        if isinstance(self.edges, Mapping):
            raise ValueError(
                "KnockOut takes edges and heads apart: KnockOut([(query, key), …], heads=[(layer, head), …])"
            )
        if isinstance(self.edges, Tensor) and self.edges.dtype is not torch.bool:
            raise ValueError(f"KnockOut.edges must be boolean (True: cut) or pairs; got a tensor of {self.edges.dtype}")

    def forbidden(self, block: Block, n_heads: int) -> Bool[Tensor, "#batch head row key"]:
        """True where the edit forbids a key."""
        if isinstance(self.edges, Tensor):
            cut = rows_of(self.edges, ("batch", "query", "key"), block, "KnockOut").to(block.mask.device)[:, None]
        else:
            cut = torch.zeros(1, 1, block.stop - block.start, block.high - block.low, dtype=torch.bool)
            for query, key in self.edges:
                _check_edge(query, key, block)
                rows = slice(None) if query is None else _window(query, block.start, block.stop)
                keys = slice(None) if key is None else _window(key, block.low, block.high)
                cut[..., rows, keys] = True
            cut = cut.to(block.mask.device)
        chosen = torch.zeros(1, n_heads, 1, 1, dtype=torch.bool, device=block.mask.device)
        chosen[:, self.selected(n_heads)] = True
        return cut & chosen


def _one_number_each(edit: Edit, heads: list[int], like: Tensor) -> Float[Tensor, " head"]:
    given = [torch.as_tensor(edit.heads[h], dtype=like.dtype, device=like.device) for h in heads]
    for head, number in zip(heads, given, strict=True):
        if number.numel() != 1:
            raise ValueError(
                f"{type(edit).__name__} takes one number a head; got shape {list(number.shape)} for {head}"
            )
    return torch.stack([number.reshape(()) for number in given])


def _check_edge(query: int | None, key: int | None, block: Block) -> None:
    for name, index, size in (("query", query, block.mask.n_queries), ("key", key, block.mask.n_keys)):
        if index is not None and not 0 <= index < size:
            raise IndexError(f"KnockOut: {name} must lie in 0 … {size - 1}; got {index}")


def _window(index: int, start: int, stop: int) -> slice:
    return slice(index - start, index - start + 1) if start <= index < stop else slice(0, 0)
