"""Word vectors taken of a model."""

from types import SimpleNamespace

import numpy as np
import pytest
import torch
from tokenizers import Tokenizer, models, pre_tokenizers
from torch import nn
from transformers import PreTrainedTokenizerFast

import interp
from analyses.adversarial_attention.classifiers.word_vectors import model_vectors, word_vectors
from interp.data import WordIndex
from interp.errors import UserError

PIECES = ("[UNK]", "good", "film", "##s", "bad")
INDEX = WordIndex.of([("films", "good", "good", "ωραίο")])


def a_model(tokenizer: bool = True, table: bool = True) -> SimpleNamespace:
    """A table of five embeddings and their word pieces."""
    word_piece = Tokenizer(models.WordPiece({piece: i for i, piece in enumerate(PIECES)}, unk_token="[UNK]"))
    word_piece.pre_tokenizer = pre_tokenizers.Whitespace()  # pyright: ignore[reportAttributeAccessIssue]
    embedding = nn.Embedding.from_pretrained(torch.arange(15.0).view(5, 3).square())
    module = SimpleNamespace(get_input_embeddings=lambda: embedding if table else None)
    made = PreTrainedTokenizerFast(tokenizer_object=word_piece, unk_token="[UNK]")
    return SimpleNamespace(tokenizer=made if tokenizer else None, module=module)


def test_a_word_is_the_mean_of_its_tokens(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(interp, "load", lambda _: a_model())
    table = np.arange(15.0).reshape(5, 3) ** 2
    centred = table - table.mean(0)
    places = INDEX.numbers
    found = model_vectors("small", INDEX.words)
    assert set(found) == {places["good"], places["films"]}
    np.testing.assert_allclose(found[places["good"]], centred[1])
    np.testing.assert_allclose(found[places["films"]], centred[2:4].mean(0))
    made, what = word_vectors("model:small", INDEX, [], (7, 0.1), 0)
    assert made.values.shape == (len(INDEX), 3)
    assert made.known == 2
    assert np.isfinite(made.values).all()
    assert what == "input embeddings of small, for 2 of 3 words, random for the rest"


@pytest.mark.parametrize(("lacks", "message"), [("tokenizer", "has no tokenizer"), ("table", "has no such table")])
def test_models_that_have_no_word_vectors(monkeypatch: pytest.MonkeyPatch, lacks: str, message: str) -> None:
    monkeypatch.setattr(interp, "load", lambda _: a_model(**{lacks: False}))
    with pytest.raises(UserError, match=message):
        model_vectors("small", INDEX.words)


def test_a_model_that_knows_no_word(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(interp, "load", lambda _: a_model())
    with pytest.raises(UserError, match="knows none of the 1 words"):
        model_vectors("small", WordIndex.of([("ωραίο",)]).words)
