"""The small transformer as a hooked model."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import TYPE_CHECKING, Any

from interp.models.hooked import HookedModel
from interp.models.owners import own
from interp.models.projections import attention_modules, head_weights
from interp.models.sites import AttentionSite, site_name
from interp.models.transformer.model import Transformer

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

__all__ = ["hook_transformer"]


def hook_transformer(
    transformer: Transformer,
    *,
    tokenizer: PreTrainedTokenizerBase | None = None,
    info: Mapping[str, Any] | None = None,
) -> HookedModel:
    """Read and edit a `Transformer` as any other model; its attention is computed by the core from now on.

    Softmax layers run on the core as they are. Linear layers sum as before while nothing reads or edits them; during a
    run, or under edits or hooks, their rows are computed block by block from φ(q)·φ(k), in O(T²) time, and no pattern
    is held. There, edits of scores act on log φ(q)·φ(k), whose softmax the rows are.
    """
    transformer.set_attn_implementation("interp")
    transformer.eval()
    model = HookedModel(transformer, (), tokenizer=tokenizer, info={"name": type(transformer).__name__, **(info or {})})
    sites = [
        AttentionSite(
            name=site_name("", known.layer, "self"),
            layer=known.layer,
            stack="",
            kind="self",
            path=known.path,
            module=known.module,
            n_heads=known.n_heads,
            n_kv_heads=known.n_kv_heads,
            d_head=known.d_head,
            source="core",
            weights=partial(head_weights, known),
            projections=known.projections,
        )
        for known in attention_modules(transformer)
    ]
    model.sites = tuple(site for site in sites if site.n_heads)
    for site in model.sites:
        own(site.module, model, site)
    config = transformer.config
    model.info |= {
        "architecture": type(transformer).__name__,
        "device": str(model.device),
        "dtype": str(model.dtype).removeprefix("torch."),
        "n_sites": len(model.sites),
        "n_layers": config.n_layers,
        "n_heads": max((site.n_heads for site in model.sites), default=0),
        "n_kv_heads": max((site.n_kv_heads for site in model.sites), default=0),
        "d_head": config.head_width,
    }
    if emptied := [site.name for site in sites if not site.n_heads]:
        model.info["emptied"] = emptied
    return model
