"""One forward pass under observation, and what it found."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from functools import cached_property
from itertools import groupby, product
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd
import torch
from jaxtyping import Float
from torch import Tensor

from interp.attention import Mask, Site, SiteShape, Trace, Traces
from interp.attention.bias import forbids
from interp.attention.blocked import chance
from interp.attention.edits import Edit
from interp.attention.probes import Probe, Reading
from interp.attention.rows import Block
from interp.errors import UserError
from interp.models.sites import AttentionSite

if TYPE_CHECKING:
    from transformers.utils.generic import ModelOutput

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
        recomputed: some attention will run again in the backward pass.
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
    recomputed: bool = False

    def __post_init__(self) -> None:
        for probe in self.probes:
            if not isinstance(probe, Probe):
                raise UserError(f"probes are made from interp.attention.probes, such as Entropy(); got {probe!r}")

    def wants(self, site: AttentionSite) -> bool:
        """Whether a site is to be read."""
        return self.sites is None or site.name in self.sites

    def probes_at(self, site: AttentionSite, cross: bool) -> tuple[tuple[int, ...], tuple[Probe, ...]]:
        """The probes that apply at a site, with their numbers."""
        chosen = [(i, p) for i, p in enumerate(self.probes) if not (p.aligned and cross)]
        self.not_applicable += [(p.name, site.name) for p in self.probes if p.aligned and cross]
        return tuple(i for i, _ in chosen), tuple(p for _, p in chosen)

    def take(
        self,
        site: AttentionSite,
        numbers: Iterable[int],
        readings: Iterable[Reading],
        mask: Mask,
        sizes: Sequence[int],
        device: torch.device,
    ) -> None:
        """Keep what was read at a site, and the mask that it met.

        Args:
            numbers: of the probes that read. sizes: batch, n_heads, n_kv_heads, n_queries, n_keys of the call.
        """
        if site.name in self.masks:
            raise UserError(
                f"{site.name} was reached twice in one forward pass: run one forward pass per reading (generate() "
                "makes one for each token)"
            )
        batch, n_heads, n_kv_heads, n_queries, n_keys = sizes
        bound = mask.bind(batch, n_heads, n_queries, n_keys, device)
        self.readings[site.name] = dict(zip(numbers, readings, strict=True))
        self.masks[site.name] = (mask, SiteShape(batch, n_heads, n_kv_heads, n_queries, n_keys, device, bound))

    def shared(self, mask: Mask) -> Mask:
        """The last site's mask where it says the same as this one: layers that build equal masks keep one."""
        last = next(reversed(self.masks.values()))[0] if self.masks else None
        if last is None or not isinstance(mask.allowed, Tensor):
            return mask
        return last if all(_same(getattr(last, f.name), getattr(mask, f.name)) for f in fields(mask)) else mask


class Run:
    """What a forward pass gave.

    Attributes:
        output: the model's output, as transformers gives it. ``logits``: its logits, or None.
        sites: the sites that were read, in order of execution.
        masks: by site, the mask it met and the sizes of its call.
        traces: queries, keys and masks per site, with ``keep=("qk",)``.
        z: per-head outputs before W_O [batch, head, query, d_head] per site, with ``keep=("z",)``.
        not_applicable: (statistic, site) pairs that have no meaning there.
    """

    def __init__(self, output: ModelOutput | Tensor, sites: tuple[AttentionSite, ...], recording: Recording) -> None:
        self.output = output
        self.sites = sites
        self.masks = recording.masks
        self.traces = Traces(recording.traces)
        self.z = recording.z
        self.not_applicable = tuple(recording.not_applicable)
        self._recording = recording

    def __repr__(self) -> str:
        read = ", ".join(probe.name for probe in self.probes) or "nothing"
        return f"Run({read} read at {len(self.sites)} sites; table(), values(probe), logits)"

    @property
    def logits(self) -> Tensor | None:
        """The output's logits, or the output itself (its first part) where it is [.., .., d_vocab]; None without."""
        found = getattr(self.output, "logits", None)
        if found is not None or hasattr(self.output, "last_hidden_state"):
            return found
        first = self.output[0] if isinstance(self.output, tuple) else self.output
        return first if isinstance(first, Tensor) and first.ndim == 3 else None

    @property
    def probes(self) -> tuple[Probe, ...]:
        """What was read, in the order given."""
        return self._recording.probes

    def readings(self, probe: Probe | int) -> dict[str, Reading]:
        """What one probe (itself, or its number) read, by site."""
        number = self._number(probe)
        return {site: found[number] for site, found in self._recording.readings.items() if number in found}

    def values(self, probe: Probe | int) -> Float[Tensor, "site batch head *axes"]:
        """A probe's values at every site where it applies, stacked; the sites must have equal numbers of heads."""
        readings = self.readings(probe)
        if len({r.values.shape for r in readings.values()}) > 1:
            raise ValueError("sites differ in heads or lengths, so their values do not stack; use readings(probe)")
        if not readings:
            raise ValueError("this probe applies to none of the sites that were read; see not_applicable")
        return torch.stack([r.values for r in readings.values()])

    def chance(self, probe: Probe | int) -> dict[str, Tensor]:
        """The probe's value under uniform attention with each site's mask, exactly: [batch or 1, head or 1, ...].

        Sites of probes that need more than a pattern (values, weights, gradients) are left out.
        """
        number = self._number(probe)
        chances = {site: self._chances[self._reach(site)][number] for site in self.readings(number)}
        return {site: reading.values for site, reading in chances.items() if reading is not None}

    def table(self) -> pd.DataFrame:
        """Tidy: one row per probe, site, sequence, head and label, with its chance and number of rows.

        ``metric`` is the probe's name and ``probe`` its number; (statistic, site) pairs in ``not_applicable`` have no
        rows. ``label`` holds the probe's axes as text, joined by ``/``.
        """
        parts = []
        for number, probe in enumerate(self.probes):
            readings, chances = self.readings(number), self.chance(number)
            found = [(site, readings[site.name]) for site in self.sites if site.name in readings]
            for shape, group in groupby(found, key=lambda pair: pair[1].values.shape):
                sites, read = zip(*group, strict=True)
                at_chance = [chances.get(site.name) for site in sites]
                parts.append(_tidy(sites, probe, number, shape, read, at_chance))
        return pd.concat(parts, ignore_index=True) if parts else pd.DataFrame(columns=pd.Index(_COLUMNS))

    @cached_property
    def _chances(self) -> dict[tuple[object, ...], list[Reading | None]]:
        """Chance readings by who may read whom: layers share masks, so most models need one."""
        found: dict[tuple[object, ...], list[Reading | None]] = {}
        for site, (mask, shape) in self.masks.items():
            key = self._reach(site)
            if key not in found:
                applicable = chance(mask, shape, [p for p in self.probes if not (p.aligned and mask.cross)])
                left = iter(applicable)
                found[key] = [None if probe.aligned and mask.cross else next(left) for probe in self.probes]
        return found

    def _reach(self, site: str) -> tuple[object, ...]:
        """What decides who may read whom at a site; bias and sinks do not, unless a bias forbids keys."""
        mask, shape = self.masks[site]
        forbidding = isinstance(mask.bias, Tensor) and bool(forbids(mask.bias).any())
        tensors = (mask.key_valid, mask.query_valid, mask.allowed, mask.bias if forbidding else None)
        sizes = (shape.batch, shape.n_heads, shape.n_queries, shape.n_keys, mask.query_offset)
        return (mask.causal, mask.window, mask.cross, *sizes, *(None if t is None else id(t) for t in tensors))

    def _number(self, probe: Probe | int) -> int:
        for number, known in enumerate(self.probes):
            if known is probe or number == probe:
                return number
        what = f"probe number {probe}" if isinstance(probe, int) else type(probe).__name__
        raise KeyError(f"{what} was not among the {len(self.probes)} probes of this run")


