"""Jensen–Shannon divergence between the rows of every pair of heads, a block of rows at a time.

With s = p + q, JSD(p, q) = ln 2 + ½ Σ (p ln p + q ln q − s ln s): one logarithm per pair and cell, and sums over
cells that need no bookkeeping by row. State grows with heads × heads, never with queries × keys.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import NamedTuple

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from .rows import Rows
from .traces import Trace, Traces

__all__ = ["Divergences", "head_divergences"]

_LEAST = 1e-30  # below any weight that counts; s ln s is 0 there, and no logarithm of zero is taken
_BLOCK_CELLS = {"cpu": 1 << 22, "cuda": 1 << 26}
"""Weights of a block, all heads together."""
_PAIR_CELLS = {"cpu": 1 << 19, "cuda": 1 << 25}
"""Cells of one head against all others at once: on CPU two such buffers stay in the second-level cache."""


class Divergences(NamedTuple):
    """Heads are those of the first site, then those of the second, and so on.

    Attributes:
        values: [batch, head, head] mean JSD over rows in nats, 0 to ln 2; NaN where no row counts. Symmetric.
        n: [batch, head, head] rows behind each.
    """

    values: Float[Tensor, "batch head head"]
    n: Int[Tensor, "batch head head"]


def head_divergences(
    traces: Traces,
    sites: Sequence[str] | None = None,
    *,
    rows: Int[Tensor, " row"] | None = None,
    without: Bool[Tensor, "#batch key"] | None = None,
) -> Divergences:
    """Mean Jensen–Shannon divergence between the rows of every pair of heads, in each sequence (Lin 1991).

    A row counts for a pair where both heads could distribute it: not padding, and at least two outcomes permitted (a
    learned sink is one). The sum runs over every permitted key; nothing is dropped.

    Args:
        traces: of a run with ``keep="qk"``.
        sites: which; they must have equal batches, queries and keys. None: all.
        rows: queries to compare, such as a random draw; None: all of them.
        without: keys that are taken out of every row (True), such as the first position; what is left is scaled to
            sum to 1, a learned sink is taken out as well, and rows with nothing left do not count.

    Raises:
        ValueError: sites of different sizes, rows that do not exist, or a mask of keys of another size.
    """
    found = [traces[name] for name in (list(traces) if sites is None else sites)]
    if not found:
        raise ValueError("head_divergences needs at least one site; none was kept")
    _check(found, rows, without)
    batch, device = found[0].query.shape[0], found[0].query.device
    n_heads = sum(trace.query.shape[1] for trace in found)
    sums = torch.zeros(batch, n_heads, n_heads, dtype=torch.float64, device=device)
    counts = torch.zeros_like(sums)
    with torch.no_grad():
        for runs in _blocks(found[0], rows, n_heads):
            weights, counted = _block(found, runs, without)
            counts += counted.double() @ counted.double().transpose(1, 2)
            for b in range(batch):
                sums[b] += _pair_sums(weights[b])
    values = (math.log(2) + sums / counts).clamp(0.0, math.log(2))
    values.diagonal(dim1=1, dim2=2).zero_()
    return Divergences(values.where(counts > 0, torch.nan), counts.long())


def _blocks(trace: Trace, rows: Tensor | None, n_heads: int) -> Iterator[list[tuple[int, int]]]:
    """Runs of consecutive rows ``(start, stop)``, together as many rows as memory allows."""
    batch, _, n_queries, _ = trace.query.shape
    room = _BLOCK_CELLS.get(trace.query.device.type, _BLOCK_CELLS["cuda"])
    height = max(1, room // max(batch * n_heads * trace.key.shape[2], 1))
    chosen = list(range(n_queries)) if rows is None else rows.unique().tolist()
    for first in range(0, len(chosen), height):
        runs: list[tuple[int, int]] = []
        for row in chosen[first : first + height]:
            if runs and runs[-1][1] == row:
                runs[-1] = (runs[-1][0], row + 1)
            else:
                runs.append((row, row + 1))
        yield runs


def _block(
    traces: Sequence[Trace], runs: Sequence[tuple[int, int]], without: Tensor | None
) -> tuple[Float[Tensor, "batch head row key"], Bool[Tensor, "batch head row"]]:
    """Weights of all sites' heads, 0 in rows that do not count, and which rows count for which head."""
    parts = [[_outcomes(trace.rows(*run), without) for run in runs] for trace in traces]
    weights = torch.cat([torch.cat([weights for weights, _ in part], 2) for part in parts], 1)
    counted = torch.cat([torch.cat([counts for _, counts in part], 2) for part in parts], 1)
    return weights.masked_fill_(~counted[..., None], 0.0), counted


