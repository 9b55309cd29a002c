"""Pruned models as plain checkpoints, which unmodified transformers loads: layers and groups alike.

A config of transformers has one number of heads for all layers, so every layer must keep as many query heads and as
many kv heads as any other, and every kv head the same number of query heads. The config must also say how wide a head
is: where it has only the hidden size (GPT-2, BERT), fewer heads would be read as wider ones. Some configs refuse
certain numbers of heads, such as those that the hidden size is no multiple of.
"""

from __future__ import annotations

import copy
from collections.abc import Sequence
from itertools import product
from pathlib import Path
from typing import Any, NamedTuple

import torch
from huggingface_hub.errors import StrictDataclassError
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from interp.errors import UserError
from interp.models import groups
from interp.models.files import weight_files, weights_sha256
from interp.models.hooked import HookedModel
from interp.models.projections import attention_modules
from interp.models.pruning.storage import described_for_saving, write_description, written_whole

__all__ = ["Counts", "make_plain", "possible_counts", "save_plain", "shares_position_bias"]


class Counts(NamedTuple):
    """Heads of every layer of a uniform model."""

    n_heads: int
    n_kv_heads: int


def possible_counts(model: HookedModel) -> list[Counts]:
    """The numbers of heads with which a plain checkpoint of this model's architecture can be made, ascending.

    Raises:
        UserError: there can be none; it says why.
    """
    whole = _counts(model)
    accepted = _accepted(model, whole)
    smaller = [counts for counts in accepted if counts != whole]
    d_head = model.sites[0].d_head
    if not smaller or not _fits(model, smaller[0]):
        raise UserError(
            f"{_kind(model)} cannot be pruned into a plain checkpoint: its config has no width of a head, which is the "
            f"hidden size over the number of heads, so that fewer heads would be read as wider ones than {d_head}. "
            "Leave --uniform out: the model is then saved for interp.load"
        )
    return accepted


def shares_position_bias(model: HookedModel) -> bool:
    """Whether the layers of a stack share a bias by head (T5), so that all of them must keep the same heads."""
    return any(hasattr(site.module, "has_relative_attention_bias") for site in model.sites)


def make_plain(model: HookedModel) -> None:
    """Give a pruned model, in place, the config that says how many heads it has.

    Raises:
        UserError: its layers or groups are not alike, or its architecture has no plain checkpoint of this size.
    """
    counts = _counts(model)
    before = model.info["pruning"]["sites"]
    first = next(iter(before.values()))
    if any(site["silent"] or not site["kept"] for site in before.values()):
        raise UserError("a plain checkpoint cannot have layers without heads: keep as many in each")
    possible = _accepted(model, Counts(first["n_heads"], first["n_kv_heads"]))
    config = _config(model, counts)
    if config is None:
        raise UserError(f"{_kind(model)} cannot have {_said(counts)} in each layer; {possible_in_words(possible)}")
    if not _fits(model, counts):
        raise UserError(f"{_kind(model)} with {_said(counts)} in its config would have heads of another width")
    if shares_position_bias(model):
        _cut_position_bias(model)
    _take_over(model.module.config, config)


def save_plain(model: HookedModel, folder: str | Path) -> Path:
    """Save a pruned model as a plain checkpoint, with ``pruning.json`` beside it, whole or not at all.

    Raises:
        UserError: it cannot be one (`make_plain`), or the folder is there already.
    """
    folder = Path(folder)
    with written_whole(folder) as part:
        make_plain(model)
        module: Any = model.module
        module.save_pretrained(part)
        if isinstance(model.tokenizer, PreTrainedTokenizerBase):
            model.tokenizer.save_pretrained(part)
        described = described_for_saving(model, "plain")
        described["weights_sha256"] = weights_sha256(weight_files(part), None)
        write_description(part, described)
    return folder


def possible_in_words(possible: Sequence[Counts]) -> str:
    """For a message."""
    by_heads: dict[int, list[int]] = {}
    for counts in possible:
        by_heads.setdefault(counts.n_heads, []).append(counts.n_kv_heads)
    grouped = any(counts.n_heads != counts.n_kv_heads for counts in possible)
    parts = [f"{n} (over {' or '.join(map(str, kv))} kv heads)" if grouped else str(n) for n, kv in by_heads.items()]
    return f"possible are {', '.join(parts)}"


# Parts ------------------------------------------------------------------------------------------------------------


def _kind(model: HookedModel) -> str:
    return type(model.module).__name__


