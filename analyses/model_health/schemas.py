"""What the tables look like, checked before they are saved; ``heads`` beyond what every analysis's must be."""

import pandera.pandas as pa

from analyses.model_health.checks import VERDICTS
from analyses.model_health.config import CHECKS
from analyses.model_health.scores import METRICS
from interp.results import HEADS
from interp.results.columns import number, word

_INDEX = pa.Column(None, [pa.Check.ge(0)], nullable=True)
_BYTES = pa.Column(None, [pa.Check.ge(0)])

SCHEMAS = {
    "checks": pa.DataFrameSchema(
        {
            "family": word(*{check.family for check in CHECKS.values()}),
            "check": word(*CHECKS),
            "question": word(),
            "site": word(),
            "layer": _INDEX,
            "head": _INDEX,
            "value": number(),
            "unit": word(),
            "warn_at": number(),
            "fail_at": number(),
            "worse": word("above", "below"),
            "verdict": word(*VERDICTS),
            "advice": word(),
            "note": word(),
        },
        checks=[
            pa.Check(
                lambda table: (table["verdict"] != "not applicable") | (table["note"] != ""),
                error="a check that is not applicable needs its reason in the column `note`",
            )
        ],
    ),
    "heads": HEADS.add_columns({"metric": word(*METRICS, "told_by_position"), "note": word()}),
    "depth": pa.DataFrameSchema(
        {
            "site": word(),
            "layer": _INDEX,
            "metric": word("activation_rms", "relative_gradient", "gradient_norm", "gradient_to_queries_and_keys"),
            "value": number(),
        }
    ),
    "cost": pa.DataFrameSchema(
        {"quantity": word(), "value": _BYTES, "unit": word("FLOP", "bytes"), "kv_heads": _BYTES, "context": _BYTES,
         "requests": _BYTES}
    ),
    "memory": pa.DataFrameSchema({"context": _BYTES, "what": word(), "bytes": _BYTES}),
}  # fmt: skip
