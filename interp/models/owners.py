"""Which hooked model an attention module belongs to: the door through which every kind of model reaches the core."""

from __future__ import annotations

import weakref
from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn

from interp.attention import Mask, attend
from interp.models.groups import for_query_heads

if TYPE_CHECKING:
    from interp.models.hooked import HookedModel
    from interp.models.sites import AttentionSite

__all__ = ["attend_at", "in_one_dtype", "own", "owner"]

_OWNERS: weakref.WeakKeyDictionary[nn.Module, tuple[weakref.ref[HookedModel], AttentionSite]] = (
    weakref.WeakKeyDictionary()
)


def own(module: nn.Module, model: HookedModel, site: AttentionSite) -> None:
    """Let an attention module's calls of the core go through a hooked model, as one of its sites."""
    _OWNERS[module] = (weakref.ref(model), site)


def owner(module: nn.Module) -> tuple[HookedModel, AttentionSite] | None:
    """The hooked model and site of an attention module; None where it has none, or no longer."""
    found = _OWNERS.get(module)
    model = None if found is None else found[0]()
    return None if found is None or model is None else (model, found[1])


@torch.compiler.disable()  # what is in force changes between calls, and readings are kept outside of the graph
def attend_at(
    module: nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    mask: Mask,
    scale: float | None = None,
    softcap: float | None = None,
) -> Tensor:
    """Attention of one module [batch, head, position, d_head], with the probes and edits of the model it belongs to."""
    query, key, value = in_one_dtype(query, key, value)
    if query.shape[1] == 0:  # every head was pruned: there is no site, and nothing to compute
        return query.new_zeros(*query.shape[:3], value.shape[3])
    found = owner(module)
    if found is None:
        key, value = for_query_heads(module, key, value)
        return attend(query, key, value, mask, scale, softcap)
    model, site = found
    return model.attend(site, query, key, value, mask, scale, softcap)


def in_one_dtype(*tensors: Tensor) -> tuple[Tensor, ...]:
    """What autocast would make of an attention call's tensors, which acts below the place where the call is caught."""
    device = tensors[0].device.type
    if not torch.is_autocast_enabled(device):
        return tensors
    kind = torch.get_autocast_dtype(device)
    return tuple(tensor if tensor.dtype is torch.float64 else tensor.to(kind) for tensor in tensors)
