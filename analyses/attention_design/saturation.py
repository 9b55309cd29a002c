"""Saturation: a softmax that has made up its mind passes on no gradient, and a model that starts there learns late."""

from __future__ import annotations

import math

import numpy as np
import torch

from analyses.attention_design.claims import (
    Claim,
    Curve,
    Number,
    Panel,
    at_most,
    curve_over_seeds,
    exponent,
    number,
    over_seeds,
    small,
)
from analyses.attention_design.config import Config
from analyses.attention_design.tasks import Recall, first_below, fit, go_on, score

TOPIC = "saturation"
STEPS, VALUES = 250, 4


def claims(config: Config) -> list[Claim]:
    """All claims of this section."""
    return [jacobian(), gradients(config.seed), *([training(config)] if config.training else [])]


def jacobian() -> Claim:
    """‖diag(σ) − σσᵀ‖_F = O(ε) as the largest weight goes to 1 − ε."""
    gaps = np.logspace(-6, -0.5, 34)
    others = 99
    norms = np.array([_jacobian_norm(np.r_[1 - e, np.full(others, e / others)]) for e in gaps])
    closed = np.array([_closed_form(e, others) for e in gaps])
    small = gaps < 1e-3
    slope = exponent(gaps[small].tolist(), norms[small].tolist())
    return Claim(
        "jacobian",
        TOPIC,
        "A saturated softmax passes no gradient to its scores.",
        "The Jacobian is diag(σ) − σσᵀ. With the largest weight at 1 − ε and the rest shared by m keys, its Frobenius "
        "norm is "
        "√(1 + 1/m) · ε as ε → 0 (to leading order): proportional to ε.",
        f"Its norm falls as ε^{slope:.3f}; at a largest weight of 0.99 it is {_closed_form(0.01, others):.4f}, at 0.5 "
        f"{_closed_form(0.5, others):.2f}.",
        (
            number("exponent of ‖J‖ in ε", slope, 1.0, 0.01),
            at_most("largest relative difference from the closed form", float(np.abs(norms / closed - 1).max()), 1e-9),
        ),
        (
            Panel(
                "What a softmax passes on",
                "ε = 1 − largest weight",
                "‖diag(σ) − σσᵀ‖ (Frobenius)",
                (Curve("measured", gaps, norms), Curve("∝ ε", gaps, gaps * norms[0] / gaps[0], theory=True)),
                "log",
                "log",
            ),
        ),
    )


def gradients(seed: int) -> Claim:
    """The gradient that reaches queries and keys rises with the spread of the scores, then vanishes."""
    generator = torch.Generator().manual_seed(seed)
    d, keys, rows = 64, 100, 400
    q0, k0 = torch.randn(rows, d, generator=generator), torch.randn(keys, d, generator=generator)
    value, pull = torch.randn(keys, d, generator=generator), torch.randn(rows, d, generator=generator)
    spreads = np.array([0.125, 0.25, 0.5, 1.0, 2.0, 4.0, 8.0, 16.0, 32.0, 64.0])
    to_scores = []
    for spread in spreads:
        scores = (q0 @ k0.T / math.sqrt(d) * spread).double().requires_grad_()
        output = scores.softmax(-1) @ value.double()
        (gradient,) = torch.autograd.grad((output * pull.double()).sum(), scores)
        to_scores.append(float(gradient.norm(dim=-1).median()))
    to_scores = np.array(to_scores)
    at = dict(zip(spreads.tolist(), to_scores, strict=True))
    return Claim(
        "vanishing",
        TOPIC,
        "Queries and keys stop learning where scores are far apart.",
        "Their gradient passes through the softmax's Jacobian, which shrinks with 1 − largest weight. That gap closes "
        "exponentially in the distance of the two largest scores.",
        f"The median gradient that reaches a row's scores is {at[1.0]:.2f} at deviation 1, {at[8.0]:.2f} at 8 (d = 64 "
        "without "
        f"the scale), {at[16.0]:.2f} at 16 and {small(at[64.0])} at 64.",
        (
            Number("deviation 64 over deviation 1", at[64.0] / at[1.0], expected=0.1, relation="at most"),
            Number(
                "deviation 8 over deviation 1, said to vanish",
                at[8.0] / at[1.0],
                expected=0.1,
                relation="at most",
                source="said",
            ),
        ),
        (
            Panel(
                "Gradient through the softmax",
                "standard deviation of the scores",
                "‖∂ loss / ∂ scores‖ (median row)",
                (Curve("median row", spreads, to_scores),),
                "log",
                "log",
            ),
        ),
        said="At the spread of unscaled scores of d = 64 the gradient has vanished.",
    )


