"""The engine in PyTorch: attention a block of query rows at a time, on any device, for any probe and any edit.

For each block: scores of its rows against the keys in reach, softmax, edits, probes, output. Blocks are as tall as fits
a fixed number of bytes, so memory stays O(T · d). The backward pass recomputes the blocks one after the other.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor
from torch.autograd.function import once_differentiable

from .edits import Edit, KnockOut, ScaleExponent
from .mask import BoundMask, Mask
from .probes import Probe, Reading
from .rows import FORBIDDEN, Rows, Site, SiteShape

__all__ = ["Call", "blocked", "chance", "row_blocks"]

BLOCK_BYTES = {"cpu": 8 << 20, "cuda": 256 << 20}
"""Bytes of one score block. On CPU a few of them stay in the last-level cache; a GPU wants more work per launch."""


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
        def of(i: int) -> dict[str, Tensor]:
            return {name: value for (owner, name), value in values.items() if owner == i}

        edits = tuple(edit.with_parameters(of(i)) for i, edit in enumerate(self.edits))
        return replace(self, mask=self.mask.with_parameters(of(-1)), edits=edits)

    def stage(self, name: str) -> list[Edit]:
        return [edit for edit in self.edits if edit.stage == name]


class _Scratch:
    """Memory reused from block to block: on CPU, fresh pages cost more than the arithmetic done on them."""

    def __init__(self, dtype: torch.dtype, device: torch.device) -> None:
        self.dtype, self.device = dtype, device
        self._flat: dict[str, Tensor] = {}

    def __call__(self, name: str, shape: tuple[int, ...]) -> Tensor:
        size = int(torch.Size(shape).numel())
        flat = self._flat.get(name)
        if flat is None or flat.numel() < size:
            flat = self._flat[name] = torch.empty(size, dtype=self.dtype, device=self.device)
        return flat[:size].view(shape)


def blocked(
    call: Call,
    query: Float[Tensor, "batch head query d_head"],
    key: Float[Tensor, "batch kv_head key d_head"],
    value: Float[Tensor, "batch kv_head key d_value"],
    probes: Sequence[Probe],
) -> tuple[Float[Tensor, "batch head query d_value"], list[Reading]]:
    """Attention output and readings. Gradients reach query, key, value, bias, sinks and the tensors of edits."""
    parameters = call.parameters()
    tensors = (query, key, value, *parameters.values())
    work = _Work(call, tuple(parameters), probes)
    if torch.is_grad_enabled() and any(t.requires_grad for t in tensors):
        output = _Recomputed.apply(work, *tensors)
    else:
        output = work.forward(query, key, value)
    return output, work.readings  # type: ignore[return-value]


class _Work:
    """What the forward and backward pass of one call share."""

    def __init__(self, call: Call, names: tuple[tuple[int, str], ...], probes: Sequence[Probe]) -> None:
        self.call, self.names, self.probes = call, names, probes
        self.readings: list[Reading] = []

    def forward(self, query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        call, dtype = self.call, _compute_dtype(query)
        bound = _bind(call.mask, query, key)
        with torch.no_grad(), _full_precision(query.device):
            key, value = key.to(dtype).contiguous(), value.to(dtype).contiguous()
            shape = SiteShape(*query.shape[:2], key.shape[1], *bound_sizes(bound), query.device, bound, call.site, value)
            self.readings = [Reading(probe, shape) for probe in self.probes]
            now = [r for r in self.readings if "grad_pattern" not in r.probe.needs]
            keep_scores = any("scores" in r.probe.needs for r in now)
            scratch = _Scratch(dtype, query.device)
            # [batch, query, head, d] in memory: what a model reshapes it to next
            out = query.new_empty(query.shape[0], query.shape[2], query.shape[1], value.shape[-1]).transpose(1, 2)
            for start, stop in row_blocks(bound, call.block_rows, dtype):
                rows = compute_rows(call, bound, query[:, :, start:stop], key, start, stop, keep_scores, scratch)
                rows.value = value[:, :, rows.low : rows.high]
                for reading in now:
                    reading.update(rows)
                out[:, :, start:stop] = _output(call, rows, value)
        return out

    def backward(self, grad_out: Tensor, query: Tensor, key: Tensor, value: Tensor, extra: Sequence[Tensor]):  # noqa: ANN201
        """Gradients of query, key, value and the extra tensors, a block at a time."""
        dtype = _compute_dtype(query)
        key, value = key.to(dtype).contiguous(), value.to(dtype).contiguous()
        leaves = [t.detach().requires_grad_(True) for t in extra]
        call = self.call.with_parameters(dict(zip(self.names, leaves, strict=True)))
        bound = _bind(call.mask, query, key)
        late = [r for r in self.readings if "grad_pattern" in r.probe.needs]
        for reading in late:
            reading.restart()
        grads = [torch.zeros(t.shape, dtype=dtype, device=t.device) for t in (query, key, value, *leaves)]
        for start, stop in row_blocks(bound, call.block_rows, dtype):
            low, high = bound.key_range(start, stop)
            q = query[:, :, start:stop].detach().to(dtype).requires_grad_(True)
            k, v = (t[:, :, low:high].detach().requires_grad_(True) for t in (key, value))
            with torch.enable_grad():
                rows = compute_rows(call, bound, q, k, start, stop, keep_scores=bool(late), key_low=low)
                output = _output(call, rows, v, key_low=low)
            inputs = [q, k, v, *leaves, *([rows.pattern] if late and rows.pattern.requires_grad else [])]
            if not output.requires_grad:
                continue
            found = torch.autograd.grad(output, inputs, grad_out[:, :, start:stop].to(dtype), allow_unused=True)
            self._add(grads, found, start, stop, low, high)
            if late and len(found) > len(grads):
                self._read_gradients(late, rows, found[-1], v.detach())
        return grads

    @staticmethod
    def _add(grads: list[Tensor], found: tuple[Tensor | None, ...], start: int, stop: int, low: int, high: int) -> None:
        places = [grads[0][:, :, start:stop], grads[1][:, :, low:high], grads[2][:, :, low:high], *grads[3:]]
        for place, grad in zip(places, found, strict=False):
            if grad is not None:
                place += grad

    @staticmethod
    def _read_gradients(late: list[Reading], rows: Rows, grad: Tensor | None, value: Tensor) -> None:
        with torch.no_grad():
            seen = replace(
                rows,
                pattern=rows.pattern.detach(),
                scores=None if rows.scores is None else rows.scores.detach(),
                value=value,
                grad_pattern=torch.zeros_like(rows.pattern) if grad is None else grad,
            )
            for reading in late:
                reading.update(seen)


class _Recomputed(torch.autograd.Function):
    """The engine with a backward pass that recomputes each block, so that no pattern is kept."""

    @staticmethod
    def forward(ctx: Any, work: _Work, *tensors: Tensor) -> Tensor:
        ctx.work = work
        ctx.save_for_backward(*tensors)
        return work.forward(*tensors[:3])

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad_out: Tensor) -> tuple[Tensor | None, ...]:
        tensors = ctx.saved_tensors
        with _full_precision(grad_out.device):
            grads = ctx.work.backward(grad_out, *tensors[:3], tensors[3:])
        return (None, *(g.to(t.dtype) if need else None for g, t, need in zip(
            grads, tensors, ctx.needs_input_grad[1:], strict=True)))  # fmt: skip


def row_blocks(bound: BoundMask, block_rows: int | None, dtype: torch.dtype) -> Iterator[tuple[int, int]]:
    """Blocks of query rows ``(start, stop)``, taller where fewer keys are in reach."""
    budget = BLOCK_BYTES.get(bound.device.type, BLOCK_BYTES["cuda"])
    per_key = bound.batch * bound.n_heads * dtype.itemsize
    start = 0
    while start < bound.n_queries:
        height = block_rows
        if height is None:
            # The reach grows with the block under a causal mask: fit the height to the reach of a block that is taller
            height = 1
            for _ in range(2):
                low, high = bound.key_range(start, min(start + height, bound.n_queries))
                height = max(8, budget // (per_key * max(high - low, 1)))
        stop = min(start + height, bound.n_queries)
        yield start, stop
        start = stop


def compute_rows(
    call: Call,
    bound: BoundMask,
    query: Float[Tensor, "batch head row d_head"],
    key: Float[Tensor, "batch kv_head key d_head"],
    start: int,
    stop: int,
    keep_scores: bool = False,
    scratch: _Scratch | None = None,
    key_low: int = 0,
) -> Rows:
    """The rows of one block after all edits of scores and pattern.

    Args:
        query: the block's queries. key: all keys, or those from ``key_low`` on.
        keep_scores: probes will read scores, so the softmax must not overwrite them.
        scratch: memory to reuse; None when gradients are wanted.
    """
    low, high = bound.key_range(start, stop)
    scores = _raw_scores(call, query, key[:, :, low - key_low : high - key_low], scratch)
    rows = Rows(
        start=start, stop=stop, low=low, high=high, mask=bound, site=call.site, pattern=scores, scratch=scratch
    )  # fmt: skip
    scores = _adjusted_scores(call, rows, scores, in_place=scratch is not None)
    empty = (scores.amax(-1) <= FORBIDDEN / 2) if rows.high > rows.low and _may_be_empty(call, bound) else None
    if high == low:
        empty = torch.ones(scores.shape[:-1], dtype=torch.bool, device=scores.device)
    rows.valid = _valid(bound, start, stop, empty)
    # The softmax may overwrite the scores, so the sink's share is taken before it
    sinks = bound.mask.sinks
    left = None if sinks is None else torch.sigmoid(scores.logsumexp(-1) - sinks.to(scores)[None, :, None])
    room = None if scratch is None else scratch("pattern", tuple(scores.shape)) if keep_scores else scores
    pattern = torch.softmax(scores, -1) if room is None else torch.softmax(scores, -1, out=room)
    if left is not None:
        # softmax over keys and sink = softmax over keys × the share that the sink leaves
        pattern = pattern * left[..., None]
        rows.sink_weight = 1 - left
    if empty is not None and high > low and bool(empty.any()):
        pattern = pattern.masked_fill(empty[..., None], 0.0)
    rows.scores = scores if keep_scores else None
    for edit in call.stage("pattern"):
        pattern = edit.apply(pattern, rows)
        rows.edited = True
    rows.pattern = pattern
    return rows


def _raw_scores(call: Call, query: Tensor, key: Tensor, scratch: _Scratch | None) -> Tensor:
    """scale · q kᵀ, with the heads of a group in one matrix product: [batch, head, row, key]."""
    batch, n_heads, rows, d_head = query.shape
    n_kv_heads, n_keys = key.shape[1:3]
    scale: float | Tensor = call.scale
    for edit in call.stage("scale"):
        assert isinstance(edit, ScaleExponent)
        full = scale if isinstance(scale, Tensor) else torch.full((n_heads,), scale, dtype=key.dtype, device=key.device)
        scale = edit.scales(full, d_head)
    scaled = query.to(key.dtype) * (scale.view(1, -1, 1, 1) if isinstance(scale, Tensor) else scale)
    grouped = scaled.reshape(batch * n_kv_heads, n_heads // n_kv_heads * rows, d_head)
    flat = key.reshape(batch * n_kv_heads, n_keys, d_head).transpose(1, 2)
    room = None if scratch is None else scratch("scores", (*grouped.shape[:2], n_keys))
    scores = torch.bmm(grouped, flat) if room is None else torch.bmm(grouped, flat, out=room)
    return scores.view(batch, n_heads, rows, n_keys)


def _adjusted_scores(call: Call, rows: Rows, scores: Tensor, in_place: bool) -> Tensor:
    """Scores after softcap, bias, edits and mask."""
    if call.softcap is not None:
        scores = call.softcap * torch.tanh(scores / call.softcap)
    bias = rows.mask.bias(rows.start, rows.stop, rows.low, rows.high)
    if bias is not None:
        scores = scores + bias.to(scores.dtype)
    cut = []
    for edit in call.stage("scores"):
        if isinstance(edit, KnockOut):
            cut.append(edit.forbidden(rows, scores.shape[1]))
        else:
            scores = edit.apply(scores, rows)
    scores = rows.mask.forbid(scores, rows.start, rows.low, FORBIDDEN, in_place)
    for forbidden in cut:
        scores = scores.masked_fill(forbidden, FORBIDDEN)
    return scores


def _may_be_empty(call: Call, bound: BoundMask) -> bool:
    return bound.may_have_empty_rows or any(isinstance(edit, KnockOut) for edit in call.edits)


def _valid(bound: BoundMask, start: int, stop: int, empty: Tensor | None) -> Tensor | None:
    """Rows that take part in statistics: neither padding nor empty."""
    padding = bound.query_valid
    valid = None if padding is None else padding[:, None, start:stop]
    if empty is None:
        return valid
    return ~empty if valid is None else valid & ~empty


def _output(call: Call, rows: Rows, value: Tensor, key_low: int = 0) -> Tensor:
    """pattern · value and the edits of z: [batch, head, row, d_value]."""
    batch, n_heads, n_rows, n_keys = rows.pattern.shape
    n_kv_heads = value.shape[1]
    flat = value[:, :, rows.low - key_low : rows.high - key_low].reshape(batch * n_kv_heads, n_keys, -1)
    grouped = rows.pattern.reshape(batch * n_kv_heads, n_heads // n_kv_heads * n_rows, n_keys)
    z = torch.bmm(grouped, flat).view(batch, n_heads, n_rows, -1)
    for edit in call.stage("z"):
        z = edit.apply(z, rows)
    return z


def chance(mask: Mask, shape: SiteShape, probes: Sequence[Probe]) -> list[Reading | None]:
    """What each probe reads from uniform attention under the same mask, computed exactly.

    None for probes that need more than a pattern (values, weights, gradients). Batch and head have size 1 where the
    mask does not depend on them.
    """
    bound = mask.bind(shape.batch, shape.n_heads, shape.n_queries, shape.n_keys, shape.device)
    readings = [None if probe.needs & {"value", "weights", "grad_pattern"} else Reading(probe, shape) for probe in probes]
    for start, stop in row_blocks(bound, None, torch.float64):
        low, high = bound.key_range(start, stop)
        rows = Rows(start=start, stop=stop, low=low, high=high, mask=bound, pattern=torch.empty(0), edited=True)
        n_allowed = rows.n_allowed
        rows.pattern = rows.allowed.double() / n_allowed.clamp_min(1)[..., None]
        rows.valid = _valid(bound, start, stop, n_allowed == 0)
        for reading in readings:
            if reading is not None:
                reading.update(rows)
    return readings


def bound_sizes(bound: BoundMask) -> tuple[int, int]:
    return bound.n_queries, bound.n_keys


def _bind(mask: Mask, query: Tensor, key: Tensor) -> BoundMask:
    return mask.bind(query.shape[0], query.shape[1], query.shape[2], key.shape[2], query.device)


def _compute_dtype(query: Tensor) -> torch.dtype:
    """Scores, softmax and statistics in float32 whatever the input; float64 is kept."""
    return torch.float64 if query.dtype is torch.float64 else torch.float32


@contextlib.contextmanager
def _full_precision(device: torch.device) -> Iterator[None]:
    """No autocast, no TF32: statistics of rounded scores are statistics of another model."""
    tf32 = torch.backends.cuda.matmul.allow_tf32
    with torch.autocast(device.type, enabled=False):
        torch.backends.cuda.matmul.allow_tf32 = False
        try:
            yield
        finally:
            torch.backends.cuda.matmul.allow_tf32 = tf32
