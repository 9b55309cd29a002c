"""What the tables look like, checked before they are saved; ``heads`` is as every analysis's must be."""

import pandera.pandas as pa

from interp.results import HEADS
from interp.results.columns import ENDS, HEAD, INDEX, INTERVAL, number, whole, word

_SHARE = number(0.0, 1.0)
_ORDERS = word("importance", "importance_rescored", "exact", "weight_norm", "random", "worst_first")
_KINDS = word("resample", "mean", "zero", "mean_pattern")


def _table(**columns: pa.Column) -> pa.DataFrameSchema:
    checks = [INTERVAL] if "ci_low" in columns else []
    return pa.DataFrameSchema(columns, checks=checks)


SCHEMAS = {
    "heads": HEADS.add_columns({"note": word()}),
    "effects": _table(
        **HEAD, ablation=_KINDS, path=word("total", "direct"), change=number(), **ENDS, p_needed=_SHARE,
        p_harmful=_SHARE, verdict=word("needed", "harmful", "undecided"), importance=_SHARE, importance_rank=whole(1),
        n=INDEX, note=word(),
    ),
    "best_head": _table(site=word(), layer=INDEX, kept_head=INDEX, change=number(), **ENDS, n=INDEX),
    "agreement": _table(
        score=word(), ablation=_KINDS, rho=number(-1.0, 1.0), **ENDS, n_heads=INDEX, n=INDEX
    ),
    "transfer": _table(data=word(), other=word(), r=number(-1.0, 1.0), **ENDS, n_heads=INDEX),
    "order": _table(**HEAD, site_kind=word("self", "encoder", "decoder", "cross"), order=_ORDERS, draw=INDEX,
                    rank=INDEX),
    "curve": _table(
        order=_ORDERS, draw=INDEX, share=_SHARE, n_pruned=INDEX, value=number(), **ENDS, change=number(),
        change_low=number(), change_high=number(), n=INDEX,
    ),
    "areas": _table(
        order=_ORDERS, draw=INDEX, area=number(), area_low=number(), area_high=number(), margin=number(),
        **ENDS, n=INDEX,
    ),
    "free": _table(
        order=_ORDERS, draw=INDEX, leaves=word("interval", "certain"), share=_SHARE, **ENDS, room=number()
    ),
    "left": _table(site=word(), layer=INDEX, site_kind=word(), n_heads=whole(1), share=_SHARE, kept=INDEX),
    "cost": _table(
        quantity=word(), share=_SHARE, n_pruned=INDEX, value=number(0.0), unit=word(), ratio=number(0.0),
        **ENDS, n=INDEX, length=INDEX,
    ),
    "from_scratch": _table(
        model=word("whole", "scratch", "cut", "pruned"), n_heads=whole(1), dropout=_SHARE, loss=number(0.0), **ENDS,
        change=number(), change_low=number(), change_high=number(), n=INDEX, steps=whole(1),
    ),
    "gates": _table(penalty=number(0.0), **HEAD, log_alpha=number(), p_open=_SHARE, gate=_SHARE),
    "gates_path": _table(
        penalty=number(0.0), weights=word("frozen", "trained"), kept=INDEX, share_pruned=_SHARE, loss=number(),
        change=number(), **ENDS, n=INDEX, steps=whole(1),
    ),
}  # fmt: skip
