"""What can be written into attention while it is computed.

An edit is an immutable description: which heads, and what happens to them. Heads are addressed as ``(layer, head)``,
as ``(site name, head)``, or, in a direct call of :func:`attend`, as ``head``. Edits act at four stages, in the order
of the computation, whatever order they are given in; edits of one stage compose in the order given:

1. ``scale``: the factor on q · k (:class:`ScaleExponent`);
2. ``scores``: pre-softmax scores and forbidden edges (:class:`Temperature`, :class:`AddLogits`, :class:`KnockOut`);
3. ``pattern``: the weights (:class:`Uniform`, :class:`Permute`, :class:`ReplaceRows`, :class:`Replay`);
4. ``z``: the head's output before W_O (:class:`GateHeads`, :class:`ReplaceZ`).

Tensors inside an edit receive gradients. Writing one: subclass :class:`Edit` with a ``stage`` and ``apply``.
"""

from __future__ import annotations

import zlib
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, ClassVar, Literal, Self

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from .rows import Block, Site

if TYPE_CHECKING:
    from .traces import Traces

__all__ = [
    "AddLogits",
    "Address",
    "Edit",
    "GateHeads",
    "KnockOut",
    "Permute",
    "Replay",
    "ReplaceRows",
    "ReplaceZ",
    "ScaleExponent",
    "Temperature",
    "Uniform",
]

Address = int | tuple[int, int] | tuple[str, int]
Stage = Literal["scale", "scores", "pattern", "z"]


@dataclass(frozen=True, eq=False)
class Edit:
    """Base of all edits.

    Args:
        heads: the heads it acts on: a mapping from address to value, or a collection of addresses; None where an edit
            allows it means every head of every site.
    """

    heads: Any = None
    stage: ClassVar[Stage] = "scores"

    def addresses(self) -> tuple[Address, ...]:
        """The heads named, in the order given; empty when the edit acts on every head."""
        return () if self.heads is None else tuple(self.heads)

    def at(self, site: Site | None) -> Self | None:
        """This edit with only the heads of one site, addressed by number; None when it has none there."""
        if self.heads is None:
            return self
        here = {address: _head_at(address, site) for address in self.heads}
        mine = {address: head for address, head in here.items() if head is not None}
        if not mine:
            return None
        if isinstance(self.heads, Mapping):
            return replace(self, heads={head: self.heads[address] for address, head in mine.items()})
        return replace(self, heads=tuple(mine.values()))

    def check(self, n_heads: int, site: Site | None) -> None:
        """Raise IndexError for a head that the site does not have."""
        for head in self.heads or ():
            if not 0 <= head < n_heads:
                where = f"site {site.name}" if site is not None else "this attention call"
                raise IndexError(
                    f"{type(self).__name__}: {where} has heads 0 … {n_heads - 1}; there is no head {head}"
                )

    def parameters(self) -> dict[str, Tensor]:
        """Floating tensors inside the edit that gradients may flow to."""
        if not isinstance(self.heads, Mapping):
            return {}
        return {str(h): v for h, v in self.heads.items() if isinstance(v, Tensor) and v.is_floating_point()}

    def with_parameters(self, values: dict[str, Tensor]) -> Self:
        """The same edit over other tensors."""
        if not values:
            return self
        return replace(self, heads={h: values.get(str(h), v) for h, v in self.heads.items()})

    def apply(self, x: Tensor, block: Block) -> Tensor:
        """The stage's tensor ([batch, head, row, key], or [batch, head, row, d_head] for ``z``) after the edit.

        Must not change ``x`` in place.
        """
        raise NotImplementedError(f"{type(self).__name__} must define apply(x, block)")

    def selected(self, n_heads: int) -> list[int]:
        return list(range(n_heads)) if self.heads is None else list(self.heads)


@dataclass(frozen=True, eq=False)
class GateHeads(Edit):
    """Multiply each head's output z by a number or tensor (broadcastable to [batch, query]): 0 removes the head."""

    heads: Mapping[Address, float | Tensor]
    stage: ClassVar[Stage] = "z"

    def apply(self, x: Tensor, block: Block) -> Tensor:
        heads = self.selected(x.shape[1])
        gated = []
        for head in heads:
            gate = torch.as_tensor(self.heads[head], dtype=x.dtype, device=x.device)
            gated.append(x[:, head] * _query_rows(gate, block, "GateHeads").unsqueeze(-1))
        return _put(x, heads, torch.stack(gated, 1))


@dataclass(frozen=True, eq=False)
class ReplaceZ(Edit):
    """Put given values in place of each head's output z: tensors broadcastable to [batch, query, d_head].

    The mean over a text gives mean ablation; another sequence's z gives resample ablation.
    """

    heads: Mapping[Address, Float[Tensor, "#batch #query d_head"]]
    stage: ClassVar[Stage] = "z"

    def apply(self, x: Tensor, block: Block) -> Tensor:
        heads = self.selected(x.shape[1])
        like = x[:, 0]
        new = []
        for head in heads:
            z = self.heads[head].to(device=x.device, dtype=x.dtype)
            z = z.reshape(*[1] * (3 - z.ndim), *z.shape)
            if z.shape[1] != 1:
                _check_size("ReplaceZ", "query", z.shape[1], block.mask.n_queries)
                z = z[:, block.start : block.stop]
            new.append(z.expand_as(like))
        return _put(x, heads, torch.stack(new, 1))


