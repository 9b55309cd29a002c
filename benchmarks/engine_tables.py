"""What :mod:`benchmarks.engines` measured, summed up: tables, and a figure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median

import matplotlib as mpl
import numpy as np
import seaborn as sns
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from scipy.optimize import nnls

from benchmarks import figure, tables
from benchmarks.summary import Record

__all__ = ["KINDS", "draw", "exponent", "growth", "growth_text", "largest_context", "summary", "times_text"]


@dataclass(frozen=True)
class Kind:
    """A way, in words, and how it is drawn."""

    title: str
    words: str
    colour: int
    marker: str


KINDS: dict[str, Kind] = {
    "sdpa": Kind("SDPA", "PyTorch's fused attention, nothing read", 7, "s"),
    "basic": Kind("row blocks", "this project's row-block engine with the basic probes", 0, "o"),
    "fused": Kind("fused", "this project's Triton kernel with the basic probes", 2, "P"),
    "two_calls": Kind(
        "SDPA twice", "entropy alone, from two fused calls: log-sum-exp − scale · q · SDPA(q, k, k)", 4, "v"
    ),
    "flex": Kind(
        "FlexAttention", "compiled, with log-sum-exp and largest score, of which comes the largest weight alone", 3, "D"
    ),
    "eager": Kind("eager", "the whole pattern, and the basic statistics of it", 1, "^"),
}


def summary(times: Sequence[Record], memory: Sequence[Record]) -> list[Record]:
    """One record per length and way: median ``seconds``; ``over_sdpa``, median of the ratios within a round; ``bytes``
    held beyond queries, keys and values; ``statistics_off``."""
    found = []
    for length, way in dict.fromkeys((m["length"], m["way"]) for m in times):
        mine, sdpa = (
            {m["round"]: m["seconds"] for m in times if (m["length"], m["way"]) == (length, name)}
            for name in (way, "sdpa")
        )
        held = [m["bytes"] for m in memory if (m["length"], m["way"]) == (length, way)]
        off = next(m["statistics_off"] for m in times if (m["length"], m["way"]) == (length, way))
        found.append({
            "length": length, "way": way, "seconds": median(mine.values()),
            "over_sdpa": median(mine[number] / sdpa[number] for number in mine),
            "bytes": held[0] if held else None, "statistics_off": off,
        })  # fmt: skip
    return found


def growth(rows: Sequence[Record], inputs: float, limit: float) -> list[Record]:
    """One record per way: exponents of time and memory against length, and the context that fits into ``limit`` bytes.

    Args:
        inputs: bytes of query, key and value of one token.
    """
    found = []
    for way in dict.fromkeys(row["way"] for row in rows):
        here = [row for row in rows if row["way"] == way]
        holding = [row for row in here if row["bytes"]]
        lengths = [row["length"] for row in holding]
        total = [row["bytes"] + inputs * row["length"] for row in holding][-3:]
        found.append({
            "way": way,
            "time_exponent": exponent([row["length"] for row in here], [row["seconds"] for row in here]),
            "memory_exponent": exponent(lengths, [row["bytes"] for row in holding]),
            "largest_context": largest_context(lengths[-3:], total, limit),
        })  # fmt: skip
    return found


def exponent(lengths: Sequence[int], values: Sequence[float]) -> float | None:
    """b of a · length^b, by least squares on logarithms; None with fewer than three lengths."""
    return float(np.polyfit(np.log(lengths), np.log(values), 1)[0]) if len(lengths) >= 3 else None


def largest_context(lengths: Sequence[int], total_bytes: Sequence[float], limit: float) -> int | None:
    """The length at which a + b · length + c · length² bytes, none of them negative and fitted to relative errors,
    reach the limit, to two digits; None with fewer than three lengths."""
    if len(lengths) < 3:
        return None
    length, total = np.asarray(lengths, dtype=float), np.asarray(total_bytes)
    scale = length.max()
    terms = np.stack([np.ones_like(length), length / scale, (length / scale) ** 2], 1)
    (a, b, c), _ = nnls(terms / total[:, None], np.ones_like(length))
    if c == b == 0 or a >= limit:
        return None
    reached = (limit - a) / b if c == 0 else (-b + np.sqrt(b**2 + 4 * c * (limit - a))) / (2 * c)
    return int(float(f"{reached * scale:.2g}"))


def times_text(rows: Sequence[Record], left_out: Sequence[Record]) -> tables.Text:
    """One row per length and way, those that were left out with their reason."""
    order, cells = list(KINDS), []
    for row in rows:
        held = "–" if row["bytes"] is None else f"{row['bytes'] / 1e6:,.0f}"
        off = "–" if row["statistics_off"] is None or row["way"] == "basic" else f"{row['statistics_off']:.1e}"
        numbers = [f"{row['seconds'] * 1e3:,.1f}", f"{row['over_sdpa']:.2f}", held, off, ""]
        cells.append((row["length"], order.index(row["way"]), numbers))
    lengths = {row["length"] for row in rows}
    after = max(lengths) + 1
    for way, reason in dict.fromkeys((part["way"], part["reason"]) for part in left_out):
        where = {part["length"] for part in left_out if (part["way"], part["reason"]) == (way, reason)}
        where = {after} if where >= lengths else where
        cells += [(length, order.index(way), ["–"] * 4 + [reason]) for length in where]
    return tables.Text(
        "Attention alone, one causal sequence",
        ["tokens", "way", "ms", "÷ SDPA", "held MB", "statistics off by", ""],
        [
            [f"{length:,}" if length in lengths else "all", KINDS[order[way]].title, *numbers]
            for length, way, numbers in sorted(cells)
        ],
        "Medians over the rounds; ratios are taken within a round. Held: the most memory beyond queries, keys, values. "
        "Off by: the largest difference from the statistics of row blocks, over max(1, value). "
        + "; ".join(f"{kind.title}: {kind.words}" for kind in KINDS.values())
        + ".",
        n_words=2,
    )


def growth_text(fits: Sequence[Record], limit_gb: float) -> tables.Text:
    """One row per way."""

    def shown(value: float | None, form: str) -> str:
        return "–" if value is None else format(value, form)

    return tables.Text(
        "How it grows",
        ["way", "time ∝ tokens to the", "memory ∝ tokens to the", f"tokens in {limit_gb:g} GB"],
        [
            [KINDS[fit["way"]].title, shown(fit["time_exponent"], ".2f"), shown(fit["memory_exponent"], ".2f"),
             shown(fit["largest_context"], ",")]
            for fit in fits
        ],
        "Exponents by least squares on logarithms over the lengths above. Tokens: where a constant, a linear and a "
        "quadratic term, fitted to the memory of the three longest, reach so much, with queries, keys and values; "
        "worked out, not run, to two digits.",
    )  # fmt: skip


def draw(rows: Sequence[Record], stem: Path) -> None:
    """Time, time over SDPA's, and memory, against length."""
    with sns.axes_style("ticks"), mpl.rc_context({"svg.hashsalt": "benchmark", "font.size": 9}):
        page = Figure(figsize=(11, 3.8), layout="constrained")
        panels = page.subplots(1, 3)
        words = ("time (ms)", "time ÷ SDPA", "memory beyond q, k and v (MB)")
        for axes, column, unit, label in zip(
            panels, ("seconds", "over_sdpa", "bytes"), (1e3, 1, 1e-6), words, strict=True
        ):
            lines(rows, column, unit, axes)
            axes.set(ylabel=label)
            sns.despine(ax=axes)
        handles, labels = panels[0].get_legend_handles_labels()
        page.legend(handles, labels, loc="outside lower center", ncols=len(KINDS), frameon=False)
        for suffix in (".png", ".svg"):
            page.savefig(stem.with_suffix(suffix), dpi=160)


def lines(rows: Sequence[Record], column: str, unit: float, axes: Axes) -> Axes:
    """One line per way, both axes logarithmic."""
    colours = sns.color_palette("colorblind")
    for way, kind in KINDS.items():
        here = [row for row in rows if row["way"] == way and row[column]]
        if here and not (way == "sdpa" and column == "over_sdpa"):
            axes.plot(
                [row["length"] for row in here], [row[column] * unit for row in here], label=kind.title,
                color=colours[kind.colour], marker=kind.marker, markersize=5,
            )  # fmt: skip
    if column == "over_sdpa":
        axes.axhline(1, color=colours[KINDS["sdpa"].colour])
    return figure.lengths_below(axes, "log")
