"""The Triton kernel of the fused engine: output and row statistics in one pass over the keys.

An online softmax (Milakov & Gimelshein 2018; Dao et al. 2022) keeps, for each query row, the largest score m so far and
sums over the keys seen, relative to exp(m). Beside the sum of weights and the output it keeps

- Σ e^{s−m} (m − s), which with the sum of weights gives the entropy as two terms that are never negative;
- Σ e^{s−m} |i − j|, the expected distance, and the same sum by distance in log₂ bins;
- Σ e^{s−m} f_j for features f_j of the keys (labels, sets).

When m rises by δ, sums shrink by e^{−δ}, and the second one takes up δ times the sum of weights first. Everything is in
float32; products of half-precision inputs are exact in it.

On a machine without a GPU the kernel runs under ``TRITON_INTERPRET=1``, slowly: that is how it is tested.
"""

# Inside @triton.jit stands Triton's own language, of which a type checker for Python knows little:
# pyright: reportIndexIssue=false, reportCallIssue=false, reportArgumentType=false, reportGeneralTypeIssues=false

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

__all__ = ["Statistics", "received", "run"]

FORBIDDEN = tl.constexpr(-1e38)
LOG2E = tl.constexpr(1.4426950408889634)


@dataclass(frozen=True, eq=False)
class Statistics:
    """What the kernel found of every row, [batch, head, query, ...], float32.

    Attributes:
        output: in the input's dtype. top: the largest score m, a learned sink included. log_sum: ln Σ e^{s−m}; −inf for
            a row that may read nothing. Apart, since their sum would lose the digits of the second where scores are
            large. largest: weight. total: the weights' sum, below 1 where there is a sink. entropy: nats.
        distance: Σ p |i − j|. histogram: Σ p by distance bin. masses: Σ p f for every feature.
    """

    output: Tensor
    top: Tensor
    log_sum: Tensor
    largest: Tensor
    total: Tensor
    entropy: Tensor
    distance: Tensor | None
    histogram: Tensor | None
    masses: Tensor | None


@triton.jit
def _scores(
    q, K, BIAS, batch, head, kv_head, rows, columns, n_keys, scale, softcap, slope, at,
    stride_kb, stride_kh, stride_kn, stride_kd, stride_bb, stride_bh, stride_bm, stride_bn,
    HEAD: tl.constexpr, WIDTH: tl.constexpr, HAS_CAP: tl.constexpr, HAS_BIAS: tl.constexpr, HAS_SLOPES: tl.constexpr,
    n_queries,
):  # fmt: skip
    """scale · q kᵀ, capped, with its bias: [row, column] in float32."""
    features = tl.arange(0, WIDTH)
    inside = (columns[:, None] < n_keys) & (features[None, :] < HEAD)
    k = tl.load(
        K + batch * stride_kb + kv_head * stride_kh + columns[:, None] * stride_kn + features[None, :] * stride_kd,
        mask=inside, other=0.0,
    )  # fmt: skip
    s = tl.dot(q, tl.trans(k), input_precision="ieee") * scale
    if HAS_CAP:
        s = softcap * (2.0 / (1.0 + tl.exp(-2.0 * s / softcap)) - 1.0)
    if HAS_SLOPES:
        s -= slope * tl.abs(at[:, None] - columns[None, :]).to(tl.float32)
    if HAS_BIAS:
        where = BIAS + batch * stride_bb + head * stride_bh + rows[:, None] * stride_bm + columns[None, :] * stride_bn
        s += tl.load(where, mask=(rows[:, None] < n_queries) & (columns[None, :] < n_keys), other=0.0).to(tl.float32)
    return s


@triton.jit
def _allowed(
    VALID, batch, rows, columns, n_queries, n_keys, at, window, stride_vb,
    CAUSAL: tl.constexpr, WINDOW: tl.constexpr, HAS_VALID: tl.constexpr,
):  # fmt: skip
    """Which keys each row may read."""
    allowed = (rows[:, None] < n_queries) & (columns[None, :] < n_keys)
    if CAUSAL:
        allowed = allowed & (columns[None, :] <= at[:, None])
    if WINDOW:
        allowed = allowed & (tl.abs(at[:, None] - columns[None, :]) < window)
    if HAS_VALID:
        valid = tl.load(VALID + batch * stride_vb + columns, mask=columns < n_keys, other=0)
        allowed = allowed & (valid[None, :] != 0)
    return allowed


