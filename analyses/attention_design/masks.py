"""Encoder and decoder: the same small model with and without the causal mask."""

from __future__ import annotations

import math

import numpy as np
import torch
from torch import Tensor

from analyses.attention_design.claims import Claim, Curve, Panel, over_seeds
from analyses.attention_design.config import Config
from analyses.attention_design.tasks import HELD_OUT, IGNORED, fit, generator, score

TOPIC = "masks"
VOCABULARY, LENGTH, STEPS = 12, 16, 250


def claims(config: Config) -> list[Claim]:
    """All claims of this section."""
    return [both(config)] if config.training else []


def both(config: Config) -> Claim:
    """One task that needs the right context, one that continues text."""
    right: dict[str, list[float]] = {"causal": [], "bidirectional": []}
    continued: dict[str, list[float]] = {"causal": [], "bidirectional": []}
    seen: dict[str, list[float]] = {"causal": [], "bidirectional": []}
    for s in range(config.n_seeds):
        seed = config.seed + s
        for name, causal in (("causal", True), ("bidirectional", False)):
            choices = {
                "d_vocab": VOCABULARY,
                "n_ctx": LENGTH,
                "d_model": 32,
                "n_layers": 1,
                "n_heads": 2,
                "positions": "learned",
                "causal": causal,
                "learning_rate": 1e-2,
            }
            model, _ = fit(lambda step, seed=seed: _next_shown(seed, step), steps=STEPS, seed=seed, **choices)
            right[name].append(score(model, lambda step, seed=seed: _next_shown(seed, step)).accuracy)
            model, _ = fit(lambda step, seed=seed: _repeating(seed, step), steps=STEPS, seed=seed, **choices)
            seen[name].append(score(model, lambda step, seed=seed: _repeating(seed, step)).accuracy)
            continued[name].append(_continues(model, seed))
    mean = {
        kind: {name: float(np.mean(a)) for name, a in found.items()}
        for kind, found in (("right", right), ("seen", seen), ("continued", continued))
    }
    dots = [
        (f"{task}: {name}", over_seeds("", found[name], "none", math.nan))
        for task, found in (("needs what comes next", right), ("continues from a prefix", continued))
        for name in ("bidirectional", "causal")
    ]
    return Claim(
        "encoder-decoder",
        TOPIC,
        "An encoder sees both sides and understands; a decoder sees the past and can continue. The mask decides which.",
        "What needs a later token is out of a causal model's reach: it stays at chance. A bidirectional model trained "
        "to name "
        "the next token can look it up, so that its loss says nothing, and fails where the next token is not there "
        "yet.",
        f"Naming the token that follows: bidirectional {mean['right']['bidirectional']:.0%} right, causal "
        f"{mean['right']['causal']:.0%} (chance {1 / VOCABULARY:.0%}). Continuing a sequence that repeats: with the "
        f"answer in sight {mean['seen']['bidirectional']:.0%} and {mean['seen']['causal']:.0%}, but from a prefix "
        "alone "
        f"{mean['continued']['bidirectional']:.0%} and {mean['continued']['causal']:.0%} ({config.n_seeds} seeds).",
        (
            over_seeds("needs what comes next: bidirectional", right["bidirectional"], "at least", 0.9),
            over_seeds("needs what comes next: causal", right["causal"], "at most", 1 / VOCABULARY + 0.05),
            over_seeds(
                "continues from a prefix: causal less bidirectional (paired)",
                np.subtract(continued["causal"], continued["bidirectional"]),
                "at least",
                0.0,
            ),
            over_seeds("next token with the answer in sight: bidirectional", seen["bidirectional"], "at least", 0.9),
        ),
        (
            Panel(
                "Two tasks, two masks",
                "accuracy",
                "",
                tuple(Curve(name, [n.value], [i], [n.low], [n.high]) for i, (name, n) in enumerate(dots)),
                kind="dots",
                reference=1 / VOCABULARY,
                reference_name="chance",
            ),
        ),
        not_shown="Masked-token training, which makes bidirectional models useful, is another objective.",
    )


def _next_shown(seed: int, step: int) -> tuple[Tensor, Tensor]:
    """Random tokens; the target of each is the one to its right."""
    tokens = torch.randint(VOCABULARY, (32, LENGTH), generator=generator(seed, step))
    targets = torch.full_like(tokens, IGNORED)
    targets[:, :-1] = tokens[:, 1:]
    return tokens, targets


def _repeating(seed: int, step: int) -> tuple[Tensor, Tensor]:
    """Random tokens and the same again; the target of each is the next token, where the past tells it."""
    half = LENGTH // 2
    tokens = torch.randint(VOCABULARY, (32, half), generator=generator(seed, step)).repeat(1, 2)
    targets = torch.full_like(tokens, IGNORED)
    targets[:, half - 1 : -1] = tokens[:, half:]
    return tokens, targets


@torch.no_grad()
def _continues(model: torch.nn.Module, seed: int) -> float:
    """Accuracy of the next token when the model is given the prefix alone, three quarters of the sequence."""
    shown = 3 * LENGTH // 4
    right = [
        (model(tokens[:, :shown]).logits[:, -1].argmax(-1) == tokens[:, shown]).double().mean()
        for tokens, _ in (_repeating(seed, HELD_OUT + i) for i in range(8))
    ]
    return float(torch.stack(right).mean())
