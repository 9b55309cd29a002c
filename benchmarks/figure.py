"""Time and memory against length, and attention alone against fused attention, in one figure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import matplotlib as mpl
import seaborn as sns
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, LogLocator, NullLocator

from benchmarks.sizes import GIGA, METHODS
from benchmarks.summary import Record

__all__ = ["attention_ratios", "by_length", "lengths_below", "save"]

COLOURS = dict(zip(METHODS, [sns.color_palette("colorblind")[i] for i in (7, 0, 1, 8, 3)], strict=True))
ALONE = [sns.color_palette("colorblind")[i] for i in (4, 2)]
MARKERS = dict(zip(METHODS, "sovD^", strict=True))


def save(
    summary: Sequence[Record],
    attention: Sequence[Record],
    left_out: Sequence[Mapping[str, Any]],
    limit_gb: float,
    stem: Path,
) -> list[Path]:
    """Draw the whole figure and save it as PNG and SVG; the paths."""
    with sns.axes_style("ticks"), mpl.rc_context({"svg.hashsalt": "benchmark", "font.size": 9}):
        figure = Figure(figsize=(11, 3.6), layout="constrained")
        time, memory, alone = figure.subplots(1, 3)
        by_length(summary, "seconds", time).set(ylabel="time of a forward pass (s)")
        by_length(summary, "peak_gb", memory).set(ylabel="peak memory of the process (GB)")
        too_large(left_out, limit_gb, memory)
        attention_ratios(attention, alone)
        handles, labels = time.get_legend_handles_labels()
        figure.legend(handles, labels, loc="outside lower center", ncols=len(METHODS), frameon=False)
        for axes in (time, memory, alone):
            sns.despine(ax=axes)
        files = [stem.with_suffix(suffix) for suffix in (".png", ".svg")]
        for file in files:
            figure.savefig(file, dpi=160)
    return files


def by_length(summary: Sequence[Record], column: str, axes: Axes) -> Axes:
    """One line per method, both axes logarithmic."""
    for method, kind in METHODS.items():
        rows = sorted((row for row in summary if row["method"] == method), key=lambda row: row["length"])
        if rows:
            line: dict[str, Any] = {"color": COLOURS[method], "marker": MARKERS[method], "markersize": 5}
            axes.plot([row["length"] for row in rows], [row[column] for row in rows], label=kind.title, **line)
    return lengths_below(axes, "log")


def too_large(left_out: Sequence[Mapping[str, Any]], limit_gb: float, axes: Axes) -> Axes:
    """Hollow marks where a method would have needed more than the limit, at what it would have needed."""
    predicted = [part for part in left_out if part.get("predicted_bytes")]
    for part in predicted:
        axes.plot(
            part["length"],
            part["predicted_bytes"] / GIGA,
            color=COLOURS[part["method"]],
            marker=MARKERS[part["method"]],
            markerfacecolor="white",
            markersize=5,
            linestyle="none",
        )
    if predicted:
        axes.axhline(limit_gb, color="0.6", linewidth=0.8, linestyle="--")
        axes.annotate(
            f"{limit_gb:g} GB; hollow: predicted, not run", (0.02, limit_gb), xycoords=("axes fraction", "data"),
            va="bottom", fontsize=7, color="0.4",
        )  # fmt: skip
    return axes


def attention_ratios(attention: Sequence[Record], axes: Axes) -> Axes:
    """Attention alone: time of the core over that of fused SDPA, without probes (dashed) and with."""
    shapes = dict.fromkeys((row["n_heads"], row["n_kv_heads"]) for row in attention)
    for colour, (n_heads, n_kv_heads) in zip(ALONE, shapes, strict=False):
        rows = [row for row in attention if (row["n_heads"], row["n_kv_heads"]) == (n_heads, n_kv_heads)]
        for way, style, words in (("basic", "-", "basic probes"), ("attend", "--", "no probes")):
            axes.plot(
                [row["length"] for row in rows],
                [row[f"{way}_to_sdpa"] for row in rows],
                linestyle=style,
                color=colour,
                marker="o",
                markersize=4,
                label=f"{n_heads} heads, {n_kv_heads} kv heads, {words}",
            )
    axes.axhline(1, color="0.6", linewidth=0.8)
    axes.set(ylabel="attention alone: time ÷ fused SDPA", ylim=(0, None))
    if attention:
        axes.legend(fontsize=7, frameon=False, loc="lower right")
    return lengths_below(axes, "linear")


def lengths_below(axes: Axes, yscale: str) -> Axes:
    axes.set(xscale="log", yscale=yscale, xlabel="tokens")
    lines = axes.get_lines()
    lengths = sorted({int(x) for line in lines for x in line.get_xdata() if x > 1})  # type: ignore[union-attr]
    axes.set_xticks(lengths, [f"{length:,}" for length in lengths])
    axes.xaxis.set_minor_locator(NullLocator())
    if yscale == "log":
        axes.yaxis.set_major_locator(LogLocator(subs=(1, 2, 5)))
        axes.yaxis.set_minor_locator(NullLocator())
        axes.yaxis.set_major_formatter(FuncFormatter(lambda y, _: f"{y:g}"))
    return axes
