import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from interp.data import Vocabulary, copied_segments
from interp.errors import UserError

LARGE = Vocabulary.of_size(500, special=[0, 1])
MAKES = st.fixed_dictionaries({
    "length": st.integers(14, 40), "n": st.integers(1, 5), "shortest": st.integers(2, 4), "longest": st.integers(4, 6),
    "first": st.integers(0, 9), "seed": st.integers(0, 5), "prefix": st.lists(st.integers(0, 5), max_size=2),
})  # fmt: skip


@given(MAKES)
def test_the_copy_repeats_the_segment_and_comes_after_it(make):
    data = copied_segments(LARGE, **make)
    assert data.tokens.shape == (make["n"], make["length"])
    assert bool(data.valid.all())
    for i, row in enumerate(data.tokens.tolist()):
        start, copy, size = (int(x[i]) for x in (data.source_start, data.copy_start, data.copied_length))
        assert make["shortest"] <= size <= make["longest"]
        assert len(make["prefix"]) <= start <= start + size <= copy <= copy + size <= make["length"]
        assert row[start : start + size] == row[copy : copy + size]
        assert row[: len(make["prefix"])] == make["prefix"]
        assert not set(row[len(make["prefix"]) :]) & {0, 1, *make["prefix"]}
        assert data.copied[i].nonzero().flatten().tolist() == list(range(copy + 1, copy + size))


@given(MAKES)
def test_a_sequence_depends_on_its_number_and_the_seed_alone(make):
    data = copied_segments(LARGE, **make)
    last = copied_segments(LARGE, **make | {"n": 1, "first": make["first"] + make["n"] - 1})
    assert torch.equal(data.tokens[-1:], last.tokens)
    other = copied_segments(LARGE, **make | {"seed": make["seed"] + 1})
    assert not torch.equal(data.tokens, other.tokens)


def test_tokens_are_uniform_and_distances_vary():
    small = Vocabulary.of_size(10, special=[0])
    data = copied_segments(small, 64, 400, prefix=[0])
    counts = torch.bincount(data.tokens[:, 1:].flatten(), minlength=10).double()
    expected = 400 * 63 / 9
    # copies come in pairs, so the variance is at most twice that of independent draws
    assert float(((counts[1:] - expected) ** 2 / expected).sum()) < 2 * 26  # 0.999 quantile of χ² with 8 degrees
    assert counts[0] == 0
    distance = data.copy_start - data.source_start
    assert len(distance.unique()) > 30
    assert sorted(data.copied_length.unique().tolist()) == list(range(8, 32))


def test_rows_can_be_selected_with_what_is_known_of_them():
    data = copied_segments(LARGE, 40, 6, longest=9).select([4, 1])
    assert len(data.source_start) == len(data.copied_length) == 2
    start, copy = int(data.source_start[0]), int(data.copy_start[0])
    assert data.tokens[0, start] == data.tokens[0, copy]


@pytest.mark.parametrize(("changed", "words"), [
    ({"longest": 20}, "fits twice into the 38 positions"), ({"shortest": 1}, "2 tokens or more"),
    ({"n": 0}, "at least 1 sequence"), ({"first": -1}, "counted from 0"),
])  # fmt: skip
def test_what_cannot_be_made_is_refused(changed, words):
    with pytest.raises(UserError, match=words):
        copied_segments(LARGE, **{"length": 40, "n": 2, "longest": 9, "prefix": [0, 1], **changed})
    with pytest.raises(UserError, match="at least 2 usable tokens"):
        copied_segments(Vocabulary.of_size(3, special=[0, 1]), 40, longest=9)
