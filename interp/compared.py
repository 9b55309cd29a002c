"""A comparison of two runs, as tables for a terminal."""

import pandas as pd
from rich.console import Console
from rich.table import Table
from rich.text import Text

from interp.comparison import HEAD, Comparison

_NAMED = 6  # heads named in a cell
_LARGEST = 3  # differences shown for each score


def show(found: Comparison, console: Console) -> None:
    """Print which heads changed kind, the largest differences of each score, and what has to be known of them."""
    console.print(f"{found.models[0]} ({found.before}) → {found.models[1]} ({found.after})", soft_wrap=True)
    for analysis in dict.fromkeys([*found.kinds["analysis"], *found.differences["analysis"]]):
        kinds = found.kinds.loc[found.kinds["analysis"] == analysis]
        if len(kinds):
            console.print(kinds_table(analysis, kinds))
        scores = found.differences.loc[found.differences["analysis"] == analysis]
        if len(scores):
            console.print(scores_table(analysis, scores))
    for note in found.notes:
        console.print(Text(note), soft_wrap=True)


def kinds_table(analysis: str, kinds: pd.DataFrame) -> Table:
    """One row a kind: how many heads are called so before and after, and which were gained and lost."""
    table = Table(title=f"{analysis}: what heads are called", title_justify="left")
    for name, side in (("kind", "left"), ("before", "right"), ("after", "right"), ("gained", "left"), ("lost", "left")):
        table.add_column(name, justify=side)  # pyright: ignore[reportArgumentType]: one of rich's words
    for kind, rows in kinds.groupby("kind", sort=False):
        change = rows["change"]
        gained, lost = (_names(rows.loc[change == word]) for word in ("gained", "lost"))
        before, after = (change != "gained").sum(), (change != "lost").sum()
        table.add_row(str(kind).replace("_", " "), str(before), str(after), gained, lost)
    return table


def scores_table(analysis: str, scores: pd.DataFrame) -> Table:
    """One row a score: how many heads changed, and the largest differences with their intervals."""
    table = Table(title=f"{analysis}: scores, after less before", title_justify="left")
    table.add_column("score")
    table.add_column("changed", justify="right")
    table.add_column("largest differences")
    for (metric, data), rows in scores.groupby(["metric", "data"], sort=False):  # pyright: ignore[reportGeneralTypeIssues]: two keys
        largest = rows.sort_values("difference", key=abs, ascending=False, kind="stable").head(_LARGEST)
        told = "   ".join(_difference(row) for row in largest.to_dict("records"))
        measured = len(rows.dropna(subset="p_corrected")) > 0
        changed = f"{len(rows.loc[rows['changed'].astype(bool)])} of {len(rows)}" if measured else "no interval"
        table.add_row(f"{str(metric).replace('_', ' ')} ({data})", changed, told)
    return table


def as_json(found: Comparison) -> dict[str, object]:
    """All of it, for `interp.results.storage.to_json`."""
    return {
        "before": {"run": found.before, "model": found.models[0]},
        "after": {"run": found.after, "model": found.models[1]},
        "notes": list(found.notes),
        "kind_changes": found.kinds.to_dict("records"),
        "differences": found.differences.to_dict("records"),
    }


def _difference(row: dict[object, object]) -> str:
    low, high = float(str(row["ci_low"])), float(str(row["ci_high"]))
    interval = "" if low != low else f" [{low:+.2f}, {high:+.2f}]"
    return f"{_name(row)} {float(str(row['difference'])):+.2f}{interval}"


def _names(rows: pd.DataFrame) -> str:
    names = [_name(row) for row in rows.drop_duplicates(HEAD).to_dict("records")]
    rest = len(names) - _NAMED
    return ", ".join(names[:_NAMED]) + (f" and {rest} more" if rest > 0 else "")


def _name(row: dict[object, object]) -> str:
    name = f"L{row['layer']}H{row['head']}"
    return name if row["site"] == f"blocks.{row['layer']}.attn" else f"{name} of {row['site']}"
