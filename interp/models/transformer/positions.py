"""How tokens are told where they stand: added to embeddings, turned into queries and keys, or taken off scores."""

from __future__ import annotations

import math

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

__all__ = ["Rotary", "alibi_slopes", "sinusoidal"]


def sinusoidal(
    positions: Int[Tensor, "batch position"], d_model: int, dtype: torch.dtype = torch.float32
) -> Float[Tensor, "batch position d_model"]:
    """sin and cos of position / 10000^(2i/d_model), in features 2i and 2i + 1 (Vaswani et al. 2017, section 3.5)."""
    angles = _angles(positions, d_model, 10_000.0)
    return torch.stack([angles.sin(), angles.cos()], -1).flatten(-2).to(positions.device, dtype)


class Rotary(nn.Module):
    """Turns features i and i + d/2 of queries and keys by position / scale · base^(−2i/d) (Su et al. 2021).

    The product of a query and a key then depends on their distance alone. Features are paired as in Llama.
    """

    def __init__(self, d_head: int, base: float, scale: float = 1.0) -> None:
        super().__init__()
        self.d_head, self.base, self.scale = d_head, base, scale

    def forward(
        self, x: Float[Tensor, "batch position head d_head"], positions: Int[Tensor, "#batch position"]
    ) -> Float[Tensor, "batch position head d_head"]:
        """The features, turned."""
        angles = _angles(positions, self.d_head, self.base)[:, :, None] / self.scale
        cos, sin = angles.cos().to(x), angles.sin().to(x)
        first, second = x.chunk(2, -1)
        return torch.cat([first * cos - second * sin, second * cos + first * sin], -1)


def alibi_slopes(n_heads: int) -> Float[Tensor, " head"]:
    """2^(−8/n), 2^(−16/n), …, 2^(−8) for n heads, a power of two (Press et al. 2022, section 3).

    For another number of heads, those of the next lower power of two, and then every other one of twice as many, as in
    the authors' code.
    """
    lower = 2 ** math.floor(math.log2(n_heads))
    slopes = [2 ** (-8 * (h + 1) / lower) for h in range(lower)]
    between = [2 ** (-8 * (h + 1) / (2 * lower)) for h in range(0, 2 * lower, 2)]
    return torch.tensor([*slopes, *between[: n_heads - lower]])


def _angles(positions: Int[Tensor, "batch position"], width: int, base: float) -> Float[Tensor, "batch position pair"]:
    """position · base^(−2i/width) in float64: at position 10⁵, float32 has only two digits left behind the point."""
    device = "cpu" if positions.device.type == "mps" else positions.device  # Apple's has no float64
    exponents = torch.arange(0, width, 2, dtype=torch.float64, device=device) / width
    return positions.to(device, torch.float64)[..., None] * base**-exponents
