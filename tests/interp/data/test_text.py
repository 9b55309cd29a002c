import itertools

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from transformers import PreTrainedTokenizerFast

from interp.data import Document, read_documents, windows
from interp.errors import UserError


def numbers(*lengths):
    """Documents of token ids that are all different."""
    count = itertools.count()
    return [
        Document(f"n#{i}", "numbers", tokens=np.array([next(count) for _ in range(length)]))
        for i, length in enumerate(lengths)
    ]


@given(st.lists(st.integers(0, 30), min_size=1, max_size=6), st.integers(2, 9), st.integers(1, 12))
def test_windows_of_token_ids(lengths, length, stride):
    documents = numbers(*lengths)
    expected = [
        (name, ids[start : start + length])
        for name, ids in ((d.name, d.tokens.tolist()) for d in documents if d.tokens is not None)
        for start in range(0, len(ids) - length + 1, stride)
    ]
    if not expected:
        with pytest.raises(UserError, match="a window needs"):
            windows(documents, None, length, stride=stride)
        return
    got = windows(documents, None, length, stride=stride)
    assert got.tokens.tolist() == [ids for _, ids in expected]
    assert [got.names[i] for i in got.document.tolist()] == [name for name, _ in expected]
    assert got.valid.all()
    covered = {token for _, ids in expected for token in ids}
    assert got.left_out == sum(lengths) - len(covered)
    assert (f"Left out are {got.left_out:,} of {sum(lengths):,} tokens" in got.describe()) == bool(got.left_out)


def test_left_out_tokens_are_told_by_where_they_were():
    told = windows(numbers(11, 3, 8), None, 4, stride=6).describe()
    # of 11: 0-3 and 6-9, so that 4 and 5 are between and 10 is at the end; of 8: 0-3, so that 4 are at the end
    assert told == (
        "3 sequences of 4 tokens from 2 documents of numbers. "
        "Left out are 10 of 22 tokens: 5 at the ends of documents, 3 in 1 shorter than a window, 2 between windows."
    )


