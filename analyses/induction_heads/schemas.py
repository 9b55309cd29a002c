"""What the tables look like, checked before they are saved; ``heads`` beyond what every analysis's must be."""

from typing import Any

import pandas as pd
import pandera.pandas as pa

from interp.results import HEADS

_INTERVAL = pa.Check(
    lambda table: ~(table["ci_low"] > table["ci_high"]), error="ci_low must not be above ci_high", name="interval"
)


def _whole(*checks: pa.Check) -> pa.Column:
    return pa.Column(None, [pa.Check(pd.api.types.is_integer_dtype, error="must hold whole numbers"), *checks])


def _number(low: float | None = None, high: float | None = None) -> pa.Column:
    checks = [pa.Check(pd.api.types.is_numeric_dtype, error="must hold numbers")]
    checks += [] if low is None else [pa.Check.ge(low)]
    checks += [] if high is None else [pa.Check.le(high)]
    return pa.Column(None, checks, nullable=True)


def _word(*allowed: str) -> pa.Column:
    checks = [pa.Check.isin(allowed)] if allowed else []
    return pa.Column(None, [pa.Check(_holds_text, error="must hold text"), *checks])


def _holds_text(column: Any) -> bool:
    return len(column) == 0 or pd.api.types.is_string_dtype(column)


_INDEX = _whole(pa.Check.ge(0))
_SHARE = _number(0.0, 1.0)
_ENDS = {"ci_low": _number(), "ci_high": _number(), "n": _INDEX}
_CHECKPOINT = {"run": _word(), "is_control": pa.Column(bool), "step": _INDEX, "checkpoint": _word()}
_HEAD = {"site": _word(), "layer": _INDEX, "head": _INDEX}

SCHEMAS = {
    "heads": HEADS.add_columns({"control": _number(), "note": _word()}),
    "kinds": pa.DataFrameSchema(
        {
            **_HEAD,
            "kind": _word("induction", "previous_token", "duplicate_token"),
            "metric": _word("prefix_matching", "previous_token", "duplicate_token"),
            "value": _number(-1e-6, 1 + 1e-6),
            "simultaneous_low": _SHARE,
            "threshold": _SHARE,
            "chance": _SHARE,
            "control": _number(),
            "p_corrected": _SHARE,
            "called": pa.Column(bool),
            "reason": _word(),
        }
    ),
    "loss_by_position": pa.DataFrameSchema(
        {"data": _word(), "copy": _INDEX, "position": _INDEX, "loss": _number(0.0), **_ENDS}, checks=[_INTERVAL]
    ),
    "behaviour": pa.DataFrameSchema(
        {
            "metric": _word("loss_first_copy", "loss_later_copies", "copying_gain", "in_context_learning"),
            "data": _word(),
            "value": _number(),
            **_ENDS,
            "note": _word(),
        },
        checks=[_INTERVAL],
    ),
    "ablation": pa.DataFrameSchema(
        {
            "ablation": _word("resample", "mean", "zero", "pattern_preserving"),
            "heads": _word(),
            "n_heads": _whole(pa.Check.ge(1)),
            "chosen": _word("top", "random"),
            "draw": _INDEX,
            "loss": _number(0.0),
            "loss_change": _number(),
            **_ENDS,
            "note": _word(),
        },
        checks=[_INTERVAL],
    ),
    "composition": pa.DataFrameSchema(
        {
            "source_site": _word(),
            "source_layer": _INDEX,
            "source_head": _INDEX,
            "target_site": _word(),
            "target_layer": _INDEX,
            "target_head": _INDEX,
            "path": _word("key_input", "total"),
            "prefix_matching": _number(),
            "change": _number(-1.0, 1.0),
            **_ENDS,
            "note": _word(),
        },
        checks=[_INTERVAL],
    ),
    "reach": pa.DataFrameSchema(
        {**_HEAD, "period": _whole(pa.Check.ge(2)), "value": _number(), "chance": _number(), **_ENDS, "note": _word()},
        checks=[_INTERVAL],
    ),
    "formation": pa.DataFrameSchema(
        {
            **_CHECKPOINT,
            "metric": _word(
                "loss",
                "in_context_learning",
                "loss_first_copy",
                "loss_later_copies",
                "copying_gain",
            ),
            "data": _word(),
            "value": _number(),
            **_ENDS,
            "note": _word(),
        },
        checks=[_INTERVAL],
    ),
    "formation_heads": pa.DataFrameSchema(
        {
            **_CHECKPOINT,
            **_HEAD,
            "metric": _word("prefix_matching", "previous_token"),
            "data": _word(),
            "value": _number(-1e-6, 1 + 1e-6),
            **_ENDS,
            "chance": _SHARE,
            "control": _number(),
            "note": _word(),
        },
        checks=[_INTERVAL],
    ),
    "patterns": pa.DataFrameSchema(
        {**_HEAD, "data": _word(), "sequence": _INDEX, "query": _INDEX, "key": _INDEX, "weight": _number(0.005, 1.001)}
    ),
    "tokens": pa.DataFrameSchema(
        {"data": _word(), "sequence": _INDEX, "position": _INDEX, "token": _INDEX, "text": _word()}
    ),
}
