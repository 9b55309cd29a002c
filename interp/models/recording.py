"""One forward pass under observation, and what it found."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any

import pandas as pd
import torch
from jaxtyping import Float
from torch import Tensor

from interp.attention import Mask, Site, SiteShape, Trace, Traces
from interp.attention.blocked import chance
from interp.attention.edits import Edit
from interp.attention.probes import Probe, Reading
from interp.models.sites import AttentionSite

if TYPE_CHECKING:
    from transformers.modeling_outputs import ModelOutput

__all__ = ["Keep", "Recording", "Run"]

Keep = Collection[str]
"""What a run keeps of every site beside the readings: any of ``"qk"`` (queries, keys and masks) and ``"z"``."""


@dataclass(eq=False)
class Recording:
    """What a forward pass is asked to read, and what has come in so far.

    Attributes:
        probes: read at every site in ``sites`` (all, when None).
        query_valid: by stack, which tokens of the queries are not padding; needed where a mask cannot tell.
        masks: by site, the mask it met and the sizes of its call.
        not_applicable: (probe, site) pairs that have no meaning, such as distances in cross-attention.
    """

    probes: tuple[Probe, ...] = ()
    sites: frozenset[str] | None = None
    keep: frozenset[str] = frozenset()
    query_valid: Mapping[str, Tensor] = field(default_factory=dict)
    readings: dict[str, dict[int, Reading]] = field(default_factory=dict)
    masks: dict[str, tuple[Mask, SiteShape]] = field(default_factory=dict)
    traces: dict[str, Trace] = field(default_factory=dict)
    z: dict[str, Tensor] = field(default_factory=dict)
    not_applicable: list[tuple[str, str]] = field(default_factory=list)

    def wants(self, site: AttentionSite) -> bool:
        return self.sites is None or site.name in self.sites

    def probes_at(self, site: AttentionSite, cross: bool) -> tuple[tuple[int, ...], tuple[Probe, ...]]:
        """The probes that apply at a site, with their numbers."""
        chosen = [(i, p) for i, p in enumerate(self.probes) if not (p.aligned and cross)]
        self.not_applicable += [(p.name, site.name) for p in self.probes if p.aligned and cross]
        return tuple(i for i, _ in chosen), tuple(p for _, p in chosen)

    def take(self, site: AttentionSite, numbers: Iterable[int], readings: Iterable[Reading]) -> None:
        if site.name in self.readings:
            raise RuntimeError(
                f"{site.name} was reached twice in one forward pass: run one forward pass per reading "
                "(generate() makes one for each token)"
            )
        self.readings[site.name] = dict(zip(numbers, readings, strict=True))


class Run:
    """What a forward pass gave.

    Attributes:
        output: the model's output, as transformers gives it. ``logits``: its logits, or None.
        sites: the sites that were read, in order of execution.
        traces: queries, keys and masks per site, with ``keep=("qk",)``.
        z: per-head outputs before W_O [batch, head, query, d_head] per site, with ``keep=("z",)``.
        not_applicable: (statistic, site) pairs that have no meaning there.
    """

    def __init__(self, output: ModelOutput | Tensor, sites: tuple[AttentionSite, ...], recording: Recording) -> None:
        self.output = output
        self.sites = sites
        self.traces = Traces(recording.traces)
        self.z = recording.z
        self.not_applicable = tuple(recording.not_applicable)
        self._recording = recording

    @property
    def logits(self) -> Tensor | None:
        return getattr(self.output, "logits", None)

    @property
    def probes(self) -> tuple[Probe, ...]:
        return self._recording.probes

    def readings(self, probe: Probe | int) -> dict[str, Reading]:
        """What one probe (itself, or its number) read, by site."""
        number = probe if isinstance(probe, int) else self._number(probe)
        return {site: found[number] for site, found in self._recording.readings.items() if number in found}

    def values(self, probe: Probe | int) -> Float[Tensor, "site batch head *axes"]:
        """A probe's values at every site where it applies, stacked; the sites must have equal numbers of heads."""
        readings = self.readings(probe)
        if len({r.values.shape for r in readings.values()}) > 1:
            raise ValueError("sites differ in heads or lengths, so their values do not stack; use readings(probe)")
        return torch.stack([r.values for r in readings.values()])

    def chance(self, probe: Probe | int) -> dict[str, Tensor]:
        """The probe's value under uniform attention with each site's mask, exactly: [batch or 1, head or 1, ...]."""
        number = probe if isinstance(probe, int) else self._number(probe)
        chances = {site: self._chances[self._reach(site)][number] for site in self.readings(number)}
        return {site: reading.values for site, reading in chances.items() if reading is not None}

    def table(self) -> pd.DataFrame:
        """Tidy: one row per site, head, statistic, label and sequence, with its chance and number of rows."""
        parts = [
            _tidy(site, probe, reading, self.chance(number).get(site.name))
            for number, probe in enumerate(self.probes)
            for site in self.sites
            if (reading := self.readings(number).get(site.name)) is not None
        ]
        return pd.concat(parts, ignore_index=True) if parts else pd.DataFrame(columns=pd.Index(_COLUMNS))

    @cached_property
    def _chances(self) -> dict[tuple[object, ...], list[Reading | None]]:
        """Chance readings by who may read whom: layers share masks, so most models need one."""
        found: dict[tuple[object, ...], list[Reading | None]] = {}
        for site, (mask, shape) in self._recording.masks.items():
            key = self._reach(site)
            if key not in found:
                applicable = chance(mask, shape, [p for p in self.probes if not (p.aligned and mask.cross)])
                left = iter(applicable)
                found[key] = [None if probe.aligned and mask.cross else next(left) for probe in self.probes]
        return found

    def _reach(self, site: str) -> tuple[object, ...]:
        """What decides who may read whom at a site; bias and sinks do not, unless a bias holds -inf."""
        mask, shape = self._recording.masks[site]
        forbidding = isinstance(mask.bias, Tensor) and bool(torch.isneginf(mask.bias).any())
        tensors = (mask.key_valid, mask.query_valid, mask.allowed, mask.bias if forbidding else None)
        sizes = (shape.batch, shape.n_heads, shape.n_queries, shape.n_keys, mask.query_offset)
        return (mask.causal, mask.window, mask.cross, *sizes, *(None if t is None else id(t) for t in tensors))

    def _number(self, probe: Probe) -> int:
        for number, known in enumerate(self.probes):
            if known is probe:
                return number
        raise KeyError(f"{type(probe).__name__} was not among the probes of this run")


