"""How figures look: sizes in inches, colours, fonts, and how they are saved.

Colours are from Okabe & Ito's set and from perceptually even maps, so that they are told apart in grey
print and by colour-blind readers; kinds also differ by marker. The page turns figures dark by inverting lightness,
which is why no figure paints its own background.
"""

import io
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any, cast

import matplotlib as mpl
import seaborn as sns
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.cm import ScalarMappable
from matplotlib.colors import Colormap
from matplotlib.figure import Figure
from matplotlib.font_manager import FontProperties, findfont, get_font

INK = "#1b1e22"
MUTED = "#686e76"
FAINT = "#d3d7dc"
ACCENT = "#0072b2"
# related kinds have related hues: by place blue, by token green and brown, by grammar purple, sinks grey
KIND_COLOURS = {
    "induction": "#d55e00", "previous_token": "#0072b2", "duplicate_token": "#009e73", "syntactic": "#a34a8f",
    "coreference": "#5d4bb3", "bracket_matching": "#7a9a01", "rare_word": "#8c6d00", "positional": "#56b4e9",
    "current_token": "#17a2a2", "separator": "#5f666e", "sink": "#9aa1a9", "broad": "#e0a800", "redundant": "#cc8fb8",
}  # fmt: skip
KIND_MARKERS = {
    "induction": "o", "previous_token": "s", "duplicate_token": "^", "syntactic": "D", "coreference": "P",
    "bracket_matching": "X", "rare_word": "*", "positional": "v", "current_token": "<", "separator": ">", "sink": "h",
    "broad": "d", "redundant": "p",
}  # fmt: skip
KIND_LETTERS = {
    "induction": "I", "previous_token": "P", "duplicate_token": "D", "syntactic": "X", "coreference": "E",
    "bracket_matching": "B", "rare_word": "R", "positional": "O", "current_token": "C", "separator": "M", "sink": "S",
    "broad": "W", "redundant": "=",
}  # fmt: skip
SERIES = ("#0072b2", "#d55e00", "#00825f", "#a34a8f", "#8c6d00", "#4d4d4d", "#5d4bb3", "#b3394a")
MARKERS = ("o", "s", "^", "D", "v", "P", "X", "<")
NARROW, WIDE = 4.6, 7.2  # inches: one column of text, the whole page
SMALL = 7.0  # points: the smallest text

_FONT = "DejaVu Sans"  # ships with matplotlib: the same layout on every machine
_RC = {
    "font.family": "sans-serif",
    "font.sans-serif": [_FONT, "Helvetica", "Arial", "sans-serif"],
    "font.size": 8.5,
    "axes.titlesize": 8.5,
    "axes.titleweight": "bold",
    "axes.titlelocation": "left",
    "axes.labelsize": 8.5,
    "axes.edgecolor": MUTED,
    "axes.labelcolor": INK,
    "axes.linewidth": 0.7,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.facecolor": "none",
    "figure.facecolor": "none",
    "text.color": INK,
    "text.parse_math": False,  # a token may hold a dollar sign
    "xtick.color": MUTED,
    "ytick.color": MUTED,
    "xtick.labelcolor": INK,
    "ytick.labelcolor": INK,
    "xtick.labelsize": 7.5,
    "ytick.labelsize": 7.5,
    "xtick.major.width": 0.6,
    "ytick.major.width": 0.6,
    "xtick.major.size": 2.5,
    "ytick.major.size": 2.5,
    "lines.linewidth": 1.5,
    "legend.frameon": False,
    "legend.fontsize": 7.5,
    "svg.fonttype": "none",  # text stays text: it can be searched, selected and restyled
    "svg.hashsalt": "interp",  # the same figure is the same bytes
    "savefig.dpi": 200,
}


# cubehelix (Green 2011): lightness falls evenly from near white, so that most of a map stays quiet
SHARES: Colormap = sns.cubehelix_palette(start=2.8, rot=-0.22, hue=1.0, light=0.985, dark=0.16, as_cmap=True)
SIGNED: Colormap = sns.color_palette("vlag", as_cmap=True)


