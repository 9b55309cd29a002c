"""Columns that tables of many analyses have, for their schemas."""

from typing import Any

import pandas as pd
import pandera.pandas as pa


def whole(low: int | None = None, high: int | None = None) -> pa.Column:
    """A column of whole numbers within a range (inclusive)."""
    is_whole = pa.Check(pd.api.types.is_integer_dtype, error="must hold whole numbers")
    return pa.Column(None, [is_whole, *_range(low, high)], metadata={"dtype": int})


def number(low: float | None = None, high: float | None = None) -> pa.Column:
    """A column of numbers within a range (inclusive), or NaN."""
    is_number = pa.Check(pd.api.types.is_numeric_dtype, error="must hold numbers")
    return pa.Column(None, [is_number, *_range(low, high)], nullable=True, metadata={"dtype": float})


def word(*allowed: str) -> pa.Column:
    """A column of text, or of some words alone."""
    checks = [pa.Check.isin(allowed)] if allowed else []
    return pa.Column(None, [pa.Check(_holds_text, error="must hold text"), *checks], metadata={"dtype": str})


def yes_or_no() -> pa.Column:
    """A column of booleans."""
    is_bool = pa.Check(pd.api.types.is_bool_dtype, error="must hold yes or no")
    return pa.Column(None, [is_bool], metadata={"dtype": bool})


def _range(low: float | None, high: float | None) -> list[pa.Check]:
    return ([] if low is None else [pa.Check.ge(low)]) + ([] if high is None else [pa.Check.le(high)])


def _holds_text(column: Any) -> bool:
    return len(column) == 0 or pd.api.types.is_string_dtype(column)


INDEX = whole(0)  # zero-based, or a count
HEAD = {"site": word(), "layer": INDEX, "head": INDEX}
TWO_HEADS = {f"{end}_{name}": column for end in ("source", "target") for name, column in HEAD.items()}
ENDS = {"ci_low": number(), "ci_high": number()}
EDGE = {**HEAD, "data": word(), "sequence": INDEX, "query": INDEX, "key": INDEX}  # of a pattern, on `TOKENS`
TOKENS = {"data": word(), "sequence": INDEX, "position": INDEX, "token": INDEX, "text": word()}
INTERVAL = pa.Check(
    lambda table: ~(table["ci_low"] > table["ci_high"]), error="ci_low must not be above ci_high", name="interval"
)  # of a table with both
