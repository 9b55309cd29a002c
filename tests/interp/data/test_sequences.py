import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from interp.data import Sequences, Vocabulary, repeated_tokens

ROWS = [[5, 6, 7], [8], [9, 10, 11, 12], [13, 14]]


def ragged(**known):
    return Sequences.padded(ROWS, source="lists", **known)


def rows_of(sequences):
    return [row[valid].tolist() for row, valid in zip(sequences.tokens, sequences.valid, strict=True)]


def test_padding_is_on_the_right_and_not_valid():
    sequences = ragged()
    assert rows_of(sequences) == ROWS
    assert sequences.tokens.shape == (4, 4)
    assert sequences.lengths.tolist() == [3, 1, 4, 2]
    assert sequences.valid[1].tolist() == [True, False, False, False]
    assert sequences.document.tolist() == [0, 1, 2, 3]


@given(st.lists(st.lists(st.integers(0, 9), min_size=1, max_size=6), min_size=1, max_size=9), st.integers(1, 10))
def test_batches_are_the_sequences_again(rows, size):
    sequences = Sequences.padded(rows, source="lists")
    batches = list(sequences.batches(size))
    assert [row for batch in batches for row in rows_of(batch)] == rows
    assert all(batch.n_positions == int(batch.lengths.max()) for batch in batches)
    assert {len(batch) for batch in batches[:-1]} <= {size}


def test_selection_takes_every_field_along():
    offsets = torch.arange(4 * 4 * 2).reshape(4, 4, 2)
    sequences = ragged(document=[0, 0, 1, 1], text=("a", "b", "c", "d"), offsets=offsets)
    for index in ([2, 0], torch.tensor([2, 0])):
        chosen = sequences.select(index)
        assert rows_of(chosen) == [ROWS[2], ROWS[0]]
        assert chosen.document.tolist() == [1, 0]
        assert chosen.text == ("c", "a")
        assert chosen.offsets is not None
        assert chosen.offsets.equal(offsets[[2, 0]])
    assert rows_of(sequences.select([False, True, False, True])) == [ROWS[1], ROWS[3]]
    assert rows_of(sequences.select(slice(1, 3))) == ROWS[1:3]


def test_batches_of_repeated_tokens_keep_their_targets():
    sequences = repeated_tokens(Vocabulary.of_size(50), 5, 3, n=5)
    targets = torch.cat([batch.induction_targets for batch in sequences.batches(2)])
    assert targets.equal(sequences.induction_targets)


def test_hash_is_of_tokens_places_and_documents():
    first = ragged()
    assert first.hash() == ragged().hash()
    other_padding = Sequences(first.tokens.masked_fill(~first.valid, 99), first.valid, first.document, "elsewhere")
    assert other_padding.hash() == first.hash()
    tokens = first.tokens.clone()
    tokens[2, 3] += 1
    changed = [
        Sequences(tokens, first.valid, first.document, "lists"),
        ragged(document=[0, 0, 1, 2]),
        first.select([1, 0, 2, 3]),
        first.cut(3),
    ]
    assert len({first.hash(), *(each.hash() for each in changed)}) == 5


def test_description_counts_sequences_tokens_and_documents():
    assert ragged().describe() == "4 sequences of 1 to 4 tokens from lists."
    told = ragged(document=[0, 0, 1, 1], notes=("Two were left out.",)).describe()
    assert told == "4 sequences of 1 to 4 tokens from 2 documents of lists. Two were left out."
    assert ragged().select([0]).describe().startswith("1 sequence of 3 tokens")


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"tokens": torch.zeros(2, 3)}, "must be int64 and valid bool; got torch.float32"),
        ({"valid": torch.ones(2, 4, dtype=torch.bool)}, r"valid must be \[2, 3\]"),
        ({"document": torch.zeros(3, dtype=torch.int64)}, r"document \[2\]; got \[2, 3\] and \[3\]"),
        ({"text": ("a",)}, "one string per sequence, 2; got 1"),
        ({"offsets": torch.zeros(2, 3, dtype=torch.int64)}, r"offsets must be \[2, 3, 2\]"),
        ({"valid": torch.tensor([[True, True, True], [False] * 3])}, "sequence 1 has no valid token"),
    ],
)
def test_what_does_not_fit_together_is_refused(change, message):
    fields = {
        "tokens": torch.zeros(2, 3, dtype=torch.int64),
        "valid": torch.ones(2, 3, dtype=torch.bool),
        "document": torch.arange(2),
        "source": "test",
    }
    with pytest.raises(ValueError, match=message):
        Sequences(**{**fields, **change})


@pytest.mark.parametrize("rows", [[], [[1], []]])
def test_empty_sequences_are_refused(rows):
    with pytest.raises(ValueError, match="at least one token each"):
        Sequences.padded(rows, source="test")


def test_a_batch_holds_something():
    with pytest.raises(ValueError, match="at least 1 sequence; got size 0"):
        next(ragged().batches(0))


def test_text_of_tokens_needs_text():
    with pytest.raises(ValueError, match="lists do not know their text"):
        ragged().token_text(0)
