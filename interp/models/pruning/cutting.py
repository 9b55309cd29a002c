"""prune(): a hooked model with fewer heads, which computes what the model computes with those heads gated to zero."""

from __future__ import annotations

import copy
import hashlib
import json
from collections.abc import Collection, Mapping, Sequence
from dataclasses import asdict
from typing import Any

import torch
from torch import Tensor
from transformers import PreTrainedModel

from interp.attention.edits import GateHeads
from interp.errors import UserError
from interp.models.hooked import HookedModel
from interp.models.huggingface import hook
from interp.models.projections import AttentionModule, Declaration, attention_modules
from interp.models.pruning import slicing
from interp.models.pruning.heads import Kept, kept_by_site
from interp.models.sites import AttentionSite

__all__ = ["PruningError", "cut_sites", "hook_again", "numbers_in_base", "prune"]


class PruningError(UserError):
    """The pruned model does not compute what the gated model computes."""


def prune(
    model: HookedModel,
    keep: Mapping[str, Collection[int]] | Mapping[int, Collection[int]],
    *,
    in_place: bool = False,
    declarations: Sequence[Declaration] = (),
    check: bool = True,
) -> HookedModel:
    """A smaller model: the weights of the heads that do not stay are cut out.

    Its output is that of ``model`` under ``edits.GateHeads`` with 0 for every head that goes. Heads are numbered anew
    from 0 in each layer; ``info["pruning"]["sites"]`` says which heads of the base model they were. A kv head goes when
    all query heads that read it have gone; see `interp.models.groups` for how groups of different sizes are laid out.
    A layer without heads adds its output bias, and has no site.

    Where transformers reads the length of its cache off a layer (the first of each kind of attention), and where a
    model's own code cannot run without heads, an emptied layer keeps one head whose output projection is zero; such
    heads are marked ``silent`` in ``info["pruning"]``.

    Args:
        model: any transformers model, or the project's own transformer. One that was pruned may be pruned again.
        keep: the heads that stay, by site name or by layer; a site that is not named keeps all. An empty collection
            removes every head of a layer.
        in_place: cut the module that was given (its hooked model is then of no more use); by default a copy of it.
        declarations: for attention modules that are not known.
        check: run both models on a small input and compare.

    Raises:
        UserError: heads that do not exist, no head left, a module whose projections are not known, quantised or shared
            weights, a norm over all heads at once, groups that the model's own code cannot have.
        PruningError: the pruned model differs from the gated one by more than rounding.
    """
    kept = kept_by_site(model, keep)
    attentions = attentions_of(model, kept, declarations)
    shared = slicing.shared_parameters(model.module)
    for site in _changed(model.sites, kept):
        slicing.check(attentions[site.name], kept[site.name], shared)
    example = _example(model) if check else {}
    expected = _gated(model, kept, example) if check else None
    silent = silent_sites(model, kept, attentions)
    module = model.module if in_place else _copy(model.module)
    cut_sites(module, model.sites, kept, silent, declarations)
    pruning = described(model, kept, silent, declarations)
    name = f"{pruning['base']['name']}, pruned"
    info = {**model.info, "name": name, "weights_sha256": pruned_sha256(pruning), "pruning": pruning}
    pruned = hook_again(module, model, info, declarations)
    if expected is not None:
        _compare(pruned, expected, example)
    return pruned


def attentions_of(
    model: HookedModel, kept: Kept, declarations: Sequence[Declaration] = ()
) -> dict[str, AttentionModule]:
    """How the sites' modules are laid out, by site.

    Raises:
        UserError: the model is of a kind that is not pruned, or the projections of a site that loses heads are unknown.
    """
    if not isinstance(model.module, PreTrainedModel) and not _is_own(model.module):
        raise UserError(
            f"{type(model.module).__name__} is a module of someone's own, whose code may count its heads anywhere: "
            "models of transformers and of interp.models.transformer are pruned; gate its heads instead "
            "(edits.GateHeads)"
        )
    by_path = {a.path: a for a in attention_modules(model.module, declarations, unknown="skip")}
    for site in _changed(model.sites, kept):
        if site.path not in by_path:
            site.weights()  # says why they are not known, and how to describe them
            raise UserError(f"the projections of {site.path} are not known: pass declarations=[Declaration(...)]")
    return {site.name: by_path[site.path] for site in model.sites if site.path in by_path}


def silent_sites(model: HookedModel, kept: Kept, attentions: Mapping[str, AttentionModule]) -> set[str]:
    """Of the sites that would lose every head, those where one stays, with its output projection set to zero."""
    emptied = [site for site in model.sites if not kept[site.name]]
    needed = {site.name for site in emptied if slicing.needs_a_head(attentions[site.name], site.source == "softmax")}
    if isinstance(model.module, PreTrainedModel):
        needed |= {site.name for site in emptied if site.name in _tells_length(model)}
    return needed


def cut_sites(
    module: Any, sites: Sequence[AttentionSite], kept: Kept, silent: Collection[str],
    declarations: Sequence[Declaration] = (),
) -> None:  # fmt: skip
    """Cut the modules at some sites of ``module``, which may be a copy of the model that the sites are of."""
    by_path = {a.path: a for a in attention_modules(module, declarations, unknown="skip")}
    for site in _changed(sites, kept):
        slicing.cut(by_path[site.path], (0,) if site.name in silent else kept[site.name])
        if site.name in silent:
            with torch.no_grad():
                by_path[site.path].projections["output"].weight.zero_()  # type: ignore[operator]