def _said(counts: Counts) -> str:
    return f"{counts.n_heads} heads over {counts.n_kv_heads} kv heads"


def _counts(model: HookedModel) -> Counts:
    """The numbers of heads of every layer.

    Raises:
        UserError: layers or groups differ, or the model is not of transformers.
    """
    if not isinstance(model.module, PreTrainedModel):
        raise UserError(f"{_kind(model)} is no model of transformers, so there is no plain checkpoint of it")
    if model.config.get_text_config() is not model.config:
        raise UserError(f"{_kind(model)} has a config within its config; plain checkpoints of such models are not made")
    counts = {Counts(site.n_heads, site.n_kv_heads) for site in model.sites}
    if len(counts) > 1 or model.info.get("emptied"):
        raise UserError(
            f"a plain checkpoint has one number of heads for all layers; here layers have "
            f"{' and '.join(sorted(map(_said, counts)))}{' and none' if model.info.get('emptied') else ''}"
        )
    if any(groups.kv_index(site.module) is not None for site in model.sites):
        raise UserError(
            "a plain checkpoint has groups of one size; here kv heads are read by different numbers of query heads"
        )
    return counts.pop()


def _accepted(model: HookedModel, whole: Counts) -> list[Counts]:
    """The numbers of heads, up to those of the whole model, that the config does not refuse."""
    group = whole.n_heads // whole.n_kv_heads
    candidates = (Counts(kv * size, kv) for kv, size in product(range(1, whole.n_kv_heads + 1), range(1, group + 1)))
    return [counts for counts in sorted(candidates) if _config(model, counts) is not None]


def _config(model: HookedModel, counts: Counts) -> Any:
    """The model's config with other numbers of heads; None where it refuses them."""
    config = model.config
    said, names = config.to_dict(), config.attribute_map
    heads, kv_heads, width = (names.get(n, n) for n in ("num_attention_heads", "num_key_value_heads", "head_dim"))
    if isinstance(getattr(type(config), width, None), property):
        return None  # worked out from the hidden size
    if kv_heads not in said and counts.n_heads != counts.n_kv_heads:
        return None
    said |= {heads: counts.n_heads, width: model.sites[0].d_head}
    said |= {kv_heads: counts.n_kv_heads} if kv_heads in said else {}
    try:
        return type(config).from_dict(said)
    except (ValueError, TypeError, StrictDataclassError):
        return None


def _fits(model: HookedModel, counts: Counts) -> bool:
    """Whether transformers makes, of a config with these numbers, attention of such sizes."""
    try:
        with torch.device("meta"):
            made = type(model.module)(_config(model, counts))  # type: ignore[call-arg]
        found = attention_modules(made)
    except (ValueError, UserError):
        return False
    wanted = (counts.n_heads, counts.n_kv_heads, model.sites[0].d_head)
    return bool(found) and all((a.n_heads, a.n_kv_heads, a.d_head) == wanted for a in found)


def _take_over(config: Any, other: Any) -> None:
    """Put the numbers of another config into one that the model's modules hold, too."""
    implementation = config._attn_implementation
    for name, value in vars(other).items():
        if name.startswith("_") or value is None:
            continue
        if getattr(config, name, None) != value:
            setattr(config, name, copy.deepcopy(value))
    config._attn_implementation_internal = implementation


def _cut_position_bias(model: HookedModel) -> None:
    """Let the bias that a stack shares hold the kept heads alone, which must be the same in all of its layers.

    Raises:
        UserError: they are not.
    """
    of_stack: dict[str, tuple[int, ...]] = {}
    for site in (site for site in model.sites if site.kind == "self"):
        numbers = groups.kept_heads(site.module)
        kept = tuple(range(site.n_heads)) if numbers is None else tuple(numbers.tolist())
        if of_stack.setdefault(site.stack, kept) != kept:
            raise UserError(
                f"the layers of the {site.stack or 'stack'} share one position bias by head, so that a plain "
                f"checkpoint must keep the same heads in all of them; {site.name} keeps {kept}, an earlier one "
                f"{of_stack[site.stack]}"
            )
    for site in model.sites:
        if getattr(site.module, "has_relative_attention_bias", False):
            bias: Any = site.module.relative_attention_bias
            bias.weight = torch.nn.Parameter(bias.weight.detach()[:, list(of_stack[site.stack])].clone())
            bias.embedding_dim = len(of_stack[site.stack])
        groups.mark(site.module, list(range(site.n_heads)), None)
        site.module.n_heads = site.n_heads  # type: ignore[assignment]
