"""Hook functions at named hook points, in TransformerLens's names and layouts.

``{site}.hook_q``, ``hook_k``, ``hook_v``, ``hook_z``: [batch, position, head, d_head]; for rotary models ``hook_rot_q``
and ``hook_rot_k`` (after the rotation) take the place of the first two. ``{site}.hook_pattern``: a block of pattern rows
[batch, head, row, key] at a time. ``blocks.{layer}.hook_resid_pre`` and ``hook_resid_post``: the residual stream
[batch, position, d_model] before and after a block.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Mapping
from typing import TYPE_CHECKING, Any

from torch import Tensor, nn

from interp.attention.edits import Edit
from interp.errors import UserError
from interp.models.recording import PatternHook
from interp.models.sites import AttentionSite

if TYPE_CHECKING:
    from interp.models.hooked import HookedModel

__all__ = ["HookFunction", "Hooks"]

HookFunction = Callable[[Tensor, Any], Tensor | None]
"""``(tensor, hook) -> tensor`` to change it, or None; ``hook.name`` is the hook point's name."""


class Hooks:
    """Hook functions of one context, checked against the model's hook points."""

    def __init__(self, model: HookedModel, functions: Mapping[str, HookFunction]) -> None:
        self.model, self.functions = model, dict(functions)
        self.fired: set[str] = set()
        known = self.points(model) if functions else []
        for name in functions:
            if name not in known:
                raise UserError(f"there is no hook point {name!r}; sites are {model._site_list()}, "
                                f"and each has {', '.join(_site_points(model))}")  # fmt: skip
        self._points = {name: _hook_point(name) for name in functions}

    @staticmethod
    def points(model: HookedModel) -> list[str]:
        """Names of all hook points of a model."""
        names = [f"{site.name}.{point}" for site in model.sites for point in _site_points(model)]
        return names + [
            f"{block}.{point}" for block in _blocks(model) for point in ("hook_resid_pre", "hook_resid_post")
        ]

    def on_inputs(
        self, site: AttentionSite, query: Tensor, key: Tensor, value: Tensor
    ) -> tuple[Tensor, Tensor, Tensor]:
        query_point, key_point = _site_points(self.model)[:2]
        return (
            self._call(f"{site.name}.{query_point}", query, heads_first=True),
            self._call(f"{site.name}.{key_point}", key, heads_first=True),
            self._call(f"{site.name}.hook_v", value, heads_first=True),
        )

    def on_z(self, site: AttentionSite, z: Tensor) -> Tensor:
        return self._call(f"{site.name}.hook_z", z, heads_first=True)

    def pattern_edits(self, site: AttentionSite) -> list[Edit]:
        name = f"{site.name}.hook_pattern"
        if name not in self.functions:
            return []
        self.fired.add(name)
        return [PatternHook(site.name, self.functions[name], self._points[name])]

    @contextlib.contextmanager
    def on_modules(self) -> Iterator[None]:
        """Residual-stream hooks, registered on the blocks for as long as this lasts."""
        blocks = _blocks(self.model)
        with contextlib.ExitStack() as stack:
            for name in self.functions:
                block, _, point = name.rpartition(".")
                if point == "hook_resid_pre":
                    handle = blocks[block].register_forward_pre_hook(self._before(name), with_kwargs=True)
                elif point == "hook_resid_post":
                    handle = blocks[block].register_forward_hook(self._after(name))
                else:
                    continue
                stack.callback(handle.remove)
            yield

    def check_fired(self) -> None:
        """Raise when some hook points fired and others did not: a hook that never fires is a silent mistake."""
        silent = set(self.functions) - self.fired
        if silent and (self.fired or self.model._fired):
            from interp.models.hooked import NeverReachedError

            raise NeverReachedError(f"hooks at {', '.join(sorted(silent))} were never reached by the forward pass")

    def _before(self, name: str) -> Callable[..., Any]:
        def hook(module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
            if args:
                return (self._call(name, args[0]), *args[1:]), kwargs
            return args, {**kwargs, "hidden_states": self._call(name, kwargs["hidden_states"])}

        return hook

    def _after(self, name: str) -> Callable[..., Any]:
        def hook(module: nn.Module, args: tuple[Any, ...], output: Any) -> Any:
            if isinstance(output, tuple):
                return (self._call(name, output[0]), *output[1:])
            return self._call(name, output)

        return hook

    def _call(self, name: str, tensor: Tensor, heads_first: bool = False) -> Tensor:
        function = self.functions.get(name)
        if function is None:
            return tensor
        self.fired.add(name)
        given = tensor.transpose(1, 2) if heads_first else tensor
        changed = function(given, self._points[name])
        if changed is None:
            return tensor
        if changed.shape != given.shape:
            raise ValueError(
                f"the hook at {name} returned shape {list(changed.shape)}; it was given {list(given.shape)}"
            )
        return changed.transpose(1, 2) if heads_first else changed


def _site_points(model: HookedModel) -> tuple[str, ...]:
    config = model.config
    rotary = any(getattr(config, name, None) for name in ("rope_parameters", "rope_theta", "rotary_dim", "rotary_pct"))
    rotated = ("hook_rot_q", "hook_rot_k") if rotary else ("hook_q", "hook_k")
    return (*rotated, "hook_v", "hook_z", "hook_pattern")


def _blocks(model: HookedModel) -> dict[str, nn.Module]:
    """The block around each site: the nearest ancestor that stands in a ModuleList."""
    found: dict[str, nn.Module] = {}
    for site in model.sites:
        parts = site.path.split(".")
        depth = max((i for i, part in enumerate(parts) if part.isdigit()), default=None)
        first = next((i for i, part in enumerate(parts) if part.isdigit()), depth)
        if first is not None:
            block = ".".join(site.name.split(".")[:2])
            found.setdefault(block, model.module.get_submodule(".".join(parts[: first + 1])))
    return found


def _hook_point(name: str) -> Any:
    """TransformerLens's HookPoint, so that its hook functions work unchanged."""
    from transformer_lens.hook_points import HookPoint

    point = HookPoint()
    point.name = name
    return point
