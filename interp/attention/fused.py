"""The fused engine: attention and the built-in row statistics in one Triton kernel, so that looking costs little.

What the kernel cannot do is said by :func:`why_not`, and the row-block engine does it: any edit of scores or pattern,
any probe that asks for whole rows, masks that are tensors or functions. Gradients are the row-block engine's.

Statistics that need single weights (offsets, positions, targets) are read after the kernel as exp(s − log-sum-exp) from
the queries and keys concerned, in O(T · d) for each.
"""

from __future__ import annotations

import importlib.util
import os
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING, Any

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from .bias import AlibiSlopes, forbids
from .block import Call, compute_dtype
from .blocked import Pass, bind, row_blocks, run_pass
from .bound import BoundMask
from .edits import GateHeads, ReplaceZ, ScaleExponent
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
    TargetMass,
)
from .rows import Block

if TYPE_CHECKING:
    from .kernel import Statistics

__all__ = ["available", "fused", "why_not"]

MOST_FEATURES = 64
_PROBES = (
    DistanceHistogram, Entropy, ExpectedDistance, LabelMass, MassReceived, MaxWeight, OffsetMass, PositionMass,
    RelativeEntropy, SetMass, TargetMass,
)  # fmt: skip
_EDITS = (GateHeads, ReplaceZ, ScaleExponent)
_GATHERED = 64 << 20
"""Bytes of keys gathered at once for statistics of single weights."""


def available(device: torch.device) -> bool:
    """Whether the kernel can run there: on a CUDA device with Triton, or anywhere in Triton's interpreter."""
    if importlib.util.find_spec("triton") is None:
        return False
    return device.type == "cuda" or os.environ.get("TRITON_INTERPRET") == "1"


def why_not(call: Call, query: Tensor, value: Tensor, probes: Sequence[Probe]) -> str | None:
    """What of a call the kernel cannot do, in words; None where it can do all."""
    mask = call.mask
    if not available(query.device):
        return "Triton is not installed, or the tensors are not on a CUDA device"
    if query.dtype is torch.float64:
        return "float64 is computed in row blocks"
    if max(query.shape[-1], value.shape[-1]) > 256:
        return f"heads of more than 256 features; got {query.shape[-1]} and {value.shape[-1]}"
    if mask.allowed is not None:
        return "a mask given as a tensor or function of allowed keys"
    if mask.bias is not None and not isinstance(mask.bias, AlibiSlopes | Tensor):
        return f"a bias of kind {type(mask.bias).__name__}"
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
    return None


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
        from . import kernel

        call = self.call
        bound = bind(call.mask, query, key)
        with torch.no_grad():
            self.readings = self.start(bound, key.shape[1], value)
            asked = _Asked.of(call, bound, query, [reading.probe for reading in self.readings])
            found = kernel.run(query, key, value, **asked.common, **asked.statistics)
            for start, stop in row_blocks(bound, None, torch.float32):
                rows = FusedRows(
                    start=start, stop=stop, low=0, high=bound.n_keys, mask=bound, site=call.site, call=call,
                    query=query,
                    key=key, found=found, asked=asked,
                )  # fmt: skip
                for reading in self.readings:
                    reading.update(rows)  # type: ignore[arg-type]
            output = found.output
            whole = Block(start=0, stop=bound.n_queries, low=0, high=bound.n_keys, mask=bound, site=call.site)
            for edit in call.stage("z"):
                output = edit.apply(output, whole)
        return output


