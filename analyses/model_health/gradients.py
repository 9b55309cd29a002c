"""Gradients and activations by depth: what reaches queries and keys, what vanishes, what explodes."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pandas as pd
import torch
from torch import Tensor, nn

from analyses.model_health.checks import Row
from analyses.model_health.config import CHECKS
from analyses.model_health.subject import Subject, first_tensor
from interp.attention.edits import GateHeads
from interp.models.stacks import layer_path

__all__ = ["Depth", "measure", "rows"]

PROJECTIONS = 4
"""Random directions of the output that gradients are taken of."""
_FEWEST_LAYERS = 4
_LAYER = "layer "  # before the path of a layer, which may also be the name of a site


@dataclass(eq=False)
class Depth:
    """What one pass forward and :data:`PROJECTIONS` passes back found.

    Attributes:
        layers: (path, layer number, root mean square of what it reads, relative and absolute gradient there), in order.
            Gradients are norms at one position, the median over positions. The relative one is ‖∂L/∂x‖ ‖x‖, what a
            relative change of x does to the output: layers that only rescale leave it as it is.
        heads: by site, gradient of each head's gate [head].
        reaching: by site, gradient that reaches queries and keys against that which reaches values; None where they
            are out of sight.
        reason: why nothing was measured; "".
    """

    layers: list[tuple[str, int, float, float, float]] = field(default_factory=list)
    heads: dict[str, np.ndarray] = field(default_factory=dict)
    reaching: dict[str, float | None] = field(default_factory=dict)
    output: float = 0.0
    reason: str = ""

    def table(self, subject: Subject) -> pd.DataFrame:
        """The table ``depth``: one row a layer or site, and metric."""
        rows = [
            {"site": path, "layer": layer, "metric": metric, "value": value}
            for path, layer, size, relative, absolute in self.layers
            for metric, value in (
                ("activation_rms", size),
                ("relative_gradient", relative),
                ("gradient_norm", absolute),
            )
        ]
        layer_of = {site.name: site.layer for site in subject.model.sites}
        rows += [
            {"site": site, "layer": layer_of[site], "metric": "gradient_to_queries_and_keys", "value": value}
            for site, value in self.reaching.items()
            if value is not None
        ]
        frame = pd.DataFrame(rows, columns=pd.Index(["site", "layer", "metric", "value"]))
        return frame.astype({"site": object, "metric": object, "layer": int, "value": float})


def measure(subject: Subject) -> Depth:
    """Run the model, and take gradients of random projections of its output with respect to what every layer reads, to
    queries, keys and values, and to a gate on every head. Parameters get no gradient."""
    model, kept = subject.model, {}
    gates = {site.name: torch.ones(site.n_heads, requires_grad=True, device=model.device) for site in model.sites}
    edit = GateHeads({(name, head): gate[head] for name, gate in gates.items() for head in range(len(gate))})
    layers = _layers(subject)
    hooks = {name: _keeping(kept, name) for name in _points(subject)}
    with _unfrozen(model.module), _inputs_of(layers, kept), torch.enable_grad():
        try:
            run = subject.run(edits=[edit], hooks=hooks, grad=True)
        except RuntimeError as error:
            return Depth(reason=f"the model does not run with gradients: {error}")
    output = first_tensor(run.output)
    if output is None or not output.requires_grad:
        return Depth(reason="no gradient reaches the output")
    wanted = {name: tensor for name, tensor in {**kept, **gates}.items() if tensor.requires_grad}
    found = _gradients(output, wanted)
    depth = Depth(output=float(output.detach().double().square().mean().sqrt()))
    for path, layer in layers.items():
        name = _LAYER + path
        if name in found:
            x, gradients = kept[name].detach().double(), found[name]
            norms = gradients.square().sum(-1).mean(0).sqrt()
            relative = float((norms * x.square().sum(-1).sqrt()).median())
            depth.layers.append((path, layer[1], _rms(x), relative, float(norms.median())))
    depth.heads = {name: found[name].square().mean(0).sqrt().cpu().numpy() for name in gates if name in found}
    depth.reaching = {site.name: _reaching(site.name, kept, found) for site in model.sites}
    return depth


def _gradients(output: Tensor, wanted: dict[str, Tensor]) -> dict[str, Tensor]:
    """Gradients [projection, …] of the output's random projections."""
    generator = torch.Generator().manual_seed(0)
    found: dict[str, list[Tensor]] = {name: [] for name in wanted}
    scale = float(output.detach().double().square().sum().sqrt()) or 1.0
    for _ in range(PROJECTIONS):
        direction = torch.randn(output.shape, generator=generator).to(output) / scale
        grads = torch.autograd.grad(output, list(wanted.values()), direction, retain_graph=True, allow_unused=True)
        for (name, tensor), grad in zip(wanted.items(), grads, strict=True):
            found[name].append(torch.zeros_like(tensor) if grad is None else grad)
    return {name: torch.stack(grads).double() for name, grads in found.items()}


def _layers(subject: Subject) -> dict[str, tuple[nn.Module, int]]:
    """The layers around attention sites, by path, in order; of the last stack where there are several."""
    sites = [site for site in subject.model.sites if site.stack == subject.model.sites[-1].stack]
    found: dict[str, tuple[nn.Module, int]] = {}
    for site in sites:
        path = layer_path(site.path) if site.path else ""
        if path and path not in found:
            found[path] = (subject.inner.get_submodule(path), len(found))
    return found


