"""The engine in PyTorch: attention a block of query rows at a time, on any device, for any probe and any edit.

For each block: scores of its rows against the keys in reach, softmax, edits, probes, output. Blocks are as tall as fits
a fixed number of bytes, so memory stays O(T · d). The backward pass recomputes the blocks one after the other.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

from .block import Call, Scratch, compute_dtype, compute_rows, output_of, valid_rows
from .bound import BoundMask
from .mask import Mask
from .precision import full_precision
from .probes import Probe, Reading
from .rows import Block, Rows, SiteShape

__all__ = ["Pass", "bind", "blocked", "chance", "row_blocks", "run_pass", "show"]

BLOCK_BYTES = {"cpu": 8 << 20, "cuda": 256 << 20}
"""Bytes of one score block. On CPU a few of them stay in the last-level cache; a GPU wants more work per launch."""

TALL = 64
TALL_BYTES = {"cpu": 64 << 20, "cuda": 256 << 20}
"""Long rows leave few of them to a block, and products with few rows are slow: a block may grow until it has so many
rows or bytes."""


def blocked(
    call: Call,
    query: Float[Tensor, "batch head query d_head"],
    key: Float[Tensor, "batch kv_head key d_head"],
    value: Float[Tensor, "batch kv_head key d_value"],
    probes: Sequence[Probe],
) -> tuple[Float[Tensor, "batch head query d_value"], list[Reading]]:
    """Attention output and readings. Gradients reach query, key, value, bias, sinks and the tensors of edits."""
    return run_pass(Pass, call, query, key, value, probes)


def run_pass(
    kind: type[Pass], call: Call, query: Tensor, key: Tensor, value: Tensor, probes: Sequence[Probe]
) -> tuple[Tensor, list[Reading]]:
    """One call by an engine's pass: output and readings, with a backward pass where gradients are wanted."""
    parameters = call.parameters()
    tensors = (query, key, value, *parameters.values())
    work = kind(call, tuple(parameters), probes)
    if torch.is_grad_enabled() and any(t.requires_grad for t in tensors):
        output = _Recomputed.apply(work, *tensors)
    else:
        output = work.forward(query, key, value)
    return output, work.readings  # type: ignore[return-value]


