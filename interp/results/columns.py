"""Columns that tables of many analyses have, for their schemas."""

from typing import Any

import pandas as pd
import pandera.pandas as pa


def whole(*checks: pa.Check) -> pa.Column:
    """A column of whole numbers."""
    return pa.Column(None, [pa.Check(pd.api.types.is_integer_dtype, error="must hold whole numbers"), *checks])


def number(low: float | None = None, high: float | None = None) -> pa.Column:
    """A column of numbers within a range (inclusive), or NaN."""
    checks = [pa.Check(pd.api.types.is_numeric_dtype, error="must hold numbers")]
    checks += [] if low is None else [pa.Check.ge(low)]
    checks += [] if high is None else [pa.Check.le(high)]
    return pa.Column(None, checks, nullable=True)


def word(*allowed: str) -> pa.Column:
    """A column of text, or of some words alone."""
    checks = [pa.Check.isin(allowed)] if allowed else []
    return pa.Column(None, [pa.Check(_holds_text, error="must hold text"), *checks])


def _holds_text(column: Any) -> bool:
    return len(column) == 0 or pd.api.types.is_string_dtype(column)


INDEX = whole(pa.Check.ge(0))  # zero-based, or a count
HEAD = {"site": word(), "layer": INDEX, "head": INDEX}
INTERVAL = pa.Check(
    lambda table: ~(table["ci_low"] > table["ci_high"]), error="ci_low must not be above ci_high", name="interval"
)  # of a table with both
