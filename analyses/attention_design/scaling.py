"""Why scores are divided by √d: what q·k is like, and what becomes of the softmax without it."""

from __future__ import annotations

import math

import numpy as np
import torch
from torch import Tensor

from analyses.attention_design.claims import (
    Claim,
    Curve,
    Panel,
    exponent,
    number,
    over_seeds,
)
from analyses.attention_design.config import Config

TOPIC = "scaling"
WIDTHS = (4, 8, 16, 32, 64, 128, 256, 512)
ALPHAS = (0.0, 0.125, 0.25, 0.375, 0.5, 0.625, 0.75, 0.875, 1.0)
D, T, ROWS = 64, 100, 2000


def claims(config: Config) -> list[Claim]:
    """All claims of this section."""
    return [variance(config.seed), at_initialisation(config.seed), exponents(config.seed), said(config.seed)]


def variance(seed: int) -> Claim:
    """Var(q·k) = d for independent components of unit variance."""
    draws = 20_000
    found = []
    for d in WIDTHS:
        q, k = _pairs(seed, draws, d)
        found.append((q * k).sum(-1).var().item())
    spread = math.sqrt(2 / draws) * 3  # three standard errors of a variance, of nearly normal sums
    slope = exponent(WIDTHS, np.sqrt(found))
    worst = max(abs(v / d - 1) for v, d in zip(found, WIDTHS, strict=True))
    return Claim(
        "variance",
        TOPIC,
        "A score q·k is a sum of d products, so its variance grows with d, and dividing by √d undoes that.",
        "For independent components of mean 0 and variance 1, Var(q·k) = d: the standard deviation is √d.",
        f"From d = 4 to 512 the standard deviation grows as d^{slope:.3f}; the variance is within {worst:.1%} of d.",
        (
            number("exponent of the standard deviation in d", slope, 0.5, 0.01),
            number("Var(q·k) / d, furthest from 1", 1 + worst, 1.0, max(spread, 0.05)),
        ),
        (
            Panel(
                "Scores grow with the width of a head",
                "d (features of a head)",
                "standard deviation of q·k",
                (Curve("measured", WIDTHS, np.sqrt(found)), Curve("√d", WIDTHS, np.sqrt(WIDTHS), theory=True)),
                "log",
                "log",
            ),
        ),
        not_shown="Trained queries and keys are neither independent nor of unit variance: see the claim on the model.",
    )


def at_initialisation(seed: int) -> Claim:
    """Components have far from unit variance at the initialisations that are in use."""
    d_model, n = 768, 4000
    generator = torch.Generator().manual_seed(seed)
    x = torch.nn.functional.layer_norm(torch.randn(n, d_model, generator=generator), (d_model,))
    bound = d_model**-0.5
    drawn = {
        "torch's nn.Linear (uniform ±1/√fan-in)": lambda: torch.empty(d_model, D).uniform_(
            -bound, bound, generator=generator
        ),
        "GPT-2 (normal, 0.02)": lambda: torch.randn(d_model, D, generator=generator) * 0.02,
        "Xavier (variance 1/fan-in)": lambda: torch.randn(d_model, D, generator=generator) * bound,
    }
    expected = dict(zip(drawn, (1 / 3, d_model * 0.02**2, 1.0), strict=True))
    scaled = {}
    for name, draw in drawn.items():
        w_q, w_k = draw(), draw()
        scaled[name] = float(((x @ w_q) * (x.roll(1, 0) @ w_k)).sum(-1).std() / math.sqrt(D))
    said = tuple(
        number(f"standard deviation of q·k/√d: {name}, against 1", value, 1.0, 0.1, source="said")
        for name, value in scaled.items()
    )
    return Claim(
        "initialisation",
        TOPIC,
        "After the division scores have unit variance.",
        "The variance is that of the components, squared: v² for components of variance v. nn.Linear's v is 1/3, "
        "GPT-2's at "
        "width 768 is 0.31; only weights of variance 1/fan-in give 1.",
        "The standard deviation of q·k/√d on normalised inputs is "
        + ", ".join(f"{value:.2f} with {name}" for name, value in scaled.items())
        + ".",
        (
            *(
                number(f"standard deviation of q·k/√d: {name}", scaled[name], v, 0.08 * max(v, 0.5))
                for name, v in expected.items()
            ),
            *said,
        ),
        said="Scores have unit variance at initialisation.",
        not_shown="What training makes of it: see the claims on the model.",
    )


def exponents(seed: int) -> Claim:
    """q·k / d^α for α from 0 to 1: only ½ keeps unit variance whatever the width."""
    kinds = {d: [_softmax_statistics(seed, d, alpha) for alpha in ALPHAS] for d in (16, 64, 256)}
    spread = {d: [row["deviation"] for row in rows] for d, rows in kinds.items()}
    agreement = [max(s[i] for s in spread.values()) / min(s[i] for s in spread.values()) for i in range(len(ALPHAS))]
    best = ALPHAS[int(np.argmin(agreement))]

    def panel(title: str, label: str, name: str, scale: str = "linear") -> Panel:
        curves = tuple(Curve(f"d = {d}", ALPHAS, [row[name] for row in rows]) for d, rows in kinds.items())
        return Panel(title, "scale exponent α", label, curves, y_scale=scale)  # type: ignore[arg-type]

    half = ALPHAS.index(0.5)
    return Claim(
        "exponent",
        TOPIC,
        "The exponent is ½: with less the softmax saturates as heads grow wider, with more it becomes flat.",
        "Scores q·k/d^α have standard deviation d^(½−α), which is the same for every width at α = ½ alone. The "
        "gradient "
        "through the softmax is largest where it is neither flat nor saturated.",
        f"Among α = 0, ⅛, … 1 the deviation depends least on the width at α = {best:g} (the widest over the narrowest: "
        f"{agreement[half]:.2f}; at α = 0 {agreement[0]:.1f}, at α = 1 {agreement[-1]:.1f}). At d = 64 the largest "
        "weight of "
        f"{T} falls from {kinds[64][0]['max']:.2f} (α = 0) over {kinds[64][half]['max']:.2f} (½) to "
        f"{kinds[64][-1]['max']:.3f} (1).",
        (
            number("exponent at which the deviation depends least on d", best, 0.5),
            number("deviation at α = ½, d = 64", spread[64][half], 1.0, 0.03),
            number("deviation at α = 0, d = 64", spread[64][0], 8.0, 0.25),
            number("deviation at α = 1, d = 64", spread[64][-1], 1 / 8, 0.01),
        ),
        (
            panel("Spread of the scores", "standard deviation", "deviation", "log"),
            panel("Sharpest weight", f"mean largest weight of {T}", "max"),
            panel("Gradient", "‖∂ output / ∂ q‖ (mean)", "gradient", "log"),
        ),
    )