class Pass:
    """What the forward and backward pass of one call share: this engine's; the fused one has a forward of its own."""

    def __init__(self, call: Call, names: tuple[tuple[int, str], ...], probes: Sequence[Probe]) -> None:
        self.call, self.names, self.probes = call, names, probes
        self.readings: list[Reading] = []

    def forward(self, query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        """The output; readings are filled on the way."""
        dtype, most = compute_dtype(query), BLOCK_BYTES.get(query.device.type, 0)
        with torch.no_grad(), full_precision(query.device), Scratch.taken(dtype, query.device, most) as scratch:
            key, value = key.to(dtype).contiguous(), value.to(dtype).contiguous()
            # [batch, query, head, d] in memory: what a model reshapes it to next
            out = query.new_empty(query.shape[0], query.shape[2], query.shape[1], value.shape[-1]).transpose(1, 2)
            found = [
                self._heads(call, query[:, heads], key[:, kv], value[:, kv], out[:, heads], scratch)
                for call, heads, kv in self._parts(query, key)
            ]
            self.readings = (
                found[0] if len(found) == 1 else [Reading.joined(list(parts)) for parts in zip(*found, strict=True)]
            )
        return out

    def _heads(
        self, call: Call, query: Tensor, key: Tensor, value: Tensor, out: Tensor, scratch: Scratch
    ) -> list[Reading]:
        """The output of some heads, written to ``out``, and what the probes read of them."""
        bound = bind(call.mask, query, key)
        readings = self.start(bound, key.shape[1], value)
        now = [r for r in readings if not r.is_late]
        keep_scores = any("scores" in r.probe.needs for r in now)
        for start, stop in row_blocks(bound, call.block_rows, key.dtype):
            rows = compute_rows(call, bound, query[:, :, start:stop], key, start, stop, keep_scores, scratch)
            rows.value = value[:, :, rows.low : rows.high]
            show(rows, now)
            out[:, :, start:stop] = output_of(call, rows, rows.value)
        return readings

    def _parts(self, query: Tensor, key: Tensor) -> list[tuple[Call, slice, slice]]:
        """The heads and kv heads to compute together: all, or on CPU so many that tall blocks stay in the cache."""
        call, n_kv = self.call, key.shape[1]
        group = query.shape[1] // n_kv
        row = query.shape[0] * group * key.shape[2] * key.element_size()  # bytes of the rows of one group of heads
        at_once = max(1, BLOCK_BYTES["cpu"] // max(1, row * TALL))
        separable = (
            query.device.type == "cpu"
            and not call.edits
            and call.block_rows is None
            and all(probe.by_head and "grad_pattern" not in probe.needs for probe in self.probes)
        )
        if not separable or at_once >= n_kv:
            return [(call, slice(None), slice(None))]
        bind(call.mask, query, key)  # checks the whole mask, which its parts need not show to be wrong
        kv = [slice(first, min(first + at_once, n_kv)) for first in range(0, n_kv, at_once)]
        heads = [slice(part.start * group, part.stop * group) for part in kv]
        masks = [mask for part in heads if (mask := call.mask.of_heads(part)) is not None]
        if not masks:
            return [(call, slice(None), slice(None))]
        return [(replace(call, mask=mask), its, its_kv) for mask, its, its_kv in zip(masks, heads, kv, strict=True)]

    def start(self, bound: BoundMask, n_kv_heads: int, value: Tensor) -> list[Reading]:
        """Begin every reading."""
        sizes = (bound.batch, bound.n_heads, n_kv_heads, bound.n_queries, bound.n_keys)
        shape = SiteShape(*sizes, bound.device, bound, self.call.site)
        with_value = replace(shape, value=value)
        return [Reading(p, with_value if "value" in p.needs else shape) for p in self.probes]

    def backward(self, grad_out: Tensor, tensors: Sequence[Tensor], wanted: Sequence[bool]) -> list[Tensor | None]:
        """Gradients of query, key, value and the parameters, a block at a time; None where none is wanted."""
        query, key, value, *parameters = (t.detach() for t in tensors)
        dtype = compute_dtype(query)
        key, value = key.to(dtype).contiguous(), value.to(dtype).contiguous()
        leaves = [t.requires_grad_(want) for t, want in zip(parameters, wanted[3:], strict=True)]
        call = self.call.with_parameters(dict(zip(self.names, leaves, strict=True)))
        bound = bind(call.mask, query, key)
        late = [r for r in self.readings if r.is_late]
        for reading in late:
            reading.restart()
        grads = [t.new_zeros(t.shape, dtype=dtype) if want else None for t, want in zip(tensors, wanted, strict=True)]
        for start, stop in row_blocks(bound, call.block_rows, dtype):
            low, high = bound.key_range(start, stop)
            parts = query[:, :, start:stop].to(dtype), key[:, :, low:high], value[:, :, low:high]
            inputs = [t.detach().requires_grad_(want) for t, want in zip(parts, wanted[:3], strict=True)]
            with torch.enable_grad():
                rows = compute_rows(call, bound, inputs[0], inputs[1], start, stop, keep_scores=bool(late), key_low=low)
                if late and not rows.pattern.requires_grad:
                    rows.pattern = rows.pattern.detach().requires_grad_(True)
                output = output_of(call, rows, inputs[2])
            found = _gradients(output, [*inputs, *leaves, rows.pattern], grad_out[:, :, start:stop].to(dtype))
            parts_of = (slice(start, stop), slice(low, high), slice(low, high))
            for i, (grad, new) in enumerate(zip(grads, found, strict=False)):
                if grad is not None and new is not None:
                    part = grad[:, :, parts_of[i]] if i < len(parts_of) else grad
                    part += new
            self._show_gradients(rows, late, found[-1], parts[2])
        return grads

    @staticmethod
    def _show_gradients(rows: Rows, late: list[Reading], grad_pattern: Tensor | None, value: Tensor) -> None:
        if not late:
            return
        with torch.no_grad():
            rows.pattern = rows.pattern.detach()
            rows.scores = None if rows.scores is None else rows.scores.detach()
            rows.grad_pattern = torch.zeros_like(rows.pattern) if grad_pattern is None else grad_pattern
            rows.value = value
            show(rows, late)


class _Recomputed(torch.autograd.Function):
    """The engine with a backward pass that recomputes each block, so that no pattern is kept."""

    @staticmethod
    def forward(ctx: Any, work: Pass, *tensors: Tensor) -> Tensor:
        ctx.work = work
        ctx.save_for_backward(*tensors)
        return work.forward(*tensors[:3])

    @staticmethod
    def backward(ctx: Any, grad_out: Tensor) -> tuple[Tensor | None, ...]:
        tensors = ctx.saved_tensors
        with torch.no_grad(), full_precision(grad_out.device):
            grads = ctx.work.backward(grad_out, tensors, ctx.needs_input_grad[1:])
            grads = [None if g is None else g.to(t.dtype) for g, t in zip(grads, tensors, strict=True)]
        if torch.is_grad_enabled():  # create_graph=True: without a word, second derivatives would be taken for zero
            grads = [None if g is None else _OnlyOnce.apply(g.requires_grad_(True)) for g in grads]
        return (None, *grads)


class _OnlyOnce(torch.autograd.Function):
    """A gradient that cannot be differentiated again."""

    @staticmethod
    def forward(ctx: Any, grad: Tensor) -> Tensor:
        return grad.view_as(grad)

    @staticmethod
    def backward(ctx: Any, _: Tensor) -> Tensor:
        raise RuntimeError(
            "attention with probes and edits can be differentiated once, and a second derivative was asked for; take "
            "it from interp.attention.reference, or from the model with its own attention"
        )


def _gradients(output: Tensor, inputs: Sequence[Tensor], grad_out: Tensor) -> list[Tensor | None]:
    """The gradient of each input; None where it needs none or has none."""
    sought = [t for t in inputs if t.requires_grad]
    if not output.requires_grad or not sought:
        return [None] * len(inputs)
    found = iter(torch.autograd.grad(output, sought, grad_out, allow_unused=True))
    return [next(found) if t.requires_grad else None for t in inputs]


def row_blocks(bound: BoundMask, block_rows: int | None, dtype: torch.dtype) -> Iterator[tuple[int, int]]:
    """Blocks of query rows ``(start, stop)``, taller where fewer keys are in reach."""
    bytes_per_key = max(bound.batch * bound.n_heads, 1) * dtype.itemsize
    room, most = (sizes.get(bound.device.type, sizes["cuda"]) // bytes_per_key for sizes in (BLOCK_BYTES, TALL_BYTES))
    start = 0
    while start < bound.n_queries:
        height = block_rows or max(_height(bound, start, room), min(TALL, _height(bound, start, most)))
        stop = min(start + height, bound.n_queries)
        yield start, stop
        start = stop


def _height(bound: BoundMask, start: int, room: int) -> int:
    """The most rows, at least 8, that hold no more weights than there is room for."""

    def weights(height: int) -> int:
        low, high = bound.key_range(start, start + height)
        return height * (high - low)

    return max(8, 7 + bisect_right(range(8, bound.n_queries - start + 1), room, key=weights))


def show(rows: Rows, readings: Sequence[Reading]) -> None:
    """Show a block to probes, unless none of its rows may read anything.

    Raises:
        ValueError: a probe wrote into the block, which the model and the other probes would take for their own.
    """
    if rows.low < rows.high:
        before = _versions(rows)
        for reading in readings:
            reading.update(rows)
            if _versions(rows) != before:
                raise ValueError(
                    f"{type(reading.probe).__name__} changed in place the rows that it was shown, which the model goes "
                    "on with: a probe reads (clone() what it works on), an edit changes"
                )


def _versions(rows: Rows) -> list[int]:
    """How often the tensors of a block have been written to."""
    shown = (getattr(rows, name, None) for name in ("pattern", "scores", "value"))
    return [tensor._version for tensor in shown if tensor is not None and not tensor.is_inference()]


def chance(mask: Mask, shape: SiteShape, probes: Sequence[Probe]) -> list[Reading | None]:
    """What each probe reads from uniform attention under the same mask, computed exactly.

    None for probes that need more than a pattern (values, weights, gradients). Batch and head have size 1 where the
    mask does not depend on them.
    """
    bound = mask.bind(shape.batch, shape.n_heads, shape.n_queries, shape.n_keys, shape.device)
    readings = [
        None if probe.needs & {"value", "weights", "grad_pattern"} else Reading(probe, shape) for probe in probes
    ]
    for start, stop in row_blocks(bound, None, torch.float64):
        low, high = bound.key_range(start, stop)
        block = Block(start=start, stop=stop, low=low, high=high, mask=bound)
        pattern = block.allowed.double() / block.n_allowed.clamp_min(1)[..., None]
        valid = valid_rows(bound, start, stop, block.n_allowed == 0)
        show(Rows(**vars(block), pattern=pattern, valid=valid, edited=True), [r for r in readings if r is not None])
    return readings


def bind(mask: Mask, query: Tensor, key: Tensor) -> BoundMask:
    """The mask at the sizes of a call."""
    return mask.bind(query.shape[0], query.shape[1], query.shape[2], key.shape[2], query.device)
