"""Maps of layers and heads, from 2 x 4 to 80 x 64."""

from collections.abc import Collection

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.colors import Colormap, Normalize
from matplotlib.figure import Figure
from matplotlib.image import AxesImage
from matplotlib.patches import Rectangle

from reports import glossary, style, words
from reports.figures.labels import figure_of, inches

Head = tuple[int, int]
MAP = "head-map"  # how the page knows a map, to answer the pointer with the head under it
_CEILINGS = (0.05, 0.1, 0.2, 0.5, 1.0)
_FINE = 4  # a cell is so many pixels wide where a square is drawn inside it
_LABELS = 14  # margin labels of a map: more than this reads worse than a table


def map_figure(n_layers: int, n_heads: int, labels: bool = True) -> tuple[Figure, Axes]:
    """A figure whose cells are as large as a page of 6 inches allows, with room for labels on the right."""
    width = n_heads * float(np.clip(2.9 / n_heads, 0.072, 0.75))
    height = n_layers * float(np.clip(4.75 / n_layers, 0.06, 0.42))
    return style.fixed(max(width, 1.6), height, (0.5, 0.75 if labels else 0.15, 0.85, 0.1))


def map_grid(panels: int, n_layers: int, n_heads: int) -> tuple[Figure, list[Axes]]:
    """A figure of several small maps, each with room for a title above and a colour bar below."""
    width, height = float(np.clip(n_heads * 0.14, 1.2, 1.95)), float(np.clip(n_layers * 0.085, 0.5, 2.6))
    left, gap, above, below = 0.5, 0.45, 0.42, 0.82
    across = max(1, min(panels, int((style.WIDE + 1.0 - left) // (width + gap))))
    down = -(-panels // across)
    full = (left + across * (width + gap), down * (above + height + below))
    figure = style.blank(*full)
    axes = []
    for index in range(panels):
        row, column = divmod(index, across)
        x = left + column * (width + gap)
        y = full[1] - (row + 1) * (above + height + below) + below
        axes.append(figure.add_axes((x / full[0], y / full[1], width / full[0], height / full[1])))
    return figure, axes


def head_map(
    table: pd.DataFrame, ax: Axes, called: Collection[Head] = (), metric: str = "", large: bool = True
) -> Axes:
    """Draw one value a head: layer 0 on top, head 0 on the left; heads without a value are hatched.

    Args:
        table: columns ``layer, head, value``, one row a head (one metric on one data at one stack).
        ax: where to draw.
        called: heads to outline, and to name on the right.
        metric: decides limits and colours: shares of attention run from 0 to 1, copying by eigenvalues is diverging
            around 0, copying by logits runs from -1 to 1, everything else from 0 to its largest value.
        large: whether it is a map to read values from, which are printed in cells that are large enough on paper. In a
            small one, shares run to a round ceiling of their own, so that weak scores are seen too.

    Returns:
        The Axes; its image's array is [layer, head].
    """
    grid = _grid(table)
    n_layers, n_heads = grid.shape
    norm, colours = _scale(grid, metric, large)
    ax.add_patch(
        Rectangle((-0.5, -0.5), n_heads, n_layers, hatch="/////", facecolor="none", edgecolor=style.FAINT, linewidth=0)
    )
    data = str(table["data"].iloc[0]) if "data" in table and len(table) else ""
    stack = words.stack_name(str(table["site"].iloc[0])) if "site" in table and len(table) else ""
    ax.set_gid(f"{MAP}/{metric}/{data}/{stack}")
    image = ax.imshow(
        np.ma.masked_invalid(grid), cmap=colours, norm=norm, aspect="auto", interpolation="nearest", zorder=1
    )
    head_ticks(ax, n_layers, n_heads)
    if large:
        _cell_values(ax, grid, image)
    _outline(ax, called)
    ax.set(xlabel="head", ylabel="layer")
    return ax


def inner_squares(table: pd.DataFrame, ax: Axes) -> Axes:
    """Draw a second value a head as a square inside its cell of a map, in the map's own colours.

    Where the two values are alike the square cannot be seen, so that the eye goes to the heads that differ.

    Args:
        table: rows as `head_map` takes them, of heads that are on the map.
        ax: an Axes that `head_map` has drawn on.
    """
    cells = ax.images[0]
    norm = cells.norm
    assert isinstance(norm, Normalize)
    n_layers, n_heads = np.asarray(cells.get_array()).shape
    second = _grid(table, n_layers, n_heads)
    if np.isfinite(second).any():
        norm.vmax = max(norm.vmax or 0.0, float(np.nanmax(second)))
    fine = np.full((_FINE * n_layers, _FINE * n_heads), np.nan)
    for down in range(1, _FINE - 1):
        for across in range(1, _FINE - 1):
            fine[down::_FINE, across::_FINE] = second
    ax.imshow(np.ma.masked_invalid(fine), cmap=cells.cmap, norm=norm, aspect="auto", interpolation="nearest",
              extent=(-0.5, n_heads - 0.5, n_layers - 0.5, -0.5), zorder=2)  # fmt: skip
    return ax


def colour_bar(ax: Axes, label: str, below: float = 0.5) -> Axes:
    """A slim bar some inches below a map of `map_figure` or `map_grid`, with the metric and its unit."""
    figure, box = figure_of(ax), ax.get_position()
    inch = 1 / figure.get_figheight()
    bar_axes = figure.add_axes((box.x0, box.y0 - below * inch, box.width, 0.07 * inch))
    bar = figure.colorbar(ax.images[0], cax=bar_axes, orientation="horizontal")
    bar.outline.set_visible(False)  # pyright: ignore[reportCallIssue]: its annotation is wrong
    bar_axes.tick_params(length=2, labelsize=style.SMALL)
    bar_axes.locator_params(axis="x", nbins=5 if inches(ax)[0] >= 1.6 else 3, steps=[1, 2, 5, 10])
    bar_axes.set_xlabel(label, fontsize=style.SMALL + 0.5, labelpad=2)
    return ax


def name_heads(ax: Axes, called: Collection[Head]) -> Axes:
    """Name heads at the right of a map, each at its layer with a thin line; labels never cover one another."""
    named = sorted(called)[:_LABELS]
    by_layer: dict[int, list[str]] = {}
    for layer, head in named:
        by_layer.setdefault(layer, []).append(words.head_name(layer, head))
    labels = [(layer, name) for layer, names in by_layer.items() for name in names]
    bottom, top = ax.get_ylim()
    gap = abs(bottom - top) / inches(ax)[1] * (style.SMALL + 2) / 72
    across = ax.get_yaxis_transform()
    for (layer, name), place in zip(labels, style.spread([layer for layer, _ in labels], gap), strict=True):
        ax.plot([1.005, 1.03, 1.06], [layer, layer, place], transform=across, color=style.MUTED, linewidth=0.6,
                clip_on=False, solid_joinstyle="round")  # fmt: skip
        ax.text(1.075, place, name, transform=across, va="center", fontsize=style.SMALL, url=f"#{name}")
    return ax


def _grid(table: pd.DataFrame, n_layers: int = 0, n_heads: int = 0) -> np.ndarray:
    """Values as [layer, head], NaN where there is none; at least as large as asked for."""
    whole = table.pivot(index="layer", columns="head", values="value")
    # a layer or head between those that were looked at keeps its place
    rows, columns = max(n_layers, *whole.index + 1), max(n_heads, *whole.columns + 1)
    return whole.reindex(index=range(rows), columns=range(columns)).to_numpy(float)


def _scale(grid: np.ndarray, metric: str, large: bool) -> tuple[Normalize, Colormap]:
    largest = float(np.nanmax(np.abs(grid))) if np.isfinite(grid).any() else 1.0
    if metric == "copying_eigenvalues":
        return Normalize(-1, 1), style.SIGNED
    if metric == "copying":
        return Normalize(-1, 1), style.SHARES
    if np.isfinite(grid).any() and float(np.nanmin(grid)) < 0:  # a signed change
        return Normalize(-largest, largest), style.SIGNED
    if glossary.UNITS.get(metric):
        return Normalize(0, largest or 1.0), style.SHARES
    ceiling = 1.0 if large else next((c for c in _CEILINGS if c >= largest), largest)
    return Normalize(0, max(ceiling, largest)), style.SHARES


def head_ticks(ax: Axes, n_layers: int, n_heads: int) -> None:
    """Ticks at as many layers and heads as there is room to name."""
    width, height = inches(ax)
    for axis, n, length, least in ((ax.yaxis, n_layers, height, 0.14), (ax.xaxis, n_heads, width, 0.19)):
        step = next((s for s in (1, 2, 5, 10, 20, 50, 100) if length / n * s >= least), n)
        axis.set_ticks(range(0, n, step))
    ax.tick_params(length=0)
    for spine in ax.spines.values():
        spine.set(visible=True, color=style.FAINT, linewidth=0.6)


def _cell_values(ax: Axes, grid: np.ndarray, image: AxesImage) -> None:
    width, height = inches(ax)
    if width / grid.shape[1] < 0.23 or height / grid.shape[0] < 0.13:
        return
    for (layer, head), value in np.ndenumerate(grid):
        if np.isfinite(value) and abs(value) >= 0.005:  # what would print as 0 stays empty
            face = np.asarray(image.cmap(image.norm(value)), dtype=float)
            ink = style.text_colour(face.tolist())
            small = ink == style.INK and abs(value) < 0.1
            ax.text(head, layer, cell_text(value), ha="center", va="center", fontsize=6,
                    color=style.MUTED if small else ink, zorder=3)  # fmt: skip


def cell_text(value: float) -> str:
    """Two decimals without the leading zero: ``.90``, ``1.0``, ``−.12``."""
    text = f"{abs(value):.2f}"
    text = text.removeprefix("0") if text != "0.00" else "0"
    return (words.MINUS if value < 0 and text != "0" else "") + (text if len(text) < 4 else f"{abs(value):.1f}")


def _outline(ax: Axes, called: Collection[Head]) -> None:
    for layer, head in called:
        ax.add_patch(
            Rectangle((head - 0.5, layer - 0.5), 1, 1, fill=False, edgecolor=style.INK, linewidth=1.1, zorder=4)
        )
