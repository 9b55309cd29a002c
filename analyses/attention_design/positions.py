"""Positions: what a model without them cannot know, and how far those with them reach."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import torch
from torch import Tensor

from analyses.attention_design.claims import (
    Claim,
    Number,
    Panel,
    at_most,
    curve_over_seeds,
    dots_over_seeds,
    over_seeds,
    small,
)
from analyses.attention_design.config import Config
from analyses.attention_design.tasks import IGNORED, fit, generator, look_back, score
from interp.models.transformer import Transformer, TransformerConfig
from interp.models.transformer.positions import Rotary

TOPIC = "positions"
KINDS = ("sinusoidal", "learned", "rotary", "alibi")
SENTENCES = ("Ann likes Bob", "Bob likes Ann")
FRONTED = "likes Ann Bob"
LENGTH, STEPS = 32, 300
STRETCHES = (1, 2, 4)


def claims(config: Config) -> list[Claim]:
    """All claims of this section."""
    found = [permutation(config.seed), distance_only(config.seed)]
    return [*found, *([causal_order(config), extrapolation(config)] if config.training else [])]


def permutation(seed: int) -> Claim:
    """Without positions and mask, permuting inputs permutes outputs; two orders of a sentence are one to the model."""
    words = {word: i for i, word in enumerate(sorted(set(" ".join(SENTENCES).split())))}
    tokens = torch.randint(len(words), (1, 12), generator=torch.Generator().manual_seed(seed))
    order = torch.randperm(12, generator=torch.Generator().manual_seed(seed))
    models = {kind: _untrained(kind, len(words), seed) for kind in ("none", *KINDS)}
    with torch.no_grad():
        logits = models["none"](tokens).logits
        moved = float((models["none"](tokens[:, order]).logits - logits[:, order]).abs().max() / logits.abs().max())
        swapped = {kind: _apart(model, words, SENTENCES) for kind, model in models.items()}
        fronted = _apart(models["alibi"], words, (SENTENCES[0], FRONTED))
    told = [kind for kind in KINDS if kind != "alibi"]
    return Claim(
        "permutation",
        TOPIC,
        "Attention itself knows no order: without positions, a sentence is a bag of words.",
        "Without mask and positions, permuting the inputs permutes the outputs and changes nothing else, so that "
        f"“{SENTENCES[0]}” and “{SENTENCES[1]}” have the same outputs. ALiBi without a causal mask knows distance and "
        "not "
        "direction: to it a sentence and its mirror image are the same, and these two are mirror images.",
        f"Without positions, outputs of a permuted input differ from the permuted outputs by {small(moved)} of their "
        "size, and "
        f"the two sentences by {small(swapped['none'])}. With sinusoidal, learned and rotary positions the sentences "
        "differ by "
        f"at least {min(swapped[kind] for kind in told):.2f}; with ALiBi by {small(swapped['alibi'])}, though "
        f"“{FRONTED}” differs "
        f"by {fronted:.2f}.",
        (
            at_most("permuted outputs against outputs of the permuted input, no positions", moved, 1e-12),
            at_most("the two sentences, no positions", swapped["none"], 1e-12),
            at_most("the two sentences, ALiBi without a mask (mirror images)", swapped["alibi"], 1e-12),
            Number(
                "ALiBi without a mask, an order that is no mirror image", fronted, expected=1e-3, relation="at least"
            ),
            *(Number(f"the two sentences, {kind}", swapped[kind], expected=1e-3, relation="at least") for kind in told),
            Number(
                "the two sentences, ALiBi, said to be told apart",
                swapped["alibi"],
                expected=1e-3,
                relation="at least",
                source="said",
            ),
        ),
        said="Any kind of positions tells them apart.",
    )


def distance_only(seed: int) -> Claim:
    """Rotary scores depend on the distance of query and key alone."""
    d, generator_ = 32, torch.Generator().manual_seed(seed)
    q, k = (torch.randn(1, 8, 1, d, generator=generator_, dtype=torch.float64) for _ in range(2))
    rotary = Rotary(d, 10_000.0)
    place = torch.arange(8)[None]

    def scores(shift: int) -> Tensor:
        turned = [rotary(x, place + shift)[0, :, 0] for x in (q, k)]
        return turned[0] @ turned[1].T

    shifts = (1, 10, 1000, 100_000)
    worst = max(float((scores(s) - scores(0)).abs().max()) for s in shifts)
    other = float((rotary(q, place)[0, :, 0] - rotary(q, place + 1)[0, :, 0]).abs().max())
    return Claim(
        "rotary-distance",
        TOPIC,
        "Rotary positions tell how far apart two tokens are, not where they stand.",
        "R(m)q·R(n)k = q·R(n−m)k: turning both by the same angle changes no product.",
        f"Moving a sequence by up to 100,000 places changes scores by {small(worst)} at most, while the queries "
        "themselves change "
        f"by up to {other:.1f}.",
        (at_most("largest change of a score under shifts of 1 to 100,000", worst, 1e-9),),
    )


def causal_order(config: Config) -> Claim:
    """A causal mask alone lets a model learn where it is (Haviv et al. 2022)."""
    found: dict[str, list[float]] = {"causal mask": [], "no mask": []}
    for s in range(config.n_seeds):
        for name, causal in (("causal mask", True), ("no mask", False)):

            def task(step: int, seed: int = config.seed + s) -> tuple[Tensor, Tensor]:
                return _where(seed, step)

            model, _ = fit(
                task,
                steps=STEPS,
                seed=config.seed + s,
                d_vocab=16,
                d_model=64,
                n_layers=1,
                n_heads=2,
                mlp="dense",
                positions="none",
                causal=causal,
                bos_token_id=0,
            )
            found[name].append(score(model, task).accuracy)
    mean = {name: float(np.mean(a)) for name, a in found.items()}
    return Claim(
        "causal-order",
        TOPIC,
        "A model without positions cannot know where a token stands.",
        "A bidirectional one cannot. Under a causal mask the number of visible keys is the position: a head that "
        "spreads its "
        "weight evenly gives the first token 1/(i+1) of it.",
        "Asked for its own position among 15 in random tokens, a model without positions is right in "
        f"{mean['causal mask']:.0%} "
        f"with the causal mask and in {mean['no mask']:.0%} without it (chance {1 / 15:.0%}; {config.n_seeds} seeds).",
        (
            over_seeds("accuracy, no mask", found["no mask"], "at most", 1 / 15 + 0.05),
            over_seeds(
                "accuracy, causal mask less no mask (paired)",
                np.subtract(found["causal mask"], found["no mask"]),
                "at least",
                0.2,
            ),
            over_seeds(
                "accuracy, causal mask, said to be chance",
                found["causal mask"],
                "at most",
                1 / 15 + 0.05,
                source="said",
            ),
        ),
        (dots_over_seeds("Telling one's position without positions", "accuracy", found, 1 / 15),),
        said="Without positional encodings a transformer has no order at all.",
    )


def extrapolation(config: Config) -> Claim:
    """Trained at one length, tested at 1, 2 and 4 times it."""
    longest = LENGTH * max(STRETCHES)
    found: dict[str, list[list[float]]] = {kind: [] for kind in (*KINDS, "rotary, interpolated", "rotary, NTK")}
    for s in range(config.n_seeds):
        seed = config.seed + s
        for kind in KINDS:
            model, _ = fit(
                look_back(seed, LENGTH),
                steps=STEPS,
                seed=seed,
                d_vocab=16,
                n_ctx=longest if kind == "learned" else None,
                d_model=64,
                n_layers=1,
                n_heads=2,
                positions=kind,
                learning_rate=1e-2,
            )
            found[kind].append(_by_length(model, seed, {}))
            if kind == "rotary":
                found["rotary, interpolated"].append(_by_length(model, seed, {"rotary_scale": 1.0}))
                found["rotary, NTK"].append(_by_length(model, seed, {"rotary_base": 10_000.0}))
    means = {kind: np.array(a) for kind, a in found.items()}
    end = {kind: float(a[:, -1].mean()) for kind, a in means.items()}
    begin = {kind: float(a[:, 0].mean()) for kind, a in means.items()}
    drop = np.array(found["rotary"])[:, -1] - np.array(found["rotary, interpolated"])[:, -1]
    return Claim(
        "extrapolation",
        TOPIC,
        "Rotary positions are easy to extend to longer inputs.",
        "Learned positions beyond the trained length were never trained. Rotary angles, sinusoids and ALiBi's biases "
        "exist for "
        "every position; whether a head's rule holds there depends on what it learned. Position interpolation divides "
        "positions by the stretch, and NTK scaling raises the base so that slow turns are stretched and fast ones "
        "kept: both "
        "blur neighbours that a head had learned to tell apart.",
        "Asked for the token three places back at 4 times the trained length: "
        + ", ".join(f"{kind} {begin[kind]:.0%} → {end[kind]:.0%}" for kind in found)
        + f" (accuracy at the trained length → at 4 times it, all positions; {config.n_seeds} seeds, chance 6%).",
        (
            over_seeds("learned, 4 × less 1 ×", means["learned"][:, -1] - means["learned"][:, 0], "at most", -0.1),
            *(over_seeds(f"{kind}, accuracy at 4 ×", a[:, -1], "none", math.nan) for kind, a in means.items()),
            over_seeds(
                "rotary interpolated at 4 ×, said to hold (0.9 of the trained accuracy)",
                means["rotary, interpolated"][:, -1] / means["rotary"][:, 0],
                "at least",
                0.9,
                source="said",
            ),
            over_seeds("what interpolation loses against none at 4 ×, untrained", drop, "none", math.nan),
        ),
        (
            Panel(
                f"Trained on {LENGTH} tokens",
                "length tested / length trained",
                "accuracy",
                tuple(curve_over_seeds(kind, STRETCHES, a) for kind, a in means.items()),
                "log",
                reference=1 / 16,
                reference_name="chance",
            ),
        ),
        said="“Easy to extend”: rescaled rotary positions keep working at 4 times the length.",
        not_shown="Interpolation is meant to be followed by a little training at the new length; none is done here. A "
        "rule by "
        "content, or over long distances, may extend otherwise than this rule by a short distance.",
    )


def _untrained(kind: Any, d_vocab: int, seed: int) -> Transformer:
    config = TransformerConfig(
        d_vocab=d_vocab,
        n_ctx=16 if kind == "learned" else None,
        d_model=32,
        n_layers=2,
        n_heads=4,
        positions=kind,
        causal=False,
        mlp="dense",
    )
    return Transformer(config, seed=seed).double()


def _apart(model: Transformer, words: dict[str, int], sentences: tuple[str, str]) -> float:
    """How far apart the outputs of two sentences of the same words are, word by word, relative to their size."""
    outputs = []
    for sentence in sentences:
        tokens = torch.tensor([words[word] for word in sentence.split()])
        outputs.append(model(tokens[None]).logits[0][tokens.argsort()])
    return float((outputs[0] - outputs[1]).abs().max() / outputs[0].abs().max())


def _where(seed: int, step: int) -> tuple[Tensor, Tensor]:
    """A first token 0, then random ones; the target of each is its own position (of which there are 15)."""
    tokens = torch.randint(1, 16, (32, 16), generator=generator(seed, step))
    tokens[:, 0] = 0
    targets = torch.arange(16).expand(32, -1).clone()
    targets[:, 0] = IGNORED
    return tokens, targets


def _by_length(model: Transformer, seed: int, rescaled: dict[str, Any]) -> list[float]:
    """Accuracy at each stretch; rotary positions rescaled for it where that is asked for."""
    accuracies = []
    for stretch in STRETCHES:
        fields: dict[str, Any] = {}
        d = model.config.head_width
        if "rotary_scale" in rescaled:
            fields = {"rotary_scale": float(stretch)}
        elif "rotary_base" in rescaled:
            fields = {"rotary_base": rescaled["rotary_base"] * stretch ** (d / (d - 2))}
        tested = model.altered(**fields) if fields else model
        tested.set_attn_implementation("sdpa")
        accuracies.append(score(tested, look_back(seed, LENGTH * stretch), batches=2).accuracy)
    return accuracies
