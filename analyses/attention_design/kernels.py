"""Attention as kernel regression, and what becomes of it when the kernel is replaced by features."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.utils.flop_counter import FlopCounterMode

from analyses.attention_design.claims import (
    Claim,
    Curve,
    Number,
    Panel,
    at_most,
    curve_over_seeds,
    dots_over_seeds,
    exponent,
    number,
    over_seeds,
    small,
)
from analyses.attention_design.config import Config
from analyses.attention_design.tasks import Recall, fit, score
from interp.models.transformer.linear import linear_attention, performer_features, random_directions

TOPIC = "kernels"
FEATURES = (16, 32, 64, 128, 256, 512, 1024)
LENGTHS = (256, 512, 1024, 2048)


def claims(config: Config) -> list[Claim]:
    """All claims of this section."""
    found = [
        regression(config.seed),
        radial(config.seed),
        taylor(config.seed),
        features(config.seed),
        associativity(config.seed),
    ]
    return [*found, *([retrieval(config)] if config.training else [])]


def regression(seed: int) -> Claim:
    """Softmax attention is Nadaraya and Watson's estimator with the kernel exp(q·k/√d)."""
    query, key, value = _heads(seed, 30, 16)
    weights = (query @ key.T / 4).softmax(-1)
    slow = np.zeros((30, 16))
    for i, q in enumerate(query.numpy()):
        kernel = [math.exp(float(q @ k) / 4) for k in key.numpy()]
        slow[i] = sum(w * v for w, v in zip(kernel, value.numpy(), strict=True)) / sum(kernel)
    off = float(np.abs((weights @ value).numpy() - slow).max())
    return Claim(
        "nadaraya-watson",
        TOPIC,
        "Attention is kernel regression: it predicts a query's value from the values of similar keys.",
        "Nadaraya–Watson: Σ κ(q, k_j) v_j / Σ κ(q, k_j) with κ(q, k) = exp(q·k/√d). The two are one formula.",
        f"Written as loops over kernel values, the estimator differs from softmax attention by {small(off)} at most.",
        (at_most("largest difference", off, 1e-6),),
    )


def radial(seed: int) -> Claim:
    """For unit vectors the kernel is the Gaussian one, up to a factor that the normalisation removes."""
    query, key, _ = _heads(seed, 30, 16)
    q, k = (torch.nn.functional.normalize(x, dim=-1) for x in (query, key))
    tau = 0.25
    gaussian = torch.exp(-(torch.cdist(q, k) ** 2) / (2 * tau))
    gaussian = gaussian / gaussian.sum(-1, keepdim=True)
    free = torch.exp(-(torch.cdist(query, key) ** 2) / (2 * 4))
    free = free / free.sum(-1, keepdim=True)
    unit = float(((q @ k.T / tau).softmax(-1) - gaussian).abs().max())
    other = float(((query @ key.T / 4).softmax(-1) - free).abs().max())
    return Claim(
        "radial-kernel",
        TOPIC,
        "For vectors of one length, attention weighs by distance: its kernel is the Gaussian one.",
        "exp(q·k/τ) = exp(1/τ)·exp(−‖q−k‖²/2τ) for unit vectors; the factor cancels in the softmax. Keys of other "
        "lengths are "
        "weighed by exp(‖k‖²/2τ) besides: long keys attract every query.",
        f"On unit vectors the two patterns differ by {small(unit)}; on vectors of free length by up to {other:.2f}.",
        (
            at_most("largest difference, unit vectors", unit, 1e-6),
            Number("largest difference, free lengths", other, expected=0.01, relation="at least"),
        ),
    )


def taylor(seed: int) -> Claim:
    """exp cut off after a few terms: good for flat rows, useless for sharp ones, and negative at odd orders."""
    orders = np.arange(1, 13)
    generator = torch.Generator().manual_seed(seed)
    base = torch.randn(400, 100, generator=generator, dtype=torch.float64)
    spreads = (0.5, 1.0, 3.0)
    errors = {s: [_taylor_error(base * s, int(n)) for n in orders] for s in spreads}
    first_negative = float((1 + base * 1.0 < 0).double().mean())
    return Claim(
        "taylor",
        TOPIC,
        "A polynomial can stand in for exp, so that attention becomes linear, but only while scores stay near 0.",
        "The Taylor series of exp to order n has the relative error |s|^(n+1)/(n+1)! ·e^|s| at most: its order has to "
        "exceed "
        "the largest |score|. Odd orders become negative, and are no weights then.",
        f"With scores of deviation 1, order 2 misplaces {errors[1.0][1]:.1%} of the attention (total variation) and "
        "order 6 "
        f"{errors[1.0][5]:.2%}; at deviation 3, order 6 still {errors[3.0][5]:.0%}. At order 1 and deviation 1, "
        f"{first_negative:.0%} of the weights are negative.",
        (
            at_most("total variation, deviation 1, order 6", errors[1.0][5], 0.01),
            Number("total variation, deviation 3, order 2", errors[3.0][1], expected=0.1, relation="at least"),
            at_most("order 12 over order 2, deviation 1", errors[1.0][11] / errors[1.0][1], 0.01),
            number("share of negative weights, order 1, deviation 1 (P(s < −1))", first_negative, 0.1587, 0.005),
        ),
        (
            Panel(
                "exp replaced by its Taylor polynomial",
                "order",
                "attention misplaced (total variation)",
                tuple(Curve(f"scores of deviation {s:g}", orders, e) for s, e in errors.items()),
                y_scale="log",
            ),
        ),
    )