def training(config: Config) -> Claim:
    """A small model on recall with α = ½ and α = 0, with and without warm-up, and set right after it was stuck."""
    variants = {"α = ½": (0.5, 30), "α = ½, no warm-up": (0.5, 0), "α = 0": (0.0, 30), "α = 0, no warm-up": (0.0, 0)}
    losses: dict[str, list[list[float]]] = {name: [] for name in variants}
    accuracy: dict[str, list[float]] = {name: [] for name in variants}
    set_right, left_alone = [], []
    for s in range(config.n_seeds):
        seed = config.seed + s
        task = Recall(keys=8, values=VALUES, pairs=6, batch=32, seed=seed)
        for name, (alpha, warmup) in variants.items():
            model, history = fit(
                task,
                steps=STEPS,
                seed=seed,
                warmup=warmup,
                d_vocab=task.d_vocab,
                d_model=128,
                n_layers=1,
                n_heads=1,
                positions="none",
                scale_exponent=alpha,
            )
            losses[name].append(history)
            accuracy[name].append(score(model, task).accuracy)
            if name == "α = 0":
                left_alone.append(accuracy[name][-1])
                mended = model.altered(scale_exponent=0.5)
                go_on(mended, task, steps=STEPS // 2, seed=seed, first=STEPS)
                set_right.append(score(mended, task).accuracy)
    means = {name: float(np.mean(a)) for name, a in accuracy.items()}
    halves = {
        name: np.array([first_below(run, math.log(VALUES) / 2) for run in runs], float) for name, runs in losses.items()
    }
    steps = np.arange(0, STEPS, 10)
    curves = tuple(
        curve_over_seeds(name, steps + 10, np.array(runs).reshape(len(runs), -1, 10).mean(-1))
        for name, runs in losses.items()
    )
    later = halves["α = 0"] - halves["α = ½"]
    return Claim(
        "training-without-scale",
        TOPIC,
        "Without √d training is slow or stuck, for the softmax begins saturated.",
        "At d = 128 scores begin with a deviation of 11 instead of 1. Rows that begin one-hot on a wrong key pass "
        "almost no "
        "gradient; the others learn.",
        f"On recall (chance {1 / VALUES:.2f}), one head of d = 128 and {config.n_seeds} seeds, {STEPS} steps reach an "
        "accuracy of "
        f"{means['α = ½']:.2f} with the scale and {means['α = 0']:.2f} without; without warm-up "
        f"{means['α = ½, no warm-up']:.2f} "
        f"and {means['α = 0, no warm-up']:.2f}. Half of the loss is gone {later.mean():.0f} steps later. Given the "
        "scale back "
        f"and {STEPS // 2} steps, the unscaled models reach {np.mean(set_right):.2f}.",
        (
            over_seeds("accuracy with α = ½", accuracy["α = ½"], "at least", 0.5),
            over_seeds(
                "accuracy, α = ½ less α = 0 (paired)",
                np.subtract(accuracy["α = ½"], accuracy["α = 0"]),
                "at least",
                0.0,
            ),
            over_seeds("steps later that half the loss is gone, α = 0", later, "at least", 0.0, unit="steps"),
            over_seeds(
                "what setting the scale right gains (paired)", np.subtract(set_right, left_alone), "none", math.nan
            ),
            Number(
                "share of unscaled seeds that learned nothing",
                float(np.mean(np.array(accuracy["α = 0"]) < 1 / VALUES + 0.1)),
                expected=1.0,
                relation="at least",
                source="said",
                n=config.n_seeds,
            ),
        ),
        (
            Panel(
                "Learning to recall",
                "step",
                "loss (nats)",
                curves,
                reference=math.log(VALUES),
                reference_name=f"chance, ln {VALUES}",
            ),
        ),
        said="Without the scale a model does not learn at all.",
        not_shown="One task and one width; larger models have norms, more heads and longer training to get out with.",
    )


def _jacobian_norm(sigma: np.ndarray) -> float:
    return float(np.linalg.norm(np.diag(sigma) - np.outer(sigma, sigma)))


def _closed_form(e: float, m: int) -> float:
    """‖diag(σ) − σσᵀ‖_F for one weight of 1 − e and m of e/m, by counting entries."""
    big, small = 1 - e, e / m
    return math.sqrt(
        (big - big**2) ** 2 + 2 * m * (big * small) ** 2 + m * (small - small**2) ** 2 + m * (m - 1) * small**4
    )
