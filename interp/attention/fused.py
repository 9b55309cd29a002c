"""The fused engine: attention and the built-in statistics in one Triton kernel, so that looking costs little.

What the kernel cannot do is said by :func:`why_not`, and the row-block engine does it: edits of patterns, edits of
scores other than :class:`~interp.attention.edits.AddLogits`, any probe that asks for whole rows, masks that are tensors
or functions of allowed keys. Gradients are the row-block engine's.

Statistics that need single weights (offsets, positions, targets, strongest edges) are read after the kernel from the
queries and keys concerned, in O(T · d) for each.
"""

from __future__ import annotations

import importlib.util
import os
from collections.abc import Sequence

import torch
from jaxtyping import Float
from torch import Tensor

from .block import Call
from .blocked import Pass, bind, row_blocks, run_pass
from .bound import BoundMask
from .edits import AddLogits, GateHeads, ReplaceZ, ScaleExponent
from .fused_rows import FusedRows, strongest
from .precision import full_precision
from .probes import (
    DistanceHistogram,
    Entropy,
    ExpectedDistance,
    LabelMass,
    MassReceived,
    MaxWeight,
    OffsetMass,
    PositionMass,
    Probe,
    Reading,
    RelativeEntropy,
    SetMass,
    StrongestEdges,
    TargetMass,
)
from .rows import Block
from .scoring import Scoring, why_not_scored

__all__ = ["available", "fused", "why_not"]

MOST_FEATURES = 64
_COUNTING = (LabelMass, RelativeEntropy, SetMass)
"""Probes that count the keys which a row may read."""
_PROBES = (
    *_COUNTING, DistanceHistogram, Entropy, ExpectedDistance, MassReceived, MaxWeight, OffsetMass, PositionMass,
    StrongestEdges, TargetMass,
)  # fmt: skip
_EDITS = (AddLogits, GateHeads, ReplaceZ, ScaleExponent)


def available(device: torch.device) -> bool:
    """Whether the kernel can run there: on a CUDA device with Triton, or anywhere in Triton's interpreter."""
    if importlib.util.find_spec("triton") is None:
        return False
    return device.type == "cuda" or os.environ.get("TRITON_INTERPRET") == "1"


def why_not(call: Call, query: Tensor, value: Tensor, probes: Sequence[Probe]) -> str | None:
    """What of a call the kernel cannot do, in words; None where it can do all."""
    if not available(query.device):
        return "Triton is not installed, or the tensors are not on a CUDA device"
    if query.dtype is torch.float64:
        return "float64 is computed in row blocks"
    if max(query.shape[-1], value.shape[-1]) > 256:
        return f"heads of more than 256 features; got {query.shape[-1]} and {value.shape[-1]}"
    for edit in call.edits:
        if not isinstance(edit, _EDITS):
            return f"the edit {type(edit).__name__}"
    for probe in probes:
        if type(probe) not in _PROBES or (isinstance(probe, DistanceHistogram) and probe.signed):
            return f"the probe {type(probe).__name__}"
    if sum(_n_features(probe) for probe in probes) > MOST_FEATURES:
        return f"more than {MOST_FEATURES} labels and sets of keys"
    if len({probe.n_bins for probe in probes if isinstance(probe, DistanceHistogram)}) > 1:
        return "distance histograms of several numbers of bins"
    return why_not_scored(call, bind(call.mask, query, value))


def fused(
    call: Call,
    query: Float[Tensor, "batch head query d_head"],
    key: Float[Tensor, "batch kv_head key d_head"],
    value: Float[Tensor, "batch kv_head key d_value"],
    probes: Sequence[Probe],
) -> tuple[Float[Tensor, "batch head query d_value"], list[Reading]]:
    """Attention output and readings, as :func:`interp.attention.blocked.blocked` gives them."""
    return run_pass(_FusedPass, call, query, key, value, probes)


class _FusedPass(Pass):
    """The forward pass in the kernel; the backward pass is the row-block engine's."""

    def forward(self, query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        """The output; readings are filled from the kernel's statistics."""
        from . import launch

        call = self.call
        bound = bind(call.mask, query, key)
        with torch.no_grad(), full_precision(query.device):
            self.readings = self.start(bound, key.shape[1], value)
            probes = [reading.probe for reading in self.readings]
            scoring = Scoring.of(call, bound, query)
            features, columns = _features(probes, bound)
            found = launch.run(
                query, key, value, scoring,
                sinks=None if call.mask.sinks is None else call.mask.sinks.float(),
                distance=any(isinstance(probe, ExpectedDistance) for probe in probes),
                bins=max((probe.n_bins for probe in probes if isinstance(probe, DistanceHistogram)), default=0),
                features=features,
            )  # fmt: skip

            def rows(start: int, stop: int) -> FusedRows:
                return FusedRows(
                    start=start, stop=stop, low=0, high=bound.n_keys, mask=bound, site=call.site,
                    query=query, key=key, found=found, scoring=scoring, columns=columns,
                )  # fmt: skip

            if bound.batch and bound.n_queries and bound.n_keys:
                self._show(rows(0, bound.n_queries), [rows(*block) for block in row_blocks(bound, None, torch.float32)])
            output = found.output
            whole = Block(start=0, stop=bound.n_queries, low=0, high=bound.n_keys, mask=bound, site=call.site)
            for edit in call.stage("z"):
                output = edit.apply(output, whole)
        return output

    def _show(self, whole: FusedRows, blocks: Sequence[FusedRows]) -> None:
        """Show every probe the rows: all at once, but in blocks where the probe counts keys that only the mask's
        tensors know, which would be a tensor of queries × keys."""
        for reading in self.readings:
            probe = reading.probe
            if isinstance(probe, StrongestEdges):
                parts = strongest(whole, probe.k)
            elif isinstance(probe, MassReceived) or (isinstance(probe, _COUNTING) and whole.mask.is_listed):
                parts = blocks
            else:
                parts = [whole]
            for rows in parts:
                reading.update(rows)  # type: ignore[arg-type]


def _features(probes: Sequence[Probe], bound: BoundMask) -> tuple[Tensor | None, dict[int, slice]]:
    """Labels and sets of all probes side by side, [#batch, key, feature], and where each probe's stand."""
    features, columns, at = [], {}, 0
    for probe in probes:
        if n := _n_features(probe):
            features.append(_members(probe, bound))
            columns[id(probe)] = slice(at, at + n)
            at += n
    if not features:
        return None, columns
    batch = max(members.shape[0] for members in features)
    return torch.cat([members.expand(batch, -1, -1) for members in features], -1).contiguous(), columns


def _n_features(probe: Probe) -> int:
    if isinstance(probe, LabelMass):
        return probe.n_labels
    return probe.members.shape[-1] if isinstance(probe, SetMass) and probe.members is not None else 0


def _members(probe: Probe, bound: BoundMask) -> Float[Tensor, "#batch key feature"]:
    """1 where a key is of a label or in a set."""
    if isinstance(probe, LabelMass):
        assert probe.labels is not None
        labels = (probe.labels[None] if probe.labels.ndim == 1 else probe.labels).to(bound.device).long()
        return torch.nn.functional.one_hot(labels + 1, probe.n_labels + 1)[..., 1:].float()
    assert isinstance(probe, SetMass)
    assert probe.members is not None
    return (probe.members[None] if probe.members.ndim == 2 else probe.members).to(bound.device).float()
