"""Random attention calls that say everything the mask language can, and the same attention with edits made densely."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from hypothesis import strategies as st
from torch import Tensor

from interp.attention import AlibiSlopes, Mask, RelativeBuckets, edits, probes, reference
from interp.attention.edits import Edit
from interp.attention.reference import Reference

N_BUCKETS = 8


@dataclass(frozen=True, eq=False)
class Case:
    """The arguments of one attention call."""

    query: Tensor
    key: Tensor
    value: Tensor
    mask: Mask = field(default_factory=Mask)
    scale: float | None = None
    softcap: float | None = None

    @property
    def arguments(self) -> tuple[Any, ...]:
        return self.query, self.key, self.value, self.mask, self.scale, self.softcap

    @property
    def sizes(self) -> tuple[int, int, int, int]:
        """batch, heads, queries, keys."""
        return self.query.shape[0], self.query.shape[1], self.query.shape[2], self.key.shape[2]

    @property
    def reference(self) -> Reference:
        return reference(*self.arguments)

    def tolerance(self, scores: Tensor) -> float:
        """The contract: 1e-5 · max(1, max|score|) in float32; float64 is as much better as it has more digits."""
        unit = 1e-13 if self.query.dtype is torch.float64 else 1e-5
        return unit * max(1.0, float(scores.detach().abs().max()) if scores.numel() else 1.0)


def tensors(
    batch: int = 2, n_heads: int = 6, n_kv_heads: int = 3, n_queries: int = 7, n_keys: int = 7, d_head: int = 5,
    d_value: int = 3, dtype: torch.dtype = torch.float32, seed: int = 0,
) -> tuple[Tensor, Tensor, Tensor]:  # fmt: skip
    """Random query, key and value. Scores have a standard deviation of about 2, so that patterns are not flat."""
    g = torch.Generator().manual_seed(seed)
    query = 2 * torch.randn(batch, n_heads, n_queries, d_head, generator=g, dtype=torch.float64)
    key = torch.randn(batch, n_kv_heads, n_keys, d_head, generator=g, dtype=torch.float64)
    value = torch.randn(batch, n_kv_heads, n_keys, d_value, generator=g, dtype=torch.float64)
    return query.to(dtype), key.to(dtype), value.to(dtype)


ORDERS = ("free", "causal", "window", "causal window", "causal offset", "causal window offset", "cross")


@st.composite
def cases(draw: st.DrawFn, dtypes: Sequence[torch.dtype] = (torch.float32,), orders: Sequence[str] = ORDERS) -> Case:
    """Any attention call: grouped heads, prime sizes, every kind of mask, bias, softcap and sinks."""
    order = draw(st.sampled_from(orders))
    batch, n_kv_heads, group = draw(st.sampled_from((1, 2, 3))), draw(st.sampled_from((1, 2))), draw(st.integers(1, 3))
    n_keys = draw(st.sampled_from((1, 2, 5, 11, 17)))
    n_queries = draw(st.integers(1, n_keys if "causal" in order else 19))
    dtype, seed = draw(st.sampled_from(dtypes)), draw(st.integers(0, 9999))
    n_heads = n_kv_heads * group
    query, key, value = tensors(batch, n_heads, n_kv_heads, n_queries, n_keys, 5, 3, dtype, seed)
    sizes, g = (batch, n_heads, n_queries, n_keys), torch.Generator().manual_seed(seed)
    mask = Mask(
        causal="causal" in order,
        window=draw(st.integers(1, 2 * n_keys)) if "window" in order else None,
        key_valid=draw(st.sampled_from((None, padding(batch, n_keys, "left", g), padding(batch, n_keys, "right", g)))),
        allowed=draw(st.sampled_from((None, None, *_allowed(sizes, g)))),
        bias=draw(st.sampled_from((None, None, *_biases(sizes, dtype, g)))),
        sinks=draw(st.sampled_from((None, torch.randn(n_heads, generator=g).to(dtype)))),
        query_offset=draw(st.integers(0, n_keys)) if "offset" in order else None,
        cross=order == "cross",
    )
    return Case(query, key, value, mask, draw(st.sampled_from((None, 0.7))), draw(st.sampled_from((None, None, 3.0))))


def padding(batch: int, n_keys: int, side: str, g: torch.Generator) -> Tensor:
    """key_valid with a random number of padding keys on one side of each sequence; possibly all of them."""
    n_padding = torch.randint(0, n_keys + 1, (batch, 1), generator=g)
    index = torch.arange(n_keys)[None]
    return index >= n_padding if side == "left" else index < n_keys - n_padding


def _allowed(sizes: tuple[int, ...], g: torch.Generator) -> list[Any]:
    batch, n_heads, n_queries, n_keys = sizes
    return [
        torch.rand(n_queries, n_keys, generator=g) < 0.6,
        torch.rand(batch, 1, n_queries, n_keys, generator=g) < 0.6,
        torch.rand(1, n_heads, 1, n_keys, generator=g) < 0.6,
        lambda batch, head, query, key: (batch + 2 * head + 3 * query + 5 * key) % 4 != 0,
    ]


def _biases(sizes: tuple[int, ...], dtype: torch.dtype, g: torch.Generator) -> list[Any]:
    batch, n_heads, n_queries, n_keys = sizes
    full = torch.randn(batch, n_heads, n_queries, n_keys, generator=g).to(dtype)
    holes = torch.rand(full.shape, generator=g) < 0.3
    return [
        full,
        full.masked_fill(holes, float("-inf")),
        full.masked_fill(holes, torch.finfo(dtype).min)[:, :1],
        full[0, 0],
        full[:1, :, :, :1],
        AlibiSlopes(torch.rand(n_heads, generator=g).to(dtype)),
        RelativeBuckets(torch.randn(N_BUCKETS, n_heads, generator=g).to(dtype), max_distance=13),
        RelativeBuckets(torch.randn(N_BUCKETS, n_heads, generator=g).to(dtype), bidirectional=False, max_distance=13),
        lambda query, key: torch.sin(query.double() - 2 * key.double()),
    ]


@dataclass(frozen=True, eq=False)
class Dense:
    """Attention under edits with everything held, in float64."""

    output: Tensor
    pattern: Tensor
    permitted: Tensor


def with_edits(case: Case, made: Sequence[Edit] = ()) -> Dense:
    """Attention under edits of heads 0, 1, …, written from what each edit says; differentiable in everything."""
    n_heads, d_head = case.query.shape[1], case.query.shape[3]
    usual = d_head**-0.5 if case.scale is None else case.scale
    factor = [torch.ones((), dtype=torch.float64)] * n_heads
    for edit in made:
        if isinstance(edit, edits.ScaleExponent):
            for head, alpha in edit.heads.items():
                factor[head] = d_head ** -torch.as_tensor(alpha, dtype=torch.float64) / usual  # type: ignore[call-overload]
    query = case.query.double() * torch.stack(factor)[:, None, None]
    plain = reference(query, case.key, case.value, case.mask, case.scale, case.softcap)
    scores, permitted = list(plain.scores.unbind(1)), plain.permitted.clone()
    for edit in made:
        if isinstance(edit, edits.Temperature):
            for head, temperature in edit.heads.items():
                scores[head] = scores[head] / temperature
        elif isinstance(edit, edits.AddLogits):
            for head, logits in edit.heads.items():
                scores[head] = scores[head] + logits
        elif isinstance(edit, edits.KnockOut):
            permitted[:, edit.selected(n_heads)] &= ~_edges(edit, permitted[:, :1])
    pattern = list(_softmax(torch.stack(scores, 1), permitted, case.mask.sinks).unbind(1))
    for edit in made:
        if isinstance(edit, edits.Uniform):
            for head in edit.selected(n_heads):
                n_permitted = permitted[:, head].sum(-1, keepdim=True).clamp_min(1)
                pattern[head] = permitted[:, head].double() / n_permitted * pattern[head].sum(-1, keepdim=True)
        elif isinstance(edit, edits.ReplaceRows):
            for head, (rows, weights) in edit.heads.items():
                changed = pattern[head].clone()
                changed[:, rows] = weights.double() * plain.permitted[:, head][:, rows]
                pattern[head] = changed
    value = case.value.double().repeat_interleave(n_heads // case.value.shape[1], 1)
    z = list((torch.stack(pattern, 1) @ value).unbind(1))
    for edit in made:
        if isinstance(edit, edits.GateHeads):
            for head, gate in edit.heads.items():
                z[head] = z[head] * torch.as_tensor(gate)[..., None]
        elif isinstance(edit, edits.ReplaceZ):
            for head, new in edit.heads.items():
                z[head] = torch.as_tensor(new).double().expand_as(z[head])
    return Dense(torch.stack(z, 1), torch.stack(pattern, 1), permitted)


def _edges(edit: edits.KnockOut, like: Tensor) -> Tensor:
    if isinstance(edit.edges, Tensor):
        return edit.edges.expand(like[:, 0].shape)[:, None]
    cut = torch.zeros_like(like)
    for query, key in edit.edges:
        cut[..., slice(None) if query is None else query, slice(None) if key is None else key] = True
    return cut


def _softmax(scores: Tensor, permitted: Tensor, sinks: Tensor | None) -> Tensor:
    """exp(score) / Σ exp(score) over the permitted keys; a sink is one more term below the line."""
    with torch.no_grad():
        largest = scores.masked_fill(~permitted, -1e3).amax(-1, keepdim=True)
        if sinks is not None:
            largest = largest.maximum(sinks.double()[None, :, None, None])
    weights = (scores - largest).masked_fill(~permitted, float("-inf")).exp()
    total = weights.sum(-1, keepdim=True)
    if sinks is not None:
        total = total + (sinks.double()[None, :, None, None] - largest).exp()
    return weights / total.masked_fill(total == 0, 1.0)


def all_rows(case: Case) -> probes.SelectedRows:
    """Reads the whole pattern of a small case."""
    return probes.SelectedRows(range(case.query.shape[2]))


def valid_rows(case: Case, permitted: Tensor) -> Tensor:
    """Rows that enter statistics, [batch, head, query]: no padding, and with something to read."""
    batch, _, n_queries, n_keys = case.sizes
    mask = case.mask
    own = torch.ones(batch, n_queries, dtype=torch.bool)
    if mask.query_valid is not None:
        own = mask.query_valid
    elif mask.key_valid is not None and not mask.cross:
        for row in range(n_queries):
            at = row + (n_keys - n_queries if mask.query_offset is None else mask.query_offset)
            own[:, row] = mask.key_valid[:, at] if 0 <= at < n_keys else False
    return permitted.any(-1) & own[:, None]


def as_float64(case: Case) -> Case:
    """The case with its tensors as float64 leaves, for derivatives."""
    query, key, value = (t.detach().double().requires_grad_() for t in (case.query, case.key, case.value))
    leaves = {name: t.detach().double().requires_grad_() for name, t in case.mask.parameters().items()}
    return replace(case, query=query, key=key, value=value, mask=case.mask.with_parameters(leaves))
