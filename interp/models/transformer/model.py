"""The small transformer itself: embedding, blocks, unembedding, with TransformerLens's hook points in their places."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any, NamedTuple, cast

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn
from transformer_lens import HookedRootModule
from transformer_lens.hook_points import HookPoint

from interp.errors import UserError
from interp.models.transformer.attention import Attention, Cache, Implementation, Place
from interp.models.transformer.config import TransformerConfig
from interp.models.transformer.mlp import MLP, MixtureOfExperts, balance_loss
from interp.models.transformer.positions import sinusoidal

__all__ = ["Block", "Transformer", "TransformerOutput"]


class TransformerOutput(NamedTuple):
    """What a forward pass gives.

    Attributes:
        logits: [batch, position, d_vocab].
        balance: load-balancing loss, the mean over the layers' (:func:`~interp.models.transformer.mlp.balance_loss`);
            None without experts.
    """

    logits: Float[Tensor, "batch position d_vocab"]
    balance: Float[Tensor, ""] | None = None


class Block(nn.Module):
    """Attention, then the MLP, if there is one; each with its norm and its way around it."""

    def __init__(self, config: TransformerConfig, layer: int, generator: torch.Generator | None = None) -> None:
        super().__init__()
        self.config = config
        self.attn = Attention(config, layer, generator)
        self.ln1 = _norm(config)
        self.hook_resid_pre, self.hook_attn_out, self.hook_resid_post = HookPoint(), HookPoint(), HookPoint()
        if config.mlp != "none":
            self.mlp = MLP(config) if config.mlp == "dense" else MixtureOfExperts(config)
            self.ln2 = _norm(config)
            self.hook_resid_mid, self.hook_mlp_out = HookPoint(), HookPoint()

    def forward(
        self, x: Float[Tensor, "batch position d_model"], place: Place
    ) -> tuple[Float[Tensor, "batch position d_model"], Float[Tensor, "batch position expert"] | None]:
        """The stream after the block, and its router's logits."""
        x = self.hook_resid_pre(x)
        before = self.config.norm_position == "pre"
        x = self._joined(x, self.hook_attn_out(self.attn(self.ln1(x) if before else x, place)), self.ln1)
        router_logits = None
        if self.config.mlp != "none":
            x = self.hook_resid_mid(x)
            added: Any = self.mlp(self.ln2(x) if before else x)
            if isinstance(self.mlp, MixtureOfExperts):
                added, router_logits = added
            x = self._joined(x, self.hook_mlp_out(added), self.ln2)
        return self.hook_resid_post(x), router_logits

    def _joined(self, x: Tensor, added: Tensor, norm: nn.Module) -> Tensor:
        x = x + added if self.config.residual else added
        return norm(x) if self.config.norm_position == "post" else x


