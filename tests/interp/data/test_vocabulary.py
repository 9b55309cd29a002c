import numpy as np
import pytest
from tokenizers import Tokenizer
from tokenizers.models import WordLevel
from transformers import PreTrainedTokenizerFast

from interp.data import Vocabulary
from interp.errors import UserError


def tokenizer_of(vocab, **special):
    model = WordLevel(vocab, unk_token="<unk>")
    return PreTrainedTokenizerFast(tokenizer_object=Tokenizer(model), unk_token="<unk>", **special)


def test_only_tokens_that_stand_for_text_are_drawn():
    names = ["<unk>", "<s>", "a", "b", "[unused7]", "c", "<|reserved_special_token_3|>", "<unused12>", "d", "[x]"]
    tokenizer = tokenizer_of({name: i for i, name in enumerate(names)}, bos_token="<s>")
    tokenizer.add_tokens(["added"])
    vocabulary = Vocabulary.from_tokenizer(tokenizer, vocab_size=14)
    assert vocabulary.usable.tolist() == [2, 3, 5, 8, 9]
    assert vocabulary.size == 14
    assert vocabulary.excluded == {"special or added": 3, "placeholders": 3, "no token": 3}


def test_ids_beyond_the_model_are_not_drawn_and_holes_are_not():
    tokenizer = tokenizer_of({"<unk>": 0, "a": 1, "b": 3, "c": 5})
    assert Vocabulary.from_tokenizer(tokenizer).usable.tolist() == [1, 3, 5]
    assert Vocabulary.from_tokenizer(tokenizer, vocab_size=5).usable.tolist() == [1, 3]


def test_real_encoder(minilm_tokenizer):
    vocabulary = Vocabulary.from_tokenizer(minilm_tokenizer, 30522)
    tokens = minilm_tokenizer.convert_ids_to_tokens(vocabulary.usable.tolist())
    assert not [token for token in tokens if token.startswith("[unused")]
    assert not {"[CLS]", "[SEP]", "[PAD]", "[MASK]", "[UNK]"} & set(tokens)
    assert "the" in tokens
    assert vocabulary.describe() == "29,523 of 30,522 token ids (without 5 special or added, 994 placeholders)"


def test_size_alone_is_enough():
    assert Vocabulary.of_size(5).usable.tolist() == [0, 1, 2, 3, 4]
    assert Vocabulary.of_size(5).describe() == "5 of 5 token ids"
    assert Vocabulary.of_size(5, special=[4, 0, 4]).usable.tolist() == [1, 2, 3]
    with pytest.raises(UserError, match=r"within the vocabulary, 0 to 4; got \[5\]"):
        Vocabulary.of_size(5, special=[5])


def test_most_and_least_common_tokens_are_left_out():
    frequencies = np.array([0, 9, 3, 5, 7, 1, 8, 2, 6, 4, 100])
    vocabulary = Vocabulary.of_size(11, special=[10]).without_extremes(frequencies, share=0.2)
    assert vocabulary.usable.tolist() == [2, 3, 4, 7, 8, 9]  # without 0 and 5, 1 and 6
    assert "2 most common, 2 least common" in vocabulary.describe()
    assert Vocabulary.of_size(11).without_extremes(frequencies, share=0).usable.tolist() == list(range(11))


def test_frequencies_must_fit():
    with pytest.raises(ValueError, match=r"one number per id, \[5\]; got \[4\]"):
        Vocabulary.of_size(5).without_extremes(np.zeros(4))
    with pytest.raises(ValueError, match=r"between 0 and 0\.5; got 0\.5"):
        Vocabulary.of_size(5).without_extremes(np.zeros(5), share=0.5)
