"""Figures of `model-health`: a saved table and an Axes in, the Axes out. Nothing is computed here."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pandas as pd
import seaborn as sns
from matplotlib.axes import Axes
from matplotlib.ticker import FuncFormatter, LogLocator, MaxNLocator, NullFormatter, NullLocator

from reports import style, words
from reports.chapters.reading import records

COLOURS = {"fail": "#b3261e", "warn": "#d58a00", "ok": "#00825f"}
MARKERS = {"fail": "X", "warn": "D", "ok": "o"}
_LEAST, _MOST = 1e-6, 1e3  # of value over limit; what lies beyond is drawn at the edge
_UNITS = ((2**40, "TiB"), (2**30, "GiB"), (2**20, "MiB"), (2**10, "KiB"))
LINES = {
    "eager, every layer": "eager, every layer kept",
    "eager, one layer": "eager, one layer",
    "here": "here",
    "kv cache": "keys and values",
}


def headroom(checks: pd.DataFrame, ax: Axes) -> Axes:
    """How far each check is from its limit: value over limit on a log scale, or limit over value where small is bad.

    Args:
        checks: rows of the table ``checks`` that have a limit and a verdict of ok, warn or fail, from top to bottom.
        ax: where to draw.
    """
    ax.axvline(1, color=style.MUTED, linewidth=0.9, zorder=1)
    ax.axvspan(1, _MOST * 3, color=COLOURS["fail"], alpha=0.06, linewidth=0)
    for place, row in enumerate(records(checks)):
        at = float(np.clip(_share(row), _LEAST, _MOST))
        verdict = str(row["verdict"])
        ax.hlines(place, _LEAST / 3, at, color=style.FAINT, linewidth=0.8, zorder=1)
        ax.plot(at, place, MARKERS[verdict], color=COLOURS[verdict], markersize=5, markeredgecolor="white",
                markeredgewidth=0.5, zorder=3, clip_on=False)  # fmt: skip
        ax.annotate(measured(row), (1.02, place), xycoords=ax.get_yaxis_transform(), va="center", fontsize=style.SMALL,
                    color=style.MUTED if verdict == "ok" else COLOURS[verdict], annotation_clip=False)  # fmt: skip
    names = [str(name).replace("_", " ") for name in checks["check"]]
    ax.set(xscale="log", xlim=(_LEAST / 2, _MOST * 2), ylim=(len(names) - 0.4, -0.6))
    ax.set_yticks(range(len(names)), names)
    ax.xaxis.set_major_locator(LogLocator(10, numticks=12))
    ax.xaxis.set_minor_formatter(NullFormatter())
    ax.xaxis.set_major_formatter(FuncFormatter(_power))
    ax.set_xlabel("share of the limit")
    ax.tick_params(axis="y", length=0)
    sns.despine(ax=ax, left=True)
    return ax


def by_depth(depth: pd.DataFrame, ax: Axes, label: str) -> Axes:
    """One line over the layers, on a log scale.

    Args:
        depth: rows of the table ``depth`` of one metric.
        ax: where to draw. label: of the y axis.
    """
    rows = depth.sort_values("layer", kind="stable")
    values = np.where(rows["value"] > 0, rows["value"], np.nan)
    ax.plot(rows["layer"], values, color=style.ACCENT, marker="o", markersize=2.5, linewidth=1.2)
    known = values[np.isfinite(values)]
    ax.set(yscale="log", xlabel="layer", ylabel=label)
    if len(known):  # at least two decades, so that a flat line looks flat
        middle, half = np.log10(known).mean(), max(1.0, np.ptp(np.log10(known)) * 0.6)
        ax.set_ylim(10 ** (middle - half), 10 ** (middle + half))
    ax.yaxis.set_minor_locator(NullLocator())
    ax.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
    ax.xaxis.set_major_locator(MaxNLocator(integer=True, nbins=4))
    sns.despine(ax=ax)
    return ax


def memory(table: pd.DataFrame, ax: Axes, context: int) -> Axes:
    """Bytes by context, one line a kind, both axes on a log scale; dashed: the context that was asked about.

    Args:
        table: the table ``memory``. ax: where to draw. context: where the dashed line goes.
    """
    for kind, colour, dash in zip(LINES, style.SERIES, ("-", "--", "-", "-."), strict=False):
        rows = table.loc[table["what"] == kind].sort_values("context")
        if len(rows):
            ax.plot(rows["context"], rows["bytes"], color=colour, linestyle=dash, label=LINES[kind])
    ax.axvline(context, color=style.MUTED, linewidth=0.8, linestyle=":")
    ax.set_xscale("log", base=2)
    ax.set_yscale("log", base=1024)
    ax.set(xlabel="context (tokens)", ylabel="memory")
    ax.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:,.0f}"))
    ax.xaxis.set_major_locator(LogLocator(4, numticks=8))
    ax.yaxis.set_major_locator(LogLocator(32, numticks=10))
    ax.yaxis.set_minor_locator(NullLocator())
    ax.xaxis.set_minor_locator(NullLocator())
    ax.yaxis.set_major_formatter(FuncFormatter(_bytes))
    sns.despine(ax=ax)
    ax.legend(loc="lower left", bbox_to_anchor=(0, 1.0), ncols=2, handlelength=2.4, columnspacing=1.2)
    return ax


def measured(row: Mapping[str, Any]) -> str:
    """A check's value with its unit where that is more than a number."""
    value, unit = row["value"], str(row["unit"])
    if pd.isna(value):
        return "n/a"
    if unit == "bytes":
        size, name = next((each for each in _UNITS if value >= each[0]), (1, "B"))
        return f"{value / size:.3g} {name}"
    return f"{value:.2g} FLOP" if unit == "FLOP" else f"{value:.3g}".replace("-", words.MINUS)


def _share(row: Mapping[str, object]) -> float:
    limit = row["warn_at"] if not pd.isna(row["warn_at"]) else row["fail_at"]
    value, limit = float(row["value"]), float(limit)  # type: ignore[arg-type]
    if pd.isna(value) or (limit == 0 and value > 0):
        return _MOST
    if row["worse"] == "below":
        value, limit = limit, value
    if limit <= 0:
        return _MOST if value > 0 else _LEAST
    return value / limit


def _power(value: float, _: object) -> str:
    exponent = round(np.log10(value)) if value > 0 else 0
    return {0: "limit", -1: "0.1", -2: "0.01", 1: "10", 2: "100"}.get(exponent, f"1e{exponent:+d}".replace("-", "−"))


def _bytes(value: float, _: object) -> str:
    units: Sequence[str] = ("B", "KiB", "MiB", "GiB", "TiB", "PiB")
    step = int(np.clip(np.floor(np.log(max(value, 1)) / np.log(1024) + 1e-9), 0, len(units) - 1))
    return f"{value / 1024**step:,.0f} {units[step]}"
