"""Long inputs in pieces: a key–value cache carries what came before, and probes read each piece's rows.

Memory grows with the length times d (the cache), never with its square, and activations with the piece alone. What is
read is what one pass would read: rows do not depend on how they are cut.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from jaxtyping import Float, Int
from torch import Tensor

from interp.attention.probes import Probe
from interp.errors import UserError
from interp.models.hooked import HookedModel
from interp.models.recording import Run
from interp.models.transformer import Cache, Transformer
from interp.replacements import without_logits

__all__ = ["Piece", "StreamedMeans", "stream"]

Probes = Sequence[Probe] | Callable[[int, int], Sequence[Probe]]
"""Probes for every piece; or, for those that name rows, a function of a piece's first position and its end."""


@dataclass(frozen=True, eq=False)
class Piece:
    """A run of positions ``start`` to ``stop`` after everything before them."""

    start: int
    stop: int
    run: Run


def stream(
    model: HookedModel,
    tokens: Int[Tensor, "batch position"],
    probes: Probes = (),
    *,
    piece: int = 1024,
    keep_logits: Callable[[int, int], bool] = lambda start, stop: True,
) -> Iterator[Piece]:
    """Run a causal model over a long input piece by piece.

    Args:
        tokens: sequences of one length, without padding.
        piece: positions of a forward pass.
        keep_logits: of which pieces the logits are wanted; the others have those of their last position alone, where
            the model lets one say so.

    Raises:
        UserError: the model is not causal, keeps no cache, or its context is shorter than the input.
    """
    cache = _cache(model)
    length = tokens.shape[1]
    if model.n_ctx is not None and length > model.n_ctx:
        raise UserError(f"{length} tokens are more than the model's context of {model.n_ctx}")
    if piece < 1:
        raise UserError(f"a piece holds at least one position; got {piece}")
    for start in range(0, length, piece):
        stop = min(start + piece, length)
        asked = probes(start, stop) if callable(probes) else probes
        spared = {} if keep_logits(start, stop) else without_logits(model)
        yield Piece(start, stop, model.run(tokens[:, start:stop], probes=asked, **cache, **spared))


def _cache(model: HookedModel) -> dict[str, Any]:
    """An empty cache under the name by which the model's forward takes it."""
    name = model.info.get("name", "this model")
    if model.is_encoder_decoder or not model.is_causal:
        raise UserError(f"{name} is no causal decoder, so a long input cannot be read piece by piece")
    if isinstance(model.module, Transformer):
        return {"cache": Cache()}
    from transformers import DynamicCache, PreTrainedModel

    if not isinstance(model.module, PreTrainedModel):
        raise UserError(f"{name} keeps no cache that this project knows; run it on the whole input with model.run")
    parameters = inspect.signature(model.module.forward).parameters
    key = next((each for each in ("cache", "past_key_values") if each in parameters), None)
    if key is None:
        raise UserError(f"{type(model.module).__name__}.forward takes no key-value cache")
    return {key: DynamicCache(config=model.module.config), "use_cache": True}


class StreamedMeans:
    """Means over the rows of all pieces, from each piece's means and their numbers of rows."""

    def __init__(self) -> None:
        self._totals: dict[tuple[int, str], Tensor] = {}
        self._counts: dict[tuple[int, str], Tensor] = {}

    def add(self, run: Run, most: int | None = None) -> None:
        """Take in what the probes of a piece read, or the first so many of them."""
        for number in range(len(run.probes) if most is None else most):
            for site, reading in run.readings(number).items():
                n = reading.n.expand(reading.values.shape)
                total = torch.where(n > 0, reading.values.nan_to_num() * n, 0.0)
                key = (number, site)
                self._totals[key] = self._totals.get(key, 0) + total
                self._counts[key] = self._counts.get(key, 0) + n

    def values(self, number: int, site: str) -> Float[Tensor, "batch head *axes"]:
        """The mean that a probe (by its number) has at a site; NaN where no row was eligible."""
        return self._totals[number, site] / self._counts[number, site]
