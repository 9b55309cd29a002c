"""transformers' masks in words: row for row what its own sdpa_mask builds whole."""

from collections.abc import Iterator
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor
from torch.testing import assert_close
from transformers import masking_utils as hf_masks

from interp.attention import Mask
from interp.errors import UserError
from interp.models.masks import as_mask, core_mask, holds_pairs, with_bias
from tests import families
from tests.families import hf

BATCH, LENGTH, WINDOW = 3, 11, 4

PADDING: dict[str, Tensor | None] = {
    "none": None,
    "left": torch.arange(LENGTH) >= torch.tensor([[0], [3], [6]]),
    "right": torch.arange(LENGTH) < torch.tensor([[LENGTH], [7], [2]]),
}


def spy(**asked: Any) -> tuple[Mask, Tensor, tuple[int, int]]:
    """Both masks for one request of transformers, and its sizes."""
    whole = hf_masks.sdpa_mask(**{**asked, "allow_is_causal_skip": False, "allow_is_bidirectional_skip": False})
    assert whole is not None
    return core_mask(**asked), whole, (asked["q_length"], asked["kv_length"])


@pytest.fixture(scope="module", autouse=True)
def spying() -> Iterator[None]:
    hf.AttentionMaskInterface.register("spy", spy)
    yield
    hf.AttentionMaskInterface._global_mapping.pop("spy")


def config(**changed: Any) -> Any:
    sizes = families.GROUPED | {"sliding_window": WINDOW, "attention_chunk_size": WINDOW} | changed
    made = hf.MistralConfig(**{k: v for k, v in sizes.items() if k != "attention_chunk_size"})
    made._attn_implementation_internal = "spy"
    made.attention_chunk_size = WINDOW
    return made


def check(found: Any) -> Mask:
    """Assert that both masks of a request permit the same keys; rows of padding are nobody's business."""
    mask, whole, (n_queries, n_keys) = found
    bound = mask.bind(BATCH, 2, n_queries, n_keys, torch.device("cpu"))
    rows = torch.cat([bound.allowed(i, i + 1, 0, n_keys).expand(BATCH, -1, -1, -1) for i in range(n_queries)], 2)
    assert torch.equal(rows.expand_as(whole), whole)
    every = torch.arange(n_queries)[None, None, :, None], torch.arange(n_keys)[None, None, None, :]
    permitted = bound.permits(*every)
    assert torch.equal(permitted.expand(BATCH, -1, -1, -1)[:, :1], whole)
    low, high = zip(*(bound.key_range(i, i + 1) for i in range(n_queries)), strict=True)
    for i in range(n_queries):
        outside = torch.ones(n_keys, dtype=torch.bool)
        outside[low[i] : high[i]] = False
        assert not whole[:, :, i, outside].any()
    return mask


def embeddings(length: int = LENGTH) -> Tensor:
    return torch.zeros(BATCH, length, 48)


def prefix(batch: Any, head: Any, query: Any, key: Any) -> Any:
    """The first keys are open to all: how many, a table says."""
    return key < torch.tensor([2, 5, 0])[batch]


def even(batch: Any, head: Any, query: Any, key: Any) -> Any:
    return (query - key) % 2 == 0


@pytest.mark.parametrize("padding", PADDING)
@pytest.mark.parametrize("kind", ["causal", "sliding", "chunked", "bidirectional", "bidirectional_sliding"])
def test_every_kind_and_padding(kind: str, padding: str) -> None:
    make = getattr(hf_masks, {"causal": "create_causal_mask", "sliding": "create_sliding_window_causal_mask",
                              "chunked": "create_chunked_causal_mask", "bidirectional": "create_bidirectional_mask",
                              "bidirectional_sliding": "create_bidirectional_sliding_window_mask"}[kind])  # fmt: skip
    mask = check(make(config(), embeddings(), PADDING[padding], cache=None))
    assert mask.causal is (kind in ("causal", "sliding", "chunked"))
    assert mask.window == {"sliding": WINDOW, "bidirectional_sliding": WINDOW + 1}.get(kind)
    assert not isinstance(mask.allowed, Tensor)
    assert (mask.allowed is None) is (kind != "chunked")


@pytest.mark.parametrize("padding", PADDING)
@pytest.mark.parametrize("kind", ["create_causal_mask", "create_sliding_window_causal_mask",
                                  "create_bidirectional_mask"])  # fmt: skip
@pytest.mark.parametrize("extra", [{"or_mask_function": prefix}, {"and_mask_function": even},
                                   {"or_mask_function": prefix, "and_mask_function": even}])  # fmt: skip
def test_functions_of_a_user(kind: str, padding: str, extra: dict[str, Any]) -> None:
    check(getattr(hf_masks, kind)(config(), embeddings(), PADDING[padding], cache=None, **extra))