@contextmanager
def _inputs_of(layers: dict[str, tuple[nn.Module, int]], kept: dict[str, Tensor]) -> Iterator[None]:
    """Keep what layers read; a layer that runs several times keeps the first."""

    def keeping(path: str) -> Callable[..., None]:
        def hook(module: nn.Module, args: Any, kwargs: Any) -> None:
            given = (*args, *kwargs.values())
            x = next((v for v in given if isinstance(v, Tensor) and v.is_floating_point() and v.ndim >= 3), None)
            if x is not None:
                if not x.requires_grad and x.is_leaf:
                    x.requires_grad_()
                kept.setdefault(_LAYER + path, x)

        return hook

    handles = [
        module.register_forward_pre_hook(keeping(path), with_kwargs=True) for path, (module, _) in layers.items()
    ]
    try:
        yield
    finally:
        for handle in handles:
            handle.remove()


def _points(subject: Subject) -> list[str]:
    """Hook points of queries, keys and values as they meet in the scores."""
    known = set(subject.model.hook_points())
    found = []
    for site in subject.model.sites:
        names = [
            next((p for p in (f"{site.name}.hook_rot_{r}", f"{site.name}.hook_{r}") if p in known), "") for r in "qkv"
        ]
        if all(names) and site.source == "core":
            found += names
    return found


def _keeping(kept: dict[str, Tensor], name: str) -> Callable[[Tensor, Any], Tensor]:
    def hook(tensor: Tensor, _: Any) -> Tensor:
        kept[name] = tensor
        return tensor

    return hook


@contextmanager
def _unfrozen(module: nn.Module) -> Iterator[None]:
    """Every parameter takes part in gradients, for a while: what does not then was cut off by the model's own code."""
    frozen = [p for p in module.parameters() if not p.requires_grad and p.is_floating_point()]
    for parameter in frozen:
        parameter.requires_grad_(True)
    try:
        yield
    finally:
        for parameter in frozen:
            parameter.requires_grad_(False)


def _rms(x: Tensor) -> float:
    """Root mean square over the features of each position, the median over positions: a few positions of massive
    activations do not speak for the others."""
    return float(x.square().mean(-1).sqrt().median())


def _reaching(site: str, kept: dict[str, Tensor], found: dict[str, Tensor]) -> float | None:
    """(‖∂q‖‖q‖ + ‖∂k‖‖k‖) / (2 ‖∂v‖‖v‖) of one site: what the softmax lets through to queries and keys."""
    sizes = {}
    for role in "qkv":
        name = next((n for n in (f"{site}.hook_rot_{role}", f"{site}.hook_{role}") if n in kept), None)
        if name is None:
            return None
        # without a gradient of its own, it was cut off from the parameters
        felt = float(found[name].norm()) if name in found else 0.0
        sizes[role] = felt * float(kept[name].detach().double().norm())
    return (sizes["q"] + sizes["k"]) / (2 * sizes["v"]) if sizes["v"] else None


# Checks -------------------------------------------------------------------------------------------------------------


def rows(subject: Subject, depth: Depth) -> list[Row]:
    """The checks of gradients and of activations by depth."""
    checks = [CHECKS[name] for name in ("gradient_to_queries_and_keys", "vanishing_gradient", "exploding_gradient",
                                        "activation_growth")]  # fmt: skip
    if depth.reason:
        return [check.not_applicable(depth.reason) for check in checks]
    return [_queries(subject, depth), *_by_depth(depth), _growth(depth)]


def _queries(subject: Subject, depth: Depth) -> Row:
    check = CHECKS["gradient_to_queries_and_keys"]
    known = [(value, site) for site, value in depth.reaching.items() if value is not None]
    if not known:
        return check.not_applicable("queries and keys are not seen, or no gradient reaches the values")
    value, site = min(known)
    layer = subject.model.site(site).layer
    return check.judge(value, (site, layer, None), "against the gradient that reaches the values")


def _by_depth(depth: Depth) -> list[Row]:
    vanishing, exploding = CHECKS["vanishing_gradient"], CHECKS["exploding_gradient"]
    if len(depth.layers) < 2:
        reason = "fewer than two layers are told apart"
        return [vanishing.not_applicable(reason), exploding.not_applicable(reason)]
    last = depth.layers[-1][3]
    if last == 0:
        note = "no gradient reaches the last layer"
        path, layer = depth.layers[-1][:2]
        return [vanishing.judge(0.0, (path, layer, None), note), exploding.not_applicable(note)]
    ratios = [gradient / last for _, _, _, gradient, _ in depth.layers]
    low, high = int(np.argmin(ratios)), int(np.argmax(ratios))
    places = [(depth.layers[i][0], depth.layers[i][1], None) for i in (low, high)]
    note = f"relative gradient there against the last of {len(ratios)} layers"
    return [vanishing.judge(ratios[low], places[0], note), exploding.judge(ratios[high], places[1], note)]


def _growth(depth: Depth) -> Row:
    """Geometric mean of the growth from layer to layer over the second half of the depth."""
    check = CHECKS["activation_growth"]
    sizes = [size for _, _, size, *_ in depth.layers]
    if len(sizes) < _FEWEST_LAYERS:
        return check.not_applicable(f"fewer than {_FEWEST_LAYERS} layers do not show whether growth goes on")
    half = sizes[len(sizes) // 2 - 1 :]
    value = (half[-1] / max(half[0], 1e-300)) ** (1 / (len(half) - 1))
    path, layer = depth.layers[-1][:2]
    return check.judge(value, (path, layer, None), f"root mean square {sizes[0]:.3g} in the first layer, "
                       f"{half[0]:.3g} half-way, {sizes[-1]:.3g} in the last")  # fmt: skip
