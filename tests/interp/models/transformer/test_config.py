"""Settings: what follows from them, what is refused."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from interp.errors import UserError
from interp.models.transformer import TransformerConfig
from tests.interp.models.transformer.small import KINDS, config


@pytest.mark.parametrize("kind", KINDS)
def test_a_config_survives_its_dict(kind: str) -> None:
    assert TransformerConfig.from_dict(config(kind).to_dict()) == config(kind)


@given(st.sampled_from([(6, None, 6), (6, 6, 6), (6, 2, 2), (6, 1, 1)]))
def test_sizes_that_follow(heads: tuple[int, int | None, int]) -> None:
    n_heads, given_kv, kv = heads
    found = TransformerConfig(d_vocab=5, d_model=24, n_heads=n_heads, n_kv_heads=given_kv)
    assert (found.kv_heads, found.head_width, found.mlp_width) == (kv, 4, 96)
    assert (found.vocab_size, found.max_position_embeddings, found.is_encoder_decoder) == (5, None, False)


@pytest.mark.parametrize(("fields", "words"), [
    ({"positions": "relative"}, "positions must be one of"),
    ({"attention": "cosine"}, "attention must be one of"),
    ({"d_vocab": 0}, "d_vocab must be at least 1"),
    ({"window": 0}, "window must be at least 1, or None"),
    ({"d_model": 30, "n_heads": 4}, "no multiple of n_heads"),
    ({"n_heads": 4, "n_kv_heads": 3}, "multiple of n_kv_heads"),
    ({"d_head": 5}, "d_head must be even"),
    ({"positions": "sinusoidal", "d_model": 5, "n_heads": 1}, "d_model must be even"),
    ({"positions": "learned"}, "give n_ctx"),
    ({"mlp": "moe", "top_k": 5}, "more than the 4 experts"),
    ({"bos_token_id": 9}, r"0 … 8"),
    ({"attention": "elu", "window": 3}, "a window or ALiBi"),
    ({"attention": "performer", "positions": "alibi"}, "a window or ALiBi"),
    ({"rotary_base": -1.0}, "rotary_base must be above 0"),
    ({"positions": "none", "rotary_base": 100.0}, "does nothing with positions='none'"),
    ({"positions": "alibi", "rotary_scale": 2.0}, "does nothing"),
    ({"n_features": 10}, "does nothing with attention='softmax'"),
    ({"attention": "elu", "orthogonal": False}, "does nothing"),
    ({"d_mlp": 10}, "does nothing with mlp='none'"),
    ({"mlp": "dense", "n_experts": 2}, "does nothing"),
    ({"mlp": "dense", "top_k": 1}, "does nothing"),
    ({"norm": "rmsnorm", "norm_position": "none"}, "does nothing"),
])  # fmt: skip
def test_what_does_not_fit_together_is_refused(fields: dict[str, Any], words: str) -> None:
    with pytest.raises(UserError, match=words):
        TransformerConfig(**{"d_vocab": 9, **fields})


def test_a_dict_with_an_unknown_field_is_refused() -> None:
    with pytest.raises(UserError, match="no n_head; its fields are d_vocab"):
        TransformerConfig.from_dict({"d_vocab": 5, "n_head": 2})
    with pytest.raises(UserError, match="needs d_vocab"):
        TransformerConfig.from_dict({})
