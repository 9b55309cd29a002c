import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from interp.data import Vocabulary, prefix_tokens, repeated_tokens, suffix_tokens, unrepeated_tokens
from interp.errors import UserError

LARGE = Vocabulary.of_size(200, special=[0, 1])
MAKES = {
    "period": st.integers(2, 13),
    "repeats": st.integers(2, 5),
    "n": st.integers(1, 3),
    "seed": st.integers(0, 5),
    "prefix": st.lists(st.integers(0, 5), max_size=3),
    "suffix": st.lists(st.integers(0, 5), max_size=2),
}


def earlier(row, i):
    """Positions before i that hold the same token, by looking at all of them."""
    return {j for j in range(i) if row[j] == row[i]}


def targets_of(table, i):
    return {int(t) for t in table[i] if t >= 0}


@given(st.fixed_dictionaries(MAKES))
def test_targets_are_all_tokens_after_a_previous_occurrence(make):
    sequences = repeated_tokens(LARGE, **make)
    assert sequences.tokens.shape == (
        make["n"],
        len(make["prefix"]) + make["period"] * make["repeats"] + len(make["suffix"]),
    )
    inside = range(len(make["prefix"]), sequences.n_positions - len(make["suffix"]))
    for number, row in enumerate(sequences.tokens.tolist()):
        for i in range(sequences.n_positions):
            found = earlier(row, i) if i in inside else set()
            assert targets_of(sequences.duplicate_targets[number], i) == found
            assert targets_of(sequences.induction_targets[number], i) == {j + 1 for j in found}
            assert sequences.eligible[number, i] == bool(found)


@given(st.fixed_dictionaries(MAKES))
def test_control_has_the_same_make_and_targets_but_no_token_twice(make):
    repeated, control = repeated_tokens(LARGE, **make), unrepeated_tokens(LARGE, **make)
    assert control.induction_targets.equal(repeated.induction_targets)
    assert control.duplicate_targets.equal(repeated.duplicate_targets)
    assert control.eligible.equal(repeated.eligible)
    first_copy_ends = repeated.start + repeated.period
    assert control.tokens[:, :first_copy_ends].equal(repeated.tokens[:, :first_copy_ends])
    inside = slice(control.start, control.start + control.period * control.repeats)
    for row in control.tokens.tolist():
        assert len(set(row[inside])) == control.period * control.repeats
        assert not set(row[inside]) & {*make["prefix"], *make["suffix"], 0, 1}
        assert row[: control.start] == make["prefix"]
        assert row[inside.stop :] == make["suffix"]


@given(st.integers(2, 9), st.integers(2, 4), st.integers(4, 30), st.integers(0, 5))
def test_small_vocabularies(period, repeats, size, seed):
    vocabulary = Vocabulary.of_size(size)
    repeated = repeated_tokens(vocabulary, period, repeats, n=2, seed=seed)
    control = unrepeated_tokens(vocabulary, period, repeats, n=2, seed=seed)
    assert bool(repeated.notes) == (size < period)
    assert bool(control.notes) == (size < period * repeats)
    assert control.tokens[:, :period].equal(repeated.tokens[:, :period])
    for sequences, occurs in ((repeated, True), (control, False)):
        keys = sequences.duplicate_targets
        same = sequences.tokens[:, :, None] == sequences.tokens[:, None, :].gather(
            2, keys.clamp(min=0).flatten(1)[:, None, :]
        ).reshape(keys.shape)
        assert (same == occurs)[keys >= 0].all()


def test_a_sequence_does_not_depend_on_the_others_nor_on_the_period():
    few, many = repeated_tokens(LARGE, 10, n=2, seed=3), repeated_tokens(LARGE, 10, n=6, seed=3)
    assert many.tokens[:2].equal(few.tokens)
    assert repeated_tokens(LARGE, 20, n=2, seed=3).tokens[:, :10].equal(few.tokens[:, :10])
    assert not repeated_tokens(LARGE, 10, n=2, seed=4).tokens.equal(few.tokens)
    assert not many.tokens[0].equal(many.tokens[1])


def test_every_usable_token_is_drawn_equally_often():
    sequences = repeated_tokens(LARGE, 20, n=1000)
    counts = torch.bincount(sequences.tokens[:, :20].flatten(), minlength=200)
    assert counts[:2].tolist() == [0, 0]
    mean = 1000 * 20 / 198
    assert ((counts[2:] - mean).abs() < 5 * mean**0.5).all()


def test_real_conventions(minilm_tokenizer):
    vocabulary = Vocabulary.from_tokenizer(minilm_tokenizer)
    prefix, suffix = prefix_tokens(minilm_tokenizer), suffix_tokens(minilm_tokenizer)
    sequences = repeated_tokens(vocabulary, 8, n=2, prefix=prefix, suffix=suffix, context=18)
    assert sequences.tokens[:, 0].tolist() == prefix * 2
    assert sequences.tokens[:, -1].tolist() == suffix * 2
    assert sequences.induction_targets[0, 9].tolist() == [2]


def test_description_says_how_they_were_made():
    told = repeated_tokens(LARGE, 8, 3, n=2, seed=7, prefix=[0]).describe()
    assert told == (
        "2 sequences of 25 tokens from repeated random tokens (period 8, 3 copies, seed 7, drawn from 198 of 200 token "
        "ids (without 2 special or added))."
    )


@pytest.mark.parametrize("make", [repeated_tokens, unrepeated_tokens])
@pytest.mark.parametrize(
    ("vocabulary", "settings", "message"),
    [
        (LARGE, {"period": 1}, "period must be at least 2 tokens; got 1"),
        (LARGE, {"period": 4, "repeats": 1}, "repeats must be at least 2"),
        (LARGE, {"period": 4, "n": 0}, "at least 1 sequence"),
        (
            LARGE,
            {"period": 40, "context": 64, "prefix": [0]},
            "2 repeats of period 40 with 1 special tokens take 81 positions; the model takes 64: .* at most 31 fits",
        ),
        (LARGE, {"period": 4, "suffix": [200]}, r"within the vocabulary, 0 to 199; got \[200\]"),
        (Vocabulary.of_size(3, special=[0]), {"period": 4, "prefix": [1]}, "at least 2 usable tokens.* 3 has 1"),
    ],
)
def test_what_cannot_be_made_is_refused(make, vocabulary, settings, message):
    with pytest.raises(UserError, match=message):
        make(vocabulary, **settings)


def test_the_control_needs_a_token_for_each_copy():
    with pytest.raises(UserError, match="control of 4 repeats needs as many usable tokens; the vocabulary has 3"):
        unrepeated_tokens(Vocabulary.of_size(3), 2, repeats=4)