def features(seed: int) -> Claim:
    """Performer's positive features: the error of the kernel estimate falls as 1/√m, and orthogonal ones are better."""
    n_seeds, d = 40, 16
    error = {
        kind: np.array([[_kernel_error(seed + s, m, d, kind) for m in FEATURES] for s in range(n_seeds)])
        for kind in (True, False)
    }
    rms = {kind: np.sqrt((e**2).mean(0)) for kind, e in error.items()}
    slope = exponent(FEATURES, rms[False].tolist())
    gain = (error[True] ** 2).mean(-1) / (error[False] ** 2).mean(-1)
    sharp = [_pattern_error(seed, 256, d, spread) for spread in (0.5, 1.0, 2.0, 4.0)]
    return Claim(
        "random-features",
        TOPIC,
        "Random positive features approximate the softmax kernel without bias; orthogonal ones with less variance.",
        "E[φ(q)·φ(k)] = exp(q·k), with an error of 1/√m for m features (Choromanski et al. 2021). Its relative size "
        "grows with "
        "exp(‖q + k‖²/2): sharp rows need exponentially many features.",
        f"The root mean square relative error falls as m^{slope:.2f}; orthogonal features have {np.median(gain):.2f} "
        "of the "
        f"squared error (median of {n_seeds} draws). With 256 features attention misplaced is {sharp[1]:.0%} at "
        "scores of "
        f"deviation 1 and {sharp[3]:.0%} at 4.",
        (
            number("exponent of the error in m, independent features", slope, -0.5, 0.12),
            at_most("squared error, orthogonal over independent (median)", float(np.median(gain)), 1.0),
            Number(
                "misplaced attention, deviation 4 over deviation 0.5",
                sharp[3] / sharp[0],
                expected=2.0,
                relation="at least",
            ),
        ),
        (
            Panel(
                "Error of the kernel estimate",
                "random features m",
                "relative error (root mean square)",
                (
                    curve_over_seeds("orthogonal", FEATURES, np.abs(error[True])),
                    curve_over_seeds("independent", FEATURES, np.abs(error[False])),
                    Curve("∝ m^−½", FEATURES, rms[False][0] * np.sqrt(FEATURES[0] / np.array(FEATURES)), theory=True),
                ),
                "log",
                "log",
            ),
            Panel(
                "Sharp rows are lost first",
                "standard deviation of the scores",
                "attention misplaced (total variation)",
                (Curve("256 orthogonal features", (0.5, 1.0, 2.0, 4.0), sharp),),
                "log",
            ),
        ),
    )


def associativity(seed: int) -> Claim:
    """φ(Q)(φ(K)ᵀV) instead of (QKᵀ)V: operations grow with T, not T²."""
    d = 32
    counted: dict[str, list[float]] = {"softmax": [], "linear": []}
    for length in LENGTHS:
        query, key, value = (
            torch.randn(1, 1, length, d, generator=torch.Generator().manual_seed(seed)) for _ in range(3)
        )
        with FlopCounterMode(display=False) as counter:
            torch.matmul((query @ key.mT).softmax(-1), value)
        counted["softmax"].append(counter.get_total_flops())
        with FlopCounterMode(display=False) as counter:
            linear_attention(query.exp(), key.exp(), value, causal=False)
        counted["linear"].append(counter.get_total_flops())
    slopes = {name: exponent(LENGTHS, flops) for name, flops in counted.items()}
    even = 4 * d * LENGTHS[0]  # FLOPs of both are 4 T² d and 4 T d² + 2 T d: equal near T = d
    query, key, value = _heads(seed, 64, 8)
    phi_q, phi_k = query.exp(), key.exp()
    explicit = phi_q @ phi_k.T
    explicit = explicit / explicit.sum(-1, keepdim=True) @ value
    summed, _ = linear_attention(phi_q[None, None], phi_k[None, None], value[None, None], causal=False)
    off = float((summed[0, 0] - explicit).abs().max())
    return Claim(
        "associativity",
        TOPIC,
        "With features the product can be taken the other way round, and the cost is linear in the length.",
        "(φ(Q)φ(K)ᵀ)V = φ(Q)(φ(K)ᵀV): 4T²d multiplications and additions become 4Tmd.",
        f"Counted operations grow as T^{slopes['softmax']:.2f} and T^{slopes['linear']:.2f} from {LENGTHS[0]} to "
        f"{LENGTHS[-1]} "
        f"tokens; the two orders give the same output to {small(off)}. At {LENGTHS[-1]} tokens and d = m = {d} that is "
        f"{counted['softmax'][-1] / counted['linear'][-1]:.0f} times fewer.",
        (
            number("exponent of operations in T, softmax", slopes["softmax"], 2.0, 0.01),
            number("exponent of operations in T, linear", slopes["linear"], 1.0, 0.01),
            at_most("largest difference of the two orders", off, 1e-9),
            number("operations of softmax attention at the shortest length", counted["softmax"][0], even * LENGTHS[0]),
        ),
        (
            Panel(
                "Operations",
                "tokens T",
                "floating-point operations",
                tuple(Curve(name, LENGTHS, flops) for name, flops in counted.items()),
                "log",
                "log",
            ),
        ),
        not_shown="Time: short sequences are bound by launches and memory (make bench measures it).",
    )


