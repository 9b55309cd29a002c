"""Hook functions at named hook points, in TransformerLens's names and layouts.

``{site}.hook_q``, ``hook_k``, ``hook_v``, ``hook_z``: [batch, position, head, d_head]. In rotary models ``hook_q`` and
``hook_k`` are what the projections write, and exist where each has a module of its own; ``hook_rot_q`` and
``hook_rot_k`` are what meets in the scores. ``{site}.hook_pattern``: a block of pattern rows [batch, head, row, key]
at a time, after the mask; ``hook.block`` says which rows (``start`` to ``stop``) and keys (``low`` to ``high``). With
gradients, the backward pass computes each block again and calls the function again. ``blocks.{layer}.hook_resid_pre``
and ``hook_resid_post``: the residual stream [batch, position, d_model] before and after a block.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Mapping
from typing import TYPE_CHECKING, Any

from torch import Tensor, nn

from interp.attention.edits import Edit
from interp.errors import UserError
from interp.models.recording import PatternHook
from interp.models.sites import AttentionSite, NeverReachedError, listed

if TYPE_CHECKING:
    from interp.models.hooked import HookedModel

__all__ = ["HookFunction", "Hooks"]

HookFunction = Callable[[Tensor, Any], Tensor | None]
"""``(tensor, hook) -> tensor`` to change it, or None; ``hook.name`` is the hook point's name."""

_ROLES = {"hook_q": "query", "hook_k": "key", "hook_v": "value", "hook_z": "output"}
_RESIDUAL = ("hook_resid_pre", "hook_resid_post")


