"""Models that compute their own attention: read and edited between their softmax and their values.

Such a model holds its whole pattern anyway; what is added is the reading, a block of rows at a time.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode

from interp.models.sites import AttentionSite

if TYPE_CHECKING:
    from interp.models.hooked import HookedModel

__all__ = ["read_softmax"]

_SOFTMAX = {torch.softmax, torch.nn.functional.softmax, Tensor.softmax}


def read_softmax(model: HookedModel, site: AttentionSite) -> None:
    """Wrap a module's forward so that its softmax over keys is seen and may be changed."""
    forward = site.module.forward

    @wraps(forward)
    def observed(*args: Any, **kwargs: Any) -> Any:
        with _SoftmaxMode(model, site):
            return forward(*args, **kwargs)

    site.module.forward = observed  # type: ignore[method-assign]


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
        return self.model.read_dense(self.site, scores, result).reshape(shape)
