"""The attention core inside transformers' models.

The core is registered as the attention function ``interp`` and as the mask function of the same name, so that the
plain transformers model runs under it: queries and keys arrive after their positions were applied, keys and values
with the KV heads only, and masks as :class:`~interp.attention.Mask`, never as a query × key tensor.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field, replace
from functools import partial
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn
from transformers import AttentionInterface, AttentionMaskInterface, PreTrainedModel
from transformers.integrations.sdpa_attention import sdpa_attention_forward
from transformers.masking_utils import sdpa_mask

from interp.attention import Mask
from interp.errors import UserError
from interp.models import groups, projections, stacks
from interp.models.hooked import HookedModel
from interp.models.masks import as_mask, core_mask, holds_pairs, with_bias
from interp.models.owners import attend_at, own
from interp.models.sites import AttentionSite, site_name
from interp.models.softmax_seam import read_softmax

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

__all__ = ["PRUNED_SDPA", "core_attention", "hook", "implementation", "pruned_sdpa", "use_core"]

IMPLEMENTATION = "interp"

PRUNED_SDPA = "interp-sdpa"
"""transformers' SDPA, also of pruned modules that it cannot serve itself: `pruned_sdpa`."""


@dataclass
class _Exploration:
    """What one small forward pass showed.

    Attributes:
        ran: attention modules, in order of execution, and how often each ran.
        called: those that called the core, with (n_heads, n_kv_heads, d_head).
        built: those that handed over a tensor of queries × keys.
    """

    ran: Counter[nn.Module] = field(default_factory=Counter)
    called: dict[nn.Module, tuple[int, int, int]] = field(default_factory=dict)
    built: set[nn.Module] = field(default_factory=set)
    known: set[nn.Module] = field(default_factory=set)

    def see_call(self, module: nn.Module, query: Tensor, value: Tensor, mask: Mask) -> None:
        """Take note of a call of the core. How often a known module runs, a hook on it counts."""
        if module not in self.known:
            self.ran[module] += 1
        self.called[module] = (query.shape[1], value.shape[1], value.shape[3])
        if holds_pairs(mask):
            self.built.add(module)


_EXPLORATION: ContextVar[_Exploration | None] = ContextVar("exploration", default=None)
"""Of this thread, in which another model may be run or loaded meanwhile."""


def hook(
    module: PreTrainedModel,
    *,
    tokenizer: PreTrainedTokenizerBase | None = None,
    info: dict[str, Any] | None = None,
    output_head_loaded: bool = True,
    declarations: Sequence[projections.Declaration] = (),
) -> HookedModel:
    """Put the core inside a transformers model.

    One small forward pass finds out which attention modules call the core. What is particular to a model is said in
    ``model.info``:

    - ``model_built_patterns``: sites that ignore transformers' attention interface (Bloom, Falcon, MPT). They keep
      computing their own attention, and are read and edited between their softmax and their values;
    - ``model_built_pairs``: sites on the core whose model builds a tensor of queries × keys itself (T5's bias);
    - ``emptied``: attention modules that have lost every head to pruning: no sites;
    - ``not_reached``: attention modules that the model's plain input does not come to (the image tower of a language
      model): no sites, and neither read nor edited.

    Raises:
        UserError: an attention module was neither reached by the core nor seen to take a softmax; or one serves several
            layers.
    """
    training = [child for child in module.modules() if child.training]
    module.eval()
    before = module.config._attn_implementation
    try:
        return _hooked(module, declarations, tokenizer=tokenizer, info=info, output_head_loaded=output_head_loaded)
    except BaseException:
        module.config._attn_implementation_internal = before  # type: ignore[attr-defined]
        if module._can_set_attn_implementation():
            module.set_attn_implementation(before or "eager")
        for child in training:
            child.training = True
        raise


def use_core(module: PreTrainedModel) -> None:
    """Let a transformers model call the core wherever it goes through transformers' attention interface."""
    _set_implementation(module, IMPLEMENTATION if module._can_set_attn_implementation() else "eager")
    module.create_masks_for_generate = _leave_to_forward  # type: ignore[assignment]


@contextmanager
def implementation(module: PreTrainedModel, name: str) -> Iterator[None]:
    """Run a hooked transformers model with one of transformers' own attention functions for a while.

    Raises:
        ValueError: the model does not support it.
    """
    try:
        _set_implementation(module, name)
        yield
    finally:
        use_core(module)


