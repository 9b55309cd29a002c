"""The formula: what a weighted mean can do and what it cannot."""

from __future__ import annotations

import math

import numpy as np
import torch
import torch.nn.functional as F  # noqa: N812 (the name everyone knows)
from scipy.optimize import linprog
from torch import Tensor

from analyses.attention_design.claims import Claim, Curve, Number, Panel, at_most, number, over_seeds, small
from analyses.attention_design.config import Config
from interp.attention import Mask, attend

TOPIC = "formula"
DEPTHS = (1, 2, 3, 4, 6, 8, 12)


def claims(config: Config) -> list[Claim]:
    """All claims of this section."""
    found = [three_lines(config.seed), convex(config.seed), rank_collapse(config.seed), columns(config.seed)]
    return [*found, *([directed(config)] if config.training else [])]


def three_lines(seed: int) -> Claim:
    """The definition, torch's fused attention and the row-block engine give the same output."""
    query, key, value = _normal(seed, 3, (2, 4, 96, 32))
    exact = _definition(query.double(), key.double(), value.double(), causal=True)
    fused = F.scaled_dot_product_attention(query, key, value, is_causal=True)
    blocks = attend(query, key, value, Mask(causal=True), block_rows=7)
    worst = {
        "torch's fused attention": float((fused - exact).abs().max()),
        "row blocks": float((blocks - exact).abs().max()),
    }
    return Claim(
        "three-lines",
        TOPIC,
        "Attention is three lines: scores q·k/√d, a softmax over the keys, and a weighted mean of the values.",
        "Every engine computes the same function; in float32 they differ from a float64 evaluation by rounding, some "
        "1e-7 "
        "times the largest value.",
        "Against the definition in float64, "
        + " and ".join(f"{name} is off by {small(off)}" for name, off in worst.items())
        + " at most.",
        tuple(at_most(f"largest difference from float64: {name}", off, 5e-6) for name, off in worst.items()),
    )


def convex(seed: int) -> Claim:
    """The output lies in the convex hull of the values, so weighting alone can't expand; projections and MLPs can."""
    query, key, value = (t[0, 0].double() for t in _normal(seed + 1, 3, (1, 1, 40, 8)))
    weights = (query @ key.T / math.sqrt(8)).softmax(-1)
    output = weights @ value
    generator = torch.Generator().manual_seed(seed)
    wide = torch.randn(8, 64, generator=generator, dtype=torch.float64)
    narrow = torch.randn(64, 8, generator=generator, dtype=torch.float64) / 8
    largest = float(value.abs().max())
    mlp = float((F.gelu(value @ wide) @ narrow).abs().max()) / largest
    projected = float((output @ (4 * torch.eye(8, dtype=torch.float64))).abs().max()) / largest
    outside = max(_distance_from_hull(row, value.numpy()) for row in output.numpy()[:10])
    expanded = float(output.abs().max()) / largest
    return Claim(
        "convex",
        TOPIC,
        "A head's output is a weighted mean of the values: it lies among them and can't be larger than the largest.",
        "Weights are ≥ 0 and sum to 1, so the output is in the convex hull of the values and ‖output‖∞ ≤ max ‖v‖∞. "
        "Attention mixes; only W_V, W_O and the MLP can make anything larger.",
        f"The largest output is {expanded:.2f} of the largest value. An MLP on the same vectors reaches {mlp:.1f} "
        "times "
        f"it, and the same mean behind W_O = 4·I {projected:.1f} times: weights cannot expand, matrices can.",
        (
            Number("smallest weight", float(weights.min()), expected=0.0, relation="at least"),
            number("sum of a row, furthest from 1", float((weights.sum(-1) - 1).abs().max()) + 1, 1.0, 1e-12),
            at_most("distance from the convex hull (linear programming)", outside, 1e-8),
            at_most("largest |output| over largest |value|", expanded, 1.0),
            Number("largest |MLP(value)| over largest |value|", mlp, expected=1.0, relation="at least"),
            Number("largest |W_O output|, W_O = 4·I, over largest |value|", projected),
        ),
    )


