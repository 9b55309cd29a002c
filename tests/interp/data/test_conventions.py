from types import SimpleNamespace

import pytest

from interp.data import prefix_tokens, suffix_tokens
from interp.errors import UserError


def test_what_a_tokenizer_puts_around_a_text(plain_tokenizer, wrapping_tokenizer):
    assert prefix_tokens(plain_tokenizer) == suffix_tokens(plain_tokenizer) == []
    assert prefix_tokens(wrapping_tokenizer) == [wrapping_tokenizer.bos_token_id]
    assert suffix_tokens(wrapping_tokenizer) == [wrapping_tokenizer.eos_token_id]


def test_without_a_tokenizer_the_config_names_the_beginning():
    assert prefix_tokens(None, SimpleNamespace(bos_token_id=7)) == [7]
    assert prefix_tokens(None, SimpleNamespace(bos_token_id=None)) == []
    assert prefix_tokens(None, SimpleNamespace()) == prefix_tokens(None) == suffix_tokens(None) == []


def test_encoder(minilm_tokenizer):
    assert minilm_tokenizer.convert_ids_to_tokens(prefix_tokens(minilm_tokenizer)) == ["[CLS]"]
    assert minilm_tokenizer.convert_ids_to_tokens(suffix_tokens(minilm_tokenizer)) == ["[SEP]"]


def test_a_tokenizer_that_changes_the_text_is_refused():
    def odd(text, add_special_tokens):
        return {"input_ids": [1, 2, 3] if add_special_tokens else [4]}

    with pytest.raises(UserError, match="cannot tell which special tokens function puts around"):
        prefix_tokens(odd)
