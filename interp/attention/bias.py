"""What can be added to the scores besides a tensor: ALiBi's slopes, T5's buckets, a function of the indices."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

__all__ = ["FORBIDDEN", "AlibiSlopes", "IndexBias", "RelativeBuckets", "forbids"]

FORBIDDEN = -1e38
"""Score of a key that may not be read. Finite, so that its product with a zero weight is zero and not NaN; after
subtracting any real score, exp of it is exactly zero."""

IndexBias = Callable[[Tensor, Tensor], Tensor]
"""``(query, key) -> bias``: index tensors of shapes [row, 1] and [1, key], counted along the keys; returns a tensor
broadcastable to [batch, head, row, key]. Treated as a constant: it has no gradient."""


@dataclass(frozen=True, eq=False)
class AlibiSlopes:
    """ALiBi (Press et al. 2022): adds ``-slope · |query − key|`` to the scores of each head.

    Bloom's form ``slope · key`` differs by a constant per row, which the softmax removes.
    """

    slopes: Float[Tensor, " head"]

    def __post_init__(self) -> None:
        if self.slopes.ndim != 1:
            raise ValueError(f"AlibiSlopes.slopes must be [head]; got {list(self.slopes.shape)}")

    def rows(
        self, query: Int[Tensor, "row 1"], key: Int[Tensor, "1 key"], dtype: torch.dtype
    ) -> Float[Tensor, "1 head row key"]:
        """The bias of some queries and keys. In ``dtype``, since bfloat16 slopes would round the distances too."""
        return -self.slopes.to(dtype)[None, :, None, None] * (query - key).abs()


@dataclass(frozen=True, eq=False)
class RelativeBuckets:
    """T5's relative position bias: a learned value per head and bucket of distance (Raffel et al. 2020).

    Half of the buckets (of each direction, when ``bidirectional``) hold one distance each; the others grow
    logarithmically up to ``max_distance``, and the last holds everything beyond.
    """

    table: Float[Tensor, "bucket head"]
    bidirectional: bool = True
    max_distance: int = 128

    def __post_init__(self) -> None:
        if self.table.ndim != 2:
            raise ValueError(f"RelativeBuckets.table must be [bucket, head]; got {list(self.table.shape)}")
        exact = self._n_exact
        if exact < 1 or self.max_distance <= exact:
            raise ValueError(
                f"RelativeBuckets needs at least {4 if self.bidirectional else 2} buckets and max_distance above "
                f"{exact}, the distances with a bucket of their own; got {self.table.shape[0]} buckets and "
                f"max_distance {self.max_distance}"
            )

    @property
    def _n_exact(self) -> int:
        return self.table.shape[0] // (4 if self.bidirectional else 2)

    def buckets(self, query: Int[Tensor, "row 1"], key: Int[Tensor, "1 key"]) -> Int[Tensor, "row key"]:
        """The bucket of each pair."""
        ahead = key - query
        n_buckets = self.table.shape[0]
        first = torch.zeros_like(ahead)
        if self.bidirectional:
            n_buckets //= 2
            first = (ahead > 0) * n_buckets
            distance = ahead.abs()
        else:
            distance = (-ahead).clamp_min(0)
        exact = self._n_exact
        growth = torch.log(distance.clamp_min(1).float() / exact) / math.log(self.max_distance / exact)
        logarithmic = exact + (growth * (n_buckets - exact)).long()
        return first + torch.where(distance < exact, distance, logarithmic.clamp_max(n_buckets - 1))

    def rows(
        self, query: Int[Tensor, "row 1"], key: Int[Tensor, "1 key"], dtype: torch.dtype
    ) -> Float[Tensor, "1 head row key"]:
        """The bias of some queries and keys."""
        return self.table[self.buckets(query, key)].permute(2, 0, 1)[None].to(dtype)


def forbids(bias: Float[Tensor, ...]) -> Bool[Tensor, ...]:
    """Where a bias forbids a key: −inf, or what stands for it in many models' masks, the lowest number of a dtype."""
    return bias <= max(torch.finfo(bias.dtype).min / 2, FORBIDDEN / 2)