@triton.jit
def _forward(
    Q, K, V, OUT, TOP, LOG_SUM, LARGEST, TOTAL, ENTROPY, DISTANCE, HISTOGRAM, MASSES, FEATURES, BIAS, SLOPES, SINKS,
    VALID, SCALES,
    n_heads, n_queries, n_keys, offset, window, softcap,
    stride_qb, stride_qh, stride_qn, stride_qd, stride_kb, stride_kh, stride_kn, stride_kd,
    stride_vb, stride_vh, stride_vn, stride_vd, stride_ob, stride_oh, stride_on, stride_od,
    stride_bb, stride_bh, stride_bm, stride_bn, stride_fb, stride_valid,
    GROUP: tl.constexpr, HEAD: tl.constexpr, VALUE: tl.constexpr, WIDTH: tl.constexpr, VALUE_WIDTH: tl.constexpr,
    ROWS: tl.constexpr, COLUMNS: tl.constexpr, CAUSAL: tl.constexpr, WINDOW: tl.constexpr, HAS_CAP: tl.constexpr,
    HAS_BIAS: tl.constexpr, HAS_SLOPES: tl.constexpr, HAS_SINKS: tl.constexpr, HAS_VALID: tl.constexpr,
    HAS_DISTANCE: tl.constexpr, BINS: tl.constexpr, BIN_WIDTH: tl.constexpr, N_FEATURES: tl.constexpr,
    FEATURE_WIDTH: tl.constexpr,
):  # fmt: skip
    block = tl.program_id(0)
    batch = tl.program_id(1) // n_heads
    head = tl.program_id(1) % n_heads
    kv_head = head // GROUP
    rows = block * ROWS + tl.arange(0, ROWS)
    at = rows + offset
    in_head, in_value = tl.arange(0, WIDTH), tl.arange(0, VALUE_WIDTH)
    q = tl.load(
        Q + batch * stride_qb + head * stride_qh + rows[:, None] * stride_qn + in_head[None, :] * stride_qd,
        mask=(rows[:, None] < n_queries) & (in_head[None, :] < HEAD), other=0.0,
    )  # fmt: skip
    scale = tl.load(SCALES + head)
    slope = 0.0
    if HAS_SLOPES:
        slope = tl.load(SLOPES + head)

    m = tl.full([ROWS], FORBIDDEN, tl.float32)
    total = tl.zeros([ROWS], tl.float32)
    below = tl.zeros([ROWS], tl.float32)
    distance = tl.zeros([ROWS], tl.float32)
    histogram = tl.zeros([ROWS, BIN_WIDTH], tl.float32)
    masses = tl.zeros([ROWS, FEATURE_WIDTH], tl.float32)
    z = tl.zeros([ROWS, VALUE_WIDTH], tl.float32)

    low, high = 0, n_keys
    if CAUSAL:
        high = tl.minimum(n_keys, block * ROWS + ROWS + offset)
    if WINDOW:
        low = tl.maximum(0, block * ROWS + offset - window + 1) // COLUMNS * COLUMNS
        if not CAUSAL:
            high = tl.minimum(n_keys, block * ROWS + ROWS + offset + window)
    for first in range(low, high, COLUMNS):
        columns = first + tl.arange(0, COLUMNS)
        s = _scores(
            q, K, BIAS, batch, head, kv_head, rows, columns, n_keys, scale, softcap, slope, at,
            stride_kb, stride_kh, stride_kn, stride_kd, stride_bb, stride_bh, stride_bm, stride_bn,
            HEAD, WIDTH, HAS_CAP, HAS_BIAS, HAS_SLOPES, n_queries,
        )  # fmt: skip
        allowed = _allowed(
            VALID, batch, rows, columns, n_queries, n_keys, at, window, stride_valid, CAUSAL, WINDOW, HAS_VALID
        )
        if HAS_BIAS:
            allowed = allowed & (s > FORBIDDEN / 2)
        s = tl.where(allowed, s, FORBIDDEN)
        risen = tl.maximum(m, tl.max(s, 1))
        shrink = tl.exp(m - risen)
        p = tl.where(allowed, tl.exp(s - risen[:, None]), 0.0)
        below = (below + total * (risen - m)) * shrink + tl.sum(p * (risen[:, None] - s), 1)
        total = total * shrink + tl.sum(p, 1)
        if HAS_DISTANCE or BINS > 0:
            apart = tl.abs(at[:, None] - columns[None, :])
            distance = distance * shrink + tl.sum(p * apart.to(tl.float32), 1)
            if BINS > 0:
                histogram = histogram * shrink[:, None]
                nearest = tl.maximum(0, tl.maximum(block * ROWS + offset - first - COLUMNS + 1,
                                                   first - (block * ROWS + ROWS - 1 + offset)))  # fmt: skip
                furthest = tl.maximum(block * ROWS + ROWS - 1 + offset - first,
                                      first + COLUMNS - 1 - block * ROWS - offset)  # fmt: skip
                for b in tl.static_range(0, BINS):
                    near = 0 if b == 0 else 1 << (b - 1)
                    far = 1 << b
                    if (nearest < far or b == BINS - 1) and furthest >= near:
                        here = apart >= near
                        if b < BINS - 1:
                            here = here & (apart < far)
                        part = tl.sum(tl.where(here, p, 0.0), 1)
                        histogram += tl.where(tl.arange(0, BIN_WIDTH)[None, :] == b, part[:, None], 0.0)
        if N_FEATURES > 0:
            number = tl.arange(0, FEATURE_WIDTH)
            f = tl.load(
                FEATURES + batch * stride_fb + columns[:, None] * N_FEATURES + number[None, :],
                mask=(columns[:, None] < n_keys) & (number[None, :] < N_FEATURES), other=0.0,
            )  # fmt: skip
            masses = masses * shrink[:, None] + tl.dot(p, f, input_precision="ieee")
        v = tl.load(
            V + batch * stride_vb + kv_head * stride_vh + columns[:, None] * stride_vn + in_value[None, :] * stride_vd,
            mask=(columns[:, None] < n_keys) & (in_value[None, :] < VALUE), other=0.0,
        )  # fmt: skip
        z = z * shrink[:, None] + tl.dot(p.to(v.dtype), v, input_precision="ieee")
        m = risen

    left, largest = total, tl.where(total > 0.0, 1.0, 0.0)  # relative to exp(m), the largest term is exp(0)
    if HAS_SINKS:
        # one more outcome, which carries no value
        sink = tl.load(SINKS + head).to(tl.float32)
        risen = tl.maximum(m, sink)
        shrink = tl.exp(m - risen)
        its = tl.exp(sink - risen)
        below = (below + total * (risen - m)) * shrink + its * (risen - sink)
        left = total * shrink
        some = left > 0.0
        total = tl.where(some, left + its, 0.0)
        z, distance, largest = z * shrink[:, None], distance * shrink, largest * shrink
        histogram, masses = histogram * shrink[:, None], masses * shrink[:, None]
        m = risen
    some = total > 0.0
    divisor = tl.where(some, total, 1.0)
    place = (batch * n_heads + head) * n_queries + rows
    stored = rows < n_queries
    tl.store(TOP + place, m, mask=stored)
    tl.store(ENTROPY + place, tl.where(some, tl.log(divisor) + below / divisor, 0.0), mask=stored)
    tl.store(TOTAL + place, left / divisor, mask=stored)
    tl.store(LARGEST + place, largest / divisor, mask=stored)
    tl.store(LOG_SUM + place, tl.where(some, tl.log(divisor), float("-inf")), mask=stored)
    if HAS_DISTANCE:
        tl.store(DISTANCE + place, distance / divisor, mask=stored)
    if BINS > 0:
        number = tl.arange(0, BIN_WIDTH)
        tl.store(HISTOGRAM + place[:, None] * BINS + number[None, :], histogram / divisor[:, None],
                 mask=stored[:, None] & (number[None, :] < BINS))  # fmt: skip
    if N_FEATURES > 0:
        number = tl.arange(0, FEATURE_WIDTH)
        tl.store(MASSES + place[:, None] * N_FEATURES + number[None, :], masses / divisor[:, None],
                 mask=stored[:, None] & (number[None, :] < N_FEATURES))  # fmt: skip
    tl.store(
        OUT + batch * stride_ob + head * stride_oh + rows[:, None] * stride_on + in_value[None, :] * stride_od,
        (z / divisor[:, None]).to(OUT.dtype.element_ty), mask=stored[:, None] & (in_value[None, :] < VALUE),
    )  # fmt: skip


