"""What the tables look like, checked before they are saved; ``heads`` beyond what every analysis's must be.

``data`` in ``heads`` is ``text``, ``other_text`` (of another kind), ``treebank``, ``weights``, or, for a model that
came without a tokenizer and without token ids, ``repeated`` (random tokens of which some come again).
"""

from typing import Any

import pandas as pd
import pandera.pandas as pa

from interp.results import HEADS

KINDS = (
    "positional", "previous_token", "current_token", "sink", "separator", "duplicate_token", "induction", "rare_word",
    "bracket_matching", "syntactic", "coreference", "broad", "redundant",
)  # fmt: skip
DIRECTIONS = ("dependent→head", "head→dependent")

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
_SHARE = _number(-1e-6, 1 + 1e-6)
_DIFFERENCE = {"difference": _number(-1.0, 1.0), "difference_low": _number(), "difference_high": _number()}
_HEAD = {"site": _word(), "layer": _INDEX, "head": _INDEX}

SCHEMAS = {
    "heads": HEADS.add_columns({"control": _number(), "half": _word("all", "reporting"), "note": _word()}),
    "kinds": pa.DataFrameSchema(
        {
            **_HEAD,
            "kind": _word(*KINDS),
            "metric": _word(),
            "detail": _word(),
            "value": _number(),
            "simultaneous_low": _number(),
            "threshold": _number(),
            "chance": _number(),
            "control": _number(),
            "p_corrected": _number(0.0, 1.0),
            "called": pa.Column(bool),
            "reason": _word(),
        }
    ),
    "distances": pa.DataFrameSchema({**_HEAD, "low": _whole(), "high": _whole(), "mass": _SHARE}),
    "offsets": pa.DataFrameSchema(
        {
            **_HEAD,
            "offset": _whole(pa.Check.ge(-8), pa.Check.le(8)),
            "share": _SHARE,
            "mass": _SHARE,
            "chance": _SHARE,
            "n": _INDEX,
        }
    ),
    "relations": pa.DataFrameSchema(
        {
            **_HEAD,
            "relation": _word(),
            "direction": _word(*DIRECTIONS),
            "accuracy": _SHARE,
            "ci_low": _number(),
            "ci_high": _number(),
            "baseline": _SHARE,
            "baseline_offset": _whole(),
            **_DIFFERENCE,
            "p_corrected": _number(0.0, 1.0),
            "n": _INDEX,
            "possible": _SHARE,
            "best": pa.Column(bool),
            "called": pa.Column(bool),
        },
        checks=[_INTERVAL],
    ),
    "coreference": pa.DataFrameSchema(
        {
            **_HEAD,
            "accuracy": _SHARE,
            "ci_low": _number(),
            "ci_high": _number(),
            "nearest": _SHARE,
            "head_match": _SHARE,
            **_DIFFERENCE,
            "p_corrected": _number(0.0, 1.0),
            "n": _INDEX,
            "called": pa.Column(bool),
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
            "path": _word("query", "key", "value"),
            "distance": _number(0.0),
            "value": _SHARE,
            "expected": _SHARE,
            "excess": _number(),
            "note": _word(),
        }
    ),
    "stability": pa.DataFrameSchema(
        {
            "metric": _word(),
            "between": _word("halves", "text kinds"),
            "spearman": _number(-1.0, 1.0),
            "ci_low": _number(),
            "ci_high": _number(),
            "n_heads": _INDEX,
        },
        checks=[_INTERVAL],
    ),
    "divergences": pa.DataFrameSchema(
        {
            **{f"{name}_{side}": column for side in "ab" for name, column in _HEAD.items()},
            "jsd": _number(-1e-6, 0.6932),
            "ci_low": _number(),
            "ci_high": _number(),
            "jsd_without_sink": _number(-1e-6, 0.6932),
            "n": _INDEX,
        },
        checks=[_INTERVAL],
    ),
    "groups": pa.DataFrameSchema(
        {
            **_HEAD,
            "stack": _word(),
            "cluster": _INDEX,
            "medoid": pa.Column(bool),
            "silhouette": _number(-1.0, 1.0),
            "stability": _SHARE,
            "x": _number(),
            "y": _number(),
        }
    ),
    "clusterings": pa.DataFrameSchema(
        {
            "stack": _word(),
            "clusters": _whole(pa.Check.ge(2)),
            "silhouette": _number(-1.0, 1.0),
            "stability": _number(-1.0, 1.0),
            "ci_low": _number(),
            "ci_high": _number(),
            "stress": _number(0.0),
            "chosen": pa.Column(bool),
        },
        checks=[_INTERVAL],
    ),
    "patterns": pa.DataFrameSchema(
        {**_HEAD, "data": _word(), "sequence": _INDEX, "query": _INDEX, "key": _INDEX, "weight": _number(0.0, 1.001)}
    ),
    "tokens": pa.DataFrameSchema(
        {"data": _word(), "sequence": _INDEX, "position": _INDEX, "token": _INDEX, "text": _word()}
    ),
}
