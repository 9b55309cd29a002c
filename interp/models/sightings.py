"""Attention calls that were seen while a module ran, and the sites that they become."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

from torch import Tensor, nn

from interp.errors import UserError
from interp.models import projections
from interp.models.interception import AttentionCall, How
from interp.models.sites import AttentionSite


@dataclass(frozen=True, eq=False)
class Sighting:
    """An attention call seen while a module ran."""

    path: str
    call_number: int
    module: nn.Module
    how: How
    n_heads: int
    n_kv_heads: int
    d_head: int
    shapes: str
    mask: str
    cross: bool
    folded: bool = False

    @property
    def name(self) -> str:
        """The module's path, with a number where it calls more than once."""
        path = self.path or type(self.module).__name__
        return path if self.call_number == 0 else f"{path}#{self.call_number + 1}"

    @property
    def is_dense(self) -> bool:
        """Whether it is a softmax by hand, over a pattern that the module has built itself."""
        return self.shapes.startswith("pattern")

    def describe(self) -> dict[str, Any]:
        """What was recognised, and how."""
        return {
            "path": self.path, "how": self.how, "n_heads": self.n_heads, "n_kv_heads": self.n_kv_heads,
            "mask": self.mask, "shapes": self.shapes, "kind": "cross" if self.cross else "self",
        }  # fmt: skip


def chosen(sightings: list[Sighting], sites: Mapping[str, str] | Collection[str] | None) -> dict[str, Sighting]:
    """Those asked for, by the names that they get; all for None.

    Raises:
        UserError: a name that was not found.
    """
    found = {sighting.name: sighting for sighting in sightings}
    if sites is None:
        return found
    if unknown := [name for name in sites if name not in found]:
        raise UserError(f"sites= names {', '.join(unknown)}; found were {', '.join(found)}")
    if isinstance(sites, Mapping):
        return {sites[name]: sighting for name, sighting in found.items() if name in sites}
    return {name: sighting for name, sighting in found.items() if name in sites}


def mask_words(call: AttentionCall) -> str:
    """The mask of a call, as words."""
    mask = call.mask
    words = ["causal"] if mask.causal else []
    for name in ("key_valid", "allowed", "bias"):
        value = getattr(mask, name)
        if value is not None:
            words.append(name.replace("_", " ") + (f" {list(value.shape)}" if isinstance(value, Tensor) else ""))
    if call.score_mod is not None:
        words.append("score_mod")
    return ", ".join(words) or "none"


def site_of(
    layer: int, name: str, sighting: Sighting, module: nn.Module, declarations: Sequence[projections.Declaration],
    inside: str, calls: int,
) -> AttentionSite:  # fmt: skip
    """The site that a sighting becomes; ``inside`` goes before its path where something wraps the module.

    ``calls``: how often its module computes attention in a pass.
    """
    return AttentionSite(
        name=name,
        layer=layer,
        stack="",
        kind="cross" if sighting.cross else "self",
        path=f"{inside}{sighting.path}".rstrip("."),
        module=sighting.module,
        n_heads=sighting.n_heads,
        n_kv_heads=sighting.n_kv_heads,
        d_head=sighting.d_head,
        source="softmax" if sighting.is_dense else "core",
        weights=partial(_weights, module, sighting, declarations, calls),
    )


def _weights(
    model: nn.Module, sighting: Sighting, declarations: Sequence[projections.Declaration], calls: int
) -> projections.HeadWeights:
    module = sighting.module
    if isinstance(module, nn.MultiheadAttention):
        return multi_head_weights(module)
    known = projections.attention_module_at(model, sighting.path, sighting.n_heads, sighting.d_head, declarations)
    what = f"the projections around {sighting.name} ({type(module).__name__})"
    if known is None:
        raise UserError(
            f"{what} are not known, so it has no head weights; declare them by their names in the module, such as "
            "interp.load(…, declarations=[interp.models.Declaration(output='o', query='q', key='k', value='v')])"
        )
    weights = projections.head_weights(known)
    matrices = {name for name, child in module.named_children() if any(p.ndim > 1 for p in child.parameters())}
    if calls > 1 and matrices & set(weights.unread):  # one set of projections may serve every call of a tied block
        raise UserError(
            f"{what} cannot be told: the module computes attention {calls} times, and has other weights beside them "
            f"({', '.join(sorted(matrices & set(weights.unread)))}). Give each attention a module of its own"
        )
    return weights


def multi_head_weights(module: nn.MultiheadAttention) -> projections.HeadWeights:
    """Per-head weights of ``nn.MultiheadAttention``, as views."""
    n_heads, d_head = module.num_heads, module.head_dim
    if module.in_proj_weight is not None:
        rows = module.in_proj_weight.chunk(3)
    else:
        rows = (module.q_proj_weight, module.k_proj_weight, module.v_proj_weight)
    w_q, w_k, w_v = (w.unflatten(0, (n_heads, d_head)).transpose(1, 2) for w in rows)
    bias = (None,) * 3 if module.in_proj_bias is None else module.in_proj_bias.view(3, n_heads, d_head)
    w_o = module.out_proj.weight.T.unflatten(0, (n_heads, d_head))
    return projections.HeadWeights(w_q, w_k, w_v, w_o, bias[0], bias[1], bias[2], module.out_proj.bias)
