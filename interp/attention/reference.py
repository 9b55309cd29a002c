"""Attention in three lines, float64: the oracle that every engine is tested against.

It holds the whole pattern and builds the mask from the definition, sharing no code with the engines.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from .bias import AlibiSlopes, RelativeBuckets
from .mask import Mask

__all__ = ["Reference", "reference"]


class Reference(NamedTuple):
    """Everything of one attention call, in float64."""

    output: Float[Tensor, "batch head query d_value"]
    pattern: Float[Tensor, "batch head query key"]
    scores: Float[Tensor, "batch head query key"]
    permitted: Bool[Tensor, "batch head query key"]
    sink_weight: Float[Tensor, "batch head query"]


def reference(
    query: Float[Tensor, "batch head query d_head"],
    key: Float[Tensor, "batch kv_head key d_head"],
    value: Float[Tensor, "batch kv_head key d_value"],
    mask: Mask = Mask(),  # noqa: B008 (immutable)
    scale: float | None = None,
    softcap: float | None = None,
) -> Reference:
    """softmax(scale · q kᵀ) v, with everything that :class:`Mask` can say; differentiable."""
    group = query.shape[1] // key.shape[1]
    query, key, value = query.double(), key.double(), value.double()
    key, value = key.repeat_interleave(group, dim=1), value.repeat_interleave(group, dim=1)
    factor = float(query.shape[-1] ** -0.5 if scale is None else scale)

    scores = query @ key.transpose(-1, -2) * factor
    scores = scores if softcap is None else softcap * torch.tanh(scores / softcap)
    permitted, bias = _dense(mask, scores)
    scores = scores + bias
    pattern, sink_weight = _softmax(scores, permitted, mask.sinks)
    return Reference(pattern @ value, pattern, scores, permitted, sink_weight)


def _softmax(scores: Tensor, permitted: Tensor, sinks: Tensor | None) -> tuple[Tensor, Tensor]:
    masked = scores.masked_fill(~permitted, float("-inf"))
    sink = torch.full_like(masked[..., :1], float("-inf")) if sinks is None else _column(sinks, masked)
    logits = torch.cat([masked, sink], dim=-1)
    nothing = torch.isneginf(logits).all(-1, keepdim=True)
    weights = torch.softmax(logits.masked_fill(nothing, 0.0), dim=-1).masked_fill(nothing, 0.0)
    return weights[..., :-1], weights[..., -1]


def _column(sinks: Tensor, like: Tensor) -> Tensor:
    return sinks.double().view(1, -1, 1, 1).expand(*like.shape[:-1], 1)


def _dense(mask: Mask, scores: Tensor) -> tuple[Tensor, Tensor]:
    """The whole mask and bias, one (query, key) pair after the other as the definition says."""
    batch, n_heads, n_queries, n_keys = scores.shape
    offset = mask.query_offset if mask.query_offset is not None else 0 if mask.cross else n_keys - n_queries
    at = torch.arange(n_queries)[:, None] + offset
    to = torch.arange(n_keys)[None, :]
    permitted = torch.ones(n_queries, n_keys, dtype=torch.bool)
    if mask.causal:
        permitted = permitted & (to <= at)
    if mask.window is not None:
        permitted = permitted & (at - to < mask.window) & (to - at < mask.window)
    permitted = permitted.expand(batch, n_heads, -1, -1).clone()
    if mask.key_valid is not None:
        permitted &= mask.key_valid[:, None, None, :]
    if isinstance(mask.allowed, Tensor):
        permitted &= mask.allowed
    elif mask.allowed is not None:
        for b in range(batch):
            for h in range(n_heads):
                permitted[b, h] &= mask.allowed(torch.tensor(b), torch.tensor(h), at, to)
    bias = _dense_bias(mask, at, to)
    forbidden = bias < -1e37  # −inf, or the lowest number of a dtype
    return permitted & ~forbidden, bias.masked_fill(forbidden, 0.0)


def _dense_bias(mask: Mask, at: Tensor, to: Tensor) -> Tensor:
    bias = mask.bias
    if bias is None:
        return torch.zeros((), dtype=torch.float64)
    if isinstance(bias, Tensor):
        lowest = bias == torch.finfo(bias.dtype).min
        return bias.double().masked_fill(lowest, float("-inf"))
    if isinstance(bias, AlibiSlopes):
        return bias.slopes.double()[:, None, None] * -(at - to).abs()
    if isinstance(bias, RelativeBuckets):
        return bias.table.double()[bias.buckets(at, to)].permute(2, 0, 1)
    return bias(at, to).double()
