"""What an ablation puts in the place of heads, and the edits that put it there.

``zero``: nothing; ``mean``: the head's mean output over the positions of other sequences; ``resample``: its output on
another sequence at the same position; ``mean_pattern``: its mean pattern over other sequences, in place of its pattern
(Hassid et al. 2022); ``pattern_preserving``: nothing, while every head keeps its pattern (Olsson et al. 2022).
"""

import inspect
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar, Literal

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from interp.attention import Traces
from interp.attention.edits import Edit, GateHeads, Replay
from interp.attention.edits.base import Stage, put, rows_of
from interp.attention.rows import Block
from interp.errors import UserError
from interp.models.hooked import HookedModel

__all__ = ["Batch", "Kind", "Places", "mean_patterns", "mean_z", "replacements", "resampled_z", "without_logits"]

Kind = Literal["zero", "mean", "resample", "mean_pattern", "pattern_preserving"]

#: Arguments of :meth:`HookedModel.run` for some sequences: ``tokens``, and ``valid``, ``decoder_tokens``, … as needed.
Batch = Mapping[str, Any]

#: Kinds that take what they put in from other sequences.
FROM_OTHERS: tuple[Kind, ...] = ("mean", "resample", "mean_pattern")


def replacements(
    model: HookedModel, batches: Sequence[Batch], kind: Kind, others: Sequence[Batch] = ()
) -> list[dict[str, Float[Tensor, "#batch head #query d_head"]]]:
    """What a kind of ablation puts in the place of z, for each batch: by site; empty where it puts nothing there.

    Raises:
        UserError: ``others`` are missing, or of another length. ValueError: a kind that puts in patterns.
    """
    match kind:
        case "zero":
            return [{} for _ in batches]
        case "mean" | "resample" if not others:
            raise UserError(f"{kind} ablation needs other sequences to take outputs from: give others=")
        case "mean":
            means = mean_z(model, others, [site.name for site in model.sites])
            whole = {name: z[None, :, None] for name, z in means.items()}
            return [whole for _ in batches]
        case "resample":
            names = [site.name for site in model.sites]
            return [resampled_z(model, b, others[i % len(others)], names) for i, b in enumerate(batches)]
    raise ValueError(f"{kind} ablation replaces patterns, not outputs z")


def mean_z(
    model: HookedModel, batches: Iterable[Batch], sites: Collection[str]
) -> dict[str, Float[Tensor, "head d_head"]]:
    """Mean output of every head of some sites over all positions that are not padding."""
    sums: dict[str, Tensor] = {}
    counts: dict[str, float] = {}
    for batch in batches:
        run = model.run(**batch, **without_logits(model), keep="z", sites=sites)
        for name, z in run.z.items():
            valid = batch.get("decoder_valid" if model.site(name).stack == "decoder" else "valid")
            weight = z.new_ones(z.shape[0], z.shape[2]) if valid is None else valid.to(z)
            sums[name] = sums.get(name, 0) + torch.einsum("bhqd,bq->hd", z.double(), weight.double())
            counts[name] = counts.get(name, 0) + float(weight.sum())
    return {name: total / counts[name] for name, total in sums.items()}


def resampled_z(
    model: HookedModel, batch: Batch, other: Batch, sites: Collection[str]
) -> dict[str, Float[Tensor, "sequence head query d_head"]]:
    """The outputs of another batch's sequences, in turn, one for each sequence of a batch.

    Raises:
        UserError: sequences of different lengths, or padding.
    """
    here, there = _same_lengths(batch, other, "resampling takes a head's output of another sequence")
    z = model.run(**other, **without_logits(model), keep="z", sites=sites).z
    donor = torch.arange(here) % there
    return {name: kept[donor.to(kept.device)] for name, kept in z.items()}


def mean_patterns(
    model: HookedModel, batch: Batch, others: Sequence[Batch], sites: Collection[str]
) -> dict[str, Float[Tensor, "head query key"]]:
    """Every head's mean pattern, T × T, over other sequences, which are as long as those of a batch.

    Raises:
        UserError: sequences of different lengths, or padding.
    """
    sums: dict[str, Tensor] = {}
    count = 0
    for other in others:
        count += _same_lengths(batch, other, "a mean pattern is a mean over sequences at the same positions")[1]
        traces = model.run(**other, **without_logits(model), keep="qk", sites=sites).traces
        for name in sites:
            _, n_heads, n_queries = traces[name].query.shape[:3]
            for rows in (block[name] for block in traces.row_blocks([name])):
                nothing = rows.pattern.new_zeros(n_heads, n_queries, traces[name].key.shape[2])
                whole = sums.setdefault(name, nothing)
                whole[:, rows.start : rows.stop, rows.low : rows.high] += rows.pattern.sum(0)
    return {name: total / count for name, total in sums.items()}


