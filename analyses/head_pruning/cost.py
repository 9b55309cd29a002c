"""What cutting heads out saves: parameters, cache, arithmetic; with the full budget also time, against masking them."""

from typing import Any

import numpy as np
import pandas as pd

from analyses.head_pruning.config import Config
from interp import HookedModel
from interp.errors import UserError
from interp.models.pruning import Head, kept_after, prune
from interp.models.pruning.cost import Clock, measure_times, ratios, sizes
from interp.results import Workspace
from interp.results.tables import empty_table

SHARES = (0.0, 0.25, 0.5, 0.75, 0.9)
"""Of the heads that are cut out, the first in the order of importance."""
LENGTH, NEW_TOKENS, ROUNDS = 128, 8, 5
"""Tokens that arithmetic is counted and time measured on, those generated after them, and how often."""

QUANTITIES = {
    "parameters": ("parameters", ""), "KV cache": ("cache_bytes_per_token", "bytes per token"),
    "cross-attention cache": ("cache_bytes_per_source_token", "bytes per token"),
    "FLOPs": ("flops_per_token", "per token"),
}  # fmt: skip
"""Counted quantities: the name in `sizes`, and the unit."""
_COLUMNS = {
    "quantity": str, "share": float, "n_pruned": int, "value": float, "unit": str, "ratio": float, "ci_low": float,
    "ci_high": float, "n": int, "length": int,
}  # fmt: skip


def table(model: HookedModel, order: pd.DataFrame, config: Config, work: Workspace) -> pd.DataFrame:
    """The table ``cost``: what models are worth from which shares of the heads were cut out, over the unpruned one.

    Counted quantities have no interval; times are those of one sequence, alternating with the unpruned model, with an
    interval over rounds. ``quantity``: of `QUANTITIES`; ``prompt``, ``decoding``, and the same ``, masked``.

    Args:
        order: as `curves.orders` gives it.
    """
    mine: Any = order.loc[order["order"] == "importance"]
    mine = mine.sort_values("rank")
    going: list[Head] = list(zip(mine["site"], mine["head"].astype(int), strict=True))
    counts = sorted({min(round(share * len(going)), len(going) - 1) for share in SHARES})
    length = min(LENGTH, model.n_ctx or LENGTH)
    parts = []
    for count in counts:
        made = work.step(f"cost-{count}", lambda count=count: {"cost": _of(model, going[:count], length, config, work)})
        parts.append(made["cost"].assign(share=count / len(going), n_pruned=count))
    found: Any = pd.concat(parts, ignore_index=True)
    if found.empty:
        return empty_table(_COLUMNS)
    if not config.is_full:
        work.skip("time of pruned models", "budget is report")
    unpruned = found[found["n_pruned"] == 0].set_index("quantity")["value"]
    counted = found["ratio"].isna()
    found.loc[counted, "ratio"] = (found["value"] / found["quantity"].map(unpruned))[counted]
    return found[list(_COLUMNS)].astype({name: kind for name, kind in _COLUMNS.items() if kind is not str})


def _of(model: HookedModel, gone: list[Head], length: int, config: Config, work: Workspace) -> pd.DataFrame:
    """What a model costs without some heads; no rows where they cannot be cut out of it."""
    nothing = pd.DataFrame(columns=pd.Index([n for n in _COLUMNS if n not in ("share", "n_pruned")]), dtype=object)
    try:
        small = prune(model, kept_after(model, gone)) if gone else model
    except UserError as reason:
        work.skip(f"what cutting {len(gone)} heads out saves", str(reason))
        return nothing
    found: Any = sizes(small, length)
    rows = [
        {"quantity": quantity, "value": float(found[name]), "unit": unit, "ratio": np.nan, "ci_low": np.nan,
         "ci_high": np.nan, "n": 0, "length": length}
        for quantity, (name, unit) in QUANTITIES.items() if found[name] > 0
    ]  # fmt: skip
    if gone and config.is_full:
        rows += _times(model, small, length, config)
    return pd.DataFrame(rows)


def _times(model: HookedModel, small: HookedModel, length: int, config: Config) -> list[dict[str, Any]]:
    """Time of the pruned and the masked model, one sequence; decoding where there is room for what is generated."""
    room = length if model.n_ctx is None else min(length, model.n_ctx - NEW_TOKENS - 1)
    new = NEW_TOKENS if room > 0 else 0
    length = room if room > 0 else length - 1
    clock: Clock = "cpu_seconds" if model.device.type == "cpu" else "seconds"
    times = measure_times(
        model, small, batch_sizes=(1,), lengths=(length,), new_tokens=new, rounds=ROUNDS, seed=config.seed
    )
    return [
        {"quantity": row["phase"] + (", masked" if row["variant"] == "masked" else ""), "value": row["seconds"],
         "unit": "seconds", "ratio": row["ratio"], "ci_low": row["ci_low"], "ci_high": row["ci_high"],
         "n": int(row["n"]), "length": length}
        for row in ratios(times, clock).to_dict("records")
    ]  # fmt: skip
