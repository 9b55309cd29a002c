"""What saved tables must look like, checked with pandera before anything is written."""

from collections.abc import Mapping

import numpy as np
import pandas as pd
import pandera.pandas as pa
from pandera.errors import SchemaErrors

from interp.results.columns import INDEX

_WORD = r"^[a-z][a-z0-9_]*$"
_Verdict = pd.Series | pd.DataFrame | bool  # one a row; pandas types its operators wider than they are


def _score(*, at_least: float | None = None, at_most: float | None = None) -> pa.Column:
    """A column of finite numbers or NaN."""
    checks = [pa.Check(lambda column: ~np.isinf(column.astype(float)), error="must be finite or NaN")]
    if at_least is not None:
        checks.append(pa.Check.ge(at_least))
    if at_most is not None:
        checks.append(pa.Check.le(at_most))
    return pa.Column(None, [_NUMERIC, *checks], nullable=True)


def _text(*checks: pa.Check) -> pa.Column:
    return pa.Column(None, [pa.Check(pd.api.types.is_string_dtype, error="must hold text"), *checks])


def _interval_is_ordered(table: pd.DataFrame) -> _Verdict:
    if not {"ci_low", "ci_high"} <= set(table):
        return True  # that they are missing is said once, by their columns
    return ~(table["ci_low"] > table["ci_high"])


def _absence_has_a_reason(table: pd.DataFrame) -> _Verdict:
    """A score that is NaN says why in ``note``."""
    if "value" not in table:
        return True
    reason = table["note"].fillna("").astype(str).str.strip() if "note" in table else pd.Series("", table.index)
    return table["value"].notna() | (reason != "")


_NUMERIC = pa.Check(pd.api.types.is_numeric_dtype, error="must hold numbers")

#: The table ``heads`` of every analysis that scores heads, in long form; further columns are allowed.
HEADS = pa.DataFrameSchema(
    {
        "site": _text(),
        "layer": INDEX,
        "head": INDEX,
        "metric": _text(pa.Check.str_matches(_WORD)),
        "data": _text(pa.Check.str_matches(_WORD)),
        "value": _score(),
        "ci_low": _score(),
        "ci_high": _score(),
        "chance": _score(),
        "p_corrected": _score(at_least=0.0, at_most=1.0),
        "n": _score(at_least=0.0),
    },
    checks=[
        pa.Check(_interval_is_ordered, name="ci_low <= ci_high", error="ci_low must not be above ci_high"),
        pa.Check(_absence_has_a_reason, name="note", error="a value that is NaN needs its reason in the column `note`"),
    ],
    name="heads",
)


def check_tables(
    analysis: str,
    tables: Mapping[str, pd.DataFrame],
    schemas: Mapping[str, pa.DataFrameSchema] | None = None,
) -> None:
    """Check tables against the schema of ``heads`` and the analysis's own (its ``SCHEMAS``).

    Raises:
        ValueError: a table breaks its schema (naming table, column and the first offending values), or a schema is
            for a table that is not there.
    """
    wanted = {**({"heads": HEADS} if "heads" in tables else {}), **(schemas or {})}
    if missing := sorted(set(wanted) - set(tables)):
        raise ValueError(f"{analysis}: no table {', '.join(missing)}, which its SCHEMAS describe; got {sorted(tables)}")
    for name, schema in wanted.items():
        if name == "heads" and schema is not HEADS:
            _check(analysis, name, tables[name], HEADS)
        _check(analysis, name, tables[name], schema)


def _check(analysis: str, name: str, table: pd.DataFrame, schema: pa.DataFrameSchema) -> None:
    try:
        schema.validate(table, lazy=True)
    except SchemaErrors as error:
        cases = error.failure_cases
        of_rows = (cases["schema_context"] == "DataFrameSchema") & cases["index"].notna()
        faults = [
            f"row {case.index}: {case.check}" for case in cases[of_rows].drop_duplicates("check").itertuples(False)
        ]
        of_columns = cases[~of_rows].drop_duplicates(["column", "check"])
        faults += [f"{case.column}: {case.check} (got {case.failure_case})" for case in of_columns.itertuples()]
        raise ValueError(f"{analysis}: the table {name} breaks its schema: {'; '.join(faults)}") from error