@triton.jit
def _received(
    Q, K, TOP, LOG_SUM, RECEIVED, COUNTS, BIAS, SLOPES, VALID, SCALES, n_heads, n_queries, n_keys, row_from, row_to,
    offset, window, softcap, stride_qb, stride_qh, stride_qn, stride_qd, stride_kb, stride_kh, stride_kn, stride_kd,
    stride_bb, stride_bh, stride_bm, stride_bn, stride_valid,
    GROUP: tl.constexpr, HEAD: tl.constexpr, WIDTH: tl.constexpr, ROWS: tl.constexpr, COLUMNS: tl.constexpr,
    CAUSAL: tl.constexpr, WINDOW: tl.constexpr, HAS_CAP: tl.constexpr, HAS_BIAS: tl.constexpr, HAS_SLOPES: tl.constexpr,
    HAS_VALID: tl.constexpr,
):  # fmt: skip
    """The weights that each key receives from the rows that count, summed: a second pass, key blocks outside."""
    first = tl.program_id(0) * COLUMNS
    batch = tl.program_id(1) // n_heads
    head = tl.program_id(1) % n_heads
    kv_head = head // GROUP
    columns = first + tl.arange(0, COLUMNS)
    in_head = tl.arange(0, WIDTH)
    scale = tl.load(SCALES + head)
    slope = 0.0
    if HAS_SLOPES:
        slope = tl.load(SLOPES + head)
    mass = tl.zeros([COLUMNS], tl.float32)
    lost = tl.zeros([COLUMNS], tl.float32)  # what rounding has taken (Kahan): a million rows lose no digits
    begin = row_from
    if CAUSAL:
        begin = tl.maximum(begin, first - offset)
    for start in range(begin, row_to, ROWS):
        rows = start + tl.arange(0, ROWS)
        at = rows + offset
        q = tl.load(
            Q + batch * stride_qb + head * stride_qh + rows[:, None] * stride_qn + in_head[None, :] * stride_qd,
            mask=(rows[:, None] < n_queries) & (in_head[None, :] < HEAD), other=0.0,
        )  # fmt: skip
        s = _scores(
            q, K, BIAS, batch, head, kv_head, rows, columns, n_keys, scale, softcap, slope, at,
            stride_kb, stride_kh, stride_kn, stride_kd, stride_bb, stride_bh, stride_bm, stride_bn,
            HEAD, WIDTH, HAS_CAP, HAS_BIAS, HAS_SLOPES, n_queries,
        )  # fmt: skip
        allowed = _allowed(
            VALID, batch, rows, columns, n_queries, n_keys, at, window, stride_valid, CAUSAL, WINDOW, HAS_VALID
        )
        if HAS_BIAS:
            allowed = allowed & (s > FORBIDDEN / 2)
        counts = tl.load(COUNTS + (batch * n_heads + head) * n_queries + rows, mask=rows < row_to, other=0)
        place = (batch * n_heads + head) * n_queries + rows
        top = tl.load(TOP + place, mask=rows < n_queries, other=0.0)
        log_sum = tl.load(LOG_SUM + place, mask=rows < n_queries, other=0.0)
        p = tl.where(allowed & (counts[:, None] != 0), tl.exp(s - top[:, None] - log_sum[:, None]), 0.0)
        added = tl.sum(p, 0) - lost
        grown = mass + added
        lost = (grown - mass) - added
        mass = grown
    tl.store(RECEIVED + (batch * n_heads + head) * n_keys + columns, mass, mask=columns < n_keys)


