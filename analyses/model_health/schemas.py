"""What the tables look like, checked before they are saved; ``heads`` beyond what every analysis's must be."""

import pandas as pd
import pandera.pandas as pa

from analyses.model_health.checks import VERDICTS
from analyses.model_health.config import CHECKS
from analyses.model_health.scores import METRICS
from interp.results import HEADS

_TEXT = pa.Column(None, [pa.Check(lambda column: len(column) == 0 or pd.api.types.is_string_dtype(column))])
_NUMBER = pa.Column(None, [pa.Check(pd.api.types.is_numeric_dtype, error="must hold numbers")], nullable=True)
_INDEX = pa.Column(None, [pa.Check.ge(0)], nullable=True)
_BYTES = pa.Column(None, [pa.Check.ge(0)])


def _word(*allowed: str) -> pa.Column:
    return pa.Column(None, [pa.Check.isin(allowed)])


SCHEMAS = {
    "checks": pa.DataFrameSchema(
        {
            "family": _word(*{check.family for check in CHECKS.values()}),
            "check": _word(*CHECKS),
            "question": _TEXT,
            "site": _TEXT,
            "layer": _INDEX,
            "head": _INDEX,
            "value": _NUMBER,
            "unit": _TEXT,
            "warn_at": _NUMBER,
            "fail_at": _NUMBER,
            "worse": _word("above", "below"),
            "verdict": _word(*VERDICTS),
            "advice": _TEXT,
            "note": _TEXT,
        },
        checks=[
            pa.Check(
                lambda table: (table["verdict"] != "not applicable") | (table["note"] != ""),
                error="a check that is not applicable needs its reason in the column `note`",
            )
        ],
    ),
    "heads": HEADS.add_columns({"metric": _word(*METRICS, "told_by_position"), "note": _TEXT}),
    "depth": pa.DataFrameSchema(
        {
            "site": _TEXT,
            "layer": _INDEX,
            "metric": _word("activation_rms", "relative_gradient", "gradient_norm", "gradient_to_queries_and_keys"),
            "value": _NUMBER,
        }
    ),
    "cost": pa.DataFrameSchema(
        {"quantity": _TEXT, "value": _BYTES, "unit": _word("FLOP", "bytes"), "kv_heads": _BYTES, "context": _BYTES,
         "requests": _BYTES}
    ),
    "memory": pa.DataFrameSchema({"context": _BYTES, "what": _TEXT, "bytes": _BYTES}),
}  # fmt: skip
