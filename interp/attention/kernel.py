"""The Triton kernels of the fused engine: output and row statistics in one pass over the keys; what keys receive in
another.

An online softmax (Milakov & Gimelshein 2018; Dao et al. 2022) keeps, for each query row, the largest score m so far and
sums over the keys seen, relative to exp(m). Beside the sum of weights and the output it keeps

- Σ e^{s−m} (m − s), which with the sum of weights gives the entropy as two terms that are never negative;
- Σ e^{s−m} |i − j|, the expected distance, and the same sum by distance in log₂ bins;
- Σ e^{s−m} f_j for features f_j of the keys (labels, sets).

When m rises by δ, sums shrink by e^{−δ}, and the second one takes up δ times the sum of weights first. Everything is in
float32; products of half-precision inputs are exact in it.

Pointers in capitals may be None, as may ``window`` and ``softcap``: what they stand for is then not compiled in.
:mod:`interp.attention.launch` says what each one is.
"""

# Inside @triton.jit stands Triton's own language, of which a type checker for Python knows little:
# pyright: reportIndexIssue=false, reportCallIssue=false, reportArgumentType=false, reportGeneralTypeIssues=false
# pyright: reportOptionalOperand=false, reportOperatorIssue=false

from __future__ import annotations

import triton
import triton.language as tl

__all__ = ["forward", "received"]

FORBIDDEN = tl.constexpr(-1e38)


