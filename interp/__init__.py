"""What the attention heads of a transformer do, which of them matter, and how sure of it one can be.

``interp.load(name)`` gives a `HookedModel`; the parts are `interp.attention`, `interp.models`, `interp.data`,
`interp.circuits`, `interp.ablation`, `interp.statistics` and `interp.results`. Importing `interp` alone does not
import torch, so that saved results are read and drawn without it.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from interp.errors import UserError

if TYPE_CHECKING:
    from interp.models import HookedModel, load

__all__ = ["HookedModel", "UserError", "load"]

_NEEDS_TORCH = {"load": "interp.models", "HookedModel": "interp.models"}


def __getattr__(name: str) -> Any:
    """Import what needs torch when it is first asked for."""
    if name not in _NEEDS_TORCH:
        raise AttributeError(f"module 'interp' has no attribute {name!r}")
    return getattr(import_module(_NEEDS_TORCH[name]), name)


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
