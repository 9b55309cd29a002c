"""The attention core inside transformers' models.

The core is registered as the attention function ``interp`` and as the mask function of the same name, so that the
plain transformers model runs under it: queries and keys arrive after their positions were applied, keys and values
with the KV heads only, and masks as :class:`~interp.attention.Mask`, never as a query × key tensor.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn
from transformers import AttentionInterface, AttentionMaskInterface, PreTrainedModel
from transformers import masking_utils as hf_masks

from interp.attention import Mask
from interp.errors import UserError
from interp.models import projections, stacks
from interp.models.hooked import HookedModel
from interp.models.owners import attend_at, own, owner
from interp.models.sites import AttentionSite, site_name
from interp.models.softmax_seam import read_softmax

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

__all__ = ["hook"]

IMPLEMENTATION = "interp"

_CALLED: list[nn.Module] | None = None
"""While a model is being explored: the attention modules that have called the core so far."""


def hook(
    module: PreTrainedModel,
    *,
    tokenizer: PreTrainedTokenizerBase | None = None,
    info: dict[str, Any] | None = None,
    output_head_loaded: bool = True,
    declarations: Sequence[projections.Declaration] = (),
) -> HookedModel:
    """Put the core inside a transformers model.

    One small forward pass finds out which attention modules call the core. Modules that ignore transformers' attention
    interface (Bloom, MPT) keep computing their own attention, and are read and edited between their softmax and
    their values; ``model.info["model_built_patterns"]`` names them.

    Raises:
        UserError: an attention module was neither reached by the core nor seen to take a softmax.
    """
    module.eval()
    known = {a.path: a for a in projections.attention_modules(module, declarations, unknown="skip")}
    paths = {child: path for path, child in module.named_modules()}
    use_core(module)
    model = HookedModel(module, (), tokenizer=tokenizer, info=info, output_head_loaded=output_head_loaded)
    called = _explore(model)
    order = list(known) + [paths[child] for child in called if paths[child] not in known]
    places = stacks.places(order)
    core = {paths[child] for child in called}
    sites = [
        _site(module, path, place, known.get(path), "core" if path in core else "softmax")
        for path, place in zip(order, places, strict=True)
    ]
    if not sites:
        raise UserError(f"no attention was found in {type(module).__name__}: nothing called transformers' interface")
    model.sites = tuple(sites)
    for site in sites:
        own(site.module, model, site)
    _serve_softmax(model)
    model.info |= _shape_info(model)
    return model


def use_core(module: PreTrainedModel) -> None:
    """Let a transformers model call the core wherever it goes through transformers' attention interface."""
    if module._can_set_attn_implementation():
        module.set_attn_implementation(IMPLEMENTATION)
    else:  # Bloom, Falcon, MPT: their own eager attention takes the softmax that is read instead
        module.config._attn_implementation_internal = "eager"  # type: ignore[attr-defined]


@contextmanager
def implementation(module: PreTrainedModel, name: str) -> Iterator[None]:
    """Run a hooked transformers model with one of transformers' own attention functions for a while.

    Raises:
        ValueError: the model does not support it.
    """
    try:
        module.set_attn_implementation(name)
        yield
    finally:
        use_core(module)


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
    mask = _as_mask(attention_mask, bool(causal) and query.shape[2] > 1)
    if position_bias is not None:
        mask = _with_bias(mask, position_bias)
    if s_aux is not None:
        mask = replace(mask, sinks=s_aux)
    if _CALLED is not None:
        _CALLED.append(module)
    if owner(module) is None and _is_cross(query, key, mask):
        mask = replace(mask, causal=False, cross=True)
    output = attend_at(module, query, key, value, mask, scaling, softcap)
    return output.transpose(1, 2), None


def core_mask(
    batch_size: int,
    q_length: int,
    kv_length: int,
    q_offset: int | Tensor = 0,
    kv_offset: int = 0,
    mask_function: Callable[..., Any] = hf_masks.causal_mask_function,
    attention_mask: Tensor | None = None,
    use_vmap: bool = False,
    **_: Any,
) -> Mask:
    """transformers' mask function, returning a :class:`Mask` instead of a query × key tensor."""
    valid = hf_masks.prepare_padding_mask(attention_mask, kv_length, kv_offset)
    if valid is not None:
        valid = valid[:, kv_offset : kv_offset + kv_length].bool()
        valid = None if bool(valid.all()) else valid
    offset = int(q_offset) - kv_offset
    causal, window, rest = _read_mask_function(mask_function)
    allowed = None if rest is None else _indexed(rest, kv_offset, use_vmap)
    inside = 0 <= offset and offset + q_length <= kv_length
    return Mask(
        causal=causal,
        window=window,
        key_valid=valid,
        allowed=allowed,
        query_offset=offset if inside or causal else None,
    )


