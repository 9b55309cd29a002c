"""What all probes share: how they are run, how their sums are kept, and means over the rows of a sequence."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar, NamedTuple

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from interp.attention.rows import Rows, SiteShape

__all__ = ["HeadMean", "Measured", "Probe", "Reading", "RowMean", "Sums", "per_key", "required"]


class Measured(NamedTuple):
    """A finished statistic: ``values`` [batch, head, ...] and ``n``, the rows behind each, broadcastable to it."""

    values: Tensor
    n: Tensor


class Probe:
    """Base of all probes.

    Attributes:
        needs: what the engine must provide: any of ``"scores"``, ``"value"``, ``"weights"``, ``"grad_pattern"``.
        aligned: queries and keys must belong to one sequence (distances and offsets mean something).
        by_head: each head is read for itself, so that an engine may show the heads a few at a time.
    """

    needs: ClassVar[frozenset[str]] = frozenset()
    aligned: ClassVar[bool] = False
    by_head: ClassVar[bool] = False

    @property
    def name(self) -> str:
        """Name of the statistic, as it appears in tables."""
        words = "".join(f"_{c.lower()}" if c.isupper() else c for c in type(self).__name__)
        return words.lstrip("_")

    def axes(self) -> tuple[tuple[str, Sequence[object]], ...]:
        """Name and labels of each dimension after [batch, head]."""
        return ()

    def start(self, shape: SiteShape) -> Any:
        """The state before the first block."""
        raise NotImplementedError(f"{type(self).__name__} must define start(shape), update(state, rows), finish(state)")

    def update(self, state: Any, rows: Rows) -> None:
        """Take in a block of rows. Their memory is used again: copy what is to be kept."""
        raise NotImplementedError(f"{type(self).__name__} must define update(state, rows)")

    def finish(self, state: Any) -> Measured:
        """The statistic, after the last block."""
        raise NotImplementedError(f"{type(self).__name__} must define finish(state)")


class Reading:
    """What a probe found in one attention call.

    Attributes:
        probe: the probe. ``site``: where it read, or None.
        values: [batch, head, ...] in float64, NaN where no row was eligible.
        n: number of eligible rows behind each value.
        engine: what computed it, "blocked" or "fused"; "dense" where the model had built the pattern itself.

    For a probe that reads gradients, ``values`` exists only after the backward pass; it is that of the last one.
    """

    def __init__(self, probe: Probe, shape: SiteShape) -> None:
        self.probe, self.site = probe, shape.site
        self.engine = "dense"
        self.is_late = "grad_pattern" in probe.needs
        # Only a late probe starts again, and a shape may hold on to the values of a whole sequence
        self._shape = shape if self.is_late else None
        self._state: Any = None if self.is_late else probe.start(shape)
        self._measured: Measured | None = None
        self._parts: list[Reading] = []

    @classmethod
    def joined(cls, parts: list[Reading]) -> Reading:
        """What readings of some heads each, in order, say of all."""
        whole = copy.copy(parts[0])
        whole._parts = parts
        return whole

    def restart(self) -> None:
        """Begin anew: a backward pass may run more than once."""
        assert self._shape is not None
        self._state, self._measured = self.probe.start(self._shape), None

    def update(self, rows: Rows) -> None:
        """Show the probe a block of rows."""
        self.probe.update(self._state, rows)

    @property
    def measured(self) -> Measured:
        """The finished statistic."""
        if self._measured is None:
            if self.is_late and self._state is None:
                raise RuntimeError(
                    f"{type(self.probe).__name__} reads gradients: its values exist only after backward() has run "
                    "through this attention call"
                )
            self._measured = (
                _side_by_side([part.measured for part in self._parts])
                if self._parts
                else self.probe.finish(self._state)
            )
            self._state, self._parts = None, []
        return self._measured

    @property
    def values(self) -> Tensor:
        """The statistic, [batch, head, ...]."""
        return self.measured.values

    @property
    def n(self) -> Tensor:
        """The rows behind each value, broadcastable to :attr:`values`."""
        return self.measured.n


def _side_by_side(parts: list[Measured]) -> Measured:
    """Statistics of some heads each as one of all."""
    counts = [part.n.expand_as(part.values) for part in parts]  # which may be broadcast in different ways
    return Measured(torch.cat([part.values for part in parts], 1), torch.cat(counts, 1))


@dataclass
class Sums:
    """Sums over rows in float64, so that a million rows lose no digits.

    Attributes:
        shape: sizes of the statistic, for a call in which no row may read anything. ``device``: where it lives.
    """

    shape: tuple[int, ...]
    device: torch.device
    total: Tensor | None = None
    count: Tensor | None = None

    def add(
        self, values: Float[Tensor, "batch head row *axes"], eligible: Bool[Tensor, "#batch #head row *axes"] | None
    ) -> None:
        """Add the eligible rows' values; None: all are."""
        if eligible is None:
            total = values.sum(2, dtype=torch.float64)
            count = torch.full([1] * total.ndim, values.shape[2], device=values.device)
        else:
            total = torch.where(eligible, values, values.new_zeros(())).sum(2, dtype=torch.float64)
            count = eligible.sum(2)
        self.total = total if self.total is None else self.total + total
        self.count = count if self.count is None else self.count + count

    def mean(self) -> Measured:
        """The mean over the eligible rows; NaN where there were none."""
        if self.total is None or self.count is None:
            nothing = torch.zeros(self.shape, dtype=torch.long, device=self.device)
            return Measured(nothing.double() / nothing, nothing)
        return Measured(self.total / self.count, self.count)