@pytest.mark.parametrize("name", ["plain_tokenizer", "wrapping_tokenizer", "minilm_tokenizer"])
def test_windows_of_text_go_back_to_the_text(name, request):
    tokenizer = request.getfixturevalue(name)
    documents = list(read_documents())
    of_name = {document.name: str(document.text) for document in documents}
    got = windows(documents, tokenizer, 64, vocab_size=len(tokenizer), context=64)
    assert got.text is not None
    special = set(tokenizer.all_special_ids)
    around = tokenizer("a")["input_ids"], tokenizer("a", add_special_tokens=False)["input_ids"]
    n_special = len(around[0]) - len(around[1])
    for i, row in enumerate(got.tokens.tolist()):
        assert got.text[i] in of_name[got.names[int(got.document[i])]]
        pieces = got.token_text(i)
        assert sum(token in special and not piece for token, piece in zip(row, pieces, strict=True)) == n_special
        body = [token for token, piece in zip(row, pieces, strict=True) if piece]
        decoded = tokenizer.decode(body, skip_special_tokens=True)
        if name == "minilm_tokenizer":
            assert "".join(pieces).lower() == "".join(decoded.replace("##", "").split())
        else:
            assert decoded.strip() == got.text[i].strip()
    # and all windows of a document are the document up to what is left at its end
    body = 64 - n_special
    for number, document_name in enumerate(got.names):
        ids = tokenizer(of_name[document_name], add_special_tokens=False, verbose=False)["input_ids"]
        mine = got.select(got.document == number).tokens
        start = 1 if n_special else 0
        assert mine[:, start : start + body].flatten().tolist() == ids[: len(ids) // body * body]


def test_special_tokens_are_around_every_window(wrapping_tokenizer):
    got = windows(["one two three four five six seven eight nine ten eleven"] * 2, wrapping_tokenizer, 6)
    assert set(got.tokens[:, 0].tolist()) == {wrapping_tokenizer.bos_token_id}
    assert set(got.tokens[:, -1].tolist()) == {wrapping_tokenizer.eos_token_id}
    assert got.offsets is not None
    assert got.offsets[:, [0, -1]].sum() == 0
    assert len(got.document.unique()) == 2


def test_slow_tokenizers_have_text_without_offsets(plain_tokenizer):
    class Slow:
        is_fast = False

        def __call__(self, text, return_offsets_mapping=False, **settings):
            assert not return_offsets_mapping
            return plain_tokenizer(text, **settings)

        def decode(self, ids):
            return plain_tokenizer.decode(ids)

    got = windows(["one two three four five six"], Slow(), 3)
    assert got.offsets is None
    assert got.text is not None
    assert "one" in "".join(got.text)


def test_drawn_windows_are_of_as_many_documents_as_possible():
    documents = numbers(400, 40, 40, 40)
    got = windows(documents, None, 10, n=6, seed=1)
    assert len(got) == 6
    counts = np.bincount(got.document.numpy())
    assert len(counts) == 4
    assert counts.max() <= 2
    assert got.document.tolist() == sorted(got.document.tolist())
    assert "6 of 52 windows are read, drawn at random." in got.describe()
    assert windows(documents, None, 10, n=6, seed=1).hash() == got.hash()
    assert windows(documents, None, 10, n=6, seed=2).hash() != got.hash()


@pytest.mark.parametrize(("windows_each", "n_read"), [(1, 32), (3, 11), (100, 8)])
def test_reading_stops_when_enough_windows_are_found(windows_each, n_read):
    read = []

    def endless():
        for i in itertools.count():
            read.append(i)
            yield Document(f"n#{i}", "endless", tokens=np.arange(10 * windows_each))

    got = windows(endless(), None, 10, n=4)
    assert len(got) == len(got.names) == 4
    assert len(read) == n_read + 1  # the last one is not cut
    assert "The source was not read to its end." in got.describe()


def test_few_long_documents_are_read_on():
    pieces = [Document("one", "s", tokens=np.arange(10), is_continued=i > 0) for i in range(100)]
    got = windows(pieces, None, 10, n=4)
    assert "4 of 64 windows are read" in got.describe()
    assert got.names == ("one",)


def test_fewer_windows_than_asked_for_are_told():
    got = windows(numbers(25), None, 10, n=6)
    assert len(got) == 2
    assert "Asked for were 6 windows; there are no more." in got.describe()


def test_pieces_of_a_document_are_one_document():
    first, second = numbers(10, 7)
    pieces = [first, Document(first.name, "numbers", tokens=second.tokens, is_continued=True)]
    got = windows(pieces, None, 4)
    assert got.document.tolist() == [0, 0, 0]
    tail = [first, Document(first.name, "numbers", tokens=np.arange(3), is_continued=True)]
    assert "5 at the ends of documents." in windows(tail, None, 4).describe()


def test_text_longer_than_the_context_warns_of_nothing(plain_tokenizer, caplog):
    limited = PreTrainedTokenizerFast(tokenizer_object=plain_tokenizer.backend_tokenizer, model_max_length=8)
    windows(["one two three four five six seven eight nine ten eleven twelve"], limited, 4)
    assert not caplog.records


@pytest.mark.parametrize(
    ("documents", "settings", "message"),
    [
        (
            numbers(5, 9),
            {"length": 10},
            "needs 10 tokens; the longest of 2 documents of numbers has 9: ask for shorter",
        ),
        ([], {"length": 10}, "there is no document"),
        (numbers(5), {"length": 10, "context": 8}, "a window of 10 is longer than the 8 positions"),
        (numbers(5), {"length": 1}, "at least 2 tokens beside 0 special ones; got 1"),
        (numbers(5), {"length": 2, "stride": 0}, "stride must be at least 1; got 0"),
        (numbers(5), {"length": 2, "n": 0}, "n must be at least 1; got 0"),
        (numbers(5, 5), {"length": 2, "vocab_size": 8}, "0 to 7, the model's vocabulary; n#1 has 8 at position 3"),
        ([Document("d", "s", tokens=np.array([1, -1, 2]))], {"length": 2}, "at least 0; d has -1 at position 1"),
        (["some text"], {"length": 2}, "text#1 is text, which needs a tokenizer"),
    ],
)
def test_what_cannot_be_cut_is_refused(documents, settings, message):
    with pytest.raises(UserError, match=message):
        windows(documents, None, **settings)


def test_special_tokens_count_towards_a_window(wrapping_tokenizer):
    with pytest.raises(UserError, match="at least 2 tokens beside 2 special ones; got 3"):
        windows(["text"], wrapping_tokenizer, 3)
    with pytest.raises(UserError, match="needs 98 tokens beside 2 special ones; the longest of 1 documents of text"):
        windows(["text"], wrapping_tokenizer, 100)
