"""One attention layer: projections, positions, a cache, and whichever attention the config asks for."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn
from transformer_lens.hook_points import HookPoint

from interp.attention import AlibiSlopes, Mask, attend, reference
from interp.errors import UserError
from interp.models.groups import for_query_heads
from interp.models.owners import attend_at, owner
from interp.models.transformer.config import TransformerConfig
from interp.models.transformer.linear import (
    LogKernel,
    State,
    elu_features,
    linear_attention,
    performer_features,
    random_directions,
)
from interp.models.transformer.positions import Rotary, alibi_slopes

__all__ = ["Attention", "Cache", "Implementation", "Place", "sdpa"]

Implementation = Literal["interp", "sdpa", "eager"]
"""What computes attention: "interp", the attention core, which probes and edits reach; "sdpa", torch's own; "eager",
the whole pattern, in float64, to compare the others with. Linear attention: "eager" takes its rows, the others sum."""


class Cache:
    """Keys and values (for linear attention, their sums) of the tokens so far, filled by the calls it is passed to.

    Attributes:
        length: tokens so far. ``layers``: by layer number.
    """

    def __init__(self) -> None:
        self.length = 0
        self.layers: dict[int, tuple[Tensor, Tensor] | State] = {}

    def extend(self, layer: int, key: Tensor, value: Tensor) -> tuple[Tensor, Tensor]:
        """Keys and values [batch, kv_head, position, d_head] of all tokens so far, these included."""
        before = self.layers.get(layer)
        if isinstance(before, tuple):
            key, value = torch.cat([before[0], key], 2), torch.cat([before[1], value], 2)
        self.layers[layer] = (key, value)
        return key, value

    @property
    def nbytes(self) -> int:
        """Bytes that it holds."""
        held = (vars(x).values() if isinstance(x, State) else x for x in self.layers.values())
        return sum(tensor.nbytes for tensors in held for tensor in tensors)


@dataclass(frozen=True, eq=False)
class Place:
    """Where the tokens of a call stand.

    Attributes:
        positions: of the tokens within their sequences.
        valid: of all tokens so far, which are not padding; None: all.
        cache: what came before, or None.
    """

    positions: Int[Tensor, "#batch position"]
    valid: Bool[Tensor, "batch key"] | None = None
    cache: Cache | None = None


class Attention(nn.Module):
    """Multi-head attention: q_proj, k_proj, v_proj, o_proj without biases, and hook points between them.

    Args:
        config: of the model. layer: its number. generator: draws Performer's random directions.
    """

    directions: Tensor
    slopes: Tensor

    def __init__(self, config: TransformerConfig, layer: int, generator: torch.Generator | None = None) -> None:
        super().__init__()
        self.config, self.layer = config, layer
        self.n_heads, self.n_kv_heads, self.d_head = config.n_heads, config.kv_heads, config.head_width
        self.scale = self.d_head**-config.scale_exponent
        self.implementation: Implementation = "interp"
        self.q_proj = nn.Linear(config.d_model, self.n_heads * self.d_head, bias=False)
        self.k_proj = nn.Linear(config.d_model, self.n_kv_heads * self.d_head, bias=False)
        self.v_proj = nn.Linear(config.d_model, self.n_kv_heads * self.d_head, bias=False)
        self.o_proj = nn.Linear(self.n_heads * self.d_head, config.d_model, bias=False)
        if config.positions == "rotary":
            self.rotary = Rotary(self.d_head, config.rotary_base, config.rotary_scale)
            self.hook_rot_q, self.hook_rot_k = HookPoint(), HookPoint()
        if config.positions == "alibi":
            self.register_buffer("slopes", alibi_slopes(self.n_heads), persistent=False)
        if config.attention == "performer":
            drawn = random_directions(config.n_features, self.d_head, orthogonal=config.orthogonal, generator=generator)
            self.register_buffer("directions", drawn)
        self.hook_q, self.hook_k, self.hook_v, self.hook_z = HookPoint(), HookPoint(), HookPoint(), HookPoint()

    def forward(
        self, x: Float[Tensor, "batch position d_model"], place: Place
    ) -> Float[Tensor, "batch position d_model"]:
        """What the heads add to the stream."""
        query, key = self.hook_q(self._heads(self.q_proj(x))), self.hook_k(self._heads(self.k_proj(x)))
        value = self.hook_v(self._heads(self.v_proj(x)))
        if self.config.positions == "rotary":
            query = self.hook_rot_q(self.rotary(query, place.positions))
            key = self.hook_rot_k(self.rotary(key, place.positions))
        inputs = query.transpose(1, 2), key.transpose(1, 2), value.transpose(1, 2)
        if query.shape[2] == 0:  # every head was pruned
            z = query.transpose(1, 2)
        elif self.config.attention == "softmax":
            z = self._softmax(*inputs, place)
        else:
            z = self._linear(*inputs, place)
        return self.o_proj(self.hook_z(z.transpose(1, 2)).flatten(2))

    def _heads(self, x: Tensor) -> Float[Tensor, "batch position head d_head"]:
        return x.unflatten(-1, (-1, self.d_head))

    # Softmax ------------------------------------------------------------------------------------------------------

    def _softmax(self, query: Tensor, key: Tensor, value: Tensor, place: Place) -> Tensor:
        if place.cache is not None:
            key, value = place.cache.extend(self.layer, key, value)
        mask = self._mask(place)
        if self.implementation == "sdpa":
            return sdpa(query, *for_query_heads(self, key, value), mask, self.scale)
        if self.implementation == "eager":
            key, value = for_query_heads(self, key, value)
            return reference(query, key, value, mask, self.scale).output.to(value.dtype)
        return attend_at(self, query, key, value, mask, self.scale)

    def _mask(self, place: Place) -> Mask:
        config = self.config
        bias = AlibiSlopes(self.slopes) if config.positions == "alibi" else None
        return Mask(causal=config.causal, window=config.window, key_valid=place.valid, bias=bias)

    # Linear -------------------------------------------------------------------------------------------------------

    def features(self, x: Float[Tensor, "... d_head"], of_queries: bool) -> Float[Tensor, "... feature"]:
        """φ of queries or keys, which are scaled first."""
        x = x * self.scale**0.5
        if self.config.attention == "elu":
            return elu_features(x)
        return performer_features(x, self.directions, below=of_queries)

    def _linear(self, query: Tensor, key: Tensor, value: Tensor, place: Place) -> Tensor:
        query, key = self.features(query, of_queries=True), self.features(key, of_queries=False)
        if self._takes_rows:
            if place.cache is not None:
                raise UserError(
                    f"blocks.{self.layer}.attn is linear attention, whose cache keeps sums and no keys: read or edit "
                    "it in one pass over the whole sequence, without a cache"
                )
            return self._linear_by_rows(query, key, value, self._mask(place))
        before = None if place.cache is None else place.cache.layers.get(self.layer)
        assert not isinstance(before, tuple)
        valid = None if place.valid is None else place.valid[:, -key.shape[2] :]
        key, value = for_query_heads(self, key, value)
        z, state = linear_attention(query, key, value, causal=self.config.causal, key_valid=valid, state=before)
        if place.cache is not None:
            place.cache.layers[self.layer] = state
        return z

    @property
    def _takes_rows(self) -> bool:
        """Whether linear attention needs its pattern's rows: to be read or edited, or because it is asked to."""
        found = owner(self)
        if self.implementation != "interp" or found is None:
            return self.implementation == "eager"
        seam = found[0].seam
        return seam.recording is not None or bool(seam.edits or seam.hooks or seam.watches)

    def _linear_by_rows(self, query: Tensor, key: Tensor, value: Tensor, mask: Mask) -> Tensor:
        """Linear attention through the core, row block by row block, where probes and edits reach it."""
        log_kernel, found = (LogKernel(),), owner(self)
        if self.implementation == "eager" or found is None:
            key, value = for_query_heads(self, key, value)
            return attend(query, key, value, mask, 1.0, edits=log_kernel, block_rows=query.shape[2])
        (model, site), recording = found, found[0].seam.recording
        if recording is not None and "qk" in recording.keep:
            raise UserError(
                f"{site.name} is linear attention, whose rows queries and keys alone do not give: keep='z' only"
            )
        for edit in (edit for group in model.seam.edits for edit in group):
            if edit.stage == "scale" and edit.at(site.core_site) is not None:
                raise UserError(f"{type(edit).__name__} at {site.name}: linear attention has no scores to scale")
        return model.attend(site, query, key, value, mask, 1.0, None, log_kernel)

    # Weights by head, as TransformerLens lays them out ------------------------------------------------------------

    @property
    def W_Q(self) -> Float[Tensor, "head d_model d_head"]:  # noqa: N802 (the papers' names)
        """A view of ``q_proj``'s weight."""
        return self._by_head(self.q_proj)

    @property
    def W_K(self) -> Float[Tensor, "kv_head d_model d_head"]:  # noqa: N802
        """A view of ``k_proj``'s weight."""
        return self._by_head(self.k_proj)

    @property
    def W_V(self) -> Float[Tensor, "kv_head d_model d_head"]:  # noqa: N802
        """A view of ``v_proj``'s weight."""
        return self._by_head(self.v_proj)

    @property
    def W_O(self) -> Float[Tensor, "head d_head d_model"]:  # noqa: N802
        """A view of ``o_proj``'s weight."""
        return self.o_proj.weight.T.unflatten(0, (self.n_heads, self.d_head))

    def _by_head(self, projection: nn.Linear) -> Tensor:
        return projection.weight.unflatten(0, (-1, self.d_head)).transpose(1, 2)


