"""What the tables look like, checked before they are saved; ``heads`` is as every analysis's must be."""

from typing import Any

import pandas as pd
import pandera.pandas as pa

from interp.results import HEADS


def _whole(least: int = 0) -> pa.Column:
    whole = pa.Check(pd.api.types.is_integer_dtype, error="must hold whole numbers")
    return pa.Column(None, [whole, pa.Check.ge(least)])


def _number(low: float | None = None, high: float | None = None) -> pa.Column:
    checks = [pa.Check(pd.api.types.is_numeric_dtype, error="must hold numbers")]
    checks += [] if low is None else [pa.Check.ge(low)]
    checks += [] if high is None else [pa.Check.le(high)]
    return pa.Column(None, checks, nullable=True)


def _word(*allowed: str) -> pa.Column:
    text = pa.Check(_holds_text, error="must hold text")
    return pa.Column(None, [*([pa.Check.isin(allowed)] if allowed else []), text])


def _holds_text(column: Any) -> bool:
    return len(column) == 0 or pd.api.types.is_string_dtype(column)


_ENDS = {"ci_low": _number(), "ci_high": _number()}
_HEAD = {"site": _word(), "layer": _whole(), "head": _whole()}
_SHARE = _number(0.0, 1.0)
_INTERVAL = pa.Check(
    lambda table: ~(table["ci_low"] > table["ci_high"]), error="ci_low must not be above ci_high", name="interval"
)
_ORDERS = _word("importance", "importance_rescored", "exact", "weight_norm", "random", "worst_first")
_KINDS = _word("resample", "mean", "zero", "mean_pattern")


def _table(**columns: pa.Column) -> pa.DataFrameSchema:
    checks = [_INTERVAL] if "ci_low" in columns else []
    return pa.DataFrameSchema(columns, checks=checks)


SCHEMAS = {
    "heads": HEADS.add_columns({"note": _word()}),
    "effects": _table(
        **_HEAD, ablation=_KINDS, path=_word("total", "direct"), change=_number(), **_ENDS, p_needed=_SHARE,
        p_harmful=_SHARE, verdict=_word("needed", "harmful", "undecided"), importance=_SHARE, importance_rank=_whole(1),
        n=_whole(), note=_word(),
    ),
    "best_head": _table(site=_word(), layer=_whole(), kept_head=_whole(), change=_number(), **_ENDS, n=_whole()),
    "agreement": _table(
        score=_word(), ablation=_KINDS, rho=_number(-1.0, 1.0), **_ENDS, n_heads=_whole(), n=_whole()
    ),
    "transfer": _table(data=_word(), other=_word(), r=_number(-1.0, 1.0), **_ENDS, n_heads=_whole()),
    "order": _table(**_HEAD, site_kind=_word("self", "encoder", "decoder", "cross"), order=_ORDERS, draw=_whole(),
                    rank=_whole()),
    "curve": _table(
        order=_ORDERS, draw=_whole(), share=_SHARE, n_pruned=_whole(), value=_number(), **_ENDS, change=_number(),
        change_low=_number(), change_high=_number(), n=_whole(),
    ),
    "areas": _table(
        order=_ORDERS, draw=_whole(), area=_number(), area_low=_number(), area_high=_number(), margin=_number(),
        **_ENDS, n=_whole(),
    ),
    "free": _table(
        order=_ORDERS, draw=_whole(), leaves=_word("interval", "certain"), share=_SHARE, **_ENDS, room=_number()
    ),
    "left": _table(site=_word(), layer=_whole(), site_kind=_word(), n_heads=_whole(1), share=_SHARE, kept=_whole()),
    "cost": _table(
        quantity=_word(), share=_SHARE, n_pruned=_whole(), value=_number(0.0), unit=_word(), ratio=_number(0.0),
        **_ENDS, n=_whole(), length=_whole(),
    ),
    "from_scratch": _table(
        model=_word("whole", "scratch", "cut", "pruned"), n_heads=_whole(1), dropout=_SHARE, loss=_number(0.0), **_ENDS,
        change=_number(), change_low=_number(), change_high=_number(), n=_whole(), steps=_whole(1),
    ),
    "gates": _table(penalty=_number(0.0), **_HEAD, log_alpha=_number(), p_open=_SHARE, gate=_SHARE),
    "gates_path": _table(
        penalty=_number(0.0), weights=_word("frozen", "trained"), kept=_whole(), share_pruned=_SHARE, loss=_number(),
        change=_number(), **_ENDS, n=_whole(), steps=_whole(1),
    ),
}  # fmt: skip
