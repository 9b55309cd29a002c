"""Figures of `induction-heads`: a saved table and an Axes in, the Axes out. Nothing is computed here."""

from collections.abc import Collection, Mapping, Sequence

import numpy as np
import pandas as pd
import seaborn as sns
from matplotlib.axes import Axes
from matplotlib.patches import Rectangle
from matplotlib.ticker import FixedLocator, NullLocator, ScalarFormatter

from reports import glossary, style, words
from reports.figures.labels import inches, label_ends, label_points

Head = tuple[int, int]
ABLATIONS = {
    "resample": "resampled",
    "mean": "mean",
    "zero": "zero",
    "pattern_preserving": "zero, patterns kept",
}
_SHARE_TICKS = np.linspace(0, 1, 6)
_NAMED_TOKENS, _LEAST_PITCH = 48, 0.1  # inches: below this a token's text cannot be read


def prefix_against_copying(heads: pd.DataFrame, ax: Axes, kinds: Mapping[Head, str], copying: str = "copying") -> Axes:
    """One point a head: where it looks (prefix matching) against what it writes (copying, by weights).

    Args:
        heads: rows of the table ``heads`` with the metrics ``prefix_matching`` and ``copying`` of one stack.
        ax: where to draw.
        kinds: heads that are called something; these are filled, and induction heads are named.
        copying: which copying metric.
    """
    looks, writes = (
        heads.loc[heads["metric"] == metric].set_index(["layer", "head"]) for metric in ("prefix_matching", copying)
    )
    points = looks[["value", "ci_low", "ci_high"]].join(writes["value"].rename("copying"))
    points = points.loc[points["value"].notna() & points["copying"].notna()]
    called = points.index.map(lambda head: kinds.get(head, ""))
    plain = points[called == ""]
    ax.scatter(plain["value"], plain["copying"], s=9, facecolor="none", edgecolor=style.MUTED, linewidth=0.6,
               alpha=0.75, rasterized=len(plain) > 1000, zorder=2, label="other")  # fmt: skip
    for kind in [kind for kind in glossary.KINDS if kind in set(called)]:
        some = points[called == kind]
        colour = style.KIND_COLOURS[kind]
        spans = [some["value"] - some["ci_low"], some["ci_high"] - some["value"]]
        ax.errorbar(some["value"], some["copying"], xerr=spans, fmt=style.KIND_MARKERS[kind], color=colour,
                    markersize=4.5, markeredgecolor="white", markeredgewidth=0.5, elinewidth=0.8, zorder=4,
                    label=glossary.KINDS[kind])  # fmt: skip
    _chance_lines(ax, looks["chance"], vertical=True)
    _chance_lines(ax, writes["chance"], vertical=False)
    right, up = min(1.02, max([0.1, *(points["value"] * 1.12)])), max([-0.5, *points["copying"]])
    ax.set(xlim=(-0.02 * right, right), ylim=(-1.05, up + 0.1 * (up + 1.05)))
    ax.set(xlabel=glossary.metric_axis("prefix_matching"), ylabel=glossary.metric_axis(copying))
    sns.despine(ax=ax)
    if called.any():
        ax.legend(loc="lower left", bbox_to_anchor=(-0.03, 1.0), ncols=4, handletextpad=0.1, columnspacing=1.0)
    named = points[called == "induction"].nlargest(12, "value")
    return label_points(
        ax, list(zip(named["value"], named["copying"], strict=True)), [words.head_name(*head) for head in named.index]
    )