class Hooks:
    """Hook functions of one context, checked against the model's hook points."""

    def __init__(self, model: HookedModel, functions: Mapping[str, HookFunction]) -> None:
        self.model, self.functions = model, dict(functions)
        self.fired: set[str] = set()
        self._places = _places(model) if functions else {}
        for name in functions:
            if name not in self._places:
                raise UserError(_no_such_point(model, name, self._places))
        self._points = {name: _hook_point(name) for name in functions}

    @staticmethod
    def points(model: HookedModel) -> list[str]:
        """Names of all hook points of a model."""
        return list(_places(model))

    def on_inputs(
        self, site: AttentionSite, query: Tensor, key: Tensor, value: Tensor
    ) -> tuple[Tensor, Tensor, Tensor]:
        """What goes into the core, after the hooks: [batch, head, position, d_head]."""
        for point in ("hook_q", "hook_rot_q"):
            query = self._at_core(f"{site.name}.{point}", query)
        for point in ("hook_k", "hook_rot_k"):
            key = self._at_core(f"{site.name}.{point}", key)
        return query, key, self._at_core(f"{site.name}.hook_v", value)

    def on_z(self, site: AttentionSite, z: Tensor) -> Tensor:
        """What comes out of the core, after the hooks: [batch, head, position, d_head]."""
        return self._at_core(f"{site.name}.hook_z", z)

    def pattern_edits(self, site: AttentionSite) -> list[Edit]:
        """The hook on a site's pattern as an edit."""
        name = f"{site.name}.hook_pattern"
        if name not in self.functions:
            return []
        self.fired.add(name)
        return [PatternHook(site.name, self.functions[name], self._points[name])]

    @contextlib.contextmanager
    def on_modules(self) -> Iterator[None]:
        """Hooks on projections and blocks, registered on the modules for as long as this lasts."""
        with contextlib.ExitStack() as stack:
            for name in self.functions:
                module = self._places[name]
                if module is None:
                    continue
                if name.endswith(("hook_resid_pre", "hook_z")):
                    handle = module.register_forward_pre_hook(self._before(name), with_kwargs=True)
                else:
                    handle = module.register_forward_hook(self._after(name))
                stack.callback(handle.remove)
            yield

    def check_fired(self) -> None:
        """Raise for hook points that were never reached: a hook that never fires is a silent mistake."""
        if silent := set(self.functions) - self.fired:
            raise NeverReachedError(f"hooks at {', '.join(sorted(silent))} were never reached by the forward pass")

    def _at_core(self, name: str, tensor: Tensor) -> Tensor:
        if name not in self.functions or self._places[name] is not None:
            return tensor
        return self._call(name, tensor.transpose(1, 2)).transpose(1, 2)

    def _before(self, name: str) -> Callable[..., Any]:
        def hook(module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
            if args:
                return (self._call_flat(name, args[0]), *args[1:]), kwargs
            return args, {**kwargs, "hidden_states": self._call_flat(name, kwargs["hidden_states"])}

        return hook

    def _after(self, name: str) -> Callable[..., Any]:
        def hook(module: nn.Module, args: tuple[Any, ...], output: Any) -> Any:
            if isinstance(output, tuple):
                return (self._call_flat(name, output[0]), *output[1:])
            return self._call_flat(name, output)

        return hook

    def _call_flat(self, name: str, tensor: Tensor) -> Tensor:
        """A hook on what a module reads or writes, where heads lie side by side."""
        if name.endswith(_RESIDUAL):
            return self._call(name, tensor)
        d_head = self.model.site(name.rpartition(".")[0]).d_head
        return self._call(name, tensor.unflatten(-1, (-1, d_head))).flatten(-2)

    def _call(self, name: str, tensor: Tensor) -> Tensor:
        if self not in self.model.seam.hooks:  # a trial run of the model's own is none of the user's business
            return tensor
        self.fired.add(name)
        changed = self.functions[name](tensor, self._points[name])
        if changed is None:
            return tensor
        if not isinstance(changed, Tensor) or changed.shape != tensor.shape or changed.dtype != tensor.dtype:
            got = f"{changed.dtype} {list(changed.shape)}" if isinstance(changed, Tensor) else type(changed).__name__
            raise ValueError(
                f"the hook at {name} returned {got}; it was given {tensor.dtype} {list(tensor.shape)}, and may return "
                "such a tensor or None"
            )
        return changed


def _places(model: HookedModel) -> dict[str, nn.Module | None]:
    """Every hook point, and the module whose output (input, for hook_z and hook_resid_pre) it is; None: the core's."""
    rotary = _is_rotary(model)
    found: dict[str, nn.Module | None] = {}
    for site in model.sites:
        core = site.source == "core"
        for point, role in _ROLES.items():
            projected = point in ("hook_q", "hook_k")
            own = site.projections.get(role) if projected or not core else None
            if own is not None or (core and not (rotary and projected)):
                found[f"{site.name}.{point}"] = own
            if core and rotary and projected:
                found[f"{site.name}.{point.replace('hook', 'hook_rot')}"] = None
        found[f"{site.name}.hook_pattern"] = None
    return found | {f"{block}.{point}": module for block, module in _blocks(model).items() for point in _RESIDUAL}


def _is_rotary(model: HookedModel) -> bool:
    """Whether queries and keys are rotated by position after their projections."""
    if getattr(model.config, "alibi", False):  # Falcon holds a rotary module and does not use it then
        return False
    rotary = any("rotary" in type(module).__name__.lower() for module in model.module.modules())
    return rotary or bool(getattr(model.config, "rotary_dim", None))


def _blocks(model: HookedModel) -> dict[str, nn.Module]:
    """The block around each site: the module of the first number in its path, of the last where stages hold blocks."""
    found: dict[str, list[str]] = {}
    for site in model.sites:
        parts = site.path.split(".")
        numbered = [".".join(parts[: i + 1]) for i, part in enumerate(parts) if part.isdigit()]
        if numbered:
            found.setdefault(site.name.rpartition(".")[0], numbered)
    outer = [paths[0] for paths in found.values()]
    which = 0 if len(set(outer)) == len(outer) else -1
    return {block: model.module.get_submodule(paths[which]) for block, paths in found.items()}


def _no_such_point(model: HookedModel, name: str, places: Mapping[str, Any]) -> str:
    site, _, point = name.rpartition(".")
    known = [place.rpartition(".")[2] for place in places if place.rpartition(".")[0] == site]
    if not known:
        return f"there is no hook point {name!r}; the sites are {listed(model.sites)}"
    why = ""
    if point in ("hook_q", "hook_k", "hook_v"):
        why = ": a fused projection writes queries, keys and values at once (model.bridge splits them)"
    return f"there is no {point} at {site}{why}; it has {', '.join(known)}"


def _hook_point(name: str) -> Any:
    """TransformerLens's HookPoint, so that its hook functions work unchanged."""
    from transformer_lens.hook_points import HookPoint

    point = HookPoint()
    point.name = name
    return point
