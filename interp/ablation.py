"""What breaks when heads are taken out: ablations of sets of heads, and their effects, sequence by sequence.

A head is taken out at its output z, before W_O, so that nothing but this head is touched:

- ``zero``: z = 0;
- ``mean``: z = its mean over the positions of other sequences;
- ``resample``: z = that of another sequence at the same position;
- ``pattern_preserving``: z = 0 while every head of every layer keeps the pattern that it has in the untouched run
  (Olsson et al. 2022), so that what changes has not come about by later heads looking elsewhere. Patterns are computed
  again from the untouched queries and keys; edits of patterns that are active meanwhile are not in them.
"""

import inspect
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from typing import Any, Literal

import numpy as np
import torch
from jaxtyping import Float
from numpy.typing import NDArray
from torch import Tensor, nn

from interp.attention import Traces
from interp.attention.edits import Edit, GateHeads, ReplaceZ, Replay
from interp.errors import UserError
from interp.models.hooked import HookedModel
from interp.models.module_inputs import ModuleInputs
from interp.models.stacks import layer_path

__all__ = ["Effects", "Kind", "ablation_effects", "mean_z", "single_heads", "without_logits"]

Kind = Literal["zero", "mean", "resample", "pattern_preserving"]

#: A head as (site name, head), or (layer, head) where a model has one stack.
Head = tuple[str, int] | tuple[int, int]

#: Arguments of :meth:`HookedModel.run` for some sequences: ``tokens``, and ``valid``, ``decoder_tokens``, … as needed.
Batch = Mapping[str, Any]

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
    watch: Watch = lambda passes, what, total: passes,
) -> Effects:
    """A metric of each sequence without each of some sets of heads, ablated in each of some ways.

    Args:
        model: with its own edits, if any are active, in both arms.
        batches: the sequences that effects are measured on.
        metric: one number per sequence, as ``lambda model, batch: model.token_loss(**batch).mean(1)``.
        sets: the heads to take out together; :func:`single_heads` makes one set of each head.
        kinds: ways of ablation.
        others: sequences that ``mean`` and ``resample`` take their outputs from; none of those measured should be
            among them. ``resample`` gives sequence i of a batch the outputs of sequence i of the batch of others with
            its number (from the start again where there are fewer), which must be as long and without padding.
        replay: let the layers before the first ablated one give back what they gave in the untouched pass, instead of
            computing it again. The numbers are the same, if the metric depends on the model's output alone: probes,
            hooks and edits of those layers are not reached.
        watch: shows progress, as :meth:`interp.results.Workspace.progress` does.

    Raises:
        UserError: an empty set, no such head, ``others`` missing or of another length, or a model that computes its own
            attention, whose heads can be zeroed and nothing else.
        ValueError: the metric did not give one number per sequence.
    """
    heads = [[(model.site(where).name, head) for where, head in chosen] for chosen in sets]
    _check(model, heads, kinds, others)
    plan = _Plan(model, batches, metric, heads, tuple(kinds), others, replay)
    rows = list(watch(plan.passes(), "forward passes", len(batches) * (1 + len(kinds) * len(sets))))
    per_batch = 1 + len(kinds) * len(sets)
    whole = np.concatenate([np.stack(rows[i : i + per_batch]) for i in range(0, len(rows), per_batch)], axis=1)
    ablated = whole[1:].reshape(len(kinds), len(sets), -1)
    return Effects(tuple(kinds), tuple(map(tuple, heads)), whole[0], ablated)


def single_heads(model: HookedModel) -> list[tuple[tuple[str, int]]]:
    """One set of each head, in order of execution."""
    return [((site.name, head),) for site in model.sites for head in range(site.n_heads)]


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


def without_logits(model: HookedModel) -> dict[str, Any]:
    """Arguments of a run that spare the unembedding, where nobody reads the logits and the model lets one say so."""
    return {"logits_to_keep": 1} if "logits_to_keep" in inspect.signature(model.module.forward).parameters else {}


