"""How numbers and tokens are written."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from reports import words


@pytest.mark.parametrize(
    ("value", "written"),
    [(0.9, "0.90"), (-0.31, "−0.31"), (0.0579, "0.058"), (0.00024, "0.00024"), (0.0, "0.00"), (13.8, "13.80"),
     (12345.6, "12,345.60"), (0.0995, "0.10"), (0.0994, "0.099"), (-1e-9, "−1.0e−9"), (math.nan, "n/a"),
     (-math.inf, "−∞")],
)  # fmt: skip
def test_numbers_have_two_decimals_or_two_significant_digits(value: float, written: str):
    assert words.number(value) == written


@given(st.floats(1e-5, 1e4))
def test_a_written_number_is_within_one_in_its_last_place(value: float):
    written = words.number(value).replace(",", "")
    assert abs(float(written) - value) <= 0.5000001 * 10.0 ** -len(written.partition(".")[2])


def test_nothing_invisible_is_left_in_a_token():
    assert words.visible("a\nb\u202ec\u200bd\x00") == "a↵b[U+202E]c[U+200B]d␀"


@given(st.text())
def test_a_visible_text_stays_visible(text: str):
    shown = words.visible(text)
    assert words.visible(shown) == shown
    assert all(char.isprintable() or char.isspace() for char in shown)


def test_words_are_spaced_where_the_vocabulary_writes_no_spaces():
    assert words.spaced(["Ada", " Quill", "kept"]) == ["Ada", " Quill", "kept"]
    assert words.spaced(["[CLS]", "light", "##house"]) == [" [CLS]", " light", "house"]


def test_lists_and_counts_read_as_prose():
    assert words.join(["a", "b", "c"]) == "a, b and c"
    assert words.some(list("abcdefg"), 3) == "a, b, c and 4 more"
    assert words.count(5120, "head") == "5,120 heads"
    assert [words.part_of(n, 5, "head") for n in (0, 3, 5)] == ["none of 5 heads", "three of 5 heads", "all five heads"]
    assert words.part_of(2, 2, "head") == "both heads"


@pytest.mark.parametrize(
    ("site", "stack"),
    [("blocks.3.attn", ""), ("encoder_blocks.0.attn", "encoder"), ("decoder_blocks.11.self_attn", "decoder"),
     ("decoder_blocks.0.cross_attn", "decoder cross")],
)  # fmt: skip
def test_a_site_says_its_stack(site: str, stack: str):
    assert words.stack_name(site) == stack
