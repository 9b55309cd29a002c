"""What all edits share: addresses of heads, tensors that learn, and how a tensor is cut to a block."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from numbers import Integral
from typing import Any, ClassVar, Literal, Self

import torch
from jaxtyping import Float
from torch import Tensor

from interp.attention.rows import Block, Site

__all__ = ["Address", "Edit", "Stage", "ValueEdit", "check_size", "place_and_head", "put", "rows_of"]

Address = int | tuple[int, int] | tuple[str, int]
"""How a head is named: ``head``, ``(layer, head)`` or ``(site name, head)``. Mappings from addresses are annotated with
any key, since one from ``(int, int)`` alone would not be a mapping from ``Address`` to a type checker."""

Stage = Literal["scale", "scores", "pattern", "z"]


class Edit:
    """Base of all edits, which are frozen dataclasses.

    Attributes:
        heads: the heads it acts on: a mapping from address to value, or a collection of addresses; None where an edit
            allows it means every head of every site. Every edit has this field.
        stage: where in the computation it acts.
    """

    heads: Any
    stage: ClassVar[Stage] = "scores"

    def __post_init__(self) -> None:
        if self.heads is not None and not isinstance(self.heads, Collection):
            kind = type(self).__name__
            raise ValueError(f"{kind}: heads is a collection of heads, [(layer, head), …]; got {self.heads!r}")

    def addresses(self) -> tuple[Address, ...]:
        """The heads named, in the order given; empty when the edit acts on every head."""
        return () if self.heads is None else tuple(self.heads)

    def at(self, site: Site | None) -> Self | None:
        """This edit with only the heads of one site, addressed by number; None when it has none there.

        Raises:
            ValueError: two addresses mean one head, or one is no address.
        """
        if self.heads is None:
            return self
        here = {address: _head_at(address, site) for address in self.addresses()}
        mine = {address: head for address, head in here.items() if head is not None}
        if not mine:
            return None
        if len(set(mine.values())) < len(mine):
            raise ValueError(f"{type(self).__name__} names a head twice: {', '.join(map(str, mine))}")
        if isinstance(self.heads, Mapping):
            return self._on({head: self.heads[address] for address, head in mine.items()})
        return self._on(tuple(mine.values()))

    def check(self, n_heads: int, site: Site | None) -> None:
        """Raise IndexError for a head that the site does not have."""
        for head in self.heads or ():
            if not 0 <= head < n_heads:
                where = f"site {site.name}" if site is not None else "this attention call"
                raise IndexError(f"{type(self).__name__}: {where} has heads 0 … {n_heads - 1}; there is no head {head}")

    def parameters(self) -> dict[str, Tensor]:
        """Floating tensors inside the edit that gradients may flow to."""
        if not isinstance(self.heads, Mapping):
            return {}
        return {str(h): v for h, v in self.heads.items() if isinstance(v, Tensor) and v.is_floating_point()}

    def with_parameters(self, values: dict[str, Tensor]) -> Self:
        """The same edit over other tensors."""
        if not values:
            return self
        return self._on({h: values.get(str(h), v) for h, v in self.heads.items()})

    def _on(self, heads: Any) -> Self:
        return replace(self, heads=heads)  # type: ignore[type-var]

    def apply(self, x: Tensor, block: Block) -> Tensor:
        """The stage's tensor ([batch, head, row, key], or [batch, head, row, d_head] for ``z``) after the edit.

        Must neither change ``x`` in place nor keep it: its memory is used again for the next block.
        """
        raise NotImplementedError(f"{type(self).__name__} must define apply(x, block)")

    def scales(self, scale: Float[Tensor, " head"], d_head: int) -> Float[Tensor, " head"]:
        """For the stage ``scale``: the factor on q · k of every head, given the one before the edit."""
        raise NotImplementedError(f"{type(self).__name__} must define scales(scale, d_head)")

    def selected(self, n_heads: int) -> list[int]:
        """Numbers of the heads that it acts on."""
        return list(range(n_heads)) if self.heads is None else list(self.heads)


class ValueEdit(Edit):
    """Base of edits that are given a value for each head: ``heads`` is a mapping from address to value."""

    def __post_init__(self) -> None:
        if not isinstance(self.heads, Mapping):
            kind = type(self).__name__
            raise ValueError(f"{kind} takes a value for each head, {kind}({{(layer, head): …}}); got {self.heads!r}")


def place_and_head(address: Any) -> tuple[int | str | None, int]:
    """The layer or site that an address names (None: it names none), and its head.

    Raises:
        ValueError: it is no address.
    """
    if _is_number(address):
        return None, int(address)
    if isinstance(address, tuple) and len(address) == 2 and _is_number(address[1]):
        where, head = address
        if isinstance(where, str) or _is_number(where):
            return where, int(head)
    raise ValueError(
        f"heads are named as (layer, head), (site name, head) or, in a direct call of attend, head; got {address!r}"
    )


def _is_number(part: Any) -> bool:
    return isinstance(part, Integral) and not isinstance(part, bool)


def _head_at(address: Address, site: Site | None) -> int | None:
    """The head number that an address means at a site, or None when it means another site."""
    where, head = place_and_head(address)
    if where is None:
        return head
    if site is None:
        raise ValueError(f"address {address} names a layer or site, but this attention call has none; use {head}")
    return head if where in (site.layer, site.name) else None


def put(x: Tensor, heads: list[int], new: Tensor) -> Tensor:
    """``x`` with other values for some heads."""
    if heads == list(range(x.shape[1])):
        return new
    return x.index_copy(1, torch.tensor(heads, device=x.device), new.to(x.dtype))


def rows_of(tensor: Tensor | float, dimensions: Sequence[str], block: Block, name: str) -> Tensor:
    """A number, or a tensor broadcastable to [batch, query, ...], cut to a block's rows, and to its keys where a
    dimension is "key".

    Raises:
        ValueError: it has more dimensions, or one that is neither 1 nor of the attention call's size.
    """
    tensor = torch.as_tensor(tensor)
    if tensor.ndim > len(dimensions):
        raise ValueError(f"{name} takes tensors broadcastable to [{', '.join(dimensions)}]; got {list(tensor.shape)}")
    tensor = tensor.reshape(*[1] * (len(dimensions) - tensor.ndim), *tensor.shape)
    sizes = {"batch": block.mask.batch, "query": block.mask.n_queries, "key": block.mask.n_keys}
    cut = {"query": (block.start, block.stop), "key": (block.low, block.high)}
    for i, dimension in enumerate(dimensions):
        if tensor.shape[i] == 1 or dimension not in sizes:
            continue
        check_size(name, dimension, tensor.shape[i], sizes[dimension])
        if dimension in cut:
            first, last = cut[dimension]
            tensor = tensor.narrow(i, first, last - first)
    return tensor


def check_size(name: str, dimension: str, got: int, expected: int) -> None:
    """Raise ValueError unless a dimension fits the attention call."""
    if got != expected:
        raise ValueError(f"{name}: dimension {dimension} must be 1 or {expected}, as in the attention call; got {got}")
