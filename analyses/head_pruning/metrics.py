"""What heads matter for: a number per sequence, lower for a better model."""

import importlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, cast

import numpy as np
import torch
from jaxtyping import Float, Int
from numpy.typing import NDArray
from torch import Tensor

from interp import HookedModel
from interp.ablation import Batch, Metric, mean_loss, measured
from interp.attention.edits import GateHeads
from interp.errors import UserError
from interp.models.loss import next_token_loss

_TEMPERATURE = 0.05  # of the cosines in `continuation_loss`, as sentence encoders are trained with
_MASKED_SHARE = 0.15


@dataclass(frozen=True, eq=False)
class Measure:
    """A metric with its name.

    Attributes:
        name: in words. ``unit``: of its values; "" where it has none.
        metric: what is reported.
        scored: what importance is the derivative of: the same, or a loss where the metric has no derivative.
    """

    name: str
    unit: str
    metric: Metric
    scored: Metric


def loss_after(first: int) -> Metric:
    """Mean loss of the tokens from position ``first`` + 1 on, in nats: those that can be told from what came before."""

    def loss(model: HookedModel, batch: Batch) -> Float[Tensor, " sequence"]:
        return model.token_loss(**batch)[:, first:].nanmean(1)

    return loss


def decoder_loss(model: HookedModel, batch: Batch) -> Float[Tensor, " sequence"]:
    """Mean loss of the decoder's next token, in nats."""
    tokens = torch.as_tensor(batch["decoder_tokens"])
    return next_token_loss(model.run(**batch).logits, tokens, batch.get("decoder_valid")).nanmean(1)


def token_errors(model: HookedModel, batch: Batch) -> Float[Tensor, " sequence"]:
    """Share of the next tokens that are not the likeliest one: 1 − accuracy."""
    name = "decoder_tokens" if model.is_encoder_decoder else "tokens"
    logits = model.run(**batch).logits
    assert logits is not None  # a model whose loss is defined has logits
    wrong = logits[:, :-1].argmax(-1) != torch.as_tensor(batch[name]).to(logits.device)[:, 1:]
    return wrong.float().mean(1)


class ByRow:
    """What belongs to each of some sequences, found by the sequence itself: metrics see batches, not row numbers."""

    def __init__(self, tokens: Int[Tensor, "sequence position"]) -> None:
        self._number = {_key(row): i for i, row in enumerate(tokens)}

    def numbers(self, tokens: Int[Tensor, "row position"]) -> Int[Tensor, " row"]:
        """The numbers of some of the sequences."""
        return torch.tensor([self._number[_key(row)] for row in tokens])


def masked_loss(
    tokens: Int[Tensor, "sequence position"], mask: int, special: Sequence[int], seed: int
) -> tuple[Int[Tensor, "sequence position"], Metric]:
    """Tokens of which 15 % are masked, and the mean loss of those, in nats."""
    generator = torch.Generator().manual_seed(seed)
    noise = torch.rand(tokens.shape, generator=generator)
    noise = noise.masked_fill(torch.isin(tokens, torch.tensor([*special, mask])), 2.0)
    count = max(1, round(_MASKED_SHARE * tokens.shape[1]))
    hidden = noise.argsort(1)[:, :count]
    given, answers = tokens.scatter(1, hidden, mask), tokens.gather(1, hidden)
    rows = ByRow(given)

    def loss(model: HookedModel, batch: Batch) -> Float[Tensor, " sequence"]:
        which = rows.numbers(batch["tokens"])
        logits = model.run(**batch).logits
        assert logits is not None  # asked for only where there are some
        at, target = hidden[which].to(logits.device), answers[which].to(logits.device)
        chosen = logits.gather(1, at[..., None].expand(-1, -1, logits.shape[-1])).float()
        return torch.nn.functional.cross_entropy(chosen.transpose(1, 2), target, reduction="none").mean(1)

    return given, loss


def continuation_loss(
    model: HookedModel, begun: Int[Tensor, "sequence position"], goes_on: Int[Tensor, "sequence position"]
) -> Metric:
    """For encoders without a head: how well the beginning of a passage finds its continuation among those of others.

    −log softmax of the cosines between the mean of the last layer's outputs for the beginning, and those that the
    untouched model gives for each continuation, divided by 0.05; in nats. Chance is log of the number of sequences.
    """
    rows = ByRow(begun)
    anchors = torch.cat([_embedded(model, {"tokens": part}) for part in goes_on.split(16)]).detach()

    def loss(model: HookedModel, batch: Batch) -> Float[Tensor, " sequence"]:
        which = rows.numbers(batch["tokens"]).to(anchors.device)
        cosines = _embedded(model, batch) @ anchors.T / _TEMPERATURE
        return torch.nn.functional.cross_entropy(cosines, which, reduction="none")

    return loss


def own_metric(name: str) -> Metric:
    """The function that ``package.module:function`` names.

    Raises:
        UserError: there is none.
    """
    module, _, function = name.partition(":")
    try:
        found: Any = getattr(importlib.import_module(module), function)
    except (ImportError, AttributeError) as error:
        raise UserError(f"--metric {name}: {error}") from None
    if not callable(found):
        raise UserError(f"--metric {name} is not a function of a model and a batch")
    return cast(Metric, found)


def causal_loss(first: int | None) -> Metric:
    """Mean next-token loss, of all tokens or of those after some position."""
    return mean_loss if first is None else loss_after(first)


def values_under(
    model: HookedModel, batches: Sequence[Batch], metric: Metric, gates: Mapping[tuple[str, int], float]
) -> Float[NDArray[np.float64], " sequence"]:
    """A metric of every sequence while some heads' outputs are multiplied by their gates.

    Raises:
        ValueError: the metric is not one finite number per sequence.
    """
    with torch.no_grad(), model.edit(*([GateHeads(gates)] if gates else [])):
        return np.concatenate([measured(model, batch, metric) for batch in batches])


def has_gradient(model: HookedModel, metric: Metric, batch: Batch) -> bool:
    """Whether a metric can be differentiated, by its value on a batch."""
    with torch.enable_grad():
        return bool(getattr(metric(model, {**batch, "grad": True}), "requires_grad", False))


def _embedded(model: HookedModel, batch: Batch) -> Float[Tensor, "sequence d_model"]:
    output: Any = model.run(**batch).output
    hidden = getattr(output, "last_hidden_state", None)
    if hidden is None:  # a task's own head: its logits, position by position, say as much about the sequence
        hidden = output[0] if isinstance(output, tuple) else output.logits
    mean = hidden.float().mean(1) if hidden.ndim == 3 else hidden.float()
    return torch.nn.functional.normalize(mean, dim=-1)


def _key(row: Tensor) -> bytes:
    return row.cpu().numpy().tobytes()