def rank_collapse(seed: int) -> Claim:
    """Attention stacked without skips makes all tokens the same, doubly exponentially (Dong et al. 2021)."""
    n_seeds = 8
    kinds = {"attention alone": (False, False), "with MLPs": (False, True), "with skips": (True, False)}
    left = {name: np.array([_residuals(seed + s, *kind) for s in range(n_seeds)]) for name, kind in kinds.items()}
    alone, skips = left["attention alone"], left["with skips"]
    steps = np.log(np.median(alone, 0))
    faster = (steps[1] - steps[2]) / max(steps[0] - steps[1], 1e-9)  # the fall of log r from depth 2 to 3 over 1 to 2
    curves = tuple(
        Curve(name, DEPTHS, np.median(r, 0), np.quantile(r, 0.05, 0), np.quantile(r, 0.95, 0))
        for name, r in left.items()
    )
    return Claim(
        "rank-collapse",
        TOPIC,
        "Attention alone forgets who is who: stacked without skip connections and MLPs it makes all tokens alike.",
        "Each layer averages. What tokens do not share shrinks with the cube of itself, doubly exponentially in depth "
        "(Dong et al. 2021); a skip connection keeps it.",
        f"After 12 layers {small(np.median(alone[:, -1]))} of the tokens' differences is left without skips and "
        f"{np.median(skips[:, -1]):.2f} with them. The fall from layer 2 to 3 is {faster:.1f} times the one before it "
        "(on a log scale; 1 would be exponential).",
        (
            at_most(
                "differences left after 12 layers, attention alone (largest of 8 draws)",
                float(alone[:, -1].max()),
                1e-6,
            ),
            Number(
                "with skips over attention alone, 12 layers",
                float(skips[:, -1].min() / alone[:, -1].max()),
                expected=1e6,
                relation="at least",
            ),
            Number("fall of log r, layer 2→3 over layer 1→2", faster, expected=1.0, relation="at least"),
        ),
        (
            Panel(
                "Tokens become alike without skips",
                "layers",
                "share of tokens' differences that is left",
                curves,
                y_scale="log",
                bands="the 5th to 95th percentile of 8 draws",
            ),
        ),
        not_shown="Weights are drawn at random; a trained stack without skips need not collapse as fast.",
    )


def columns(seed: int) -> Claim:
    """Softmax over queries instead of keys is no mean any more."""
    query, key, value = (t[0, 0].double() for t in _normal(seed + 2, 3, (1, 1, 64, 16)))
    scores = query @ key.T / 4
    by_column = scores.softmax(0)
    sums = by_column.sum(-1)
    ratio = float((by_column @ value).abs().max() / value.abs().max())
    by_row = float((scores.softmax(-1) @ value).abs().max() / value.abs().max())
    return Claim(
        "columns",
        TOPIC,
        "The softmax runs over the keys of each query. Over the queries of each key, a query gets no weighted mean.",
        "Columns that sum to 1 leave row sums free between 0 and the number of keys: the output's size then says how "
        "many "
        "keys chose this query.",
        f"With columns normalised, row sums run from {sums.min():.2f} to {sums.max():.2f}, and the largest output is "
        f"{ratio:.2f} times the largest value, where rows normalised give {by_row:.2f}.",
        (
            Number("largest row sum, columns normalised", float(sums.max()), expected=1.1, relation="at least"),
            at_most("smallest row sum, columns normalised", float(sums.min()), 0.9),
            number("mean row sum, columns normalised", float(sums.mean()), 1.0, 1e-9),
        ),
    )


def directed(config: Config) -> Claim:
    """W_Q = W_K makes scores symmetric: no 3-cycle can be held. Two matrices learn it."""
    shared = [_learn_cycle(config.seed + s, shared=True) for s in range(config.n_seeds)]
    apart = [_learn_cycle(config.seed + s, shared=False) for s in range(config.n_seeds)]
    x = torch.randn(12, 8, generator=torch.Generator().manual_seed(config.seed), dtype=torch.float64)
    scores = x @ x.T
    pattern = scores.softmax(-1)
    asymmetry = float((pattern - pattern.T).abs().max())
    return Claim(
        "queries-and-keys",
        TOPIC,
        "Queries and keys need their own matrices: with W_Q = W_K, a looking at b and b looking at a are one number.",
        "Scores are then symmetric. Row normalisation can still make the pattern look directed, but not a 3-cycle (a "
        "most "
        "to b, b most to c, c most to a, without masks and positions): it asks s_ab > s_ca > s_bc > s_ab. The best "
        "cross-entropy of a symmetric head on it is ln 2.",
        f"Over {config.n_seeds} seeds the shared matrix ends at a loss of {np.mean([loss for loss, _ in shared]):.4f} "
        f"(ln 2 = {math.log(2):.4f}); two matrices reach {small(np.mean([loss for loss, _ in apart]))} and look the "
        "right "
        "way in "
        f"{np.mean([r for _, r in apart]):.1f} of 3 rows. The symmetric scores' own pattern is asymmetric by up to "
        f"{asymmetry:.2f}, for its rows are normalised apart.",
        (
            number("largest |s_ij − s_ji| with W_Q = W_K", float((scores - scores.T).abs().max()), 0.0, 1e-12),
            Number("largest |A_ij − A_ji| of that pattern", asymmetry, expected=0.05, relation="at least"),
            Number(
                "largest |A_ij − A_ji| of that pattern, said to be 0",
                asymmetry,
                expected=1e-6,
                relation="at most",
                source="said",
            ),
            over_seeds(
                "loss on the 3-cycle, W_Q = W_K",
                [loss for loss, _ in shared],
                "at least",
                math.log(2) - 1e-6,
                unit="nats",
            ),
            over_seeds("loss on the 3-cycle, W_Q ≠ W_K", [loss for loss, _ in apart], "at most", 0.05, unit="nats"),
            Number(
                "rows of the cycle that two matrices get right (least of the seeds)",
                min(r for _, r in apart),
                expected=3,
                relation="at least",
            ),
        ),
        said="With W_Q = W_K attention could not be directed at all.",
    )


