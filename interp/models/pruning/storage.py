"""A pruned model as a folder: weights, the config of its base, and ``pruning.json``; written whole or not at all.

``pruning.json`` says what the model was cut from (``base``: name, revision, hash of the weights), which heads of the
base stay at every site (``sites``), and what was done to it (``history``). There are three layouts:

- ``cut``: ``model.safetensors`` holds the smaller weights; `interp.load` makes the model from the config, cuts it, and
  fills it. transformers alone refuses such a folder, because the weights are smaller than the config says;
- ``plain``: a checkpoint like any other, with the new numbers of heads in its config (`plain`);
- ``heads``: no weights; `interp.load` loads the base, whose weights must have the hash that was written down, and cuts.
"""

from __future__ import annotations

import contextlib
import json
import shutil
import tempfile
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from transformers import PreTrainedModel, PreTrainedTokenizerBase

from interp.errors import UserError
from interp.models.files import SAFETENSORS, weights_sha256
from interp.models.hooked import HookedModel
from interp.models.pruned_folder import DESCRIPTION, FORMAT
from interp.models.transformer.storage import MODEL_TYPE, save_weights
from interp.results.provenance import versions

__all__ = ["described_for_saving", "save_pruned", "write_description", "written_whole"]


def save_pruned(model: HookedModel, folder: str | Path, *, weights: bool = True) -> Path:
    """Save a pruned model, so that ``interp.load(folder)`` gives it again.

    Args:
        model: from `prune`.
        folder: a new one; the weights are first written beside it.
        weights: False saves which heads stay and nothing else, to be cut out of the base again.

    Raises:
        UserError: the folder is there already, the model was not pruned, or, without weights, its base cannot be loaded
            by name or its weights were trained since.
    """
    if "pruning" not in model.info:
        raise UserError(f"{model.info.get('name')} was not pruned: interp.models.pruning.prune() prunes it")
    folder = Path(folder)
    if not weights:
        _check_cut_again(model)
    with written_whole(folder) as part:
        described = described_for_saving(model, "cut" if weights else "heads")
        if weights:
            _save_config(model.module, part)
            save_weights(model.module, part / SAFETENSORS)
            described["weights_sha256"] = weights_sha256([part / SAFETENSORS], None)
        if weights and isinstance(model.tokenizer, PreTrainedTokenizerBase):
            model.tokenizer.save_pretrained(part)
        write_description(part, described)
    return folder


def described_for_saving(model: HookedModel, layout: str) -> dict[str, Any]:
    """What ``pruning.json`` says; the hash of the weights is still to be added."""
    return {
        "format": FORMAT,
        "layout": layout,
        **model.info["pruning"],
        "class": type(model.module).__name__,
        "dtype": str(model.dtype).removeprefix("torch."),
        "output_head_loaded": model.output_head_loaded,
        "weights_sha256": None,
        "versions": versions(),
    }


def write_description(folder: Path, described: Mapping[str, Any]) -> None:
    """Write ``pruning.json``."""
    (folder / DESCRIPTION).write_text(json.dumps(described, indent=1) + "\n", encoding="utf-8")


@contextlib.contextmanager
def written_whole(folder: Path) -> Iterator[Path]:
    """A temporary folder beside ``folder``, which takes its name when all is written, and goes away otherwise.

    Raises:
        UserError: there is something at ``folder``.
    """
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise UserError(f"{folder} is there already, and nothing is overwritten: choose another folder, or remove it")
    folder.parent.mkdir(parents=True, exist_ok=True)
    part = Path(tempfile.mkdtemp(prefix=f".{folder.name}.part-", dir=folder.parent))
    try:
        yield part
        part.chmod(0o755)
        part.rename(folder)  # an empty folder gives way
    finally:
        shutil.rmtree(part, ignore_errors=True)


# Parts ------------------------------------------------------------------------------------------------------------


def _check_cut_again(model: HookedModel) -> None:
    pruning = model.info["pruning"]
    if pruning["base"]["source"] == "given in Python":
        raise UserError("a model that was given in Python cannot be loaded by its name: save it with its weights")
    if any("recovery" in step for step in pruning["history"]):
        raise UserError("the weights were trained after pruning, and are no longer those of the base: save them too")


def _save_config(module: Any, folder: Path) -> None:
    if isinstance(module, PreTrainedModel):
        import transformers

        if not hasattr(transformers, type(module).__name__):
            raise UserError(
                f"{type(module).__name__} is no class of transformers (a checkpoint's own code?), so that it could not "
                "be made again from a folder: save which heads stay (weights=False)"
            )
        module.config.save_pretrained(folder)
        if module.can_generate() and module.generation_config is not None:
            module.generation_config.save_pretrained(folder)
        return
    text = json.dumps({"model_type": MODEL_TYPE, "dtype": str(next(module.parameters()).dtype).removeprefix("torch."),
                       **module.config.to_dict()}, indent=2)  # fmt: skip
    (folder / "config.json").write_text(f"{text}\n", encoding="utf-8")
