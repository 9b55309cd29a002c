"""Edits of z, each head's output before W_O."""

# ruff: noqa: D102 (what the methods are for, Edit says)

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from jaxtyping import Float
from torch import Tensor

from interp.attention.rows import Block

from .base import Stage, ValueEdit, check_size, put, rows_of

__all__ = ["GateHeads", "ReplaceZ"]


@dataclass(frozen=True, eq=False)
class GateHeads(ValueEdit):
    """Multiply each head's output z by a number or tensor (broadcastable to [batch, query]): 0 removes the head."""

    heads: Mapping[Any, float | Tensor]
    stage: ClassVar[Stage] = "z"

    def apply(self, x: Tensor, block: Block) -> Tensor:
        heads = self.selected(x.shape[1])
        gated = []
        for head in heads:
            gate = torch.as_tensor(self.heads[head], dtype=x.dtype, device=x.device)
            gated.append(x[:, head] * rows_of(gate, ("batch", "query"), block, "GateHeads").unsqueeze(-1))
        return put(x, heads, torch.stack(gated, 1))


@dataclass(frozen=True, eq=False)
class ReplaceZ(ValueEdit):
    """Put given values in place of each head's output z: numbers or tensors broadcastable to [batch, query, d_head].

    The mean over a text gives mean ablation; another sequence's z gives resample ablation.
    """

    heads: Mapping[Any, float | Float[Tensor, "#batch #query d_head"]]
    stage: ClassVar[Stage] = "z"

    def apply(self, x: Tensor, block: Block) -> Tensor:
        heads = self.selected(x.shape[1])
        given = [rows_of(self.heads[h], ("batch", "query", "d_head"), block, "ReplaceZ") for h in heads]
        for z in given:
            check_size("ReplaceZ", "d_head", z.shape[-1], x.shape[-1] if z.shape[-1] != 1 else 1)
        return put(x, heads, torch.stack([z.to(x).expand_as(x[:, 0]) for z in given], 1))