def _outcomes(rows: Rows, without: Tensor | None) -> tuple[Float[Tensor, "batch head row key"], Tensor]:
    """Distributions over all keys and, last, the learned sink; and which rows [batch, head, row] count."""
    pattern = rows.pattern
    allowed = rows.allowed if without is None else rows.allowed & ~without[:, None, None, rows.low : rows.high]
    outcomes = allowed.sum(-1)
    whole = pattern.new_zeros(*pattern.shape[:-1], rows.mask.n_keys + 1)
    whole[..., rows.low : rows.high] = pattern
    if without is None:
        if rows.sink_weight is not None:
            whole[..., -1] = rows.sink_weight
            outcomes = outcomes + 1
    else:
        whole[..., :-1].masked_fill_(without[:, None, None], 0.0)
    counts = (outcomes >= 2).expand(pattern.shape[:3])
    if rows.valid is not None:
        counts = counts & rows.valid
    if without is not None:
        left = whole.sum(-1)
        counts = counts & (left > _LEAST)
        whole /= left.clamp_min(_LEAST)[..., None]
    return whole, counts


def _pair_sums(weights: Float[Tensor, "head row key"]) -> Float[Tensor, "head head"]:
    """½ Σ (p ln p + q ln q − s ln s) over the cells of each pair of different heads; symmetric, 0 for a head itself."""
    n_heads = weights.shape[0]
    flat = weights.flatten(1)
    flat = flat[:, (flat > 0).any(0)].clamp_min_(_LEAST)
    sums = torch.zeros(n_heads, n_heads, dtype=torch.float64, device=flat.device)
    room = _PAIR_CELLS.get(flat.device.type, _PAIR_CELLS["cuda"])
    width = max(64, room // n_heads)
    for start in range(0, flat.shape[1], width):
        cells = flat[:, start : start + width].contiguous()
        together, logarithm = torch.empty_like(cells), torch.empty_like(cells)
        own = (cells * cells.log()).sum(-1, dtype=torch.float64)
        sums += (own[:, None] + own).triu(1)
        for head in range(n_heads - 1):
            s = torch.add(cells[head + 1 :], cells[head], out=together[head + 1 :])
            sums[head, head + 1 :] -= torch.log(s, out=logarithm[head + 1 :]).mul_(s).sum(-1)
    return (sums + sums.T) / 2


def _check(traces: Sequence[Trace], rows: Tensor | None, without: Tensor | None) -> None:
    sizes = [(trace.query.shape[0], trace.query.shape[2], trace.key.shape[2]) for trace in traces]
    if len(set(sizes)) > 1:
        raise ValueError(
            "heads are compared row by row, so sites need equal batches, queries and keys; got [batch, query, key] "
            + " and ".join(str(list(size)) for size in dict.fromkeys(sizes))
        )
    batch, n_queries, n_keys = sizes[0]
    if rows is not None and len(rows) and not 0 <= int(rows.min()) <= int(rows.max()) < n_queries:
        raise ValueError(f"rows must be queries, 0 … {n_queries - 1}; got {int(rows.min())} … {int(rows.max())}")
    if without is not None and (without.ndim != 2 or without.shape[1] != n_keys or without.shape[0] not in (1, batch)):
        raise ValueError(f"without must be [1 or {batch}, {n_keys}], batch and key; got {list(without.shape)}")
