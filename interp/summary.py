"""What a terminal is told of a result: what its heads are called, its strongest heads, its checks."""

from collections.abc import Hashable, Mapping
from typing import Any

import pandas as pd
from rich import box
from rich.table import Table
from rich.text import Text

from interp.results import Result

_COLOURS = {"fail": "bold red", "warn": "yellow", "ok": "green", "not applicable": "dim"}
_PREFIXES = ((1e15, "P"), (1e12, "T"), (1e9, "G"), (1e6, "M"), (1e3, "k"))


def heads_told(result: Result) -> list[str]:
    """What heads are called, a line a kind; where an analysis calls heads nothing, its highest scores."""
    return called_heads(result) or strongest_heads(result)


def called_heads(result: Result, count: int = 5) -> list[str]:
    """One line a kind: how many heads are called so, and the ``count`` of them that are farthest beyond the threshold.

    A last line names the kinds that no head is called. None without a table ``kinds``.
    """
    kinds = result.tables.get("kinds")
    if kinds is None or kinds.empty:
        return []
    head = ["site", "layer", "head"]
    called = kinds.loc[kinds["called"].astype(bool)]
    n_heads, n_called = len(kinds.drop_duplicates(head)), len(called.drop_duplicates(head))
    beyond = (called["value"] - called["threshold"]).abs()
    called = called.loc[beyond.sort_values(ascending=False, kind="stable").index].drop_duplicates([*head, "kind"])
    lines, names = [], {kind: str(kind).replace("_", " ") for kind in kinds["kind"].unique()}
    width = max(map(len, names.values()))
    for kind, name in names.items():
        rows = called.loc[called["kind"] == kind]
        if len(rows):
            best = ", ".join(f"{_named(row)} {row['value']:.2f}" for row in rows.head(count).to_dict("records"))
            more = f" and {len(rows) - count} more" if len(rows) > count else ""
            lines.append(f"  {name:{width}}  {len(rows):>4}  {best}{more}")
    none = [name for kind, name in names.items() if kind not in set(called["kind"])]
    are = "heads are called something:" if n_called else "heads are called anything"
    return [
        f"{n_called or 'none'} of {n_heads} {are}",
        *lines,
        *([f"  no head: {', '.join(none)}"] if none else []),
    ]


def strongest_heads(result: Result, count: int = 3, most: int = 12) -> list[str]:
    """One line a metric: its ``count`` highest heads with their intervals; none without a table ``heads``.

    Beyond ``most`` metrics, a last line says how many there are more.
    """
    if "heads" not in result.tables:
        return []
    heads = result.tables["heads"].dropna(subset="value")
    told = []
    for (metric, data), scores in heads.groupby(["metric", "data"], sort=False):  # pyright: ignore[reportGeneralTypeIssues]
        best = scores.nlargest(count, "value").to_dict("records")
        told.append((f"{metric} ({data})", "   ".join(map(_told, best))))
    width = max((len(score) for score, _ in told[:most]), default=0)
    rest = [f"and {len(told) - most} further scores in the table heads"] if len(told) > most else []
    return [f"{score:{width}}  {best}" for score, best in told[:most]] + rest


def _told(row: Mapping[Hashable, Any]) -> str:
    interval = "" if row["ci_low"] != row["ci_low"] else f" [{row['ci_low']:.2f}, {row['ci_high']:.2f}]"
    return f"{_named(row)} {row['value']:.2f}{interval}"


def _named(row: Mapping[Hashable, Any]) -> str:
    where = "" if row["site"] == f"blocks.{row['layer']}.attn" else f" of {row['site']}"
    return f"L{row['layer']}H{row['head']}{where}"


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
