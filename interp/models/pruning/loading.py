"""A pruned model from a folder, and the model that it was cut from."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file

from interp.errors import UserError
from interp.models.checkpoints import _device, check_finite, load_transformers, locate
from interp.models.files import SAFETENSORS, cache_folder, file_sha256, read_json
from interp.models.hooked import HookedModel
from interp.models.huggingface import hook
from interp.models.projections import Declaration, attention_modules
from interp.models.pruned_folder import DESCRIPTION, read_description
from interp.models.pruning import slicing
from interp.models.pruning.cutting import hook_again, prune
from interp.models.transformer.storage import MODEL_TYPE, _dtype

__all__ = ["check_base", "load_base", "load_pruned"]


def load_pruned(
    folder: Path, name: str, *, device: Any, dtype: Any, trust_remote_code: bool, tokenizer: Any,
    from_pretrained: Mapping[str, Any],
) -> HookedModel:  # fmt: skip
    """What `save_pruned` saved, by its layout.

    Raises:
        UserError: the folder is damaged, its weights are not those that were saved, or its base does not match.
    """
    described = read_description(folder)
    if described["layout"] == "plain":
        return _load_plain(folder, described, name, device, dtype, trust_remote_code, tokenizer, from_pretrained)
    if from_pretrained:
        raise UserError(
            f"{', '.join(from_pretrained)} are for plain checkpoints; {name} was pruned into layers of its own"
        )
    if described["layout"] == "heads":
        return _cut_again(folder, described, device=device, dtype=dtype, trust_remote_code=trust_remote_code)
    return _load_cut(folder, described, name, device=device, dtype=dtype, tokenizer=tokenizer)


def load_base(folder: str | Path, **options: Any) -> HookedModel:
    """The model that a pruned folder was cut from; options are those of `interp.load`.

    Raises:
        UserError: the base cannot be loaded by its name, or its weights are not those that were pruned.
    """
    from interp.models.loading import load

    described = read_description(Path(folder))
    base = described["base"]
    if base["source"] == "given in Python":
        raise UserError(f"{folder} was cut from a model that was given in Python, which cannot be loaded by a name")
    model = load(base["name"], revision=base["revision"], **options)
    check_base(described, model)
    return model


def check_base(described: Mapping[str, Any], model: HookedModel) -> None:
    """Whether a model is the base of a pruned one, or was pruned from that base itself.

    Raises:
        UserError: the base's weights have another hash.
    """
    of_model = model.info.get("pruning", {}).get("base", model.info)
    wanted, found = described["base"]["weights_sha256"], of_model.get("weights_sha256")
    if wanted != found:
        raise UserError(
            f"the base does not match: these heads were cut out of {described['base']['name']} with weights of SHA-256 "
            f"{str(wanted)[:12]}…, {model.info.get('name')} has {str(found)[:12]}…: load the model that was pruned"
        )


# Layouts ----------------------------------------------------------------------------------------------------------


def _load_cut(
    folder: Path, described: Mapping[str, Any], name: str, *, device: Any, dtype: Any, tokenizer: Any
) -> HookedModel:
    """The model in a folder of layout ``cut``.

    Raises:
        UserError: weights that are not those that were saved, or that do not fit; a class that is not known here.
    """
    file = folder / SAFETENSORS
    sha256 = file_sha256(file, cache_folder())
    if sha256 != described["weights_sha256"]:
        raise UserError(_OTHER_WEIGHTS.format(folder=folder))
    declarations = [Declaration(**{**d, "classes": tuple(d["classes"])}) for d in described["declarations"]]
    tokenizer = tokenizer or _tokenizer(folder)
    module = _skeleton(folder, described)
    _cut_skeleton(module, described, declarations)
    _fill(module, file)
    check_finite(module)
    module.to(device=_device(device), dtype=None if dtype == "auto" else _dtype(dtype)).eval()
    like = HookedModel(module, (), tokenizer=tokenizer, output_head_loaded=described["output_head_loaded"])
    return hook_again(module, like, _info(described, name, sha256), declarations)


def _info(described: Mapping[str, Any], name: str, sha256: str) -> dict[str, Any]:
    """``info`` of a pruned model that was loaded from a folder."""
    base = described["base"]
    kept = {key: described[key] for key in ("base", "sites", "history", "declarations")}
    return {
        "name": name, "revision": None, "weights_sha256": sha256, "quantisation": base["quantisation"],
        "source": f"folder {name}, cut from {base['name']}", "pruning": kept,
    }  # fmt: skip


def _load_plain(
    folder: Path, described: Mapping[str, Any], name: str, device: Any, dtype: Any, trust_remote_code: bool,
    tokenizer: Any, from_pretrained: Mapping[str, Any],
) -> HookedModel:  # fmt: skip
    checkpoint = locate(name)
    if checkpoint.weights_sha256 != described["weights_sha256"]:
        raise UserError(_OTHER_WEIGHTS.format(folder=folder))
    loaded = load_transformers(
        checkpoint, device=device, dtype=dtype, trust_remote_code=trust_remote_code, **from_pretrained
    )
    info = _info(described, name, checkpoint.weights_sha256)
    return hook(
        loaded.model, tokenizer=tokenizer or loaded.tokenizer, info=info,
        output_head_loaded=bool(described["output_head_loaded"]),
    )  # fmt: skip


def _cut_again(folder: Path, described: Mapping[str, Any], **options: Any) -> HookedModel:
    """The base, with the same heads cut out of it again."""
    base = load_base(folder, **options)
    keep = {name: site["kept"] for name, site in described["sites"].items()}
    silent = [name for name, site in described["sites"].items() if site["silent"]]
    return prune(base, keep | dict.fromkeys(silent, ()), in_place=True, check=False)


_OTHER_WEIGHTS = "the weights in {folder} are not those that were saved with " + DESCRIPTION + ": prune the base again"


def _tokenizer(folder: Path) -> Any:
    from transformers import AutoTokenizer

    if not (folder / "tokenizer_config.json").is_file():
        return None
    return AutoTokenizer.from_pretrained(folder)


# Making it again --------------------------------------------------------------------------------------------------


def _skeleton(folder: Path, described: Mapping[str, Any]) -> Any:
    """The base with weights that are still to be filled in."""
    config = read_json(folder / "config.json")
    dtype = getattr(torch, described["dtype"])
    if config.get("model_type") == MODEL_TYPE:
        from interp.models.transformer import Transformer, TransformerConfig

        fields = {name: value for name, value in config.items() if name not in ("model_type", "dtype")}
        return Transformer(TransformerConfig.from_dict(fields)).to(dtype)
    import transformers
    from transformers.initialization import no_init_weights

    kind = getattr(transformers, described["class"], None)
    if kind is None:
        raise UserError(
            f"{folder} was saved from {described['class']}, which transformers {transformers.__version__} lacks"
        )
    loaded = transformers.AutoConfig.from_pretrained(folder)
    with no_init_weights(), torch.random.fork_rng(devices=[]):
        module = kind._from_config(loaded, dtype=dtype)
    module.tie_weights()
    if (folder / "generation_config.json").is_file():
        module.generation_config = transformers.GenerationConfig.from_pretrained(folder)
    return module


def _cut_skeleton(module: Any, described: Mapping[str, Any], declarations: Sequence[Declaration]) -> None:
    by_path = {a.path: a for a in attention_modules(module, declarations, unknown="skip")}
    for name, site in described["sites"].items():
        if site["path"] not in by_path:
            raise UserError(f"{name} is not where {DESCRIPTION} says it is, at {site['path']}: another transformers?")
        if len(site["kept"]) < site["n_heads"]:
            slicing.cut(by_path[site["path"]], site["kept"])


def _fill(module: Any, file: Path) -> None:
    """Put the saved weights in; tensors under two names were saved under one."""
    try:
        saved = load_file(file)
    except (OSError, SafetensorError) as error:
        raise UserError(f"{file} cannot be read ({error}): prune the base again") from error
    own = module.state_dict(keep_vars=True)
    held = {(tensor.data_ptr(), tensor.shape): name for name, tensor in own.items() if name in saved}
    lost = [name for name, tensor in own.items() if (tensor.data_ptr(), tensor.shape) not in held and tensor.numel()]
    wrong = [name for name, tensor in saved.items() if name not in own or own[name].shape != tensor.shape]
    if lost or wrong:
        raise UserError(f"{file} does not fit the model: {', '.join([*lost, *wrong][:3])} (saved by another version?)")
    module.load_state_dict(saved, strict=False)
