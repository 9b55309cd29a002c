"""Sequences as a model takes them: refused, cut to its context, drawn from its vocabulary, given to both stacks."""

import pytest
import torch

import interp
from interp.data import Document, Sequences, read_documents, windows
from interp.errors import UserError
from interp.model_data import (
    pass_arguments,
    reads_text,
    require_tokens,
    text_windows,
    vocabulary_of,
    within_context,
)
from tests.families import make


def tiny(family: str = "llama") -> interp.HookedModel:
    return interp.load(make(family), verify=False)


def test_only_models_of_tokens_are_taken() -> None:
    require_tokens(tiny(), "losses are of tokens")
    with pytest.raises(UserError, match=r"losses are of tokens, but .* reads none"):
        require_tokens(tiny("vit"), "losses are of tokens")


def test_lengths_end_with_the_context() -> None:
    model = tiny()
    assert (within_context(model, 5), within_context(model, 10**6)) == (5, model.n_ctx)
    vars(model)["n_ctx"] = None
    assert within_context(model, 10**6) == 10**6


def test_token_ids_are_read_without_a_tokenizer_and_checked_against_the_vocabulary() -> None:
    model = tiny()
    assert reads_text(model, "ids.npy")
    assert not reads_text(model, None)
    assert not reads_text(model, "text.txt")
    ids = torch.arange(40) % 90
    document = Document("a", "a test", tokens=ids.numpy())
    assert text_windows(model, [document], 8, n=9, seed=0).tokens.tolist() == ids.view(5, 8).tolist()
    with pytest.raises(UserError, match="the model's vocabulary"):
        text_windows(model, [Document("a", "a test", tokens=(ids + 10**6).numpy())], 8, n=9, seed=0)
    with pytest.raises(UserError, match="positions the model takes"):
        text_windows(model, [document], 10**6, n=9, seed=0)


def test_no_source_is_the_sample(minilm: interp.HookedModel) -> None:
    expected = windows(read_documents(), minilm.tokenizer, 32, n=4, seed=3)
    assert text_windows(minilm, None, 32, n=4, seed=3).hash() == expected.hash()


def test_special_tokens_are_not_drawn() -> None:
    model = tiny()
    model.config.eos_token_id = [2, 7]
    assert {0, 1, 2, 7}.isdisjoint(vocabulary_of(model).usable.tolist())
    assert vocabulary_of(model).size == model.d_vocab


def test_both_stacks_read_the_same() -> None:
    even, ragged = Sequences.padded([[4, 5], [6, 7]], source="a test"), Sequences.padded([[4], [6, 7]], source="a test")
    assert pass_arguments(tiny(), even)["valid"] is None
    given = pass_arguments(tiny("t5"), ragged)
    assert given["decoder_valid"] is given["valid"] is ragged.valid
    assert given["decoder_tokens"] is given["tokens"] is ragged.tokens
