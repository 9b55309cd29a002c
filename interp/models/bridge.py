"""A TransformerBridge on the weights of a hooked model, with the attention core inside where it fits.

TransformerLens's bridges compute attention eagerly and hold every pattern. Two of their designs leave room for the
core: bridges over separate query, key and value projections can hand over to the transformers module, whose attention
function is the core; and the bridge of GPT-2's fused projection computes attention in one method, which is replaced. A
site goes back to the bridge's own eager attention for as long as a hook or cache asks for something that only that
computes, such as ``hook_pattern`` or ``hook_attn_scores``.
"""

from __future__ import annotations

import copy
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from interp.attention import Mask
from interp.errors import UserError
from interp.models import huggingface
from interp.models.owners import own
from interp.models.sites import AttentionSite

if TYPE_CHECKING:
    from transformer_lens.model_bridge import TransformerBridge

    from interp.models.hooked import HookedModel

__all__ = ["make_bridge"]

_NEEDS_EAGER = ("use_attn_result", "use_split_qkv_input", "use_attn_in")
"""Settings of a bridge under which its own attention does more than the transformers module."""

_PROJECTIONS = ("q", "k", "v", "o")
"""Parts of an attention bridge whose hook points fire whoever computes the attention."""


def make_bridge(model: HookedModel) -> TransformerBridge:
    """The bridge. ``model.info["bridge"]`` lists the sites that run on the core, those that are eager, and those that a
    hook has switched to eager so far.

    Edits and probes of the hooked model act inside the bridge too, at the sites that run on the core.

    Raises:
        UserError: TransformerLens has no bridge for this architecture, or heads of the model were pruned.
    """
    if "pruning" in model.info:
        raise UserError(
            f"{model.info.get('name')} was pruned, and TransformerLens's bridges take the number of heads from the "
            "config: use run, edit and hooks of this model, or a bridge on the model that it was pruned from"
        )
    from transformer_lens.model_bridge.generalized_components.attention import AttentionBridge
    from transformer_lens.model_bridge.sources import build_bridge_from_module

    twin = _twin(model.module)
    if twin._can_set_attn_implementation():
        twin.set_attn_implementation("eager")  # what bridges expect; the core takes its place below
    modules = {site.name: twin.get_submodule(site.path) for site in model.sites}
    architecture = type(model.module).__name__
    try:
        bridge = build_bridge_from_module(
            twin, architecture, hf_config=twin.config, tokenizer=model.tokenizer,
            model_name=str(model.info.get("name", architecture)),
        )  # fmt: skip
    except (AttributeError, KeyError, ValueError, RuntimeError) as error:
        raise UserError(
            f"TransformerLens makes no bridge for {architecture} ({type(error).__name__}: {error}); "
            "the hooked model's own run, edit and hooks work all the same"
        ) from error
    components = [c for c in bridge.modules() if isinstance(c, AttentionBridge)]
    where: dict[str, list[str]] = {"core": [], "eager": [s.name for s in model.sites], "switched": []}
    if len(components) == len(model.sites) and all(map(_has_room, components)):
        huggingface.use_core(twin)
        for site, component in zip(model.sites, components, strict=True):
            own(modules[site.name], model, site)
            _Seat(component, modules[site.name], site, where["switched"]).install()
        where["core"], where["eager"] = where["eager"], []
    model.info["bridge"] = where
    return bridge


def _twin(module: nn.Module) -> Any:
    """The same model over the same tensors in modules of its own: a bridge rewires the modules that it wraps."""
    shared: dict[int, Any] = {id(tensor): tensor for tensor in (*module.parameters(), *module.buffers())}
    twin = copy.deepcopy(module, shared)
    for child in twin.modules():
        child.__dict__.pop("forward", None)  # an observed forward would run the original's module
    return twin


def _has_room(component: Any) -> bool:
    """Whether the core can take over what a bridge component computes. Exactly these classes: a subclass adds steps."""
    from transformer_lens.model_bridge.generalized_components.attention import AttentionBridge
    from transformer_lens.model_bridge.generalized_components.joint_qkv_attention import JointQKVAttentionBridge
    from transformer_lens.model_bridge.generalized_components.position_embeddings_attention import (
        PositionEmbeddingsAttentionBridge,
    )

    known = type(component) in (AttentionBridge, PositionEmbeddingsAttentionBridge, JointQKVAttentionBridge)
    return known and not getattr(component, "requires_relative_position_bias", False)