class Transformer(HookedRootModule):
    """A decoder or encoder of tokens, small and open: see `TransformerConfig` for what can be chosen.

    It takes its input and gives its output as a transformers model does, so that a `HookedModel` can be made of it
    (:func:`~interp.models.transformer.hook_transformer`), and has TransformerLens's hook points, as far as the config
    has such a part: ``hook_embed``, ``hook_pos_embed``; ``hook_resid_pre``, ``hook_attn_out``, ``hook_resid_mid``,
    ``hook_mlp_out`` and ``hook_resid_post`` of ``blocks.{layer}``; ``hook_q``, ``hook_k``, ``hook_rot_q``,
    ``hook_rot_k``, ``hook_v`` and ``hook_z`` of ``blocks.{layer}.attn``; ``hook_pre``, ``hook_post`` and, of a mixture
    of experts, ``hook_router`` of ``blocks.{layer}.mlp``. ``run_with_hooks`` and ``run_with_cache`` work on them. The
    pattern has no hook point here, because it is never held: a hooked model's probes, edits and ``hook_pattern`` read
    and write its rows.

    Weights are drawn from N(0, 1/inputs) (those that write into the stream smaller by 1/√(number of sublayers), as in
    GPT-2), embeddings from N(0, 0.5²).

    Args:
        config: its settings. seed: of the weights.
    """

    main_input_name = "input_ids"
    _supports_sdpa = True

    def __init__(self, config: TransformerConfig, seed: int = 0) -> None:
        super().__init__()
        self.config = config
        generator = torch.Generator().manual_seed(seed)
        self.embed = nn.Embedding(config.d_vocab, config.d_model)
        self.hook_embed = HookPoint()
        if config.positions == "learned":
            self.pos_embed = nn.Embedding(cast(int, config.n_ctx), config.d_model)
        if config.positions in ("learned", "sinusoidal"):
            self.hook_pos_embed = HookPoint()
        blocks = nn.ModuleList(Block(config, layer, generator) for layer in range(config.n_layers))
        self.blocks = cast(Sequence[Block], blocks)
        self.ln_final = _norm(config) if config.norm_position == "pre" else nn.Identity()
        self.unembed = nn.Linear(config.d_model, config.d_vocab, bias=False)
        if config.tied_embeddings:
            self.unembed.weight = self.embed.weight
        self._initialise(generator)
        self.setup()

    def forward(
        self,
        input_ids: Int[Tensor, "batch position"],
        attention_mask: Tensor | None = None,
        position_ids: Int[Tensor, "#batch position"] | None = None,
        cache: Cache | None = None,
    ) -> TransformerOutput:
        """Logits of every position.

        Args:
            input_ids: tokens; with a cache, those that are new.
            attention_mask: 0 or False marks padding, on either side; with a cache, of all tokens so far.
            position_ids: counted along the tokens that are not padding when None.
            cache: an empty one, or what earlier calls have filled; it is filled further.

        Raises:
            UserError: more tokens than ``n_ctx``, a mask of another shape, a cache without causal attention.
        """
        place = self._place(input_ids, attention_mask, position_ids, cache)
        x = self.hook_embed(self.embed(input_ids))
        if self.config.positions == "learned":
            x = x + self.hook_pos_embed(self.pos_embed(place.positions))
        elif self.config.positions == "sinusoidal":
            x = x + self.hook_pos_embed(sinusoidal(place.positions, self.config.d_model, x.dtype))
        routed = []
        for block in self.blocks:
            x, router_logits = block(x, place)
            routed += [] if router_logits is None else [router_logits]
        if cache is not None:
            cache.length += input_ids.shape[1]
        valid = None if place.valid is None else place.valid[:, -input_ids.shape[1] :]
        losses = [balance_loss(logits, self.config.top_k, valid) for logits in routed]
        balance = torch.stack(losses).mean() if losses else None
        return TransformerOutput(self.unembed(self.ln_final(x)), balance)

    @torch.no_grad()
    def generate(
        self,
        input_ids: Int[Tensor, "batch position"],
        max_new_tokens: int,
        temperature: float = 0.0,
        generator: torch.Generator | None = None,
    ) -> Int[Tensor, "batch position"]:
        """The tokens and ``max_new_tokens`` that follow, one after the other, with a cache.

        Args:
            temperature: 0 takes the likeliest token, 1 draws from the model's distribution.
        """
        cache, new = Cache(), input_ids
        for _ in range(max_new_tokens):
            logits = self(new, cache=cache).logits[:, -1]
            if temperature == 0:
                new = logits.argmax(-1, keepdim=True)
            else:
                new = torch.multinomial((logits / temperature).softmax(-1), 1, generator=generator)
            input_ids = torch.cat([input_ids, new], 1)
        return input_ids

    def altered(self, **fields: Any) -> Transformer:
        """The same weights under another config.

        ``altered(n_ctx=None, rotary_scale=4.0)`` reads longer inputs than the model was trained on.

        Raises:
            UserError: the weights do not fit that config.
        """
        other = Transformer(replace(self.config, **fields)).to(next(self.parameters()))
        try:
            other.load_state_dict(self.state_dict())
        except RuntimeError as error:
            raise UserError(f"weights made for another config do not fit {fields}: {error}") from error
        return other.train(self.training)

    # As transformers has it ---------------------------------------------------------------------------------------

    @property
    def base_model(self) -> Transformer:
        """Itself."""
        return self

    def get_input_embeddings(self) -> nn.Embedding:
        """The embedding."""
        return self.embed

    def get_output_embeddings(self) -> nn.Linear:
        """The unembedding."""
        return self.unembed

    def set_attn_implementation(self, name: Implementation) -> None:
        """What computes attention from now on; see `Implementation`.

        Raises:
            ValueError: there is no such implementation.
        """
        if name not in ("interp", "sdpa", "eager"):
            raise ValueError(f"attention is computed by interp, sdpa or eager; got {name!r}")
        for block in self.blocks:
            block.attn.implementation = name

    def _can_set_attn_implementation(self) -> bool:
        return True

    # Inside -------------------------------------------------------------------------------------------------------

    def _place(
        self, tokens: Tensor, attention_mask: Tensor | None, positions: Tensor | None, cache: Cache | None
    ) -> Place:
        n_new, past = tokens.shape[1], 0 if cache is None else cache.length
        if self.config.n_ctx is not None and past + n_new > self.config.n_ctx:
            raise UserError(f"{past + n_new} tokens are more than the model's context of {self.config.n_ctx}")
        if cache is not None and not self.config.causal:
            raise UserError(
                "a cache is for causal models: without the causal mask, earlier tokens see the new ones too"
            )
        if attention_mask is not None and attention_mask.shape != (len(tokens), past + n_new):
            raise UserError(
                f"attention_mask must be [{len(tokens)}, {past + n_new}], a number for every token so far; got "
                f"{list(attention_mask.shape)}"
            )
        valid = None if attention_mask is None or bool(attention_mask.all()) else attention_mask.bool()
        if positions is None and valid is None:
            positions = torch.arange(past, past + n_new, device=tokens.device)[None]
        elif positions is None and valid is not None:
            positions = (valid.long().cumsum(1) - 1).clamp_min(0)[:, past:]
        assert positions is not None
        return Place(positions, valid, cache)

    @torch.no_grad()
    def _initialise(self, generator: torch.Generator) -> None:
        n_sublayers = self.config.n_layers * (1 if self.config.mlp == "none" else 2)
        for name, module in self.named_modules():
            if isinstance(module, nn.Embedding):
                module.weight.normal_(0, 0.5, generator=generator)
            elif isinstance(module, nn.Linear) and not (name == "unembed" and self.config.tied_embeddings):
                writes = name.endswith(("o_proj", "down_proj"))
                size = module.in_features**-0.5 * (n_sublayers**-0.5 if writes else 1.0)
                module.weight.normal_(0, size, generator=generator)
                if module.bias is not None:
                    module.bias.zero_()


def _norm(config: TransformerConfig) -> nn.Module:
    if config.norm_position == "none":
        return nn.Identity()
    return nn.LayerNorm(config.d_model) if config.norm == "layernorm" else nn.RMSNorm(config.d_model, eps=1e-5)