_COLUMNS = ["site", "layer", "head", "metric", "label", "sequence", "value", "chance", "n"]


def _tidy(site: AttentionSite, probe: Probe, reading: Reading, chance_values: Tensor | None) -> pd.DataFrame:
    values = reading.values
    batch, n_heads = values.shape[:2]
    axes = [(name, list(labels) or list(range(size))) for (name, labels), size in zip(
        probe.axes(), values.shape[2:], strict=True)]  # fmt: skip
    index = pd.MultiIndex.from_product(
        [range(batch), range(n_heads), *(labels for _, labels in axes)],
        names=["sequence", "head", *(name for name, _ in axes)],
    )

    def column(tensor: Tensor | None) -> Any:
        if tensor is None:
            return float("nan")
        return tensor.expand(values.shape).flatten().detach().cpu().numpy()

    table = index.to_frame(index=False)
    labels = [table.pop(name).astype(str) for name, _ in axes]
    label = labels[0] if labels else pd.Series("", index=table.index)
    for more in labels[1:]:
        label = label + "/" + more
    table.insert(0, "site", site.name)
    table.insert(1, "layer", site.layer)
    table["metric"], table["label"] = probe.name, label
    table["value"], table["chance"], table["n"] = column(values), column(chance_values), column(reading.n)
    return table[_COLUMNS]


def site_mask(mask: Mask, site: AttentionSite, recording: Recording | None) -> Mask:
    """The mask of one site's call: cross-attention marked as such, and padding rows of the queries named."""
    valid = None if recording is None else recording.query_valid.get(site.stack)
    if site.kind == "cross":
        mask = replace(mask, causal=False, window=None, cross=True, query_offset=None)
    if valid is not None and mask.query_valid is None and (site.kind == "cross" or mask.key_valid is None):
        mask = replace(mask, query_valid=valid)
    return mask


class PatternHook(Edit):
    """A TransformerLens hook function on pattern rows, block by block."""

    stage = "pattern"

    def __init__(self, site: str, function: Callable[[Tensor, object], Tensor | None], point: object) -> None:
        object.__setattr__(self, "heads", None)
        object.__setattr__(self, "site", site)
        object.__setattr__(self, "function", function)
        object.__setattr__(self, "point", point)

    def at(self, site: Site | None) -> PatternHook | None:
        return self if site is not None and site.name == self.site else None  # type: ignore[attr-defined]

    def apply(self, x: Tensor, block: object) -> Tensor:
        changed = self.function(x, self.point)  # type: ignore[attr-defined]
        return x if changed is None else changed
