"""What stands between attention layers: one MLP, or several of which a router picks a few for each token."""

from __future__ import annotations

from collections.abc import Sequence
from typing import cast

import torch
from jaxtyping import Bool, Float
from torch import Tensor, nn
from transformer_lens.hook_points import HookPoint

from interp.models.transformer.config import TransformerConfig

__all__ = ["MLP", "MixtureOfExperts", "balance_loss"]


class MLP(nn.Module):
    """gelu(x W_in + b_in) W_out + b_out."""

    def __init__(self, config: TransformerConfig) -> None:
        super().__init__()
        self.up_proj = nn.Linear(config.d_model, config.mlp_width)
        self.down_proj = nn.Linear(config.mlp_width, config.d_model)
        self.hook_pre, self.hook_post = HookPoint(), HookPoint()

    def forward(self, x: Float[Tensor, "batch position d_model"]) -> Float[Tensor, "batch position d_model"]:
        """What the MLP adds to the stream."""
        return self.down_proj(self.hook_post(nn.functional.gelu(self.hook_pre(self.up_proj(x)))))


class MixtureOfExperts(nn.Module):
    """Σ over the k likeliest experts of p_e · expert_e(x), with p their router's softmax over these k alone.

    Top-k routing as in Shazeer et al. 2017 and Mixtral (Jiang et al. 2024). Every expert is computed for its own tokens
    only, so the cost of a token is that of k experts.
    """

    def __init__(self, config: TransformerConfig) -> None:
        super().__init__()
        self.top_k = config.top_k
        self.router = nn.Linear(config.d_model, config.n_experts, bias=False)
        self.experts = cast(Sequence[MLP], nn.ModuleList(MLP(config) for _ in range(config.n_experts)))
        self.hook_router = HookPoint()

    def forward(
        self, x: Float[Tensor, "batch position d_model"]
    ) -> tuple[Float[Tensor, "batch position d_model"], Float[Tensor, "batch position expert"]]:
        """What the experts add to the stream, and the router's logits."""
        logits = self.hook_router(self.router(x))
        best, chosen = logits.topk(self.top_k, -1)
        shares = best.softmax(-1)
        out = torch.zeros_like(x)
        for number, expert in enumerate(self.experts):
            batch, position, rank = (chosen == number).nonzero(as_tuple=True)
            if len(batch):
                added = expert(x[batch, position][None])[0] * shares[batch, position, rank, None]
                out = out.index_put((batch, position), added, accumulate=True)
        return out, logits


def balance_loss(
    router_logits: Float[Tensor, "batch position expert"],
    top_k: int,
    valid: Bool[Tensor, "batch position"] | None = None,
) -> Float[Tensor, ""]:
    """n · Σ_e f_e P_e, the load-balancing loss of Fedus et al. 2021.

    f_e is the share of routed tokens that expert e receives, P_e its mean probability. 1 when both are even over the n
    experts; n when all tokens go to one with certainty (top_k = 1).

    Args:
        router_logits: of one layer. top_k: experts per token. valid: False marks padding, which does not count.
    """
    logits = router_logits.flatten(0, 1) if valid is None else router_logits[valid]
    n_experts = logits.shape[-1]
    routed = nn.functional.one_hot(logits.topk(top_k, -1).indices, n_experts).to(logits.dtype).sum(1) / top_k
    return n_experts * (routed.mean(0) * logits.softmax(-1).mean(0)).sum()
