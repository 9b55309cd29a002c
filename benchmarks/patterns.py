"""The basic statistics from a whole pattern, as one would write them: one pass each, no second pattern kept."""

from __future__ import annotations

from collections.abc import Iterable

import torch
from jaxtyping import Float
from torch import Tensor

__all__ = ["NAMES", "of_pattern", "stacked"]

NAMES = ("entropy", "max_weight", "current_token", "previous_token", "first_position", "expected_distance")
"""Of each head, averaged over the rows of a sequence: entropy (nats) and largest weight of a row, weight on the query's
own token, on the one before it (from row 1 on) and on the first one, and Σ weight · (query − key) in tokens."""


def of_pattern(pattern: Float[Tensor, "1 head query key"]) -> Float[Tensor, "statistic head"]:
    """The statistics in the order of :data:`NAMES`, of the causal pattern of one sequence."""
    position = torch.arange(pattern.shape[-1], dtype=pattern.dtype, device=pattern.device)
    return torch.cat(
        [
            torch.special.entr(pattern).sum(-1).mean(-1),
            pattern.amax(-1).mean(-1),
            pattern.diagonal(0, -2, -1).mean(-1),
            pattern.diagonal(-1, -2, -1).mean(-1),
            pattern[..., 0].mean(-1),
            (position - pattern @ position).mean(-1),
        ]
    )


def stacked(layers: Iterable[Float[Tensor, "statistic head"]]) -> dict[str, Float[Tensor, "layer head"]]:
    """By name, over the layers."""
    found = torch.stack(list(layers), dim=1)
    return dict(zip(NAMES, found, strict=True))
