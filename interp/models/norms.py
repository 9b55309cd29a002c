"""Layer norm or RMS norm, told by what a module computes rather than by its name."""

from dataclasses import dataclass
from typing import Literal

import torch
from jaxtyping import Float
from torch import Tensor, nn

from interp.errors import UserError

_EPS = ("eps", "variance_epsilon", "epsilon", "norm_eps")


@dataclass(frozen=True, eq=False)
class Norm:
    """A norm over d_model: ``gain · standardised(x) + bias``.

    Attributes:
        path: its name within the model.
        kind: "layernorm" subtracts the mean and divides by the standard deviation, "rmsnorm" divides by the root mean
            square alone.
        gain: what the standardised values are multiplied by (Gemma's 1 + weight; ones where there is no weight).
        bias: what is added then.
        eps: added to the mean square.
    """

    path: str
    kind: Literal["layernorm", "rmsnorm"]
    gain: Float[Tensor, " d_model"]
    bias: Float[Tensor, " d_model"] | None
    eps: float

    def centered(self, x: Float[Tensor, "... d_model"]) -> Float[Tensor, "... d_model"]:
        """x without its mean over d_model where the norm subtracts it, else x: the linear part of the norm."""
        return x - x.mean(-1, keepdim=True) if self.kind == "layernorm" else x

    def __call__(self, x: Float[Tensor, "... d_model"]) -> Float[Tensor, "... d_model"]:
        """The norm of x, in x's dtype."""
        x = self.centered(x)
        standardised = x * (x.square().mean(-1, keepdim=True) + self.eps).rsqrt() * self.gain.to(x)
        return standardised if self.bias is None else standardised + self.bias.to(x)


def read_norm(module: nn.Module, path: str, d_model: int) -> Norm:
    """What norm a module computes, found by trying it on random input.

    Raises:
        UserError: it is neither of the two kinds.
    """
    weight, bias = getattr(module, "weight", None), getattr(module, "bias", None)
    eps = next((float(value) for name in _EPS if (value := getattr(module, name, None)) is not None), 0.0)
    like = weight if isinstance(weight, Tensor) else torch.empty(0)
    x = 0.7 + 2 * torch.randn(8, d_model, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    x = x.to(like)
    with torch.no_grad():
        y = module(x).double()
    gains = [like, like + 1] if isinstance(weight, Tensor) else [torch.ones(d_model, device=x.device, dtype=x.dtype)]
    # many norms compute in float32 in a float64 model too
    rounding = max(torch.finfo(x.dtype).eps, torch.finfo(torch.float32).eps)
    kinds: tuple[Literal["layernorm", "rmsnorm"], ...] = ("layernorm", "rmsnorm")
    for kind in kinds:
        for gain in gains:
            norm = Norm(path, kind, gain.detach(), bias.detach() if isinstance(bias, Tensor) else None, eps)
            if (norm(x.double()) - y).norm() <= 4 * rounding**0.8 * y.norm():
                return norm
    raise UserError(f"{path} ({type(module).__name__}) computes neither a layer norm nor an RMS norm")