@dataclass(eq=False)
class _Kept:
    """What ablations of one batch put in the heads' places."""

    mean: Mapping[str, Tensor] = field(default_factory=dict)
    donor: Mapping[str, Tensor] = field(default_factory=dict)
    traces: Traces | None = None

    def edits(self, kind: Kind, heads: Sequence[tuple[str, int]]) -> tuple[Edit, ...]:
        """The edits that take heads out."""
        match kind:
            case "mean":
                return (ReplaceZ({(site, head): self.mean[site][head] for site, head in heads}),)
            case "resample":
                return (ReplaceZ({(site, head): self.donor[site][:, head] for site, head in heads}),)
            case "pattern_preserving":
                assert self.traces is not None
                return (Replay(traces=self.traces), GateHeads(dict.fromkeys(heads, 0.0)))
        return (GateHeads(dict.fromkeys(heads, 0.0)),)


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

    def passes(self) -> Iterator[NDArray[np.float64]]:
        sites = sorted({site for heads in self.sets for site, _ in heads})
        before = [blocks_before(self.model, heads) if self.replay else [] for heads in self.sets]
        mean = mean_z(self.model, self.others, sites) if "mean" in self.kinds else {}
        for number, batch in enumerate(self.batches):
            kept = _Kept(mean)
            if "resample" in self.kinds:
                kept.donor = self._donor(batch, self.others[number % len(self.others)], sites)
            if "pattern_preserving" in self.kinds:
                kept.traces = self.model.run(**batch, **without_logits(self.model), keep="qk").traces
            with _outputs({blocks[-1] for blocks in before if blocks}) as outputs:
                untouched = self._measured(batch)
            yield untouched
            for kind in self.kinds:
                for heads, blocks in zip(self.sets, before, strict=True):
                    with _replayed(blocks, outputs), self.model.edit(*kept.edits(kind, heads)):
                        measured = self._measured(batch)
                    yield measured

    def _donor(self, batch: Batch, other: Batch, sites: Collection[str]) -> dict[str, Tensor]:
        here, there = (torch.as_tensor(each["tokens"]).shape for each in (batch, other))
        if here[1] != there[1] or any(each.get("valid") is not None for each in (batch, other)):
            raise UserError(
                f"resampling takes a head's output of another sequence at the same position: all sequences must be "
                f"equally long and without padding; got {here[1]} and {there[1]} positions"
            )
        z = self.model.run(**other, **without_logits(self.model), keep="z", sites=sites).z
        donor = torch.arange(here[0]) % there[0]
        return {name: kept[donor.to(kept.device)] for name, kept in z.items()}

    def _measured(self, batch: Batch) -> NDArray[np.float64]:
        n = len(torch.as_tensor(batch["tokens"]))
        values = self.metric(self.model, batch).detach().double().cpu().numpy()
        if values.shape != (n,):
            raise ValueError(f"a metric gives one number per sequence, [{n}]; got {list(values.shape)}")
        return values


def blocks_before(model: HookedModel, heads: Iterable[tuple[str, int]]) -> list[nn.Module]:
    """The layers that come before all of some heads, in order; none where the heads lie in several stacks, and in a
    module of one's own, whose layers need not read what the one before them returned."""
    if isinstance(model.inputs, ModuleInputs):
        return []
    paths = [layer_path(model.site(site).path) for site, _ in heads]
    stacks = {path.rpartition(".")[0] for path in paths}
    if len(stacks) > 1 or "" in stacks:
        return []
    first = min(int(path.rpartition(".")[2]) for path in paths)
    layers = model.module.get_submodule(stacks.pop())
    return list(layers.children())[:first]


@contextmanager
def _outputs(blocks: Collection[nn.Module]) -> Iterator[dict[nn.Module, Any]]:
    """What some modules return in the forward pass meanwhile."""
    seen: dict[nn.Module, Any] = {}
    with ExitStack() as hooks:
        for block in blocks:
            hook = block.register_forward_hook(lambda module, given, output: seen.__setitem__(module, _copy(output)))
            hooks.callback(hook.remove)
        yield seen


@contextmanager
def _replayed(blocks: Sequence[nn.Module], outputs: Mapping[nn.Module, Any]) -> Iterator[None]:
    """Let modules in a row compute nothing and return what the last of them returned before."""
    own = [vars(block).get("forward") for block in blocks]
    try:
        for block in blocks:
            block.forward = lambda *given, **named: _copy(outputs[blocks[-1]])
        yield
    finally:
        for block, forward in zip(blocks, own, strict=True):
            if forward is None:
                del block.forward
            else:
                block.forward = forward


def _copy(output: Any) -> Any:
    """A block's output, safe from what the model writes into it later."""
    if isinstance(output, Tensor):
        return output.detach().clone()
    return tuple(map(_copy, output)) if isinstance(output, tuple) else output


def _check(
    model: HookedModel, sets: Sequence[Sequence[tuple[str, int]]], kinds: Sequence[Kind], others: Sequence[Batch]
) -> None:
    if not all(sets):
        raise UserError("a set of heads to ablate holds at least one head; got an empty one")
    needing = sorted({"mean", "resample"} & set(kinds))
    if needing and not others:
        raise UserError(f"{' and '.join(needing)} ablation need other sequences to take outputs from: give others=")
    own = [site.name for site in model.sites if site.source == "softmax"]
    if own and set(kinds) != {"zero"}:
        raise UserError(
            f"{own[0]} computes its own attention, whose outputs and keys are out of reach: its heads can be zeroed "
            f"and nothing else; got {', '.join(kinds)}"
        )
