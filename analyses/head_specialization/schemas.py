"""What the tables look like, checked before they are saved; ``heads`` beyond what every analysis's must be.

``data`` in ``heads`` is ``text``, ``other_text`` (of another kind), ``treebank``, ``weights``, or, for a model that
came without a tokenizer and without token ids, ``repeated`` (random tokens of which some come again).
"""

import pandera.pandas as pa

from interp.results import HEADS
from interp.results.columns import EDGE, ENDS, HEAD, INDEX, INTERVAL, TOKENS, TWO_HEADS, number, whole, word, yes_or_no

KINDS = (
    "positional", "previous_token", "current_token", "sink", "separator", "duplicate_token", "induction", "rare_word",
    "bracket_matching", "syntactic", "coreference", "broad", "redundant",
)  # fmt: skip
DIRECTIONS = ("dependent→head", "head→dependent")

_SHARE = number(-1e-6, 1 + 1e-6)
_DIFFERENCE = {"difference": number(-1.0, 1.0), "difference_low": number(), "difference_high": number()}

SCHEMAS = {
    "heads": HEADS.add_columns({"control": number(), "half": word("all", "reporting"), "note": word()}),
    "kinds": pa.DataFrameSchema(
        {
            **HEAD,
            "kind": word(*KINDS),
            "metric": word(),
            "detail": word(),
            "value": number(),
            "simultaneous_low": number(),
            "threshold": number(),
            "chance": number(),
            "control": number(),
            "p_corrected": number(0.0, 1.0),
            "called": yes_or_no(),
            "reason": word(),
        }
    ),
    "distances": pa.DataFrameSchema({**HEAD, "low": whole(), "high": whole(), "mass": _SHARE}),
    "offsets": pa.DataFrameSchema(
        {
            **HEAD,
            "offset": whole(-8, 8),
            "share": _SHARE,
            "mass": _SHARE,
            "chance": _SHARE,
            "n": INDEX,
        }
    ),
    "relations": pa.DataFrameSchema(
        {
            **HEAD,
            "relation": word(),
            "direction": word(*DIRECTIONS),
            "accuracy": _SHARE,
            **ENDS,
            "baseline": _SHARE,
            "baseline_offset": whole(),
            **_DIFFERENCE,
            "p_corrected": number(0.0, 1.0),
            "n": INDEX,
            "possible": _SHARE,
            "best": yes_or_no(),
            "called": yes_or_no(),
        },
        checks=[INTERVAL],
    ),
    "coreference": pa.DataFrameSchema(
        {
            **HEAD,
            "accuracy": _SHARE,
            **ENDS,
            "nearest": _SHARE,
            "head_match": _SHARE,
            **_DIFFERENCE,
            "p_corrected": number(0.0, 1.0),
            "n": INDEX,
            "best": yes_or_no(),
            "called": yes_or_no(),
        },
        checks=[INTERVAL],
    ),
    "composition": pa.DataFrameSchema(
        {
            **TWO_HEADS,
            "path": word("query", "key", "value"),
            "distance": number(0.0),
            "value": _SHARE,
            "expected": _SHARE,
            "excess": number(),
            "note": word(),
        }
    ),
    "stability": pa.DataFrameSchema(
        {
            "metric": word(),
            "between": word("halves", "text kinds"),
            "spearman": number(-1.0, 1.0),
            **ENDS,
            "n_heads": INDEX,
        },
        checks=[INTERVAL],
    ),
    "divergences": pa.DataFrameSchema(
        {
            **{f"{name}_{side}": column for side in "ab" for name, column in HEAD.items()},
            "jsd": number(-1e-6, 0.6932),
            **ENDS,
            "jsd_without_sink": number(-1e-6, 0.6932),
            "n": INDEX,
        },
        checks=[INTERVAL],
    ),
    "groups": pa.DataFrameSchema(
        {
            **HEAD,
            "stack": word(),
            "cluster": INDEX,
            "medoid": yes_or_no(),
            "silhouette": number(-1.0, 1.0),
            "stability": _SHARE,
            "x": number(),
            "y": number(),
        }
    ),
    "clusterings": pa.DataFrameSchema(
        {
            "stack": word(),
            "clusters": whole(2),
            "silhouette": number(-1.0, 1.0),
            "stability": number(-1.0, 1.0),
            **ENDS,
            "stress": number(0.0),
            "chosen": yes_or_no(),
        },
        checks=[INTERVAL],
    ),
    "patterns": pa.DataFrameSchema({**EDGE, "weight": number(0.0, 1.001)}),
    "tokens": pa.DataFrameSchema(TOKENS),
}
