"""Figures of `head-specialization`: a saved table and an Axes in, the Axes out. Nothing is computed here but means of
layers that a line is drawn through."""

from collections.abc import Mapping

import numpy as np
import pandas as pd
import seaborn as sns
from matplotlib.axes import Axes
from matplotlib.lines import Line2D
from matplotlib.ticker import MaxNLocator

from reports import glossary, style, words
from reports.figures.labels import label_points

KINDS = tuple(glossary.KINDS)
_OFF = "#c9ced4"
_NAMED = 8  # heads of an embedding that have their name beside them


def by_layer(series: Mapping[str, pd.DataFrame], ax: Axes, metric: str) -> Axes:
    """One dot a head, layer after layer; a line through the layers' means.

    Args:
        series: rows of ``heads`` of one metric each, by their name in the legend ('' for none).
        ax: where to draw.
        metric: names the axis.
    """
    colours = (style.ACCENT, "#d55e00")
    apart = 0.16 if len(series) > 1 else 0.0
    n_layers = max(int(max(rows["layer"])) for rows in series.values()) + 1
    size = float(np.clip(90 / n_layers, 3, 12))
    for index, (name, rows) in enumerate(series.items()):
        colour, marker = colours[index], "os"[index]
        places = rows["layer"] + apart * (2 * index - 1) * (len(series) > 1)
        ax.scatter(places, rows["value"], s=size, color=colour, alpha=0.5, linewidth=0, marker=marker, zorder=2,
                   rasterized=len(rows) > 1500)  # fmt: skip
        layers = sorted(set(rows["layer"]))
        means = [np.mean(rows.loc[rows["layer"] == layer, "value"]) for layer in layers]
        ax.plot(layers, means, color=colour, marker=marker, markersize=3.2, zorder=3, label=name or None,
                linestyle="-" if index == 0 else (0, (5, 1.5)), markeredgecolor="white",
                markeredgewidth=0.4)  # fmt: skip
    chance = [float(level) for level in next(iter(series.values()))["chance"].dropna()]
    if chance:
        ax.axhline(max(chance), color=style.MUTED, linewidth=0.8, linestyle=(0, (4, 3)), zorder=1)
        ax.annotate("uniform", (1.0, max(chance)), xycoords=ax.get_yaxis_transform(), xytext=(3, 0),
                    textcoords="offset points", va="center", fontsize=style.SMALL, color=style.MUTED,
                    annotation_clip=False)  # fmt: skip
    unit = glossary.UNITS.get(metric, "share of attention")
    axis = f"{glossary.short_metric(metric)}\n({unit})"
    ax.set(xlabel="layer", ylabel=axis, ylim=(0, None), xlim=(-0.6, n_layers - 0.4))
    ax.xaxis.set_major_locator(MaxNLocator(integer=True, nbins=8))
    if len(series) > 1:
        ax.legend(loc="lower left", bbox_to_anchor=(0, 1.0), ncols=2, handlelength=1.8, borderaxespad=0.1)
    sns.despine(ax=ax)
    return ax


def embedding_by_kind(groups: pd.DataFrame, ax: Axes, kinds: Mapping[tuple[str, int, int], str]) -> Axes:
    """Heads where multidimensional scaling puts them, by their kind; heads without one are hollow.

    The outermost are named, each from another side; in a small model, all.
    """
    named = [kinds.get(head, "") for head in zip(groups["site"], groups["layer"], groups["head"], strict=True)]
    size = _point_size(len(groups))
    plain = groups.loc[[not kind for kind in named]]
    ax.scatter(plain["x"], plain["y"], s=size, facecolor="none", edgecolor=_OFF, linewidth=0.8, zorder=1)
    for kind in [kind for kind in KINDS if kind in set(named)]:
        some = groups.loc[[each == kind for each in named]]
        ax.scatter(some["x"], some["y"], s=1.3 * size, color=style.KIND_COLOURS[kind], linewidth=0.4, zorder=3,
                   marker=style.KIND_MARKERS[kind], edgecolor="white",
                   label=glossary.KINDS[kind].removesuffix(" head"))  # fmt: skip
    _plane(ax, groups)
    return _name(ax, groups, outermost(groups))


def embedding_by_layer(groups: pd.DataFrame, ax: Axes) -> Axes:
    """The same by layer, the first light and the last dark."""
    ax.scatter(groups["x"], groups["y"], s=_point_size(len(groups)), c=groups["layer"], cmap="viridis_r", linewidth=0.3,
               edgecolor="white", zorder=2, vmin=0)  # fmt: skip
    return _plane(ax, groups)


def embedding_by_group(groups: pd.DataFrame, ax: Axes) -> Axes:
    """The same by cluster; the head in the middle of each is named."""
    size = _point_size(len(groups))
    for cluster, some in groups.groupby("cluster"):
        index = int(str(cluster)) % len(style.SERIES)
        ax.scatter(some["x"], some["y"], s=size, color=style.SERIES[index], marker=style.MARKERS[index], linewidth=0.3,
                   edgecolor="white", zorder=2, label=f"{int(str(cluster)) + 1}: {len(some)}")  # fmt: skip
    _plane(ax, groups)
    return _name(ax, groups, groups.loc[groups["medoid"].astype(bool)])


