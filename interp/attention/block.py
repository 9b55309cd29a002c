"""One block of query rows: its scores, softmax, edits and output."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace

import torch
from jaxtyping import Float
from torch import Tensor

from . import products
from .bias import FORBIDDEN
from .bound import BoundMask
from .edits import Edit, KnockOut
from .mask import Mask
from .rows import Block, Rows, Site

__all__ = ["Call", "Scratch", "compute_dtype", "compute_rows", "edit_scores", "output_of", "valid_rows"]


@dataclass(frozen=True, eq=False)
class Call:
    """One attention call without its tensors."""

    mask: Mask
    scale: float
    softcap: float | None
    edits: tuple[Edit, ...] = ()
    site: Site | None = None
    block_rows: int | None = None

    def parameters(self) -> dict[tuple[int, str], Tensor]:
        """Tensors of the mask (-1) and of each edit (its number) that gradients may flow to."""
        found = {(-1, name): value for name, value in self.mask.parameters().items()}
        for i, edit in enumerate(self.edits):
            found |= {(i, name): value for name, value in edit.parameters().items()}
        return found

    def with_parameters(self, values: dict[tuple[int, str], Tensor]) -> Call:
        """The same call over other tensors."""

        def of(i: int) -> dict[str, Tensor]:
            return {name: value for (owner, name), value in values.items() if owner == i}

        edits = tuple(edit.with_parameters(of(i)) for i, edit in enumerate(self.edits))
        return replace(self, mask=self.mask.with_parameters(of(-1)), edits=edits)

    def stage(self, name: str) -> list[Edit]:
        """The edits of one stage, in order."""
        return [edit for edit in self.edits if edit.stage == name]


class Scratch:
    """Memory reused from block to block and, on CPU, from call to call: there, fresh pages cost more than the
    arithmetic done on them."""

    _kept = threading.local()

    def __init__(self, dtype: torch.dtype, device: torch.device) -> None:
        self.dtype, self.device = dtype, device
        self._flat: dict[str, Tensor] = {}

    @classmethod
    @contextmanager
    def taken(cls, dtype: torch.dtype, device: torch.device, most: int) -> Iterator[Scratch]:
        """Scratch memory for one call. A thread keeps one between calls, unless a block took more than ``most`` bytes;
        a call within a call (by an edit, say) finds it taken and gets its own."""
        kept: Scratch | None = cls._kept.__dict__.pop("scratch", None)
        mine = kept if kept is not None and (kept.dtype, kept.device) == (dtype, device) else cls(dtype, device)
        try:
            yield mine
        finally:
            if device.type == "cpu" and all(flat.nbytes <= most for flat in mine._flat.values()):
                cls._kept.scratch = mine

    def __call__(self, name: str, shape: tuple[int, ...]) -> Tensor:
        """Room of a shape under a name; what was there before is overwritten."""
        size = int(torch.Size(shape).numel())
        flat = self._flat.get(name)
        if flat is None or flat.numel() < size:
            with torch.inference_mode(False):  # a tensor made in inference mode could not be used outside of it
                flat = self._flat[name] = torch.empty(size, dtype=self.dtype, device=self.device)
        return flat[:size].view(shape)


def compute_dtype(query: Tensor) -> torch.dtype:
    """Scores, softmax and statistics in float32 whatever the input; float64 is kept."""
    return torch.float64 if query.dtype is torch.float64 else torch.float32


def compute_rows(
    call: Call,
    bound: BoundMask,
    query: Float[Tensor, "batch head row d_head"],
    key: Float[Tensor, "batch kv_head key d_head"],
    start: int,
    stop: int,
    keep_scores: bool = False,
    scratch: Scratch | None = None,
    key_low: int = 0,
) -> Rows:
    """The rows of one block after all edits of scores and pattern.

    Args:
        query: the block's queries. key: all keys, or those from ``key_low`` on.
        keep_scores: probes will read scores, so the softmax must not overwrite them.
        scratch: memory to reuse; None when gradients are wanted.
    """
    low, high = bound.key_range(start, stop)
    block = Block(start=start, stop=stop, low=low, high=high, mask=bound, site=call.site)
    scores = _raw_scores(call, query, key[:, :, low - key_low : high - key_low], scratch)
    scores = _adjusted_scores(call, block, scores, in_place=scratch is not None)
    empty = _empty(block, scores, bound.may_have_empty_rows or bool(call.stage("scores")))
    # The softmax may overwrite the scores, so the sink's share is taken before it
    sink_weight, left = (None, None) if bound.mask.sinks is None else _sink_shares(scores, bound.mask.sinks)
    room = None if scratch is None else scratch("pattern", tuple(scores.shape)) if keep_scores else scores
    pattern = torch.softmax(scores, -1) if room is None else torch.softmax(scores, -1, out=room)
    if left is not None:
        # softmax over keys and sink = softmax over keys × the share that the sink leaves
        pattern = pattern * left if room is None else pattern.mul_(left)
    if empty is not None:
        pattern = pattern.masked_fill(empty[..., None], 0.0)
    edits = call.stage("pattern")
    for edit in edits:
        pattern = edit.apply(pattern, block)
    if edits and sink_weight is not None:
        sink_weight = (1 - pattern.sum(-1)).clamp_min(0)
    return Rows(
        **vars(block),
        pattern=pattern,
        scores=scores if keep_scores else None,
        sink_weight=sink_weight,
        valid=valid_rows(bound, start, stop, empty),
        edited=bool(edits),
        scratch=scratch,
    )


def _raw_scores(call: Call, query: Tensor, key: Tensor, scratch: Scratch | None) -> Tensor:
    """scale · q kᵀ, with the heads of a group in one matrix product: [batch, head, row, key]."""
    batch, n_heads, rows, d_head = query.shape
    n_kv_heads, n_keys = key.shape[1:3]
    scale: float | Tensor = call.scale
    if edits := call.stage("scale"):
        scale = torch.full((n_heads,), call.scale, dtype=key.dtype, device=key.device)
        for edit in edits:
            scale = edit.scales(scale, d_head)
        scale = scale.view(1, -1, 1, 1)
    grouped = (query.to(key.dtype) * scale).reshape(batch * n_kv_heads, n_heads // n_kv_heads * rows, d_head)
    flat = key.reshape(batch * n_kv_heads, n_keys, d_head).transpose(1, 2)
    room = None if scratch is None else scratch("scores", (*grouped.shape[:2], n_keys))
    return products.batched(grouped, flat, room).view(batch, n_heads, rows, n_keys)


def _adjusted_scores(call: Call, block: Block, scores: Tensor, in_place: bool) -> Tensor:
    """Scores after softcap, bias, edits and mask."""
    if (cap := call.softcap) is not None:
        scores = scores.div_(cap).tanh_().mul_(cap) if in_place else cap * torch.tanh(scores / cap)
    bias = block.mask.bias(block.start, block.stop, block.low, block.high, scores.dtype)
    if bias is not None:
        scores = scores.add_(bias) if in_place else scores + bias
    scores = _forbid(block, edit_scores(call.edits, block, scores), in_place)
    return scores if block.cut is None else scores.masked_fill(block.cut, FORBIDDEN)


def edit_scores(edits: Sequence[Edit], block: Block, scores: Tensor) -> Tensor:
    """Scores after the edits of scores. What they cut is left to ``block.cut``; a score of −inf forbids its key."""
    for edit in edits:
        if isinstance(edit, KnockOut):
            cut = edit.forbidden(block, scores.shape[1])
            block.cut = cut if block.cut is None else block.cut | cut
        elif edit.stage == "scores":
            scores = edit.apply(scores, block).clamp_min(FORBIDDEN)
    return scores


def _forbid(block: Block, scores: Tensor, in_place: bool) -> Tensor:
    """Scores with :data:`FORBIDDEN` where the mask forbids a key. In place, and with nothing but order and window to
    respect, only the ragged ends of a block are touched."""
    if not in_place:
        return scores.masked_fill(~block.allowed, FORBIDDEN)
    mask, (start, stop, low, high) = block.mask, (block.start, block.stop, block.low, block.high)
    if mask.is_listed:
        return scores.masked_fill_(~block.allowed, FORBIDDEN)
    for first, last in mask.ragged(start, stop, low, high):
        scores[..., first - low : last - low].masked_fill_(~mask.allowed(start, stop, first, last), FORBIDDEN)
    return scores


def _empty(block: Block, scores: Tensor, possible: bool) -> Tensor | None:
    """Rows that may read no key, [batch, head, row]; None when there are none."""
    if block.low == block.high:
        return scores.new_ones(scores.shape[:-1], dtype=torch.bool)
    if not possible:
        return None
    empty = scores.amax(-1) <= FORBIDDEN / 2
    return empty if bool(empty.any()) else None


def _sink_shares(scores: Tensor, sinks: Tensor) -> tuple[Tensor, Tensor]:
    """What the sink takes of each row [batch, head, row], and what it leaves [batch, head, row, 1], each to full
    precision however small it is."""
    log_odds = sinks.to(scores)[None, :, None] - scores.logsumexp(-1)
    return torch.sigmoid(log_odds), torch.sigmoid(-log_odds)[..., None]


def valid_rows(bound: BoundMask, start: int, stop: int, empty: Tensor | None) -> Tensor | None:
    """Rows that take part in statistics: neither padding nor empty."""
    valid = None if bound.query_valid is None else bound.query_valid[:, None, start:stop]
    if empty is None:
        return valid
    return ~empty if valid is None else valid & ~empty


def output_of(call: Call, rows: Rows, value: Tensor) -> Tensor:
    """pattern · value and the edits of z: [batch, head, row, d_value]."""
    batch, n_heads, n_rows, n_keys = rows.pattern.shape
    n_kv_heads, d_value = value.shape[1], value.shape[3]
    flat = value.reshape(batch * n_kv_heads, n_keys, d_value)
    grouped = rows.pattern.reshape(batch * n_kv_heads, n_heads // n_kv_heads * n_rows, n_keys)
    z = products.batched(grouped, flat).view(batch, n_heads, n_rows, d_value)
    for edit in call.stage("z"):
        z = edit.apply(z, rows)
    return z
