"""What is collected over all rows of a sequence: norm-weighted statistics, keys, edges, whole rows, heads."""

# ruff: noqa: D102 (what the methods are for, Probe says)

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import ClassVar

import torch
from jaxtyping import Float
from torch import Tensor

from interp.attention.rows import Rows, SiteShape

from .base import Measured, Probe, RowMean, Sums

__all__ = [
    "HeadDivergence",
    "MassReceived",
    "NormWeighted",
    "SelectedRows",
    "StrongestEdges",
]


@dataclass(frozen=True, eq=False)
class NormWeighted(Probe):
    """A row statistic on weights α_j ‖f(x_j)‖, normalised per row (Kobayashi et al. 2020), beside plain weights α_j.

    f(x_j) is the value vector after the head's W_O. A key whose value is small adds little however large its weight.

    Args:
        probe: any probe of single rows, such as ``PositionMass([0])``.
    """

    probe: RowMean
    needs: ClassVar[frozenset[str]] = frozenset({"value", "weights"})

    def __post_init__(self) -> None:
        if not isinstance(self.probe, RowMean) or "grad_pattern" in self.probe.needs:
            raise ValueError(f"NormWeighted takes a statistic of single rows; got {type(self.probe).__name__}")

    @property
    def name(self) -> str:
        return f"norm_weighted_{self.probe.name}"

    @property
    def aligned(self) -> bool:  # type: ignore[override]
        return self.probe.aligned

    def axes(self) -> tuple[tuple[str, Sequence[object]], ...]:
        return self.probe.axes()

    def start(self, shape: SiteShape) -> tuple[Sums, Tensor]:
        if shape.site is None or shape.site.weights is None or shape.value is None:
            raise ValueError(
                "NormWeighted needs the site's W_O: call attend with site=Site(name, weights=...), "
                "or run it through a HookedModel whose projections are known"
            )
        w_o = shape.site.weights().W_O.to(device=shape.device, dtype=shape.value.dtype)  # type: ignore[attr-defined]
        # ‖v W_O‖ = ‖v Rᵀ‖ for W_Oᵀ = QR, on d_head × d_head instead of d_head × d_model
        r = torch.linalg.qr(w_o.transpose(-1, -2), mode="r").R
        value = shape.value.repeat_interleave(shape.n_heads // shape.n_kv_heads, dim=1)
        return self.probe.start(shape), (value @ r.transpose(-1, -2)).norm(dim=-1)

    def update(self, state: tuple[Sums, Tensor], rows: Rows) -> None:
        sums, norms = state
        weighted = rows.pattern * norms[:, :, None, rows.low : rows.high]
        total = weighted.sum(-1, keepdim=True)
        weighted = weighted / total.clamp_min(torch.finfo(weighted.dtype).tiny)
        self.probe.update(sums, replace(rows, pattern=weighted, scores=None, sink_weight=None, edited=True))

    def finish(self, state: tuple[Sums, Tensor]) -> Measured:
        return self.probe.finish(state[0])


@dataclass(frozen=True, eq=False)
class MassReceived(Probe):
    """Mean weight that each key receives from the rows that may read it: [batch, head, key].

    Args:
        until_position: rows whose query stands at this position of its sequence, or after it, do not count.
    """

    by_head: ClassVar[bool] = True
    until_position: int | None = None

    def start(self, shape: SiteShape) -> tuple[Tensor, Tensor]:
        total = torch.zeros(shape.batch, shape.n_heads, shape.n_keys, dtype=torch.float64, device=shape.device)
        return total, torch.zeros(shape.batch, shape.n_heads, shape.n_keys, dtype=torch.long, device=shape.device)

    def axes(self) -> tuple[tuple[str, Sequence[object]], ...]:
        return (("key", ()),)

    def update(self, state: tuple[Tensor, Tensor], rows: Rows) -> None:
        total, count = state
        allowed, valid = rows.allowed, rows.valid
        if self.until_position is not None:
            early = rows.mask.query_position[:, None, rows.start : rows.stop] < self.until_position
            valid = early if valid is None else valid & early
        if valid is not None:
            allowed = allowed & valid[..., None]
        total[..., rows.low : rows.high] += rows.received(valid)
        count[..., rows.low : rows.high] += allowed.sum(-2)

    def finish(self, state: tuple[Tensor, Tensor]) -> Measured:
        total, count = state
        return Measured(total / count, count)


@dataclass(frozen=True, eq=False)
class StrongestEdges(Probe):
    """The k largest weights of each sequence and head: values [batch, head, k, 3] of (weight, query, key).

    Fewer than k edges leave weight 0 and indices −1. Among equal weights the earlier edge comes first.
    """

    k: int = 10

    def __post_init__(self) -> None:
        if self.k < 1:
            raise ValueError(f"StrongestEdges needs k of at least 1; got {self.k}")

    def axes(self) -> tuple[tuple[str, Sequence[object]], ...]:
        return (("rank", list(range(self.k))), ("edge", ["weight", "query", "key"]))

    def start(self, shape: SiteShape) -> list[Tensor]:
        weight = torch.zeros(shape.batch, shape.n_heads, self.k, dtype=torch.float64, device=shape.device)
        index = torch.full_like(weight, -1, dtype=torch.long)
        return [weight, index, index.clone()]

    def update(self, state: list[Tensor], rows: Rows) -> None:
        pattern = rows.pattern
        if rows.valid is not None:
            pattern = torch.where(rows.valid[..., None], pattern, torch.zeros_like(pattern))
        size, width = state[0].shape[:2], rows.high - rows.low
        weight, index = _first_largest(pattern.flatten(-2), self.k)
        query, key = index // width + rows.start, index % width + rows.low
        found = (weight, query.where(weight > 0, -1), key.where(weight > 0, -1))
        # The state's edges are earlier than the block's, and the sort is stable
        merged = [
            torch.cat([old, new.to(old.dtype).expand(*size, -1)], -1) for old, new in zip(state, found, strict=True)
        ]
        order = merged[0].argsort(dim=-1, descending=True, stable=True)[..., : self.k]
        state[:] = [part.gather(-1, order) for part in merged]

    def finish(self, state: list[Tensor]) -> Measured:
        weight, query, key = state
        return Measured(torch.stack([weight, query.double(), key.double()], -1), (query >= 0)[..., None])


@dataclass(frozen=True, eq=False)
class SelectedRows(Probe):
    """Chosen pattern rows in full: [batch, head, row, key].

    Args:
        queries: row indices; all rows of a long sequence would be the T×T pattern, so choose.

    A row that is padding, or may read no key, is NaN with n = 0.
    """

    queries: Sequence[int] = ()

    def axes(self) -> tuple[tuple[str, Sequence[object]], ...]:
        return (("query", list(self.queries)), ("key", ()))

    def start(self, shape: SiteShape) -> tuple[Tensor, Tensor]:
        """Nothing seen yet: (weights, which rows were seen)."""
        outside = [q for q in self.queries if not 0 <= q < shape.n_queries]
        if outside:
            raise ValueError(f"SelectedRows.queries must lie in 0 … {shape.n_queries - 1}; got {outside}")
        size = (shape.batch, shape.n_heads, len(self.queries))
        weights = torch.zeros(*size, shape.n_keys, dtype=torch.float64, device=shape.device)
        return weights, torch.zeros(*size, 1, dtype=torch.bool, device=shape.device)

    def update(self, state: tuple[Tensor, Tensor], rows: Rows) -> None:
        """Take in those of the chosen rows that the block holds."""
        weights, seen = state
        for place, query in enumerate(self.queries):
            if rows.start <= query < rows.stop:
                at = query - rows.start
                weights[:, :, place, rows.low : rows.high] = rows.pattern[:, :, at].double()
                seen[:, :, place] = True if rows.valid is None else rows.valid[:, :, at, None]

    def finish(self, state: tuple[Tensor, Tensor]) -> Measured:
        """The rows."""
        weights, seen = state
        return Measured(weights.masked_fill(~seen, float("nan")), seen.long())


@dataclass(frozen=True, eq=False)
class HeadDivergence(Probe):
    """Pairwise Jensen–Shannon divergence between the rows of a site's heads: [batch, head, head], nats, ≤ ln 2.

    A sink counts as one more outcome. Eligible are rows that neither head has empty.
    """

    def axes(self) -> tuple[tuple[str, Sequence[object]], ...]:
        return (("other_head", ()),)

    def start(self, shape: SiteShape) -> Sums:
        """Nothing summed yet."""
        return Sums((shape.batch, shape.n_heads, shape.n_heads), shape.device)

    def update(self, state: Sums, rows: Rows) -> None:
        """Add a block's rows."""
        pattern = rows.pattern
        if rows.sink_weight is not None:
            pattern = torch.cat([pattern, rows.sink_weight[..., None]], -1)
        own = torch.special.entr(pattern).sum(-1)
        n_heads = pattern.shape[1]
        divergence = pattern.new_zeros(*pattern.shape[:3], n_heads)
        for head in range(n_heads - 1):
            middle = (pattern[:, head : head + 1] + pattern[:, head + 1 :]) / 2
            mixed = torch.special.entr(middle).sum(-1)
            # Rounding may leave −1e−8 where two rows are equal
            apart = (mixed - (own[:, head : head + 1] + own[:, head + 1 :]) / 2).clamp_min(0)
            divergence[:, head, :, head + 1 :] = apart.transpose(1, 2)
            divergence[:, head + 1 :, :, head] = apart
        valid = torch.ones(1, 1, divergence.shape[2], dtype=torch.bool, device=pattern.device)
        valid = valid if rows.valid is None else rows.valid
        state.add(divergence, valid[..., None] & valid.transpose(1, 2)[:, None])

    def finish(self, state: Sums) -> Measured:
        """The means."""
        return state.mean()


def _first_largest(x: Float[Tensor, "*batch n"], k: int) -> tuple[Tensor, Tensor]:
    """The k largest values and their places, in falling order; of equal values the first, where topk takes any."""
    n, k = x.shape[-1], min(k, x.shape[-1])
    weight, place = x.topk(k, dim=-1)
    least = weight[..., -1:]
    if bool(((x == least).sum(-1) > (weight == least).sum(-1)).any()):
        rank, n_above = torch.arange(k, device=x.device), (weight > least).sum(-1, keepdim=True)
        tied = torch.where(x == least, torch.arange(n, device=x.device), n).topk(k, dim=-1, largest=False).values
        place = torch.where(rank < n_above, place, tied.gather(-1, (rank - n_above).clamp_min(0)))
    place, order = place.sort(dim=-1)
    weight, order = weight.gather(-1, order).sort(dim=-1, descending=True, stable=True)
    return weight, place.gather(-1, order)
