"""Modules written the way people write them, each with the pattern that it computes, worked out by other code.

An entry is ``make() -> Entry``: the module, an example input, and for every site the true pattern
[batch, head, query, key] as a function of the input.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch
import torch.nn.functional as F  # noqa: N812
from torch import Tensor, nn
from torch.nn.attention.flex_attention import create_block_mask, flex_attention

D, H, T, B = 16, 4, 11, 3


@dataclass
class Entry:
    module: nn.Module
    example: Any
    n_sites: int
    heads: int = H
    how: str = "scaled_dot_product_attention"
    kinds: tuple[str, ...] = field(default=())
    causal: bool = False


def split(x: Tensor, heads: int) -> Tensor:
    return x.view(*x.shape[:-1], heads, -1).transpose(-3, -2)


def merge(x: Tensor) -> Tensor:
    return x.transpose(-3, -2).flatten(-2)


class Qkv(nn.Module):
    """Separate projections; what happens between them is the subclass's."""

    def __init__(self, heads: int = H, kv_heads: int | None = None) -> None:
        super().__init__()
        self.heads, self.kv_heads = heads, kv_heads or heads
        self.q_proj = nn.Linear(D, D)
        self.k_proj = nn.Linear(D, D // heads * self.kv_heads)
        self.v_proj = nn.Linear(D, D // heads * self.kv_heads)
        self.o_proj = nn.Linear(D, D)

    def qkv(self, x: Tensor, y: Tensor | None = None) -> tuple[Tensor, Tensor, Tensor]:
        y = x if y is None else y
        return (
            split(self.q_proj(x), self.heads),
            split(self.k_proj(y), self.kv_heads),
            split(self.v_proj(y), self.kv_heads),
        )  # fmt: skip

    def out(self, z: Tensor) -> Tensor:
        return self.o_proj(merge(z))


class MinGpt(nn.Module):
    """Fused qkv and a softmax by hand, with a registered triangle."""

    def __init__(self) -> None:
        super().__init__()
        self.c_attn, self.c_proj = nn.Linear(D, 3 * D), nn.Linear(D, D)
        self.bias: Tensor
        self.register_buffer("bias", torch.tril(torch.ones(64, 64)).view(1, 1, 64, 64))

    def forward(self, x: Tensor) -> Tensor:
        t = x.shape[1]
        q, k, v = (split(part, H) for part in self.c_attn(x).split(D, dim=2))
        att = (q @ k.transpose(-2, -1)) * (1.0 / math.sqrt(k.size(-1)))
        att = att.masked_fill(self.bias[:, :, :t, :t] == 0, float("-inf"))
        return self.c_proj(merge(F.softmax(att, dim=-1) @ v))


class FusedSdpa(MinGpt):
    def forward(self, x: Tensor) -> Tensor:
        q, k, v = (split(part, H) for part in self.c_attn(x).chunk(3, dim=-1))
        return self.c_proj(merge(F.scaled_dot_product_attention(q, k, v, is_causal=True)))


class BoolMask(Qkv):
    def forward(self, x: Tensor) -> Tensor:
        mask = torch.ones(x.shape[1], x.shape[1], dtype=torch.bool).tril(2).triu(-3)
        return self.out(F.scaled_dot_product_attention(*self.qkv(x), mask))


class FloatMask(Qkv):
    def forward(self, x: Tensor) -> Tensor:
        distance = torch.arange(x.shape[1])[:, None] - torch.arange(x.shape[1])[None]
        mask = torch.where(distance >= 0, -0.3 * distance.float(), -torch.inf).expand(x.shape[0], 1, -1, -1)
        return self.out(F.scaled_dot_product_attention(*self.qkv(x), attn_mask=mask, scale=0.2))


class PaddingMask(Qkv):
    def forward(self, x: Tensor, keep: Tensor) -> Tensor:
        return self.out(F.scaled_dot_product_attention(*self.qkv(x), attn_mask=keep[:, None, None, :]))


class Grouped(Qkv):
    def __init__(self) -> None:
        super().__init__(H, 2)

    def forward(self, x: Tensor) -> Tensor:
        return self.out(F.scaled_dot_product_attention(*self.qkv(x), is_causal=True, enable_gqa=True))


class ThreeDimensions(nn.Module):
    """One head, no head dimension."""

    def __init__(self) -> None:
        super().__init__()
        self.q, self.k, self.v = nn.Linear(D, D), nn.Linear(D, D), nn.Linear(D, D)

    def forward(self, x: Tensor) -> Tensor:
        return F.scaled_dot_product_attention(self.q(x), self.k(x), self.v(x))


class FiveDimensions(Qkv):
    """Windows of an image: [batch, window, head, position, d]."""

    def forward(self, x: Tensor) -> Tensor:
        return self.out(F.scaled_dot_product_attention(*self.qkv(x)))


class BmmHeads(Qkv):
    """Heads folded into the batch, as torch's own code does."""

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = (t.flatten(0, 1) for t in self.qkv(x))
        scores = torch.baddbmm(torch.zeros(1, 1, 1), q, k.transpose(1, 2), beta=0, alpha=D**-0.5)
        z = torch.bmm(scores.softmax(-1), v)
        return self.out(z.view(x.shape[0], H, *z.shape[1:]))


class Einsum(Qkv):
    def forward(self, x: Tensor) -> Tensor:
        q, k, v = self.qkv(x)
        weights = torch.softmax(torch.einsum("bhqd,bhkd->bhqk", q, k) / 2.0 + 0.1, dim=3)
        return self.out(torch.einsum("bhqk,bhkd->bhqd", weights, v))


def _attention_function(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    return F.scaled_dot_product_attention(query=q, key=k, value=v)


class InAFunction(Qkv):
    def forward(self, x: Tensor) -> Tensor:
        return self.out(_attention_function(*self.qkv(x)))


class Shared(nn.Module):
    """One attention module used at three depths."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = FusedSdpa()

    def forward(self, x: Tensor) -> Tensor:
        for _ in range(3):
            x = x + self.layer(x)
        return x


class TwoCalls(Qkv):
    """Two calls of attention in one module, the second across."""

    def forward(self, x: Tensor, memory: Tensor) -> Tensor:
        x = x + self.out(F.scaled_dot_product_attention(*self.qkv(x), is_causal=True))
        return x + self.out(F.scaled_dot_product_attention(*self.qkv(x, memory)))


class Flex(Qkv):
    def forward(self, x: Tensor) -> Tensor:
        return self.out(flex_attention(*self.qkv(x), score_mod=lambda s, b, h, i, j: s - 0.1 * (i - j) * (h + 1)))


class FlexBlockMask(Qkv):
    def forward(self, x: Tensor) -> Tensor:
        t = x.shape[1]
        block = create_block_mask(
            lambda b, h, i, j: (i >= j) & (i - j < 5), None, None, t, t, device="cpu", BLOCK_SIZE=16
        )
        return self.out(flex_attention(*self.qkv(x), block_mask=block))


class VitLike(nn.Module):
    """Patches of an image, a class token, two pre-norm blocks."""

    def __init__(self) -> None:
        super().__init__()
        self.patch = nn.Conv2d(3, D, 4, 4)
        self.token = nn.Parameter(torch.randn(1, 1, D))
        self.norms = nn.ModuleList(nn.LayerNorm(D) for _ in range(2))
        self.blocks = nn.ModuleList(InAFunction() for _ in range(2))

    def forward(self, image: Tensor) -> Tensor:
        x = self.patch(image).flatten(2).transpose(1, 2)
        x = torch.cat([self.token.expand(x.shape[0], -1, -1), x], 1)
        for norm, attention in zip(self.norms, self.blocks, strict=True):
            x = x + attention(norm(x))
        return x


class SmallLm(nn.Module):
    """Token ids in, logits out; a softmax over the vocabulary is no attention."""

    def __init__(self) -> None:
        super().__init__()
        self.embed, self.blocks = nn.Embedding(50, D), nn.ModuleList([FusedSdpa(), MinGpt()])
        self.head = nn.Linear(D, 50)

    def forward(self, idx: Tensor, targets: Tensor | None = None) -> tuple[Tensor, Tensor]:
        x = self.embed(idx)
        for block in self.blocks:
            x = x + block(x)
        logits = self.head(x)
        return logits, F.softmax(logits, dim=-1)


class DecoderWithMemory(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        layer = nn.TransformerDecoderLayer(D, H, 32, batch_first=True)
        self.decoder = nn.TransformerDecoder(layer, 2)

    def forward(self, x: Tensor, memory: Tensor) -> Tensor:
        mask = nn.Transformer.generate_square_subsequent_mask(x.shape[1])
        return self.decoder(x, memory, tgt_mask=mask, tgt_is_causal=True)


class NeedsWeights(nn.Module):
    """MultiheadAttention that returns its weights, which are used."""

    def __init__(self) -> None:
        super().__init__()
        self.attention = nn.MultiheadAttention(D, H, batch_first=True)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        z, weights = self.attention(x, x, x, average_attn_weights=False)
        return z, weights


class SequenceFirst(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.attention = nn.MultiheadAttention(D, H)

    def forward(self, x: Tensor) -> Tensor:
        return self.attention(x, x, x, need_weights=False)[0]


def _encoder(heads: int, d: int = 48) -> nn.Module:
    return nn.TransformerEncoder(nn.TransformerEncoderLayer(d, heads, 32, batch_first=True, dropout=0.1), 2)


def _x(*shape: int) -> Tensor:
    return torch.randn(*(shape or (B, T, D)), generator=torch.Generator().manual_seed(1))


def _keep() -> Tensor:
    keep = torch.ones(B, T, dtype=torch.bool)
    keep[1, -4:] = False
    return keep


SDPA, MHA, SOFTMAX, FLEX = "scaled_dot_product_attention", "MultiheadAttention", "softmax", "flex_attention"

ZOO: dict[str, Callable[[], Entry]] = {
    "mingpt": lambda: Entry(MinGpt(), _x(), 1, how=SOFTMAX, causal=True),
    "fused qkv": lambda: Entry(FusedSdpa(), _x(), 1, causal=True),
    "boolean mask": lambda: Entry(BoolMask(), _x(), 1),
    "float mask": lambda: Entry(FloatMask(), _x(), 1, causal=True),
    "padding mask": lambda: Entry(PaddingMask(), (_x(), _keep()), 1),
    "grouped keys": lambda: Entry(Grouped(), _x(), 1, causal=True),
    "three dimensions": lambda: Entry(ThreeDimensions(), _x(), 1, heads=1),
    "five dimensions": lambda: Entry(FiveDimensions(), _x(B, 2, T, D), 1),
    "heads in the batch": lambda: Entry(BmmHeads(), _x(), 1, how=SOFTMAX),
    "einsum": lambda: Entry(Einsum(), _x(), 1, how=SOFTMAX),
    "in a function": lambda: Entry(InAFunction(), _x(), 1),
    "weight sharing": lambda: Entry(Shared(), _x(), 3, causal=True),
    "two calls": lambda: Entry(TwoCalls(), (_x(), _x(B, 7, D)), 2, kinds=("self", "cross"), causal=True),
    "flex score_mod": lambda: Entry(Flex(), _x(B, 16, D), 1, how=FLEX),
    "flex block mask": lambda: Entry(FlexBlockMask(), _x(B, 16, D), 1, how=FLEX, causal=True),
    "vit": lambda: Entry(VitLike(), _x(B, 3, 12, 12), 2),
    "small lm": lambda: Entry(SmallLm(), torch.arange(B * T).view(B, T) % 50, 2, causal=True),
    "decoder with memory": lambda: Entry(
        DecoderWithMemory(), (_x(), _x(B, 7, D)), 4, how=MHA, kinds=("self", "cross") * 2, causal=True
    ),
    "weights wanted": lambda: Entry(NeedsWeights(), _x(), 1, how=MHA),
    "sequence first": lambda: Entry(SequenceFirst(), _x(T, B, D), 1, how=MHA),
    "encoder, 8 heads": lambda: Entry(_encoder(8), _x(B, T, 48), 2, heads=8, how=MHA),
    "encoder, 3 heads": lambda: Entry(_encoder(3), _x(B, T, 48), 2, heads=3, how=MHA),
}
