"""What is put in a row's place without any search, and which keys the output says matter.

Hassid et al. 2022 replace attention by its mean over a corpus; beside it stand the row's weights in another order, the
same weight on every key, and all weight on the first. A sink keeps what it took.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from jaxtyping import Float
from numpy.typing import NDArray
from scipy.stats import kendalltau
from torch import Tensor

from analyses.adversarial_attention.heads.continuations import Continuation
from analyses.adversarial_attention.heads.rows import Row

__all__ = ["SUBSTITUTES", "agreement", "substitutes"]

Point = NDArray[np.float64]

SUBSTITUTES = ("permuted", "uniform", "first_position", "mean_pattern")
_DIGITS = 6  # to which changes of the output are ranked: what float32 cannot tell apart is a tie
_LEAST = 3  # keys without which a rank correlation says nothing


def substitutes(row: Row, mean: Point | None, rng: np.random.Generator) -> dict[str, Point]:
    """A row's substitutes by name.

    Args:
        mean: the head's mean weights on all keys at this query, over other sequences; None: not known.
    """
    n = len(row.keys)
    weights = row.pattern[:n]
    found = {
        "permuted": weights[rng.permutation(n)],
        "uniform": np.full(n, weights.sum() / n),
        "first_position": np.eye(n)[0] * weights.sum(),
    }
    if mean is not None and (total := mean[row.keys].sum()) > 0:
        found["mean_pattern"] = mean[row.keys] * (weights.sum() / total)
    return {name: np.concatenate([point, row.pattern[n:]]) for name, point in found.items()}


def agreement(
    continuation: Continuation, rows: list[Row], knocked: int, rngs: Sequence[np.random.Generator]
) -> list[tuple[float, float]]:
    """Kendall's τ of each row's weights with the output's gradient, and with what the loss of single keys does.

    The gradient is that of the summed log probabilities of the likeliest outcomes, by the weight of each key against
    that of all others, |g_j − Σ α_k g_k|. A key is lost as a knocked-out edge is: its weight is shared out among the
    others in proportion. τ over some keys, drawn at random, estimates τ over all of them without bias.
    """
    slopes = continuation.slopes(rows, _confidence)
    asked: list[tuple[Row, Point]] = []
    drawn = []
    for row, rng in zip(rows, rngs, strict=True):
        keys = np.flatnonzero(row.pattern[: len(row.keys)] < 1 - 1e-6)
        drawn.append(rng.permutation(keys)[:knocked])
        asked += [(row, _without(row.pattern, key)) for key in drawn[-1]]
    changes = continuation.changes([row for row, _ in asked], [point for _, point in asked])
    found, at = [], 0
    for row, slope, keys in zip(rows, slopes, drawn, strict=True):
        n = len(row.keys)
        steepness = np.abs(slope - row.pattern @ slope)[:n]
        lost = changes[at : at + len(keys)]
        at += len(keys)
        found.append((_tau(row.pattern[:n], steepness), _tau(row.pattern[keys], lost.round(_DIGITS))))
    return found


def _confidence(output: Float[Tensor, "copy position outcome"]) -> Float[Tensor, " copy"]:
    return output.amax(-1).clamp_min(1e-30).log().sum(-1)


def _without(pattern: Point, outcome: int) -> Point:
    rest = pattern.copy()
    rest[outcome] = 0.0
    return rest / rest.sum()


def _tau(x: Point, y: Point) -> float:
    """Kendall's τ; NaN where there are too few keys or one of the two does not vary."""
    if len(x) < _LEAST or np.ptp(x) == 0 or np.ptp(y) == 0 or not np.isfinite(y).all():
        return float("nan")
    found: Any = kendalltau(x, y)
    return float(found.statistic)
