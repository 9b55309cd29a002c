"""Next-token loss a slice of the vocabulary at a time, so that the logits of all positions are never held.

With a large vocabulary the logits are most of what a pass over a short text writes to memory. Here the unembedding is
asked for its input, and log Σ exp of the logits is taken over slices of its rows that stay in the cache.
"""

from __future__ import annotations

import weakref
from typing import TYPE_CHECKING, Any

import torch
from jaxtyping import Float
from torch import Tensor, nn

from interp.attention import products
from interp.models.inputs import example_tokens, together
from interp.models.replaying import computed_by

if TYPE_CHECKING:
    from interp.models.hooked import HookedModel

__all__ = ["sliced_token_loss"]

_SLICE_BYTES = {"cpu": 8 << 20, "cuda": 256 << 20}
_LEAST_VOCABULARY = 4096  # below, the logits are small

_FITS: weakref.WeakKeyDictionary[nn.Module, bool] = weakref.WeakKeyDictionary()
"""Whether a model's loss is that of a linear unembedding and nothing after it, by a trial."""


def sliced_token_loss(
    model: HookedModel, tokens: Any, valid: Any = None, **run: Any
) -> Float[Tensor, "batch position"]:
    """:meth:`HookedModel.token_loss` up to rounding (about 2e-6 nats a token in float32), in less time and memory.

    Where gradients are asked for, the vocabulary is small, or something comes between the unembedding and the logits
    (a softcap, a scale), it is :meth:`HookedModel.token_loss` itself.

    Raises:
        UserError: as `HookedModel.token_loss`.
    """
    head = _unembedding(model)
    if run.get("grad") or head is None or not _fits(model, head):
        return model.token_loss(tokens, valid, **run)
    model.require_loss()
    return _sliced(model, head, tokens, valid, run)


def _unembedding(model: HookedModel) -> nn.Linear | None:
    """The model's unembedding, if it is a plain one with a large vocabulary that nothing watches."""
    find = getattr(model.module, "get_output_embeddings", None)
    head = find() if find is not None else None
    watched = head is not None and (head._forward_hooks or head._forward_pre_hooks or "forward" in vars(head))
    return head if type(head) is nn.Linear and head.out_features >= _LEAST_VOCABULARY and not watched else None


def _fits(model: HookedModel, head: nn.Linear) -> bool:
    """Whether the logits are what the unembedding gives, and nothing else."""
    if model.module not in _FITS:
        tokens = example_tokens(model, min(8, model.n_ctx or 8))
        given: list[Tensor] = []
        handle = head.register_forward_hook(lambda module, inputs, output: given.append(output.clone()))
        try:
            with model.seam.aside():
                logits = model.run(tokens).logits
        finally:
            handle.remove()
        _FITS[model.module] = logits is not None and len(given) == 1 and torch.equal(logits, given[0].to(logits))
    return _FITS[model.module]


def _sliced(
    model: HookedModel, head: nn.Linear, tokens: Any, valid: Any, run: dict[str, Any]
) -> Float[Tensor, "batch position"]:
    tokens, valid = together(tokens, valid, "tokens")
    seen: list[Tensor] = []

    def look(x: Tensor) -> Tensor:
        seen.append(x)
        return x[..., :1]  # stands for the logits, which nobody reads

    with computed_by(head, look):
        model.run(tokens, valid, **run)
    x = seen[-1][:, :-1]
    loss = _loss(x.reshape(-1, x.shape[-1]), head, tokens[:, 1:].reshape(-1).to(x.device)).view(x.shape[:2])
    if valid is None:
        return loss
    return loss.masked_fill(~(valid[:, 1:] & valid[:, :-1]).to(loss.device), float("nan"))


@torch.no_grad()
def _loss(x: Float[Tensor, "row d_model"], head: nn.Linear, target: Tensor) -> Float[Tensor, " row"]:
    """log Σ exp of all logits, minus the target's."""
    dtype = torch.float64 if x.dtype is torch.float64 else torch.float32
    size = max(256, _SLICE_BYTES.get(x.device.type, 256 << 20) // (dtype.itemsize * max(1, len(x))))
    largest = torch.full((len(x),), -torch.inf, dtype=dtype, device=x.device)
    total, hit = torch.zeros_like(largest), torch.zeros_like(largest)
    bias = [None] * -(-head.out_features // size) if head.bias is None else head.bias.split(size)
    for number, (weight, b) in enumerate(zip(head.weight.split(size), bias, strict=True)):
        logits = products.linear(x, weight, b).to(dtype)
        start = number * size
        here = (target >= start) & (target < start + len(weight))
        hit = torch.where(here, logits.gather(1, (target - start).clamp(0, len(weight) - 1)[:, None])[:, 0], hit)
        larger = torch.maximum(largest, logits.amax(1))
        total = total * (largest - larger).exp() + logits.sub_(larger[:, None]).exp_().sum(1)
        largest = larger
    return total.log() + largest - hit
