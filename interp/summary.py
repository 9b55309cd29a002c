"""The strongest heads of a result, as lines for a terminal."""

from collections.abc import Hashable, Mapping
from typing import Any

from interp.results import Result


def strongest_heads(result: Result, count: int = 3) -> list[str]:
    """One line a metric: its ``count`` highest heads with their intervals; none without a table ``heads``."""
    if "heads" not in result.tables:
        return []
    heads = result.tables["heads"].dropna(subset="value")
    lines = []
    for (metric, data), scores in heads.groupby(["metric", "data"], sort=False):  # pyright: ignore[reportGeneralTypeIssues]
        best = scores.nlargest(count, "value").to_dict("records")
        lines.append(f"{f'{metric} ({data})':36}" + "   ".join(map(_told, best)))
    return lines


def _told(row: Mapping[Hashable, Any]) -> str:
    name = f"L{row['layer']}H{row['head']}"
    where = "" if row["site"] == f"blocks.{row['layer']}.attn" else f" of {row['site']}"
    interval = "" if row["ci_low"] != row["ci_low"] else f" [{row['ci_low']:.2f}, {row['ci_high']:.2f}]"
    return f"{name}{where} {row['value']:.2f}{interval}"