def outermost(groups: pd.DataFrame, most: int = _NAMED) -> pd.DataFrame:
    """Up to ``most`` heads of an embedding, the farthest from its middle first, none close to another.

    Where there are no more than that, all.
    """
    if len(groups) <= most:
        return groups
    places = groups[["x", "y"]].to_numpy(float)
    away = np.linalg.norm(places - places.mean(axis=0), axis=1)
    taken: list[int] = []
    for index in np.argsort(-away, kind="stable"):
        if all(np.linalg.norm(places[index] - places[other]) > 0.5 * max(away) for other in taken):
            taken.append(int(index))
    return groups.iloc[taken[:most]]


def relations(table: pd.DataFrame, ax: Axes) -> Axes:
    """The best head of each relation (dot, with its interval) beside the best fixed offset (open ring).

    Args:
        table: rows of ``relations`` that are the best of their relation and direction, in the order to draw them.
        ax: where to draw; filled dots beat the offset by the margin, hollow ones do not.
    """
    rows = table.reset_index(drop=True)
    places = np.arange(len(rows))
    colour = np.where(rows["called"], style.KIND_COLOURS["syntactic"], style.MUTED)
    ax.hlines(places, rows["baseline"], rows["accuracy"], color=colour, alpha=0.35, linewidth=2.2, zorder=1)
    for called, name in ((True, "head, called syntactic"), (False, "head, not called")):
        some = (rows["called"] == called).to_numpy()
        if some.any():
            part, of = rows.loc[some], style.KIND_COLOURS["syntactic"] if called else style.MUTED
            spans = [part["accuracy"] - part["ci_low"], part["ci_high"] - part["accuracy"]]
            ax.errorbar(part["accuracy"], places[some], xerr=np.clip(spans, 0, None), fmt="o", color=of, markersize=5,
                        elinewidth=1.1, markeredgecolor="white" if called else of,
                        markeredgewidth=0.5 if called else 1.1,
                        markerfacecolor=of if called else "white", zorder=4, label=name)  # fmt: skip
    ax.scatter(rows["baseline"], places, marker="|", s=70, color=style.INK, linewidth=1.4, zorder=3,
               label="best fixed offset")  # fmt: skip
    ax.set_yticks(places, [f"{row['relation']}  {arrow(row['direction'])}" for row in rows.to_dict("records")])
    _beside(ax, rows)
    ax.set(xlim=(0, 1.0), ylim=(len(rows) - 0.4, -0.6), xlabel="accuracy (share of words)")
    ax.set_xticks(np.linspace(0, 1, 6))
    ax.tick_params(axis="y", length=0)
    ax.grid(axis="x", color=style.FAINT, linewidth=0.5)
    ax.set_axisbelow(True)
    sns.despine(ax=ax, left=True)
    return ax


def coreference(table: pd.DataFrame, ax: Axes) -> Axes:
    """The best heads on coreference with their intervals; lines are the two baselines."""
    rows = table.reset_index(drop=True)
    colour = np.where(rows["called"], style.KIND_COLOURS["coreference"], style.MUTED)
    for place, row in enumerate(rows.to_dict("records")):
        ax.errorbar(row["accuracy"], place, xerr=[[max(row["accuracy"] - row["ci_low"], 0)],
                    [max(row["ci_high"] - row["accuracy"], 0)]], fmt="o", color=colour[place], markersize=5,
                    markeredgecolor="white", markeredgewidth=0.5, elinewidth=1.1, zorder=3)  # fmt: skip
    for name, column, dash in (("nearest mention", "nearest", (4, 3)), ("same head word", "head_match", (1, 1.5))):
        ax.axvline(rows[column].iloc[0], color=style.INK, linewidth=0.9, linestyle=(0, dash), zorder=1, label=name)
    ax.set_yticks(range(len(rows)), [words.head_name(row["layer"], row["head"]) for row in rows.to_dict("records")])
    for label in ax.get_yticklabels():
        label.set_url(f"#{label.get_text()}")
    ax.legend(loc="lower left", bbox_to_anchor=(0, 1.0), ncols=2, borderaxespad=0.1, handlelength=1.8)
    ax.set(xlim=(0, 1), ylim=(len(rows) - 0.5, -0.5), xlabel="accuracy (share of mentions)")
    ax.tick_params(axis="y", length=0)
    sns.despine(ax=ax, left=True)
    return ax


