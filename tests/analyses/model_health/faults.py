"""A small sound transformer, and what people get wrong in one: each fault alone, everything else sound."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch
import torch.nn.functional as F  # noqa: N812
from torch import Tensor, nn

import interp
from analyses.model_health import Config

VOCABULARY, D, HEADS, LENGTH, BATCH = 50, 64, 4, 20, 3


class Attention(nn.Module):
    """Multi-head attention over scaled_dot_product_attention."""

    def __init__(self, d: int = D, heads: int = HEADS, causal: bool = True) -> None:
        super().__init__()
        self.heads, self.causal = heads, causal
        self.q_proj, self.k_proj, self.v_proj, self.o_proj = (nn.Linear(d, d) for _ in range(4))

    def forward(self, x: Tensor, keep: Tensor | None = None) -> Tensor:
        q, k, v = (self.split(project(x)) for project in (self.q_proj, self.k_proj, self.v_proj))
        return self.o_proj(self.attend(q, k, v, keep).transpose(1, 2).flatten(2))

    def split(self, x: Tensor) -> Tensor:
        return x.unflatten(-1, (self.heads, -1)).transpose(1, 2)

    def attend(self, q: Tensor, k: Tensor, v: Tensor, keep: Tensor | None) -> Tensor:
        return F.scaled_dot_product_attention(q, k, v, self.mask(q.shape[2], keep), scale=self.scale(q.shape[-1]))

    def mask(self, n: int, keep: Tensor | None) -> Tensor | None:
        mask = torch.ones(n, n, dtype=torch.bool).tril() if self.causal else None
        if keep is None:
            return mask
        return keep[:, None, None, :] if mask is None else keep[:, None, None, :] & mask

    def scale(self, d_head: int) -> float:
        return d_head**-0.5


class ByHand(Attention):
    """The same with a softmax by hand."""

    def attend(self, q: Tensor, k: Tensor, v: Tensor, keep: Tensor | None) -> Tensor:
        scores = q @ k.transpose(-2, -1) * self.scale(q.shape[-1])
        mask = self.mask(q.shape[2], keep)
        return (scores if mask is None else scores.masked_fill(~mask, -torch.inf)).softmax(-1) @ v


class Block(nn.Module):
    """Pre-norm: x + attention(norm(x)), x + MLP(norm(x))."""

    def __init__(self, attention: nn.Module, d: int = D, norm: Callable[[int], nn.Module] = nn.LayerNorm) -> None:
        super().__init__()
        self.norm1, self.norm2, self.attn = norm(d), norm(d), attention
        self.mlp = nn.Sequential(nn.Linear(d, 2 * d), nn.GELU(), nn.Linear(2 * d, d))

    def forward(self, x: Tensor, keep: Tensor | None = None) -> Tensor:
        x = x + self.attn(self.norm1(x), keep)
        return x + self.mlp(self.norm2(x))


class Model(nn.Module):
    """Token ids and, where a model has such an argument, which of them are not padding; logits out."""

    def __init__(self, blocks: list[nn.Module], d: int = D, positions: bool = True) -> None:
        super().__init__()
        self.embed, self.head = nn.Embedding(VOCABULARY, d), nn.Linear(d, VOCABULARY)
        self.positions = nn.Embedding(2 * LENGTH, d) if positions else None
        self.blocks, self.norm = nn.ModuleList(blocks), nn.LayerNorm(d)

    def embedded(self, tokens: Tensor) -> Tensor:
        x = self.embed(tokens)
        return x if self.positions is None else x + self.positions(torch.arange(tokens.shape[1]))

    def forward(self, tokens: Tensor, keep: Tensor | None = None) -> Tensor:
        x = self.embedded(tokens)
        for block in self.blocks:
            x = block(x, keep)
        return self.head(self.norm(x))


def example(length: int = LENGTH) -> Tensor:
    return torch.randint(VOCABULARY, (BATCH, length), generator=torch.Generator().manual_seed(3))


def keep() -> Tensor:
    valid = torch.ones(BATCH, LENGTH, dtype=torch.bool)
    valid[1, -5:] = False
    return valid


def sound(layers: int = 2, kind: type[Attention] = Attention, **attention: Any) -> list[nn.Module]:
    return [Block(kind(**attention)) for _ in range(layers)]


# Faults -------------------------------------------------------------------------------------------------------------


class OffByOne(Attention):
    def mask(self, n: int, keep: Tensor | None) -> Tensor:
        return torch.ones(n, n, dtype=torch.bool).tril(1)


class Strict(ByHand):
    """No token reads itself, so the first reads nothing."""

    def mask(self, n: int, keep: Tensor | None) -> Tensor:
        return torch.ones(n, n, dtype=torch.bool).tril(-1)


class MaskAfterSoftmax(ByHand):
    def attend(self, q: Tensor, k: Tensor, v: Tensor, keep: Tensor | None) -> Tensor:
        weights = (q @ k.transpose(-2, -1) * self.scale(q.shape[-1])).softmax(-1)
        return (weights * torch.ones(weights.shape[-2:]).tril()) @ v


class ForgetsPadding(Attention):
    def mask(self, n: int, keep: Tensor | None) -> None:
        return None


class Unscaled(Attention):
    def scale(self, d_head: int) -> float:
        return 1.0


class HeadsByView(Attention):
    """Heads split by a view alone: rows of one head hold pieces of other positions."""

    def split(self, x: Tensor) -> Tensor:
        return x.view(x.shape[0], self.heads, x.shape[1], -1)


class DetachedQueries(Attention):
    def attend(self, q: Tensor, k: Tensor, v: Tensor, keep: Tensor | None) -> Tensor:
        return super().attend(q.detach(), k.detach(), v, keep)


class LogOfScores(ByHand):
    """A logarithm of what may be below zero."""

    def attend(self, q: Tensor, k: Tensor, v: Tensor, keep: Tensor | None) -> Tensor:
        return super().attend(q.log(), k, v, keep)


class DropsAlways(Attention):
    def forward(self, x: Tensor, keep: Tensor | None = None) -> Tensor:
        return F.dropout(super().forward(x, keep), 0.1)  # training=True is its default


class OverSequences(nn.Module):
    """A norm over the batch."""

    def __init__(self, d: int) -> None:
        super().__init__()

    def forward(self, x: Tensor) -> Tensor:
        return (x - x.mean(0)) / (x.std(0, unbiased=False) + 1e-3)


class OverPositionsNorm(nn.Module):
    """A layer norm over the positions of each feature."""

    def __init__(self, d: int) -> None:
        super().__init__()

    def forward(self, x: Tensor) -> Tensor:
        return F.layer_norm(x.transpose(1, 2), (x.shape[1],)).transpose(1, 2)


class BatchNorm(nn.Module):
    def __init__(self, d: int) -> None:
        super().__init__()
        self.norm = nn.BatchNorm1d(d)

    def forward(self, x: Tensor) -> Tensor:
        return self.norm(x.transpose(1, 2)).transpose(1, 2)


class KnowsItsPlace(Model):
    """Position embeddings added along the batch."""

    def embedded(self, tokens: Tensor) -> Tensor:
        return self.embed(tokens) + self.positions(torch.arange(tokens.shape[0]))[:, None]  # type: ignore[misc]


class NoNorm(Block):
    """No norm, and sublayers that write more than they read."""

    def __init__(self, attention: Attention) -> None:
        super().__init__(attention, norm=lambda d: nn.Identity())
        with torch.no_grad():
            for each in (attention.v_proj, attention.o_proj, self.mlp[0], self.mlp[2]):
                each.weight.mul_(3.0)  # type: ignore[union-attr,operator]
            attention.q_proj.weight.mul_(0.0)  # attention itself stays as it is


class NoResidual(Block):
    def forward(self, x: Tensor, keep: Tensor | None = None) -> Tensor:
        return self.mlp(self.norm2(self.attn(self.norm1(x), keep)))


def with_head(head: int, change: Callable[[Attention, slice], None], layer: int = 1) -> nn.Module:
    """A sound model after a change of one head's weights."""
    blocks = sound()
    attention: Any = blocks[layer].attn
    width = D // HEADS
    with torch.no_grad():
        change(attention, slice(head * width, (head + 1) * width))
    return Model(blocks)


