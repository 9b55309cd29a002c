"""What pruning is compared with: the same model with the same heads gated to zero."""

import random
from typing import Any

import torch
from torch import Tensor

from interp import HookedModel
from interp.attention.edits import GateHeads

Keep = dict[str, tuple[int, ...]]


def kept_at_random(model: HookedModel, share: float = 0.5, seed: int = 0) -> Keep:
    """Every head stays with a probability; groups come out uneven, and layers empty."""
    rng = random.Random(seed)
    keep = {site.name: tuple(h for h in range(site.n_heads) if rng.random() < share) for site in model.sites}
    return keep if any(keep.values()) else {**keep, model.sites[0].name: (0,)}


def gates(model: HookedModel, keep: Keep) -> GateHeads:
    """The gates that close every head that does not stay."""
    return GateHeads({
        (site.name, head): 0.0 for site in model.sites for head in range(site.n_heads)
        if head not in keep.get(site.name, range(site.n_heads))
    })  # fmt: skip


@torch.no_grad()
def gated(model: HookedModel, keep: Keep, **inputs: Any) -> Tensor:
    """Logits, or the last hidden state, of the gated model."""
    edit = gates(model, keep)
    return model.run(**inputs, edits=[edit] if edit.heads else []).output[0]


@torch.no_grad()
def output(model: HookedModel, **inputs: Any) -> Tensor:
    return model.run(**inputs).output[0]


def assert_same(got: Tensor, wanted: Tensor, atol: float = 1e-9) -> None:
    torch.testing.assert_close(got, wanted, rtol=0, atol=atol)
