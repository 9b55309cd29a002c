"""What can be read off pattern rows while they are computed.

A probe is an immutable description. The engine calls :meth:`Probe.start` once per attention call, :meth:`Probe.update`
for every block of query rows, and :meth:`Probe.finish` at the end; state never grows with queries × keys. Statistics
of a sequence are means over its *eligible* rows: rows that could show what is measured. A padding row, or a row that
may read no key, is never eligible.

Writing one::

    @dataclass(frozen=True, eq=False)
    class SecondLargest(RowMean):
        def measure(self, rows):
            return rows.pattern.topk(2, dim=-1).values[..., 1], None
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar, NamedTuple

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from .rows import Rows, SiteShape

__all__ = [
    "DistanceHistogram",
    "Entropy",
    "ExpectedDistance",
    "GradientTimesWeight",
    "HeadDivergence",
    "LabelMass",
    "LabelMatch",
    "MassReceived",
    "MaxWeight",
    "Measured",
    "NormWeighted",
    "OffsetMass",
    "PositionMass",
    "Probe",
    "Reading",
    "RowMean",
    "SelectedRows",
    "StrongestEdges",
    "StrongestGroup",
    "StrongestOffset",
    "TargetMass",
    "basic",
]


class Measured(NamedTuple):
    """A finished statistic: ``values`` [batch, head, ...] and ``n``, the rows behind each, broadcastable to it."""

    values: Tensor
    n: Tensor


class Probe:
    """Base of all probes.

    Attributes:
        needs: what the engine must provide: any of ``"scores"``, ``"value"``, ``"weights"``, ``"grad_pattern"``.
        aligned: queries and keys must belong to one sequence (distances and offsets mean something).
    """

    needs: ClassVar[frozenset[str]] = frozenset()
    aligned: ClassVar[bool] = False

    @property
    def name(self) -> str:
        """Name of the statistic, as it appears in tables."""
        words = "".join(f"_{c.lower()}" if c.isupper() else c for c in type(self).__name__)
        return words.lstrip("_")

    def axes(self) -> tuple[tuple[str, Sequence[object]], ...]:
        """Name and labels of each dimension after [batch, head]."""
        return ()

    def start(self, shape: SiteShape) -> Any:
        raise NotImplementedError(f"{type(self).__name__} must define start(shape), update(state, rows), finish(state)")

    def update(self, state: Any, rows: Rows) -> None:
        raise NotImplementedError(f"{type(self).__name__} must define update(state, rows)")

    def finish(self, state: Any) -> Measured:
        raise NotImplementedError(f"{type(self).__name__} must define finish(state)")


class Reading:
    """What a probe found in one attention call.

    Attributes:
        probe: the probe. ``site``: where it read, or None.
        values: [batch, head, ...] in float64, NaN where no row was eligible.
        n: number of eligible rows behind each value.

    For a probe that reads gradients, ``values`` exists only after the backward pass.
    """

    def __init__(self, probe: Probe, shape: SiteShape) -> None:
        self.probe, self.site = probe, shape.site
        self._shape = shape
        self._state: Any = None if "grad_pattern" in probe.needs else probe.start(shape)
        self._measured: Measured | None = None

    def restart(self) -> None:
        """Begin anew: a backward pass may run more than once."""
        self._state, self._measured = self.probe.start(self._shape), None

    def update(self, rows: Rows) -> None:
        self.probe.update(self._state, rows)

    @property
    def measured(self) -> Measured:
        if self._measured is None:
            if self._state is None:
                raise RuntimeError(
                    f"{type(self.probe).__name__} reads gradients: its values exist only after backward() has run "
                    "through this attention call"
                )
            self._measured = self.probe.finish(self._state)
        return self._measured

    @property
    def values(self) -> Tensor:
        return self.measured.values

    @property
    def n(self) -> Tensor:
        return self.measured.n


@dataclass
class _Sums:
    """Sums over rows in float64, so that a million rows lose no digits."""

    total: Tensor | None = None
    count: Tensor | None = None

    def add(self, values: Tensor, eligible: Tensor) -> None:
        masked = torch.where(eligible, values, torch.zeros((), dtype=values.dtype, device=values.device))
        total = masked.sum(2, dtype=torch.float64)
        count = eligible.sum(2)
        self.total = total if self.total is None else self.total + total
        self.count = count if self.count is None else self.count + count


@dataclass(frozen=True, eq=False)
class RowMean(Probe):
    """A statistic of single rows, averaged over the eligible rows of each sequence.

    Args:
        first_position: rows whose query stands before this position of its sequence are not eligible.
    """

    first_position: int = field(default=0, kw_only=True)

    def measure(self, rows: Rows) -> tuple[Float[Tensor, "batch head row *axes"], Bool[Tensor, "..."] | None]:
        """The statistic of every row, and which rows (and labels) are eligible; None means all."""
        raise NotImplementedError(f"{type(self).__name__} must define measure(rows)")

    def start(self, shape: SiteShape) -> _Sums:
        return _Sums()

    def update(self, state: _Sums, rows: Rows) -> None:
        values, eligible = self.measure(rows)
        extra = values.ndim - 3
        if eligible is None:
            eligible = torch.ones((1,) * values.ndim, dtype=torch.bool, device=values.device)
            eligible = eligible.expand(1, 1, values.shape[2], *[1] * extra)
        if rows.valid is not None:
            eligible = eligible & rows.valid.reshape(*rows.valid.shape, *[1] * extra)
        if self.first_position > 0:
            position = rows.mask.query_position[:, rows.start : rows.stop] >= self.first_position
            eligible = eligible & position.reshape(position.shape[0], 1, -1, *[1] * extra)
        state.add(values, eligible)

    def finish(self, state: _Sums) -> Measured:
        if state.total is None or state.count is None:
            nothing = torch.full((1, 1), float("nan"), dtype=torch.float64)
            return Measured(nothing, torch.zeros(1, 1, dtype=torch.long))
        return Measured(state.total / state.count, state.count)


@dataclass(frozen=True, eq=False)
class Entropy(RowMean):
    """Entropy −Σ p ln p of a row, in nats; between 0 and ln(number of permitted keys). A sink is an outcome."""

    needs: ClassVar[frozenset[str]] = frozenset({"scores"})

    def measure(self, rows: Rows) -> tuple[Tensor, None]:
        return rows.entropy, None


@dataclass(frozen=True, eq=False)
class MaxWeight(RowMean):
    """Largest weight of a row, in [0, 1] (Voita et al. 2019 call its mean over text a head's confidence)."""

    def measure(self, rows: Rows) -> tuple[Tensor, None]:
        return rows.max_weight, None


@dataclass(frozen=True, eq=False)
class OffsetMass(RowMean):
    """Weight on the key at each offset *before* the query: 0 is the current token, 1 the previous one, −1 the next.

    Eligible are rows whose key at that offset exists and may be read.
    """

    offsets: Sequence[int] = (0, 1)
    aligned: ClassVar[bool] = True

    def axes(self) -> tuple[tuple[str, Sequence[object]], ...]:
        return (("offset", list(self.offsets)),)

    def measure(self, rows: Rows) -> tuple[Tensor, Tensor]:
        weights = torch.stack([rows.at_offset(offset) for offset in self.offsets], dim=-1)
        offsets = torch.tensor(list(self.offsets), device=weights.device)
        query = rows.query_index[None, None, :, None]
        key = rows.query_key_index[None, None, :, None] - offsets
        exists = (key >= 0) & (key < rows.mask.n_keys)
        return weights, exists & rows.mask.permits(query, key.clamp(0, max(rows.mask.n_keys - 1, 0)))


@dataclass(frozen=True, eq=False)
class PositionMass(RowMean):
    """Weight on the key at each position of its sequence; 0 is the first token that is not padding.

    Eligible are rows that may read that key. ``first_position=1`` leaves out the row that stands on position 0 itself.
    """

    positions: Sequence[int] = (0,)

    def axes(self) -> tuple[tuple[str, Sequence[object]], ...]:
        return (("position", list(self.positions)),)

    def measure(self, rows: Rows) -> tuple[Tensor, Tensor]:
        found = rows.mask.key_position[:, None, :] == torch.tensor(
            list(self.positions), device=rows.pattern.device
        ).view(1, -1, 1)
        if rows.mask.mask.key_valid is not None:
            found = found & rows.mask.mask.key_valid[:, None, :]
        keys = torch.where(found.any(-1), found.int().argmax(-1), -1)
        return rows.at_keys(keys[:, None, None, :].expand(-1, 1, rows.stop - rows.start, -1))


@dataclass(frozen=True, eq=False)
class LabelMass(RowMean):
    """Weight on the keys of each label (separator, punctuation, …).

    Args:
        labels: label of each key, 0 to ``n_labels`` − 1, or −1 for none; [key] or [batch, key].
        n_labels: number of labels.

    Eligible for a label are rows that may read at least one key of it.
    """

    labels: Int[Tensor, "#batch key"] | None = None
    n_labels: int = 1

    def __post_init__(self) -> None:
        _required(self, "labels")

    def axes(self) -> tuple[tuple[str, Sequence[object]], ...]:
        return (("label", list(range(self.n_labels))),)

    def measure(self, rows: Rows) -> tuple[Tensor, Tensor]:
        labels = _per_key(self, "labels", rows)[:, rows.low : rows.high]
        member = torch.nn.functional.one_hot(labels + 1, self.n_labels + 1)[..., 1:].to(rows.pattern.dtype)
        weights = rows.pattern @ member[:, None]
        reachable = rows.allowed.to(rows.pattern.dtype) @ member[:, None]
        return weights, reachable > 0


@dataclass(frozen=True, eq=False)
class TargetMass(RowMean):
    """Weight on the target keys of each row, summed: induction, duplicates, a dependency's head.

    Args:
        targets: key indices [query, target] or [batch, query, target]; −1 for none. A key counts once per row, so
            no key may be named twice in a row.

    Eligible are rows with at least one target that they may read.
    """

    targets: Int[Tensor, "#batch query target"] | None = None

    def __post_init__(self) -> None:
        _required(self, "targets")
        assert self.targets is not None
        ordered = self.targets.sort(-1).values
        if ((ordered[..., 1:] == ordered[..., :-1]) & (ordered[..., 1:] >= 0)).any():
            raise ValueError("TargetMass.targets names a key twice in one row, which would count its weight twice")

    def measure(self, rows: Rows) -> tuple[Tensor, Tensor]:
        targets = self.targets
        assert targets is not None
        targets = targets[None] if targets.ndim == 2 else targets
        if targets.shape[1] != rows.mask.n_queries or targets.shape[0] not in (1, rows.mask.batch):
            raise ValueError(
                f"TargetMass.targets must be [batch, query, target] with batch 1 or {rows.mask.batch} and "
                f"{rows.mask.n_queries} queries; got {list(targets.shape)}"
            )
        weights, permitted = rows.at_keys(targets[:, None, rows.start : rows.stop].to(rows.pattern.device))
        return (weights * permitted).sum(-1), permitted.any(-1)


@dataclass(frozen=True, eq=False)
class LabelMatch(RowMean):
    """Weight on keys whose label, ``shift`` tokens earlier, is the query's own label.

    ``shift=0`` with token ids reads duplicate-token heads (the query itself left out), ``shift=1`` reads induction on
    any text: keys that follow an earlier occurrence of the current token.

    Args:
        labels: label of each key, −1 for none (never matches); [key] or [batch, key].
        query_labels: labels of the queries where they are not those of the keys (cross-attention).
    """

    labels: Int[Tensor, "#batch key"] | None = None
    shift: int = 0
    query_labels: Int[Tensor, "#batch query"] | None = None

    def __post_init__(self) -> None:
        _required(self, "labels")

    def measure(self, rows: Rows) -> tuple[Tensor, Tensor]:
        labels = _per_key(self, "labels", rows)
        key_source = rows.key_index - self.shift
        exists = (key_source >= 0) & (key_source < rows.mask.n_keys)
        key_label = labels[:, key_source.clamp(0, rows.mask.n_keys - 1)]
        key_label = torch.where(exists & (key_label >= 0), key_label, torch.full_like(key_label, -1))
        if self.query_labels is not None:
            own = self.query_labels[None] if self.query_labels.ndim == 1 else self.query_labels
            query_label = own[:, rows.start : rows.stop].to(labels.device)
            itself = torch.zeros((), dtype=torch.bool, device=labels.device)
        else:
            query_label = labels[:, rows.query_key_index]
            itself = key_source[None, :] == rows.query_key_index[:, None]
        match = (query_label[:, :, None] == key_label[:, None, :]) & (key_label[:, None, :] >= 0) & ~itself
        match = match[:, None] & rows.allowed
        return (rows.pattern * match).sum(-1), match.any(-1)


@dataclass(frozen=True, eq=False)
class ExpectedDistance(RowMean):
    """Mean distance |query − key| in tokens under the row's weights (a sink's share left out)."""

    aligned: ClassVar[bool] = True

    def measure(self, rows: Rows) -> tuple[Tensor, None]:
        # Distances are counted from the block's first query, so that near keys carry small numbers and keep digits.
        first = rows.start + rows.mask.offset
        row = rows.query_index - rows.start
        if rows.mask.mask.causal:
            mass = rows.pattern.sum(-1)
            distance = rows.pattern @ (first - rows.key_index).to(rows.pattern.dtype) + row * mass
        else:
            apart = (rows.query_key_index[:, None] - rows.key_index[None, :]).abs().to(rows.pattern.dtype)
            distance = (rows.pattern * apart).sum(-1)
            mass = rows.pattern.sum(-1) if rows.sink_weight is not None else None
        if rows.sink_weight is None or mass is None:
            return distance, None
        return distance / mass.clamp_min(torch.finfo(mass.dtype).tiny), None


@dataclass(frozen=True, eq=False)
class DistanceHistogram(RowMean):
    """Weight by distance |query − key| in log₂ bins: 0, 1, 2–3, 4–7, …; the last bin holds everything beyond.

    Args:
        n_bins: number of bins; bin b > 0 starts at distance 2^(b−1).
    """

    n_bins: int = 16
    aligned: ClassVar[bool] = True

    def axes(self) -> tuple[tuple[str, Sequence[object]], ...]:
        return (("distance_from", [0] + [2 ** (b - 1) for b in range(1, self.n_bins)]),)

    def measure(self, rows: Rows) -> tuple[Tensor, None]:
        # Sums over key ranges as differences of one running sum: in float64, and without scattered writes, which are
        # not deterministic on a GPU.
        running = torch.nn.functional.pad(rows.pattern.cumsum(-1, dtype=torch.float64), (1, 0))
        at = rows.query_key_index - rows.low
        width = rows.high - rows.low
        bins = []
        for b in range(self.n_bins):
            near = 0 if b == 0 else 2 ** (b - 1)
            far = 2**b if b < self.n_bins - 1 else max(rows.mask.n_keys, 2**b) + abs(rows.mask.offset) + 1
            mass = self._between(running, at - far + 1, at - near + 1, width)
            if near > 0:
                mass = mass + self._between(running, at + near, at + far, width)
            bins.append(mass)
        return torch.stack(bins, dim=-1), None

    @staticmethod
    def _between(running: Tensor, first: Tensor, last: Tensor, width: int) -> Tensor:
        index = torch.stack([first, last]).clamp(0, width)[:, None, None, :, None]
        index = index.expand(2, *running.shape[:2], -1, 1)
        low, high = (running.gather(-1, i).squeeze(-1) for i in index)
        return high - low


@dataclass(frozen=True, eq=False)
class StrongestOffset(RowMean):
    """Share of rows whose strongest key stands at each offset from ``first`` to ``last`` (1 is the previous token)."""

    first: int = -8
    last: int = 8
    aligned: ClassVar[bool] = True

    def axes(self) -> tuple[tuple[str, Sequence[object]], ...]:
        return (("offset", list(range(self.first, self.last + 1))),)

    def measure(self, rows: Rows) -> tuple[Tensor, None]:
        offset = rows.query_key_index - (rows.pattern.argmax(-1) + rows.low)
        labels = torch.arange(self.first, self.last + 1, device=offset.device)
        return (offset[..., None] == labels).to(torch.float64), None


@dataclass(frozen=True, eq=False)
class GradientTimesWeight(RowMean):
    """Σ_j |A_ij ∂L/∂A_ij| of a row: how much the loss would feel each weight, summed. Needs a backward pass."""

    needs: ClassVar[frozenset[str]] = frozenset({"grad_pattern"})

    def measure(self, rows: Rows) -> tuple[Tensor, None]:
        assert rows.grad_pattern is not None
        return (rows.pattern * rows.grad_pattern).abs().sum(-1), None


@dataclass(frozen=True, eq=False)
class NormWeighted(Probe):
    """A row statistic on weights α_j ‖f(x_j)‖, normalised per row (Kobayashi et al. 2020), beside plain weights α_j.

    f(x_j) is the value vector after the head's W_O. A key whose value is small adds little however large its weight.

    Args:
        probe: any probe of single rows, such as ``PositionMass([0])``.
    """

    probe: RowMean
    needs: ClassVar[frozenset[str]] = frozenset({"value", "weights"})

    @property
    def name(self) -> str:
        return f"norm_weighted_{self.probe.name}"

    @property
    def aligned(self) -> bool:  # type: ignore[override]
        return self.probe.aligned

    def axes(self) -> tuple[tuple[str, Sequence[object]], ...]:
        return self.probe.axes()

    def start(self, shape: SiteShape) -> tuple[_Sums, Tensor]:
        if shape.site is None or shape.site.weights is None or shape.value is None:
            raise ValueError(
                "NormWeighted needs the site's W_O: call attend with site=Site(name, weights=...), "
                "or run it through a HookedModel whose projections are known"
            )
        w_o = shape.site.weights().W_O.to(device=shape.device, dtype=shape.value.dtype)  # type: ignore[attr-defined]
        # ‖v W_O‖² = v (W_O W_Oᵀ) vᵀ, on d_head × d_head instead of d_head × d_model
        gram = w_o @ w_o.transpose(-1, -2)
        group = shape.n_heads // shape.n_kv_heads
        value = shape.value.repeat_interleave(group, dim=1)
        square = torch.einsum("bhki,hij,bhkj->bhk", value, gram, value)
        return self.probe.start(shape), square.clamp_min(0).sqrt()

    def update(self, state: tuple[_Sums, Tensor], rows: Rows) -> None:
        sums, norms = state
        weighted = rows.pattern * norms[:, :, None, rows.low : rows.high]
        total = weighted.sum(-1, keepdim=True)
        weighted = weighted / total.clamp_min(torch.finfo(weighted.dtype).tiny)
        self.probe.update(sums, replace(rows, pattern=weighted, scores=None, sink_weight=None, edited=True))

    def finish(self, state: tuple[_Sums, Tensor]) -> Measured:
        return self.probe.finish(state[0])


@dataclass(frozen=True, eq=False)
class MassReceived(Probe):
    """Mean weight that each key receives from the rows that may read it: [batch, head, key]."""

    def start(self, shape: SiteShape) -> tuple[Tensor, Tensor]:
        total = torch.zeros(shape.batch, shape.n_heads, shape.n_keys, dtype=torch.float64, device=shape.device)
        return total, torch.zeros(shape.batch, shape.n_heads, shape.n_keys, dtype=torch.long, device=shape.device)

    def axes(self) -> tuple[tuple[str, Sequence[object]], ...]:
        return (("key", ()),)

    def update(self, state: tuple[Tensor, Tensor], rows: Rows) -> None:
        total, count = state
        pattern, allowed = rows.pattern, rows.allowed
        if rows.valid is not None:
            pattern = torch.where(rows.valid[..., None], pattern, torch.zeros_like(pattern))
            allowed = allowed & rows.valid[..., None]
        total[..., rows.low : rows.high] += pattern.sum(-2, dtype=torch.float64)
        count[..., rows.low : rows.high] += allowed.sum(-2)

    def finish(self, state: tuple[Tensor, Tensor]) -> Measured:
        total, count = state
        return Measured(total / count, count)


@dataclass(frozen=True, eq=False)
class StrongestEdges(Probe):
    """The k largest weights of each sequence and head: values [batch, head, k, 3] of (weight, query, key).

    Fewer than k edges leave weight 0 and indices −1.
    """

    k: int = 10

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
        width = max(rows.high - rows.low, 1)
        flat = pattern.flatten(-2)
        weight, index = flat.topk(min(self.k, flat.shape[-1]), dim=-1)
        query, key = index // width + rows.start, index % width + rows.low
        query, key = (torch.where(weight > 0, i, torch.full_like(i, -1)) for i in (query, key))
        merged = torch.cat([state[0], weight.double()], -1)
        # Stable, so that among equal weights the earlier edge stays, whatever the block size
        order = merged.argsort(dim=-1, descending=True, stable=True)[..., : self.k]
        state[0] = merged.gather(-1, order)
        state[1] = torch.cat([state[1], query], -1).gather(-1, order)
        state[2] = torch.cat([state[2], key], -1).gather(-1, order)

    def finish(self, state: list[Tensor]) -> Measured:
        weight, query, key = state
        return Measured(torch.stack([weight, query.double(), key.double()], -1), (query >= 0)[..., None])


@dataclass(frozen=True, eq=False)
class SelectedRows(Probe):
    """Chosen pattern rows in full: [batch, head, row, key].

    Args:
        queries: row indices; all rows of a long sequence would be the T×T pattern, so choose.
    """

    queries: Sequence[int] = ()

    def axes(self) -> tuple[tuple[str, Sequence[object]], ...]:
        return (("query", list(self.queries)), ("key", ()))

    def start(self, shape: SiteShape) -> Tensor:
        outside = [q for q in self.queries if not 0 <= q < shape.n_queries]
        if outside:
            raise ValueError(f"SelectedRows.queries must lie in 0 … {shape.n_queries - 1}; got {outside}")
        size = (shape.batch, shape.n_heads, len(self.queries), shape.n_keys)
        return torch.zeros(size, dtype=torch.float64, device=shape.device)

    def update(self, state: Tensor, rows: Rows) -> None:
        for place, query in enumerate(self.queries):
            if rows.start <= query < rows.stop:
                state[:, :, place, rows.low : rows.high] = rows.pattern[:, :, query - rows.start].double()

    def finish(self, state: Tensor) -> Measured:
        return Measured(state, (state > 0).any(-1, keepdim=True))


@dataclass(frozen=True, eq=False)
class HeadDivergence(Probe):
    """Pairwise Jensen–Shannon divergence between the rows of a site's heads: [batch, head, head], nats, ≤ ln 2."""

    def axes(self) -> tuple[tuple[str, Sequence[object]], ...]:
        return (("other_head", ()),)

    def start(self, shape: SiteShape) -> _Sums:
        return _Sums()

    def update(self, state: _Sums, rows: Rows) -> None:
        pattern = rows.pattern
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
        valid = torch.ones(1, 1, divergence.shape[2], 1, dtype=torch.bool, device=pattern.device)
        state.add(divergence, valid if rows.valid is None else rows.valid[..., None])

    def finish(self, state: _Sums) -> Measured:
        assert state.total is not None and state.count is not None
        return Measured(state.total / state.count, state.count)


@dataclass
class _Words:
    weight: Tensor  # [batch, head, query_group]: weight on the strongest group
    choice: Tensor  # [batch, head, query_group]: that group, −1 where there was none
    carry: list[Tensor | None]  # per sequence: the open word's summed rows [head, key_group]
    carried: list[tuple[int, int]]  # per sequence: (open word, its rows so far)


@dataclass(frozen=True, eq=False)
class StrongestGroup(Probe):
    """Strongest *word* for each word, where words are groups of consecutive tokens (Clark et al. 2019).

    Weights to a split word are summed over its tokens, weights from a split word are averaged over its rows. The word
    itself, and keys without a word, are left out of the choice.

    Args:
        groups: word of each token, non-decreasing where ≥ 0, −1 for none (separators, padding); [key] or [batch, key].
        n_groups: number of words.

    Values: [batch, head, word, 2] of (strongest word or −1, its weight). Queries and keys must be the same tokens.
    """

    groups: Int[Tensor, "#batch key"] | None = None
    n_groups: int = 0
    aligned: ClassVar[bool] = True

    def __post_init__(self) -> None:
        _required(self, "groups")
        assert self.groups is not None
        groups = self.groups[None] if self.groups.ndim == 1 else self.groups
        for row in groups:
            real = row[row >= 0]
            if (real[1:] < real[:-1]).any():
                raise ValueError("StrongestGroup.groups must not decrease along the tokens: words are consecutive")
            if real.numel() and int(real.max()) >= self.n_groups:
                raise ValueError(f"StrongestGroup.groups names word {int(real.max())}, n_groups is {self.n_groups}")

    def axes(self) -> tuple[tuple[str, Sequence[object]], ...]:
        return (("group", list(range(self.n_groups))), ("choice", ["group", "weight"]))

    def start(self, shape: SiteShape) -> _Words:
        size = (shape.batch, shape.n_heads, self.n_groups)
        weight = torch.zeros(size, dtype=torch.float64, device=shape.device)
        choice = torch.full(size, -1, dtype=torch.long, device=shape.device)
        return _Words(weight, choice, [None] * shape.batch, [(-1, 0)] * shape.batch)

    def update(self, state: _Words, rows: Rows) -> None:
        groups = _per_key(self, "groups", rows).expand(rows.mask.batch, -1)
        at = rows.query_key_index
        for b in range(rows.pattern.shape[0]):
            key_group = groups[b, rows.low : rows.high]
            # Tokens without a word go to one column more, which is dropped
            column = torch.where(key_group >= 0, key_group, self.n_groups)
            words = rows.pattern.new_zeros(*rows.pattern.shape[1:3], self.n_groups + 1)
            words.index_add_(-1, column, rows.pattern[b])
            for row, group in enumerate(groups[b, at].tolist()):
                self._take(state, b, group, words[:, row, :-1])

    def _take(self, state: _Words, b: int, group: int, row: Tensor) -> None:
        open_word, n_rows = state.carried[b]
        carry = state.carry[b]
        if carry is not None and group == open_word:
            state.carry[b], state.carried[b] = carry + row, (open_word, n_rows + 1)
            return
        self._close(state, b)
        state.carry[b], state.carried[b] = (row.double(), (group, 1)) if group >= 0 else (None, (-1, 0))

    def _close(self, state: _Words, b: int) -> None:
        carry, (group, n_rows) = state.carry[b], state.carried[b]
        if carry is None:
            return
        mean = carry / n_rows
        mean[:, group] = -1.0  # a word does not choose itself
        weight, choice = mean.max(-1)
        found = weight > 0
        state.weight[b, :, group] = torch.where(found, weight, torch.zeros_like(weight))
        state.choice[b, :, group] = torch.where(found, choice, torch.full_like(choice, -1))

    def finish(self, state: _Words) -> Measured:
        for b in range(len(state.carry)):
            self._close(state, b)
            state.carry[b] = None
        values = torch.stack([state.choice.double(), state.weight], dim=-1)
        return Measured(values, (state.choice >= 0)[..., None])


def basic() -> tuple[Probe, ...]:
    """The *basic probes* that benchmarks speak of: entropy, largest weight, current and previous token, first
    position, expected distance."""
    return (Entropy(), MaxWeight(), OffsetMass(offsets=(0, 1)), PositionMass(positions=(0,)), ExpectedDistance())


def _required(probe: Probe, field: str) -> None:
    if getattr(probe, field) is None:
        raise ValueError(f"{type(probe).__name__} needs {field}=")


def _per_key(probe: Probe, field: str, rows: Rows) -> Tensor:
    """A probe's per-key tensor as [batch or 1, key] on the right device, its size checked."""
    tensor: Tensor = getattr(probe, field)
    tensor = tensor[None] if tensor.ndim == 1 else tensor
    if tensor.ndim != 2 or tensor.shape[1] != rows.mask.n_keys or tensor.shape[0] not in (1, rows.mask.batch):
        raise ValueError(
            f"{type(probe).__name__}.{field} must be [key] or [batch, key] for batch {rows.mask.batch} and "
            f"{rows.mask.n_keys} keys; got {list(tensor.shape)}"
        )
    return tensor.to(rows.pattern.device)
