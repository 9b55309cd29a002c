"""Figures of `long-context`: scores by length and depth, and heads followed over lengths."""

from collections.abc import Sequence

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from reports import style, words
from reports.figures.labels import label_ends

Head = tuple[int, int]


def by_length_and_depth(table: pd.DataFrame, heads: Sequence[Head], copied: pd.DataFrame) -> Figure:
    """One small map of length (across) and depth (down) for each head, and one of the model's own copying last."""
    panels = [(words.head_name(*head), _of(table, head)) for head in heads]
    panels.append(("the model copies", copied.rename(columns={"copied": "value"})))
    n = len(panels)
    across = min(n, 4)
    down = -(-n // across)
    lengths, depths = sorted(copied["length"].unique()), sorted(copied["depth"].unique())
    figure = style.blank(0.7 + across * 1.75, down * (0.55 + 0.24 * max(len(depths), 2)) + 0.75)
    drawn = None
    width, height = figure.get_size_inches()
    for i, (name, rows) in enumerate(panels):
        row, column = divmod(i, across)
        tall = 0.24 * max(len(depths), 2)
        left, top = 0.6 + column * 1.75, height - 0.3 - row * (0.55 + tall)
        ax = figure.add_axes((left / width, (top - tall) / height, 1.45 / width, tall / height))
        grid = rows.pivot(index="depth", columns="length", values="value").to_numpy(dtype=float)
        drawn = ax.imshow(grid, aspect="auto", cmap=style.SHARES, vmin=0, vmax=1, interpolation="nearest")
        ax.set_title(name)
        ax.set_xticks(
            range(len(lengths)), [short(length) for length in lengths] if row == down - 1 or i + across >= n else []
        )
        ax.set_yticks(range(len(depths)), [f"{depth:.0%}" for depth in depths] if column == 0 else [])
        ax.tick_params(length=0)
        for y, x in np.ndindex(grid.shape):
            if np.isfinite(grid[y, x]):
                colour = style.text_colour(style.SHARES(float(grid[y, x])))
                ax.text(x, y, f"{grid[y, x]:.2f}".lstrip("0") if grid[y, x] < 1 else "1", ha="center", va="center",
                        fontsize=style.SMALL - 0.5, color=colour)  # fmt: skip
        if column == 0:
            ax.set_ylabel("depth")
    figure.text(0.6 / width, 0.06 / height, "input length in tokens", fontsize=style.SMALL + 1, color=style.INK)
    assert drawn is not None
    bar = figure.add_axes(((width - 1.9) / width, 0.16 / height, 1.4 / width, 0.09 / height))
    figure.colorbar(drawn, cax=bar, orientation="horizontal", label="")
    bar.tick_params(labelsize=style.SMALL)
    bar.set_title("retrieval score", fontsize=style.SMALL + 0.5, fontweight="normal", loc="center")
    return figure


def followed(table: pd.DataFrame, heads: Sequence[Head], ax: Axes) -> Axes:
    """Retrieval of some heads by length, with their intervals."""
    ends, colours = [], []
    for i, head in enumerate(heads):
        rows = _of(table, head).sort_values("length")
        colour = style.SERIES[i % len(style.SERIES)]
        ax.plot(
            rows["length"], rows["value"], color=colour, marker=style.MARKERS[i % len(style.MARKERS)], markersize=3.5
        )
        ax.fill_between(rows["length"], rows["ci_low"], rows["ci_high"], color=colour, alpha=0.08, linewidth=0)
        ends.append((float(rows["length"].iloc[-1]), float(rows["value"].iloc[-1])))
        colours.append(colour)
    _length_axis(table, ax)
    ax.set_ylim(-0.02, 1.04)
    ax.set_ylabel("retrieval score")
    return label_ends(ax, ends, [words.head_name(*head) for head in heads], colours)


def spread(table: pd.DataFrame, ax: Axes, label: str) -> Axes:
    """The median head and the middle 80 % of the heads by length."""
    of_length = table.groupby("length")["value"]
    lengths = np.array(sorted(table["length"].unique()))
    middle, low, high = (of_length.quantile(q).reindex(lengths).to_numpy() for q in (0.5, 0.1, 0.9))
    ax.plot(lengths, middle, color=style.ACCENT, marker="o", markersize=3.5, label="median head")
    ax.fill_between(lengths, low, high, color=style.ACCENT, alpha=0.14, linewidth=0, label="middle 80 % of heads")
    _length_axis(table, ax)
    ax.set_ylabel(label)
    return ax


def short(length: int) -> str:
    """``2k`` for 2,048."""
    return f"{length // 1024}k" if length >= 1024 and length % 1024 == 0 else str(length)


def _length_axis(table: pd.DataFrame, ax: Axes) -> None:
    lengths = sorted(table["length"].unique())
    ax.set_xscale("log")
    ax.set_xticks(lengths, [short(length) for length in lengths])
    ax.minorticks_off()
    ax.set_xlabel("input length in tokens")


def _of(table: pd.DataFrame, head: Head) -> pd.DataFrame:
    return table.loc[(table["layer"] == head[0]) & (table["head"] == head[1])]
