"""Statistics of rows relative to what could be read, among sets of keys, without some keys, and several at once."""

# ruff: noqa: D102 (what the methods are for, Probe says)

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import ClassVar

import torch
from jaxtyping import Bool
from torch import Tensor

from interp.attention.rows import Rows

from .base import HeadMean, RowMean, booleans, per_key, required

__all__ = ["LargestAmong", "RelativeEntropy", "SetMass", "Together", "WithoutKeys"]


@dataclass(frozen=True, eq=False)
class RelativeEntropy(HeadMean):
    """Entropy of a row divided by the most that its keys allow, ln(number of permitted keys): 0 to 1.

    A learned sink counts as one more key. Eligible are rows that may read at least two keys.
    """

    needs: ClassVar[frozenset[str]] = frozenset({"scores"})

    def measure(self, rows: Rows) -> tuple[Tensor, Tensor]:
        n = rows.n_allowed + (0 if rows.sink_weight is None else 1)
        several = rows.n_allowed >= 2
        return rows.entropy / n.clamp_min(2).to(rows.entropy.dtype).log(), several


@dataclass(frozen=True, eq=False)
class SetMass(HeadMean):
    """Weight on each of several sets of keys, which may share keys (unlike the labels of `LabelMass`).

    Args:
        members: which keys belong to which set; [key, set] or [batch, key, set].

    Eligible for a set are rows that may read at least one of its keys.
    """

    members: Bool[Tensor, "#batch key set"] | None = None

    def __post_init__(self) -> None:
        booleans(self, "members")
        assert self.members is not None
        if self.members.ndim not in (2, 3) or not self.members.shape[-1]:
            raise ValueError(
                "SetMass.members must be [key, set] or [batch, key, set] with at least one set; got "
                f"{list(self.members.shape)}"
            )

    def axes(self) -> tuple[tuple[str, Sequence[object]], ...]:
        assert self.members is not None
        return (("set", list(range(self.members.shape[-1]))),)

    def measure(self, rows: Rows) -> tuple[Tensor, Tensor]:
        assert self.members is not None
        members = self.members[None] if self.members.ndim == 2 else self.members
        if members.shape[1] != rows.mask.n_keys or members.shape[0] not in (1, rows.mask.batch):
            raise ValueError(
                f"SetMass.members must be [key, set] or [batch, key, set] for batch {rows.mask.batch} and "
                f"{rows.mask.n_keys} keys; got {list(self.members.shape)}"
            )
        members = members.to(rows.mask.device)
        return rows.mass_on(members, self), rows.can_read(members)


@dataclass(frozen=True, eq=False)
class LargestAmong(HeadMean):
    """Largest weight of a row on some keys; others are left out, and nothing is rescaled.

    With every key but separators, Voita et al. 2019 call its mean a head's *confidence*.

    Args:
        keys: which keys count; [key] or [batch, key]. Eligible are rows that may read at least one of them.
    """

    keys: Bool[Tensor, "#batch key"] | None = None

    def __post_init__(self) -> None:
        booleans(self, "keys")

    def measure(self, rows: Rows) -> tuple[Tensor, Tensor]:
        counted = per_key(self, "keys", rows)[:, None, None, rows.low : rows.high]
        return (rows.pattern * counted).amax(-1), (rows.allowed & counted).any(-1)


@dataclass(frozen=True, eq=False)
class WithoutKeys(RowMean):
    """A row statistic of what is left of each row when some keys (a sink) are taken out and the rest fills the row.

    Args:
        probe: any probe of single rows, such as ``Entropy()``.
        keys: which keys are taken out; [key] or [batch, key]. A learned sink is taken out as well.

    Eligible are those of the probe's rows that have weight left: a row that is all sink has no rest to speak of.
    """

    probe: RowMean | None = None
    keys: Bool[Tensor, "#batch key"] | None = None

    def __post_init__(self) -> None:
        required(self, "probe")
        booleans(self, "keys")
        assert self.probe is not None
        if self.probe.needs - {"scores"}:
            raise ValueError(f"WithoutKeys takes a statistic of patterns; got {type(self.probe).__name__}")

    @property
    def name(self) -> str:
        assert self.probe is not None
        return f"{self.probe.name}_without_keys"

    @property
    def aligned(self) -> bool:  # type: ignore[override]
        assert self.probe is not None
        return self.probe.aligned

    @property
    def by_head(self) -> bool:  # type: ignore[override]
        assert self.probe is not None
        return self.probe.by_head

    def axes(self) -> tuple[tuple[str, Sequence[object]], ...]:
        assert self.probe is not None
        return self.probe.axes()

    def measure(self, rows: Rows) -> tuple[Tensor, Tensor]:
        assert self.probe is not None
        left = rows.pattern * ~per_key(self, "keys", rows)[:, None, None, rows.low : rows.high]
        total = left.sum(-1, keepdim=True)
        whole = left / total.clamp_min(torch.finfo(left.dtype).tiny)
        rest = replace(rows, pattern=whole, scores=None, sink_weight=None, edited=True)
        values, eligible = self.probe.measure(rest)
        eligible = self.probe.eligible(rest, values, eligible)
        has_rest = total[..., 0] > torch.finfo(left.dtype).tiny
        return values, eligible & has_rest.reshape(*has_rest.shape, *[1] * (values.ndim - 3))


@dataclass(frozen=True, eq=False)
class Together(RowMean):
    """Several row statistics side by side, [batch, head, part], so that `NormWeighted` weighs a block once for all.

    Args:
        parts: probes of single rows; the labels of one part follow those of the part before.
    """

    parts: Sequence[RowMean] = ()

    def __post_init__(self) -> None:
        if not self.parts or any(part.needs - {"scores"} for part in self.parts):
            raise ValueError("Together takes at least one statistic of patterns, and no other")

    @property
    def needs(self) -> frozenset[str]:  # type: ignore[override]
        return frozenset().union(*(part.needs for part in self.parts))

    @property
    def aligned(self) -> bool:  # type: ignore[override]
        return any(part.aligned for part in self.parts)

    @property
    def by_head(self) -> bool:  # type: ignore[override]
        return all(part.by_head for part in self.parts)

    def axes(self) -> tuple[tuple[str, Sequence[object]], ...]:
        labels: list[object] = []
        for part in self.parts:
            own = [f"{part.name}"]
            for _, of_axis in part.axes():
                own = [f"{name} {label}" for name in own for label in of_axis]
            labels += own
        return (("part", labels),)

    def measure(self, rows: Rows) -> tuple[Tensor, Tensor]:
        values, eligible = [], []
        for part in self.parts:
            found, measured = part.measure(rows)
            taking_part = part.eligible(rows, found, measured)
            columns = found.shape[3:].numel()
            values.append(found.reshape(*found.shape[:3], columns))
            wide = taking_part.expand(*taking_part.shape[:3], *found.shape[3:])
            eligible.append(wide.reshape(*taking_part.shape[:3], columns))
        return _side_by_side(values), _side_by_side(eligible)


def _side_by_side(tensors: Sequence[Tensor]) -> Tensor:
    sizes = torch.broadcast_shapes(*(tensor.shape[:3] for tensor in tensors))
    return torch.cat([tensor.expand(*sizes, -1) for tensor in tensors], dim=-1)