class _Seat:
    """One bridge component with the core in place of its attention."""

    def __init__(self, component: Any, module: nn.Module, site: AttentionSite, switched: list[str]) -> None:
        self.component, self.module, self.site, self.switched = component, module, site, switched
        self.joint = "_reconstruct_attention" in _methods(type(component), above="AttentionBridge")

    def install(self) -> None:
        # A bridge passes plain attribute assignment on to the module it wraps, so the instance's dict is written to
        if self.joint:
            self.component.__dict__["_reconstruct_attention"] = self._attend_joint
        else:
            self.component.__dict__["forward"] = self._forward

    def _forward(self, *args: Any, **kwargs: Any) -> Any:
        from transformer_lens.model_bridge.generalized_components.attention import AttentionBridge

        component = self.component
        if not self._wants_eager():
            return AttentionBridge.forward(component, *args, **kwargs)
        hidden = args[0] if args else kwargs["hidden_states"]
        with self._eager(args, kwargs, hidden) as (given, named):
            return type(component).forward(component, *given, **named)

    def _attend_joint(self, q: Tensor, k: Tensor, v: Tensor, **kwargs: Any) -> tuple[Tensor, Tensor | None]:
        component = self.component
        if self._wants_eager():
            with self._eager((), kwargs, q) as (_, named):
                return type(component)._reconstruct_attention(component, q, k, v, **named)
        n_heads = self.site.n_heads
        q, k, v, batch, n_queries, d_head = component._reshape_qkv_to_heads(q, k, v, n_heads, self.site.n_kv_heads)
        k, v = component._update_kv_cache(k, v, **kwargs)
        scaling = getattr(self.module, "scaling", None) or d_head**-0.5
        z, _ = huggingface.core_attention(self.module, q, k, v, kwargs.get("attention_mask"), scaling=scaling)
        return component._apply_output_projection(z.reshape(batch, n_queries, n_heads * d_head)), None

    def _wants_eager(self) -> bool:
        """Whether a setting or a hook asks for something that the core does not make."""
        wanted = any(bool(getattr(self.component.config, name, False)) for name in _NEEDS_EAGER)
        wanted = wanted or any(point.has_hooks(dir="both") for point in self._eager_points())
        if wanted and self.site.name not in self.switched:
            self.switched.append(self.site.name)
        return wanted

    def _eager_points(self) -> Iterator[Any]:
        """Hook points that fire only when the component computes its own attention."""
        from transformer_lens.hook_points import HookPoint

        component = self.component
        passed = [component, *(getattr(component, name, None) for name in _PROJECTIONS)]
        anyway = {id(getattr(part, point, None)) for part in passed for point in ("hook_in", "hook_out")}
        for child in component.modules():
            if isinstance(child, HookPoint) and id(child) not in anyway:
                yield child

    @contextmanager
    def _eager(
        self, args: tuple[Any, ...], kwargs: dict[str, Any], hidden: Tensor
    ) -> Iterator[tuple[list[Any], dict[str, Any]]]:
        """The component's own attention, given a mask that it understands."""
        other = kwargs.get("key_value_states", kwargs.get("encoder_hidden_states"))

        def understood(value: Any) -> Any:
            return _additive(value, hidden, other) if isinstance(value, Mask) else value

        config: Any = self.module.config
        before = config._attn_implementation
        config._attn_implementation_internal = "eager"
        try:
            yield [understood(value) for value in args], {k: understood(v) for k, v in kwargs.items()}
        finally:
            config._attn_implementation_internal = before


def _additive(mask: Mask, hidden: Tensor, other: Tensor | None) -> Tensor:
    """A mask as the whole additive tensor that eager attention adds to its scores.

    Args:
        hidden: what the queries are made of [batch, query, d_model]; ``other``: the keys, in cross-attention.
    """
    n_queries = hidden.shape[1]
    if mask.key_valid is not None:
        n_keys = mask.key_valid.shape[1]
    else:
        n_keys = n_queries + (mask.query_offset or 0) if other is None else other.shape[1]
    bound = mask.bind(hidden.shape[0], 1, n_queries, n_keys, hidden.device)
    allowed = bound.allowed(0, n_queries, 0, n_keys)
    return torch.zeros_like(allowed, dtype=hidden.dtype).masked_fill(~allowed, torch.finfo(hidden.dtype).min)


def _methods(kind: type, above: str) -> set[str]:
    """Names defined by a class and its bases, up to but without the base of a given name."""
    names: set[str] = set()
    for base in kind.__mro__:
        if base.__name__ == above:
            break
        names |= set(vars(base))
    return names
