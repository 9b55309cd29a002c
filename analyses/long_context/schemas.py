"""What the tables look like."""

import pandera.pandas as pa

from interp.results.columns import ENDS, HEAD, INDEX, number, word

_SHARE = number(0.0, 1.0)

SCHEMAS: dict[str, pa.DataFrameSchema] = {
    "retrieval": pa.DataFrameSchema(
        {**HEAD, "length": INDEX, "depth": _SHARE, "value": _SHARE, "ci_low": _SHARE, "ci_high": _SHARE, "n": INDEX},
        strict=True,
    ),
    "copied": pa.DataFrameSchema(
        {"length": INDEX, "depth": _SHARE, "copied": _SHARE, "ci_low": _SHARE, "ci_high": _SHARE, "loss": number(),
         "n": INDEX},
        strict=True,
    ),
    "by_length": pa.DataFrameSchema(
        {**HEAD, "length": INDEX, "metric": word("retrieval", "entropy", "first_position", "expected_distance"),
         "value": number(), **ENDS, "n": INDEX},
        strict=True,
    ),
}  # fmt: skip
