"""A transformer as a folder: ``config.json`` and ``model.safetensors``."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import nn

from interp.errors import UserError
from interp.models.checkpoints import _device, check_finite
from interp.models.files import SAFETENSORS, read_json
from interp.models.transformer.config import TransformerConfig
from interp.models.transformer.model import Transformer

__all__ = ["MODEL_TYPE", "is_transformer", "load_transformer", "save_transformer", "save_weights"]

MODEL_TYPE = "interp-transformer"
"""What ``model_type`` in ``config.json`` says of such a folder."""


def save_transformer(model: Transformer, folder: str | Path, *, stored: torch.dtype | None = None) -> Path:
    """Write config and weights into a folder, which is made if need be.

    Args:
        stored: dtype of the weights in the file, such as ``torch.float16``; by default their own. The model is loaded
            in the dtype that it had, so this costs digits and nothing else.
    """
    folder = Path(folder)
    folder.mkdir(parents=True, exist_ok=True)
    dtype = str(next(model.parameters()).dtype).removeprefix("torch.")
    described = {"model_type": MODEL_TYPE, "dtype": dtype, **model.config.to_dict()}
    write_whole(folder / "config.json", f"{json.dumps(described, indent=2)}\n".encode())
    save_weights(model, folder / SAFETENSORS, stored)
    return folder


def save_weights(model: nn.Module, file: Path, stored: torch.dtype | None = None) -> None:
    """Write a module's parameters and buffers into a safetensors file; a tensor under two names is written once.

    Raises:
        UserError: a weight is too large for the dtype to be stored in.
    """
    tensors, written = {}, set()
    for name, tensor in model.state_dict().items():
        place = (tensor.data_ptr(), tensor.shape)
        if place in written and tensor.numel():
            continue
        written.add(place)
        kept = tensor.detach().cpu().contiguous()
        tensors[name] = kept.to(stored) if stored is not None and kept.is_floating_point() else kept
        if not torch.isfinite(tensors[name]).equal(torch.isfinite(kept)):
            raise UserError(f"{name} holds values that {stored} cannot: store it in bfloat16 or float32")
    part = file.with_name(f"{file.name}.{os.getpid()}.part")
    save_file(tensors, part)
    part.replace(file)


def is_transformer(folder: str | Path) -> bool:
    """Whether a folder holds a transformer saved by :func:`save_transformer`."""
    file = Path(folder) / "config.json"
    return file.is_file() and read_json(file).get("model_type") == MODEL_TYPE


def load_transformer(
    folder: str | Path, *, device: str | torch.device | None = None, dtype: str | torch.dtype = "auto"
) -> Transformer:
    """Load what :func:`save_transformer` wrote, in eval mode.

    Args:
        dtype: of the weights; "auto" is what the model had when it was saved.

    Raises:
        UserError: the folder holds no such model, or weights of other names or shapes, or NaN.
    """
    folder = Path(folder)
    if not is_transformer(folder):
        raise UserError(f"{folder} holds no transformer that was saved here (config.json with model_type {MODEL_TYPE})")
    described = read_json(folder / "config.json")
    saved_in = described.pop("dtype", "float32")
    del described["model_type"]
    model = Transformer(TransformerConfig.from_dict(described))
    model.to(device=_device(device), dtype=_dtype(saved_in if dtype == "auto" else dtype))
    _fill(model, folder / SAFETENSORS)
    check_finite(model)
    return model.eval()


def write_whole(file: Path, content: bytes) -> None:
    """Write a file beside its place and rename it, so that it is never half there."""
    part = file.with_name(f"{file.name}.{os.getpid()}.part")
    part.write_bytes(content)
    part.replace(file)


def _fill(model: Transformer, file: Path) -> None:
    try:
        tensors = load_file(file)
    except (OSError, SafetensorError) as error:
        raise UserError(f"{file} cannot be read ({error}): save the model again") from error
    if model.config.tied_embeddings:
        tensors["unembed.weight"] = tensors["embed.weight"]
    try:
        model.load_state_dict(tensors)
    except RuntimeError as error:
        raise UserError(f"{file} does not fit the config.json beside it: {error}") from error


def _dtype(name: Any) -> torch.dtype:
    dtype = getattr(torch, name, None) if isinstance(name, str) else name
    if not isinstance(dtype, torch.dtype) or not dtype.is_floating_point:
        raise UserError(f"dtype must be float32, float64, float16, bfloat16 or auto; got {name!r}")
    return dtype
