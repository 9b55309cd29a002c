"""What breaks when heads are taken out: ablations of sets of heads, and their effects, sequence by sequence.

A head is taken out at its output z, before W_O, so that nothing but this head is touched:

- ``zero``: z = 0;
- ``mean``: z = its mean over the positions of other sequences;
- ``resample``: z = that of another sequence at the same position;
- ``mean_pattern``: its pattern becomes its mean pattern over other sequences (Hassid et al. 2022), which asks what its
  attention is worth rather than its output;
- ``pattern_preserving``: z = 0 while every head of every layer keeps the pattern that it has in the untouched run
  (Olsson et al. 2022), so that what changes has not come about by later heads looking elsewhere. Patterns are computed
  again from the untouched queries and keys; edits of patterns that are active meanwhile are not in them.
"""

from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import Any

import numpy as np
import torch
from jaxtyping import Float
from numpy.typing import NDArray
from torch import Tensor, nn

from interp.errors import UserError
from interp.models.hooked import HookedModel
from interp.models.replaying import blocks_before, outputs_of, replayed, runs_before
from interp.models.sliced_loss import sliced_token_loss
from interp.replacements import (
    FROM_OTHERS,
    Batch,
    Kind,
    Places,
    mean_patterns,
    mean_z,
    replacements,
    resampled_z,
    without_logits,
)

__all__ = [
    "Batch",
    "Effects",
    "Kind",
    "Metric",
    "ablation_effects",
    "all_but_one",
    "blocks_before",
    "mean_loss",
    "mean_z",
    "measured",
    "replacements",
    "single_heads",
    "without_logits",
]

#: A head as (site name, head), or (layer, head) where a model has one stack.
Head = tuple[str, int] | tuple[int, int]

#: Runs the model on a batch, under whatever edits are active, and gives one number per sequence.
Metric = Callable[[HookedModel, Batch], Float[Tensor, " sequence"]]

Passes = Iterable[NDArray[np.float64]]

#: Shows progress: takes the forward passes, what they are and how many, and hands them on.
Watch = Callable[[Passes, str, int], Passes]


@dataclass(frozen=True, eq=False)
class Effects:
    """A metric with and without sets of heads.

    Attributes:
        kinds: the ways of ablation; they label the first axis of ``ablated``.
        sets: the sets of heads, as (site name, head); they label the second.
        untouched: the metric of the model as it is.
        ablated: the metric without the heads.
    """

    kinds: tuple[Kind, ...]
    sets: tuple[tuple[tuple[str, int], ...], ...]
    untouched: Float[NDArray[np.float64], " sequence"]
    ablated: Float[NDArray[np.float64], "kind set sequence"]

    @property
    def change(self) -> Float[NDArray[np.float64], "kind set sequence"]:
        """``ablated − untouched``, paired by sequence."""
        return self.ablated - self.untouched


def ablation_effects(
    model: HookedModel,
    batches: Sequence[Batch],
    metric: Metric,
    sets: Sequence[Collection[Head]],
    kinds: Sequence[Kind] = ("zero",),
    *,
    others: Sequence[Batch] = (),
    replay: bool = False,
    at_once: int = 1,
    watch: Watch = lambda passes, what, total: passes,
) -> Effects:
    """A metric of each sequence without each of some sets of heads, ablated in each of some ways.

    Args:
        model: with its own edits, if any are active, in both arms.
        batches: the sequences that effects are measured on.
        metric: one number per sequence, as ``lambda model, batch: model.token_loss(**batch).mean(1)``.
        sets: the heads to take out together; :func:`single_heads` makes one set of each head.
        kinds: ways of ablation.
        others: sequences that ``mean``, ``resample`` and ``mean_pattern`` take what they put in from; none of those
            measured should be among them. ``resample`` gives sequence i of a batch the outputs of sequence i of the
            batch of others with its number (from the start again where there are fewer), which must be as long and
            without padding.
        replay: let the layers before the first ablated one give back what they gave in the untouched pass, instead of
            computing it again. The numbers are the same, if the metric depends on the model's output alone: probes,
            hooks and edits of those layers are not reached.
        at_once: how many sets that leave the same layers as they are (heads of one layer, say) go into one pass, as so
            many copies of the batch: for a GPU, which a small batch leaves idle. ``pattern_preserving`` takes one.
        watch: shows progress, as :meth:`interp.results.Workspace.progress` does.

    Raises:
        UserError: an empty set, no such head, ``others`` missing or of another length, or a model that computes its own
            attention, whose heads can be zeroed and nothing else.
        ValueError: the metric did not give one number per sequence.
    """
    heads = [[(model.site(where).name, head) for where, head in chosen] for chosen in sets]
    if at_once < 1:
        raise ValueError(f"at_once must be at least 1; got {at_once}")
    _check(model, heads, kinds, others)
    plan = _Plan(model, batches, metric, heads, tuple(kinds), others, replay, at_once)
    rows = list(watch(plan.passes(), "forward passes", len(batches) * (1 + len(kinds) * len(sets))))
    per_batch = 1 + len(kinds) * len(sets)
    whole = np.concatenate([np.stack(rows[i : i + per_batch]) for i in range(0, len(rows), per_batch)], axis=1)
    ablated = whole[1:].reshape(len(kinds), len(sets), -1)
    return Effects(tuple(kinds), tuple(map(tuple, heads)), whole[0], ablated)