def loss_by_position(loss: pd.DataFrame, ax: Axes, control: pd.DataFrame | None = None) -> Axes:
    """Loss of each next token along a sequence of repeats; shaded: the interval; dashed: where each copy begins.

    Args:
        loss: rows of ``loss_by_position`` of one ``data``; ``position`` counts from the start of the sequence.
        ax: where to draw.
        control: rows of the same table on tokens that do not repeat, drawn thin.
    """
    if control is not None and len(control):
        ordered = control.sort_values("position")
        ax.plot(ordered["position"], ordered["loss"], color=style.MUTED, linewidth=0.7, alpha=0.8, zorder=1)
    for copy, part in loss.sort_values("position").groupby("copy"):
        colour = style.MUTED if copy == 0 else style.ACCENT
        ax.fill_between(part["position"], part["ci_low"], part["ci_high"], color=colour, alpha=0.18, linewidth=0)
        ax.plot(part["position"], part["loss"], color=colour)
        start = float(min(part["position"]))
        if copy != 0:
            ax.axvline(start - 0.5, color=style.INK, linewidth=0.7, linestyle=(0, (4, 3)))
        ax.annotate(
            "first copy" if copy == 0 else f"copy {int(str(copy)) + 1}", (start, 1.0), xytext=(3, 2),
            xycoords=ax.get_xaxis_transform(), textcoords="offset points", color=colour, fontsize=style.SMALL + 0.5,
            fontweight="bold",
        )  # fmt: skip
    ax.set(xlabel="position in the sequence (tokens)", ylabel="loss (nats per token)", ylim=(0, None))
    ax.set_xlim(min(loss["position"]) - 0.5, max(loss["position"]) + 0.5)
    sns.despine(ax=ax)
    return ax


def reach(table: pd.DataFrame, ax: Axes, heads: Sequence[Head]) -> Axes:
    """Prefix matching against the period: how far back a head still finds the earlier copy.

    Args:
        table: the table ``reach``.
        ax: where to draw; the period's axis is logarithmic.
        heads: which heads, strongest first; at most eight are told apart.
    """
    ends, names, colours = [], [], []
    for index, (layer, head) in enumerate(heads[: len(style.SERIES)]):
        rows = table.loc[(table["layer"] == layer) & (table["head"] == head)].sort_values("period")
        colour = style.SERIES[index]
        ax.fill_between(rows["period"], rows["ci_low"], rows["ci_high"], color=colour, alpha=0.15, linewidth=0)
        ax.plot(rows["period"], rows["value"], color=colour, marker=style.MARKERS[index], markersize=4,
                markeredgecolor="white", markeredgewidth=0.5)  # fmt: skip
        ends.append((rows["period"].iloc[-1], rows["value"].iloc[-1]))
        names.append(words.head_name(layer, head))
        colours.append(colour)
    chance = table.groupby("period")["chance"].first()
    ax.plot(chance.index, chance, color=style.MUTED, linestyle=(0, (4, 3)), linewidth=1)
    ax.annotate("chance", (chance.index[0], chance.iloc[0]), xytext=(2, 4), textcoords="offset points",
                color=style.MUTED, fontsize=style.SMALL)  # fmt: skip
    ax.set_xscale("log", base=2)
    ax.xaxis.set_major_locator(FixedLocator(sorted(table["period"].unique())))
    ax.xaxis.set_minor_locator(NullLocator())
    ax.xaxis.set_major_formatter(ScalarFormatter())
    ax.set(xlabel="period (tokens, log scale)", ylabel=glossary.metric_axis("prefix_matching"), ylim=(0, 1.0))
    ax.set_yticks(_SHARE_TICKS)
    sns.despine(ax=ax)
    return label_ends(ax, ends, names, colours)