def _power(n: int, least: int = 16) -> int:
    return max(least, 1 << math.ceil(math.log2(max(n, 1))))


def _blocks(d: int, dtype: torch.dtype, device: torch.device) -> tuple[int, int, dict[str, Any]]:
    """Rows and columns of a tile, and how it is launched: what fits on chip, by head dimension."""
    if device.type != "cuda":
        return 32, 32, {}
    wide, small = _power(d) > 128, dtype is torch.float32
    rows, columns = (64, 32) if small or wide else (128, 64)
    return rows, columns, {"num_warps": 4 if rows == 64 else 8, "num_stages": 2}


def _common(query: Tensor, key: Tensor, bias: Tensor | None, valid: Tensor | None) -> dict[str, Any]:
    return {
        "q": query.stride(),
        "k": key.stride(),
        "bias": (0, 0, 0, 0) if bias is None else bias.expand(
            query.shape[0], query.shape[1], query.shape[2], key.shape[2]
        ).stride(),
        "valid": 0 if valid is None else valid.stride(0),
    }  # fmt: skip


def run(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    *,
    scales: Tensor,
    offset: int,
    causal: bool,
    window: int | None,
    softcap: float | None,
    valid: Tensor | None,
    bias: Tensor | None,
    slopes: Tensor | None,
    sinks: Tensor | None,
    distance: bool,
    bins: int,
    features: Tensor | None,
) -> Statistics:
    """One pass of attention. Arguments as :func:`interp.attention.fused.fused` makes them of a call.

    Args:
        scales: [head], the factor on q · k. offset: key index of query 0. valid: [batch, key], uint8.
        bias: [#batch, #head, #query, #key]. bins: distance bins, 0 for none. features: [#batch, key, feature], float32.
    """
    dtype = query.dtype
    if query.device.type != "cuda":  # the interpreter has no bfloat16; float32 holds every half-precision number
        query, key, value = query.float(), key.float(), value.float()
    batch, n_heads, n_queries, head = query.shape
    n_kv_heads, n_keys, d_value = key.shape[1], key.shape[2], value.shape[3]
    make = lambda *more: torch.empty(batch, n_heads, n_queries, *more, dtype=torch.float32, device=query.device)  # noqa: E731
    out = query.new_empty(batch, n_queries, n_heads, d_value).transpose(1, 2)
    top, log_sum, largest, total, entropy = make(), make(), make(), make(), make()
    n_features = 0 if features is None else features.shape[2]
    distances = make() if distance else top
    histogram = make(bins) if bins else top
    masses = make(n_features) if n_features else top
    rows, columns, launch = _blocks(max(head, d_value), query.dtype, query.device)
    strides = _common(query, key, bias, valid)
    nothing = top
    if n_queries:
        _forward[(triton.cdiv(n_queries, rows), batch * n_heads)](
            query, key, value, out, top, log_sum, largest, total, entropy, distances, histogram, masses,
            nothing if features is None else features, nothing if bias is None else bias,
            nothing if slopes is None else slopes, nothing if sinks is None else sinks,
            nothing if valid is None else valid,
            scales, n_heads, n_queries, n_keys, offset, window or 0, softcap or 1.0,
            *strides["q"], *strides["k"], *value.stride(), *out.stride(), *strides["bias"],
            0 if features is None or features.shape[0] == 1 else features.stride(0), strides["valid"],
            GROUP=n_heads // n_kv_heads, HEAD=head, VALUE=d_value, WIDTH=_power(head), VALUE_WIDTH=_power(d_value),
            ROWS=rows, COLUMNS=columns, CAUSAL=causal, WINDOW=window is not None, HAS_CAP=softcap is not None,
            HAS_BIAS=bias is not None, HAS_SLOPES=slopes is not None, HAS_SINKS=sinks is not None,
            HAS_VALID=valid is not None, HAS_DISTANCE=distance, BINS=bins, BIN_WIDTH=_power(bins, 2),
            N_FEATURES=n_features, FEATURE_WIDTH=_power(n_features, 16), **launch,
        )  # fmt: skip
    return Statistics(
        out.to(dtype), top, log_sum, largest, total, entropy, distances if distance else None,
        histogram if bins else None,
        masses if n_features else None,
    )  # fmt: skip


