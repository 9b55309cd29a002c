"""Texts whose words are shaded by their attention, laid out in lines: a saved table and an Axes in, the Axes out."""

from collections.abc import Callable, Mapping, Sequence

import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.font_manager import FontProperties
from matplotlib.patches import Rectangle
from matplotlib.textpath import TextPath

from reports import style, words

_LINE, _SIZE = 0.165, 7.0  # inches between lines of text; points
_GAP = 0.24  # inches between the two drawings of a text


def drawn_twice(instances: pd.DataFrame, titles: tuple[str, str], told: Callable[[pd.DataFrame, str], str]) -> Figure:
    """Every text under its original attention (left) and under an adversarial one.

    Args:
        instances: as the table ``instances``.
        titles: of the two columns.
        told: what stands above a drawing, from its rows and which of the two it is.
    """
    width = style.WIDE / 2 - _GAP / 2
    high = heights(instances, width)
    total = sum(high.values()) + 0.5 * len(high) + 0.3
    figure = style.blank(style.WIDE, total)
    top = total - 0.24
    sides = [(column * (width + _GAP) / style.WIDE, which) for column, which in enumerate(("original", "adversarial"))]
    for (left, _), title in zip(sides, titles, strict=True):
        figure.text(left, 1 - 0.06 / total, title, va="top", fontsize=8.5, fontweight="bold", color=style.INK)
    for number, height in high.items():
        for left, which in sides:
            rows = instances.loc[(instances["instance"] == number) & (instances["which"] == which)]
            figure.text(left, (top - 0.22) / total, told(rows, which), fontsize=style.SMALL, color=style.MUTED,
                        va="bottom")  # fmt: skip
            box = (left, (top - 0.34 - height) / total, width / style.WIDE, height / total)
            attended_text(rows, figure.add_axes(box), width)
        top -= height + 0.5
    return figure


def attended_text(rows: pd.DataFrame, ax: Axes, width: float) -> Axes:
    """A text with every word shaded by its weight.

    Args:
        rows: rows of ``instances`` of one text under one attention.
        ax: where to draw, ``width`` inches wide; its y axis counts lines from the top.
        width: in inches.
    """
    lines = lay_out([str(text) for text in rows.sort_values("position")["text"]], width)
    weights = rows.sort_values("position")["weight"].tolist()
    for weight, (text, line, start, size) in zip(weights, lines, strict=True):
        face = style.SHARES(float(weight))
        ax.add_patch(
            Rectangle((start - 0.02, line - 0.42), size + 0.04, 0.84, facecolor=face, edgecolor="none", zorder=1)
        )
        ax.text(start, line, text, fontsize=_SIZE, va="center", ha="left", color=style.text_colour(face), zorder=2)
    ax.set(xlim=(0, width), ylim=(max(line for _, line, _, _ in lines) + 0.6, -0.6))
    ax.set_axis_off()
    return ax


def lay_out(texts: Sequence[str], width: float) -> list[tuple[str, int, float, float]]:
    """Words in lines of ``width`` inches: each as it can be drawn, its line, where it begins and how wide it is."""
    made: list[tuple[str, int, float, float]] = []
    line, at = 0, 0.03
    for text in texts:
        shown = style.drawable(words.visible(text))
        size = TextPath((0, 0), shown or " ", size=_SIZE, prop=FontProperties(family="DejaVu Sans")).get_extents().width
        size = max(size / 72, 0.03)
        if at + size > width and at > 0.03:
            line, at = line + 1, 0.03
        made.append((shown, line, at, size))
        at += size + 0.07
    return made


def heights(instances: pd.DataFrame, width: float) -> Mapping[int, float]:
    """Inches that each text needs when it is drawn ``width`` inches wide."""
    return {
        int(str(number)): _LINE * (1 + lay_out([str(t) for t in rows.sort_values("position")["text"]], width)[-1][1])
        for number, rows in instances.loc[instances["which"] == "original"].groupby("instance")
    }