def _read_mask_function(function: Callable[..., Any]) -> tuple[bool, int | None, Callable[..., Any] | None]:
    """(causal, window, what is left) of a transformers mask function."""
    causal, window, rest = False, None, []
    for part in _conjuncts(function):
        name = getattr(part, "__qualname__", "")
        if part is hf_masks.causal_mask_function:
            causal = True
        elif part is hf_masks.bidirectional_mask_function:
            continue
        elif name == "sliding_window_overlay.<locals>.inner_mask":
            window = _closure(part)["sliding_window"]
        elif name == "sliding_window_bidirectional_overlay.<locals>.inner_mask":
            window = _closure(part)["sliding_window"] + 1  # transformers counts |distance| ≤ window there
        else:
            rest.append(part)
    if window is not None and not causal and "sliding_window_overlay" in str(_names(function)):
        return False, None, function  # a one-sided window without causal order: leave it as it is
    return causal, window, hf_masks.and_masks(*rest) if rest else None


def _conjuncts(function: Callable[..., Any]) -> Iterator[Callable[..., Any]]:
    if getattr(function, "__qualname__", "") == "and_masks.<locals>.and_mask":
        for part in _closure(function)["mask_functions"]:
            yield from _conjuncts(part)
    else:
        yield function


def _names(function: Callable[..., Any]) -> list[str]:
    return [getattr(part, "__qualname__", "") for part in _conjuncts(function)]


def _closure(function: Any) -> dict[str, Any]:
    return {name: cell.cell_contents for name, cell in zip(
        function.__code__.co_freevars, function.__closure__ or (), strict=True)}  # fmt: skip


def _indexed(function: Callable[..., Any], kv_offset: int, use_vmap: bool) -> Callable[..., Tensor]:
    """A transformers mask function as a function of index tensors of any broadcastable shapes."""

    def allowed(batch: Tensor, head: Tensor, query: Tensor, key: Tensor) -> Tensor:
        query, key = query + kv_offset, key + kv_offset
        if not use_vmap:
            return function(batch, head, query, key)
        index = torch.broadcast_tensors(batch, head, query, key)
        with hf_masks.TransformGetItemToIndex():
            flat = torch.vmap(function)(*(i.flatten() for i in index))
        return flat.view(index[0].shape)

    return allowed


def _as_mask(given: Mask | Tensor | None, causal: bool) -> Mask:
    """Whatever a model hands over as its attention mask."""
    if isinstance(given, Mask):
        return given
    if given is None:
        return Mask(causal=causal)
    if given.dtype is torch.bool:
        return Mask(allowed=given)
    # transformers' additive masks hold the dtype's lowest number where nothing may be read
    forbidden = given <= torch.finfo(given.dtype).min / 2
    rest = given.masked_fill(forbidden, 0.0)
    return Mask(allowed=~forbidden, bias=rest if bool(rest.any()) else None)


def _with_bias(mask: Mask, bias: Tensor) -> Mask:
    """A bias that the model has built (T5), beside whatever the mask says."""
    forbidden = bias <= torch.finfo(bias.dtype).min / 2
    if bool(forbidden.any()):
        if mask.allowed is not None:
            raise UserError("a model handed over two masks at once, one as a bias: this is not understood")
        mask = replace(mask, allowed=~forbidden)
        bias = bias.masked_fill(forbidden, 0.0)
    return replace(mask, bias=bias if mask.bias is None else bias + mask.bias)


def _is_cross(query: Tensor, key: Tensor, mask: Mask) -> bool:
    return not mask.causal and mask.window is None and query.shape[2] != key.shape[2]


# Finding the sites ------------------------------------------------------------------------------------------------


def _explore(model: HookedModel) -> list[nn.Module]:
    """Modules that call the core, in order, found by one small forward pass."""
    global _CALLED
    _CALLED = []
    try:
        example = model.inputs.example(model)
        batch = model.inputs.batch(
            model, example.pop("tokens", None), None, example.pop("decoder_tokens", None), None, example
        )  # fmt: skip
        with torch.no_grad():
            model.module(**batch.arguments)
        return list(dict.fromkeys(_CALLED))
    finally:
        _CALLED = None


def _site(
    model: nn.Module, path: str, place: stacks.Place, known: projections.AttentionModule | None, source: Any
) -> AttentionSite:
    module = model.get_submodule(path)
    if known is not None:
        return AttentionSite(
            site_name(place.stack, place.layer, place.kind), place.layer, place.stack, place.kind, path, module,
            known.n_heads, known.n_kv_heads, known.d_head, source, partial(projections.head_weights, known),
        )  # fmt: skip
    raise UserError(
        f"{path} ({type(module).__name__}) computes attention, but its projections are not known; its children are "
        f"{', '.join(name for name, _ in module.named_children())}. Pass declarations=[Declaration(...)] to say which is which"
    )


def _serve_softmax(model: HookedModel) -> None:
    """Read and edit the attention of modules that compute their own, and see that each takes a softmax."""
    own = [site for site in model.sites if site.source == "softmax"]
    if not own:
        return
    for site in own:
        read_softmax(model, site)
    model.info["model_built_patterns"] = [site.name for site in own]
    run = model.run(**model.inputs.example(model))
    silent = [site.path for site in own if site.name not in run._recording.masks]
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
        "n_heads": max(s.n_heads for s in model.sites),
        "n_kv_heads": max(s.n_kv_heads for s in model.sites),
        "d_head": max(s.d_head for s in model.sites),
    }


AttentionInterface.register(IMPLEMENTATION, core_attention)
AttentionMaskInterface.register(IMPLEMENTATION, core_mask)