def ablation(table: pd.DataFrame, ax: Axes) -> Axes:
    """Change of loss when heads go: the top heads against the same number of random heads, by way of ablation.

    Args:
        table: rows of ``ablation`` with one ``n_heads``; every random draw is one grey mark.
        ax: where to draw; 0 is the untouched model.
    """
    kinds = [kind for kind in ABLATIONS if kind in set(table["ablation"])]
    kinds += sorted(set(table["ablation"]) - set(kinds))
    for row, kind in enumerate(kinds):
        rows = table.loc[table["ablation"] == kind]
        drawn = rows.loc[rows["chosen"] == "random"].sort_values("draw")
        places = row + 0.2 + 0.12 * (np.arange(len(drawn)) - (len(drawn) - 1) / 2) * min(1, 4 / max(len(drawn), 1))
        _dots(ax, drawn, places, style.MUTED, "D", 3.2, "random heads of the same layers" if row == 0 else None)
        top = rows.loc[rows["chosen"] == "top"]
        _dots(ax, top, np.full(len(top), row - 0.2), style.KIND_COLOURS["induction"], "o", 5.5,
              "strongest heads" if row == 0 else None)  # fmt: skip
    ax.axvline(0, color=style.INK, linewidth=0.7)
    ax.set_yticks(range(len(kinds)), [ABLATIONS.get(kind, kind) for kind in kinds])
    ax.set(ylim=(len(kinds) - 0.5, -0.5), xlabel="change of loss on later copies (nats per token)")
    ax.tick_params(axis="y", length=0)
    ax.grid(axis="x", color=style.FAINT, linewidth=0.5)
    ax.set_axisbelow(True)
    sns.despine(ax=ax, left=True)
    return ax


def composition(table: pd.DataFrame, ax: Axes, limit: float) -> Axes:
    """Which head feeds which: change of the target's prefix matching when the source's output is removed.

    Args:
        table: rows of ``composition`` with one ``path``.
        ax: where to draw; sources down, targets across.
        limit: where the colours end on both sides of 0, shared between panels.
    """
    named = table.assign(
        source=[words.head_name(*head) for head in zip(table["source_layer"], table["source_head"], strict=True)],
        target=[words.head_name(*head) for head in zip(table["target_layer"], table["target_head"], strict=True)],
    )
    order = {
        kind: list(dict.fromkeys(named.sort_values([f"{kind}_layer", f"{kind}_head"])[kind]))
        for kind in ("source", "target")
    }
    grid = named.pivot(index="source", columns="target", values="change").loc[order["source"], order["target"]]
    _hatched(ax, grid.shape)
    image = ax.imshow(
        np.ma.masked_invalid(grid.to_numpy(float)), cmap=style.SIGNED, vmin=-limit, vmax=limit, aspect="auto", zorder=1
    )
    ax.set_xticks(range(grid.shape[1]), order["target"])
    ax.set_yticks(range(grid.shape[0]), order["source"])
    if inches(ax)[0] / grid.shape[1] > 0.36:
        for (source, target), change in np.ndenumerate(grid.to_numpy(float)):
            face = np.asarray(image.cmap(image.norm(change)), dtype=float).tolist()
            label = "" if np.isnan(change) else words.signed_places(change)
            ax.text(
                target, source, label, ha="center", va="center", fontsize=6.5, color=style.text_colour(face), zorder=3
            )
    ax.set(xlabel="target (reads)", ylabel="source (removed)")
    ax.tick_params(length=0)
    ax.tick_params(axis="y", rotation=0)
    ax.tick_params(axis="x", rotation=0 if len(order["target"]) <= 6 else 90)
    for label in (*ax.get_xticklabels(), *ax.get_yticklabels()):
        label.set_url(f"#{label.get_text()}")
    return ax


