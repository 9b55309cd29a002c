"""A classifier as a folder: ``config.json`` (sizes, words, labels) and ``model.safetensors``."""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file

from interp.errors import UserError
from interp.models.classifiers.classifier import AttentionClassifier
from interp.models.classifiers.config import ClassifierConfig
from interp.models.files import SAFETENSORS, read_json
from interp.models.transformer.storage import save_weights, write_whole

MODEL_TYPE = "interp-attention-classifier"


class Saved(NamedTuple):
    """A classifier from a folder, in eval mode; the words and labels that its numbers stand for, and more."""

    model: AttentionClassifier
    words: tuple[str, ...]
    labels: tuple[str, ...]
    about: dict[str, Any]


def save_classifier(
    model: AttentionClassifier,
    folder: str | Path,
    words: Sequence[str] = (),
    labels: Sequence[str] = (),
    about: Mapping[str, Any] | None = None,
) -> Path:
    """Write a classifier into a folder, made if need be; the config comes last, so that it is never half there."""
    folder = Path(folder)
    folder.mkdir(parents=True, exist_ok=True)
    save_weights(model, folder / SAFETENSORS)
    described = {
        "model_type": MODEL_TYPE, **model.config.to_dict(), "words": list(words), "labels": list(labels),
        "about": dict(about or {}),
    }  # fmt: skip
    write_whole(folder / "config.json", f"{json.dumps(described, indent=1, ensure_ascii=False)}\n".encode())
    return folder


def load_classifier(folder: str | Path, device: torch.device | str = "cpu") -> Saved:
    """Load what `save_classifier` wrote.

    Raises:
        UserError: there is no such classifier, or its weights do not fit.
    """
    folder = Path(folder)
    file = folder / "config.json"
    described = read_json(file) if file.is_file() else {}
    if described.pop("model_type", None) != MODEL_TYPE:
        raise UserError(f"{folder} holds no classifier that was saved here (config.json with model_type {MODEL_TYPE})")
    words, labels, about = (described.pop(name) for name in ("words", "labels", "about"))
    try:
        model = AttentionClassifier(ClassifierConfig(**described))
        model.load_state_dict(load_file(folder / SAFETENSORS))
    except (OSError, SafetensorError, RuntimeError, TypeError, ValueError) as error:
        raise UserError(f"{folder} does not hold the weights of its config.json: {error}") from error
    return Saved(model.to(device).eval(), tuple(words), tuple(labels), about)
