"""The loss of each next token, and whether a model predicts one."""

from __future__ import annotations

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn

from interp.attention import Mask, SiteShape

__all__ = ["looks_causal", "next_token_loss"]

_SLICE_BYTES = 64 << 20


def next_token_loss(
    logits: Tensor | None, tokens: Int[Tensor, "batch position"], valid: Bool[Tensor, "batch position"] | None
) -> Float[Tensor, "batch position"]:
    """Loss of each next token in nats, float32 or better; NaN where the token or its predecessor is padding.

    ``[:, i]`` is the loss of predicting token i + 1. Taken over slices of the positions, so that no second copy of the
    logits is made.
    """
    if logits is None:
        raise ValueError("next_token_loss needs logits, and this model's output has none")
    target = tokens[:, 1:].to(logits.device)
    losses = []
    step = max(1, _SLICE_BYTES // (logits.shape[0] * logits.shape[-1] * 4))
    for start in range(0, target.shape[1], step):
        part = logits[:, start : start + step][:, : target.shape[1] - start]
        part = part if part.dtype is torch.float64 else part.float()
        goal = target[:, start : start + step]
        losses.append(nn.functional.cross_entropy(part.transpose(1, 2), goal, reduction="none"))
    loss = torch.cat(losses, 1) if losses else logits.new_zeros(logits.shape[0], 0)
    if valid is None:
        return loss
    both = (valid[:, 1:] & valid[:, :-1]).to(loss.device)
    return loss.masked_fill(~both, float("nan"))


def looks_causal(mask: Mask, shape: SiteShape) -> bool:
    """Whether a mask, in words, as a tensor or as a function, forbids every later key."""
    if mask.causal or mask.cross or (mask.allowed is None and mask.bias is None):
        return mask.causal
    bound = mask.bind(shape.batch, shape.n_heads, shape.n_queries, shape.n_keys, shape.device)
    allowed = bound.allowed(0, shape.n_queries, 0, shape.n_keys)
    return not bool(allowed.triu(1 + bound.offset).any())
