"""Figures of `attention-design`: the panels that an experiment declares, drawn from its curves."""

import math
from typing import Any

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, LogLocator, NullFormatter

from reports import style

_HEIGHT = 2.6
_MANY = 5  # curves whose legend stands beside the axes


def panels(declared: pd.DataFrame, curves: pd.DataFrame) -> Figure:
    """The panels of one claim side by side."""
    described: list[dict[str, Any]] = declared.sort_values("panel").to_dict("records")  # pyright: ignore[reportAssignmentType]
    n = len(described)
    width = style.NARROW if n == 1 else style.WIDE if n == 2 else style.WIDE + 1.4
    dots = n == 1 and described[0]["kind"] == "dots"
    height = 0.8 + 0.3 * len(curves["curve"].unique()) if dots else _HEIGHT
    figure, axes = style.canvas(width, height, n)
    for ax, panel in zip(axes, described, strict=True):
        mine = curves.loc[curves["panel"] == panel["panel"]]
        (_dots if panel["kind"] == "dots" else _lines)(panel, mine, ax)
        ax.set_title(str(panel["title"]))
    return figure


def _lines(panel: dict[str, Any], curves: pd.DataFrame, ax: Axes) -> Axes:
    """Lines with their intervals as bands (points where so declared); theory dashed and grey."""
    measured = 0
    for name, rows in curves.groupby("curve", sort=False):
        theory = bool(rows["theory"].iloc[0])
        rows = rows.sort_values("x") if panel["kind"] == "lines" else rows
        x, y = rows["x"].to_numpy(), rows["y"].to_numpy()
        if theory:
            ax.plot(x, y, color=style.MUTED, linestyle=(0, (4, 2)), linewidth=1.0, label=name, zorder=1)
            continue
        colour, marker = style.SERIES[measured % len(style.SERIES)], style.MARKERS[measured % len(style.MARKERS)]
        measured += 1
        if panel["kind"] == "points":
            ax.plot(
                x, y, marker="o", linestyle="", color=colour, markersize=3, alpha=0.6, markeredgewidth=0, label=name
            )
            continue
        few = len(x) <= 16
        ax.plot(x, y, color=colour, marker=marker if few else "", markersize=3.5, label=name, zorder=3)
        if bool(rows["low"].notna().any()):
            ax.fill_between(x, rows["low"], rows["high"], color=colour, alpha=0.15, linewidth=0, zorder=2)
    ax.set_xscale(str(panel["x_scale"]))
    ax.set_yscale(str(panel["y_scale"]))
    if panel["y_scale"] == "log":
        ax.yaxis.set_major_formatter(FuncFormatter(_power))
        ax.yaxis.set_minor_formatter(NullFormatter())
    ax.set_xlabel(str(panel["x_label"]))
    ax.set_ylabel(str(panel["y_label"]))
    low, high = ax.get_ylim()
    if panel["y_scale"] == "log" and low > 0.009 and high < 100 * low:  # powers of ten alone are a tick or two
        ax.yaxis.set_major_locator(LogLocator(subs=(1.0, 2.0, 5.0)))
    if panel["x_scale"] == "log":
        _plain_ticks(np.unique(curves["x"].to_numpy()), ax)
    if not math.isnan(panel["reference"]):
        ax.axhline(panel["reference"], color=style.MUTED, linewidth=0.8, linestyle=(0, (1, 2)), zorder=1)
        ax.annotate(
            str(panel["reference_name"]), (1, panel["reference"]), xycoords=("axes fraction", "data"), ha="right",
            va="bottom", fontsize=style.SMALL, color=style.MUTED, xytext=(0, 1), textcoords="offset points",
        )  # fmt: skip
    n = len(curves["curve"].unique())
    if n >= _MANY:
        ax.legend(loc="center left", bbox_to_anchor=(1.0, 0.5), handlelength=1.6)
    elif n > 1:
        ax.legend(loc="best", handlelength=1.6)
    return ax


def _dots(panel: dict[str, Any], curves: pd.DataFrame, ax: Axes) -> Axes:
    """One dot with its interval for each named thing, the first on top."""
    rows = curves.reset_index(drop=True)
    places = np.arange(len(rows))[::-1]
    left = (rows["x"] - rows["low"]).clip(lower=0).fillna(0)
    right = (rows["high"] - rows["x"]).clip(lower=0).fillna(0)
    ax.errorbar(
        rows["x"],
        places,
        xerr=[left, right],
        fmt="o",
        color=style.ACCENT,
        markersize=5,
        elinewidth=1.4,
        capsize=0,
        zorder=3,
        clip_on=False,
    )
    ax.set_yticks(places, [str(name) for name in rows["curve"]])
    ax.set_ylim(-0.6, len(rows) - 0.4)
    ax.tick_params(axis="y", length=0)
    ax.spines["left"].set_visible(False)
    ax.set_xlabel(str(panel["x_label"]))
    if str(panel["x_label"]) == "accuracy":
        ax.set_xlim(0, 1.02)
    if not math.isnan(panel["reference"]):
        ax.axvline(panel["reference"], color=style.MUTED, linewidth=0.8, linestyle=(0, (1, 2)), zorder=1)
        ax.annotate(
            str(panel["reference_name"]), (panel["reference"], 1), xycoords=("data", "axes fraction"), ha="left",
            va="top", fontsize=style.SMALL, color=style.MUTED, xytext=(3, 0), textcoords="offset points",
        )  # fmt: skip
    return ax


def _plain_ticks(values: np.ndarray, ax: Axes) -> None:
    """The measured values themselves as ticks of a logarithmic axis where they are few; powers of ten otherwise."""
    ax.xaxis.set_minor_formatter(NullFormatter())
    if len(values) > 10:
        ax.xaxis.set_major_formatter(FuncFormatter(_power))
        return
    shown: list[float] = []
    apart = (values.max() / values.min()) ** 0.08  # no nearer than 8 % of the axis: names would cover one another
    for value in sorted(values) if len(values) <= 7 else sorted(values)[::2]:
        if not shown or value >= shown[-1] * apart:
            shown.append(value)
    ax.set_xticks(shown, [_short(value) for value in shown])
    ax.minorticks_off()


def _short(value: float) -> str:
    if value >= 1024 and value % 1024 == 0:
        return f"{value / 1024:g}k"
    return f"{value:g}" if value % 1 == 0 else f"{value:.3g}"


def _power(value: float, _: object = None) -> str:
    """A tick of a logarithmic axis: plain from 0.01 to 1000, else as a power of ten."""
    if 0.009 < value < 1001:
        return f"{value:g}"
    mantissa, power = f"{value:.0e}".split("e")
    raised = str(int(power)).translate(str.maketrans("-0123456789", "⁻⁰¹²³⁴⁵⁶⁷⁸⁹"))
    return f"10{raised}" if mantissa == "1" else ""
