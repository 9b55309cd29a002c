"""Figures of models with fewer heads: a saved table and an Axes in, the Axes out. Nothing is computed here."""

import numpy as np
import pandas as pd
import seaborn as sns
from matplotlib.axes import Axes
from matplotlib.ticker import PercentFormatter

from reports import style
from reports.figures.labels import label_ends

WAYS = {
    "scratch": ("few heads from the beginning", True),
    "cut": ("many heads, then cut", False),
    "pruned": ("many heads, cut, trained on", True),
    "whole": ("many heads to the end", True),
}


def cost(table: pd.DataFrame, ax: Axes) -> Axes:
    """What pruned models cost against the unpruned one: a ratio with its interval, one line a quantity; dashed: masked.

    Args:
        table: ``quantity, share, ratio, ci_low, ci_high``; of masked models the quantity ends in ``, masked``.
        ax: where to draw; 1 is the unpruned model.
    """
    ends, names, colours = [], [], []
    quantities = list(dict.fromkeys(str(quantity).removesuffix(", masked") for quantity in table["quantity"]))
    for quantity, rows in table.groupby("quantity", sort=False):
        part, number = rows.sort_values("share"), quantities.index(str(quantity).removesuffix(", masked"))
        colour = style.SERIES[number % len(style.SERIES)]
        spans = np.nan_to_num([part["ratio"] - part["ci_low"], part["ci_high"] - part["ratio"]])
        dashes = (0, (4, 2)) if str(quantity).endswith(", masked") else "-"
        ax.errorbar(part["share"], part["ratio"], yerr=spans, color=colour, linestyle=dashes, elinewidth=0.8,
                    marker=style.MARKERS[number % len(style.MARKERS)], markersize=4, markeredgecolor="white",
                    markeredgewidth=0.5, linewidth=1.3)  # fmt: skip
        ends.append((float(part["share"].iloc[-1]), float(part["ratio"].iloc[-1])))
        names.append(str(quantity))
        colours.append(colour)
    ax.axhline(1, color=style.INK, linewidth=0.7)
    ax.xaxis.set_major_formatter(PercentFormatter(1.0, decimals=0))
    ax.set(xlabel="heads pruned", ylabel="ratio to the unpruned model", ylim=(0, None))
    sns.despine(ax=ax)
    return label_ends(ax, ends, names, colours)


def from_scratch(table: pd.DataFrame, ax: Axes) -> Axes:
    """Losses of small models by the heads that they end with: a marker a way of getting there, with its interval.

    Args:
        table: rows of ``from_scratch`` with one share of head dropout.
        ax: where to draw.
    """
    counts = sorted(table["n_heads"].unique())
    for number, (name, (label, filled)) in enumerate(WAYS.items()):
        rows = table.loc[table["model"] == name]
        places = np.array([counts.index(count) for count in rows["n_heads"]]) + 0.14 * (number - 1.5) * (
            name != "whole"
        )
        colour = style.SERIES[number]
        ax.errorbar(places, rows["loss"], yerr=[rows["loss"] - rows["ci_low"], rows["ci_high"] - rows["loss"]],
                    fmt=style.MARKERS[number], color=colour, markersize=5, elinewidth=1, linestyle="none", label=label,
                    markerfacecolor=colour if filled else "white", markeredgewidth=0.9)  # fmt: skip
    ax.set_xticks(range(len(counts)), [str(count) for count in counts])
    ax.set(xlim=(-0.5, len(counts) - 0.5), xlabel="heads of each layer in the end", ylabel="loss (nats per token)")
    ax.grid(axis="y", color=style.FAINT, linewidth=0.5)
    ax.set_axisbelow(True)
    sns.despine(ax=ax)
    return ax
