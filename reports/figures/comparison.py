"""Figures of two runs side by side."""

from collections.abc import Sequence

import numpy as np
import pandas as pd
import seaborn as sns
from matplotlib.axes import Axes

from reports import style


def differences(table: pd.DataFrame, names: Sequence[str], ax: Axes) -> Axes:
    """From the first run's score (ring) to the second's (dot), with the interval of the difference around the latter.

    Args:
        table: rows of ``differences``, in the order to draw them.
        names: what to call each row.
        ax: where to draw.
    """
    rows = table.reset_index(drop=True)
    places = np.arange(len(rows))
    up = (rows["difference"] > 0).to_numpy()
    colours = np.where(up, style.ACCENT, "#d55e00")
    ax.hlines(places, rows["before"], rows["after"], color=colours, alpha=0.35, linewidth=2.2, zorder=1)
    ax.hlines(places, rows["before"] + rows["ci_low"], rows["before"] + rows["ci_high"], color=colours, linewidth=1,
              zorder=2)  # fmt: skip
    ax.scatter(rows["before"], places, s=22, facecolor="white", edgecolor=style.MUTED, linewidth=1.1, zorder=3,
               label="first run")  # fmt: skip
    for which, colour, name in ((up, style.ACCENT, "second run, higher"), (~up, "#d55e00", "second run, lower")):
        if which.any():
            ax.scatter(rows["after"][which], places[which], s=26, color=colour, edgecolor="white", linewidth=0.5,
                       zorder=4, label=name)  # fmt: skip
    ax.set_yticks(places, list(names))
    for label in ax.get_yticklabels():
        label.set_url(f"#{label.get_text().split()[0]}")
    ends = np.concatenate(
        [rows["before"] + rows["ci_low"], rows["before"] + rows["ci_high"], rows["before"], rows["after"]]
    )
    low, high = float(np.nanmin(ends)), float(np.nanmax(ends))
    ax.set(xlim=(min(0.0, low) - 0.02, max(high, 0.1) + 0.02), ylim=(len(rows) - 0.4, -0.6), xlabel="score")
    ax.legend(loc="lower left", bbox_to_anchor=(0, 1.0), ncols=3, borderaxespad=0.1, handletextpad=0.2)
    ax.tick_params(axis="y", length=0)
    ax.grid(axis="x", color=style.FAINT, linewidth=0.5)
    ax.set_axisbelow(True)
    sns.despine(ax=ax, left=True)
    return ax
