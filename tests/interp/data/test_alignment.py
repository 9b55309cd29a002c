from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from interp.data.alignment import align, token_offsets


def spans(text: str) -> list[tuple[int, int]]:
    found, at = [], 0
    for word in text.split():
        at = text.index(word, at)
        found.append((at, at + len(word)))
        at += len(word)
    return found


class Slow:
    """The same tokenizer without its offsets."""

    is_fast = False

    def __init__(self, fast: Any) -> None:
        self.fast = fast

    def __call__(self, text: str, add_special_tokens: bool = True) -> Any:
        return self.fast(text, add_special_tokens=add_special_tokens)

    def convert_ids_to_tokens(self, token: int) -> str:
        return self.fast.convert_ids_to_tokens(token)

    def decode(self, tokens: list[int], **how: Any) -> str:
        return self.fast.decode(tokens, **how)


@given(st.text(st.characters(codec="utf-8", exclude_categories=("C",)), max_size=40))
def test_every_token_lies_in_its_word(plain_tokenizer: Any, text: str) -> None:
    places = spans(text)
    found = align(plain_tokenizer, text, places)
    tokens, offsets = token_offsets(plain_tokenizer, text)
    assert list(found.tokens) == tokens
    assert found.unaligned == tuple(w for w in range(len(places)) if w not in found.words)
    for word, (start, end) in zip(found.words, offsets, strict=True):
        covering = {w for w, (a, b) in enumerate(places) if max(a, start) < min(b, end)}
        assert covering == {word} if word >= 0 else len(covering) != 1


def test_without_offsets_the_tokens_are_found_in_the_text(plain_tokenizer: Any, minilm_tokenizer: Any) -> None:
    text = "The Café's owner, Ms. O'Neill-Nuñez, re-opened it on 12 May (unannounced)."
    for tokenizer in (plain_tokenizer, minilm_tokenizer):
        with_offsets, without = (align(each, text, spans(text)) for each in (tokenizer, Slow(tokenizer)))
        assert with_offsets.unaligned == without.unaligned == ()
        pairs = list(zip(with_offsets.words, without.words, strict=True))
        assert all(slow in (fast, -1) for fast, slow in pairs)
        assert sum(slow != fast for fast, slow in pairs) <= 4  # é and ñ, of two bytes each


def test_split_merged_and_changed_words(minilm_tokenizer: Any) -> None:
    text = "unbelievably don't ﬁne"
    found = align(minilm_tokenizer, text, [(0, 12), (13, 15), (15, 18), (19, 22)])
    assert found.words[0] == 0
    assert found.words.count(0) > 1  # split
    assert 1 not in found.words  # "don" is part of both "do" and "n't"
    assert found.unaligned == (1,)
    assert found.words[-1] == 3  # normalised


def test_words_that_share_their_characters_stay_unaligned(minilm_tokenizer: Any) -> None:
    assert align(minilm_tokenizer, "du pain", [(0, 2), (0, 2), (3, 7)]).unaligned == (0, 1)


def test_words_without_spaces_between(minilm_tokenizer: Any) -> None:
    found = align(minilm_tokenizer, "我爱你。", [(0, 1), (1, 2), (2, 3), (3, 4)])
    assert found.words == (0, 1, 2, 3)


def test_no_text(plain_tokenizer: Any) -> None:
    assert align(plain_tokenizer, "", []).tokens == ()