@dataclass(frozen=True, eq=False)
class Temperature(Edit):
    """Divide each head's scores by a temperature (number or tensor): above 1 flattens, below 1 sharpens."""

    heads: Mapping[Address, float | Tensor]
    stage: ClassVar[Stage] = "scores"

    def apply(self, x: Tensor, block: Block) -> Tensor:
        heads = self.selected(x.shape[1])
        factor = torch.stack([torch.as_tensor(self.heads[h], dtype=x.dtype, device=x.device) for h in heads])
        return _put(x, heads, x[:, heads] / factor.view(1, -1, 1, 1))


@dataclass(frozen=True, eq=False)
class ScaleExponent(Edit):
    """Scale q · k by d_head^−α instead of the model's own scale: α = ½ is the standard, 0 is no scaling."""

    heads: Mapping[Address, float | Tensor]
    stage: ClassVar[Stage] = "scale"

    def scales(self, scale: Float[Tensor, " head"], d_head: int) -> Float[Tensor, " head"]:
        """The scale of every head."""
        heads = self.selected(scale.shape[0])
        alpha = torch.stack([torch.as_tensor(self.heads[h], dtype=scale.dtype, device=scale.device) for h in heads])
        return scale.index_copy(0, torch.tensor(heads, device=scale.device), float(d_head) ** -alpha)


@dataclass(frozen=True, eq=False)
class AddLogits(Edit):
    """Add tensors broadcastable to [batch, query, key] to each head's scores; they may be learned."""

    heads: Mapping[Address, Float[Tensor, "#batch #query #key"]]
    stage: ClassVar[Stage] = "scores"

    def apply(self, x: Tensor, block: Block) -> Tensor:
        heads = self.selected(x.shape[1])
        changed = [x[:, h] + _rows_and_keys(self.heads[h].to(x), block, "AddLogits") for h in heads]
        return _put(x, heads, torch.stack(changed, 1))


@dataclass(frozen=True, eq=False)
class KnockOut(Edit):
    """Forbid edges before the softmax, which shares their weight among the remaining keys (Geva et al. 2023).

    Args:
        edges: (query, key) pairs, where None means every one; or a boolean tensor, True where an edge is cut,
            broadcastable to [batch, query, key].
        heads: None for every head.
    """

    edges: Sequence[tuple[int | None, int | None]] | Bool[Tensor, "..."] = ()
    heads: Collection[Address] | None = None
    stage: ClassVar[Stage] = "scores"

    def forbidden(self, block: Block, n_heads: int) -> Bool[Tensor, "#batch head row key"]:
        """True where the edit forbids a key."""
        if isinstance(self.edges, Tensor):
            cut = _rows_and_keys(self.edges, block, "KnockOut").to(block.mask.device)[:, None]
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


@dataclass(frozen=True, eq=False)
class Uniform(Edit):
    """Spread each row evenly over the keys that it may read."""

    heads: Collection[Address] | None = None
    stage: ClassVar[Stage] = "pattern"

    def apply(self, x: Tensor, block: Block) -> Tensor:
        heads = self.selected(x.shape[1])
        even = block.allowed.to(x.dtype) / block.n_allowed.clamp_min(1)[..., None]
        return _put(x, heads, even.expand_as(x)[:, heads])


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
        allowed = block.allowed.expand(x.shape[0], x.shape[1], -1, -1)[:, heads]
        last = torch.iinfo(torch.int64).max
        shuffled = noise.masked_fill(~allowed, last).argsort(-1, stable=True)
        in_order = (~allowed).int().argsort(-1, stable=True)
        moved = x[:, heads].gather(-1, shuffled)
        return _put(x, heads, torch.zeros_like(moved).scatter(-1, in_order, moved))

    def _noise(self, batch: int, heads: list[int], block: Block) -> Tensor:
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

    heads: Mapping[Address, tuple[Sequence[int] | Tensor, Float[Tensor, "#batch n key"]]]
    stage: ClassVar[Stage] = "pattern"

    def parameters(self) -> dict[str, Tensor]:
        return {str(head): weights for head, (_, weights) in self.heads.items()}

    def with_parameters(self, values: dict[str, Tensor]) -> Self:
        return replace(self, heads={h: (q, values.get(str(h), w)) for h, (q, w) in self.heads.items()})

    def apply(self, x: Tensor, block: Block) -> Tensor:
        for head, (queries, weights) in self.heads.items():
            queries = torch.as_tensor(queries, device=x.device)
            weights = weights[None] if weights.ndim == 2 else weights
            _check_size("ReplaceRows", "key", weights.shape[-1], block.mask.n_keys)
            _check_size("ReplaceRows", "rows", weights.shape[-2], len(queries))
            here = ((queries >= block.start) & (queries < block.stop)).nonzero().flatten()
            if not len(here):
                continue
            rows = queries[here] - block.start
            chosen = weights[:, here].to(device=x.device, dtype=x.dtype)
            self._check_permitted(chosen, queries[here], head, block)
            new = x[:, head].index_copy(1, rows, chosen[..., block.low : block.high].expand(x.shape[0], -1, -1))
            x = _put(x, [head], new[:, None])
        return x

    @staticmethod
    def _check_permitted(weights: Tensor, queries: Tensor, head: int, block: Block) -> None:
        key = torch.arange(block.mask.n_keys, device=weights.device)
        permitted = block.mask.permits(queries[None, None, :, None], key[None, None, None, :])
        permitted = permitted[:, head if permitted.shape[1] > 1 else 0]
        if ((weights != 0) & ~permitted).any():
            raise ValueError(f"ReplaceRows puts weight of head {head} on a key that its row may not read")