def said(seed: int) -> Claim:
    """d = 64, T = 100: deviations 8 and 1, largest logits, largest weights, and the ratio that is quoted."""
    generator = torch.Generator().manual_seed(seed)
    q, k = torch.randn(ROWS, 1, D, generator=generator), torch.randn(ROWS, T, D, generator=generator)
    raw = (q * k).sum(-1).double()
    scaled = raw / math.sqrt(D)
    largest = raw.amax(-1) / raw.std()
    weights = {"unscaled": raw.softmax(-1).amax(-1), "scaled": scaled.softmax(-1).amax(-1)}
    expected = _mean_of_largest(T)
    ratio = (raw.amax(-1) - raw.amin(-1)).mean().item()
    return Claim(
        "numbers-at-64",
        TOPIC,
        "At d = 64 and 100 keys the unscaled softmax is nearly one-hot and the scaled one is soft.",
        f"Scores have deviation 8 and 1. The largest of 100 independent normal scores has mean {expected:.2f} "
        "deviations "
        f"(the often used √(2 ln n) = {math.sqrt(2 * math.log(T)):.2f} is its leading term, and too large).",
        f"Deviations {raw.std():.2f} and {scaled.std():.2f}; the largest logit is {raw.amax(-1).mean():.1f} and "
        f"{scaled.amax(-1).mean():.2f} on average; the largest weight {weights['unscaled'].mean():.2f} and "
        f"{weights['scaled'].mean():.3f}. Two scores one deviation either side of 0 differ by the factor "
        f"e¹⁶ = {math.exp(16):,.0f} unscaled; the largest and smallest of 100 by e^{ratio:.0f}.",
        (
            number("standard deviation, unscaled", float(raw.std()), 8.0, 0.1),
            number("standard deviation, scaled", float(scaled.std()), 1.0, 0.02),
            over_seeds("largest logit in deviations", largest.numpy(), "none", math.nan),
            number(
                "largest logit in deviations, against the mean of the largest of 100",
                float(largest.mean()),
                expected,
                0.06,
            ),
            number("largest logit, unscaled, said 24", float(raw.amax(-1).mean()), 24.0, 1.0, source="said"),
            number("largest logit, scaled, said 3", float(scaled.amax(-1).mean()), 3.0, 0.2, source="said"),
            number(
                "largest weight, unscaled, said about 1.0", float(weights["unscaled"].mean()), 1.0, 0.05, source="said"
            ),
            number("largest weight, scaled, said 0.17", float(weights["scaled"].mean()), 0.17, 0.02, source="said"),
            number("e⁸ / e⁻⁸ in millions, said 9", math.exp(16) / 1e6, 9.0, 0.2, source="said"),
        ),
        (
            Panel(
                "The largest of 100 weights",
                "largest weight",
                "share of rows below it",
                tuple(_distribution(name, w) for name, w in weights.items()),
            ),
        ),
        said="Largest logits about 24 and 3, largest weights about 1.0 and 0.17, and weights that differ "
        "9-million-fold.",
    )


def _distribution(name: str, values: Tensor) -> Curve:
    ordered = values.sort().values[:: max(1, len(values) // 200)]
    return Curve(name, ordered.numpy(), np.linspace(0, 1, len(ordered)))


def _mean_of_largest(n: int) -> float:
    """E max of n independent standard normals, by quadrature of ∫ x n φ(x) Φ(x)^(n−1) dx."""
    from scipy.stats import norm

    x = np.linspace(-10, 10, 200_001)
    return float(np.trapezoid(x * n * norm.pdf(x) * norm.cdf(x) ** (n - 1), x))


def _pairs(seed: int, n: int, d: int) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(seed * 1000 + d)
    return torch.randn(n, d, generator=generator), torch.randn(n, d, generator=generator)


def _softmax_statistics(seed: int, d: int, alpha: float) -> dict[str, float]:
    """Of 300 rows over T keys: deviation of the scores, largest weight, entropy, norm of the gradient to the query."""
    generator = torch.Generator().manual_seed(seed * 1000 + d)
    q = torch.randn(300, 1, d, generator=generator).requires_grad_()
    k, v = torch.randn(300, T, d, generator=generator), torch.randn(300, T, generator=generator)
    scores = (q * k).sum(-1) * d**-alpha
    weights = scores.softmax(-1)
    (gradient,) = torch.autograd.grad((weights * v).sum(), q)
    scores, weights = scores.detach(), weights.detach()
    return {
        "deviation": float(scores.std()),
        "max": float(weights.amax(-1).mean()),
        "entropy": float(torch.special.entr(weights).sum(-1).mean()),
        "gradient": float(gradient.norm(dim=-1).mean()),
    }
