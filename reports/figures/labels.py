"""Names written beside what they name, so that no legend has to be read."""

import itertools
from collections.abc import Sequence

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.transforms import Bbox

from reports import style

_ANGLES = np.radians([0, 180, 40, -40, 140, -140, 90, -90])
_DISTANCES = (8.0, 15.0, 24.0, 36.0)  # points from the middle of a marker


def figure_of(ax: Axes) -> Figure:
    """The figure an Axes is in."""
    figure = ax.get_figure(root=True)
    if figure is None:
        raise ValueError("an Axes must be in a figure to be drawn on; this one was removed from its figure")
    return figure


def inches(ax: Axes) -> tuple[float, float]:
    """Width and height of an Axes on paper, before constrained layout moves it."""
    figure, box = figure_of(ax), ax.get_position()
    return box.width * figure.get_figwidth(), box.height * figure.get_figheight()


def label_points(
    ax: Axes, points: Sequence[tuple[float, float]], names: Sequence[str], avoid: Sequence[tuple[float, float]] = ()
) -> Axes:
    """Name points, each at the nearest place where its name covers neither a point nor another name.

    In an SVG each name is a link to its head (``#L18H6``). ``avoid``: further points that no name should cover. Call it
    last: it measures at the final limits.
    """
    if not points:
        return ax
    figure = figure_of(ax)
    figure.draw_without_rendering()  # constrained layout and text sizes are known after this
    per_point = figure.dpi / 72
    frame = ax.get_window_extent()
    centres, others = (ax.transData.transform(some) if len(some) else [] for some in (points, avoid))
    taken = [
        Bbox.from_bounds(x - 3 * per_point, y - 3 * per_point, 6 * per_point, 6 * per_point)
        for x, y in [*centres, *others]
    ]
    for point, centre, name in zip(points, centres, names, strict=True):
        text = ax.annotate(
            name, point, xytext=(0, 0), textcoords="offset points", fontsize=style.SMALL, va="center", ha="center",
            zorder=6, url=f"#{name}", arrowprops={"arrowstyle": "-", "color": style.MUTED, "lw": 0.5, "shrinkB": 3},
        )  # fmt: skip
        costs = [
            (_cost(box, centre, taken, frame, per_point), box)
            for box in _places(centre, _half_size(ax, name), per_point)
        ]
        best = min(costs, key=lambda pair: pair[0])[1]
        taken.append(best.padded(per_point / 2))
        middle = ((best.x0 + best.x1) / 2, (best.y0 + best.y1) / 2)
        text.set_position(tuple((np.asarray(middle) - centre) / per_point))
        if text.arrow_patch is not None:
            text.arrow_patch.set_visible(np.hypot(*(np.asarray(middle) - centre)) > 26 * per_point)
    return ax


def label_ends(ax: Axes, ends: Sequence[tuple[float, float]], names: Sequence[str], colours: Sequence[str]) -> Axes:
    """Name curves at their right ends, outside the Axes, spread so that names do not touch."""
    low, high = ax.get_ylim()
    gap = (high - low) / inches(ax)[1] * (style.SMALL + 2.5) / 72
    places = style.spread([y for _, y in ends], gap)
    for (x, y), place, name, colour in zip(ends, places, names, colours, strict=True):
        ax.annotate(
            name, (x, y), xytext=(1.03, place), textcoords=ax.get_yaxis_transform(), fontsize=style.SMALL,
            va="center", color=colour, annotation_clip=False, url=f"#{name}",
            arrowprops={"arrowstyle": "-", "color": colour, "lw": 0.5, "shrinkA": 1, "shrinkB": 2, "alpha": 0.6},
        )  # fmt: skip
    return ax


def _half_size(ax: Axes, name: str) -> tuple[float, float]:
    """Half the width and height of a name in pixels, without its arrow."""
    probe = ax.text(0, 0, name, fontsize=style.SMALL, transform=None)
    extent = probe.get_window_extent()
    probe.remove()
    return extent.width / 2, extent.height / 2


def _places(centre: np.ndarray, half: tuple[float, float], per_point: float) -> list[Bbox]:
    places = []
    for distance, angle in itertools.product(_DISTANCES, _ANGLES):
        across, up = np.cos(angle), np.sin(angle)
        x = centre[0] + distance * per_point * across + np.sign(np.round(across, 6)) * half[0]
        y = centre[1] + distance * per_point * up + np.sign(np.round(up, 6)) * half[1] * 0.5
        places.append(Bbox.from_bounds(x - half[0], y - half[1], 2 * half[0], 2 * half[1]))
    return places


def _cost(box: Bbox, centre: np.ndarray, taken: Sequence[Bbox], frame: Bbox, per_point: float) -> float:
    """Area covered of others or left outside, in square points, which weighs far more than distance."""
    covered = sum(_overlap(box, other) for other in taken)
    outside = box.width * box.height - _overlap(box, frame)
    middle = np.array([(box.x0 + box.x1) / 2, (box.y0 + box.y1) / 2])
    return 10 * (covered + outside) / per_point**2 + 0.05 * float(np.hypot(*(middle - centre))) / per_point


def _overlap(one: Bbox, other: Bbox) -> float:
    width = min(one.x1, other.x1) - max(one.x0, other.x0)
    height = min(one.y1, other.y1) - max(one.y0, other.y0)
    return max(width, 0) * max(height, 0)
