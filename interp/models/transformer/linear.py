"""Linear attention: φ(q)·φ(k) in place of exp(q·k), summed once over the keys instead of once for each query.

z_i = Σ_j φ(q_i)·φ(k_j) v_j / Σ_j φ(q_i)·φ(k_j). By associativity the sums Σ_j φ(k_j) v_jᵀ and Σ_j φ(k_j) serve all
queries, in O(T) time and memory (Katharopoulos et al. 2020). The pattern is never computed; where it is asked for, its
rows are those of a softmax over log(φ(q)·φ(k)), which the attention core computes block by block.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from jaxtyping import Bool, Float
from torch import Tensor, nn

from interp.attention.edits import Edit
from interp.attention.rows import Block

__all__ = [
    "LogKernel",
    "State",
    "elu_features",
    "linear_attention",
    "performer_features",
    "random_directions",
]

_CHUNK = 64


def elu_features(x: Float[Tensor, "... d"]) -> Float[Tensor, "... d"]:
    """elu(x) + 1: positive features, one for each of x (Katharopoulos et al. 2020)."""
    return nn.functional.elu(x) + 1


def performer_features(
    x: Float[Tensor, "... d"], directions: Float[Tensor, "feature d"], below: bool = False
) -> Float[Tensor, "... feature"]:
    """exp(w·x − ‖x‖²/2) / √m for each of m directions w (Choromanski et al. 2021).

    The products of two such vectors of features have the mean exp(x·y).

    Args:
        x: queries or keys. directions: from :func:`random_directions`.
        below: divide by the largest feature of each x. It cancels in a query's weights, and keeps it from overflowing.
    """
    exponents = x @ directions.to(x).T - x.square().sum(-1, keepdim=True) / 2
    if below:
        exponents = exponents - exponents.amax(-1, keepdim=True).detach()
    return exponents.exp() * len(directions) ** -0.5


def random_directions(
    n_features: int, d: int, *, orthogonal: bool = True, generator: torch.Generator | None = None
) -> Float[Tensor, "feature d"]:
    """Directions w ~ N(0, 1) in d dimensions; orthogonal ones are so within each d of them, with the same lengths.

    Orthogonal directions give a kernel estimate of smaller variance (Choromanski et al. 2021, theorem 2).
    """
    free = torch.randn(n_features, d, generator=generator)
    if not orthogonal:
        return free
    blocks = [_rotation(d, generator)[: n_features - start] for start in range(0, n_features, d)]
    return torch.cat(blocks) * free.norm(dim=-1, keepdim=True)


def _rotation(d: int, generator: torch.Generator | None) -> Float[Tensor, "d d"]:
    """An orthogonal matrix, uniform (Haar).

    Without the signs of R, the first entry of the first direction would always be negative, and estimates biased.
    """
    q, r = torch.linalg.qr(torch.randn(d, d, generator=generator))
    return q * r.diagonal().sign()


@dataclass
class State:
    """What linear attention keeps of the keys so far: all that later queries need.

    Attributes:
        values: Σ φ(k) vᵀ. ``total``: Σ φ(k).
    """

    values: Float[Tensor, "batch head feature d_value"]
    total: Float[Tensor, "batch head feature"]

    @classmethod
    def of(cls, key: Float[Tensor, "batch head key feature"], value: Float[Tensor, "batch head key d_value"]) -> State:
        """The sums over some keys."""
        return cls(key.transpose(-1, -2) @ value, key.sum(-2))

    def plus(self, other: State) -> State:
        """The sums over the keys of both."""
        return State(self.values + other.values, self.total + other.total)


def linear_attention(
    query: Float[Tensor, "batch head query feature"],
    key: Float[Tensor, "batch kv_head key feature"],
    value: Float[Tensor, "batch kv_head key d_value"],
    *,
    causal: bool,
    key_valid: Bool[Tensor, "batch key"] | None = None,
    state: State | None = None,
    chunk: int = _CHUNK,
) -> tuple[Float[Tensor, "batch head query d_value"], State]:
    """z in O(T), and the sums over all keys. Computed in float32, or float64 for float64 input.

    Causal attention carries the sums over from chunk to chunk, and within a chunk weighs its own keys one by one: time
    and memory grow with T · chunk, never with T².

    Args:
        query, key: features φ(q), φ(k), not negative. value: value vectors.
        causal: queries stand at the keys' positions and see none after them.
        key_valid: False marks padding.
        state: sums over earlier keys, from the last call.
        chunk: positions weighed together.

    Returns:
        The output in the value's dtype (0 where a query sees no key), and the state for the next call.
    """
    dtype, group = value.dtype, query.shape[1] // key.shape[1]
    wide = torch.float64 if dtype is torch.float64 else torch.float32
    query, key, value = query.to(wide), key.to(wide), value.to(wide)
    if key_valid is not None:
        key = key * key_valid[:, None, :, None]
    key, value = key.repeat_interleave(group, 1), value.repeat_interleave(group, 1)
    if not causal:
        whole = State.of(key, value) if state is None else state.plus(State.of(key, value))
        return _read(query, whole).to(dtype), whole
    parts = []
    for start in range(0, query.shape[2], chunk):
        q, k, v = (x[:, :, start : start + chunk] for x in (query, key, value))
        near = (q @ k.transpose(-1, -2)).tril()
        weighted, total = near @ v, near.sum(-1)
        if state is not None:
            weighted, total = weighted + q @ state.values, total + (q @ state.total[..., None]).squeeze(-1)
        parts.append(_divide(weighted, total))
        state = State.of(k, v) if state is None else state.plus(State.of(k, v))
    assert state is not None
    return torch.cat(parts, 2).to(dtype), state


def _read(query: Tensor, state: State) -> Tensor:
    return _divide(query @ state.values, (query @ state.total[..., None]).squeeze(-1))


def _divide(weighted: Tensor, total: Tensor) -> Tensor:
    return weighted / total.clamp_min(torch.finfo(total.dtype).tiny)[..., None]


@dataclass(frozen=True, eq=False)
class LogKernel(Edit):
    """Makes the core's scores φ(q)·φ(k) their logarithm, whose softmax is linear attention's pattern."""

    heads: Any = None
    stage: ClassVar[Any] = "scores"

    def apply(self, x: Tensor, block: Block) -> Tensor:
        """log of the products."""
        return x.clamp_min(torch.finfo(x.dtype).tiny).log()
