"""Per-head W_Q, W_K, W_V and W_O of the attention modules of a model, read from its own parameters.

What is a query projection and what an output projection is known by name for the conventions of transformers; how a
fused projection is cut into heads is known by class, since the same name is cut differently in different families.
Anything else is declared by its user in a `Declaration`.
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass, fields, replace
from itertools import product
from typing import Literal

from jaxtyping import Float, Int
from torch import Tensor, nn
from transformers.pytorch_utils import Conv1D

from interp.errors import UserError
from interp.models import stacks
from interp.models.groups import kv_index

#: How the output features of a fused projection are ordered: all queries, all keys, all values ("blocks"), or, for each
#: kv head, its queries, its key, its value ("grouped").
Layout = Literal["blocks", "grouped"]


class UnknownAttentionError(UserError):
    """An attention module whose projections cannot be told; the message says what was found and how to declare it."""


@dataclass(frozen=True)
class Declaration:
    """Which children of an attention module are its projections.

    Names are dotted paths from the module; one that starts with ``../`` begins at its parent. Either ``query``, ``key``
    and ``value`` are given, or ``fused`` with its ``layout``; ``fused`` beside ``query`` holds keys and values only.

    Attributes:
        output: the projection of z back to the residual stream (W_O).
        query: W_Q.
        key: W_K.
        value: W_V.
        fused: one projection for queries, keys and values.
        layout: the order of its output features.
        classes: names of the module classes that this is for; none: any that has these children.
        d_head: where the module does not say it.
    """

    output: str
    query: str = ""
    key: str = ""
    value: str = ""
    fused: str = ""
    layout: Layout | None = None
    classes: tuple[str, ...] = ()
    d_head: int | None = None

    def __post_init__(self) -> None:
        separate = bool(self.query and self.key and self.value)
        if not self.output or separate == bool(self.fused) or (self.fused and self.layout is None):
            raise UserError(f"a Declaration names output and either query, key and value, or fused and layout: {self}")

    @property
    def names(self) -> dict[str, str]:
        """The children by role."""
        roles = ("query", "key", "value", "fused", "output")
        return {role: getattr(self, role) for role in roles if getattr(self, role)}


@dataclass(frozen=True, eq=False)
class AttentionModule:
    """One attention module of a model.

    Attributes:
        path: its name within the model; the module that transformers hands to an attention function.
        layer: its layer's number within its stack.
        kind: "self", or "cross" where keys and values come from another stack.
        stack: "encoder", "decoder", "text_model", … where the model has several; "" where it has one.
        module: itself.
        projections: the linear modules by role (query, key, value or fused; output).
        output_path: name of the output projection within the model.
        layout: of the fused projection.
        n_heads: number of query heads.
        n_kv_heads: number of key and value heads; query head h reads kv head ``h // (n_heads // n_kv_heads)``, or what
            `groups.kv_index` says where heads were pruned.
        d_head: features per head.
    """

    path: str
    layer: int
    kind: Literal["self", "cross"]
    stack: str
    module: nn.Module
    projections: dict[str, nn.Module]
    output_path: str
    layout: Layout | None
    n_heads: int
    n_kv_heads: int
    d_head: int


@dataclass(frozen=True, eq=False, repr=False)
class HeadWeights:
    """The weights of one attention module by head: q = x @ W_Q[h] + b_Q[h], result = z @ W_O[h].

    Views of the model's parameters, except W_Q of a fused projection with grouped keys. What the module does beside
    these projections (rotation, a scale on q or on the scores, normed queries) is not in them.

    Attributes:
        b_O: added once per module, not per head.
        unread: the module's other parameters, by name: ``q_norm``, ``sinks``, ``relative_attention_bias``, …
        clip: q, k and v are clamped to [−clip, clip]; None: they are not.
        kv_index: the kv head that each query head reads, where groups were pruned unevenly; None: alike.
    """

    W_Q: Float[Tensor, "n_heads d_model d_head"]
    W_K: Float[Tensor, "n_kv_heads d_model d_head"]
    W_V: Float[Tensor, "n_kv_heads d_model d_head"]
    W_O: Float[Tensor, "n_heads d_head d_model"]
    b_Q: Float[Tensor, "n_heads d_head"] | None = None  # noqa: N815 (the papers\' name)
    b_K: Float[Tensor, "n_kv_heads d_head"] | None = None  # noqa: N815 (the papers\' name)
    b_V: Float[Tensor, "n_kv_heads d_head"] | None = None  # noqa: N815 (the papers\' name)
    b_O: Float[Tensor, " d_model"] | None = None  # noqa: N815
    unread: tuple[str, ...] = ()
    clip: float | None = None
    kv_index: Int[Tensor, " n_heads"] | None = None

    def __repr__(self) -> str:
        shapes = {f.name: value for f in fields(self) if isinstance(value := getattr(self, f.name), Tensor)}
        return f"HeadWeights({', '.join(f'{name} {list(value.shape)}' for name, value in shapes.items())})"

    def for_query_heads(self, per_kv_head: Tensor) -> Tensor:
        """W_K, W_V, b_K or b_V once for each query head that reads it (a copy where heads share one)."""
        if self.kv_index is not None:
            return per_kv_head[self.kv_index]
        return per_kv_head.repeat_interleave(self.W_Q.shape[0] // self.W_K.shape[0], dim=0)


_QUERY_KEY_VALUE = (
    ("q_proj", "k_proj", "v_proj"),
    ("query", "key", "value"),
    ("query_proj", "key_proj", "value_proj"),
    ("q_lin", "k_lin", "v_lin"),
    ("q", "k", "v"),
)
_OUTPUT = ("o_proj", "out_proj", "dense", "out_lin", "o", "../output.dense")
_GPT2 = ("GPT2Attention", "DecisionTransformerGPT2Attention", "ImageGPTAttention", "GPTBigCodeAttention")
_FUSED = (
    Declaration("c_proj", query="q_attn", fused="c_attn", layout="blocks", classes=_GPT2),
    Declaration("c_proj", fused="c_attn", layout="grouped", classes=("GPTBigCodeAttention",)),
    Declaration("c_proj", fused="c_attn", layout="blocks", classes=_GPT2),
    Declaration("o_proj", fused="qkv_proj", layout="blocks", classes=("Phi3Attention",)),
    Declaration("out_proj", fused="Wqkv", layout="blocks", classes=("MptAttention", "DbrxAttention")),
    Declaration("Wo", fused="Wqkv", layout="blocks", classes=("ModernBertAttention",)),
    Declaration(
        "dense",
        fused="query_key_value",
        layout="grouped",
        classes=("GPTNeoXAttention", "BloomAttention", "FalconAttention", "PersimmonAttention"),
    ),
)
_KNOWN = (*_FUSED, *(Declaration(o, query=q, key=k, value=v) for (q, k, v), o in product(_QUERY_KEY_VALUE, _OUTPUT)))
_D_HEAD = ("head_dim", "attention_head_size", "head_size", "key_value_proj_dim", "d_head")


def attention_modules(
    model: nn.Module,
    declarations: Sequence[Declaration] = (),
    unknown: Literal["raise", "skip"] = "raise",
    unreadable: dict[str, UnknownAttentionError] | None = None,
) -> list[AttentionModule]:
    """The attention modules of a model, in the order in which they are registered, which is that of execution.

    Args:
        model: of transformers, bare or wrapped.
        declarations: for modules that are not known here; they come before what is known.
        unknown: what to do about a module that is called attention and holds projections that are not known.
        unreadable: where it is given, modules whose projections are known and cannot be read (an adapter, sizes that do
            not fit together) are put there with the reason, by path, instead of raising.

    Raises:
        UnknownAttentionError: there is such a module, or one whose sizes do not fit together.
    """
    found: list[AttentionModule] = []
    for path, module in model.named_modules():
        declared = next((d for d in (*declarations, *_KNOWN) if _fits(model, path, module, d)), None)
        if declared is None:
            continue
        try:
            found.append(_read(model, path, module, declared))
        except UnknownAttentionError as reason:
            if unreadable is None:
                raise
            unreadable[path] = reason
    if unknown == "raise":
        _check_unknown(model, {*(attention.path for attention in found), *(unreadable or {})})
    places = stacks.places([attention.path for attention in found])
    return [replace(attention, **place._asdict()) for attention, place in zip(found, places, strict=True)]


def attention_module_at(
    model: nn.Module, path: str, n_heads: int, d_head: int, declarations: Sequence[Declaration] = ()
) -> AttentionModule | None:
    """One module, seen to compute attention; None where its projections are not known.

    Args:
        n_heads, d_head: what was seen. A ``d_head`` of 0 is out of sight (a softmax by hand): then only what was
            declared counts, and names alone do not.
    """
    module = model.get_submodule(path)
    declared = next((d for d in (*declarations, *(_KNOWN if d_head else ())) if _fits(model, path, module, d)), None)
    if declared is None:
        return None
    output = model.get_submodule(_child_path(path, declared.output))
    wide = declared.d_head or d_head or _features(path, "output", output) // n_heads
    return _read(model, path, module, replace(declared, d_head=wide))


def head_weights(attention: AttentionModule) -> HeadWeights:
    """The per-head weights of an attention module.

    Raises:
        UnknownAttentionError: a projection is not a plain linear map (an adapter, quantised weights).
    """
    rows = {role: _rows(attention, role) for role in attention.projections}
    weights = _by_head(attention, {role: weight for role, (weight, _) in rows.items()})
    biases = _by_head(attention, {role: bias for role, (_, bias) in rows.items() if bias is not None})
    read = {id(p) for projection in attention.projections.values() for p in projection.parameters()}
    unread = (name for name, p in attention.module.named_parameters() if id(p) not in read)
    output, b_O = rows["output"]
    return HeadWeights(
        W_Q=weights["query"].transpose(1, 2),
        W_K=weights["key"].transpose(1, 2),
        W_V=weights["value"].transpose(1, 2),
        W_O=output.T.unflatten(0, (attention.n_heads, attention.d_head)),
        b_Q=biases.get("query"),
        b_K=biases.get("key"),
        b_V=biases.get("value"),
        b_O=b_O,
        unread=tuple(dict.fromkeys(name.partition(".")[0] for name in unread)),
        clip=_clip(attention.module),
        kv_index=kv_index(attention.module),
    )


def split_fused(
    rows: Float[Tensor, "features ..."], layout: Layout, n_heads: int, n_kv_heads: int, d_head: int
) -> tuple[Tensor, Tensor, Tensor]:
    """Cut what lies along the output features of a fused projection into ``[heads, d_head, ...]`` of q, k and v.

    Works on a weight ``[features, d_model]``, a bias ``[features]``, or the features' numbers. ``n_heads`` 0: the
    projection holds keys and values only.
    """
    if layout == "blocks":
        sizes = (n_heads, n_kv_heads, n_kv_heads)
        parts = rows.split([n * d_head for n in sizes])
        query, key, value = (part.unflatten(0, (n, d_head)) for part, n in zip(parts, sizes, strict=True))
        return query, key, value
    grouped = rows.unflatten(0, (n_kv_heads, n_heads // n_kv_heads + 2, d_head))
    return grouped[:, :-2].flatten(0, 1), grouped[:, -2], grouped[:, -1]


def _by_head(attention: AttentionModule, rows: dict[str, Tensor]) -> dict[str, Tensor]:
    """Output features of the query, key and value projections as [heads, d_head, ...]."""
    d_head = attention.d_head
    sizes = {"query": attention.n_heads, "key": attention.n_kv_heads, "value": attention.n_kv_heads}
    heads = {role: rows[role].unflatten(0, (n, d_head)) for role, n in sizes.items() if role in rows}
    if attention.layout is not None and "fused" in rows:
        n_heads = 0 if "query" in attention.projections else attention.n_heads
        query, key, value = split_fused(rows["fused"], attention.layout, n_heads, attention.n_kv_heads, d_head)
        heads |= {"key": key, "value": value} | ({"query": query} if n_heads else {})
    return heads


def _fits(model: nn.Module, path: str, module: nn.Module, declared: Declaration) -> bool:
    """Whether a module is of the declared class and has the declared children."""
    if declared.classes and not {kind.__name__ for kind in type(module).__mro__} & set(declared.classes):
        return False
    return all(_child(model, path, name) is not None for name in declared.names.values())


def _child(model: nn.Module, path: str, name: str) -> nn.Module | None:
    try:
        return model.get_submodule(_child_path(path, name))
    except AttributeError:
        return None


def _child_path(path: str, name: str) -> str:
    if name.startswith("../"):
        path, name = path.rpartition(".")[0], name.removeprefix("../")
    return f"{path}.{name}" if path else name


def _read(model: nn.Module, path: str, module: nn.Module, declared: Declaration) -> AttentionModule:
    """A module with its sizes, from the projections' own shapes: they are right in a pruned model too."""
    projections = {role: model.get_submodule(_child_path(path, name)) for role, name in declared.names.items()}
    d_head = declared.d_head or next((n for name in _D_HEAD if isinstance(n := getattr(module, name, None), int)), None)
    if d_head is None:
        raise UnknownAttentionError(
            f"{path} ({type(module).__name__}) does not say how wide a head is (none of {', '.join(_D_HEAD)}): "
            f"declare it, {declared} with d_head"
        )
    width = {role: _features(path, role, projection) for role, projection in projections.items()}
    n_heads = width["output"] // d_head
    if "fused" in width:
        n_kv_heads = (width["fused"] // d_head - (0 if "query" in width else n_heads)) // 2
        expected = {"fused": (2 * n_kv_heads + (0 if "query" in width else n_heads)) * d_head}
    else:
        n_kv_heads = width["key"] // d_head
        expected = {"key": n_kv_heads * d_head, "value": n_kv_heads * d_head}
    expected["output"] = n_heads * d_head
    if "query" in width:
        expected["query"] = n_heads * d_head
    if expected != width or (n_kv_heads and kv_index(module) is None and n_heads % n_kv_heads):
        raise UnknownAttentionError(
            f"{path} ({type(module).__name__}): {n_heads} heads of {d_head} over {n_kv_heads} kv heads need "
            f"projections of {expected} features, they have {width} (gated queries? keys and values of two widths?)"
        )
    output_path = _child_path(path, declared.output)
    return AttentionModule(
        path, 0, "self", "", module, projections, output_path, declared.layout, n_heads, n_kv_heads, d_head
    )


def _features(path: str, role: str, projection: nn.Module) -> int:
    """How many head features a projection writes (or, the output projection, reads)."""
    if not isinstance(projection, nn.Linear | Conv1D):
        raise UnknownAttentionError(
            f"the {role} projection of {path} is a {type(projection).__name__}, expected nn.Linear or Conv1D: merge an "
            "adapter into its model (peft: merge_and_unload); load quantised weights dequantised"
        )
    if isinstance(projection, Conv1D):
        return int(projection.weight.shape[0 if role == "output" else 1])
    return int(projection.weight.shape[1 if role == "output" else 0])


def _rows(attention: AttentionModule, role: str) -> tuple[Tensor, Tensor | None]:
    """A projection's weight as [features out, features in], a view, and its bias."""
    projection = attention.projections[role]
    weight = projection.weight
    if not isinstance(weight, Tensor) or not weight.is_floating_point() or weight.element_size() == 1:
        raise UnknownAttentionError(
            f"the {role} projection of {attention.path} holds quantised weights ({weight.dtype}): load it dequantised"
        )
    if weight.device.type == "meta":
        raise UnknownAttentionError(
            f"the weights of {attention.path} are offloaded: load the model without a disk or CPU offload to read them"
        )
    bias = projection.bias
    return weight.T if isinstance(projection, Conv1D) else weight, bias if isinstance(bias, Tensor) else None


def _clip(module: nn.Module) -> float | None:
    config = getattr(module, "config", None)
    value = getattr(module, "clip_qkv", None) or getattr(config, "clip_qkv", None)
    return float(value) if value else None


def _check_unknown(model: nn.Module, known: set[str]) -> None:
    """Refuse modules that are called attention, hold linear maps, and have nothing to do with a known one."""
    suspects = [
        (path, module)
        for path, module in model.named_modules()
        if re.search(r"attention|attn", type(module).__name__, re.IGNORECASE)
        and (sum(isinstance(child, nn.Linear | Conv1D) for child in module.modules()) >= 2 or _is_torchs(module))
        and not any(path == k or path.startswith(f"{k}.") or k.startswith(f"{path}.") for k in known)
    ]
    if not suspects:
        return
    path, module = suspects[-1]  # the innermost of nested ones comes later
    if _is_torchs(module):
        raise UnknownAttentionError(
            f"{path} is an nn.MultiheadAttention, whose projections are one parameter and no children that could be "
            "declared; interp.load(module, example) reads its heads and their weights"
        )
    children = ", ".join(f"{name} ({_describe(child)})" for name, child in module.named_modules() if name)
    kind = type(module).__name__
    raise UnknownAttentionError(
        f"the projections of {path} ({kind}) are not known; it holds {children}. Declare them: "
        f'Declaration(output="…", query="…", key="…", value="…", classes=("{kind}",)), or '
        f'Declaration(output="…", fused="…", layout="blocks" or "grouped", classes=("{kind}",))'
    )


def _is_torchs(module: nn.Module) -> bool:
    return isinstance(module, nn.MultiheadAttention)


def _describe(module: nn.Module) -> str:
    if isinstance(module, nn.Linear):
        return f"{type(module).__name__} {module.in_features}→{module.out_features}"
    return type(module).__name__