@pytest.mark.parametrize("kind", ["create_causal_mask", "create_sliding_window_causal_mask"])
def test_packed_sequences(kind: str) -> None:
    positions = torch.cat([torch.arange(4), torch.arange(6), torch.arange(1)])[None]
    mask = check(getattr(hf_masks, kind)(config(), embeddings(), None, cache=None, position_ids=positions))
    assert mask.allowed is not None


def test_blocks_that_read_each_other() -> None:
    blocks = torch.tensor([-1, 0, 0, 0, -1, -1, 1, 1, -1, -1, -1]).expand(BATCH, -1)
    check(hf_masks.create_causal_mask(config(), embeddings(), None, cache=None, block_sequence_ids=blocks))


@pytest.mark.parametrize("padding", PADDING)
@pytest.mark.parametrize("kind", ["create_causal_mask", "create_sliding_window_causal_mask"])
@pytest.mark.parametrize("static", [False, True])
@pytest.mark.parametrize("new", [1, 3])
def test_cached_keys(kind: str, padding: str, static: bool, new: int) -> None:
    settings = config(sliding_window=WINDOW if "sliding" in kind else None)
    cache = hf.StaticCache(config=settings, max_cache_len=LENGTH + 5) if static else hf.DynamicCache(config=settings)
    past = torch.zeros(BATCH, 2, LENGTH - new, 8)
    cache.update(past, past, 0)
    check(getattr(hf_masks, kind)(settings, embeddings(new), PADDING[padding], cache=cache))


@given(
    q_length=st.integers(1, 7), past=st.integers(0, 7), kv_offset=st.integers(0, 3), window=st.integers(1, 9),
    two_sided=st.booleans(), causal=st.booleans(), padded=st.booleans(),
)  # fmt: skip
def test_any_sizes(
    q_length: int, past: int, kv_offset: int, window: int, two_sided: bool, causal: bool, padded: bool
) -> None:
    """Also a window that looks back only, without causal order: no model of today has it, and words do not say it."""
    overlay = hf_masks.sliding_window_bidirectional_overlay if two_sided else hf_masks.sliding_window_overlay
    parts = [overlay(window), *([hf_masks.causal_mask_function] if causal else [hf_masks.bidirectional_mask_function])]
    end = kv_offset + past + q_length
    valid = torch.arange(end) >= torch.tensor([[0], [2], [1]]) if padded else None
    check(spy(batch_size=BATCH, q_length=q_length, kv_length=past + q_length, q_offset=kv_offset + past,
              kv_offset=kv_offset, mask_function=hf_masks.and_masks(*parts), attention_mask=valid))  # fmt: skip


# Masks that are tensors -----------------------------------------------------------------------------------------------


def test_additive_masks_are_split_into_who_and_how_much() -> None:
    lowest = torch.finfo(torch.float32).min
    for forbidden in (lowest, float("-inf"), -1e9):
        given_mask = torch.tensor([[0.0, forbidden], [0.5, 0.0]])[None, None]
        mask = as_mask(given_mask, causal=True)
        assert isinstance(mask.allowed, Tensor)
        assert mask.allowed.tolist() == [[[[True, False], [True, True]]]]
        assert_close(mask.bias, torch.tensor([[0.0, 0.0], [0.5, 0.0]])[None, None])
        assert not mask.causal
    plain = as_mask(torch.tensor([[0.0, lowest], [0.0, 0.0]])[None, None], causal=False)
    assert plain.bias is None


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float64])
def test_the_lowest_number_of_every_dtype_forbids(dtype: torch.dtype) -> None:
    mask = as_mask(torch.tensor([[0.0, torch.finfo(dtype).min]], dtype=dtype)[None, None], causal=False)
    assert isinstance(mask.allowed, Tensor)
    assert mask.allowed.flatten().tolist() == [True, False]


def test_booleans_words_and_nothing() -> None:
    whole = torch.tensor([[True, False]])[None, None]
    assert as_mask(whole, causal=True).allowed is whole
    words = Mask(causal=True, window=3)
    assert as_mask(words, causal=False) is words
    assert as_mask(None, causal=True).causal
    assert not as_mask(None, causal=False).causal


def test_biases_add_up() -> None:
    bias = torch.tensor([[0.5, 1.0]])[None, None]
    assert_close(with_bias(with_bias(Mask(causal=True), bias), bias).bias, 2 * bias)
    forbidding = torch.tensor([[0.5, -1e30]])[None, None]
    assert with_bias(Mask(causal=True), forbidding).causal
    with pytest.raises(UserError, match="two masks at once"):
        with_bias(Mask(allowed=torch.ones(1, 2, dtype=torch.bool)), forbidding)


def test_tensors_of_pairs_are_noticed() -> None:
    pairs, keys = torch.ones(1, 1, 4, 4, dtype=torch.bool), torch.ones(1, 1, 1, 4, dtype=torch.bool)
    assert holds_pairs(Mask(allowed=pairs))
    assert holds_pairs(Mask(bias=torch.zeros(1, 2, 4, 4)))
    assert not holds_pairs(Mask(allowed=keys))
    assert not holds_pairs(Mask(causal=True, key_valid=keys[0, 0]))
