"""Several heads instead of one: what they cost, and what one softmax cannot do."""

from __future__ import annotations

import math

import numpy as np
import torch
from torch.utils.flop_counter import FlopCounterMode

from analyses.attention_design.claims import Claim, Curve, Number, Panel, curve_over_seeds, number, over_seeds
from analyses.attention_design.config import Config
from analyses.attention_design.tasks import first_below, fit, score, two_relations
from interp.models.transformer import Transformer, TransformerConfig

TOPIC = "heads"
COUNTS = (1, 2, 4, 8, 16)
VALUES, STEPS = 6, 250


def claims(config: Config) -> list[Claim]:
    """All claims of this section."""
    return [cost(), two_places(config.seed), *([two_at_once(config)] if config.training else [])]


def cost() -> Claim:
    """h heads of d/h have the parameters and matrix products of one head of d; softmax and pattern grow with h."""
    length, d_model = 128, 64
    parameters, products, weights, cache = [], [], [], []
    for heads in COUNTS:
        model = Transformer(TransformerConfig(d_vocab=10, d_model=d_model, n_layers=1, n_heads=heads, positions="none"))
        model.set_attn_implementation("sdpa")
        parameters.append(sum(p.numel() for p in model.blocks[0].attn.parameters()))
        with FlopCounterMode(display=False) as counter, torch.no_grad():
            q, k, v = (torch.zeros(1, heads, length, d_model // heads) for _ in range(3))
            torch.matmul(torch.matmul(q, k.mT), v)
        products.append(counter.get_total_flops())
        weights.append(heads * length**2)
        cache.append(2 * heads * (d_model // heads))
    return Claim(
        "heads-cost",
        TOPIC,
        "Many narrow heads cost what one wide head costs.",
        "W_Q, W_K, W_V, W_O are d × d however they are cut, and h products of T × d/h × T are one of T × d × T. What "
        "does grow "
        "with h is the pattern and its softmax: h·T² numbers. The KV cache holds d numbers each for keys and values, "
        "whatever h is.",
        f"From 1 to {COUNTS[-1]} heads parameters ({parameters[0]:,}) and operations of both products "
        f"({products[0]:,}) stay "
        f"the same to the last one; weights to take a softmax of go from {weights[0]:,} to {weights[-1]:,}; the cache "
        "keeps "
        f"{cache[0]} numbers a token.",
        (
            number("parameters, most heads over one", parameters[-1] / parameters[0], 1.0),
            number("operations of QKᵀ and AV, most heads over one", products[-1] / products[0], 1.0),
            number("softmax weights, 16 heads over one", weights[-1] / weights[0], 16.0),
            number("KV cache per token, most heads over one", cache[-1] / cache[0], 1.0),
            number("softmax weights, 16 heads over one, said to be free", weights[-1] / weights[0], 1.0, source="said"),
        ),
        (
            Panel(
                "What grows with the number of heads",
                "heads (width d/h)",
                "relative to one head",
                tuple(
                    Curve(name, COUNTS, np.array(y) / y[0])
                    for name, y in (("parameters, products, KV cache", products), ("softmax, pattern", weights))
                ),
                "log",
                "log",
            ),
        ),
        said="Heads are free; and, elsewhere, that the KV cache grows with them.",
    )


def two_places(seed: int) -> Claim:
    """One softmax attends to two places with at most ½ each; two heads with 1 each."""
    generator = torch.Generator().manual_seed(seed)
    logits = torch.randn(64, 10, generator=generator, dtype=torch.float64).requires_grad_()
    optimiser = torch.optim.Adam([logits], lr=0.2)
    for _ in range(300):
        optimiser.zero_grad()
        weights = logits.softmax(-1)
        (-weights[:, :2].amin(-1)).mean().backward()
        optimiser.step()
    best = float(logits.detach().softmax(-1)[:, :2].amin(-1).max())
    return Claim(
        "two-places",
        TOPIC,
        "One softmax can't attend strongly to two places at once.",
        "Weights sum to 1, so the smaller of two is at most ½. Two heads have two softmaxes.",
        f"Maximised from 64 starts, the smaller of two weights in one row reaches {best:.4f}; with a head for each "
        "place both "
        "reach 1.",
        (
            Number("largest smaller-of-two weight", best, expected=0.5, relation="at most"),
            Number("the same, reached at least", best, expected=0.49, relation="at least"),
        ),
    )


def two_at_once(config: Config) -> Claim:
    """Two lookups at once, told apart: two heads learn it sooner; one of the same total width finds a way round."""
    losses: dict[int, list[list[float]]] = {1: [], 2: []}
    right: dict[int, list[float]] = {1: [], 2: []}
    for s in range(config.n_seeds):
        seed = config.seed + s
        task, d_vocab = two_relations(seed, keys=5, values=VALUES)
        for heads in right:
            model, history = fit(
                task,
                steps=STEPS,
                seed=seed,
                d_vocab=d_vocab,
                d_model=64,
                n_layers=1,
                n_heads=heads,
                positions="none",
                learning_rate=5e-3,
                causal=False,
            )
            losses[heads].append(history)
            right[heads].append(score(model, task).accuracy)
    mean = {heads: float(np.mean(a)) for heads, a in right.items()}
    ceiling = (1 + 1 / VALUES) / 2
    half = math.log(VALUES**2) / 2
    sooner = {heads: np.array([first_below(run, half) for run in runs]) for heads, runs in losses.items()}
    later = sooner[1] - sooner[2]
    steps = np.arange(10, STEPS + 1, 10)
    curves = tuple(
        curve_over_seeds(name, steps, np.array(losses[heads]).reshape(config.n_seeds, -1, 10).mean(-1))
        for heads, name in ((1, "one head"), (2, "two heads"))
    )
    return Claim(
        "two-relations",
        TOPIC,
        "A task that needs two relations at once needs two heads.",
        "The answer is the ordered pair of two looked-up values. A head that weighs both alike knows which values "
        "there are but "
        f"not whose is which: at best (1 + 1/{VALUES})/2 = {ceiling:.2f} are right. Unequal weights tell them apart "
        "by size: a "
        "way round, with a smaller margin, that has to be found. Two heads need no such way.",
        f"With the same parameters, two heads are right in {mean[2]:.0%} and one head in {mean[1]:.0%} of the cases "
        "after "
        f"{STEPS} steps; one head loses half of its loss {later.mean():.0f} steps later ({config.n_seeds} seeds).",
        (
            over_seeds(
                "steps later that one head has lost half of the loss (paired)", later, "at least", 0.0, unit="steps"
            ),
            over_seeds("accuracy, two heads", right[2], "none", math.nan),
            over_seeds(
                "accuracy, one head, said to stay at the ceiling of equal weights",
                right[1],
                "at most",
                ceiling + 0.05,
                source="said",
            ),
        ),
        (
            Panel(
                "Two lookups at once",
                "step",
                "loss (nats)",
                curves,
                reference=2 * math.log(VALUES),
                reference_name="chance",
            ),
        ),
        said="One head cannot solve it.",
    )
