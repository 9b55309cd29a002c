"""Settings of a small transformer: every design choice is a field, so that each can be changed alone."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from typing import Any, Literal

from interp.errors import UserError

__all__ = ["TransformerConfig"]

_BELONGS_TO = {
    "rotary_base": ("positions", ("rotary",)),
    "rotary_scale": ("positions", ("rotary",)),
    "n_features": ("attention", ("performer",)),
    "orthogonal": ("attention", ("performer",)),
    "d_mlp": ("mlp", ("dense", "moe")),
    "n_experts": ("mlp", ("moe",)),
    "top_k": ("mlp", ("moe",)),
}
"""Fields that mean something only beside certain values of another field."""


@dataclass(frozen=True, kw_only=True)
class TransformerConfig:
    """What a `Transformer` is made of.

    Attributes:
        d_vocab: number of token ids.
        n_ctx: longest input in tokens; longer ones are refused. None: no limit, which learned positions cannot have.
        d_model, n_layers, n_heads: sizes.
        n_kv_heads: heads of keys and values, a divisor of ``n_heads``: all (None, multi-head attention), some
            (grouped-query), 1 (multi-query). Query head h reads kv head ``h // (n_heads // n_kv_heads)``.
        d_head: ``d_model // n_heads`` when None.
        causal: a token sees itself and what came before it.
        window: it sees only the last ``window`` tokens, itself included (and as many after it, when not causal).
        positions: how a token's place is told: "none"; "sinusoidal" (Vaswani et al. 2017) and "learned" are added to
            the embeddings; "rotary" (Su et al. 2021) turns queries and keys; "alibi" (Press et al. 2022) lowers scores
            by distance.
        rotary_base: wavelengths go from 2π to 2π · base; a larger base is also what NTK scaling amounts to.
        rotary_scale: positions are divided by it (position interpolation, Chen et al. 2023).
        attention: "softmax"; "elu": linear attention with φ(x) = elu(x) + 1 (Katharopoulos et al. 2020); "performer":
            linear attention with positive random features (Choromanski et al. 2021).
        n_features: random features of "performer". ``orthogonal``: drawn orthogonal rather than independent.
        scale_exponent: α in scores = q·k / d_headᵅ; 0.5 is the usual square root, 0 none. Linear attention multiplies
            queries and keys by d_head^(−α/2) each before φ.
        norm: "layernorm" (with gain and bias) or "rmsnorm" (gain).
        norm_position: "pre" (norm → sublayer → add, and one norm before the unembedding), "post" (sublayer → add →
            norm), or "none".
        residual: whether sublayers add to their input or replace it.
        mlp: "none" (attention only), "dense" (GELU), or "moe": a mixture of experts.
        d_mlp: width of the MLP or of each expert; ``4 · d_model`` when None.
        n_experts, top_k: experts, and how many of them a token is sent to.
        tied_embeddings: the unembedding is the embedding, transposed.
        bos_token_id: the token that sequences begin with; None where they do not.

    Raises:
        UserError: values that do not fit together, or a field that would do nothing beside the others.
    """

    d_vocab: int
    n_ctx: int | None = None
    d_model: int = 64
    n_layers: int = 2
    n_heads: int = 4
    n_kv_heads: int | None = None
    d_head: int | None = None
    causal: bool = True
    window: int | None = None
    positions: Literal["none", "sinusoidal", "learned", "rotary", "alibi"] = "rotary"
    rotary_base: float = 10_000.0
    rotary_scale: float = 1.0
    attention: Literal["softmax", "elu", "performer"] = "softmax"
    n_features: int = 64
    orthogonal: bool = True
    scale_exponent: float = 0.5
    norm: Literal["layernorm", "rmsnorm"] = "layernorm"
    norm_position: Literal["pre", "post", "none"] = "pre"
    residual: bool = True
    mlp: Literal["none", "dense", "moe"] = "none"
    d_mlp: int | None = None
    n_experts: int = 4
    top_k: int = 2
    tied_embeddings: bool = False
    bos_token_id: int | None = None

    def __post_init__(self) -> None:
        self._check_choices()
        self._check_sizes()
        self._check_idle()
        if self.positions == "learned" and self.n_ctx is None:
            raise UserError("learned positions are a table of n_ctx rows: give n_ctx")
        if self.attention != "softmax" and (self.window is not None or self.positions == "alibi"):
            raise UserError(
                f"linear attention ({self.attention}) sums over all keys at once, which a window or ALiBi's biases by "
                "distance do not allow; use attention='softmax', or another kind of positions"
            )

    # What follows from the fields ---------------------------------------------------------------------------------

    @property
    def kv_heads(self) -> int:
        """Heads of keys and values."""
        return self.n_heads if self.n_kv_heads is None else self.n_kv_heads

    @property
    def head_width(self) -> int:
        """Features of a head."""
        return self.d_model // self.n_heads if self.d_head is None else self.d_head

    @property
    def mlp_width(self) -> int:
        """Features inside an MLP, or one expert."""
        return 4 * self.d_model if self.d_mlp is None else self.d_mlp

    # What transformers calls it -----------------------------------------------------------------------------------

    @property
    def vocab_size(self) -> int:
        """``d_vocab``."""
        return self.d_vocab

    @property
    def max_position_embeddings(self) -> int | None:
        """``n_ctx``."""
        return self.n_ctx

    @property
    def is_encoder_decoder(self) -> bool:
        """False: there is one stack."""
        return False

    def get_text_config(self) -> TransformerConfig:
        """Itself: there is no other input than tokens."""
        return self

    # As JSON ------------------------------------------------------------------------------------------------------

    def to_dict(self) -> dict[str, Any]:
        """The fields by name."""
        return dataclasses.asdict(self)

    @classmethod
    def from_dict(cls, fields: dict[str, Any]) -> TransformerConfig:
        """The inverse of :meth:`to_dict`.

        Raises:
            UserError: a field that is not known (it is named), or one that is missing.
        """
        known = [each.name for each in dataclasses.fields(cls)]
        if unknown := sorted(set(fields) - set(known)):
            raise UserError(f"a transformer's config has no {', '.join(unknown)}; its fields are {', '.join(known)}")
        if "d_vocab" not in fields:
            raise UserError("a transformer's config needs d_vocab, the number of token ids")
        return cls(**fields)

    # Checks -------------------------------------------------------------------------------------------------------

    def _check_choices(self) -> None:
        choices = {
            "positions": ("none", "sinusoidal", "learned", "rotary", "alibi"),
            "attention": ("softmax", "elu", "performer"),
            "norm": ("layernorm", "rmsnorm"),
            "norm_position": ("pre", "post", "none"),
            "mlp": ("none", "dense", "moe"),
        }
        for name, known in choices.items():
            if getattr(self, name) not in known:
                raise UserError(f"{name} must be one of {', '.join(known)}; got {getattr(self, name)!r}")

    def _check_sizes(self) -> None:
        for name in ("d_vocab", "d_model", "n_layers", "n_heads", "n_features", "n_experts", "top_k"):
            if getattr(self, name) < 1:
                raise UserError(f"{name} must be at least 1; got {getattr(self, name)}")
        for name in ("n_ctx", "n_kv_heads", "d_head", "window", "d_mlp"):
            if (value := getattr(self, name)) is not None and value < 1:
                raise UserError(f"{name} must be at least 1, or None; got {value}")
        for name in ("rotary_base", "rotary_scale"):
            if not getattr(self, name) > 0:
                raise UserError(f"{name} must be above 0; got {getattr(self, name)}")
        if self.d_head is None and self.d_model % self.n_heads:
            raise UserError(f"d_model {self.d_model} is no multiple of n_heads {self.n_heads}: give d_head")
        if self.n_heads % self.kv_heads:
            raise UserError(f"n_heads {self.n_heads} must be a multiple of n_kv_heads; got {self.n_kv_heads}")
        if self.positions == "rotary" and self.head_width % 2:
            raise UserError(f"rotary positions turn pairs of features: d_head must be even; got {self.head_width}")
        if self.positions == "sinusoidal" and self.d_model % 2:
            raise UserError(f"sinusoidal positions come in pairs: d_model must be even; got {self.d_model}")
        if self.mlp == "moe" and self.top_k > self.n_experts:
            raise UserError(f"top_k {self.top_k} is more than the {self.n_experts} experts")
        if self.bos_token_id is not None and not 0 <= self.bos_token_id < self.d_vocab:
            raise UserError(f"bos_token_id must lie in 0 … {self.d_vocab - 1}; got {self.bos_token_id}")

    def _check_idle(self) -> None:
        """Refuse fields that were set and would do nothing."""
        usual = {each.name: each.default for each in dataclasses.fields(self)}
        for name, (other, values) in _BELONGS_TO.items():
            if getattr(self, name) != usual[name] and getattr(self, other) not in values:
                raise UserError(
                    f"{name}={getattr(self, name)} does nothing with {other}={getattr(self, other)!r}; it is for "
                    f"{other}={' or '.join(map(repr, values))}"
                )
        if self.norm != usual["norm"] and self.norm_position == "none":
            raise UserError(f"norm={self.norm!r} does nothing with norm_position='none'")