@dataclass(frozen=True, eq=False)
class _Asked:
    """A call and its probes as arguments of the kernel.

    Attributes:
        common: what both passes take. ``statistics``: what the first takes besides. ``columns``: where each probe's
            features stand, by the probe's identity.
    """

    common: dict[str, Any]
    statistics: dict[str, Any]
    columns: dict[int, slice]

    @classmethod
    def of(cls, call: Call, bound: BoundMask, query: Tensor, probes: Sequence[Probe]) -> _Asked:
        """The arguments; tensors are made where the kernel wants another dtype."""
        mask, device = call.mask, query.device
        scales = torch.full((query.shape[1],), call.scale, dtype=torch.float32, device=device)
        for edit in call.stage("scale"):
            scales = edit.scales(scales, query.shape[-1])
        bias = bound.bias_tensor
        if bias is not None:
            bias = bias.float().masked_fill(forbids(bias), -1e38)
        slopes = mask.bias.slopes.float() if isinstance(mask.bias, AlibiSlopes) else None
        features, columns, at = [], {}, 0
        for probe in probes:
            if n := _n_features(probe):
                features.append(_features(probe, bound))
                columns[id(probe)] = slice(at, at + n)
                at += n
        batch = max((f.shape[0] for f in features), default=1)
        joined = torch.cat([f.expand(batch, -1, -1) for f in features], -1).contiguous() if features else None
        bins = [probe.n_bins for probe in probes if isinstance(probe, DistanceHistogram)]
        return cls(
            {
                "scales": scales, "offset": bound.offset, "causal": mask.causal, "window": mask.window,
                "softcap": call.softcap, "bias": bias, "slopes": slopes,
                "valid": None if mask.key_valid is None else mask.key_valid.to(torch.uint8).contiguous(),
            },
            {
                "sinks": None if mask.sinks is None else mask.sinks.float(),
                "distance": any(isinstance(probe, ExpectedDistance) for probe in probes),
                "bins": bins[0] if bins else 0,
                "features": joined,
            },
            columns,
        )  # fmt: skip


def _n_features(probe: Probe) -> int:
    if isinstance(probe, LabelMass):
        return probe.n_labels
    return probe.members.shape[-1] if isinstance(probe, SetMass) and probe.members is not None else 0


def _features(probe: Probe, bound: BoundMask) -> Float[Tensor, "#batch key feature"]:
    """1 where a key is of a label or in a set."""
    if isinstance(probe, LabelMass):
        assert probe.labels is not None
        labels = (probe.labels[None] if probe.labels.ndim == 1 else probe.labels).to(bound.device).long()
        return torch.nn.functional.one_hot(labels + 1, probe.n_labels + 1)[..., 1:].float()
    assert isinstance(probe, SetMass)
    assert probe.members is not None
    return (probe.members[None] if probe.members.ndim == 2 else probe.members).to(bound.device).float()


