"""What the tables look like."""

import pandera.pandas as pa

from analyses.attention_design.config import TOPICS

_TEXT = pa.Column(str)
_NUMBER = pa.Column(float, nullable=True)

SCHEMAS: dict[str, pa.DataFrameSchema] = {
    "claims": pa.DataFrameSchema(
        {
            "claim": pa.Column(str, pa.Check.str_matches(r"^[a-z0-9-]+$"), unique=True),
            "topic": pa.Column(str, pa.Check.isin([*TOPICS, "model"])),
            "statement": _TEXT, "theory": _TEXT, "said": _TEXT, "measured": _TEXT, "not_shown": _TEXT, "data": _TEXT,
            "verdict": pa.Column(str, pa.Check.isin(["holds", "imprecise", "fails"])),
        },
        strict=True,
    ),
    "measurements": pa.DataFrameSchema(
        {
            "claim": _TEXT, "quantity": _TEXT, "value": pa.Column(float), "ci_low": _NUMBER, "ci_high": _NUMBER,
            "relation": pa.Column(str, pa.Check.isin(["about", "at most", "at least", "equal", "none"])),
            "expected": _NUMBER, "within": _NUMBER, "source": pa.Column(str, pa.Check.isin(["theory", "said"])),
            "agrees": pa.Column(bool), "unit": _TEXT, "n": pa.Column(int, pa.Check.ge(1)),
        },
        strict=True,
    ),
    "panels": pa.DataFrameSchema(
        {
            "claim": _TEXT, "panel": pa.Column(int), "title": _TEXT, "x_label": _TEXT, "y_label": _TEXT,
            "x_scale": pa.Column(str, pa.Check.isin(["linear", "log"])),
            "y_scale": pa.Column(str, pa.Check.isin(["linear", "log"])),
            "kind": pa.Column(str, pa.Check.isin(["lines", "points", "dots"])),
            "reference": _NUMBER, "reference_name": _TEXT, "bands": _TEXT,
        },
        strict=True,
    ),
    "curves": pa.DataFrameSchema(
        {
            "claim": _TEXT, "panel": pa.Column(int), "curve": _TEXT, "theory": pa.Column(bool), "x": pa.Column(float),
            "y": pa.Column(float), "low": _NUMBER, "high": _NUMBER,
        },
        strict=True,
    ),
}  # fmt: skip
