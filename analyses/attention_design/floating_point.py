"""Softmax in floating point: where exp overflows, and masking before the softmax against after it."""

from __future__ import annotations

import math

import numpy as np
import torch
import torch.nn.functional as F  # noqa: N812 (the name everyone knows)
from torch import Tensor, nn

from analyses.attention_design.claims import Claim, Curve, Number, Panel, at_most, number, over_seeds, small
from analyses.attention_design.config import Config
from analyses.attention_design.tasks import generator

TOPIC = "floating-point"
VOCABULARY, LENGTH, STEPS = 4, 12, 400


def claims(config: Config) -> list[Claim]:
    """All claims of this section."""
    return [overflow(config.seed), masked_after(config.seed), *([leak(config)] if config.training else [])]


def overflow(seed: int) -> Claim:
    """Subtracting the maximum changes nothing but where exp overflows."""
    kinds = {"float32": np.float32, "float16": np.float16}
    limits = {name: _largest_finite(kind) for name, kind in kinds.items()}
    x = np.random.default_rng(seed).normal(size=(50, 30)) * 3
    plain = np.exp(x) / np.exp(x).sum(-1, keepdims=True)
    shifted = np.exp(x - x.max(-1, keepdims=True))
    shifted /= shifted.sum(-1, keepdims=True)
    heights = np.linspace(0, 120, 121)
    broken = {name: [float(_naive_breaks(h, kind)) for h in heights] for name, kind in kinds.items()}
    return Claim(
        "overflow",
        TOPIC,
        "The maximum of a row is subtracted before exp: the result is the same, and exp can't overflow.",
        "softmax(x) = softmax(x − c) for any c. exp overflows beyond ln(largest number): 88.72 in float32, 11.09 in "
        "float16.",
        f"Both forms differ by {small(np.abs(plain - shifted).max())} in float64. exp is finite up to "
        f"{limits['float32']:.2f} in float32 and {limits['float16']:.2f} in float16 (which a single unscaled score of "
        "d = 64 "
        "passes at 1.4 standard deviations).",
        (
            at_most("largest difference of the two forms, float64", float(np.abs(plain - shifted).max()), 1e-14),
            number(
                "largest x with finite exp(x), float32",
                limits["float32"],
                math.log(float(np.finfo(np.float32).max)),
                0.01,
            ),
            number(
                "largest x with finite exp(x), float16",
                limits["float16"],
                math.log(float(np.finfo(np.float16).max)),
                0.01,
            ),
        ),
        (
            Panel(
                "Where a softmax without the subtraction breaks",
                "largest score of the row",
                "result is NaN or 0 (1: yes)",
                tuple(Curve(name, heights, b) for name, b in broken.items()),
            ),
        ),
    )


def masked_after(seed: int) -> Claim:
    """Zeroing weights after the softmax leaves rows that do not sum to 1 and depend on forbidden keys."""
    random = torch.Generator().manual_seed(seed)
    scores = torch.randn(32, 32, generator=random, dtype=torch.float64)
    future = torch.ones(32, 32, dtype=torch.bool).triu(1)
    before = scores.masked_fill(future, -math.inf).softmax(-1)
    after = scores.softmax(-1).masked_fill(future, 0.0)
    moved = scores.clone()
    moved[:, -1] += 3.0
    leak = float((moved.softmax(-1).masked_fill(future, 0.0) - after)[:-1].abs().max())
    none = float((moved.masked_fill(future, -math.inf).softmax(-1) - before)[:-1].abs().max())
    sums = after.sum(-1)
    return Claim(
        "mask-before",
        TOPIC,
        "The mask is −∞ before the softmax, not zero after it.",
        "Before: forbidden keys get weight 0 and the rest sums to 1. After: rows sum to what was left, and their "
        "denominators "
        "still hold the forbidden scores.",
        f"Masked after, row sums go from {sums.min():.2f} to {sums.max():.2f}; raising the last key's score changes "
        "earlier "
        f"rows by up to {leak:.3f}. Masked before, by {small(none)}.",
        (
            number("row sums masked before, furthest from 1", 1 + float((before.sum(-1) - 1).abs().max()), 1.0, 1e-12),
            at_most("smallest row sum masked after", float(sums.min()), 0.5),
            Number("what a future key changes, masked after", leak, expected=0.01, relation="at least"),
            number("what a future key changes, masked before", none, 0.0),
        ),
    )


