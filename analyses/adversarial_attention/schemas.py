"""What the tables look like, checked before they are saved. A part that was not asked for leaves its tables empty."""

from collections.abc import Mapping
from typing import Any

import pandas as pd
import pandera.pandas as pa

_INTERVAL = pa.Check(
    lambda table: ~(table["ci_low"] > table["ci_high"]), error="ci_low must not be above ci_high", name="interval"
)
LN2 = 0.6931472


def whole(*checks: pa.Check) -> pa.Column:
    """A column of whole numbers."""
    return pa.Column(None, [pa.Check(pd.api.types.is_integer_dtype, error="must hold whole numbers"), *checks],
                     metadata={"empty": "int64"})  # fmt: skip


def number(low: float | None = None, high: float | None = None) -> pa.Column:
    """A column of numbers within a range, or NaN."""
    checks = [pa.Check(pd.api.types.is_numeric_dtype, error="must hold numbers")]
    checks += [] if low is None else [pa.Check.ge(low)]
    checks += [] if high is None else [pa.Check.le(high)]
    return pa.Column(None, checks, nullable=True, metadata={"empty": "float64"})


def word(*allowed: str) -> pa.Column:
    """A column of text, or of some words."""
    checks = [pa.Check.isin(allowed)] if allowed else []
    return pa.Column(None, [pa.Check(_holds_text, error="must hold text"), *checks], metadata={"empty": "str"})


def yes() -> pa.Column:
    """A column of booleans."""
    return pa.Column(None, [pa.Check(pd.api.types.is_bool_dtype, error="must hold yes or no")],
                     metadata={"empty": "bool"})  # fmt: skip


def _holds_text(column: Any) -> bool:
    return len(column) == 0 or pd.api.types.is_string_dtype(column)


_COUNT = whole(pa.Check.ge(0))
_SHARE = number(-1e-9, 1 + 1e-9)
_JSD = number(-1e-6, LN2 + 1e-6)
ENDS = {"ci_low": number(), "ci_high": number(), "n": _COUNT}
_KIND = {"encoder": word("lstm", "cnn", "average"), "attention": word("tanh", "dot"), "seed": _COUNT}
_CLASS = {**_KIND, "class": word()}

CLASSIFIERS = {
    "classifiers": pa.DataFrameSchema(
        {
            **_KIND,
            "accuracy": _SHARE,
            "auc": _SHARE,
            "f1": _SHARE,
            "chance": _SHARE,
            "best_epoch": _COUNT,
            "epochs": _COUNT,
            "n": _COUNT,
            "learned": yes(),
            "tested": yes(),
            "note": word(),
        }
    ),
    "agreement": pa.DataFrameSchema(
        {
            **_CLASS,
            "pair": word("attention_gradient", "attention_leave_one_out", "gradient_leave_one_out"),
            "value": number(-1.0, 1.0),
            **ENDS,
            "sd": number(0.0),
            "significant": _SHARE,
            "undefined": _COUNT,
        },
        checks=[_INTERVAL],
    ),
    "permutation": pa.DataFrameSchema(
        {
            **_CLASS,
            "max_attention_low": _SHARE,
            "max_attention_high": _SHARE,
            "value": _SHARE,
            **ENDS,
            "median": _SHARE,
        },
        checks=[_INTERVAL],
    ),
    "adversaries": pa.DataFrameSchema(
        {
            **_CLASS,
            "epsilon": number(0.0, 1.0),
            "steps": _COUNT,
            "value": _JSD,
            **ENDS,
            "median": _JSD,
            "above_half": _SHARE,
            "share": number(-1e-6, 1 + 1e-3),
            "among": _JSD,
            "tvd": _SHARE,
            "found": _SHARE,
            "failed": _COUNT,
        },
        checks=[_INTERVAL],
    ),
    "consistent": pa.DataFrameSchema(
        {
            "encoder": word(),
            "attention": word(),
            "kind": word(),
            "weight": number(0.0),
            "seed": _COUNT,
            "accuracy": _SHARE,
            "f1": _SHARE,
            "jsd": _JSD,
            "jsd_low": number(),
            "jsd_high": number(),
            "tvd": _SHARE,
            "tvd_low": number(),
            "tvd_high": number(),
            "n": _COUNT,
            "note": word(),
        }
    ),
    "erasure": pa.DataFrameSchema(
        {**_KIND, "alpha_low": _SHARE, "alpha_high": _SHARE, "value": number(), **ENDS, "negative": _SHARE},
        checks=[_INTERVAL],
    ),
    "flips": pa.DataFrameSchema(
        {**_KIND, "most_attended": word("flips", "stays"), "random": word("flips", "stays"), "value": _SHARE, **ENDS},
        checks=[_INTERVAL],
    ),
    "removal": pa.DataFrameSchema(
        {**_KIND, "order": word(), "value": _SHARE, **ENDS, "never": _SHARE}, checks=[_INTERVAL]
    ),
    "conicity": pa.DataFrameSchema({**_CLASS, "value": number(-1.0, 1.0), **ENDS, "chance": number()}),
    "supporting_facts": pa.DataFrameSchema(
        {**_KIND, "ranking": word("attention", "gradient", "leave_one_out"), "value": _SHARE, **ENDS, "chance": _SHARE},
        checks=[_INTERVAL],
    ),
    "examples": pa.DataFrameSchema(
        {
            **_CLASS,
            "instance": _COUNT,
            "n_words": _COUNT,
            "max_attention": number(),
            "output": number(),
            "tau_gradient": number(),
            "tau_leave_one_out": number(),
            "tau_gradient_leave_one_out": number(),
            "permutation_tvd": number(),
            "jsd": _JSD,
            "share": number(),
            "adversary_tvd": number(),
            "conicity": number(),
            "start_jsd": _JSD,
        }
    ),
    "instances": pa.DataFrameSchema(
        {
            **_KIND,
            "instance": _COUNT,
            "which": word("original", "adversarial"),
            "position": _COUNT,
            "text": word(),
            "weight": _SHARE,
            "output": number(),
            "label": word(),
            "question": word(),
            "jsd": _JSD,
            "tvd": _SHARE,
        }
    ),
}

