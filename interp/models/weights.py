"""A model's weights as circuits are made of them: embedding, heads with their norms, unembedding."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from interp.models.norms import Norm
from interp.models.projections import AttentionModule, Declaration, HeadWeights, attention_modules, head_weights
from interp.models.residual import AttentionNorms, ResidualStream, residual_stream

#: Parameters of an attention module that act on queries, keys or scores, and leave values alone, by how they start.
_NOT_ON_VALUES = ("q_", "k_", "query_", "key_", "rel", "sink", "pos")
_CHUNK = 8192


@dataclass(frozen=True, eq=False)
class Site:
    """One attention module: where it is, its weights and its norms.

    Attributes:
        path: of the module within the model.
        layer: its number within its stack.
        stack: "encoder", "decoder", …; "" where there is one.
        kind: "self" or "cross".
        heads: its weights by head.
        norms: around it.
        no_direct_path: why a head has no direct path from an embedding to the logits; "" where it has one.
        values_caveat: what W_OV does not tell of what heads write; "" where a head writes pattern · x W_V W_O.
        scores_caveat: what W_QK does not tell of the scores; "" where they are x W_Q W_Kᵀ xᵀ up to scale and biases.
    """

    path: str
    layer: int
    stack: str
    kind: Literal["self", "cross"]
    heads: HeadWeights
    norms: AttentionNorms
    no_direct_path: str = ""
    values_caveat: str = ""
    scores_caveat: str = ""


@dataclass(frozen=True, eq=False)
class Weights:
    """Embedding, heads and unembedding.

    A token's embedding is ``embedding_norm(embedding_scale · W_E[token])``; positions are no part of it.

    Attributes:
        sites: in order of execution.
        W_E: None where the model has no direct path at all.
        W_U: likewise.
        final_norm: between the last layer and W_U.
        embedding_norm: between the embedding and the first layer (Bloom).
        embedding_scale: Gemma's √d_model.
    """

    sites: tuple[Site, ...]
    W_E: Float[Tensor, "token d_model"] | None = None
    W_U: Float[Tensor, "d_model token"] | None = None
    final_norm: Norm | None = None
    embedding_norm: Norm | None = None
    embedding_scale: float = 1.0

    @classmethod
    def from_transformers(
        cls,
        model: nn.Module,
        *,
        output_head_loaded: bool = True,
        declarations: Sequence[Declaration] = (),
        example: Mapping[str, Any] | None = None,
    ) -> "Weights":
        """Read a transformers model; what is read are views of its parameters.

        Args:
            model: of transformers. One forward pass over six tokens finds out which norm acts where.
            output_head_loaded: False where the unembedding is random (`checkpoints.Loaded`): then no head has a direct
                path.
            declarations: for attention modules that are not known (`projections.Declaration`).
            example: inputs for that pass (`residual.residual_stream`).

        Raises:
            UserError: an attention module or a norm cannot be read.
        """
        attentions = attention_modules(model, declarations)
        stream = residual_stream(model, attentions, example)
        whole = "" if output_head_loaded else "the output head was not in the checkpoint and is random"
        rotary = _is_rotary(model)
        sites = tuple(_site(a, stream, whole, rotary) for a in attentions if a.path in stream.norms)
        ends = (stream.W_E, stream.W_U, stream.final_norm, stream.embedding_norm, stream.embedding_scale)
        return cls(sites, *ends)

    def embed(self, tokens: Int[Tensor, "..."] | slice) -> Float[Tensor, "... d_model"]:
        """The embeddings of some tokens, in float64.

        Raises:
            ValueError: there is no embedding of tokens.
        """
        if self.W_E is None:
            raise ValueError("embeddings were asked for, but these weights have no W_E")
        embedded = self.embedding_scale * as_float64(self.W_E[tokens])
        return embedded if self.embedding_norm is None else self.embedding_norm(embedded)

    def vocabulary(self) -> Iterator[slice]:
        """The tokens that have both an embedding and logits, in slices small enough for float64 copies."""
        if self.W_E is None or self.W_U is None:
            return iter(())
        n_tokens = min(self.W_E.shape[0], self.W_U.shape[1])
        return (slice(start, min(start + _CHUNK, n_tokens)) for start in range(0, n_tokens, _CHUNK))


def as_float64(tensor: Tensor) -> Tensor:
    """In float64 on its own device, or on the CPU where the device has none (Apple's)."""
    return tensor.detach().to("cpu" if tensor.device.type == "mps" else tensor.device, torch.float64)


def _site(attention: AttentionModule, stream: ResidualStream, no_head: str, rotary: bool) -> Site:
    heads, norms = head_weights(attention), stream.norms[attention.path]
    on_values = [name for name in heads.unread if not name.startswith(_NOT_ON_VALUES)]
    on_scores = [name for name in heads.unread if "norm" in name and name.startswith(_NOT_ON_VALUES)]
    if heads.clip is not None:
        on_values.append("clip_qkv")
        on_scores.append("clip_qkv")
    values_caveat = f"values or z pass through {', '.join(on_values)}, not in W_OV" if on_values else ""
    normed = f"queries and keys pass through {', '.join(on_scores)}, not in W_QK" if on_scores else ""
    turned = "rotary: W_QK holds for a key at the query's own position" if rotary else ""
    reasons = (
        stream.no_direct_path,
        no_head,
        "cross-attention: values come from another stack, not from an embedding" if attention.kind == "cross" else "",
        f"the {attention.stack} does not end in the logits" if attention.stack != stream.stack else "",
        "post-norm: the stream itself passes through norms in each layer" if norms.order == "post" else "",
        values_caveat,
    )
    place = (attention.path, attention.layer, attention.stack, attention.kind)
    no_direct_path = next(filter(None, reasons), "")
    return Site(*place, heads, norms, no_direct_path, values_caveat, "; ".join(filter(None, (turned, normed))))


def _is_rotary(model: nn.Module) -> bool:
    """Whether queries and keys are rotated by position."""
    # Falcon has a rotary module and does not use it where it has linear biases
    if getattr(getattr(model, "config", None), "alibi", False):
        return False
    return any("rotary" in type(module).__name__.lower() for module in model.modules())
