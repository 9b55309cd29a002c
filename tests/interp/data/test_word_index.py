"""Word vectors: read, made from texts, drawn."""

from pathlib import Path

import numpy as np
import pytest

from interp.data import WordIndex, random_vectors, read_vectors, text_vectors
from interp.data.word_index import BEGIN, END, PAD, UNKNOWN
from interp.errors import UserError

INDEX = WordIndex.of([["a", "b", "a"], ["c", "a", "b"]])


def test_words_are_numbered_by_how_often_they_occur() -> None:
    assert INDEX.words[4:] == ("a", "b", "c")
    assert INDEX.encode(["b", "zebra"]).tolist() == [BEGIN, 5, UNKNOWN, END]


@pytest.mark.parametrize("first", ["", "4 2\n"])
def test_vectors_are_read_from_text(tmp_path: Path, first: str) -> None:
    file = tmp_path / "v.txt"
    file.write_text(f"{first}a 1 2\nzebra 9 9\nc -1 0.5 \n")
    made = read_vectors(file, INDEX, seed=1)
    assert made.known == 2
    assert made.values[INDEX.numbers["a"]].tolist() == [1, 2]
    assert made.values[INDEX.numbers["c"]].tolist() == [-1, 0.5]
    assert np.isfinite(made.values).all()
    assert not made.values[PAD].any()
    assert made.values[INDEX.numbers["b"]].any()  # drawn


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("a 1 2\nb 1\n", "line 2 must hold a word and 2 numbers; got 1"),
        ("a 1 x\n", "line 1 holds something that is no number"),
        ("A 1 2\n", "has none of the 3 words of the texts"),
        ("a 1 nan\n", "NaN"),
    ],
)
def test_vectors_that_cannot_be_read(tmp_path: Path, content: str, message: str) -> None:
    (tmp_path / "v.txt").write_text(content)
    with pytest.raises(UserError, match=message):
        read_vectors(tmp_path / "v.txt", INDEX)
    with pytest.raises(UserError, match="there is no file of word vectors"):
        read_vectors(tmp_path / "w.txt", INDEX)


def test_vectors_made_from_texts_put_words_of_like_company_together() -> None:
    rng = np.random.default_rng(0)
    sides = {"left": ["l1", "l2", "l3"], "right": ["r1", "r2", "r3"]}
    texts = [list(rng.permutation([*sides[side], "the"])) for side in ("left", "right") * 60]
    index = WordIndex.of(texts)
    made = text_vectors(texts, index, 4, 0.1).values[:, :3]
    unit = made / np.maximum(np.linalg.norm(made, axis=1, keepdims=True), 1e-12)
    near = unit[index.numbers["l1"]] @ unit[index.numbers["l2"]]
    far = unit[index.numbers["l1"]] @ unit[index.numbers["r2"]]
    assert near > far + 0.3
    assert np.array_equal(made, text_vectors(texts, index, 4, 0.1).values[:, :3])


def test_random_vectors() -> None:
    made = random_vectors(WordIndex.of([[f"w{i}" for i in range(500)]]), 20, 0.3, seed=0)
    assert made.values.std() == pytest.approx(0.3, rel=0.05)
    assert not made.values[PAD].any()