@contextmanager
def paper() -> Iterator[None]:
    """Draw with this style inside; whatever was set before is restored."""
    with mpl.rc_context(cast("dict[Any, Any]", _RC)):
        yield


def blank(width: float, height: float) -> Figure:
    """An empty figure of a size in inches, whose Axes are placed by hand."""
    figure = Figure(figsize=(width, height))
    FigureCanvasAgg(figure)
    return figure


def canvas(width: float, height: float, panels: int = 1, share: bool = False) -> tuple[Figure, list[Axes]]:
    """A figure of a size in inches, with constrained layout, and its panels side by side."""
    figure = Figure(figsize=(width, height), layout="constrained")
    FigureCanvasAgg(figure)
    axes = figure.subplots(ncols=panels, squeeze=False, sharex=share, sharey=share)
    return figure, list(axes[0])


def column(width: float, height: float, panels: int) -> tuple[Figure, list[Axes]]:
    """As `canvas`, with the panels one above the other and one horizontal axis for all."""
    figure = Figure(figsize=(width, height), layout="constrained")
    FigureCanvasAgg(figure)
    axes = figure.subplots(nrows=panels, squeeze=False, sharex=True)
    return figure, [row[0] for row in axes]


def fixed(width: float, height: float, margins: tuple[float, float, float, float]) -> tuple[Figure, Axes]:
    """A figure around one Axes whose own size is given; margins left, right, bottom, top; all in inches."""
    left, right, bottom, top = margins
    full = (left + width + right, bottom + height + top)
    figure = blank(*full)
    axes = figure.add_axes((left / full[0], bottom / full[1], width / full[0], height / full[1]))
    return figure, axes


def side_bar(figure: Figure, axes: Sequence[Axes], drawn: ScalarMappable, label: str) -> None:
    """A slim colour bar to the right of panels that share it."""
    bar = figure.colorbar(drawn, ax=list(axes), aspect=28, fraction=0.03, pad=0.02)
    bar.set_label(label, fontsize=SMALL + 0.5)
    bar.ax.tick_params(labelsize=SMALL)
    bar.outline.set_visible(False)  # pyright: ignore[reportCallIssue]: its annotation is wrong


def render(figure: Figure) -> tuple[bytes, bytes]:
    """The figure as SVG (transparent) and as PNG (on white, 200 dots per inch). No dates in them, so bytes repeat."""
    svg, png = io.BytesIO(), io.BytesIO()
    with paper():
        figure.savefig(svg, format="svg", metadata={"Date": None, "Creator": None})
        figure.savefig(png, format="png", facecolor="white", metadata={"Software": None})
    return svg.getvalue(), png.getvalue()


def drawable(text: str) -> str:
    """Text with what the figure font has no glyph for as ``U+4E2D``: never an empty box."""
    known = get_font(findfont(FontProperties(family=_FONT))).get_charmap()
    return "".join(char if ord(char) in known else f"U+{ord(char):04X}" for char in text)


def text_colour(face: Sequence[float]) -> str:
    """Ink or white, whichever reads better on a face colour (relative luminance, WCAG 2)."""
    linear = [c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in face[:3]]
    return INK if 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2] > 0.23 else "#ffffff"


def spread(wanted: Sequence[float], gap: float) -> list[float]:
    """Places at least ``gap`` apart, in the order of ``wanted`` and as near to it as one sweep each way gets.

    Labels beside a figure use it so that none covers another.
    """
    order = sorted(range(len(wanted)), key=wanted.__getitem__)
    groups: list[tuple[float, list[int]]] = []  # (centre, members) of runs that touch
    for index in order:
        groups.append((wanted[index], [index]))
        while len(groups) > 1 and groups[-1][0] - groups[-2][0] < gap * (len(groups[-1][1]) + len(groups[-2][1])) / 2:
            members = groups[-2][1] + groups[-1][1]
            groups[-2:] = [(sum(wanted[i] for i in members) / len(members), members)]
    places = [0.0] * len(wanted)
    for centre, members in groups:
        for rank, index in enumerate(members):
            places[index] = centre + (rank - (len(members) - 1) / 2) * gap
    return places
