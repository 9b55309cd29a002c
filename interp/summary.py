"""What a terminal is told of a result: its strongest heads, its checks."""

from collections.abc import Hashable, Mapping
from typing import Any

import pandas as pd
from rich import box
from rich.table import Table
from rich.text import Text

from interp.results import Result

_COLOURS = {"fail": "bold red", "warn": "yellow", "ok": "green", "not applicable": "dim"}
_PREFIXES = ((1e15, "P"), (1e12, "T"), (1e9, "G"), (1e6, "M"), (1e3, "k"))


def strongest_heads(result: Result, count: int = 3) -> list[str]:
    """One line a metric: its ``count`` highest heads with their intervals; none without a table ``heads``."""
    if "heads" not in result.tables:
        return []
    heads = result.tables["heads"].dropna(subset="value")
    told = []
    for (metric, data), scores in heads.groupby(["metric", "data"], sort=False):  # pyright: ignore[reportGeneralTypeIssues]
        best = scores.nlargest(count, "value").to_dict("records")
        told.append((f"{metric} ({data})", "   ".join(map(_told, best))))
    width = max((len(score) for score, _ in told), default=0)
    return [f"{score:{width}}  {best}" for score, best in told]


def _told(row: Mapping[Hashable, Any]) -> str:
    name = f"L{row['layer']}H{row['head']}"
    where = "" if row["site"] == f"blocks.{row['layer']}.attn" else f" of {row['site']}"
    interval = "" if row["ci_low"] != row["ci_low"] else f" [{row['ci_low']:.2f}, {row['ci_high']:.2f}]"
    return f"{name}{where} {row['value']:.2f}{interval}"


def checks_table(checks: pd.DataFrame) -> Table:
    """The table ``checks`` of `model-health`, the worst first, with what was measured, where, and advice."""
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    table.add_column("verdict", no_wrap=True)
    table.add_column("check", no_wrap=True)
    table.add_column("value", justify="right")
    table.add_column("where", overflow="fold")
    table.add_column("what was seen, and what to do", ratio=1)
    ranked = checks.assign(rank=[list(_COLOURS).index(verdict) for verdict in checks["verdict"]])
    for row in ranked.sort_values("rank", kind="stable").to_dict("records"):
        seen = Text(str(row["note"]))
        if row["advice"]:
            seen.append(f" → {row['advice']}", style="bold")
        verdict = Text(str(row["verdict"]), style=_COLOURS[row["verdict"]])
        table.add_row(
            verdict, str(row["check"]).replace("_", " "), measured(row["value"], row["unit"]), _where(row), seen
        )
    return table


def measured(value: float, unit: str) -> str:
    """A value with its unit, as short as a table needs it; "" where there is none."""
    if pd.isna(value):
        return ""
    if unit == "bytes":
        step = next((i for i in (4, 3, 2, 1) if value >= 1024**i), 0)
        return f"{value / 1024**step:.3g} {('B', 'KiB', 'MiB', 'GiB', 'TiB')[step]}"
    if unit == "FLOP":
        size, prefix = next((each for each in _PREFIXES if value >= each[0]), (1.0, ""))
        return f"{value / size:.3g} {prefix}FLOP"
    return f"{value:.3g}"


def counted(checks: pd.DataFrame) -> dict[str, int]:
    """How many checks have each verdict."""
    found = checks["verdict"].tolist()
    return {verdict: found.count(verdict) for verdict in _COLOURS}


def _where(row: Mapping[Hashable, Any]) -> str:
    head = "" if pd.isna(row["head"]) else f" H{int(row['head'])}"
    return f"{row['site']}{head}"
