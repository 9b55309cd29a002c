"""How far from a row of attention another can be at all: Jensen–Shannon divergence, and its maximum in closed form.

Everything is in nats, on tensors whose last axis holds the outcomes: the keys, and the sink where a row has one.
"""

import math

import torch
from jaxtyping import Bool, Float
from torch import Tensor

__all__ = ["ceiling", "divergence", "to_vertex"]


def divergence(p: Float[Tensor, "*row key"], q: Float[Tensor, "*#row key"]) -> Float[Tensor, "*row"]:
    """Jensen–Shannon divergence ½ Σ p ln(p/m) + ½ Σ q ln(q/m), m = (p + q)/2, from 0 to ln 2; leading axes broadcast.

    Its gradient is finite everywhere. The true one with respect to q is ½ ln(q/m), which is −∞ where q has no mass and
    p has; here it is ½ ln(tiny/m), with the smallest normal number in the place of zero, and 0 where neither has mass.
    (`torch.xlogy` and `torch.special.entr` give infinities there, which the chain rule turns into NaN.)
    """
    tiny = torch.finfo(torch.promote_types(p.dtype, q.dtype)).tiny
    log_middle = ((p + q) / 2).clamp_min(tiny).log()
    terms = p * (p.clamp_min(tiny).log() - log_middle) + q * (q.clamp_min(tiny).log() - log_middle)
    return terms.sum(-1) / 2


def to_vertex(pattern: Float[Tensor, "*row key"]) -> Float[Tensor, "*row key"]:
    """The divergence of a row α from all weight on one key, for each key j: JSD(α, δ_j), in closed form

        ln 2 + ½ α_j ln α_j − ½ (1 + α_j) ln(1 + α_j),

    which falls in α_j from ln 2 at α_j = 0 to 0 at α_j = 1.
    """
    return (math.log(2) + (torch.xlogy(pattern, pattern) - torch.xlogy(1 + pattern, 1 + pattern)) / 2).clamp_min(0.0)


def ceiling(
    pattern: Float[Tensor, "*row key"], permitted: Bool[Tensor, "*#row key"] | None = None
) -> Float[Tensor, "*row"]:
    """The largest divergence that any distribution on the permitted keys can have from a row: max_j JSD(α, δ_j).

    The divergence is convex in its second argument, so over the simplex it is largest at a vertex, and over the
    vertices it is largest where α_j is smallest. 0.216 for two equal keys, 0 for a single key.

    Args:
        pattern: rows, distributions on the permitted keys.
        permitted: keys that the row may read; None: all.
    """
    divergences = to_vertex(pattern)
    if permitted is not None:
        divergences = divergences.masked_fill(~permitted, 0.0)
    return divergences.amax(-1)
