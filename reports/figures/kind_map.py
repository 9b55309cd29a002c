"""The map of a model: every head at its layer, in the colour and with the letter of what it is called."""

from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.collections import PolyCollection
from matplotlib.colors import BoundaryNorm, ListedColormap, to_rgb
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle

from reports import glossary, style
from reports.figures.heads import MAP, head_ticks
from reports.figures.labels import inches

Head = tuple[int, int]
KINDS = tuple(glossary.KINDS)
_LEAST, _MOST = 0.35, 1.0  # opacity of the weakest and the strongest head
_ENTRY = 0.17  # inches of a line of the legend


class KindMap(NamedTuple):
    """One stack's map: its name ('' for the only one), its called heads, its layers and heads."""

    stack: str
    called: pd.DataFrame
    n_layers: int
    n_heads: int


def kind_figure(maps: Sequence[KindMap]) -> Figure:
    """The map of the model: one panel a stack, the legend below.

    Args:
        maps: rows of ``kinds`` with ``called``, stack by stack.
    """
    room = style.WIDE - 0.55 * len(maps)
    cell = float(np.clip(min(2.9, room / len(maps)) / max(each.n_heads for each in maps), 0.072, 0.72))
    tall = float(np.clip(4.75 / max(each.n_layers for each in maps), 0.06, 0.4))
    widths, heights = [each.n_heads * cell for each in maps], [each.n_layers * tall for each in maps]
    present = [kind for kind in KINDS if any((each.called["kind"] == kind).any() for each in maps)]
    columns = 2 if sum(widths) < 4.2 else 3
    lines = -(-max(len(present), 1) // columns)
    above, below, left = 0.25 if len(maps) > 1 else 0.1, 0.5 + _ENTRY * lines, 0.5
    width = max(left + sum(widths) + 0.5 * (len(maps) - 1) + 0.12, 1.85 * columns)
    height = above + max(heights) + below
    figure = style.blank(width, height)
    x = left + max(0.0, width - 0.12 - left - sum(widths) - 0.5 * (len(maps) - 1)) / 2
    for each, wide, high in zip(maps, widths, heights, strict=True):
        ax = figure.add_axes((x / width, (height - above - high) / height, wide / width, high / height))
        kind_map(each, ax)
        ax.set(title=each.stack, ylabel="layer" if each is maps[0] else "")
        x += wide + 0.5
    _kind_legend(figure, present, maps, columns)
    return figure


def kind_map(of: KindMap, ax: Axes) -> Axes:
    """Colour and letter by kind, opacity by strength; a head of two kinds has the second one in its lower corner.

    Kinds come in the order of `glossary.KINDS`, the most telling first. Heads that are called nothing stay empty.

    Returns:
        The Axes; its image's array is [layer, head], holding the number of the kind, masked where there is none.
    """
    codes, opacity = np.full((of.n_layers, of.n_heads), -1), np.zeros((of.n_layers, of.n_heads))
    known = _by_head(of.called)
    corners: list[tuple[Head, str, float]] = []
    for (layer, head), kinds in known.items():
        codes[layer, head], opacity[layer, head] = KINDS.index(kinds[0][0]), _opacity(kinds[0][1])
        corners += [((layer, head), kind, _opacity(strength)) for kind, strength in kinds[1:2]]
    colours = ListedColormap([style.KIND_COLOURS[kind] for kind in KINDS])
    image = ax.imshow(
        np.ma.masked_less(codes, 0), cmap=colours, norm=BoundaryNorm(np.arange(len(KINDS) + 1) - 0.5, len(KINDS)),
        alpha=opacity, aspect="auto", interpolation="nearest", zorder=1,
    )  # fmt: skip
    image.set_extent((-0.5, of.n_heads - 0.5, of.n_layers - 0.5, -0.5))
    triangles = [[(h + 0.5, y - 0.5), (h + 0.5, y + 0.5), (h - 0.5, y + 0.5)] for (y, h), _, _ in corners]
    faces = [(*to_rgb(style.KIND_COLOURS[kind]), alpha) for _, kind, alpha in corners]
    ground = PolyCollection(triangles, facecolors="white", edgecolors="none", zorder=1.5)
    ax.add_collection(ground)
    ax.add_collection(PolyCollection(triangles, facecolors=faces, edgecolors="none", zorder=2))
    ax.set_gid(f"{MAP}/kinds/text/{of.stack}")
    _cell_lines(ax, of.n_layers, of.n_heads)
    head_ticks(ax, of.n_layers, of.n_heads)
    _letters(ax, known, of)
    ax.set(xlim=(-0.5, of.n_heads - 0.5), ylim=(of.n_layers - 0.5, -0.5), xlabel="head", ylabel="layer")
    return ax


def strength(row: Mapping[str, object]) -> float:
    """How strongly a head is its kind, from 0 to 1: its score; of redundant heads how far below the threshold."""
    value, threshold = float(str(row["value"])), float(str(row["threshold"]))
    share = 1 - value / threshold if row["kind"] == "redundant" and threshold > 0 else value
    return float(np.clip(share, 0.0, 1.0)) if np.isfinite(share) else 0.0


def _opacity(of: float) -> float:
    return _LEAST + (_MOST - _LEAST) * of


def _by_head(called: pd.DataFrame) -> dict[Head, list[tuple[str, float]]]:
    """Each head's kinds with their strengths, the most telling kind first."""
    found: dict[Head, dict[str, float]] = {}
    for row in called.to_dict("records"):
        if row["kind"] in KINDS:
            kinds = found.setdefault((int(row["layer"]), int(row["head"])), {})
            kinds[row["kind"]] = max(kinds.get(row["kind"], 0.0), strength(row))
    return {head: sorted(kinds.items(), key=lambda pair: KINDS.index(pair[0])) for head, kinds in found.items()}


def _letters(ax: Axes, known: Mapping[Head, list[tuple[str, float]]], of: KindMap) -> None:
    width, height = inches(ax)
    across, down = width / of.n_heads, height / of.n_layers
    if across < 0.1 or down < 0.1:
        return
    size = float(np.clip(52 * min(down, across), 4.5, 8))
    for (layer, head), kinds in known.items():
        two = len(kinds) > 1 and across > 0.17
        for index, (kind, value) in enumerate(kinds[: 2 if two else 1]):
            x = head + (0.0 if not two else (-0.22, 0.24)[index])
            y = layer + (0.0 if not two else (-0.1, 0.12)[index])
            ground = np.array(to_rgb(style.KIND_COLOURS[kind]))
            face = _opacity(value) * ground + 1 - _opacity(value)
            ax.text(x, y, style.KIND_LETTERS[kind], ha="center", va="center_baseline", fontsize=size, zorder=4,
                    fontweight="bold", color=style.text_colour(face.tolist()))  # fmt: skip


def _cell_lines(ax: Axes, n_layers: int, n_heads: int) -> None:
    ax.hlines(np.arange(1, n_layers) - 0.5, -0.5, n_heads - 0.5, color=style.FAINT, linewidth=0.4, zorder=3)
    ax.vlines(np.arange(1, n_heads) - 0.5, -0.5, n_layers - 0.5, color=style.FAINT, linewidth=0.4, zorder=3)


def _kind_legend(figure: Figure, present: Sequence[str], maps: Sequence[KindMap], columns: int) -> None:
    """Every kind on the map with its letter, its name and how many heads are called so."""
    width, height = figure.get_size_inches()
    lines = -(-max(len(present), 1) // columns)
    if not present:
        figure.text(0.5, 0.1 / height, "no head is called anything", ha="center", va="bottom", color=style.MUTED)
    each = (width - 0.1) / columns
    for index, kind in enumerate(present):
        column, line = divmod(index, lines)
        x, y = 0.08 + column * each, 0.06 + _ENTRY * (lines - 1 - line)
        box = Rectangle((x / width, y / height), 0.16 / width, 0.13 / height, facecolor=style.KIND_COLOURS[kind])
        figure.add_artist(box)
        ink = style.text_colour(to_rgb(style.KIND_COLOURS[kind]))
        figure.text((x + 0.08) / width, (y + 0.062) / height, style.KIND_LETTERS[kind], ha="center", color=ink,
                    va="center_baseline", fontsize=style.SMALL, fontweight="bold")  # fmt: skip
        n = sum(len(of.called.loc[of.called["kind"] == kind].drop_duplicates(["layer", "head"])) for of in maps)
        name = glossary.KINDS[kind].removesuffix(" head")
        figure.text((x + 0.22) / width, (y + 0.062) / height, f"{name} ({n})", va="center_baseline",
                    fontsize=style.SMALL + 0.5)  # fmt: skip
