"""Calls of the Triton kernels: tensors in, statistics of rows out. Importing it needs Triton.

On a machine without a GPU they run under ``TRITON_INTERPRET=1``, slowly: that is how they are tested.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import torch
import triton
from jaxtyping import Float, UInt8
from torch import Tensor

from . import kernel
from .scoring import Scoring

__all__ = ["Statistics", "received", "run", "tile"]


@dataclass(frozen=True, eq=False)
class Statistics:
    """What the kernel found of every row, in float32.

    Attributes:
        output: in the input's dtype. top: the largest score m, a learned sink included. log_sum: ln Σ e^{s−m}; −inf for
            a row that may read nothing. Apart, since their sum would lose the digits of the second where scores are
            large. largest: weight. total: the weights' sum, below 1 where there is a sink. entropy: nats.
        distance: Σ p |i − j|. histogram: Σ p by distance bin. masses: Σ p f for every feature.
    """

    output: Float[Tensor, "batch head query d_value"]
    top: Float[Tensor, "batch head query"]
    log_sum: Float[Tensor, "batch head query"]
    largest: Float[Tensor, "batch head query"]
    total: Float[Tensor, "batch head query"]
    entropy: Float[Tensor, "batch head query"]
    distance: Float[Tensor, "batch head query"] | None
    histogram: Float[Tensor, "batch head query bin"] | None
    masses: Float[Tensor, "batch head query feature"] | None


def run(
    query: Float[Tensor, "batch head query d_head"],
    key: Float[Tensor, "batch kv_head key d_head"],
    value: Float[Tensor, "batch kv_head key d_value"],
    scoring: Scoring,
    *,
    sinks: Float[Tensor, " head"] | None = None,
    distance: bool = False,
    bins: int = 0,
    features: Float[Tensor, "#batch key feature"] | None = None,
) -> Statistics:
    """One pass of attention.

    Args:
        sinks, features: in float32. distance: whether to sum distances. bins: distance bins, 0 for none.
    """
    batch, n_heads, n_queries, _ = query.shape
    d_value, n_features = value.shape[3], 0 if features is None else features.shape[2]

    def of_rows(*more: int) -> Tensor:
        return torch.empty(batch, n_heads, n_queries, *more, dtype=torch.float32, device=query.device)

    # [batch, query, head, d] in memory: what a model reshapes it to next
    output = query.new_empty(batch, n_queries, n_heads, d_value).transpose(1, 2)
    found = Statistics(
        output, of_rows(), of_rows(), of_rows(), of_rows(), of_rows(), of_rows() if distance else None,
        of_rows(bins) if bins else None, of_rows(n_features) if n_features else None,
    )  # fmt: skip
    if not found.top.numel():
        return found
    rows, columns, launched = tile(max(query.shape[3], d_value), query.dtype, query.device)
    value, room = _readable(value), _readable(output)
    n_blocks = triton.cdiv(n_queries, rows)
    fixed: dict[str, Any] = {
        "VALUE": d_value, "VALUE_WIDTH": _power(d_value), "ROWS": rows, "COLUMNS": columns, "BINS": bins,
        "BIN_WIDTH": _power(bins, 2), "N_FEATURES": n_features, "FEATURE_WIDTH": _power(n_features),
    }  # fmt: skip
    kernel.forward[(n_blocks * batch * n_heads,)](
        room, found.top, found.log_sum, found.largest, found.total, found.entropy, found.distance, found.histogram,
        found.masses, V=value, FEATURES=features, SINKS=sinks, n_blocks=n_blocks, **_shared(query, key, scoring),
        **_strides(out=room, v=value), features_b=0 if features is None or len(features) == 1 else features.stride(0),
        **fixed, **launched,
    )  # fmt: skip
    if room is not output:
        output.copy_(room)
    return found


def received(
    query: Float[Tensor, "batch head query d_head"],
    key: Float[Tensor, "batch kv_head key d_head"],
    scoring: Scoring,
    found: Statistics,
    counts: UInt8[Tensor, "batch head query"],
    start: int,
    stop: int,
) -> Float[Tensor, "batch head key"]:
    """The weight that each key receives from rows ``start`` to ``stop``, summed over those whose count is not 0."""
    batch, n_heads, n_keys = *query.shape[:2], key.shape[2]
    mass = torch.zeros(batch, n_heads, n_keys, dtype=torch.float32, device=query.device)
    if not mass.numel():
        return mass
    rows, columns, launched = tile(query.shape[3], query.dtype, query.device)
    n_blocks = triton.cdiv(n_keys, columns)
    fixed: dict[str, Any] = {"ROWS": rows, "COLUMNS": columns}
    kernel.received[(n_blocks * batch * n_heads,)](
        mass, found.top, found.log_sum, counts, row_from=start, row_to=stop, n_blocks=n_blocks,
        **_shared(query, key, scoring), **fixed, **launched,
    )  # fmt: skip
    return mass


def tile(d: int, dtype: torch.dtype, device: torch.device) -> tuple[int, int, dict[str, Any]]:
    """Rows and columns of a tile, and how it is launched: what fits on chip, by head dimension. Float32 is multiplied
    in registers, of which four warps have too few."""
    if device.type != "cuda":
        return 32, 32, {}
    full = dtype is torch.float32
    rows, columns = (64, 32) if full or _power(d) > 128 else (128, 64)
    return rows, columns, {"num_warps": 8 if full or rows == 128 else 4, "num_stages": 2}


def _shared(query: Tensor, key: Tensor, scoring: Scoring) -> dict[str, Any]:
    """What both kernels take, by name."""
    query, key = _readable(query), _readable(key)
    batch, n_heads, n_queries, d_head = query.shape
    n_kv_heads, n_keys = key.shape[1:3]
    sizes = (batch, n_heads, n_queries, n_keys)
    bias = None if scoring.bias is None else _readable(scoring.bias, dense=False).expand(sizes)
    added = None if scoring.added is None else scoring.added.expand(batch, -1, n_queries, n_keys)
    return {
        "Q": query, "K": key, "SCALES": scoring.scales, "SLOPES": scoring.slopes, "BIAS": bias, "ADDED": added,
        "SLOTS": scoring.slots, "VALID": scoring.valid,
        "n_heads": n_heads, "n_queries": n_queries, "n_keys": n_keys, "offset": scoring.offset,
        "window": scoring.window, "softcap": scoring.softcap,
        **_strides(q=query, k=key), **_strides(bias=bias, added=added, letters="bhmn"),
        "valid_b": 0 if scoring.valid is None else scoring.valid.stride(0),
        "GROUP": n_heads // n_kv_heads, "HEAD": d_head, "WIDTH": _power(d_head), "CAUSAL": scoring.causal,
    }  # fmt: skip


def _strides(letters: str = "bhn", **tensors: Tensor | None) -> dict[str, int]:
    """Strides of each tensor's first dimensions, by the names that the kernels give them."""
    return {
        f"{name}_{letter}": 0 if tensor is None else tensor.stride(i)
        for name, tensor in tensors.items()
        for i, letter in enumerate(letters)
    }


def _readable(tensor: Tensor, dense: bool = True) -> Tensor:
    """A tensor as the kernels read it: last dimension dense; in float32 in the interpreter, which has no bfloat16
    (float32 holds every half-precision number)."""
    if tensor.device.type != "cuda":
        tensor = tensor.float()
    return tensor.contiguous() if dense and tensor.stride(-1) != 1 else tensor


def _power(n: int, least: int = 16) -> int:
    return max(least, 1 << math.ceil(math.log2(max(n, 1))))
