"""One attention module with fewer heads: its weights cut, and everything that counts heads told so."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from transformers.pytorch_utils import Conv1D

from interp.errors import UserError
from interp.models import groups
from interp.models.projections import AttentionModule, head_weights, split_fused

__all__ = ["check", "cut", "kv_heads_of", "shared_parameters"]

_HEADS = ("num_heads", "num_attention_heads", "n_heads", "n_head")
_KV_HEADS = ("num_key_value_heads", "num_kv_heads", "n_kv_heads", "kv_heads")
_WIDTHS = ("all_head_size", "inner_dim", "split_size")
"""Attributes of attention modules in which a number of heads, or of their features, stands. Most modules read it off
the projections' shapes; these are for those that do not."""

_MADE_FOR_ALL = {"T5": "position_bias", "Bloom": "alibi", "Falcon": "alibi", "Mpt": "position_bias"}
"""Families whose model makes one tensor for the heads of all layers, and what the attention module is given it as."""

_READ_CONFIG = ("Phi3Attention",)

_NEED_A_HEAD = (
    "OPTAttention", "GPTNeoSelfAttention", "GPT2Attention", "DecisionTransformerGPT2Attention", "ImageGPTAttention",
    "GPTBigCodeAttention",
)  # fmt: skip
"""Classes whose forward cannot run without heads. So cannot those that compute their own attention."""


