"""How a call makes scores of q · k, in the tensors and numbers that a kernel takes; and the same for single scores."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from jaxtyping import Float, Int, UInt8
from torch import Tensor

from .bias import AlibiSlopes, forbids
from .block import Call
from .bound import BoundMask
from .edits import AddLogits
from .edits.base import rows_of
from .rows import Block

__all__ = ["Scoring", "why_not_scored"]


@dataclass(frozen=True, eq=False)
class Scoring:
    """Scale, cap, bias, added logits, and who may read whom.

    Attributes:
        scales: the factor on q · k. offset: key index of query 0.
        bias: of the mask, where it is a tensor. slopes: ALiBi's.
        added: logits that edits add, for the heads that have any. slots: where a head's stand in it, −1 for none.
        valid: 0 for padding keys.
    """

    scales: Float[Tensor, " head"]
    softcap: float | None
    slopes: Float[Tensor, " head"] | None
    bias: Float[Tensor, "#batch #head #query #key"] | None
    added: Float[Tensor, "#batch slot #query #key"] | None
    slots: Int[Tensor, " head"] | None
    offset: int
    causal: bool
    window: int | None
    valid: UInt8[Tensor, "batch key"] | None

    @classmethod
    def of(cls, call: Call, bound: BoundMask, query: Float[Tensor, "batch head query d_head"]) -> Scoring:
        """That of a call. Half-precision biases are copied where the kernel could not tell what they forbid."""
        mask, n_heads, d_head, device = call.mask, query.shape[1], query.shape[3], query.device
        scales = torch.full((n_heads,), call.scale, dtype=torch.float32, device=device)
        for edit in call.stage("scale"):
            scales = edit.scales(scales, d_head)
        bias = bound.bias_tensor
        if bias is not None and bias.dtype is torch.float16:
            bias = bias.float().masked_fill(forbids(bias), float("-inf"))
        slopes = mask.bias.slopes.float() if isinstance(mask.bias, AlibiSlopes) else None
        added, slots = _added(_logits(call, bound), n_heads, device)
        valid = None if mask.key_valid is None else mask.key_valid.to(torch.uint8).contiguous()
        return cls(scales, call.softcap, slopes, bias, added, slots, bound.offset, mask.causal, mask.window, valid)

    def adjusted(
        self, products: Float[Tensor, "batch head row target"], row: Int[Tensor, ...], key: Int[Tensor, ...]
    ) -> Float[Tensor, "batch head row target"]:
        """Scores of some rows and keys, given their q · k; ``row`` and ``key`` are broadcastable to them."""
        scores = products * self.scales.view(1, -1, 1, 1)
        if self.softcap is not None:
            scores = self.softcap * torch.tanh(scores / self.softcap)
        if self.slopes is not None:
            scores = scores - self.slopes.view(1, -1, 1, 1) * (row + self.offset - key).abs()
        head = torch.arange(scores.shape[1], device=scores.device).view(1, -1, 1, 1)
        if self.bias is not None:
            scores = scores + _pick(self.bias, head, row, key)
        if self.added is not None and self.slots is not None:
            slot = self.slots.long().view(1, -1, 1, 1)
            scores = torch.where(slot >= 0, scores + _pick(self.added, slot.clamp_min(0), row, key), scores)
        return scores


def why_not_scored(call: Call, bound: BoundMask) -> str | None:
    """What of a call's scores cannot be said so, in words."""
    mask = call.mask
    if mask.allowed is not None:
        return "a mask given as a tensor or function of allowed keys"
    if mask.bias is not None and not isinstance(mask.bias, AlibiSlopes | Tensor):
        return f"a bias of kind {type(mask.bias).__name__}"
    for edit in call.stage("scores"):
        if type(edit) is not AddLogits:
            return f"the edit {type(edit).__name__}"
    logits = [tensor for tensors in _logits(call, bound).values() for tensor in tensors]
    joined = torch.broadcast_shapes(*(tensor.shape for tensor in logits))
    if min(joined[-2:], default=1) > 1 and any(tensor.shape != joined for tensor in logits):
        return "AddLogits of several shapes, which joined would be query × key for each of its heads"
    return None


def _logits(call: Call, bound: BoundMask) -> dict[int, list[Tensor]]:
    """What edits add, [#batch, #query, #key] each, by head."""
    whole = Block(start=0, stop=bound.n_queries, low=0, high=bound.n_keys, mask=bound)
    found: dict[int, list[Tensor]] = {}
    for edit in call.stage("scores"):
        for head in edit.selected(bound.n_heads):
            given = rows_of(edit.heads[head], ("batch", "query", "key"), whole, type(edit).__name__)
            found.setdefault(head, []).append(given.detach())
    return found


def _added(
    logits: dict[int, list[Tensor]], n_heads: int, device: torch.device
) -> tuple[Tensor, Tensor] | tuple[None, None]:
    """The logits side by side, one head after the other, and where each head's stand."""
    if not logits:
        return None, None
    sums = [sum(tensor.to(device, torch.float32) for tensor in tensors) for tensors in logits.values()]
    slots = torch.full((n_heads,), -1, dtype=torch.int32)
    slots[list(logits)] = torch.arange(len(sums), dtype=torch.int32)
    return torch.stack(torch.broadcast_tensors(*sums), 1), slots.to(device)  # type: ignore[arg-type]


def _pick(tensor: Float[Tensor, "#batch #head #query #key"], head: Tensor, row: Tensor, key: Tensor) -> Tensor:
    """Elements of a tensor whose dimensions of size 1 broadcast, in float32."""
    batch = torch.arange(tensor.shape[0], device=tensor.device).view(-1, 1, 1, 1)
    index: Sequence[Tensor] = (batch, head, row, key)
    where = [i if size > 1 else torch.zeros_like(i) for i, size in zip(index, tensor.shape, strict=True)]
    return tensor[tuple(where)].float()
