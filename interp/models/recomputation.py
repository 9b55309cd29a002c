"""Gradient checkpointing: what a pass computes again in its backward pass, when its edits are no longer in force."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

__all__ = ["is_recomputed_here", "was_recomputed"]

_HOOKS: Any = getattr(getattr(torch._C, "_autograd", None), "_top_saved_tensors_default_hooks", None)
"""What keeps tensors for the backward pass just now; versions of PyTorch before 2.7 do not say."""


def is_recomputed_here() -> bool:
    """Whether what runs now will run again in the backward pass (`torch.utils.checkpoint`, not reentrant)."""
    hooks = _HOOKS(True) if _HOOKS is not None else None
    return hooks is not None and getattr(hooks[0], "__module__", "") == "torch.utils.checkpoint"


def was_recomputed(output: Any) -> bool:
    """Whether what led to an output will run again in the backward pass (`torch.utils.checkpoint`, reentrant)."""
    values = output.values() if isinstance(output, dict) else output if isinstance(output, list | tuple) else [output]
    to_see = [value.grad_fn for value in values if isinstance(value, Tensor) and value.grad_fn is not None]
    seen = set(to_see)
    while to_see:
        node = to_see.pop()
        if node.name() == "CheckpointFunctionBackward":
            return True
        new = {before for before, _ in node.next_functions if before is not None} - seen
        seen |= new
        to_see += new
    return False