def sdpa(
    query: Float[Tensor, "batch head query d_head"],
    key: Float[Tensor, "batch kv_head key d_head"],
    value: Float[Tensor, "batch kv_head key d_head"],
    mask: Mask,
    scale: float,
) -> Float[Tensor, "batch head query d_head"]:
    """torch's fused attention under a mask; a query that may read no key gives zeros.

    Where the mask is more than causal, a tensor of queries × keys is made.
    """
    given = {"scale": scale, "enable_gqa": query.shape[1] != key.shape[1]}
    n_queries, n_keys = query.shape[2], key.shape[2]
    if (
        mask.window is None
        and mask.key_valid is None
        and mask.bias is None
        and (not mask.causal or n_queries == n_keys)
    ):
        return nn.functional.scaled_dot_product_attention(query, key, value, is_causal=mask.causal, **given)
    bound = mask.bind(query.shape[0], query.shape[1], n_queries, n_keys, query.device)
    allowed = bound.allowed(0, n_queries, 0, n_keys)
    empty = ~allowed.any(-1, keepdim=True)
    bias = bound.bias(0, n_queries, 0, n_keys, query.dtype)
    added = (torch.zeros((), dtype=query.dtype, device=query.device) if bias is None else bias).masked_fill(
        ~(allowed | empty), float("-inf")
    )
    z = nn.functional.scaled_dot_product_attention(query, key, value, attn_mask=added, **given)
    return z.masked_fill(empty, 0.0)
