"""What is read off the attention and the logits, sequence by sequence."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import pandas as pd
import torch
from jaxtyping import Int
from numpy.typing import NDArray
from torch import Tensor

from analyses.induction_heads.config import Config
from analyses.induction_heads.inputs import Inputs, even_batches
from interp import HookedModel
from interp.ablation import without_logits
from interp.attention.probes import LabelMatch, OffsetMass, PositionMass, Probe, TargetMass
from interp.data import RepeatedTokens, Sequences
from interp.errors import UserError
from interp.model_data import pass_arguments
from interp.models.loss import next_token_loss
from interp.models.recording import Run
from interp.models.sites import AttentionSite
from interp.results import Workspace
from interp.results.tables import empty_table

#: Scores of the table ``heads``, in its order.
METRICS = ("prefix_matching", "duplicate_token", "previous_token", "current_token", "first_position")

#: Control of ``previous_token``: the same rows' attention to the token before the previous one.
SECOND_PREVIOUS = "second_previous_token"

#: Attention to the token after the row's own. No score: it has a value at sites that read both ways, and no other.
NEXT = "next_token"


@dataclass(frozen=True, eq=False)
class Measure:
    """A score as one label of what a probe reads.

    Attributes:
        metric: its name.
        probe: what reads it.
        label: which of the values that the probe reads for each head; None where it reads one.
    """

    metric: str
    probe: Probe
    label: int | None = None


def measures(batch: Sequences) -> tuple[Measure, ...]:
    """What is read of a batch. The targets of repeated tokens are known; in a text they are what matches.

    prefix_matching: mass on the tokens after earlier occurrences of the row's token; duplicate_token: on these
    occurrences themselves. Eligible are rows with an earlier occurrence (in the control, those of the later copies).
    current_token and first_position are taken from row 1 on: row 0 has no choice.
    """
    if isinstance(batch, RepeatedTokens):
        induction: Probe = TargetMass(targets=batch.induction_targets)
        duplicate: Probe = TargetMass(targets=batch.duplicate_targets)
    else:
        labels = batch.tokens.masked_fill(~batch.valid, -1)
        induction, duplicate = LabelMatch(labels=labels, shift=1), LabelMatch(labels=labels, shift=0)
    beside = OffsetMass(offsets=(1, 2, -1))
    return (
        Measure("prefix_matching", induction),
        Measure("duplicate_token", duplicate),
        Measure("previous_token", beside, 0),
        Measure(SECOND_PREVIOUS, beside, 1),
        Measure(NEXT, beside, 2),
        Measure("current_token", OffsetMass(offsets=(0,), first_position=1), 0),
        Measure("first_position", PositionMass(positions=(0,), first_position=1), 0),
    )


def not_applicable(site: AttentionSite, metric: str) -> str:
    """Why a score is not defined at a site; "" where it is."""
    if site.kind == "cross" and metric != "first_position":
        return "not applicable: cross-attention reads another sequence, in which nothing is before or after the query"
    return ""


def measure(model: HookedModel, given: Inputs, config: Config, work: Workspace) -> dict[str, pd.DataFrame]:
    """Every score of every head in every sequence, and the loss of every next token where the model has one.

    Returns:
        ``scores``: ``data, metric, site, layer, head, sequence, value, chance``; value NaN where no row is eligible.
        ``losses``: ``data, sequence, position, loss``; the loss, in nats, of the token at that position.
    """
    with_loss = not why_no_loss(model)
    batches = [(data, batch) for data, whole in given.by_name.items() for batch in even_batches(whole, config)]
    started: dict[str, int] = dict.fromkeys(given.by_name, 0)
    scores, losses = [], []
    for data, batch in work.progress(batches, "batches of sequences"):
        first = started[data]
        started[data] += len(batch)
        wanted = measures(batch)
        spare = {} if with_loss else without_logits(model)
        probes = list({id(each.probe): each.probe for each in wanted}.values())
        run = model.run(**pass_arguments(model, batch), probes=probes, **spare)
        scores += [table.assign(data=data) for table in scores_of(run, wanted, first)]
        if with_loss:
            losses.append(_losses(run, batch, first).assign(data=data))
    nothing = empty_table(_LOSSES)
    return {
        "scores": pd.concat(scores, ignore_index=True),
        "losses": pd.concat(losses, ignore_index=True) if losses else nothing,
    }


def scores_of(run: Run, wanted: Sequence[Measure], first: int = 0) -> Iterator[pd.DataFrame]:
    """What a run read, a table for each score and site: ``metric, site, layer, head, sequence, value, chance``.

    Args:
        run: with the measures' probes.
        wanted: what to take from it.
        first: number of the batch's first sequence.
    """
    for each in wanted:
        chances = run.chance(each.probe)
        for site in run.sites:
            reading = run.readings(each.probe).get(site.name)
            if reading is None or not_applicable(site, each.metric):
                continue
            value = _one(reading.values, each.label)
            chance = _one(chances[site.name], each.label).expand(value.shape)
            n, n_heads = value.shape
            yield pd.DataFrame(
                {
                    "metric": each.metric,
                    "site": site.name,
                    "layer": site.layer,
                    "head": np.tile(np.arange(n_heads), n),
                    "sequence": np.repeat(np.arange(first, first + n), n_heads),
                    "value": _numbers(value),
                    "chance": _numbers(chance),
                }
            )


def why_no_loss(model: HookedModel) -> str:
    """Why the model has no next-token loss; "" where it has one."""
    try:
        model.require_loss()
    except UserError as reason:
        return str(reason)
    return ""


_LOSSES = {"data": str, "sequence": int, "position": int, "loss": float}


def _losses(run: Run, batch: Sequences, first: int) -> pd.DataFrame:
    valid: Tensor | None = None if bool(batch.valid.all()) else batch.valid
    loss = next_token_loss(run.logits, batch.tokens, valid)
    n, n_positions = loss.shape
    table = pd.DataFrame(
        {
            "sequence": np.repeat(np.arange(first, first + n), n_positions),
            "position": np.tile(np.arange(1, n_positions + 1), n),
            "loss": _numbers(loss),
        }
    )
    return table.dropna()


def _one(values: Tensor, label: int | None) -> Tensor:
    return values if label is None else values[..., label]


def _numbers(values: Tensor) -> NDArray[np.float64]:
    return values.detach().double().cpu().numpy().ravel()


def later_rows(repeated: RepeatedTokens) -> Int[Tensor, " row"]:
    """Rows of the later copies, from which the next token could be told by induction: all but the very last row."""
    eligible = repeated.eligible[0]
    within = torch.arange(repeated.n_positions) < repeated.start + repeated.period * repeated.repeats - 1
    return (eligible & within).nonzero().flatten()