_HEAD = {"site": word(), "layer": _COUNT, "head": _COUNT}

# The table `heads` is checked by itself, wherever it is
HEADS: dict[str, pa.DataFrameSchema] = {
    "freedom_rows": pa.DataFrameSchema(
        {
            **_HEAD,
            "data": word("text", "repeated"),
            **dict.fromkeys(("sequence", "document", "query", "n_keys", "runs"), _COUNT),
            "ceiling": _JSD,
            "max_weight": _SHARE,
            "searched": yes(),
            "jsd": _JSD,
            "share": _SHARE,
            "tvd": _SHARE,
            "found_by": word(),
            "pinned": yes(),
            "nullspace_jsd": _JSD,
            "nullspace_share": _SHARE,
            "random_values_jsd": _JSD,
            "random_values_share": _SHARE,
            "tau_gradient": number(-1.0, 1.0),
            "tau_knockout": number(-1.0, 1.0),
            **{f"{name}_tvd": _SHARE for name in ("permuted", "uniform", "first_position", "mean_pattern")},
        }
    ),
    "freedom_by_keys": pa.DataFrameSchema(
        {
            "low": _COUNT,
            "high": _COUNT,
            "metric": word("nullspace_share", "freedom_share", "random_values_share"),
            "value": _SHARE,
            **ENDS,
            "rows": _COUNT,
        },
        checks=[_INTERVAL],
    ),
    "freedom_worth": pa.DataFrameSchema(
        {
            "predictor": word("freedom", "importance"),
            "controls": word(),
            "value": number(-1.0 - 1e-9, 1.0 + 1e-9),
            "ci_low": number(),
            "ci_high": number(),
            "p": _SHARE,
            "n_heads": _COUNT,
            "n": _COUNT,
            "note": word(),
        },
        checks=[_INTERVAL],
    ),
    "patterns": pa.DataFrameSchema(
        {
            **_HEAD,
            "data": word(),
            "sequence": _COUNT,
            "query": _COUNT,
            "key": _COUNT,
            "which": word("original", "adversarial"),
            "weight": _SHARE,
            "jsd": _JSD,
            "tvd": _SHARE,
            "answer": word(),
            "probability": _SHARE,
        }
    ),
    "tokens": pa.DataFrameSchema(
        {"data": word(), "sequence": _COUNT, "position": _COUNT, "token": _COUNT, "text": word()}
    ),
}

SCHEMAS = {**CLASSIFIERS, **HEADS}


def with_absent(tables: Mapping[str, pd.DataFrame]) -> dict[str, pd.DataFrame]:
    """The tables, and an empty one for every schema without."""
    return {**{name: empty(name) for name in SCHEMAS if name not in tables}, **tables}


def empty(name: str) -> pd.DataFrame:
    """A table without rows that fits its schema."""
    columns = SCHEMAS[name].columns
    return pd.DataFrame(
        {column: pd.Series(dtype=(of.metadata or {}).get("empty", "object")) for column, of in columns.items()}
    )
