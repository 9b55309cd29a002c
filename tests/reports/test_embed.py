"""Tables inside the page."""

import math
from typing import Any

import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st

from reports import embed
from reports.chapters import TableNote

NUMBERS = st.one_of(st.floats(), st.integers(-(2**40), 2**40).map(float))


@given(st.lists(st.tuples(NUMBERS, st.text(), st.booleans())))
def test_a_table_comes_out_as_it_went_in_to_six_digits(rows: list[tuple[float, str, bool]]):
    table = pd.DataFrame(rows, columns=["number", "text", "yes"]).astype({"number": float, "text": object, "yes": bool})
    numbers, texts, answers = embed.decode(embed.encode(table))
    assert texts == [row[1] for row in rows]
    assert answers == [int(row[2]) for row in rows]
    for found, (value, _, _) in zip(numbers, rows, strict=True):
        if math.isnan(value):
            assert found is None
        elif math.isinf(value):
            assert found == ("∞" if value > 0 else "−∞")
        else:
            assert found == pytest.approx(value, rel=1e-5, abs=0)


@given(st.text(alphabet="</script>&\"'\u2028"))
def test_no_text_can_end_the_script_element_that_holds_it(text: str):
    blob = embed.encode(pd.DataFrame({"text": [text]}))
    assert not set(blob) & set("<>&\"'\u2028")


@pytest.mark.parametrize(
    ("values", "whole"), [([1024.0, None, 512.0], True), ([1024.5, 512.0], False), ([0.0, 1.0], False), ([1, 2], True)]
)
def test_columns_of_counts_are_whole(values: list[float], whole: bool):
    (made,) = embed.embed("a", {"t": pd.DataFrame({"x": values})}, {}, room=10_000)
    columns: Any = made.about["columns"]
    assert columns[0]["whole"] is whole


def test_missing_text_is_missing():
    assert embed.decode(embed.encode(pd.DataFrame({"note": ["a", None]})))[0] == ["a", None]


def test_what_has_no_room_stays_outside_largest_first():
    tables = {"large": pd.DataFrame({"n": range(5000)}), "small": pd.DataFrame({"n": [1]})}
    made = {table.name: table for table in embed.embed("a", tables, {"small": TableNote("few")}, room=200)}
    assert list(made) == ["small", "large"]  # tables with a note come first
    assert made["small"].blob
    assert made["small"].id == "a/small"
    assert not made["large"].blob
    assert made["large"].about["here"] is False


def test_a_table_without_rows_is_listed_only_where_a_note_speaks_of_it():
    none = pd.DataFrame({"n": []})
    made = embed.embed("a", {"noted": none, "unnoted": none}, {"noted": TableNote("none was found")}, room=200)
    assert [table.name for table in made] == ["noted"]


@pytest.mark.parametrize(
    ("columns", "view"),
    [("layer head metric value", "scores"), ("layer head kind called metric value", "kinds"),
     ("layer head period value", "line"), ("site layer head data sequence query key weight", "pattern"),
     ("data sequence position token text", "tokens"), ("ablation heads n_heads", "sets"),
     ("source_layer source_head target_layer target_head change", "edges"), ("layer head size", "rows"), ("a b", "")],
)  # fmt: skip
def test_a_card_knows_a_table_by_its_columns(columns: str, view: str):
    table = pd.DataFrame({column: [0] for column in columns.split()})
    assert embed.embed("a", {"t": table}, {}, room=10_000)[0].view == view