def hook_again(
    module: Any, like: HookedModel, info: Mapping[str, Any], declarations: Sequence[Declaration] = ()
) -> HookedModel:
    """A hooked model of a module that was cut."""
    info = {name: value for name, value in info.items() if name not in _FOUND_ANEW}
    if isinstance(module, PreTrainedModel):
        return hook(
            module, tokenizer=like.tokenizer, info=dict(info), output_head_loaded=like.output_head_loaded,
            declarations=declarations,
        )  # fmt: skip
    from interp.models.transformer import hook_transformer

    return hook_transformer(module, tokenizer=like.tokenizer, info=info)


_FOUND_ANEW = ("verify", "bridge", "emptied", "not_reached", "model_built_patterns", "model_built_pairs")


def described(
    model: HookedModel, kept: Kept, silent: Collection[str], declarations: Sequence[Declaration] = ()
) -> dict[str, Any]:
    """What ``info["pruning"]`` says of a model that is cut: relative to its base, however often it was pruned."""
    before = model.info.get("pruning")
    base = before["base"] if before else {name: model.info.get(name) for name in _BASE}
    sites: dict[str, dict[str, Any]] = {}
    if before:
        sites |= {name: dict(site) for name, site in before["sites"].items()}
    for site in model.sites:
        was = sites.get(site.name)
        numbers = was["kept"] if was else list(range(site.n_heads))
        still_silent = bool(was and was["silent"] and kept[site.name])
        sites[site.name] = {
            "path": site.path,
            "n_heads": was["n_heads"] if was else site.n_heads,
            "n_kv_heads": was["n_kv_heads"] if was else site.n_kv_heads,
            "d_head": site.d_head,
            "kept": [numbers[0]] if site.name in silent else [numbers[head] for head in kept[site.name]],
            "silent": site.name in silent or still_silent,
        }
    return {
        "base": base, "sites": sites, "history": [*(before["history"] if before else [])],
        "declarations": [asdict(declared) for declared in declarations] or (before["declarations"] if before else []),
    }  # fmt: skip


_BASE = ("name", "revision", "weights_sha256", "quantisation", "source", "architecture")


def numbers_in_base(model: HookedModel, site: AttentionSite) -> list[int]:
    """Which heads of the base the heads of a site are: themselves, where the model was not pruned."""
    pruning = model.info.get("pruning")
    return list(range(site.n_heads)) if pruning is None else list(pruning["sites"][site.name]["kept"])


def pruned_sha256(pruning: Mapping[str, Any]) -> str:
    """Stands for the weights of a pruned model that was not saved: a hash of the base's and of what was kept."""
    return hashlib.sha256(json.dumps([pruning["base"], pruning["sites"]], sort_keys=True).encode()).hexdigest()


# Parts ------------------------------------------------------------------------------------------------------------


def _changed(sites: Sequence[AttentionSite], kept: Kept) -> list[AttentionSite]:
    return [site for site in sites if len(kept[site.name]) < site.n_heads]


def _tells_length(model: HookedModel) -> set[str]:
    """Sites from whose keys transformers tells how long a cache is: the first causal one of each kind of attention."""
    text = model.config.get_text_config()
    kinds = getattr(text, "layer_types", None) or []
    first: dict[Any, str] = {}
    for site in model.sites:
        causal = site.kind == "self" and site.stack != "encoder" and getattr(site.module, "is_causal", True)
        if causal:
            first.setdefault(kinds[site.layer] if site.layer < len(kinds) else None, site.name)
    return set(first.values())


def _is_own(module: Any) -> bool:
    from interp.models.transformer import Transformer

    return isinstance(module, Transformer)


def _copy(module: Any) -> Any:
    if any(parameter.device.type == "meta" for parameter in module.parameters()):
        raise UserError("the model is offloaded: load it without a disk or CPU offload to prune it")
    return copy.deepcopy(module)


# Is it the same? --------------------------------------------------------------------------------------------------


def _example(model: HookedModel) -> dict[str, Any]:
    example = model.inputs.example(model)
    if "tokens" in example:
        example["valid"] = torch.ones_like(example["tokens"], dtype=torch.bool)
        example["valid"][1, -3:] = False
    return example


@torch.no_grad()
def _gated(model: HookedModel, kept: Kept, example: Mapping[str, Any]) -> Tensor:
    gone = {
        (site.name, head): 0.0 for site in model.sites for head in range(site.n_heads) if head not in kept[site.name]
    }
    with model.seam.aside():
        return _output(model.run(**example, edits=[GateHeads(gone)] if gone else []).output)


@torch.no_grad()
def _compare(pruned: HookedModel, expected: Tensor, example: Mapping[str, Any]) -> None:
    try:
        with pruned.seam.aside():
            output = _output(pruned.run(**example).output)
    except (RuntimeError, ValueError) as error:
        raise PruningError(
            f"{type(pruned.module).__name__} does not run with fewer heads ({error}): its own code counts them "
            "somewhere; gate its heads instead (edits.GateHeads)"
        ) from error
    difference = float((output - expected).abs().max())
    tolerance = _RELATIVE[output.dtype] * float(expected.abs().max())
    if not difference <= tolerance:
        raise PruningError(
            f"pruned, {pruned.info.get('name')} differs from itself with the same heads gated by {difference:.3g}, "
            f"more than rounding ({tolerance:.3g}): its own code counts heads somewhere; gate them instead"
        )


_RELATIVE = {torch.float64: 1e-6, torch.float32: 1e-3, torch.float16: 0.05, torch.bfloat16: 0.2}
"""Of the largest output: far above rounding (norms are computed in float32 in float64 models too), far below what a
head in the wrong place does."""


def _output(output: Any) -> Tensor:
    for name in ("logits", "last_hidden_state"):
        if getattr(output, name, None) is not None:
            return getattr(output, name)
    return output if isinstance(output, Tensor) else output[0]
