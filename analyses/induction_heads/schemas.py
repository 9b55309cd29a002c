"""What the tables look like, checked before they are saved; ``heads`` beyond what every analysis's must be."""

import pandera.pandas as pa

from interp.results import HEADS
from interp.results.columns import EDGE, ENDS, HEAD, INDEX, INTERVAL, TOKENS, TWO_HEADS, number, whole, word, yes_or_no

_SHARE = number(0.0, 1.0)
_ENDS = {**ENDS, "n": INDEX}
_CHECKPOINT = {"run": word(), "is_control": yes_or_no(), "step": INDEX, "checkpoint": word()}

SCHEMAS = {
    "heads": HEADS.add_columns({"control": number(), "note": word()}),
    "kinds": pa.DataFrameSchema(
        {
            **HEAD,
            "kind": word("induction", "previous_token", "duplicate_token"),
            "metric": word("prefix_matching", "previous_token", "duplicate_token"),
            "value": number(-1e-6, 1 + 1e-6),
            "simultaneous_low": _SHARE,
            "threshold": _SHARE,
            "chance": _SHARE,
            "control": number(),
            "p_corrected": _SHARE,
            "called": yes_or_no(),
            "reason": word(),
        }
    ),
    "loss_by_position": pa.DataFrameSchema(
        {"data": word(), "copy": INDEX, "position": INDEX, "loss": number(0.0), **_ENDS}, checks=[INTERVAL]
    ),
    "behaviour": pa.DataFrameSchema(
        {
            "metric": word("loss_first_copy", "loss_later_copies", "copying_gain", "in_context_learning"),
            "data": word(),
            "value": number(),
            **_ENDS,
            "note": word(),
        },
        checks=[INTERVAL],
    ),
    "ablation": pa.DataFrameSchema(
        {
            "ablation": word("resample", "mean", "zero", "pattern_preserving"),
            "heads": word(),
            "n_heads": whole(1),
            "chosen": word("top", "random"),
            "draw": INDEX,
            "loss": number(0.0),
            "loss_change": number(),
            **_ENDS,
            "note": word(),
        },
        checks=[INTERVAL],
    ),
    "composition": pa.DataFrameSchema(
        {
            **TWO_HEADS,
            "path": word("key_input", "total"),
            "prefix_matching": number(),
            "change": number(-1.0, 1.0),
            **_ENDS,
            "note": word(),
        },
        checks=[INTERVAL],
    ),
    "reach": pa.DataFrameSchema(
        {**HEAD, "period": whole(2), "value": number(), "chance": number(), **_ENDS, "note": word()},
        checks=[INTERVAL],
    ),
    "formation": pa.DataFrameSchema(
        {
            **_CHECKPOINT,
            "metric": word("loss", "in_context_learning", "loss_first_copy", "loss_later_copies", "copying_gain"),
            "data": word(),
            "value": number(),
            **_ENDS,
            "note": word(),
        },
        checks=[INTERVAL],
    ),
    "formation_heads": pa.DataFrameSchema(
        {
            **_CHECKPOINT,
            **HEAD,
            "metric": word("prefix_matching", "previous_token"),
            "data": word(),
            "value": number(-1e-6, 1 + 1e-6),
            **_ENDS,
            "chance": _SHARE,
            "control": number(),
            "note": word(),
        },
        checks=[INTERVAL],
    ),
    "patterns": pa.DataFrameSchema({**EDGE, "weight": number(0.005, 1.001)}),
    "tokens": pa.DataFrameSchema(TOKENS),
}