def pattern(
    weights: pd.DataFrame,
    queries: pd.DataFrame,
    keys: pd.DataFrame,
    ax: Axes,
    boundary: int | None = None,
    named: bool = True,
) -> Axes:
    """A head's pattern on one sequence: queries down, keys across; tokens are named where they can be read.

    Args:
        weights: rows of ``patterns`` of one head on one sequence; absent entries are below the saved minimum.
        queries: rows of ``tokens`` to draw down.
        keys: rows of ``tokens`` to draw across.
        ax: where to draw; the image's array is [query, key].
        boundary: the position at which the second copy begins, drawn as a line.
        named: whether tokens may be named.
    """
    down, across = (tokens.sort_values("position").reset_index(drop=True) for tokens in (queries, keys))
    grid = np.zeros((len(down), len(across)))
    row, column = (pd.Series(range(len(tokens)), index=tokens["position"]) for tokens in (down, across))
    inside = weights.loc[weights["query"].isin(list(row.index)) & weights["key"].isin(list(column.index))]
    grid[row[inside["query"]], column[inside["key"]]] = inside["weight"]
    image = ax.imshow(grid, cmap=style.SHARES, vmin=0, vmax=1, interpolation="nearest")
    x, y = int(min(across["position"])), int(min(down["position"]))
    image.set_extent((x - 0.5, x + len(across) - 0.5, y + len(down) - 0.5, y - 0.5))
    if boundary is not None:
        for line in (ax.axhline, ax.axvline):
            line(boundary - 0.5, color=style.MUTED, linewidth=0.6, linestyle=(0, (4, 3)))
    pitch = min(inches(ax)) / max(len(down), len(across))
    if named and max(len(down), len(across)) <= _NAMED_TOKENS and pitch >= _LEAST_PITCH:
        _token_ticks(ax, down, across, min(style.SMALL, 0.75 * pitch * 72))
    ax.set(xlabel="key (is attended to)", ylabel="query (attends)")
    for spine in ax.spines.values():
        spine.set(visible=True, color=style.FAINT)
    return ax


def _token_ticks(ax: Axes, down: pd.DataFrame, across: pd.DataFrame, size: float) -> None:
    for axis, tokens in ((ax.xaxis, across), (ax.yaxis, down)):
        labels = [style.drawable(words.token_label(text)) for text in tokens["text"]]
        axis.set_ticks(tokens["position"].tolist(), labels, fontsize=size)
    ax.tick_params(axis="x", rotation=90)
    ax.tick_params(length=0, pad=1.5)


def _hatched(ax: Axes, shape: tuple[int, ...]) -> None:
    """A hatched ground, seen where a value is missing, and white lines between cells."""
    down, across = shape
    ground = Rectangle((-0.5, -0.5), across, down, hatch="////", facecolor="none", edgecolor=style.FAINT, linewidth=0)
    ax.add_patch(ground).set_zorder(0)
    ax.hlines(np.arange(1, down) - 0.5, -0.5, across - 0.5, color="white", linewidth=0.8, zorder=2)
    ax.vlines(np.arange(1, across) - 0.5, -0.5, down - 0.5, color="white", linewidth=0.8, zorder=2)
    ax.spines[:].set_visible(False)


def _dots(
    ax: Axes, rows: pd.DataFrame, places: np.ndarray, colour: str, marker: str, size: float, label: str | None
) -> None:
    if rows.empty:
        return
    spans = [rows["loss_change"] - rows["ci_low"], rows["ci_high"] - rows["loss_change"]]
    ax.errorbar(rows["loss_change"], places, xerr=spans, fmt=marker, color=colour, markersize=size, elinewidth=1,
                markeredgecolor="white", markeredgewidth=0.5, label=label, zorder=3)  # fmt: skip


def _chance_lines(ax: Axes, chance: Collection[float], vertical: bool) -> None:
    """Chance as a line, or as a band where it differs between heads (windows)."""
    levels = pd.Series(list(chance)).dropna()
    if levels.empty:
        return
    line, band = (ax.axvline, ax.axvspan) if vertical else (ax.axhline, ax.axhspan)
    if levels.max() - levels.min() > 1e-3:
        band(levels.min(), levels.max(), color=style.FAINT, alpha=0.6, linewidth=0, zorder=0)
    line(levels.max(), color=style.MUTED, linewidth=0.9, linestyle=(0, (4, 3)), zorder=1)
    at, along = (
        ((levels.max(), 0.01), ax.get_xaxis_transform())
        if vertical
        else ((0.99, levels.max()), ax.get_yaxis_transform())
    )
    ax.annotate("chance", at, xycoords=along, xytext=(3, 2) if vertical else (0, 2), textcoords="offset points",
                ha="left" if vertical else "right", fontsize=style.SMALL, color=style.MUTED)  # fmt: skip