def kv_heads_of(attention: AttentionModule) -> list[int]:
    """Of each query head, the kv head that it reads."""
    index = groups.kv_index(attention.module)
    if index is not None:
        return index.tolist()
    group = attention.n_heads // max(1, attention.n_kv_heads)
    return [head // group for head in range(attention.n_heads)]


def needs_a_head(attention: AttentionModule, computes_its_own: bool) -> bool:
    """Whether the module's code cannot run over no heads at all."""
    return computes_its_own or _is_a(attention.module, *_NEED_A_HEAD)


def shared_parameters(model: nn.Module) -> set[int]:
    """Ids of the parameters that more than one module holds."""
    seen: set[int] = set()
    shared: set[int] = set()
    for module in model.modules():
        for parameter in module._parameters.values():
            if parameter is not None:
                (shared if id(parameter) in seen else seen).add(id(parameter))
    return shared


def check(attention: AttentionModule, kept: Sequence[int], shared: Collection[int]) -> None:
    """Whether a module can be cut so that its heads compute what they did.

    Args:
        kept: its query heads that stay. shared: ids of parameters that several modules hold.

    Raises:
        UserError: quantised or offloaded weights, a weight that another module holds too, a norm over all heads at
            once, a parameter of unknown use, or uneven groups in a fused projection that cannot hold them.
    """
    head_weights(attention)
    if _is_a(attention.module, *_READ_CONFIG):
        raise UserError(
            f"{attention.path} ({type(attention.module).__name__}) reads its number of heads from the config of the "
            "whole model, so that one layer cannot have fewer than another: gate its heads instead (edits.GateHeads)"
        )
    kind, path = type(attention.module).__name__, attention.path
    for role, projection in attention.projections.items():
        if any(id(parameter) in shared for parameter in projection.parameters()):
            raise UserError(
                f"the {role} projection of {path} shares its weights with another module, which would be cut with it: "
                "give it weights of its own (a copy of them), or leave this module's heads alone"
            )
    for name, parameter in _others(attention):
        if _how(attention, name, parameter) is None:
            raise UserError(
                f"{path} ({kind}) holds {name} {list(parameter.shape)}, and what pruning does to it is not known "
                "(a norm over all heads at once makes each head depend on the others): gate its heads instead "
                "(edits.GateHeads)"
            )
    if len(kept) == attention.n_heads:
        return
    alike = _alike([kv_heads_of(attention)[head] for head in kept])
    if not alike and attention.layout == "grouped":
        raise UserError(
            f"{path} ({kind}) cuts its queries, keys and values by itself, in groups of one size: keep the same number "
            "of query heads of every kv head that stays"
        )


@torch.no_grad()
def cut(attention: AttentionModule, kept: Sequence[int]) -> None:
    """Leave a module with some of its heads, in place; its projections keep their modules, with smaller weights.

    Args:
        attention: as it is now.
        kept: its query heads that stay, ascending; a kv head stays as long as a query head that reads it does.
    """
    kv_of_head = kv_heads_of(attention)
    kept_kv = sorted({kv_of_head[head] for head in kept})
    numbers = _features(attention, kept, kept_kv, kv_of_head)
    for role, projection in attention.projections.items():
        _slice(projection, numbers[role], of_inputs=role == "output")
    for name, parameter in _others(attention):
        which = {"query": kept, "kv": kept_kv}.get(_how(attention, name, parameter) or "")
        if which is not None:
            _replace(attention.module, name, parameter[torch.tensor(which, device=parameter.device, dtype=torch.long)])
    _cut_buffers(attention, kept)
    before = groups.kept_heads(attention.module)
    made = None
    if _made_for_all(attention) is not None:
        made = list(kept) if before is None else before[torch.tensor(kept, device=before.device)].tolist()
    alike = groups.mark(attention.module, [kept_kv.index(kv_of_head[head]) for head in kept], made)
    _tell(attention, len(kept), len(kept_kv), alike)
    _select_alibi(attention)


# Which features, which parameters ---------------------------------------------------------------------------------


def _features(
    attention: AttentionModule, kept: Sequence[int], kept_kv: Sequence[int], kv_of_head: Sequence[int]
) -> dict[str, Tensor]:
    """Of each projection, the head features that stay, in their order."""
    d_head = attention.d_head

    def of(heads: Sequence[int]) -> Tensor:
        return torch.arange(attention.n_heads * d_head).view(-1, d_head)[list(heads)].flatten()

    found = {"query": of(kept), "key": of(kept_kv), "value": of(kept_kv), "output": of(kept)}
    if attention.layout is None:
        return found
    n_heads = 0 if "query" in attention.projections else attention.n_heads
    everything = torch.arange((n_heads + 2 * attention.n_kv_heads) * d_head)
    query, key, value = split_fused(everything, attention.layout, n_heads, attention.n_kv_heads, d_head)
    mine = list(kept) if n_heads else []
    if attention.layout == "blocks":
        parts = [query[mine], key[list(kept_kv)], value[list(kept_kv)]]
    else:
        parts = [
            part
            for kv in kept_kv
            for part in (query[[head for head in mine if kv_of_head[head] == kv]], key[[kv]], value[[kv]])
        ]
    return found | {"fused": torch.cat([part.flatten() for part in parts]) if parts else everything[:0]}


def _others(attention: AttentionModule) -> list[tuple[str, Tensor]]:
    """The module's parameters outside its projections."""
    read = {id(p) for projection in attention.projections.values() for p in projection.parameters()}
    return [(name, p) for name, p in attention.module.named_parameters() if id(p) not in read]


def _how(attention: AttentionModule, name: str, parameter: Tensor) -> str | None:
    """What pruning does to a parameter outside the projections: cut it by "query" or "kv" head, or "keep" it whole;
    None where that is not known."""
    shape, n_heads, n_kv_heads = tuple(parameter.shape), attention.n_heads, attention.n_kv_heads
    if name == "sinks" and shape == (n_heads,):
        return "query"
    if name.startswith("relative_attention_bias"):
        return "keep"  # other layers of the stack read it too
    if "norm" not in name or shape[-1] != attention.d_head:
        return None
    of_keys = name.startswith("k")
    if shape == ((n_kv_heads if of_keys else n_heads), attention.d_head):
        return "kv" if of_keys else "query"
    return "keep" if len(shape) == 1 else None


def _cut_buffers(attention: AttentionModule, kept: Sequence[int]) -> None:
    slopes = attention.module._buffers.get("slopes")
    if slopes is not None and slopes.shape == (attention.n_heads,):
        attention.module._buffers["slopes"] = slopes[torch.tensor(kept, device=slopes.device, dtype=torch.long)]


# Cutting ----------------------------------------------------------------------------------------------------------


def _slice(projection: nn.Module, numbers: Tensor, *, of_inputs: bool) -> None:
    """Keep some of a projection's outputs, or of its inputs."""
    weight: Any = projection.weight
    transposed = isinstance(projection, Conv1D)
    axis = int(of_inputs != transposed)
    numbers = numbers.to(weight.device)
    _replace(projection, "weight", weight.index_select(axis, numbers))
    bias: Any = projection.bias
    if bias is not None and not of_inputs:
        _replace(projection, "bias", bias[numbers])
    sizes = ("nx" if of_inputs else "nf") if transposed else ("in_features" if of_inputs else "out_features")
    setattr(projection, sizes, len(numbers))


def _replace(module: nn.Module, path: str, values: Tensor) -> None:
    """Put other values in the place of a parameter."""
    inside, _, name = path.rpartition(".")
    holder = module.get_submodule(inside)
    before = holder._parameters[name]
    assert before is not None
    holder._parameters[name] = nn.Parameter(values.clone(), requires_grad=before.requires_grad)


def _tell(attention: AttentionModule, n_heads: int, n_kv_heads: int, alike: bool) -> None:
    """Put the new numbers where the module's own code looks for them."""
    module: Any = attention.module
    d_head = attention.d_head
    known = dict.fromkeys(_KV_HEADS, (attention.n_kv_heads, n_kv_heads))
    known |= dict.fromkeys(_WIDTHS, (attention.n_heads * d_head, n_heads * d_head))
    if _made_for_all(attention) != "position_bias" or not _is_t5(module):  # T5 makes what all layers share from it
        known |= dict.fromkeys(_HEADS, (attention.n_heads, n_heads))
    if _is_a(module, "GPTBigCodeAttention"):
        known |= {"embed_dim": (attention.n_heads * d_head, n_heads * d_head)}
        known |= {"kv_dim": (attention.n_kv_heads * d_head, n_kv_heads * d_head)}
    for name, (old, new) in known.items():
        if name in vars(module) and getattr(module, name) == old:
            setattr(module, name, new)
    if hasattr(module, "num_key_value_groups"):
        module.num_key_value_groups = n_heads // n_kv_heads if alike and n_kv_heads else 1


# What is made for all heads at once ---------------------------------------------------------------------------------


def _made_for_all(attention: AttentionModule) -> str | None:
    """The argument in which a module gets something made for the heads of all layers; None: it gets nothing such."""
    kind = type(attention.module).__name__
    return next((name for family, name in _MADE_FOR_ALL.items() if kind.startswith(family)), None)


def _is_t5(module: nn.Module) -> bool:
    return hasattr(module, "has_relative_attention_bias")


def _is_a(module: nn.Module, *names: str) -> bool:
    return bool({kind.__name__ for kind in type(module).__mro__} & set(names))


def _select_alibi(attention: AttentionModule) -> None:
    """Let a module that computes its own attention be given the biases of its own heads."""
    if _made_for_all(attention) is None or _is_t5(attention.module):
        return
    hooks = attention.module._forward_pre_hooks
    if _own_biases not in hooks.values():
        attention.module.register_forward_pre_hook(_own_biases, with_kwargs=True)


def _own_biases(module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[Any, dict[str, Any]]:
    """A forward pre-hook: of ALiBi biases [head, …] or [batch · head, …], and of masks that hold them, those of the
    module's heads."""
    chosen = dict(kwargs)
    for name in ("alibi", "position_bias"):
        bias = chosen.get(name)
        if isinstance(bias, Tensor) and bias.ndim == 4:
            chosen[name] = groups.of_kept_heads(module, bias)
        elif isinstance(bias, Tensor):
            batch = 1 if name == "position_bias" else args[0].shape[0] if args else kwargs["hidden_states"].shape[0]
            chosen[name] = groups.of_kept_heads(module, bias.unflatten(0, (batch, -1))).flatten(0, 1)
    mask = chosen.get("attention_mask")
    if isinstance(mask, Tensor) and mask.ndim == 4:
        chosen["attention_mask"] = groups.of_kept_heads(module, mask)
    return args, chosen


def _alike(kv_of_head: Sequence[int]) -> bool:
    return len({kv_of_head.count(kv) for kv in kv_of_head}) < 2