def without_logits(model: HookedModel) -> dict[str, Any]:
    """Arguments of a run that spare the unembedding, where nobody reads the logits and the model lets one say so."""
    return {"logits_to_keep": 1} if "logits_to_keep" in inspect.signature(model.module.forward).parameters else {}


@dataclass(eq=False)
class Places:
    """What ablations of one batch put in the heads' places.

    Attributes:
        outputs: by kind and site, in place of z: broadcastable to [sequence, head, query, d_head].
        patterns: by site, mean patterns.
        traces: of the untouched run.
    """

    outputs: dict[Kind, Mapping[str, Tensor]] = field(default_factory=dict)
    patterns: Mapping[str, Tensor] = field(default_factory=dict)
    traces: Traces | None = None

    def edits(self, kind: Kind, variants: Sequence[Sequence[tuple[str, int]]], n: int) -> tuple[Edit, ...]:
        """The edits that take each variant's heads out of its share of the batch, which holds n sequences once for
        each variant, one after the other."""
        rows: dict[tuple[str, int], Tensor] = {}
        for number, heads in enumerate(variants):
            for head in heads:
                mine = rows.setdefault(head, torch.zeros(len(variants), n, 1, dtype=torch.bool))
                mine[number] = True
        out = {head: mine.flatten(0, 1) for head, mine in rows.items()}
        if kind == "mean_pattern":
            return (_Swap({(s, h): (here, self.patterns[s][h][None]) for (s, h), here in out.items()}),)
        if kind in ("mean", "resample"):
            given = {(s, h): self._output(kind, s, h, len(variants)) for s, h in out}
            return (_SwapZ({head: (here, given[head]) for head, here in out.items()}),)
        gates = GateHeads({head: (~here).float() for head, here in out.items()})
        if kind == "zero":
            return (gates,)
        assert self.traces is not None  # kept for this kind, whose variants come one at a time
        return (Replay(traces=self.traces), gates)

    def _output(self, kind: Kind, site: str, head: int, times: int) -> Tensor:
        z = self.outputs[kind][site][:, head]
        return z.repeat(times, 1, 1) if len(z) > 1 else z


@dataclass(frozen=True, eq=False)
class _Swap(Edit):
    """Put given pattern rows in place of a head's in some sequences: heads → (sequences [batch, 1], weights)."""

    heads: Mapping[Any, tuple[Bool[Tensor, "batch 1"], Float[Tensor, "#batch query key"]]]
    stage: ClassVar[Stage] = "pattern"
    _dimensions: ClassVar[tuple[str, ...]] = ("batch", "query", "key")

    def apply(self, x: Tensor, block: Block) -> Tensor:
        """The tensor with the given values in place."""
        heads = self.selected(x.shape[1])
        new = []
        for head in heads:
            where, given = self.heads[head]
            given = rows_of(given, self._dimensions, block, "replacements").to(x)
            new.append(torch.where(where.to(x.device)[..., None], given, x[:, head]))
        return put(x, heads, torch.stack(new, 1))


@dataclass(frozen=True, eq=False)
class _SwapZ(_Swap):
    """The same with outputs z: heads → (sequences [batch, 1], z [#batch, #query, d_head])."""

    stage: ClassVar[Stage] = "z"
    _dimensions: ClassVar[tuple[str, ...]] = ("batch", "query", "d_head")


def _same_lengths(batch: Batch, other: Batch, why: str) -> tuple[int, int]:
    """How many sequences two batches hold, whose positions correspond."""
    names = [name for name in ("tokens", "decoder_tokens") if name in batch]
    here, there = ([torch.as_tensor(each[name]).shape for name in names] for each in (batch, other))
    padded = any(each.get(name) is not None for each in (batch, other) for name in ("valid", "decoder_valid"))
    if [shape[1] for shape in here] != [shape[1] for shape in there] or padded:
        raise UserError(
            f"{why} at the same position: all sequences must be equally long and without padding; got "
            f"{here[0][1]} and {there[0][1]} positions" + (", some of them padding" if padded else "")
        )
    return here[0][0], there[0][0]
