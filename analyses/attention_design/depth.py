"""Norms and residuals: what reaches the first layer, and where training starts to fail."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F  # noqa: N812 (the name everyone knows)
from torch import nn

from analyses.attention_design.claims import Claim, Curve, Number, Panel, at_most, curve_over_seeds, over_seeds, small
from analyses.attention_design.config import Config
from analyses.attention_design.tasks import generator, go_on, look_back, split
from interp.models.transformer import Transformer, TransformerConfig

TOPIC = "depth"
DEPTHS = (1, 2, 4, 8, 16, 24)
FULL_DEPTHS = (1, 2, 4, 8, 16, 24, 48)
DRAWS, STEPS, RATE = 3, 80, 3e-3
CHANCE = math.log(8)
KINDS: dict[str, dict[str, Any]] = {
    "pre-norm": {"norm_position": "pre"},
    "post-norm": {"norm_position": "post"},
    "no norm": {"norm_position": "none"},
    "no residual, pre-norm": {"norm_position": "pre", "residual": False},
    "no residual, no norm": {"norm_position": "none", "residual": False},
}


def claims(config: Config) -> list[Claim]:
    """All claims of this section."""
    return [gradients(config), normalisation(config.seed), *([training(config)] if config.training else [])]


def gradients(config: Config) -> Claim:
    """Gradient norm of the first layer against the last, by depth, before training."""
    depths = FULL_DEPTHS if config.is_full else DEPTHS
    first = {
        name: np.array([[_first_layer(config.seed + s, d, choices) for d in depths] for s in range(DRAWS)])
        for name, choices in KINDS.items()
    }
    median = {name: np.median(found, 0) for name, found in first.items()}
    deep = max(depths)
    lost = {name: float(m[-1] / m[0]) for name, m in median.items()}
    return Claim(
        "gradients-by-depth",
        TOPIC,
        "Residual connections let the gradient reach the first layer however deep the model is.",
        "With x + f(x) the identity carries the gradient past every layer. Without it, the gradient is a product of "
        "as many "
        "matrices as there are layers. Norms keep the sum from growing.",
        f"From 1 to {deep} layers the first layer's gradient changes by the factor "
        + ", ".join(f"{small(factor)} ({name})" for name, factor in lost.items())
        + f" (median of {DRAWS} draws, "
        "before training).",
        (
            Number(
                f"first layer's gradient, {deep} layers over 1: pre-norm",
                lost["pre-norm"],
                expected=1e-2,
                relation="at least",
            ),
            at_most(
                "the same without residual connections and norms, over pre-norm with them",
                lost["no residual, no norm"] / lost["pre-norm"],
                1e-2,
            ),
            at_most(
                "the same without residual connections, with norms, said to vanish as well",
                lost["no residual, pre-norm"] / lost["pre-norm"],
                1e-2,
                source="said",
            ),
        ),
        (
            Panel(
                "Gradient that reaches the first layer",
                "layers",
                "‖gradient of layer 0‖, one layer alone = 1",
                tuple(
                    Curve(name, depths, m / m[0], f.min(0) / m[0], f.max(0) / m[0])
                    for (name, m), f in zip(median.items(), first.values(), strict=True)
                ),
                "log",
                "log",
                bands=f"the range of {DRAWS} draws",
            ),
        ),
        said="Without residual connections gradients vanish with depth.",
        not_shown="A gradient that arrives need not be of use: without residual connections attention has averaged "
        "the tokens by then (rank collapse).",
    )


def training(config: Config) -> Claim:
    """Pre- and post-norm, with and without warm-up, at growing depth."""
    depths = (2, 5, 10, 24) if config.is_full else (2, 5, 10)
    loss: dict[tuple[str, bool], np.ndarray] = {}
    for name in ("pre-norm", "post-norm"):
        for warmup in (True, False):
            runs = [[_trained(config.seed + s, n, name, warmup) for n in depths] for s in range(config.n_seeds)]
            loss[name, warmup] = np.array(runs)
    names = {key: f"{key[0]}, {'warm-up' if key[1] else 'no warm-up'}" for key in loss}
    gap = {n: loss["post-norm", True][:, i] - loss["pre-norm", True][:, i] for i, n in enumerate(depths)}
    helped = loss["post-norm", False] - loss["post-norm", True]
    steady = loss["pre-norm", False][:, -1] - loss["pre-norm", True][:, -1]
    return Claim(
        "norm-placement",
        TOPIC,
        "With the norm after the residual sum, deep models are hard to train and need warm-up; with it before the "
        "sublayer they "
        "need none.",
        "Post-norm rescales the identity path at every layer, so that gradients shrink on the way down and are large "
        "near the "
        "output (Xiong et al. 2020). Pre-norm leaves the identity path alone.",
        f"After {STEPS} steps at a learning rate of {RATE:g} the loss is, at "
        + "; at ".join(
            f"{n} layers, " + ", ".join(f"{runs[:, i].mean():.2f} ({names[key]})" for key, runs in loss.items())
            for i, n in enumerate(depths)
        )
        + f" nats (chance {CHANCE:.2f}; {config.n_seeds} seeds). Warm-up takes {helped[:, 1].mean():+.2f} off the "
        "loss of post-norm "
        f"at {depths[1]} layers and {helped[:, -1].mean():+.2f} at {depths[-1]}.",
        (
            over_seeds(
                f"loss at {depths[-1]} layers, post-norm less pre-norm, both with warm-up (paired)",
                gap[depths[-1]],
                "at least",
                0.2,
                unit="nats",
            ),
            over_seeds(
                f"loss at {depths[0]} layers, post-norm less pre-norm (paired)",
                gap[depths[0]],
                "none",
                math.nan,
                unit="nats",
            ),
            over_seeds(
                f"loss at {depths[-1]} layers, pre-norm without warm-up less with it (paired)",
                steady,
                "at most",
                0.2,
                unit="nats",
            ),
            over_seeds(
                f"what warm-up takes off post-norm at {depths[-1]} layers, said to make it train (paired)",
                helped[:, -1],
                "at least",
                0.2,
                unit="nats",
                source="said",
            ),
        ),
        (
            Panel(
                f"After {STEPS} steps",
                "layers",
                "loss (nats)",
                tuple(curve_over_seeds(names[key], depths, runs) for key, runs in loss.items()),
                "log",
                reference=CHANCE,
                reference_name="chance, ln 8",
            ),
        ),
        said="Warm-up makes deep post-norm models train.",
        not_shown="One task, one learning rate and few steps. Weights are drawn with variance 1/fan-in at every "
        "depth, as for the "
        "original transformer; scaled down by depth, as today's are, post-norm trains deeper.",
    )


def normalisation(seed: int) -> Claim:
    """LayerNorm is independent of batch and length, BatchNorm is not."""
    random = torch.Generator().manual_seed(seed)
    x = torch.randn(4, 10, 16, generator=random, dtype=torch.float64)
    layer = nn.LayerNorm(16, dtype=torch.float64)
    batch = nn.BatchNorm1d(16, dtype=torch.float64)

    def of(norm: nn.Module, x: torch.Tensor) -> torch.Tensor:
        return norm(x) if norm is layer else norm(x.flatten(0, 1)).view(x.shape)

    alone = {
        name: float((of(norm, x)[:1, :6] - of(norm, x[:1, :6])).abs().max().detach())
        for name, norm in (("LayerNorm", layer), ("BatchNorm", batch))
    }
    return Claim(
        "layernorm",
        TOPIC,
        "Transformers normalise each token by itself, so that its result doesn't depend on who else is in the batch.",
        "LayerNorm's statistics are over a token's features; BatchNorm's over all tokens of the batch, in training, "
        "so that "
        "length, padding and neighbours change them.",
        "Cutting a batch of 4 × 10 tokens to the first 6 of one sequence changes those tokens by "
        f"{small(alone['LayerNorm'])} under "
        f"LayerNorm and by {alone['BatchNorm']:.2f} under BatchNorm (in training mode).",
        (
            at_most("largest change, LayerNorm", alone["LayerNorm"], 1e-12),
            Number("largest change, BatchNorm", alone["BatchNorm"], expected=0.05, relation="at least"),
        ),
    )


def _first_layer(seed: int, n_layers: int, choices: dict[str, Any]) -> float:
    """Norm of the gradient of the first layer's attention weights on random tokens, before training."""
    model = Transformer(
        TransformerConfig(d_vocab=16, d_model=32, n_layers=n_layers, n_heads=2, mlp="dense", **choices),
        seed=seed,
    ).double()
    model.set_attn_implementation("sdpa")
    tokens, targets = split(torch.randint(16, (4, 16), generator=generator(seed, 0)))
    F.cross_entropy(model(tokens).logits.flatten(0, 1), targets.flatten()).backward()
    found = [p.grad.square().sum() for p in model.blocks[0].attn.parameters() if p.grad is not None]
    return float(torch.stack(found).sum().sqrt())


def _trained(seed: int, n_layers: int, kind: str, warmup: bool) -> float:
    """Mean loss of the last ten steps on a task of looking two places back; chance where training diverged."""
    model = Transformer(
        TransformerConfig(
            d_vocab=8,
            d_model=32,
            n_layers=n_layers,
            n_heads=2,
            mlp="dense",
            n_ctx=12,
            positions="learned",
            **KINDS[kind],
        ),
        seed=seed,
    )
    with torch.no_grad():  # undo what this initialisation does about depth, which is what is asked here
        for name, weight in model.named_parameters():
            if name.endswith(("o_proj.weight", "down_proj.weight")):
                weight *= math.sqrt(2 * n_layers)
    task = look_back(seed, 12, offset=2, d_vocab=8, batch=16)
    losses = go_on(model, task, steps=STEPS, seed=seed, learning_rate=RATE, warmup=STEPS // 4 if warmup else 0)
    mean = float(np.mean(losses[-10:]))
    return mean if math.isfinite(mean) else CHANCE