def _set_implementation(module: PreTrainedModel, name: str) -> None:
    if module._can_set_attn_implementation():
        module.set_attn_implementation(name)
    else:  # Bloom, Falcon, MPT have eager attention of their own (and Falcon sdpa), and look this up where they need it
        module.config._attn_implementation_internal = name  # type: ignore[attr-defined]


def _leave_to_forward(attention_mask: Tensor | None = None, **_: Any) -> Tensor | None:
    """What generation with a static cache asks masks of in advance: forward makes them, from the padding mask."""
    return attention_mask


# What transformers calls ------------------------------------------------------------------------------------------


def core_attention(
    module: nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Mask | Tensor | None,
    dropout: float = 0.0,
    scaling: float | None = None,
    is_causal: bool | None = None,
    softcap: float | None = None,
    s_aux: Tensor | None = None,
    position_bias: Tensor | None = None,
    **_: Any,
) -> tuple[Tensor, None]:
    """transformers' attention function: [batch, head, position, d_head] in, [batch, position, head, d_head] out."""
    if dropout and module.training:
        raise UserError(
            f"{type(module).__name__} is in training mode with attention dropout {dropout}: call model.eval(), or set "
            "the config's attention dropout to 0 before training under the core"
        )
    causal = is_causal if is_causal is not None else getattr(module, "is_causal", False)
    mask = as_mask(attention_mask, bool(causal) and query.shape[2] > 1)
    if position_bias is not None:
        mask = with_bias(mask, groups.of_kept_heads(module, position_bias))
    if s_aux is not None:
        mask = replace(mask, sinks=s_aux)
    if (exploration := _EXPLORATION.get()) is not None:
        exploration.see_call(module, query, value, mask)
    # layers may lie on several devices, and share one mask
    output = attend_at(module, query, key, value, mask.to(query.device), scaling, softcap)
    return output.transpose(1, 2), None


def pruned_sdpa(
    module: nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    position_bias: Tensor | None = None,
    **rest: Any,
) -> tuple[Tensor, None]:
    """transformers' own SDPA function, for modules whose groups were pruned unevenly too: see :mod:`.groups`."""
    if query.shape[1] == 0:
        return query.new_zeros(query.shape[0], query.shape[2], 0, value.shape[3]), None
    index = groups.kv_index(module)
    if index is None or position_bias is not None or query.shape[2] > 1:
        if position_bias is not None:
            position_bias = groups.of_kept_heads(module, position_bias)
        key, value = groups.for_query_heads(module, key, value)
        return sdpa_attention_forward(module, query, key, value, attention_mask, position_bias=position_bias, **rest)
    # Decoding: the queries of a group take the place of positions, which is cheaper than a copy of all keys and values
    grouped, place = groups.in_full_groups(query[:, :, 0], index)
    z, _ = sdpa_attention_forward(_UNGROUPED, grouped, key, value, attention_mask, **{**rest, "is_causal": False})
    return z.transpose(1, 2).flatten(1, 2)[:, None, place], None


_UNGROUPED = nn.Module()
"""Stands for a module whose query heads have a kv head each."""


# Finding the sites ------------------------------------------------------------------------------------------------


def _hooked(module: PreTrainedModel, declarations: Sequence[projections.Declaration], **about: Any) -> HookedModel:
    unreadable: dict[str, projections.UnknownAttentionError] = {}
    known = {a.path: a for a in projections.attention_modules(module, declarations, "skip", unreadable)}
    if declarations and unreadable:
        raise next(iter(unreadable.values()))
    paths = {child: path for path, child in module.named_modules()}
    use_core(module)
    model = HookedModel(module, (), **about)
    seen = _explore(model, [attention.module for attention in known.values()])
    if not seen.ran:
        raise next(iter(unreadable.values()), None) or UserError(
            f"no attention was found in {type(module).__name__}: nothing called transformers' attention interface"
        )
    order = [paths[child] for child in seen.ran]
    sites = [
        _site(path, place, child, known.get(path), seen.called.get(child), unreadable.get(path))
        for path, place, child in zip(order, stacks.places(order), seen.ran, strict=True)
    ]
    model.sites = tuple(site for site in sites if site.n_heads)
    for site in model.sites:
        own(site.module, model, site)
    notes = {
        "model_built_patterns": [site.name for site in model.sites if site.source == "softmax"],
        "model_built_pairs": [site.name for site in model.sites if site.module in seen.built],
        "not_reached": [path for path in known if path not in order],
        "emptied": [site.name for site in sites if not site.n_heads],
    }
    model.info |= {name: found for name, found in notes.items() if found} | _shape_info(model)
    _serve_softmax(model)
    return model


