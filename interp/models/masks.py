"""transformers' attention masks as :class:`~interp.attention.Mask`: in words where they can be, never as a whole tensor
unless the model or its user built one."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor
from torch._dynamo._trace_wrapped_higher_order_op import TransformGetItemToIndex
from transformers import masking_utils as hf_masks

from interp.attention import Mask
from interp.errors import UserError

__all__ = ["as_mask", "core_mask", "holds_pairs", "with_bias"]

# transformers makes its mask functions as closures: which kind one is, its code tells
_AND = hf_masks.and_masks().__code__
_WINDOW = hf_masks.sliding_window_overlay(1).__code__
_TWO_SIDED_WINDOW = hf_masks.sliding_window_bidirectional_overlay(1).__code__

_LOWEST = -1e9
"""What additive masks hold at most where nothing may be read: some models write −1e9, others their dtype's lowest."""


def core_mask(
    batch_size: int,
    q_length: int,
    kv_length: int,
    q_offset: int | Tensor = 0,
    kv_offset: int = 0,
    mask_function: Callable[..., Any] = hf_masks.causal_mask_function,
    attention_mask: Tensor | None = None,
    use_vmap: bool = False,
    **_: Any,
) -> Mask:
    """transformers' mask function, returning a :class:`Mask` instead of a query × key tensor."""
    valid = hf_masks.prepare_padding_mask(attention_mask, kv_length, kv_offset)
    if valid is not None:
        valid = valid[:, kv_offset : kv_offset + kv_length].bool()
        valid = None if bool(valid.all()) else valid
    offset = int(q_offset) - kv_offset
    causal, window, rest = _in_words(mask_function)
    inside = offset >= 0 and offset + q_length <= kv_length
    return Mask(
        causal=causal,
        window=window,
        key_valid=valid,
        allowed=None if rest is None else _of_indices(rest, kv_offset, use_vmap),
        query_offset=offset if inside or causal else None,
    )


def as_mask(given: Mask | Tensor | None, causal: bool) -> Mask:
    """Whatever a model hands over as its attention mask."""
    if isinstance(given, Mask):
        return given
    if given is None:
        return Mask(causal=causal)
    if given.dtype is torch.bool:
        return Mask(allowed=given)
    return with_bias(Mask(), given)


def with_bias(mask: Mask, bias: Tensor) -> Mask:
    """An additive tensor (a whole mask, T5's position bias) beside whatever the mask says."""
    lowest = max(torch.finfo(bias.dtype).min / 2, _LOWEST)
    if bias.numel() and float(bias.detach().min()) <= lowest:
        if mask.allowed is not None:
            raise UserError("a model handed over two masks at once, one as a bias: this is not understood")
        forbidden = bias <= lowest
        mask, bias = replace(mask, allowed=~forbidden), bias.masked_fill(forbidden, 0.0)
        if not bool(bias.detach().any()):
            return mask
    return replace(mask, bias=bias if not isinstance(mask.bias, Tensor) else bias + mask.bias)


def holds_pairs(mask: Mask) -> bool:
    """Whether a mask holds a tensor of queries × keys, which the model or its user has built."""
    tensors = [t for t in (mask.allowed, mask.bias) if isinstance(t, Tensor)]
    return any(t.shape[-1] > 1 and t.shape[-2] > 1 for t in tensors)


def _in_words(function: Callable[..., Any]) -> tuple[bool, int | None, Callable[..., Any] | None]:
    """(causal, window, what is left) of a transformers mask function."""
    causal, windows, rest = False, [], []
    parts = list(_conjuncts(function))
    for part in parts:
        code = getattr(part, "__code__", None)
        if part is hf_masks.causal_mask_function:
            causal = True
        elif code is _TWO_SIDED_WINDOW:
            windows.append(_closure(part)["sliding_window"] + 1)  # transformers counts |distance| ≤ window there
        elif code is _WINDOW and hf_masks.causal_mask_function in parts:
            windows.append(_closure(part)["sliding_window"])  # looks back only: a window where order is causal
        elif part is not hf_masks.bidirectional_mask_function:
            rest.append(part)
    return causal, min(windows, default=None), hf_masks.and_masks(*rest) if rest else None


def _conjuncts(function: Callable[..., Any]) -> Iterator[Callable[..., Any]]:
    if getattr(function, "__code__", None) is _AND:
        for part in _closure(function)["mask_functions"]:
            yield from _conjuncts(part)
    else:
        yield function


def _closure(function: Any) -> dict[str, Any]:
    names, cells = function.__code__.co_freevars, function.__closure__ or ()
    return {name: cell.cell_contents for name, cell in zip(names, cells, strict=True)}


def _of_indices(function: Callable[..., Any], kv_offset: int, use_vmap: bool) -> Callable[..., Tensor]:
    """A transformers mask function as a function of index tensors of any broadcastable shapes."""

    def allowed(batch: Tensor, head: Tensor, query: Tensor, key: Tensor) -> Tensor:
        # transformers asks for head 0 only: its masks are those of all heads
        index = batch, torch.zeros_like(head[:, :1]), query + kv_offset, key + kv_offset
        if not use_vmap:
            return function(*index)
        index = torch.broadcast_tensors(*index)
        with TransformGetItemToIndex():
            flat = torch.vmap(function)(*(i.flatten() for i in index))
        return flat.view(index[0].shape)

    return allowed
