"""How far a row can go while the head's own output stays exactly what it is, and what chance has to do with it.

A row over n keys obeys d_head equations and one for its sum (d_head: the rank of the values about their mean). With
more keys than that, other rows give the same output (Brunner et al. 2020), as far as weights may not be negative.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from analyses.adversarial_attention.heads.polytope import Polytope, beginnings, effects_of
from analyses.adversarial_attention.heads.rows import Row

__all__ = ["farthest_null", "farthest_random"]


def farthest_null(row: Row, starts: int, rng: np.random.Generator) -> tuple[NDArray[np.float64], float] | None:
    """The farthest row found with the same head output, and its divergence; None where values are not known.

    Exactly 0 where the equations leave nothing but the row itself; else a lower bound.
    """
    if row.values is None:
        return None
    return Polytope(row.pattern, effects_of(row.values)).farthest(beginnings(row.pattern, starts, rng))


def farthest_random(row: Row, starts: int, rng: np.random.Generator) -> float:
    """The same for values drawn at random with the spectrum of the row's own; NaN where they are not known.

    The directions over keys in which centred values spread are drawn anew, evenly among those that leave the mean where
    it is, and their singular values are kept: U S Wᵀ with another U. Which rows give the same output depends on U
    alone.
    """
    if row.values is None:
        return float("nan")
    effects = effects_of(row.values)
    drawn = rng.standard_normal((len(row.pattern), len(effects)))
    basis, _ = np.linalg.qr(drawn - drawn.mean(0))
    return Polytope(row.pattern, basis.T).farthest(beginnings(row.pattern, starts, rng))[1]
