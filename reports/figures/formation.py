"""Curves over a training run: a saved table and an Axes in, the Axes out. Nothing is computed here."""

from collections.abc import Sequence
from typing import Any

import pandas as pd
import seaborn as sns
from matplotlib.axes import Axes

from reports import style, words
from reports.figures.labels import label_ends

Head = tuple[int, int]
_DASHES = (0, (4, 2.5))
_WIDE_RANGE = 100  # from the first step to the last: beyond it steps are drawn on a log scale


def model_curve(table: pd.DataFrame, ax: Axes, label: str) -> Axes:
    """One number of the model at each checkpoint, with its interval; the control's dashed.

    Args:
        table: rows of ``formation`` with one metric.
        ax: where to draw.
        label: of the axis, with its unit.
    """
    runs: Any = table.sort_values("step").groupby(["is_control", "run"])
    for (is_control, name), rows in runs:
        colour = style.MUTED if is_control else style.INK
        ax.fill_between(rows["step"], rows["ci_low"], rows["ci_high"], color=colour, alpha=0.15, linewidth=0)
        ax.plot(rows["step"], rows["value"], color=colour, marker="o", markersize=2.2, linewidth=1.1,
                linestyle=_DASHES if is_control else "-",
                label=f"{words.visible(str(name))}{', the control' if is_control else ''}")  # fmt: skip
    ax.set_ylabel(label)
    return _steps(ax, table)


def head_curves(table: pd.DataFrame, ax: Axes, named: Sequence[Head], colour: str, label: str) -> Axes:
    """A score of every head at each checkpoint; some heads named at their ends, the control's heads dashed.

    Args:
        table: rows of ``formation_heads`` with one metric.
        ax: where to draw.
        named: heads of the model that stand out, strongest first; with their intervals.
        colour: theirs.
        label: of the axis, with its unit.
    """
    ends = []
    curves: Any = table.sort_values("step").groupby(["is_control", "run", "site", "layer", "head"], sort=False)
    for (is_control, _, _, layer, head), rows in curves:
        stands_out = not is_control and (layer, head) in named
        ax.plot(rows["step"], rows["value"], color=colour if stands_out else style.MUTED, zorder=3 if stands_out else 1,
                linewidth=1.4 if stands_out else 0.6, alpha=1.0 if stands_out else 0.55,
                linestyle=_DASHES if is_control else "-", marker="o" if stands_out else None,
                markersize=2.2)  # fmt: skip
        if stands_out:
            ax.fill_between(rows["step"], rows["ci_low"], rows["ci_high"], color=colour, alpha=0.15, linewidth=0)
            ends.append(((rows["step"].iloc[-1], rows["value"].iloc[-1]), words.head_name(layer, head)))
    chance: Any = table.groupby("step")["chance"].max()
    ax.plot(chance.index, chance, color=style.MUTED, linewidth=0.9, linestyle=(0, (1, 2)), zorder=2)
    ax.set(ylabel=label, ylim=(0, 1))
    _steps(ax, table)
    return label_ends(ax, [end for end, _ in ends], [name for _, name in ends], [colour] * len(ends))


def between(axes: Sequence[Axes], before: float, after: float) -> None:
    """Shade the stretch between two checkpoints in all panels."""
    for ax in axes:
        ax.axvspan(before, after, color=style.FAINT, alpha=0.7, linewidth=0, zorder=0)


def _steps(ax: Axes, table: pd.DataFrame) -> Axes:
    """The axis of steps: a log scale that begins with 0 where they cover a wide range."""
    later = [int(step) for step in table["step"].unique() if step > 0]
    if later and max(later) / min(later) > _WIDE_RANGE:
        ax.set_xscale("symlog", linthresh=min(later))
        ax.minorticks_off()
    else:
        ax.xaxis.set_major_formatter(lambda step, _: f"{step:,.0f}")
    ax.set_xlim(min(table["step"]), max(table["step"]))
    sns.despine(ax=ax)
    return ax