@triton.jit
def _program(n_blocks, n_heads):
    """Which block, sequence and head a program works on. 64 bits, since what is reached from there may be far away."""
    program = tl.program_id(0)
    plane = program // n_blocks
    return program % n_blocks, (plane // n_heads).to(tl.int64), (plane % n_heads).to(tl.int64)


@triton.jit
def _rows_of(X, rows, stride, n_rows, LENGTH: tl.constexpr, WIDTH: tl.constexpr):
    """Some rows of a matrix whose rows are dense: [row, WIDTH], 0 beyond the matrix."""
    column = tl.arange(0, WIDTH)
    where = X + (rows.to(tl.int64) * stride)[:, None] + column[None, :]
    return tl.load(where, mask=(rows[:, None] < n_rows) & (column[None, :] < LENGTH), other=0.0)


@triton.jit
def _tile(X, rows, columns, stride_m, stride_n, inside):
    """A tile of a matrix, in float32, 0 outside."""
    where = X + (rows.to(tl.int64) * stride_m)[:, None] + (columns.to(tl.int64) * stride_n)[None, :]
    return tl.load(where, mask=inside, other=0.0).to(tl.float32)


@triton.jit
def _scores(
    q, k, rows, columns, batch, head, SCALES, SLOPES, BIAS, ADDED, SLOTS, VALID,
    n_queries, n_keys, offset, window, softcap,
    bias_b, bias_h, bias_m, bias_n, added_b, added_h, added_m, added_n, valid_b, CAUSAL: tl.constexpr,
):  # fmt: skip
    """Scores of a tile [row, column] in float32, and which of them a row may read; FORBIDDEN where it may not."""
    apart = (rows + offset)[:, None] - columns[None, :]
    allowed = (rows[:, None] < n_queries) & (columns[None, :] < n_keys)
    if CAUSAL:
        allowed = allowed & (apart >= 0)
    if window is not None:
        allowed = allowed & (tl.abs(apart) < window)
    if VALID is not None:
        valid = tl.load(VALID + batch * valid_b + columns, mask=columns < n_keys, other=0)
        allowed = allowed & (valid[None, :] != 0)
    s = tl.dot(q, tl.trans(k), input_precision="ieee") * tl.load(SCALES + head)
    if softcap is not None:
        s = softcap * (2.0 / (1.0 + tl.exp(-2.0 * s / softcap)) - 1.0)
    if SLOPES is not None:
        s -= tl.load(SLOPES + head) * tl.abs(apart).to(tl.float32)
    if BIAS is not None:
        s += _tile(BIAS + batch * bias_b + head * bias_h, rows, columns, bias_m, bias_n, allowed)
    if ADDED is not None:
        slot = tl.load(SLOTS + head).to(tl.int64)
        s += _tile(ADDED + batch * added_b + slot * added_h, rows, columns, added_m, added_n, allowed & (slot >= 0))
    if BIAS is not None or ADDED is not None:
        allowed = allowed & ~(s <= FORBIDDEN / 2)  # so that NaN stays, and is found
    return tl.where(allowed, s, FORBIDDEN), allowed


@triton.jit
def forward(
    OUT, TOP, LOG_SUM, LARGEST, TOTAL, ENTROPY, DISTANCE, HISTOGRAM, MASSES, Q, K, V, FEATURES, SINKS,
    SCALES, SLOPES, BIAS, ADDED, SLOTS, VALID, n_blocks, n_heads, n_queries, n_keys, offset, window, softcap,
    out_b, out_h, out_n, q_b, q_h, q_n, k_b, k_h, k_n, v_b, v_h, v_n, features_b,
    bias_b, bias_h, bias_m, bias_n, added_b, added_h, added_m, added_n, valid_b,
    GROUP: tl.constexpr, HEAD: tl.constexpr, WIDTH: tl.constexpr, VALUE: tl.constexpr, VALUE_WIDTH: tl.constexpr,
    ROWS: tl.constexpr, COLUMNS: tl.constexpr, CAUSAL: tl.constexpr, BINS: tl.constexpr, BIN_WIDTH: tl.constexpr,
    N_FEATURES: tl.constexpr, FEATURE_WIDTH: tl.constexpr,
):  # fmt: skip
    """Output and statistics of a block of query rows."""
    block, batch, head = _program(n_blocks, n_heads)
    first_row = block * ROWS
    rows = first_row + tl.arange(0, ROWS)
    q = _rows_of(Q + batch * q_b + head * q_h, rows, q_n, n_queries, HEAD, WIDTH)
    K += batch * k_b + head // GROUP * k_h
    V += batch * v_b + head // GROUP * v_h

    m = tl.full([ROWS], FORBIDDEN, tl.float32)
    total = tl.zeros([ROWS], tl.float32)
    below = tl.zeros([ROWS], tl.float32)
    distance = tl.zeros([ROWS], tl.float32)
    histogram = tl.zeros([ROWS, BIN_WIDTH], tl.float32)
    masses = tl.zeros([ROWS, FEATURE_WIDTH], tl.float32)
    z = tl.zeros([ROWS, VALUE_WIDTH], tl.float32)

    low, high = 0, n_keys
    if CAUSAL:
        high = tl.minimum(n_keys, first_row + ROWS + offset)
    if window is not None:
        low = tl.maximum(0, first_row + offset - window + 1) // COLUMNS * COLUMNS
        high = tl.minimum(high, first_row + ROWS + offset + window)
    for first in range(low, high, COLUMNS):
        columns = first + tl.arange(0, COLUMNS)
        k = _rows_of(K, columns, k_n, n_keys, HEAD, WIDTH)
        s, allowed = _scores(
            q, k, rows, columns, batch, head, SCALES, SLOPES, BIAS, ADDED, SLOTS, VALID,
            n_queries, n_keys, offset, window, softcap,
            bias_b, bias_h, bias_m, bias_n, added_b, added_h, added_m, added_n, valid_b, CAUSAL,
        )  # fmt: skip
        risen = tl.maximum(m, tl.max(s, 1))
        shrink = tl.exp(m - risen)
        p = tl.where(allowed, tl.exp(s - risen[:, None]), 0.0)
        below = (below + total * (risen - m)) * shrink + tl.sum(p * (risen[:, None] - s), 1)
        total = total * shrink + tl.sum(p, 1)
        if DISTANCE is not None or BINS > 0:
            apart = tl.abs((rows + offset)[:, None] - columns[None, :])
            distance = distance * shrink + tl.sum(p * apart.to(tl.float32), 1)
            if BINS > 0:
                histogram = histogram * shrink[:, None]
                at = first_row + offset
                nearest = tl.maximum(0, tl.maximum(at - first - COLUMNS + 1, first - (at + ROWS - 1)))
                furthest = tl.maximum(at + ROWS - 1 - first, first + COLUMNS - 1 - at)
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
            f = _rows_of(FEATURES + batch * features_b, columns, N_FEATURES, n_keys, N_FEATURES, FEATURE_WIDTH)
            masses = masses * shrink[:, None] + tl.dot(p, f, input_precision="ieee")
        v = _rows_of(V, columns, v_n, n_keys, VALUE, VALUE_WIDTH)
        z = z * shrink[:, None] + tl.dot(p.to(v.dtype), v, input_precision="ieee")
        m = risen

    left, largest = total, tl.where(total > 0.0, 1.0, 0.0)  # relative to exp(m), the largest term is exp(0)
    if SINKS is not None:
        # one more outcome, which carries no value
        sink = tl.load(SINKS + head)
        risen = tl.maximum(m, sink)
        shrink = tl.exp(m - risen)
        its = tl.exp(sink - risen)
        below = (below + total * (risen - m)) * shrink + its * (risen - sink)
        left = total * shrink
        total = tl.where(left > 0.0, left + its, 0.0)
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
    if DISTANCE is not None:
        tl.store(DISTANCE + place, distance / divisor, mask=stored)
    if BINS > 0:
        column = tl.arange(0, BIN_WIDTH)[None, :]
        where = HISTOGRAM + place[:, None] * BINS + column
        tl.store(where, histogram / divisor[:, None], mask=stored[:, None] & (column < BINS))
    if N_FEATURES > 0:
        column = tl.arange(0, FEATURE_WIDTH)[None, :]
        where = MASSES + place[:, None] * N_FEATURES + column
        tl.store(where, masses / divisor[:, None], mask=stored[:, None] & (column < N_FEATURES))
    column = tl.arange(0, VALUE_WIDTH)[None, :]
    where = OUT + batch * out_b + head * out_h + (rows.to(tl.int64) * out_n)[:, None] + column
    tl.store(where, (z / divisor[:, None]).to(OUT.dtype.element_ty), mask=stored[:, None] & (column < VALUE))


@triton.jit
def received(
    RECEIVED, TOP, LOG_SUM, COUNTS, Q, K, SCALES, SLOPES, BIAS, ADDED, SLOTS, VALID, row_from, row_to,
    n_blocks, n_heads, n_queries, n_keys, offset, window, softcap, q_b, q_h, q_n, k_b, k_h, k_n,
    bias_b, bias_h, bias_m, bias_n, added_b, added_h, added_m, added_n, valid_b,
    GROUP: tl.constexpr, HEAD: tl.constexpr, WIDTH: tl.constexpr, ROWS: tl.constexpr, COLUMNS: tl.constexpr,
    CAUSAL: tl.constexpr,
):  # fmt: skip
    """The weights that a block of keys receives from the rows that count, summed."""
    block, batch, head = _program(n_blocks, n_heads)
    first = block * COLUMNS
    columns = first + tl.arange(0, COLUMNS)
    k = _rows_of(K + batch * k_b + head // GROUP * k_h, columns, k_n, n_keys, HEAD, WIDTH)
    Q += batch * q_b + head * q_h
    plane = batch * n_heads + head
    mass = tl.zeros([COLUMNS], tl.float32)
    lost = tl.zeros([COLUMNS], tl.float32)  # what rounding has taken (Kahan): a million rows lose no digits
    begin, end = row_from, row_to
    if CAUSAL:
        begin = tl.maximum(begin, first - offset)
    if window is not None:
        begin = tl.maximum(begin, first - offset - window + 1)
        end = tl.minimum(end, first + COLUMNS - offset + window)
    for start in range(begin, end, ROWS):
        rows = start + tl.arange(0, ROWS)
        q = _rows_of(Q, rows, q_n, n_queries, HEAD, WIDTH)
        s, allowed = _scores(
            q, k, rows, columns, batch, head, SCALES, SLOPES, BIAS, ADDED, SLOTS, VALID,
            n_queries, n_keys, offset, window, softcap,
            bias_b, bias_h, bias_m, bias_n, added_b, added_h, added_m, added_n, valid_b, CAUSAL,
        )  # fmt: skip
        place = plane * n_queries + rows
        counts = tl.load(COUNTS + place, mask=rows < row_to, other=0)
        top = tl.load(TOP + place, mask=rows < n_queries, other=0.0)
        log_sum = tl.load(LOG_SUM + place, mask=rows < n_queries, other=0.0)
        p = tl.where(allowed & (counts[:, None] != 0), tl.exp(s - top[:, None] - log_sum[:, None]), 0.0)
        added = tl.sum(p, 0) - lost
        grown = mass + added
        lost = (grown - mass) - added
        mass = grown
    tl.store(RECEIVED + plane * n_keys + columns, mass, mask=columns < n_keys)
