"""Small transformers for the tests, one of every kind."""

from typing import Any

import torch
from torch import Tensor

from interp.models.transformer import Transformer, TransformerConfig

D_VOCAB = 23
SIZES: dict[str, Any] = {"d_vocab": D_VOCAB, "d_model": 24, "n_layers": 2, "n_heads": 6}

KINDS: dict[str, dict[str, Any]] = {
    "plain": {"positions": "none", "norm_position": "none"},
    "learned": {"positions": "learned", "n_ctx": 40},
    "sinusoidal": {"positions": "sinusoidal", "mlp": "dense"},
    "rotary": {"positions": "rotary", "rotary_base": 100.0, "rotary_scale": 2.0, "norm": "rmsnorm"},
    "alibi": {"positions": "alibi", "n_kv_heads": 2},
    "grouped": {"n_kv_heads": 2, "d_head": 6},
    "multi_query": {"n_kv_heads": 1, "scale_exponent": 0.0},
    "window": {"window": 4, "tied_embeddings": True},
    "post_norm": {"norm_position": "post", "mlp": "dense", "d_mlp": 20},
    "no_residual": {"residual": False, "scale_exponent": 1.0},
    "experts": {"mlp": "moe", "n_experts": 3, "top_k": 2, "d_mlp": 10},
    "elu": {"attention": "elu", "n_kv_heads": 3},
    "performer": {"attention": "performer", "n_features": 20, "positions": "learned", "n_ctx": 40},
    "performer_iid": {"attention": "performer", "orthogonal": False, "positions": "sinusoidal"},
}
"""Every value of every option is in one of these."""

CAUSAL = tuple(KINDS)
BIDIRECTIONAL = tuple(f"{name}_bidirectional" for name in KINDS)
LINEAR = tuple(name for name, fields in KINDS.items() if "attention" in fields)


def config(kind: str, **changed: Any) -> TransformerConfig:
    """The settings of a kind; of a bidirectional one where its name ends so."""
    fields = {**SIZES, **KINDS[kind.removesuffix("_bidirectional")], "causal": not kind.endswith("_bidirectional")}
    return TransformerConfig(**fields | changed)


def small(kind: str, seed: int = 0, dtype: torch.dtype = torch.float64, **changed: Any) -> Any:
    """A small `Transformer` in which no gain is 1, no bias 0, and attention is far from uniform."""
    model = Transformer(config(kind, **changed), seed).to(dtype)
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if parameter.ndim < 2:
                parameter.add_(0.3 * torch.randn(parameter.shape, generator=generator))
            elif name.endswith(("q_proj.weight", "k_proj.weight")):
                parameter.mul_(2.0)
    return model.eval()


def tokens(batch: int = 3, length: int = 13, seed: int = 1) -> Tensor:
    """Random token ids."""
    return torch.randint(D_VOCAB, (batch, length), generator=torch.Generator().manual_seed(seed))