@dataclass(eq=False, kw_only=True)
class FusedRows(Block):
    """A block of rows as the kernel left them: its statistics, and no weights.

    It answers what a probe of single rows asks :class:`~interp.attention.rows.Rows`; there is no ``pattern``.
    """

    call: Call
    query: Tensor = field(repr=False)
    key: Tensor = field(repr=False)
    found: Statistics = field(repr=False)
    asked: _Asked = field(repr=False)
    edited: bool = False

    def _of(self, whole: Tensor) -> Tensor:
        return whole[:, :, self.start : self.stop]

    @cached_property
    def valid(self) -> Bool[Tensor, "#batch #head row"]:
        """Rows that take part in statistics: neither padding nor without a key."""
        some = torch.isfinite(self._of(self.found.log_sum))
        return some if self.mask.query_valid is None else some & self.mask.query_valid[:, None, self.start : self.stop]

    @property
    def lse(self) -> Float[Tensor, "batch head row"]:
        """Log of the softmax's denominator, the sink included."""
        return self._of(self.found.top) + self._of(self.found.log_sum)

    @property
    def entropy(self) -> Float[Tensor, "batch head row"]:
        """Entropy of each row in nats; a learned sink counts as one more outcome."""
        return self._of(self.found.entropy)

    @property
    def max_weight(self) -> Float[Tensor, "batch head row"]:
        """Largest weight of each row."""
        return self._of(self.found.largest)

    @property
    def sink_weight(self) -> Float[Tensor, "batch head row"] | None:
        """What the learned sink took of each row, or None."""
        return None if self.mask.mask.sinks is None else 1 - self._of(self.found.total)

    @property
    def total(self) -> Float[Tensor, "batch head row"]:
        """Sum of each row's weights."""
        return self._of(self.found.total)

    @property
    def distance(self) -> Float[Tensor, "batch head row"]:
        """Σ p |i − j|."""
        assert self.found.distance is not None
        return self._of(self.found.distance)

    def by_distance(self, n_bins: int, signed: bool) -> Float[Tensor, "batch head row bin"]:
        """Weight by distance in log₂ bins."""
        assert self.found.histogram is not None
        return self._of(self.found.histogram)

    def mass_on(self, members: Tensor, probe: Probe) -> Float[Tensor, "batch head row feature"]:
        """Weight on the keys of each label or set."""
        assert self.found.masses is not None
        return self._of(self.found.masses)[..., self.asked.columns[id(probe)]]

    def received(self, counted: Bool[Tensor, "#batch #head row"] | None) -> Float[Tensor, "batch head key"]:
        """The weight that each key gets from the counted rows of this block, by the second pass."""
        from . import kernel

        counted = self.valid if counted is None else counted
        some = torch.zeros(self.found.top.shape, dtype=torch.uint8, device=self.query.device)
        some[:, :, self.start : self.stop] = counted
        return kernel.received(
            self.query, self.key, self.found.top, self.found.log_sum, some, self.start, self.stop, **self.asked.common
        )

    def at_keys(
        self, keys: Int[Tensor, "#batch #head row target"]
    ) -> tuple[Float[Tensor, "batch head row target"], Bool[Tensor, "#batch #head row target"]]:
        """Weights at given keys of each row, and whether each key exists and may be read."""
        exists = (keys >= 0) & (keys < self.mask.n_keys)
        query_index = self.query_index[None, None, :, None]
        inside = keys.clamp(0, self.mask.n_keys - 1)
        permitted = exists & self.mask.permits(query_index, inside)
        weights = [self._weights(inside[:, :, a:b], a, b) for a, b in self._parts(keys.shape[-1])]
        return torch.cat(weights, 2).masked_fill(~permitted, 0.0), permitted

    def at_offset(self, offset: int) -> Float[Tensor, "batch head row"]:
        """Weight on the key ``offset`` before each query; 0 where there is none."""
        keys = (self.query_key_index - offset)[None, None, :, None]
        weights, permitted = self.at_keys(keys)
        return weights[..., 0].masked_fill(~permitted[..., 0], 0.0)

    def _parts(self, n_targets: int) -> list[tuple[int, int]]:
        """Parts of the block, so small that the keys gathered for one stay within :data:`_GATHERED`."""
        row = self.mask.batch * self.key.shape[1] * max(n_targets, 1) * self.key.shape[-1] * 4
        height = max(1, _GATHERED // row)
        n = self.stop - self.start
        return [(a, min(a + height, n)) for a in range(0, n, height)]

    def _weights(self, keys: Int[Tensor, "#batch #head part target"], first: int, last: int) -> Tensor:
        """exp(s − lse) of some keys of rows ``first`` to ``last`` of the block."""
        batch, n_heads, _, d = self.query.shape
        n_kv = self.key.shape[1]
        dtype = compute_dtype(self.query)
        query = self.query[:, :, self.start + first : self.start + last].to(dtype)
        index = keys.expand(batch, -1, -1, -1)
        if index.shape[1] == 1:
            wanted = self.key.gather(2, index.expand(-1, n_kv, -1, -1).flatten(2)[..., None].expand(-1, -1, -1, d))
            wanted = wanted.view(batch, n_kv, 1, *index.shape[2:], d).to(dtype)
            grouped = query.view(batch, n_kv, n_heads // n_kv, *query.shape[2:])
            scores = (grouped[..., None, :] * wanted).sum(-1).view(batch, n_heads, *index.shape[2:])
        else:
            own = self.key.repeat_interleave(n_heads // n_kv, 1)
            wanted = own.gather(2, index.flatten(2)[..., None].expand(-1, -1, -1, d)).view(*index.shape, d).to(dtype)
            scores = (query[..., None, :] * wanted).sum(-1)
        scores = scores * self.asked.common["scales"].view(1, -1, 1, 1)
        if (cap := self.call.softcap) is not None:
            scores = cap * torch.tanh(scores / cap)
        rows = torch.arange(self.start + first, self.start + last, device=scores.device)[None, None, :, None]
        if (slopes := self.asked.common["slopes"]) is not None:
            scores = scores - slopes.view(1, -1, 1, 1) * (rows + self.mask.offset - keys).abs()
        if (bias := self.asked.common["bias"]) is not None:
            where = [
                torch.zeros(1, dtype=torch.long, device=scores.device) if size == 1 else place
                for size, place in zip(
                    bias.shape,
                    (
                        torch.arange(batch, device=scores.device).view(-1, 1, 1, 1),
                        torch.arange(n_heads, device=scores.device).view(1, -1, 1, 1), rows, keys,
                    ),
                    strict=True,
                )
            ]  # fmt: skip
            scores = scores + bias[tuple(where)]
        top, log_sum = (self._of(x)[:, :, first:last, None] for x in (self.found.top, self.found.log_sum))
        return torch.where(torch.isfinite(log_sum), (scores - top - log_sum).exp(), 0.0)