def leak(config: Config) -> Claim:
    """What a model gains by the wrong mask: the next token of random text can't be predicted, unless it is seen."""
    floor = math.log(VOCABULARY)
    losses = {
        name: [_train_leaky(config.seed + s, name) for s in range(config.n_seeds)]
        for name in ("before", "after", "none")
    }
    mean = {name: float(np.mean(runs)) for name, runs in losses.items()}
    return Claim(
        "mask-leak",
        TOPIC,
        "A model trained with the wrong mask learns to read the answer, and its loss looks too good.",
        f"Random tokens cannot be predicted: the expected loss of an honest model is at least ln {VOCABULARY} = "
        f"{floor:.3f} nats. "
        "Below it, a model sees the future.",
        f"On fresh random tokens the loss is {mean['before']:.3f} with −∞ before the softmax, {mean['after']:.3f} "
        "with zeros "
        f"after it, and {mean['none']:.3f} without a mask ({config.n_seeds} seeds, {STEPS} steps).",
        (
            over_seeds("loss, masked before", losses["before"], "at least", floor - 0.01, unit="nats"),
            over_seeds("loss, masked after", losses["after"], "at most", floor - 0.02, unit="nats"),
            over_seeds("loss, no mask", losses["none"], "at most", 0.3, unit="nats"),
        ),
        not_shown="How fast a deep model finds the leak through the denominators; here one layer is trained to find "
        "it.",
    )


class _Leaky(nn.Module):
    """One layer of attention written by hand, with the mask where it is told to be."""

    def __init__(self, mask: str, d: int = 32, heads: int = 4) -> None:
        super().__init__()
        self.mask, self.heads = mask, heads
        self.embed, self.place = nn.Embedding(VOCABULARY, d), nn.Embedding(LENGTH, d)
        self.qkv, self.out = nn.Linear(d, 3 * d), nn.Linear(d, d)
        self.mlp = nn.Sequential(nn.Linear(d, 4 * d), nn.GELU(), nn.Linear(4 * d, d))
        self.unembed = nn.Linear(d, VOCABULARY)

    def forward(self, tokens: Tensor) -> Tensor:
        x = self.embed(tokens) + self.place.weight
        q, k, v = (t.unflatten(-1, (self.heads, -1)).transpose(1, 2) for t in self.qkv(x).chunk(3, -1))
        scores = q @ k.mT / math.sqrt(q.shape[-1])
        future = torch.ones(LENGTH, LENGTH, dtype=torch.bool).triu(1)
        if self.mask == "before":
            scores = scores.masked_fill(future, -math.inf)
        weights = scores.softmax(-1)
        if self.mask == "after":
            weights = weights.masked_fill(future, 0.0)
        x = x + self.out((weights @ v).transpose(1, 2).flatten(2))
        return self.unembed(x + self.mlp(x))


def _train_leaky(seed: int, mask: str) -> float:
    """Loss on fresh random tokens after training."""
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        model = _Leaky(mask)
    optimiser = torch.optim.Adam(model.parameters(), lr=3e-3)

    def loss(step: int, batch: int = 64) -> Tensor:
        tokens = torch.randint(VOCABULARY, (batch, LENGTH), generator=generator(seed, step))
        return F.cross_entropy(model(tokens)[:, :-1].flatten(0, 1), tokens[:, 1:].flatten())

    for step in range(STEPS):
        optimiser.zero_grad()
        loss(step).backward()
        optimiser.step()
    with torch.no_grad():
        return float(loss(STEPS, 2000))


def _largest_finite(kind: type) -> float:
    """The largest x for which exp(x) is finite, by bisection in steps that the type can hold."""
    low, high = 0.0, 200.0
    with np.errstate(over="ignore"):
        for _ in range(60):
            middle = (low + high) / 2
            low, high = (middle, high) if np.isfinite(np.exp(kind(middle))) else (low, middle)
    return low


def _naive_breaks(height: float, kind: type) -> bool:
    """Whether exp / sum, written plainly, fails for a row whose largest score is ``height``."""
    row = np.array([height, 0.0, -1.0], dtype=kind)
    with np.errstate(over="ignore", invalid="ignore"):
        weights = np.exp(row) / np.exp(row).sum(dtype=kind)
    return not bool(np.isfinite(weights).all() and weights[0] > 0)
