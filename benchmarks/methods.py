"""Ways to run a model and to read its heads: each loads a model from a folder and gives a function of tokens.

All hold the same float32 weights and compute the logits of all positions, without a cache of keys and values. What a
method imports, it imports itself: the memory of a method has no other method in it.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import torch
from jaxtyping import Float, Int
from torch import Tensor

from benchmarks import patterns
from interp.errors import UserError

__all__ = ["LOADERS", "Answer", "Forward"]


class Answer(NamedTuple):
    """Logits [1, position, vocabulary], and statistics by name [layer, head] (None where none are taken)."""

    logits: Tensor
    statistics: dict[str, Float[Tensor, "layer head"]] | None


Forward = Callable[[Int[Tensor, "1 position"]], Answer]


def plain(folder: Path) -> Forward:
    """transformers with fused attention (SDPA), nothing read: what a forward pass costs."""
    model = _transformers(folder, "sdpa")
    return lambda tokens: Answer(model(tokens, use_cache=False).logits, None)


def interp(folder: Path) -> Forward:
    """This project: the basic probes on every head, while attention is computed."""
    from interp import load
    from interp.attention import probes

    model = load(str(folder), dtype=torch.float32)

    def forward(tokens: Tensor) -> Answer:
        entropy, largest, offsets, first, distance = basic = probes.basic()
        run = model.run(tokens, probes=basic)
        assert run.logits is not None
        near = run.values(offsets)[:, 0]
        values = [run.values(probe)[:, 0] for probe in (entropy, largest)]
        values += [near[..., 0], near[..., 1], run.values(first)[:, 0, :, 0], run.values(distance)[:, 0]]
        return Answer(run.logits, dict(zip(patterns.NAMES, values, strict=True)))

    return forward


def eager(folder: Path) -> Forward:
    """transformers with eager attention, which returns the patterns of all layers."""
    model = _transformers(folder, "eager")

    def forward(tokens: Tensor) -> Answer:
        output = model(tokens, use_cache=False, output_attentions=True)
        return Answer(output.logits, patterns.stacked(map(patterns.of_pattern, output.attentions)))

    return forward


def eager_hooks(folder: Path) -> Forward:
    """transformers with eager attention, each layer's pattern read in a forward hook and let go: a careful user."""
    model = _transformers(folder, "eager")
    layers: list[Tensor] = []

    def read(_module: torch.nn.Module, _inputs: Any, output: Any) -> None:
        layers.append(patterns.of_pattern(output[1]))

    for name, module in model.named_modules():
        if name.endswith("self_attn"):
            module.register_forward_hook(read)

    def forward(tokens: Tensor) -> Answer:
        layers.clear()
        logits = model(tokens, use_cache=False).logits
        if not layers:
            raise UserError(
                f"{type(model).__name__} calls no module self_attn, so its patterns cannot be read in hooks"
            )
        return Answer(logits, patterns.stacked(layers))

    return forward


def bridge(folder: Path) -> Forward:
    """TransformerLens's TransformerBridge, ``run_with_cache`` on the patterns of all layers."""
    from transformer_lens.model_bridge import TransformerBridge

    model = TransformerBridge.boot_transformers(str(folder), device="cpu", dtype=torch.float32)

    def forward(tokens: Tensor) -> Answer:
        logits, cache = model.run_with_cache(tokens, names_filter=lambda name: name.endswith("attn.hook_pattern"))
        return Answer(logits, patterns.stacked(map(patterns.of_pattern, cache.values())))

    return forward


LOADERS: dict[str, Callable[[Path], Forward]] = {
    "plain": plain,
    "interp": interp,
    "eager": eager,
    "eager_hooks": eager_hooks,
    "bridge": bridge,
}
"""By the names of :data:`benchmarks.sizes.METHODS`."""


def _transformers(folder: Path, attention: str) -> Any:
    from transformers import AutoModelForCausalLM

    return AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32, attn_implementation=attention).eval()