def single_heads(model: HookedModel) -> list[tuple[tuple[str, int]]]:
    """One set of each head, in order of execution."""
    return [((site.name, head),) for site in model.sites for head in range(site.n_heads)]


def all_but_one(model: HookedModel) -> dict[tuple[str, int], tuple[tuple[str, int], ...]]:
    """For each head, the other heads of its site: what goes where only this one stays. Sites of one head have none."""
    whole = {site.name: range(site.n_heads) for site in model.sites if site.n_heads > 1}
    return {
        (name, head): tuple((name, h) for h in heads if h != head) for name, heads in whole.items() for head in heads
    }


def mean_loss(model: HookedModel, batch: Batch) -> Float[Tensor, " sequence"]:
    """A metric: mean next-token loss of each sequence, in nats; its logits are not held where nothing needs them."""
    return sliced_token_loss(model, **batch).nanmean(1)


@dataclass(eq=False)
class _Plan:
    """The forward passes of one call of `ablation_effects`, batch by batch: first untouched, then each kind and set."""

    model: HookedModel
    batches: Sequence[Batch]
    metric: Metric
    sets: Sequence[Sequence[tuple[str, int]]]
    kinds: tuple[Kind, ...]
    others: Sequence[Batch]
    replay: bool
    at_once: int

    def passes(self) -> Iterator[NDArray[np.float64]]:
        """The metric of a batch's sequences, untouched and then for each kind and set."""
        sites = sorted({site for heads in self.sets for site, _ in heads})
        before = [runs_before(self.model, heads) if self.replay else [] for heads in self.sets]
        mean = replacements(self.model, [{}], "mean", self.others)[0] if "mean" in self.kinds else {}
        for number, batch in enumerate(self.batches):
            places = Places({"mean": mean})
            if "resample" in self.kinds:
                other = self.others[number % len(self.others)]
                places.outputs["resample"] = resampled_z(self.model, batch, other, sites)
            if "mean_pattern" in self.kinds:
                places.patterns = mean_patterns(self.model, batch, self.others, sites)
            if "pattern_preserving" in self.kinds:
                places.traces = self.model.run(**batch, **without_logits(self.model), keep="qk").traces
            with outputs_of({run[-1] for runs in before for run in runs}) as outputs:
                untouched = self._measured(batch, 1)
            yield untouched[0]
            for kind in self.kinds:
                for group in self._groups(before, 1 if kind == "pattern_preserving" else self.at_once):
                    heads = [self.sets[i] for i in group]
                    edits = places.edits(kind, heads, untouched.shape[1])
                    with replayed(before[group[0]], outputs, len(group)), self.model.edit(*edits):
                        found = self._measured(batch, len(group))
                    yield from found

    @staticmethod
    def _groups(before: Sequence[Sequence[Sequence[nn.Module]]], at_once: int) -> Iterator[list[int]]:
        """Numbers of sets that follow each other and leave the same layers as they are, a few at a time."""
        for _, same in groupby(range(len(before)), key=lambda i: [run[-1] for run in before[i]]):
            numbers = list(same)
            yield from (numbers[i : i + at_once] for i in range(0, len(numbers), at_once))

    def _measured(self, batch: Batch, times: int) -> Float[NDArray[np.float64], "variant sequence"]:
        given = batch if times == 1 else repeated(batch, times)
        return measured(self.model, given, self.metric).reshape(times, -1)


def measured(model: HookedModel, batch: Batch, metric: Metric) -> Float[NDArray[np.float64], " sequence"]:
    """The metric of a batch's sequences, if it is what it must be.

    Raises:
        ValueError: it is not one finite number per sequence.
    """
    values = metric(model, batch).detach().double().cpu().numpy()
    n = len(torch.as_tensor(batch["tokens"]))
    if values.shape != (n,):
        raise ValueError(f"a metric gives one number per sequence, [{n}]; got {list(values.shape)}")
    if not np.isfinite(values).all():
        raise ValueError(f"a metric must be finite; got {values[~np.isfinite(values)][0]} for a sequence")
    return values


def repeated(batch: Batch, times: int) -> dict[str, Any]:
    """A batch with all of its sequences so many times, one after the other."""
    n = len(torch.as_tensor(batch["tokens"]))

    def repeat(value: Any) -> Any:
        if isinstance(value, Tensor) and value.ndim and len(value) == n:
            return value.repeat(times, *[1] * (value.ndim - 1))
        return value * times if isinstance(value, list) and len(value) == n else value

    return {name: repeat(value) for name, value in batch.items()}


def _check(
    model: HookedModel, sets: Sequence[Sequence[tuple[str, int]]], kinds: Sequence[Kind], others: Sequence[Batch]
) -> None:
    if not all(sets):
        raise UserError("a set of heads to ablate holds at least one head; got an empty one")
    needing = [kind for kind in FROM_OTHERS if kind in kinds]
    if needing and not others:
        raise UserError(f"{' and '.join(needing)} ablation need other sequences to take outputs from: give others=")
    own = [site.name for site in model.sites if site.source == "softmax"]
    if own and set(kinds) != {"zero"}:
        raise UserError(
            f"{own[0]} computes its own attention, whose outputs and keys are out of reach: its heads can be zeroed "
            f"and nothing else; got {', '.join(kinds)}"
        )
