"""What the tables look like, checked before they are saved. A part that was not asked for leaves its tables empty."""

from collections.abc import Mapping

import pandas as pd
import pandera.pandas as pa

from interp.results.columns import EDGE, ENDS, HEAD, INDEX, INTERVAL, TOKENS, number, word, yes_or_no
from interp.results.tables import empty_table

LN2 = 0.6931472

_SHARE = number(-1e-9, 1 + 1e-9)
_JSD = number(-1e-6, LN2 + 1e-6)
_ENDS = {**ENDS, "n": INDEX}
_KIND = {"encoder": word("lstm", "cnn", "average"), "attention": word("tanh", "dot"), "seed": INDEX}
_CLASS = {**_KIND, "class": word()}

CLASSIFIERS = {
    "classifiers": pa.DataFrameSchema(
        {
            **_KIND,
            "accuracy": _SHARE,
            "auc": _SHARE,
            "f1": _SHARE,
            "chance": _SHARE,
            "best_epoch": INDEX,
            "epochs": INDEX,
            "n": INDEX,
            "learned": yes_or_no(),
            "tested": yes_or_no(),
            "note": word(),
        }
    ),
    "agreement": pa.DataFrameSchema(
        {
            **_CLASS,
            "pair": word("attention_gradient", "attention_leave_one_out", "gradient_leave_one_out"),
            "value": number(-1.0, 1.0),
            **_ENDS,
            "sd": number(0.0),
            "significant": _SHARE,
            "undefined": INDEX,
        },
        checks=[INTERVAL],
    ),
    "permutation": pa.DataFrameSchema(
        {
            **_CLASS,
            "max_attention_low": _SHARE,
            "max_attention_high": _SHARE,
            "value": _SHARE,
            **_ENDS,
            "median": _SHARE,
        },
        checks=[INTERVAL],
    ),
    "adversaries": pa.DataFrameSchema(
        {
            **_CLASS,
            "epsilon": number(0.0, 1.0),
            "steps": INDEX,
            "value": _JSD,
            **_ENDS,
            "median": _JSD,
            "above_half": _SHARE,
            "share": number(-1e-6, 1 + 1e-3),
            "among": _JSD,
            "tvd": _SHARE,
            "found": _SHARE,
            "failed": INDEX,
        },
        checks=[INTERVAL],
    ),
    "consistent": pa.DataFrameSchema(
        {
            "encoder": word(),
            "attention": word(),
            "kind": word(),
            "weight": number(0.0),
            "seed": INDEX,
            "accuracy": _SHARE,
            "f1": _SHARE,
            "jsd": _JSD,
            "jsd_low": number(),
            "jsd_high": number(),
            "tvd": _SHARE,
            "tvd_low": number(),
            "tvd_high": number(),
            "n": INDEX,
            "note": word(),
        }
    ),
    "erasure": pa.DataFrameSchema(
        {**_KIND, "alpha_low": _SHARE, "alpha_high": _SHARE, "value": number(), **_ENDS, "negative": _SHARE},
        checks=[INTERVAL],
    ),
    "flips": pa.DataFrameSchema(
        {**_KIND, "most_attended": word("flips", "stays"), "random": word("flips", "stays"), "value": _SHARE, **_ENDS},
        checks=[INTERVAL],
    ),
    "removal": pa.DataFrameSchema(
        {**_KIND, "order": word(), "value": _SHARE, **_ENDS, "never": _SHARE}, checks=[INTERVAL]
    ),
    "conicity": pa.DataFrameSchema({**_CLASS, "value": number(-1.0, 1.0), **_ENDS, "chance": number()}),
    "supporting_facts": pa.DataFrameSchema(
        {
            **_KIND,
            "ranking": word("attention", "gradient", "leave_one_out"),
            "value": _SHARE,
            **_ENDS,
            "chance": _SHARE,
        },
        checks=[INTERVAL],
    ),
    "examples": pa.DataFrameSchema(
        {
            **_CLASS,
            "instance": INDEX,
            "n_words": INDEX,
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
            "instance": INDEX,
            "which": word("original", "adversarial"),
            "position": INDEX,
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

# The table `heads` is checked by itself, wherever it is
HEADS: dict[str, pa.DataFrameSchema] = {
    "freedom_rows": pa.DataFrameSchema(
        {
            **HEAD,
            "data": word("text", "repeated"),
            **dict.fromkeys(("sequence", "document", "query", "n_keys", "runs"), INDEX),
            "ceiling": _JSD,
            "max_weight": _SHARE,
            "searched": yes_or_no(),
            "jsd": _JSD,
            "share": _SHARE,
            "tvd": _SHARE,
            "found_by": word(),
            "pinned": yes_or_no(),
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
            "low": INDEX,
            "high": INDEX,
            "metric": word("nullspace_share", "freedom_share", "random_values_share"),
            "value": _SHARE,
            **_ENDS,
            "rows": INDEX,
        },
        checks=[INTERVAL],
    ),
    "freedom_worth": pa.DataFrameSchema(
        {
            "predictor": word("freedom", "importance"),
            "controls": word(),
            "value": number(-1.0 - 1e-9, 1.0 + 1e-9),
            **ENDS,
            "p": _SHARE,
            "n_heads": INDEX,
            "n": INDEX,
            "note": word(),
        },
        checks=[INTERVAL],
    ),
    "patterns": pa.DataFrameSchema(
        {
            **EDGE,
            "which": word("original", "adversarial"),
            "weight": _SHARE,
            "jsd": _JSD,
            "tvd": _SHARE,
            "answer": word(),
            "probability": _SHARE,
        }
    ),
    "tokens": pa.DataFrameSchema(TOKENS),
}

SCHEMAS = {**CLASSIFIERS, **HEADS}


def with_absent(tables: Mapping[str, pd.DataFrame]) -> dict[str, pd.DataFrame]:
    """The tables, and an empty one for every schema without."""
    return {**{name: empty(name) for name in SCHEMAS if name not in tables}, **tables}


def empty(name: str) -> pd.DataFrame:
    """A table without rows that fits its schema."""
    return empty_table(SCHEMAS[name].columns)