def received(
    query: Tensor,
    key: Tensor,
    top: Tensor,
    log_sum: Tensor,
    counts: Tensor,
    start: int,
    stop: int,
    *,
    scales: Tensor,
    offset: int,
    causal: bool,
    window: int | None,
    softcap: float | None,
    valid: Tensor | None,
    bias: Tensor | None,
    slopes: Tensor | None,
) -> Tensor:
    """The weight that each key receives from rows ``start`` to ``stop``, summed over those for which ``counts``
    [batch, head, query] (uint8) is not 0."""
    if query.device.type != "cuda":
        query, key = query.float(), key.float()
    batch, n_heads, n_queries, head = query.shape
    n_kv_heads, n_keys = key.shape[1], key.shape[2]
    found = torch.zeros(batch, n_heads, n_keys, dtype=torch.float32, device=query.device)
    rows, columns, launch = _blocks(head, query.dtype, query.device)
    strides = _common(query, key, bias, valid)
    if n_keys:
        _received[(triton.cdiv(n_keys, columns), batch * n_heads)](
            query, key, top, log_sum, found, counts, top if bias is None else bias, top if slopes is None else slopes,
            top if valid is None else valid, scales, n_heads, n_queries, n_keys, start, stop,
            offset, window or 0, softcap or 1.0, *strides["q"], *strides["k"], *strides["bias"], strides["valid"],
            GROUP=n_heads // n_kv_heads, HEAD=head, WIDTH=_power(head), ROWS=rows, COLUMNS=columns, CAUSAL=causal,
            WINDOW=window is not None, HAS_CAP=softcap is not None, HAS_BIAS=bias is not None,
            HAS_SLOPES=slopes is not None, HAS_VALID=valid is not None, **launch,
        )  # fmt: skip
    return found