def _normal(seed: int, count: int, shape: tuple[int, ...]) -> list[Tensor]:
    generator = torch.Generator().manual_seed(seed)
    return [torch.randn(shape, generator=generator) for _ in range(count)]


def _definition(query: Tensor, key: Tensor, value: Tensor, causal: bool) -> Tensor:
    scores = query @ key.mT / math.sqrt(query.shape[-1])
    if causal:
        scores = scores.masked_fill(torch.ones(scores.shape[-2:], dtype=torch.bool).triu(1), -math.inf)
    return scores.softmax(-1) @ value


def _distance_from_hull(point: np.ndarray, corners: np.ndarray) -> float:
    """The least largest error with which a convex combination of the corners reproduces a point."""
    n, d = corners.shape
    objective = np.r_[np.zeros(n), 1.0]
    slack = np.ones((d, 1))
    upper = np.vstack([np.hstack([corners.T, -slack]), np.hstack([-corners.T, -slack])])
    solved = linprog(
        objective, upper, np.r_[point, -point], np.r_[np.ones(n), 0.0][None], [1.0], bounds=[(0, None)] * (n + 1)
    )
    return float(solved.fun)


def _residuals(seed: int, skips: bool, mlps: bool) -> list[float]:
    """‖X − mean over tokens‖ / ‖X‖, relative to the input's, after each of :data:`DEPTHS` layers."""
    generator = torch.Generator().manual_seed(seed)
    d, x = 32, torch.randn(24, 32, generator=generator, dtype=torch.float64)
    start, left = _spread(x), []
    for layer in range(1, max(DEPTHS) + 1):
        w_q, w_k, w_v = (torch.randn(d, d, generator=generator, dtype=torch.float64) / math.sqrt(d) for _ in range(3))
        mixed = ((x @ w_q) @ (x @ w_k).T / math.sqrt(d)).softmax(-1) @ (x @ w_v)
        x = x + mixed if skips else mixed
        if mlps:
            w_in = torch.randn(d, 4 * d, generator=generator, dtype=torch.float64) * math.sqrt(2 / d)
            w_out = torch.randn(4 * d, d, generator=generator, dtype=torch.float64) / math.sqrt(4 * d)
            x = torch.relu(x @ w_in) @ w_out
        if layer in DEPTHS:
            left.append(max(_spread(x) / start, 1e-300))
    return left


def _spread(x: Tensor) -> float:
    return float((x - x.mean(0)).norm() / x.norm())


def _learn_cycle(seed: int, shared: bool, steps: int = 300) -> tuple[float, int]:
    """Loss of a head that is to look from a to b, b to c, c to a (itself left out), and how many rows it gets right."""
    generator = torch.Generator().manual_seed(seed)
    embed = torch.randn(3, 8, generator=generator).requires_grad_()
    w_q = (torch.randn(8, 8, generator=generator) / 3).requires_grad_()
    w_k = w_q if shared else (torch.randn(8, 8, generator=generator) / 3).requires_grad_()
    optimiser = torch.optim.Adam([embed, w_q] if shared else [embed, w_q, w_k], lr=0.02)
    target = torch.tensor([1, 2, 0])

    def scores() -> Tensor:
        return ((embed @ w_q) @ (embed @ w_k).T).masked_fill(torch.eye(3, dtype=torch.bool), -math.inf)

    for _ in range(steps):
        optimiser.zero_grad()
        F.cross_entropy(scores(), target).backward()
        optimiser.step()
    final = scores().detach().double()
    return float(F.cross_entropy(final, target)), int((final.argmax(-1) == target).sum())
