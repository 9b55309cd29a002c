"""What a module of one's own is run on, from a file: token ids, or numbers such as patches and time steps."""

from __future__ import annotations

import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from interp.errors import UserError

__all__ = ["described", "fitting", "read_example"]

_SEQUENCES = 4  # of an .npy file; they show where the attention is, and more would only take longer


def read_example(path: str | Path) -> Tensor | dict[str, Tensor]:
    """An input from a NumPy file.

    ``.npy``: the module's first argument, [sequence, position] of token ids or [sequence, …] of numbers; the first four
    sequences are taken. ``.npz``: all arguments by name, taken whole.

    Returns:
        Integers as int64, numbers as float32, truth values as bool.

    Raises:
        UserError: no such file, another kind of file, a damaged one, objects or text in it, no sequence, NaN or
            infinity, or in ``.npy`` fewer than two dimensions.
    """
    path = Path(path).expanduser()
    if path.suffix not in (".npy", ".npz"):
        raise UserError(f"{path} must be a NumPy file, .npy or .npz (numpy.save makes one)")
    try:
        loaded = np.load(path, allow_pickle=False)
        arrays = {"": loaded} if path.suffix == ".npy" else {name: loaded[name] for name in loaded.files}
    except FileNotFoundError as error:
        raise UserError(f"there is no file {path}") from error
    except (ValueError, EOFError, zipfile.BadZipFile, AttributeError, IsADirectoryError) as error:
        # numpy takes whatever lacks its header for a pickle, and advises to load it unsafely
        why = "it has no header of NumPy's, or holds objects" if "pickle" in str(error) else str(error)
        raise UserError(f"{path} is no array of numbers, or damaged: {why}") from error
    if not arrays:
        raise UserError(f"{path} holds no array; numpy.savez(path, tokens=…) names one for each argument")
    tensors = {name: _tensor(array, f"{path}{f', {name}' if name else ''}") for name, array in arrays.items()}
    if "" not in tensors:
        return tensors
    if tensors[""].ndim < 2:
        raise UserError(
            f"{path} must hold sequences, [sequence, position] or [sequence, …]; got {list(tensors[''].shape)}: a "
            "single one is array[None]"
        )
    return tensors[""][:_SEQUENCES]


def fitting(example: Any, module: nn.Module) -> Any:
    """The example with its numbers (not its token ids) in the module's own dtype."""
    own = next((p.dtype for p in module.parameters() if p.is_floating_point()), torch.float32)

    def fit(value: Any) -> Any:
        return value.to(own) if isinstance(value, Tensor) and value.is_floating_point() else value

    return {name: fit(value) for name, value in example.items()} if isinstance(example, dict) else fit(example)


def described(arguments: dict[str, Any]) -> str:
    """Inputs in words, for an error: ``tokens int64 [4, 64] from 0 to 99``."""
    return ", ".join(f"{name} {_told(value)}" for name, value in arguments.items())


def _told(value: Any) -> str:
    if not isinstance(value, Tensor):
        return type(value).__name__
    whole = not value.is_floating_point() and value.dtype is not torch.bool and value.numel()
    ends = f" from {int(value.min())} to {int(value.max())}" if whole else ""
    return f"{str(value.dtype).removeprefix('torch.')} {list(value.shape)}{ends}"


def _tensor(array: np.ndarray, where: str) -> Tensor:
    if array.dtype.kind not in "iufb":
        raise UserError(f"{where} must hold token ids or numbers; got {array.dtype}")
    if array.size == 0:
        raise UserError(f"{where} holds nothing; got {list(array.shape)}")
    if array.dtype.kind == "f":
        if not np.isfinite(array).all():
            raise UserError(f"{where} holds NaN or infinity")
        return torch.from_numpy(array.astype(np.float32))
    if array.dtype.kind == "b":
        return torch.from_numpy(array.copy())
    if int(array.max()) > np.iinfo(np.int64).max:
        raise UserError(f"{where} holds {int(array.max())}, which is no token id")
    return torch.from_numpy(array.astype(np.int64))
