"""A model by name, folder or ``.gguf`` file: found, checked, and loaded with transformers.

`locate` reads headers and hashes, no weights, so a wrong name or a damaged file is refused within a moment;
`load_transformers` loads what it found.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from interp.errors import UserError
from interp.models.bundled import BUNDLED
from interp.models.conversion import convert
from interp.models.files import cache_folder, read_json, weight_files, weights_sha256
from interp.models.hub import download, quiet_bars

if TYPE_CHECKING:
    import torch
    from transformers import PretrainedConfig, PreTrainedModel, PreTrainedTokenizerBase


_TOKENIZER_FILES = ("tokenizer.json", "tokenizer_config.json", "vocab.txt", "vocab.json", "*.model")


@dataclass(frozen=True)
class Checkpoint:
    """A model's files.

    Attributes:
        path: the folder that transformers loads.
        name: what it was asked for by.
        revision: the commit of a hub model, else None.
        weights_sha256: hash of the file that was given: the ``.gguf`` file, or the weights of the folder
            (`files.weights_sha256`).
        quantisation: how the weights were quantised ("Q4_1", "gptq 4 bit"), None where they are as trained. Quantised
            weights are not quite those of the model's name: say so beside every number.
        source: where it came from, in words.
    """

    path: Path
    name: str
    revision: str | None
    weights_sha256: str
    quantisation: str | None
    source: str


class Loaded(NamedTuple):
    """A model as it was loaded.

    Attributes:
        model: in eval mode.
        tokenizer: None where the checkpoint has none.
        output_head_loaded: the model has an output head and its weights were in the checkpoint. Where not, its logits
            (if it has any) come from random weights, and a loss means nothing.
        missing: names of the parameters that were not in the checkpoint and are random.
        unread: names of what the checkpoint holds and the model does not use, such as layers beyond its config's.
    """

    model: PreTrainedModel
    tokenizer: PreTrainedTokenizerBase | None
    output_head_loaded: bool
    missing: tuple[str, ...]
    unread: tuple[str, ...] = ()


def locate(name: str, cache_dir: str | Path | None = None, revision: str | None = None) -> Checkpoint:
    """Find a model, check that its files are whole, and hash its weights.

    Args:
        name: a bundled model (`bundled.BUNDLED`), a folder, a ``.gguf`` file, or a hub name such as
            ``EleutherAI/pythia-70m``. A ``.gguf`` file is converted once (`conversion.convert`).
        cache_dir: for conversions and hashes; `files.cache_folder` when None.
        revision: branch, tag or commit of a hub model.

    Raises:
        UserError: there is no such model (the message has near names), the folder is no model (it says what is
            missing), a file is damaged or not the one that was published, or the hub refuses it (it says what to do).
    """
    cache = cache_folder(cache_dir)
    package = BUNDLED.get(name.lower())
    place = package.place() if package else Path(name).expanduser()
    if revision is not None and (package or place.exists()):
        raise UserError(f"a revision is for hub models; {name} is on this machine, and {revision!r} was asked for")
    if place.is_file():
        found = _from_file(place, name, cache)
    elif place.is_dir():
        found = _from_folder(place, name, None, f"folder {place.resolve()}", cache)
    elif _is_hub_name(name):
        folder = download(name, revision, _near(name))
        found = _from_folder(folder, name, folder.name, f"hub {name}", cache)
    else:
        raise UserError(f"there is no model {name!r}: no such folder or .gguf file. {_near(name)}")
    return replace(found, source=package.check(place, found.weights_sha256)) if package else found


def load_transformers(
    checkpoint: Checkpoint,
    *,
    device: str | torch.device | None = None,
    dtype: str | torch.dtype = "auto",
    trust_remote_code: bool = False,
    attn_implementation: str | None = None,
    model_class: Any = None,
    **from_pretrained: Any,
) -> Loaded:
    """Load a checkpoint with transformers.

    The class is the one that the checkpoint was saved from (``config.architectures``), so a checkpoint without an
    output head gets none; ``…ForPreTraining`` becomes the masked language model of its kind.

    Args:
        checkpoint: from `locate`.
        device: where to put the model; leave out with ``device_map``.
        dtype: of the weights; "auto" is what they were saved in.
        trust_remote_code: run code from the checkpoint's folder. Off: a model that needs it is refused.
        attn_implementation: transformers' name of an attention function.
        model_class: a transformers class instead of the one that fits.
        **from_pretrained: passed on, ``device_map`` among them.

    Raises:
        UserError: the checkpoint wants to run code, is of an unknown kind, lacks weights that are no output head, holds
            NaN or infinity (the parameter is named), or the device does not exist.
    """
    target = _device(device)
    config = _config(checkpoint, trust_remote_code)
    kind = model_class or _model_class(config, checkpoint.name)
    model, info = _from_pretrained(
        kind,
        checkpoint,
        dtype=dtype,
        trust_remote_code=trust_remote_code,
        **({"attn_implementation": attn_implementation} if attn_implementation else {}),
        **from_pretrained,
    )
    missing = tuple(sorted(info["missing_keys"]))
    head_missing = _check_missing(model, missing, checkpoint)
    check_finite(model)
    if target is not None and "device_map" not in from_pretrained:
        model.to(target)
    model.eval()
    has_head = model.get_output_embeddings() is not None or model.base_model is not model
    unread = tuple(sorted(info["unexpected_keys"]))
    return Loaded(model, _tokenizer(checkpoint, trust_remote_code), has_head and not head_missing, missing, unread)


def check_finite(model: torch.nn.Module) -> None:
    """Refuse weights with NaN or infinity.

    Raises:
        UserError: a parameter holds one; it is named.
    """
    import torch

    for name, parameter in model.named_parameters():
        if parameter.device.type == "meta" or not parameter.is_floating_point():
            continue
        # eight-bit floats have no isfinite
        values = parameter.detach() if parameter.element_size() > 1 else parameter.detach().float()
        bad = (~torch.isfinite(values)).sum().item()
        if bad:
            raise UserError(f"{name} holds {bad:,} NaN or infinite values of {parameter.numel():,}: broken weights")


def _from_file(file: Path, name: str, cache: Path) -> Checkpoint:
    if file.suffix.lower() != ".gguf":
        raise UserError(f"{file} is a file; a model is a folder, a .gguf file or a name. Its folder: {file.parent}")
    folder, sha256, quantisation = convert(file, cache)
    return Checkpoint(folder, name, None, sha256, quantisation, f"file {file.name}")


def _from_folder(folder: Path, name: str, revision: str | None, source: str, cache: Path) -> Checkpoint:
    files = weight_files(folder)
    quantised = read_json(folder / "config.json").get("quantization_config") or {}
    words = [quantised.get("quant_method", "quantised"), f"{quantised['bits']} bit" if "bits" in quantised else ""]
    quantisation = " ".join(filter(None, words)) if quantised else None
    return Checkpoint(folder, name, revision, weights_sha256(files, cache), quantisation, source)


def _is_hub_name(name: str) -> bool:
    """``gpt2`` or ``organisation/model``, as against a path."""
    return bool(re.fullmatch(r"[\w-][\w.-]*(/[\w-][\w.-]*)?", name)) and not name.lower().endswith(".gguf")


def _near(name: str) -> str:
    """Names like it, among bundled models and what lies beside the path."""
    path = Path(name).expanduser()
    beside = sorted(path.parent.iterdir()) if path.parent.is_dir() else []
    local = [str(item) for item in beside if item.suffix == ".gguf" or (item / "config.json").is_file()]
    near = difflib.get_close_matches(name, [*BUNDLED, *local], n=3, cutoff=0.5)
    return f"Did you mean {' or '.join(near)}?" if near else f"Bundled models: {', '.join(BUNDLED)}."


def _device(device: str | torch.device | None) -> torch.device | None:
    import torch

    if device is None:
        return None
    try:
        target = torch.device(device)
    except RuntimeError as error:
        raise UserError(f"there is no device {str(device)!r}: use cpu, cuda, cuda:1 or mps") from error
    if target.type == "cuda" and (target.index or 0) >= torch.cuda.device_count():
        raise UserError(f"device {target} was asked for, but torch sees {torch.cuda.device_count()} GPUs here: use cpu")
    if target.type == "mps" and not torch.backends.mps.is_available():
        raise UserError("device mps was asked for, but torch sees none here: use cpu")
    return target


def _config(checkpoint: Checkpoint, trust_remote_code: bool) -> PretrainedConfig:
    from transformers import AutoConfig, __version__
    from transformers.models.auto.configuration_auto import CONFIG_MAPPING

    stated = read_json(checkpoint.path / "config.json")
    kind = stated.get("model_type")
    if kind not in CONFIG_MAPPING and not (trust_remote_code and "auto_map" in stated):
        if "auto_map" in stated:
            raise UserError(
                f"{checkpoint.name} brings its own code ({stated['auto_map']}), which would run on this machine: "
                "read it, and allow it with trust_remote_code=True (--trust-remote-code)"
            )
        raise UserError(f"{checkpoint.name} is of the kind {kind!r}, which transformers {__version__} does not know")
    try:
        return AutoConfig.from_pretrained(checkpoint.path, trust_remote_code=trust_remote_code)
    except (ValueError, TypeError, OSError, ImportError) as error:
        raise UserError(f"{checkpoint.path / 'config.json'} cannot be used: {error}") from error


def _model_class(config: PretrainedConfig, name: str) -> Any:
    """The transformers class of a checkpoint."""
    import transformers

    saved_from = (getattr(config, "architectures", None) or [""])[0]
    if saved_from.endswith("ForPreTraining") and type(config) in transformers.MODEL_FOR_MASKED_LM_MAPPING:
        return transformers.AutoModelForMaskedLM
    if hasattr(transformers, saved_from or " "):
        return getattr(transformers, saved_from)
    own = getattr(config, "auto_map", None) or {}
    for auto in ("AutoModelForCausalLM", "AutoModelForSeq2SeqLM", "AutoModelForMaskedLM", "AutoModel"):
        if auto in own or (not own and type(config) in getattr(transformers, auto)._model_mapping):
            return getattr(transformers, auto)
    raise UserError(f"{name} was saved from {saved_from or 'an unnamed class'}, which transformers cannot load")


def _from_pretrained(kind: Any, checkpoint: Checkpoint, **options: Any) -> tuple[Any, dict[str, Any]]:
    """``from_pretrained`` with its errors in one line; pickles are read by the loader that runs no code."""
    import pickle

    import torch

    try:
        with quiet_bars():
            return kind.from_pretrained(checkpoint.path, output_loading_info=True, weights_only=True, **options)
    except torch.OutOfMemoryError:
        raise
    except (OSError, ValueError, RuntimeError, ImportError, pickle.UnpicklingError) as error:
        raise UserError(f"transformers cannot load {checkpoint.name}: {error}") from error


def _check_missing(model: PreTrainedModel, missing: Sequence[str], checkpoint: Checkpoint) -> list[str]:
    """Of the parameters that were not in the checkpoint, those of the output head; any other is an error."""
    head = model.get_output_embeddings()
    of_head = {name for name, module in model.named_modules() if head is not None and module is head}
    inside = "" if model.base_model is model else f"{model.base_model_prefix}."

    def in_head(name: str) -> bool:
        return name.rpartition(".")[0] in of_head or bool(inside and not name.startswith(inside))

    # a pooler serves sentence tasks only, and many checkpoints leave it out
    lost = [name for name in missing if not in_head(name) and "pooler" not in name]
    if lost:
        raise UserError(
            f"{checkpoint.name} lacks {len(lost)} of the parameters of {type(model).__name__} "
            f"({', '.join(lost[:3])}, …): they would be random, and so would every number"
        )
    return [name for name in missing if in_head(name)]


def _tokenizer(checkpoint: Checkpoint, trust_remote_code: bool) -> PreTrainedTokenizerBase | None:
    from transformers import AutoTokenizer

    if not any(next(checkpoint.path.glob(pattern), None) for pattern in _TOKENIZER_FILES):
        return None
    try:
        return AutoTokenizer.from_pretrained(checkpoint.path, trust_remote_code=trust_remote_code)
    except (OSError, ValueError, ImportError) as error:
        raise UserError(f"the tokenizer of {checkpoint.name} cannot be loaded: {error}") from error