@dataclass(frozen=True, eq=False)
class Replay(Edit):
    """Force another run's patterns: rows are recomputed from that run's kept queries and keys, block by block.

    Args:
        traces: from ``model.run(tokens, keep="qk").traces``; every site that the edit meets must be in it.
        heads: None for every head.
    """

    traces: Traces | None = None
    heads: Collection[Address] | None = None
    stage: ClassVar[Stage] = "pattern"

    def __post_init__(self) -> None:
        if self.traces is None:
            raise ValueError("Replay needs traces= of the run whose patterns are to be forced")

    def apply(self, x: Tensor, block: Block) -> Tensor:
        assert self.traces is not None
        heads = self.selected(x.shape[1])
        rows = self.traces.rows_of(block.site, block.start, block.stop, (block.low, block.high))
        if rows.pattern.shape != x.shape:
            raise ValueError(
                f"Replay: the kept run had pattern rows of shape {list(rows.pattern.shape)}, this one has "
                f"{list(x.shape)}; run both on the same number of sequences and tokens"
            )
        return _put(x, heads, rows.pattern.to(x.dtype)[:, heads])


def _head_at(address: Address, site: Site | None) -> int | None:
    """The head number that an address means at a site, or None when it means another site."""
    if isinstance(address, int):
        return address
    where, head = address
    if site is None:
        raise ValueError(f"address {address} names a layer or site, but this attention call has none; use {head}")
    return head if where in (site.layer, site.name) else None


def _put(x: Tensor, heads: list[int], new: Tensor) -> Tensor:
    if heads == list(range(x.shape[1])):
        return new
    return x.index_copy(1, torch.tensor(heads, device=x.device), new.to(x.dtype))


def _query_rows(tensor: Tensor, block: Block, name: str) -> Tensor:
    """A tensor broadcastable to [batch, query], cut to the block."""
    tensor = tensor.reshape(*[1] * (2 - tensor.ndim), *tensor.shape)
    if tensor.shape[1] == 1:
        return tensor
    _check_size(name, "query", tensor.shape[1], block.mask.n_queries)
    return tensor[:, block.start : block.stop]


def _rows_and_keys(tensor: Tensor, block: Block, name: str) -> Tensor:
    """A tensor broadcastable to [batch, query, key], cut to the block."""
    tensor = tensor.reshape(*[1] * (3 - tensor.ndim), *tensor.shape)
    if tensor.shape[1] != 1:
        _check_size(name, "query", tensor.shape[1], block.mask.n_queries)
        tensor = tensor[:, block.start : block.stop]
    if tensor.shape[2] != 1:
        _check_size(name, "key", tensor.shape[2], block.mask.n_keys)
        tensor = tensor[:, :, block.low : block.high]
    return tensor


def _check_size(name: str, dimension: str, got: int, expected: int) -> None:
    if got != expected:
        raise ValueError(f"{name}: dimension {dimension} must be 1 or {expected}, as in the attention call; got {got}")


def _check_edge(query: int | None, key: int | None, block: Block) -> None:
    for name, index, size in (("query", query, block.mask.n_queries), ("key", key, block.mask.n_keys)):
        if index is not None and not 0 <= index < size:
            raise IndexError(f"KnockOut: {name} must lie in 0 … {size - 1}; got {index}")


def _window(index: int, start: int, stop: int) -> slice:
    return slice(index - start, index - start + 1) if start <= index < stop else slice(0, 0)


def _mix(x: Tensor) -> Tensor:
    """One round of splitmix64 on int64 (multiplication wraps, shifts are made logical)."""
    x = x * -7046029254386353131
    x = (x ^ ((x >> 30) & 0x3FFFFFFFF)) * -4658895280553007687
    x = (x ^ ((x >> 27) & 0x1FFFFFFFFF)) * -7723592293110705685
    return x ^ ((x >> 31) & 0x1FFFFFFFF)
