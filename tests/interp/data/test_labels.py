from typing import Any

import pytest
import torch

from interp.data import Sequences
from interp.data.labels import sentence_spans, token_labels, token_texts


def sequences(tokenizer: Any, *texts: str, prefix: tuple[int, ...] = (), suffix: tuple[int, ...] = ()) -> Sequences:
    rows, offsets = [], []
    for text in texts:
        encoded = tokenizer(text, add_special_tokens=False, return_offsets_mapping=True)
        rows.append([*prefix, *encoded["input_ids"], *suffix])
        offsets.append([(0, 0)] * len(prefix) + list(encoded["offset_mapping"]) + [(0, 0)] * len(suffix))
    longest = max(map(len, rows))
    placed = torch.tensor([each + [(0, 0)] * (longest - len(each)) for each in offsets])
    return Sequences.padded(rows, source="a test", text=tuple(texts), offsets=placed)


TEXT = 'He said "no (not 12) now". She left. The cat sat! On 3 mats?'


@pytest.fixture(scope="module")
def given(minilm_tokenizer: Any) -> Sequences:
    cls, sep = minilm_tokenizer.cls_token_id, minilm_tokenizer.sep_token_id
    return sequences(minilm_tokenizer, TEXT, "A cat.", prefix=(cls,), suffix=(sep,))


def marked(given: Sequences, flags: torch.Tensor, row: int = 0) -> list[str]:
    return [text for text, flag in zip(given.token_text(row), flags[row].tolist(), strict=True) if flag]


def test_flags(minilm_tokenizer: Any, given: Sequences) -> None:
    labels = token_labels(given, minilm_tokenizer)
    last = int(given.lengths[0]) - 1
    assert labels.special[0].nonzero().flatten().tolist() == [0, last]
    assert labels.separator[0].nonzero().flatten().tolist() == [last]
    assert marked(given, labels.punctuation) == ['"', "(", ")", '"', ".", ".", "!", "?"]
    assert marked(given, labels.number) == ["12", "3"]
    assert marked(given, labels.sentence_start) == ["He", "She", "The", "On"]
    assert not labels.special[1, 5:].any()  # padding is nothing


def test_pairs_and_rarest_words(minilm_tokenizer: Any, given: Sequences) -> None:
    labels = token_labels(given, minilm_tokenizer)
    texts = given.token_text(0)
    for partner, signs in ((labels.bracket, ["(", ")"]), (labels.quote, ['"', '"'])):
        places = (partner[0] >= 0).nonzero().flatten().tolist()
        assert [texts[i] for i in places] == signs
        assert partner[0, places].tolist() == places[::-1]
    cat, mats = texts.index("cat"), texts.index("mats")
    rare = [[t for t in row if t >= 0] for row in labels.rare[0].tolist()]
    assert rare[mats] == rare[mats - 1] == [mats]
    assert rare[cat] == [cat + 1]  # "cat" is there twice, "the" and "sat" once; "sat" has the higher id
    assert rare[0] == []


def test_a_text_given_as_ids_is_spelled_from_its_tokens(minilm_tokenizer: Any, given: Sequences) -> None:
    bare = Sequences.padded(
        [row[:n].tolist() for row, n in zip(given.tokens, given.lengths, strict=True)], source="ids"
    )
    bare_labels, labels = token_labels(bare, minilm_tokenizer), token_labels(given, minilm_tokenizer)
    for name in ("special", "separator", "punctuation", "number", "bracket", "quote"):
        assert torch.equal(getattr(bare_labels, name), getattr(labels, name)), name


def test_line_ends_are_separators(plain_tokenizer: Any) -> None:
    given = sequences(plain_tokenizer, "One line\n\nAnother line.\nThird")
    labels = token_labels(given, plain_tokenizer)
    assert set("".join(marked(given, labels.separator))) == {"\n"}
    assert marked(given, labels.sentence_start)[0].strip() == "A"[:1] or labels.sentence_start[0].any()


@pytest.mark.parametrize(
    ("text", "sentences"),
    [
        ("One. Two! “Three?” Four", ["One.", "Two!", "“Three?”", "Four"]),
        ("It costs 3.50 or so. Yes", ["It costs 3.50 or so.", "Yes"]),
        ("Title\n\nText goes\non here.", ["Title", "Text goes\non here."]),
        ("我来了。你呢？好", ["我来了。", "你呢？", "好"]),
        ("", []),
        ("  \n\n ", []),
    ],
)
def test_sentences(text: str, sentences: list[str]) -> None:
    assert [text[a:b] for a, b in sentence_spans(text)] == sentences


def test_a_text_without_spaces_has_words(minilm_tokenizer: Any) -> None:
    given = sequences(minilm_tokenizer, "我 我 我爱。")
    rare = token_labels(given, minilm_tokenizer).rare
    assert [given.token_text(0)[i] for i in rare[0, 0].tolist() if i >= 0] == ["爱"]


class Pieces:
    """A tokenizer of two kinds of signs for a space."""

    def convert_ids_to_tokens(self, token: int) -> str:
        return ["▁the", "ing", "Ġof"][token]

    def decode(self, tokens: list[int], **_: Any) -> str:
        return ["the", "ing", " of"][tokens[0]]


def test_token_texts(plain_tokenizer: Any) -> None:
    ids = plain_tokenizer("the cat", add_special_tokens=False)["input_ids"]
    assert "".join(token_texts(plain_tokenizer, ids)) == "the cat"
    assert token_texts(None, [3, 4]) == ["3", "4"]
    assert token_texts(Pieces(), [0, 1, 2]) == [" the", "ing", " of"]
