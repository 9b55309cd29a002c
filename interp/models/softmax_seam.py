"""Models that compute their own attention: read and edited between their softmax and their values.

Such a model holds its whole pattern anyway; what is added is the reading, a block of rows at a time.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable
from types import MethodType
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from interp.models.owners import owner
from interp.models.sites import AttentionSite

if TYPE_CHECKING:
    from interp.models.hooked import HookedModel

__all__ = ["read_softmax"]

_SOFTMAX = {torch.softmax, torch.nn.functional.softmax, Tensor.softmax}

_FORWARD: weakref.WeakKeyDictionary[nn.Module, Callable[..., Any]] = weakref.WeakKeyDictionary()
"""What an observed module's own ``forward`` was, where it was not its class's (accelerate puts one in its place)."""


def read_softmax(module: nn.Module) -> None:
    """Put a forward over an attention module's own that lets its softmax over keys be seen and changed by the hooked
    model it belongs to; without one, it computes what it always did."""
    placed = module.__dict__.get("forward")
    if isinstance(placed, _Observed):
        return
    if placed is not None:
        _FORWARD[module] = placed
    module.forward = _Observed(module)  # type: ignore[method-assign]


class _Observed:
    """A forward that knows its module, so that a copy of the module (deep, or by pickle) runs the copy."""

    def __init__(self, module: nn.Module) -> None:
        self.module = module

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        module = self.module
        forward = _FORWARD.get(module) or MethodType(type(module).forward, module)
        found = owner(module)
        if found is None:
            return forward(*args, **kwargs)
        with _SoftmaxMode(*found):
            return forward(*args, **kwargs)


class _SoftmaxMode(TorchFunctionMode):
    """Catches the softmax of one attention module."""

    def __init__(self, model: HookedModel, site: AttentionSite) -> None:
        super().__init__()
        self.model, self.site = model, site

    def __torch_function__(
        self, func: Callable[..., Any], types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        result = func(*args, **(kwargs or {}))
        if func not in _SOFTMAX or not isinstance(result, Tensor):
            return result
        scores = args[0] if args else (kwargs or {})["input"]
        shape = result.shape
        n_heads = self.site.n_heads
        if result.ndim == 3 and shape[0] % n_heads == 0:
            result, scores = (t.reshape(-1, n_heads, *shape[1:]) for t in (result, scores))
        if result.ndim != 4 or result.shape[1] != n_heads:
            return result.reshape(shape)
        return self.model.seam.read_dense(self.site, scores, result).reshape(shape)
