"""``pruning.json``: whether a folder holds a pruned model, and what it says. Needs neither torch nor transformers."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from interp.errors import UserError
from interp.models.files import read_json

__all__ = ["DESCRIPTION", "FORMAT", "is_pruned", "read_description"]

DESCRIPTION = "pruning.json"
FORMAT = 1
_FIELDS = (
    "layout",
    "base",
    "sites",
    "history",
    "declarations",
    "class",
    "dtype",
    "output_head_loaded",
    "weights_sha256",
)
_LAYOUTS = ("cut", "plain", "heads")


def is_pruned(folder: Path) -> bool:
    """Whether a folder says that it holds a pruned model."""
    return (folder / DESCRIPTION).is_file()


def read_description(folder: Path) -> dict[str, Any]:
    """What ``pruning.json`` says.

    Raises:
        UserError: there is none, it is of a later format, or lacks something.
    """
    if not is_pruned(folder):
        raise UserError(f"{folder} holds no pruned model: {DESCRIPTION} is missing")
    described = read_json(folder / DESCRIPTION)
    if described.get("format") != FORMAT:
        raise UserError(
            f"{folder / DESCRIPTION} is of format {described.get('format')!r}, this version of interp reads {FORMAT}"
        )
    missing = [name for name in _FIELDS if name not in described]
    if missing or described["layout"] not in _LAYOUTS:
        raise UserError(f"{folder / DESCRIPTION} is damaged: {', '.join(missing) or 'layout'}; prune the base again")
    return described
