"""The direct effect of a head: what its output changes by its own way along the residual stream to the logits.

The change that an ablation makes to what the head writes, Δ = (r − z) W_O, is added where the last layer's output
enters the final norm, and the norm's division by the stream's size is kept as it was in the untouched run. No other
layer sees it. The *total* effect (`interp.ablation.ablation_effects`) is what the ablation does with everything that
later layers make of it: where these repair what is missing, it is the smaller one (McGrath et al. 2023).
"""

from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from typing import Any

import numpy as np
from jaxtyping import Float
from numpy.typing import NDArray
from torch import Tensor, nn

from interp.ablation import Batch, Kind, Metric
from interp.circuits import Weights
from interp.errors import UserError
from interp.models.hooked import HookedModel
from interp.models.norms import Norm
from interp.models.replaying import computed_by, outputs_of, replayed, runs_before, stack_blocks
from interp.replacements import replacements, without_logits

__all__ = ["direct_effects", "why_no_direct_effect"]


def why_no_direct_effect(weights: Weights | None, path: str) -> str:
    """Why the heads of an attention module have no direct effect by this definition; "" where they have one.

    Args:
        weights: of the model; None where they cannot be read.
        path: of the module.
    """
    found = None if weights is None else next((site for site in weights.sites if site.path == path), None)
    if weights is None or found is None:
        return "the weights around this attention module are not known"
    if found.norms.order == "post":
        return "the stream itself passes through norms in each layer"
    if found.norms.after is not None:
        return "attention's output passes through a norm of its own"
    if weights.W_U is None:
        return "between the last layer and the logits lies more than a norm and a linear map"
    if found.kind == "self" and found.no_direct_path and "output head" not in found.no_direct_path:
        return found.no_direct_path
    return ""


def direct_effects(
    model: HookedModel,
    batches: Sequence[Batch],
    metric: Metric,
    heads: Sequence[tuple[str, int]],
    kind: Kind = "resample",
    *,
    others: Sequence[Batch] = (),
    weights: Weights | None = None,
) -> Float[NDArray[np.float64], "head sequence"]:
    """The change of a metric by each head's direct path alone; paired with the total effects of the same batches.

    Args:
        model, batches, metric, others: as for :func:`interp.ablation.ablation_effects`.
        heads: as (site name, head).
        kind: what takes the place of z: ``zero``, ``mean`` or ``resample``.
        weights: of the model, if they were read before.

    Raises:
        UserError: a head has no direct effect by this definition, and why.
    """
    weights = weights or Weights.from_transformers(model.module, output_head_loaded=model.output_head_loaded)
    for name, _ in heads:
        if why := why_no_direct_effect(weights, model.site(name).path):
            raise UserError(f"{name}: {why}, so its heads have no direct effect")
    put_in = replacements(model, batches, kind, others)
    changes = [
        _of_batch(model, batch, metric, heads, given, weights) for batch, given in zip(batches, put_in, strict=True)
    ]
    return np.concatenate(changes, axis=1)


def _of_batch(
    model: HookedModel,
    batch: Batch,
    metric: Metric,
    heads: Sequence[tuple[str, int]],
    put_in: Mapping[str, Tensor],
    weights: Weights,
) -> Float[NDArray[np.float64], "head sequence"]:
    stack = model.site(heads[0][0]).stack
    blocks = stack_blocks(model, stack)
    last = max(heads, key=lambda head: model.site(head[0]).layer)
    runs = [*runs_before(model, [last])[1:], blocks]
    norm = None if weights.final_norm is None else model.module.get_submodule(weights.final_norm.path)
    z = model.run(**batch, **without_logits(model), keep="z", sites=sorted({name for name, _ in heads})).z
    with outputs_of({run[-1] for run in runs} | ({norm} if norm is not None else set())) as outputs:
        untouched = _numbers(metric(model, batch))
    stream = outputs[blocks[-1]]
    found = []
    for name, head in heads:
        given = put_in[name][:, head] if name in put_in else 0.0
        change = (given - z[name][:, head]) @ _written(model, name, head).to(z[name])
        with ExitStack() as changed:
            changed.enter_context(replayed(runs, outputs))
            end = stream if norm is not None else _added(stream, change)
            changed.enter_context(computed_by(blocks[-1], lambda *_, end=end, **__: _standing_in(model, last[0], end)))
            if norm is not None:
                normed = outputs[norm] + _frozen(weights.final_norm, _first(stream), change).to(outputs[norm])
                changed.enter_context(computed_by(norm, lambda x, *_, normed=normed, **__: _like(normed, x)))
            found.append(_numbers(metric(model, batch)) - untouched)
    return np.stack(found)


def _standing_in(model: HookedModel, site: str, output: Any) -> Any:
    """A layer's output from before, in the place of a site that the pass then counts as having come to."""
    for watch in model.seam.watches:
        watch.reached.add(site)
    return output


def _written(model: HookedModel, site: str, head: int) -> Float[Tensor, "d_head d_model"]:
    weights: Any = model.site(site).weights()
    return weights.W_O[head].detach()


def _frozen(norm: Norm | None, stream: Tensor, change: Tensor) -> Tensor:
    """What a change of the stream makes of its norm, the norm's divisor being that of the stream without it."""
    assert norm is not None
    divisor = (norm.centered(stream).square().mean(-1, keepdim=True) + norm.eps).rsqrt()
    return norm.centered(change) * divisor * norm.gain.to(change)


def _first(output: Any) -> Tensor:
    return output if isinstance(output, Tensor) else output[0]


def _added(output: Any, change: Tensor) -> Any:
    return output + change if isinstance(output, Tensor) else (output[0] + change, *output[1:])


def _like(normed: Tensor, x: Tensor) -> Tensor:
    """The normed stream at the positions that the model asks for (the last ones, where it wants few logits)."""
    return normed[:, -x.shape[1] :]


def _numbers(values: Tensor) -> NDArray[np.float64]:
    return values.detach().double().cpu().numpy()


def known_weights(model: HookedModel) -> Weights | None:
    """The weights as circuits are made of them; None where they cannot be read."""
    module: nn.Module = model.module
    try:
        return Weights.from_transformers(module, output_head_loaded=model.output_head_loaded)
    except (UserError, AttributeError):
        return None
