"""One row of attention as a distribution to be changed: its keys, its sink, the values that it weighs."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import torch
from jaxtyping import Float, Int
from numpy.typing import NDArray
from torch import Tensor

from analyses.adversarial_attention.bounds import to_vertex
from interp.attention import Rows, SiteShape
from interp.attention.probes import Measured, Probe

__all__ = ["ReadRow", "Row", "rows_of"]


@dataclass(frozen=True, eq=False)
class Row:
    """A row of one head. Outcomes are the keys that it may read, in order, and last the sink where the head has one.

    Attributes:
        site, head: whose. n_keys: of the whole call.
        keys: the permitted keys. pattern: weights of the outcomes; they add up to 1.
        values: what each outcome adds to the head's output per unit of weight, 0 for the sink; None where the model
            keeps its values to itself.
    """

    site: str
    head: int
    n_keys: int
    keys: Int[NDArray[np.int64], " key"]
    pattern: Float[NDArray[np.float64], " outcome"]
    values: Float[NDArray[np.float64], "outcome d_head"] | None

    @property
    def address(self) -> tuple[str, int]:
        """Site and head."""
        return self.site, self.head

    @property
    def vertices(self) -> Float[NDArray[np.float64], " outcome"]:
        """Divergence of the row from all weight on each outcome, in nats."""
        return to_vertex(torch.as_tensor(self.pattern)).numpy()

    @property
    def ceiling(self) -> float:
        """The largest divergence that any distribution on the outcomes can have."""
        return float(self.vertices.max())

    def on_all_keys(self, point: NDArray[np.float64]) -> NDArray[np.float64]:
        """Weights on every key of the call: 0 on those that the row may not read; the sink's are left out."""
        weights = np.zeros(self.n_keys)
        weights[self.keys] = point[: len(self.keys)]
        return weights


@dataclass(frozen=True, eq=False)
class ReadRow(Probe):
    """One query row of every head with its values: [batch, head, key + 1, 2 + d_head].

    The last of the keys is the sink. Of each: its weight (NaN for a sink that is not there), whether it may be read,
    and its value.

    Args:
        query: the row. values: whether values are read, which a model that computes its own attention keeps to itself.
    """

    query: int = 0
    values: bool = True
    needs: ClassVar[frozenset[str]] = frozenset({"value"})

    def __post_init__(self) -> None:
        if not self.values:
            object.__setattr__(self, "needs", frozenset())

    def axes(self) -> tuple[tuple[str, Sequence[object]], ...]:
        """Keys, and what is known of each."""
        return (("key", ()), ("of", ()))

    def start(self, shape: SiteShape) -> Tensor:
        """Nothing but the values."""
        width = 0 if shape.value is None else shape.value.shape[-1]
        size = (shape.batch, shape.n_heads, shape.n_keys + 1, 2 + width)
        state = torch.zeros(size, dtype=torch.float64, device=shape.device)
        if shape.value is not None:
            state[:, :, :-1, 2:] = shape.value.detach().repeat_interleave(shape.n_heads // shape.n_kv_heads, 1)
        return state

    def update(self, state: Tensor, rows: Rows) -> None:
        """Take the row in, if the block holds it."""
        if rows.start <= self.query < rows.stop:
            at = self.query - rows.start
            state[:, :, rows.low : rows.high, 0] = rows.pattern[:, :, at].detach().double()
            state[:, :, rows.low : rows.high, 1] = rows.readable[:, :, at].double()
            state[:, :, -1, 0] = torch.nan if rows.sink_weight is None else rows.sink_weight[:, :, at].detach().double()

    def finish(self, state: Tensor) -> Measured:
        """The row."""
        return Measured(state, torch.ones(1, dtype=torch.long).expand(state.shape))


def rows_of(read: Float[Tensor, "head key of"], site: str) -> list[Row]:
    """The rows of a site's heads from what a `ReadRow` found in one sequence."""
    return [_row(of_head.cpu().numpy(), site, head) for head, of_head in enumerate(read)]


def _row(read: NDArray[np.float64], site: str, head: int) -> Row:
    keys = np.flatnonzero(read[:-1, 1] > 0)
    outcomes = keys if np.isnan(read[-1, 0]) else np.append(keys, len(read) - 1)
    pattern = np.maximum(read[outcomes, 0], 0.0)
    values = read[outcomes, 2:] if read.shape[1] > 2 else None
    return Row(site, head, len(read) - 1, keys, pattern / pattern.sum(), values)