@dataclass(frozen=True, eq=False)
class RowMean(Probe):
    """A statistic of single rows, averaged over the eligible rows of each sequence.

    Args:
        first_position: rows whose query stands before this position of its sequence are not eligible.
    """

    first_position: int = field(default=0, kw_only=True)

    def measure(self, rows: Rows) -> tuple[Float[Tensor, "batch head row *axes"], Bool[Tensor, ...] | None]:
        """The statistic of every row, and which rows (and labels) are eligible; None means all."""
        raise NotImplementedError(f"{type(self).__name__} must define measure(rows)")

    def start(self, shape: SiteShape) -> Sums:
        """Nothing summed yet."""
        return Sums((shape.batch, shape.n_heads, *(len(labels) for _, labels in self.axes())), shape.device)

    def update(self, state: Sums, rows: Rows) -> None:
        """Add a block's rows."""
        measured = self.measure(rows)
        if not isinstance(measured, tuple):
            raise ValueError(
                f"{type(self).__name__}.measure returns the values and which rows are eligible (None: all); got a "
                f"{type(measured).__name__}"
            )
        values, eligible = measured
        if values.shape[3:] != state.shape[2:]:
            raise ValueError(
                f"{type(self).__name__}.measure gave {list(values.shape)}; expected [batch, head, row] and one "
                f"dimension for each of axes(), here of sizes {list(state.shape[2:])}"
            )
        every = eligible is None and rows.valid is None and self.first_position <= 0
        state.add(values, None if every else self.eligible(rows, values, eligible))

    def eligible(self, rows: Rows, values: Tensor, measured: Tensor | None) -> Bool[Tensor, "#batch #head row *axes"]:
        """Which of the rows that were measured take part: no padding, and none before ``first_position``."""
        axes = [1] * (values.ndim - 3)
        if measured is None:
            measured = torch.ones(1, 1, values.shape[2], *axes, dtype=torch.bool, device=values.device)
        if rows.valid is not None:
            measured = measured & rows.valid.reshape(*rows.valid.shape, *axes)
        if self.first_position > 0:
            position = rows.mask.query_position[:, rows.start : rows.stop] >= self.first_position
            measured = measured & position.reshape(position.shape[0], 1, -1, *axes)
        return measured

    def finish(self, state: Sums) -> Measured:
        """The means."""
        return state.mean()


class HeadMean(RowMean):
    """A :class:`RowMean` that reads each head for itself, and holds nothing of its own for each."""

    by_head: ClassVar[bool] = True


def required(probe: Probe, field: str) -> None:
    """Raise ValueError where a probe was not given what it needs."""
    if getattr(probe, field) is None:
        raise ValueError(f"{type(probe).__name__} needs {field}=")


def per_key(probe: Probe, field: str, rows: Rows) -> Tensor:
    """A probe's per-key tensor as [batch or 1, key] on the right device, its size checked."""
    given: Tensor = getattr(probe, field)
    tensor = given[None] if given.ndim == 1 else given
    if tensor.ndim != 2 or tensor.shape[1] != rows.mask.n_keys or tensor.shape[0] not in (1, rows.mask.batch):
        raise ValueError(
            f"{type(probe).__name__}.{field} must be [key] or [batch, key] for batch {rows.mask.batch} and "
            f"{rows.mask.n_keys} keys; got {list(given.shape)}"
        )
    return tensor.to(rows.mask.device)