def _explore(model: HookedModel, known: Sequence[nn.Module]) -> _Exploration:
    """Which attention modules run and call the core, found by one small forward pass.

    Raises:
        UserError: one runs more than once.
    """
    seen = _Exploration(known=set(known))
    with ExitStack() as undo, torch.no_grad():
        for module in known:
            undo.callback(module.register_forward_pre_hook(lambda m, _: seen.ran.update([m])).remove)
        undo.callback(_EXPLORATION.reset, _EXPLORATION.set(seen))
        model.module(**_example(model))
    often = [module for module, n in seen.ran.items() if n > 1]
    if often:
        raise UserError(
            f"{type(model.module).__name__} runs one attention module ({type(often[0]).__name__}) for several layers, "
            "so that its heads could not be told apart by layer: such models are not served"
        )
    return seen


def _example(model: HookedModel) -> dict[str, Any]:
    """A small input, as arguments of the module's forward."""
    example = model.inputs.example(model)
    tokens, decoder_tokens = example.pop("tokens", None), example.pop("decoder_tokens", None)
    return model.inputs.batch(model, tokens, None, decoder_tokens, None, example).arguments


def _site(
    path: str,
    place: stacks.Place,
    module: nn.Module,
    known: projections.AttentionModule | None,
    called: tuple[int, int, int] | None,
    unreadable: UserError | None,
) -> AttentionSite:
    """A site of known projections, or one that is served by what it called the core with."""
    name, source = site_name(place.stack, place.layer, place.kind), "softmax" if called is None else "core"
    where = (name, place.layer, place.stack, place.kind, path, module)
    if known is not None:
        weights = partial(projections.head_weights, known)
        return AttentionSite(*where, known.n_heads, known.n_kv_heads, known.d_head, source, weights, known.projections)
    assert called is not None
    children = ", ".join(name for name, _ in module.named_children())
    reason = unreadable or projections.UnknownAttentionError(
        f"the projections of {path} ({type(module).__name__}) are not known; its children are {children}. Pass "
        "declarations=[Declaration(...)] to say which is which"
    )
    return AttentionSite(*where, *called, source, partial(_raise, reason))


def _raise(error: Exception) -> None:
    raise error


def _serve_softmax(model: HookedModel) -> None:
    """Read and edit the attention of modules that compute their own, and see that each takes a softmax."""
    own_attention = [site for site in model.sites if site.source == "softmax"]
    if not own_attention:
        return
    for site in own_attention:
        read_softmax(site.module)
    with model.seam.watched() as watch, torch.no_grad():
        model.module(**_example(model))
    silent = [site.path for site in own_attention if site.name not in watch.reached]
    if silent:
        raise UserError(
            f"{', '.join(silent)}: attention that neither calls transformers' attention interface nor takes a softmax "
            "over [batch, head, query, key] was found, so nothing could be read there"
        )


def _shape_info(model: HookedModel) -> dict[str, Any]:
    return {
        "architecture": type(model.module).__name__,
        "device": str(model.device),
        "dtype": str(model.dtype).removeprefix("torch."),
        "n_sites": len(model.sites),
        "n_layers": len({(s.stack, s.layer) for s in model.sites}),
        "n_heads": max((s.n_heads for s in model.sites), default=0),
        "n_kv_heads": max((s.n_kv_heads for s in model.sites), default=0),
        "d_head": max((s.d_head for s in model.sites), default=0),
    }


AttentionInterface.register(IMPLEMENTATION, torch.compiler.disable(core_attention))
AttentionMaskInterface.register(IMPLEMENTATION, torch.compiler.disable(core_mask))
AttentionInterface.register(PRUNED_SDPA, pruned_sdpa)
AttentionMaskInterface.register(PRUNED_SDPA, sdpa_mask)
