"""Tables without rows, and tables put together."""

from typing import Any

import pandas as pd
import pytest

from interp.results.columns import INDEX, number, word, yes_or_no
from interp.results.tables import empty_table, joined


@pytest.mark.parametrize(
    "columns",
    [
        {"n": int, "value": float, "text": str, "called": bool},
        {"n": INDEX, "value": number(0.0), "text": word("a"), "called": yes_or_no()},
    ],
)
def test_a_table_without_rows_knows_its_dtypes(columns: dict[str, Any]) -> None:
    table = empty_table(columns)
    assert len(table) == 0
    assert list(table.columns) == ["n", "value", "text", "called"]
    assert pd.api.types.is_integer_dtype(table["n"])
    assert pd.api.types.is_float_dtype(table["value"])
    assert pd.api.types.is_string_dtype(table["text"])
    assert pd.api.types.is_bool_dtype(table["called"])


def test_empty_tables_give_no_dtype_to_those_with_rows() -> None:
    some = pd.DataFrame({"x": [1, 2]})
    assert joined([pd.DataFrame({"x": []}), some, some])["x"].tolist() == [1, 2, 1, 2]
    assert joined([pd.DataFrame({"x": []}), some])["x"].dtype == some["x"].dtype
    assert list(joined([pd.DataFrame({"x": []})]).columns) == ["x"]
