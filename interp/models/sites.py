"""Where attention happens in a model: one site per attention module, named as TransformerLens names it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Literal

from torch import nn

from interp.attention import Site

__all__ = ["AttentionSite", "site_name"]

Source = Literal["core", "softmax"]
"""How a site's attention reaches probes and edits: computed by the core, or by the model, which then holds its whole
pattern, read between its softmax and its values."""


@dataclass(frozen=True, eq=False)
class AttentionSite:
    """One attention module of a model.

    Attributes:
        name: ``blocks.3.attn``, ``encoder_blocks.0.attn``, ``decoder_blocks.0.cross_attn``, …
        layer: its layer within its stack. ``stack``: "encoder", "decoder", "" where a model has one stack.
        kind: "self", or "cross" where keys and values come from the other stack.
        path: the module's name within the model; ``module``: the module.
        n_heads, n_kv_heads, d_head: query head h reads kv head ``h // (n_heads // n_kv_heads)``.
        source: "core", or "softmax" where the model computes its own attention.
        weights: gives the per-head weights (:class:`interp.models.projections.HeadWeights`), or raises a UserError
            that says why they are not known.
    """

    name: str
    layer: int
    stack: str
    kind: Literal["self", "cross"]
    path: str
    module: nn.Module
    n_heads: int
    n_kv_heads: int
    d_head: int
    source: Source
    weights: Callable[[], object] = field(repr=False)

    @property
    def core_site(self) -> Site:
        """What the core calls this place."""
        return Site(self.name, self.layer, self.weights)


def site_name(stack: str, layer: int, kind: str) -> str:
    """TransformerLens's name of an attention module: ``blocks``, ``encoder_blocks`` or ``decoder_blocks``."""
    blocks = f"{stack}_blocks" if stack else "blocks"
    if kind == "cross":
        return f"{blocks}.{layer}.cross_attn"
    return f"{blocks}.{layer}.{'self_attn' if stack == 'decoder' else 'attn'}"