def _same(a: object, b: object) -> bool:
    if isinstance(a, Tensor) and isinstance(b, Tensor):
        return a.shape == b.shape and torch.equal(a, b)
    return a is b or (type(a) is type(b) and isinstance(a, bool | int) and a == b)


_COLUMNS = ["site", "layer", "head", "metric", "label", "sequence", "value", "chance", "n", "probe"]


def _tidy(
    sites: Sequence[AttentionSite], probe: Probe, number: int, shape: Sequence[int], readings: Sequence[Reading],
    chances: Sequence[Tensor | None],
) -> pd.DataFrame:  # fmt: skip
    """Rows of one probe at sites whose values have one shape [batch, head, *axes]."""
    batch, n_heads, *sizes = shape
    axes = [list(labels) or range(size) for (_, labels), size in zip(probe.axes(), sizes, strict=True)]
    labels = ["/".join(map(str, combination)) for combination in product(*axes)]
    grid = (len(sites), batch, n_heads, len(labels))

    def column(values: Any, axis: int) -> np.ndarray:
        line = np.asarray(values).reshape([-1 if i == axis else 1 for i in range(4)])
        return np.broadcast_to(line, grid).ravel()

    def stacked(tensors: Iterable[Tensor | None]) -> np.ndarray:
        whole = [
            torch.full(tuple(shape), torch.nan, dtype=torch.float64) if t is None else t.detach().cpu().expand(*shape)
            for t in tensors
        ]
        return torch.stack(whole).flatten().numpy()

    return pd.DataFrame({
        "site": column([site.name for site in sites], 0), "layer": column([site.layer for site in sites], 0),
        "head": column(range(n_heads), 2), "metric": probe.name, "label": column(labels, 3),
        "sequence": column(range(batch), 1), "value": stacked(r.values for r in readings), "chance": stacked(chances),
        "n": stacked(r.n for r in readings), "probe": number,
    })  # fmt: skip


def site_mask(mask: Mask, site: AttentionSite, recording: Recording | None, device: torch.device) -> Mask:
    """The mask of one site's call: cross-attention marked as such, and padding rows of the queries named."""
    valid = None if recording is None else recording.query_valid.get(site.stack)
    if site.kind == "cross":
        mask = replace(mask, causal=False, window=None, cross=True, query_offset=None)
    if valid is not None and mask.query_valid is None and (site.kind == "cross" or mask.key_valid is None):
        mask = replace(mask, query_valid=valid.to(device))
    return mask


class PatternHook(Edit):
    """A TransformerLens hook function on pattern rows, block by block; ``hook.block`` says which rows and keys."""

    stage = "pattern"

    def __init__(self, site: str, function: Callable[[Tensor, Any], Tensor | None], point: Any) -> None:
        object.__setattr__(self, "heads", None)
        self._site, self._function, self._point = site, function, point

    def at(self, site: Site | None) -> PatternHook | None:
        return self if site is not None and site.name == self._site else None

    def apply(self, x: Tensor, block: Block) -> Tensor:
        self._point.block = block
        given = x.clone()  # hook functions may write into what they are given
        changed = self._function(given, self._point)
        if changed is None:
            return given
        if not isinstance(changed, Tensor) or changed.shape != x.shape:
            got = f"shape {list(changed.shape)}" if isinstance(changed, Tensor) else type(changed).__name__
            raise ValueError(f"the hook at {self._site}.hook_pattern returned {got}; it was given rows {list(x.shape)}")
        return changed.to(x.dtype)
