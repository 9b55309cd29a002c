"""What the tables look like."""

import pandera.pandas as pa

_NUMBER = pa.Column(float, nullable=True)
_SHARE = pa.Column(float, pa.Check.in_range(0, 1), nullable=True)
_HEAD = {"site": pa.Column(str), "layer": pa.Column(int), "head": pa.Column(int)}

SCHEMAS: dict[str, pa.DataFrameSchema] = {
    "retrieval": pa.DataFrameSchema(
        {**_HEAD, "length": pa.Column(int), "depth": _SHARE, "value": _SHARE, "ci_low": _SHARE, "ci_high": _SHARE,
         "n": pa.Column(int)},
        strict=True,
    ),
    "copied": pa.DataFrameSchema(
        {"length": pa.Column(int), "depth": _SHARE, "copied": _SHARE, "ci_low": _SHARE, "ci_high": _SHARE,
         "loss": pa.Column(float), "n": pa.Column(int)},
        strict=True,
    ),
    "by_length": pa.DataFrameSchema(
        {**_HEAD, "length": pa.Column(int),
         "metric": pa.Column(str, pa.Check.isin(["retrieval", "entropy", "first_position", "expected_distance"])),
         "value": _NUMBER, "ci_low": _NUMBER, "ci_high": _NUMBER, "n": pa.Column(int)},
        strict=True,
    ),
}  # fmt: skip
