"""What each way to read a model holds in memory, worked out from the model's sizes before anything runs."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from interp.errors import UserError
from interp.models.files import read_json, weight_files

__all__ = ["GIGA", "METHODS", "Method", "Sizes", "predicted_bytes", "sizes_of"]

GIGA = 1e9
"""A GB is 10⁹ bytes here."""

PROCESS_BYTES = 550e6
"""Python with torch and transformers, before a model is loaded, and a layer's activations."""


@dataclass(frozen=True)
class Method:
    """A way to run a model and read its heads.

    Attributes:
        title: in tables.
        patterns: of how many layers it holds the whole pattern at once.
        words: what it is.
    """

    title: str
    patterns: Literal["none", "one", "all"]
    words: str


METHODS = {
    "plain": Method("plain", "none", "transformers with SDPA, nothing read"),
    "interp": Method("interp", "none", "this project, read with the basic probes"),
    "eager": Method("eager", "all", "transformers with eager attention, output_attentions=True"),
    "eager_hooks": Method("eager, hooks", "one", "the same, each layer's pattern read in a forward hook and let go"),
    "bridge": Method("TransformerBridge", "all", "TransformerLens, run_with_cache on the patterns"),
}


@dataclass(frozen=True)
class Sizes:
    """The sizes of a decoder that decide what a forward pass holds. ``weight_bytes``: in float32."""

    n_layers: int
    n_heads: int
    d_vocab: int
    n_ctx: int
    weight_bytes: int


def sizes_of(folder: Path) -> Sizes:
    """Read a model's sizes from its folder.

    Raises:
        UserError: config.json does not name them as decoders of transformers do.
    """
    config = read_json(folder / "config.json")
    names = ("num_hidden_layers", "num_attention_heads", "vocab_size", "max_position_embeddings")
    missing = [name for name in names if not isinstance(config.get(name), int)]
    if missing:
        raise UserError(
            f"{folder / 'config.json'} does not say {', '.join(missing)}, which the memory is worked out from: "
            "benchmark a decoder such as smollm2-135m"
        )
    halves = str(config.get("dtype", config.get("torch_dtype"))) in ("float16", "bfloat16")
    on_disk = sum(file.stat().st_size for file in weight_files(folder))
    return Sizes(*(config[name] for name in names), weight_bytes=on_disk * (2 if halves else 1))


def predicted_bytes(method: str, sizes: Sizes, length: int) -> float:
    """Peak memory of one forward pass of one sequence: process, weights, logits and patterns, all in float32.

    An eager layer has its pattern, and beside it the scores or the terms of the entropy: two tensors of
    head × query × key. The patterns of all layers are a further ``n_layers`` of them, less the one that is counted.
    """
    pattern = 4.0 * sizes.n_heads * length**2
    held = {"none": 0.0, "one": 2 * pattern, "all": (sizes.n_layers + 1) * pattern}[METHODS[method].patterns]
    return PROCESS_BYTES + sizes.weight_bytes + 4.0 * length * sizes.d_vocab + held