def _dead(attention: Attention, rows: slice) -> None:
    attention.o_proj.weight[:, rows] = 0.0


def _twice(attention: Attention, rows: slice) -> None:
    first = slice(0, D // HEADS)
    for each in (attention.q_proj, attention.k_proj):
        each.weight[rows], each.bias[rows] = each.weight[first], each.bias[first]


def _stiff(attention: Attention, rows: slice) -> None:
    attention.q_proj.weight[rows] *= 3000.0


def _sharpened(factor: float, layers: tuple[int, ...]) -> nn.Module:
    blocks: Any = sound()
    with torch.no_grad():
        for layer in layers:
            blocks[layer].attn.q_proj.weight.mul_(factor)
    return Model(blocks)


def _unscaled() -> Attention:
    attention = Unscaled(256, 4)
    with torch.no_grad():  # queries and keys of unit variance, as a norm's output times weights of 1/√d
        for each in (attention.q_proj, attention.k_proj):
            each.weight.mul_(3**0.5)
    return attention


def _overflowing() -> nn.Module:
    model = Model(sound())
    with torch.no_grad():
        mlp: Any = model.blocks[1].mlp
        mlp[0].weight.mul_(3e5)
        mlp[2].weight.mul_(1 / 3e5)
    return model


@dataclass(frozen=True)
class Fault:
    """A model with one fault.

    Attributes:
        make: the module. check: which check must find it, at least with this ``verdict``.
        site: what the check must name; None where it names nothing.
    """

    make: Callable[[], nn.Module]
    check: str
    verdict: str = "fail"
    site: str | None = None
    inputs: Callable[[], Any] = example
    config: Config = field(default_factory=Config)

    def load(self, seed: int = 0) -> Any:
        torch.manual_seed(seed)
        return interp.load(self.make().eval(), self.inputs(), verify=False)


CAUSAL = Config(causal="yes")
PADDED = lambda: (example(), keep())  # noqa: E731

FAULTS: dict[str, Fault] = {
    "one layer without its causal mask": Fault(
        lambda: Model([Block(Attention()), Block(Attention(causal=False))]), "future_leak", site="blocks.1.attn"
    ),
    "no causal mask at all": Fault(
        lambda: Model(sound(causal=False)), "future_leak", site="blocks.0.attn", config=CAUSAL
    ),
    "a causal mask off by one": Fault(
        lambda: Model(sound(kind=OffByOne)), "future_leak", site="blocks.0.attn"
    ),
    "heads split by a view": Fault(lambda: Model(sound(kind=HeadsByView)), "future_leak", site="blocks.0.attn"),
    "a mask after the softmax": Fault(lambda: Model(sound(kind=MaskAfterSoftmax)), "row_sums", site="blocks.0.attn"),
    "padding is read": Fault(
        lambda: Model([Block(Attention(causal=False)), Block(ForgetsPadding(causal=False))]), "padding_leak_right",
        site="blocks.1.attn", inputs=PADDED,
    ),
    "no scale": Fault(
        lambda: Model([Block(Attention(256, 4), 256), Block(_unscaled(), 256)], 256), "score_deviation",
        site="blocks.1.attn",
    ),
    "a norm over the batch": Fault(
        lambda: Model([Block(Attention()), Block(Attention(), norm=OverSequences)]), "mixing_of_sequences", "warn",
        site="blocks.1.norm1",
    ),
    "a norm over the sequence": Fault(
        lambda: Model([Block(Attention()), Block(Attention(), norm=OverPositionsNorm)]), "mixing_of_positions",
        site="blocks.1.norm1",
    ),
    "a norm over the sequence leaks the future": Fault(
        lambda: Model([Block(Attention()), Block(Attention(), norm=OverPositionsNorm)]), "future_leak",
        site="blocks.1.attn",
    ),
    "a batch norm": Fault(
        lambda: Model([Block(Attention()), Block(Attention(), norm=BatchNorm)]), "training_mode", "warn"
    ),
    "positions along the batch": Fault(lambda: KnowsItsPlace(sound()), "batch_order", site="blocks.0.attn"),
    "an overflow in float16": Fault(_overflowing, "finite_float16", "warn", site="blocks.1.mlp.0"),
    "a dead head": Fault(lambda: with_head(2, _dead), "negligible_heads", "warn", site="blocks.1.attn"),
    "one head twice": Fault(lambda: with_head(2, _twice), "identical_heads", "warn", site="blocks.1.attn"),
    "a stiff head": Fault(lambda: with_head(1, _stiff), "softmax_jacobian", "warn", site="blocks.1.attn"),
    "saturated softmaxes": Fault(
        lambda: _sharpened(300.0, (0, 1)), "saturated_rows", "warn"
    ),
    "a collapsed layer": Fault(lambda: _sharpened(1000.0, (1,)), "entropy_collapse", "warn", site="blocks.1.attn"),
    "NaN in one site": Fault(
        lambda: Model([Block(ByHand()), Block(LogOfScores())]), "finite", site="blocks.1.attn"
    ),
    "dropout in evaluation": Fault(lambda: Model(sound(kind=DropsAlways)), "repeats"),
    "no positions in a bidirectional model": Fault(
        lambda: Model(sound(causal=False), positions=False), "order_blindness"
    ),
    "activations that explode": Fault(
        lambda: Model([NoNorm(Attention()) for _ in range(8)]), "activation_growth", "warn", site="blocks.7"
    ),
    "gradients that vanish": Fault(
        lambda: Model([NoResidual(Attention()) for _ in range(8)]), "vanishing_gradient", site="blocks.0"
    ),
    "queries without a gradient": Fault(
        lambda: Model([Block(Attention()), Block(DetachedQueries())]), "gradient_to_queries_and_keys",
        site="blocks.1.attn",
    ),
    "rows without a key": Fault(lambda: Model(sound(kind=Strict)), "empty_rows", "warn", site="blocks.0.attn"),
    "a cache that does not fit": Fault(
        lambda: Model(sound()), "kv_cache", config=Config(context=100_000, requests=1000, memory=1.0)
    ),
}  # fmt: skip


def dropping() -> tuple[nn.Module, Tensor]:
    """A factory, as `interp doctor package.module:function` takes one."""
    torch.manual_seed(0)
    return FAULTS["dropout in evaluation"].make().eval(), example()