def retrieval(config: Config) -> Claim:
    """What linear attention loses: looking up by content among many keys."""
    kinds: dict[str, dict[str, Any]] = {"softmax": {"attention": "softmax"}, "linear (elu + 1)": {"attention": "elu"}}
    found: dict[str, list[float]] = {name: [] for name in kinds}
    for s in range(config.n_seeds):
        task = Recall(keys=16, values=4, pairs=12, batch=32, seed=config.seed + s)
        for name, choices in kinds.items():
            model, _ = fit(
                task,
                steps=350,
                seed=config.seed + s,
                d_vocab=task.d_vocab,
                d_model=64,
                n_layers=1,
                n_heads=1,
                positions="none",
                causal=False,
                **choices,
            )
            found[name].append(score(model, task).accuracy)
    mean = {name: float(np.mean(a)) for name, a in found.items()}
    lost = np.subtract(found["softmax"], found["linear (elu + 1)"])
    return Claim(
        "linear-recall",
        TOPIC,
        "Linear attention is worse at finding one thing among many.",
        "Its state is one d × m matrix: with more keys than features they interfere, and no row can be sharp. Softmax "
        "attention can put all its weight on one key.",
        f"Looking up one of 12 pairs with one head of d = 64, softmax attention is right in {mean['softmax']:.0%} and "
        "linear "
        f"attention in {mean['linear (elu + 1)']:.0%} of the cases after the same training ({config.n_seeds} seeds; "
        "chance 25%).",
        (
            over_seeds("accuracy that linear attention loses (paired)", lost, "at least", 0.0),
            over_seeds("accuracy, softmax", found["softmax"], "none", math.nan),
            over_seeds("accuracy, linear", found["linear (elu + 1)"], "none", math.nan),
        ),
        (dots_over_seeds("Recall of one in 12", "accuracy", found, 0.25),),
        not_shown="Longer training, or wider heads, narrow the gap.",
    )


def _heads(seed: int, n: int, d: int) -> tuple[Tensor, Tensor, Tensor]:
    generator = torch.Generator().manual_seed(seed)
    query, key, value = (torch.randn(n, d, generator=generator, dtype=torch.float64) for _ in range(3))
    return query, key, value


def _taylor_error(scores: Tensor, order: int) -> float:
    """Mean total variation between softmax rows and those of the polynomial, negative weights kept as they are."""
    term, total = torch.ones_like(scores), torch.ones_like(scores)
    for n in range(1, order + 1):
        term = term * scores / n
        total = total + term
    clipped = total.clamp_min(0)
    rows = clipped / clipped.sum(-1, keepdim=True).clamp_min(1e-300)
    return float((rows - scores.softmax(-1)).abs().sum(-1).mean() / 2)


def _kernel_error(seed: int, m: int, d: int, orthogonal: bool) -> float:
    """Root mean square relative error of φ(q)·φ(k) as an estimate of exp(q·k), over 64 × 64 pairs of unit length."""
    generator = torch.Generator().manual_seed(seed)
    q, k = (torch.nn.functional.normalize(torch.randn(64, d, generator=generator), dim=-1).double() for _ in range(2))
    directions = random_directions(m, d, orthogonal=orthogonal, generator=generator)
    estimate = performer_features(q, directions) @ performer_features(k, directions).T
    exact = (q @ k.T).exp()
    return float(((estimate / exact - 1) ** 2).mean().sqrt())


def _pattern_error(seed: int, m: int, d: int, spread: float) -> float:
    """Mean total variation between softmax rows and those of Performer's features, at scores of a given deviation."""
    generator = torch.Generator().manual_seed(seed)
    q, k = (torch.randn(100, d, generator=generator).double() * math.sqrt(spread) / d**0.25 for _ in range(2))
    directions = random_directions(m, d, generator=generator)
    rows = performer_features(q, directions, below=True) @ performer_features(k, directions).T
    rows = rows / rows.sum(-1, keepdim=True)
    return float((rows - (q @ k.T).softmax(-1)).abs().sum(-1).mean() / 2)
