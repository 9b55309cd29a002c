"""How much a metric depends on each head, for all heads at once: what is used to decide which heads may go.

Each head's output z before W_O is given a gate, z → r + ξ (z − r), 1 in the untouched model. The *replacement* r
is what an ablation puts in the head's place (nothing, its mean, its output on another sequence). The derivative of the
metric by every gate, in every sequence, comes out of one forward and one backward pass (`gate_gradients`):

- `michel`: E |∂L/∂ξ|, the importance of Michel et al. 2019 (r = 0);
- `first_order`: E [−∂L/∂ξ], the effect of an ablation if the metric were linear in the gates (attribution patching);
- `integrated`: the same with the derivative averaged over the way from 0 to 1 (integrated gradients);
- `weight_norm`: ‖W_V W_O‖, which looks at no data.

What all of these estimate is measured by `interp.ablation`.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar, Literal, Self

import numpy as np
import pandas as pd
import torch
from jaxtyping import Float
from numpy.typing import NDArray
from torch import Tensor

from interp.ablation import Batch, Metric, without_logits
from interp.attention.edits import Edit, GateHeads
from interp.attention.edits.base import Stage, put, rows_of
from interp.attention.rows import Block
from interp.errors import UserError
from interp.models.hooked import HookedModel

__all__ = [
    "GateGradients",
    "Replacements",
    "first_order",
    "gate_gradients",
    "integrated",
    "michel",
    "normalised_by_site",
    "random_order",
    "seen_less",
    "weight_norm",
]

#: By site, what takes the heads' place: broadcastable to [batch, head, query, d_head]. Empty: nothing does (zero).
Replacements = Mapping[str, Float[Tensor, "#batch head #query d_head"]]

#: Shows progress: takes what is gone through, what it is and how much, and hands it on.
Watch = Callable[[Sequence[Any], str, int], Any]


def _silent(passes: Sequence[Any], what: str, total: int) -> Sequence[Any]:
    return passes


@dataclass(frozen=True, eq=False)
class GateGradients:
    """A metric and its derivative by every head's gate, sequence by sequence.

    Attributes:
        heads: site, layer and head of the last axis, in order of execution.
        values: the metric.
        gradient: ∂ metric / ∂ ξ of the head, in the metric's unit.
        active: positions of the head's site at which its output has any influence on the metric: those that are not
            padding and that something later reads.
    """

    heads: pd.DataFrame
    values: Float[NDArray[np.float64], " sequence"]
    gradient: Float[NDArray[np.float64], "sequence head"]
    active: Float[NDArray[np.float64], "sequence head"]


def michel(model: HookedModel, batches: Sequence[Batch], metric: Metric) -> pd.DataFrame:
    """Michel et al. 2019: I_h = E |∂L/∂ξ_h|, normalised so that the squares of a layer's heads add up to 1.

    The absolute value is taken of each sequence's derivative, and the mean over sequences then: heads whose gate helps
    one sequence and harms the next do not cancel. Where a site has fewer active positions than another of the same
    sequence (the last layer, where only some positions are read out), its derivative is scaled up by that ratio.

    Args:
        model: with its own edits, if any are active.
        batches: the sequences; each is passed to the metric with ``grad=True``, for :meth:`HookedModel.run`.
        metric: one number per sequence, as ``lambda model, batch: model.token_loss(**batch).mean(1)``; differentiable.

    Returns:
        ``site, layer, head, importance`` in [0, 1], ``derivative`` (E |∂L/∂ξ| as it is, in the metric's unit) and
        ``active`` (mean number of active positions), a row for each head in order of execution. A site without any
        influence on the metric has importance 0.

    Raises:
        UserError: no batches. ValueError: the metric is not one finite number per sequence, or has no gradient.
    """
    found = gate_gradients(model, batches, metric)
    scaled = np.abs(found.gradient) * seen_less(found.active)
    table = found.heads.assign(
        importance=scaled.mean(0), derivative=np.abs(found.gradient).mean(0), active=found.active.mean(0)
    )
    return table.assign(importance=normalised_by_site(table, "importance"))


def normalised_by_site(table: pd.DataFrame, column: str) -> NDArray[np.float64]:
    """A column divided by its ℓ2 norm over the heads of each site; 0 where all are 0."""
    size = table.groupby("site", sort=False)[column].transform(lambda x: np.sqrt((x**2).sum())).to_numpy()
    return np.divide(table[column].to_numpy(), size, out=np.zeros(len(table)), where=size > 0)


def first_order(found: GateGradients) -> Float[NDArray[np.float64], "sequence head"]:
    """The change that an ablation would make if the metric were linear in the gates: −∂L/∂ξ at ξ = 1.

    Mean over sequences: the estimate. Right for a metric that is linear in the gate, whatever its slope; blind to
    saturation.
    """
    return -found.gradient


def integrated(
    model: HookedModel,
    batches: Sequence[Batch],
    metric: Metric,
    replacements: Sequence[Replacements] = (),
    *,
    steps: int = 8,
    together: Literal["model", "site"] = "model",
    watch: Watch = _silent,
) -> Float[NDArray[np.float64], "sequence head"]:
    """−∫ ∂L/∂ξ along the way on which gates go from 1 to 0 together, by the midpoint rule.

    The estimates of all heads that go together add up to the change that ablating them together makes (completeness,
    up to the error of the rule).

    Args:
        model, batches, metric: as for `michel`.
        replacements: one for each batch; none: heads go to zero.
        steps: points of the rule, a forward and backward pass each.
        together: all heads of the model, or those of one site while the others stay: as many times the passes.
        watch: shows progress.

    Raises:
        ValueError: no steps. Otherwise as `gate_gradients`.
    """
    if steps < 1:
        raise ValueError(f"an integral needs at least 1 step; got {steps}")
    groups = [None] if together == "model" else [site.name for site in model.sites]
    points = [(group, (step + 0.5) / steps) for group in groups for step in range(steps)]
    total: Any = 0.0
    for group, at in watch(points, "gradients", len(points)):
        found = gate_gradients(model, batches, metric, replacements, at=at if group is None else {group: at})
        mine = np.ones(len(found.heads)) if group is None else (found.heads["site"] == group).to_numpy()
        total = total - found.gradient * mine / steps
    return total


def weight_norm(model: HookedModel) -> pd.DataFrame:
    """‖W_V W_O‖ (Frobenius) of each head: ``site, layer, head, weight_norm``; how much it can write, whatever it reads.

    Raises:
        UserError: a site's projections are not known.
    """
    parts = []
    for site in model.sites:
        weights: Any = site.weights()
        device = "cpu" if weights.W_O.device.type == "mps" else weights.W_O.device  # which has no float64
        W_V, W_O = (w.detach().to(device, torch.float64) for w in (weights.for_query_heads(weights.W_V), weights.W_O))
        # ‖A B‖² = tr(AᵀA · B Bᵀ): products of d_head × d_head, never of d_model × d_model
        squared = ((W_V.mT @ W_V) * (W_O @ W_O.mT).mT).sum((-2, -1))
        parts.append(squared.clamp_min(0).sqrt().cpu().numpy())
    return _heads(model).assign(weight_norm=np.concatenate(parts))


def random_order(model: HookedModel, seed: int) -> pd.DataFrame:
    """Heads in an order drawn at random: ``site, layer, head, random``, the ranks 0, 1, … in that order."""
    heads = _heads(model)
    return heads.assign(random=np.random.default_rng(seed).permutation(len(heads)).astype(float))


# Gradients ------------------------------------------------------------------------------------------------------------


def gate_gradients(
    model: HookedModel,
    batches: Sequence[Batch],
    metric: Metric,
    replacements: Sequence[Replacements] = (),
    *,
    at: float | Mapping[str, float] = 1.0,
) -> GateGradients:
    """A metric's derivative by the gates of all heads, in each sequence: one forward and one backward pass a batch.

    Sequences must not know of each other (no batch norm): one backward pass serves all of a batch.

    Args:
        model, batches, metric: as for `michel`.
        replacements: what the gates blend in, one for each batch (:func:`interp.ablation.replacements`); none: nothing.
        at: where the gates stand; by site for those that do not stand at 1.

    Raises:
        UserError: no batches. ValueError: not as many replacements as batches, or a metric that is not one finite
            number per sequence or has no gradient.
    """
    if not batches:
        raise UserError("importance is a mean over sequences: give at least one batch of them")
    if replacements and len(replacements) != len(batches):
        raise ValueError(f"replacements must be one for each of {len(batches)} batches; got {len(replacements)}")
    queries: dict[Any, dict[str, int]] = {}
    values, gradients, active = [], [], []
    for number, batch in enumerate(batches):
        shape = tuple(tuple(v.shape[1:]) for v in batch.values() if isinstance(v, Tensor))
        if shape not in queries:
            queries[shape] = _queries(model, batch)
        of_batch = replacements[number] if replacements else {}
        value, by_site = _one_batch(model, batch, metric, of_batch, at, queries[shape])
        values.append(value.detach().double().cpu().numpy())
        gradients.append(_numbers([g.sum(-1) for g in by_site]))
        active.append(_numbers([(g != 0).any(0).sum(-1).expand(g.shape[:2]) for g in by_site]))
    return GateGradients(_heads(model), np.concatenate(values), np.concatenate(gradients), np.concatenate(active))


@dataclass(frozen=True, eq=False)
class _Blend(Edit):
    """r + ξ (z − r): heads → (gates [batch, query], replacements [#batch, #query, d_head])."""

    heads: Mapping[Any, tuple[Tensor, Tensor]]
    stage: ClassVar[Stage] = "z"

    def parameters(self) -> dict[str, Tensor]:
        return {str(head): gate for head, (gate, _) in self.heads.items()}

    def with_parameters(self, values: dict[str, Tensor]) -> Self:
        return replace(self, heads={h: (values.get(str(h), gate), r) for h, (gate, r) in self.heads.items()})

    def apply(self, x: Tensor, block: Block) -> Tensor:
        heads = self.selected(x.shape[1])
        blended = []
        for head in heads:
            gate, r = self.heads[head]
            gate = rows_of(gate.to(x), ("batch", "query"), block, "gates").unsqueeze(-1)
            r = rows_of(r, ("batch", "query", "d_head"), block, "replacements").to(x)
            blended.append(r + gate * (x[:, head] - r))
        return put(x, heads, torch.stack(blended, 1))


def _one_batch(
    model: HookedModel, batch: Batch, metric: Metric, replaced: Replacements, at: Any, queries: Mapping[str, int]
) -> tuple[Float[Tensor, " sequence"], list[Float[Tensor, "head sequence query"]]]:
    """The metric of a batch, and its gradients by the gates of every site."""
    n = _n_sequences(batch)
    dtype = torch.float64 if model.dtype is torch.float64 else torch.float32
    gates, edits = [], []
    for site in model.sites:
        stand = at.get(site.name, 1.0) if isinstance(at, Mapping) else at
        gate = torch.full((site.n_heads, n, queries[site.name]), float(stand), dtype=dtype, device=model.device)
        gates.append(gate.requires_grad_())
        own: Any = {(site.name, head): gate[head] for head in range(site.n_heads)}
        r = replaced.get(site.name)
        blend = None if r is None else {key: (g, r[:, head]) for head, (key, g) in enumerate(own.items())}
        edits.append(GateHeads(own) if blend is None else _Blend(blend))
    with torch.enable_grad(), model.edit(*edits):
        value = _checked(metric(model, {**batch, "grad": True}), n)
        found = torch.autograd.grad(value.sum(), gates, allow_unused=True)
    return value, [torch.zeros_like(g) if d is None else d for g, d in zip(gates, found, strict=True)]


def _checked(value: Any, n: int) -> Tensor:
    """A metric's values, if they are what they must be."""
    if not isinstance(value, Tensor) or tuple(value.shape) != (n,):
        got = list(value.shape) if isinstance(value, Tensor) else type(value).__name__
        raise ValueError(f"a metric gives a tensor with one number per sequence, [{n}]; got {got}")
    if not bool(torch.isfinite(value).all()):
        bad = int((~torch.isfinite(value)).nonzero()[0])
        raise ValueError(
            f"a metric must be finite; got {float(value.detach()[bad])} for sequence {bad} of a batch of {n}"
        )
    if not value.requires_grad:
        raise ValueError(
            "the metric's values have no gradient: it must be differentiable and run the model with **batch, which "
            "holds grad=True"
        )
    return value


def _queries(model: HookedModel, batch: Batch) -> dict[str, int]:
    """Queries at each site, from a run of one sequence."""
    n = _n_sequences(batch)
    first = {k: v[:1] if isinstance(v, Tensor) and v.ndim and len(v) == n else v for k, v in batch.items()}
    lists = {k: v[:1] for k, v in batch.items() if isinstance(v, list) and len(v) == n}
    masks = model.run(**{**first, **lists, **without_logits(model), "grad": False}).masks
    missing = [site.name for site in model.sites if site.name not in masks]
    if missing:
        raise UserError(f"this input does not come to {missing[0]}, so nothing can be said about its heads")
    return {name: shape.n_queries for name, (_, shape) in masks.items()}


def _n_sequences(batch: Batch) -> int:
    """How many sequences a batch holds: the length of its first tensor or list."""
    return len(next(v for v in batch.values() if isinstance(v, Tensor | list)))


def seen_less(active: Float[NDArray[np.float64], "sequence head"]) -> Float[NDArray[np.float64], "sequence head"]:
    """By how much a site has fewer active positions than the site of the same sequence that has most."""
    most = active.max(1, keepdims=True)
    return np.divide(most, active, out=np.ones_like(active), where=active > 0)


def _heads(model: HookedModel) -> pd.DataFrame:
    rows = [(site.name, site.layer, head) for site in model.sites for head in range(site.n_heads)]
    return pd.DataFrame(rows, columns=pd.Index(["site", "layer", "head"]))


def _numbers(by_site: Sequence[Float[Tensor, "head sequence"]]) -> Float[NDArray[np.float64], "sequence head"]:
    return torch.cat([each.detach().double().cpu() for each in by_site]).T.numpy()