def stability(table: pd.DataFrame, ax: Axes) -> Axes:
    """How alike the heads' order is on two halves of the text (dot), and on two kinds of text (square)."""
    metrics = list(dict.fromkeys(table["metric"]))
    looks = {"halves": ("o", style.ACCENT, -0.14), "text kinds": ("s", "#d55e00", 0.14)}
    for between, (marker, colour, off) in looks.items():
        rows = table.loc[(table["between"] == between) & table["spearman"].notna()]
        if rows.empty:
            continue
        places = np.array([metrics.index(metric) for metric in rows["metric"]]) + off
        spans = np.clip([rows["spearman"] - rows["ci_low"], rows["ci_high"] - rows["spearman"]], 0, None)
        ax.errorbar(rows["spearman"], places, xerr=np.nan_to_num(spans), fmt=marker, color=colour, markersize=4.2,
                    elinewidth=1, markeredgecolor="white", markeredgewidth=0.4, label=f"two {between}",
                    zorder=3)  # fmt: skip
    ax.set_yticks(range(len(metrics)), [glossary.short_metric(metric) for metric in metrics])
    ax.axvline(1, color=style.MUTED, linewidth=0.7)
    low = min([0.0, *table["ci_low"].dropna()])
    ax.set(xlim=(low - 0.02, 1.02), ylim=(len(metrics) - 0.5, -0.5), xlabel="rank correlation over heads (Spearman)")
    ax.legend(loc="lower left", bbox_to_anchor=(0, 1.0), ncols=2, borderaxespad=0.1)
    ax.tick_params(axis="y", length=0)
    ax.grid(axis="x", color=style.FAINT, linewidth=0.5)
    ax.set_axisbelow(True)
    sns.despine(ax=ax, left=True)
    return ax


def arrow(direction: str) -> str:
    """``dependent→head`` as the short form of a label."""
    return {"dependent→head": "dep → head", "head→dependent": "head → dep"}.get(direction, words.visible(direction))


def _beside(ax: Axes, rows: pd.DataFrame) -> None:
    """To the right of each row: the head, what it beats, on how many pairs, and what a causal head cannot see."""
    across = ax.get_yaxis_transform()
    causal = min(rows["possible"]) < 0.999
    heads = [(1.02, "head", "left"), (1.2, "offset", "right"), (1.34, "n", "right")]
    heads += [(1.5, "visible", "right")] if causal else []
    for x, title, side in heads:
        ax.text(x, -0.75, title, transform=across, ha=side, va="bottom", fontsize=style.SMALL, color=style.MUTED)
    for place, row in enumerate(rows.to_dict("records")):
        name = words.head_name(row["layer"], row["head"])
        shown = [name, f"{int(row['baseline_offset']):+d}".replace("-", words.MINUS), f"{int(row['n']):,}"]
        shown += [f"{row['possible']:.0%}"] if causal else []
        for (x, _, side), text in zip(heads, shown, strict=True):
            ax.text(x, place, text, transform=across, va="center", ha=side, fontsize=style.SMALL,
                    color=style.INK if text is name else style.MUTED,
                    url=f"#{name}" if text is name else None)  # fmt: skip


def _name(ax: Axes, groups: pd.DataFrame, named: pd.DataFrame) -> Axes:
    """Write the names of some heads of an embedding where they cover no head, or as few as can be."""
    names = [words.head_name(*head) for head in zip(named["layer"], named["head"], strict=True)]
    rest = groups.drop(named.index)
    label_points(ax, _places(named), names, _places(rest))
    for text in ax.texts:
        if text.get_text() in names:
            text.set_bbox({"facecolor": "white", "alpha": 0.75, "edgecolor": "none", "pad": 0.6})
    return ax


def _places(groups: pd.DataFrame) -> list[tuple[float, float]]:
    return list(zip(groups["x"], groups["y"], strict=True))


def _point_size(n: int) -> float:
    return float(np.clip(2600 / max(n, 1), 2.5, 30))


def _plane(ax: Axes, groups: pd.DataFrame) -> Axes:
    """Equal scales, no ticks: distances are what is read, and one scale bar says how long they are."""
    spread = max(np.ptp(groups["x"]), np.ptp(groups["y"]), 1e-3)
    centre = [(groups[axis].min() + groups[axis].max()) / 2 for axis in ("x", "y")]
    half = 0.56 * spread
    ax.set(xlim=(centre[0] - half, centre[0] + half), ylim=(centre[1] - half, centre[1] + half), xticks=[], yticks=[])
    ax.set_aspect("equal", adjustable="box")
    for spine in ax.spines.values():
        spine.set(visible=True, color=style.FAINT)
    unit = next((u for u in (0.5, 0.2, 0.1, 0.05, 0.02, 0.01, 0.005) if u < 0.45 * spread), spread / 3)
    x, y = centre[0] - 0.94 * half, centre[1] - 0.9 * half
    ax.add_line(Line2D([x, x + unit], [y, y], color=style.INK, linewidth=1.2))
    ax.text(x, y + 0.03 * half, f"{unit:g} nats", fontsize=style.SMALL, va="bottom")
    return ax
