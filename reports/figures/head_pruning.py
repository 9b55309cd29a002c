"""Figures of `head-pruning`: a saved table and an Axes in, the Axes out. Nothing is computed here."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pandas as pd
import seaborn as sns
from matplotlib.axes import Axes
from matplotlib.ticker import MaxNLocator, PercentFormatter

from reports import glossary, style, words
from reports.figures.labels import figure_of, inches, label_points

VERDICTS = {"needed": "#0072b2", "harmful": "#d55e00", "undecided": style.MUTED}
ORDERS: dict[str, tuple[str, str, Any]] = {
    "importance": ("importance", "#0072b2", "-"),
    "importance_rescored": ("importance, scored again", "#5d4bb3", (0, (5, 1.5))),
    "exact": ("exact ablation", "#00825f", (0, (3, 1.2, 1, 1.2))),
    "weight_norm": ("weight norm", "#8c6d00", (0, (1, 1))),
    "random": ("random", style.MUTED, "-"),
    "worst_first": ("most important first", "#b3394a", (0, (4, 2))),
}
SCORES = {
    "importance": "importance (by layer)",
    "derivative": "|derivative|",
    "first_order_resample": "first order (resample)",
    "first_order_zero": "first order (zero)",
    "integrated_zero": "integrated gradients",
    "weight_norm": "weight norm",
}
_NAMED = 6  # heads named in a scatter, at most
ABLATIONS = {"resample": "resampled", "mean": "mean", "zero": "zero", "mean_pattern": "mean pattern"}


def curve(table: pd.DataFrame, ax: Axes, free: Mapping[str, float] | None = None, unit: str = "nats per token") -> Axes:
    """The metric against the share of heads pruned, one line an order; the band is the unpruned model's interval.

    Args:
        table: the table ``curve``. Random orders are thin lines, and have no bands.
        ax: where to draw.
        free: a row of ``free``: ``share, ci_low, ci_high`` are marked on the axis.
        unit: of the metric.
    """
    start = table.loc[(table["order"] == "importance") & (table["n_pruned"] == 0)].iloc[0]
    ax.axhspan(start["ci_low"], start["ci_high"], color=style.FAINT, alpha=0.55, linewidth=0, zorder=0)
    ax.annotate("unpruned", (1.0, float(start["ci_high"])), xytext=(-2, 2), textcoords="offset points", ha="right",
                fontsize=style.SMALL, color=style.MUTED)  # fmt: skip
    for name, (_, colour, dashes) in ORDERS.items():
        rows = table.loc[table["order"] == name].sort_values("share")
        if rows.empty:
            continue
        single = name != "random"
        for _, part in rows.groupby("draw"):
            if single:
                ax.fill_between(part["share"], part["ci_low"], part["ci_high"], color=colour, alpha=0.13, linewidth=0)
            ax.plot(part["share"], part["value"], color=colour, linestyle=dashes, linewidth=1.7 if name == "importance"
                    else 1.1 if single else 0.7, zorder=4 if name == "importance" else 3)  # fmt: skip
    if free is not None and pd.notna(free["share"]):
        _mark_free(ax, free)
    ax.xaxis.set_major_formatter(PercentFormatter(1.0, decimals=0))
    ax.set(xlim=(0, 1), xlabel="heads pruned", ylabel=f"loss ({unit})" if unit else "metric")
    sns.despine(ax=ax)
    handles = [ax.plot([], [], color=colour, linestyle=ORDERS[name][2], label=ORDERS[name][0])[0]
               for name, colour in ((n, ORDERS[n][1]) for n in ORDERS if n in set(table["order"]))]  # fmt: skip
    ax.legend(handles=handles, loc="upper left", bbox_to_anchor=(1.01, 1.0), borderaxespad=0.0, handlelength=2.4)
    return ax


def effects(table: pd.DataFrame, ax: Axes, most: int = 40, unit: str = "nats per token") -> Axes:
    """What happens without each head, sorted: a dot a head with its interval; hollow: by its direct path alone.

    Args:
        table: rows of ``effects`` of one ablation; paths total and direct.
        ax: where to draw; 0 is the untouched model.
        most: heads drawn; beyond, those in the middle are left out.
        unit: of the metric.
    """
    total = table.loc[table["path"] == "total"].sort_values("change", ascending=False).reset_index(drop=True)
    if len(total) > most:
        total = pd.concat([total.head(most - most // 2), total.tail(most // 2)], ignore_index=True)
    direct = table.loc[table["path"] == "direct"].set_index(["site", "layer", "head"])["change"]
    place = np.arange(len(total))
    for verdict, colour in VERDICTS.items():
        rows = total.loc[total["verdict"] == verdict]
        if rows.empty:
            continue
        spans = [rows["change"] - rows["ci_low"], rows["ci_high"] - rows["change"]]
        ax.errorbar(rows["change"], place[rows.index], xerr=spans, fmt="o", color=colour, markersize=3.6,
                    elinewidth=0.9, markeredgecolor="white", markeredgewidth=0.4, label=verdict, zorder=3)  # fmt: skip
    keys = zip(total["site"], total["layer"], total["head"], strict=True)
    known = [(direct.get(key), at) for at, key in zip(place, keys, strict=True)]
    drawn = [(change, at) for change, at in known if change is not None]
    if drawn:
        ax.scatter(*zip(*drawn, strict=True), s=13, facecolor="none", edgecolor=style.INK, linewidth=0.6, zorder=4,
                   label="direct path alone")  # fmt: skip
    ax.axvline(0, color=style.INK, linewidth=0.7, zorder=1)
    ax.set_yticks(place, [words.head_name(*head) for head in zip(total["layer"], total["head"], strict=True)])
    ax.tick_params(axis="y", length=0, labelsize=min(style.SMALL, 0.8 * 72 * inches(ax)[1] / max(len(total), 1)))
    for label in ax.get_yticklabels():
        label.set_url(f"#{label.get_text()}")
    ax.set(ylim=(len(total) - 0.4, -0.6), xlabel=f"change of the loss without the head{f' ({unit})' if unit else ''}")
    ax.grid(axis="x", color=style.FAINT, linewidth=0.5)
    ax.set_axisbelow(True)
    sns.despine(ax=ax, left=True)
    ax.legend(loc="lower left", bbox_to_anchor=(-0.02, 1.0), ncols=4, handletextpad=0.1, columnspacing=1.0)
    return ax


def importance_against_effect(table: pd.DataFrame, ax: Axes, ranks: bool, unit: str = "nats per token") -> Axes:
    """One point a head: what importance says against what ablation does, as values or as ranks (1 is the highest).

    Args:
        table: rows of ``effects`` of one ablation and the path total.
        ax: where to draw.
        ranks: ranks among the ablated heads instead of values.
        unit: of the metric.
    """
    x, y = pd.Series(table["importance"]), pd.Series(table["change"])
    if ranks:
        x, y = x.rank(ascending=False), y.rank(ascending=False)
    for verdict, colour in VERDICTS.items():
        some = np.asarray(table["verdict"] == verdict)
        if not some.any():
            continue
        if not ranks:
            rows = table[some]
            ax.errorbar(x[some], y[some], yerr=[rows["change"] - rows["ci_low"], rows["ci_high"] - rows["change"]],
                        fmt="none", ecolor=colour, elinewidth=0.6, alpha=0.6, zorder=2)  # fmt: skip
        ax.scatter(x[some], y[some], s=12, color=colour, edgecolor="white", linewidth=0.4, zorder=3, label=verdict)
    if ranks:
        n = len(table)
        ax.plot([1, n], [1, n], color=style.MUTED, linewidth=0.8, linestyle=(0, (4, 3)), zorder=1)
        ax.set(xlim=(n + 0.8, 0.2), ylim=(n + 0.8, 0.2), xlabel="rank by importance", ylabel="rank by ablation")
        ax.xaxis.set_major_locator(MaxNLocator(5, integer=True))
        ax.yaxis.set_major_locator(MaxNLocator(5, integer=True))
    else:
        ax.axhline(0, color=style.INK, linewidth=0.7, zorder=1)
        ax.set(xlabel="importance (normalised by layer)", ylabel=f"change of the loss{f' ({unit})' if unit else ''}")
        ax.set_xlim(0.0, float(np.max(x.to_numpy(float))) * 1.08)
    sns.despine(ax=ax)
    if ranks:
        return ax
    size = y.abs()
    named = table.assign(size=size).loc[size >= 0.25 * size.max()].sort_values("size", ascending=False).head(_NAMED)
    points = list(zip(named["importance"], named["change"], strict=True))
    others = [*zip(x, y, strict=True), *((at, 0.0) for at in np.linspace(*ax.get_xlim(), 60))]
    names = [words.head_name(*head) for head in zip(named["layer"], named["head"], strict=True)]
    return label_points(ax, points, names, others)


def agreement(table: pd.DataFrame, ax: Axes) -> Axes:
    """How well each score ranks heads as ablation does: Spearman's ρ with its interval, one row a score.

    Args:
        table: the table ``agreement``; one marker an ablation.
        ax: where to draw.
    """
    scores = [score for score in SCORES if score in set(table["score"])]
    kinds = [kind for kind in ABLATIONS if kind in set(table["ablation"])]
    for number, kind in enumerate(kinds):
        rows = table.loc[table["ablation"] == kind].set_index("score").reindex(scores)
        places = np.arange(len(scores)) + 0.16 * (number - (len(kinds) - 1) / 2)
        spans = [rows["rho"] - rows["ci_low"], rows["ci_high"] - rows["rho"]]
        ax.errorbar(rows["rho"], places, xerr=np.nan_to_num(spans), fmt=style.MARKERS[number],
                    color=style.SERIES[number], markersize=4.2, elinewidth=1, markeredgecolor="white",
                    markeredgewidth=0.5, label=ABLATIONS[kind])  # fmt: skip
    ax.axvline(0, color=style.INK, linewidth=0.7)
    ax.set_yticks(range(len(scores)), [SCORES[score] for score in scores])
    low = min(-0.1, float(np.nanmin(table[["rho", "ci_low"]].to_numpy())) - 0.05)
    ax.set(ylim=(len(scores) - 0.5, -0.5), xlim=(low, 1.02), xlabel="Spearman's ρ with exact ablation")
    ax.tick_params(axis="y", length=0)
    ax.grid(axis="x", color=style.FAINT, linewidth=0.5)
    ax.set_axisbelow(True)
    sns.despine(ax=ax, left=True)
    ax.legend(loc="lower left", bbox_to_anchor=(-0.02, 1.0), ncols=4, handletextpad=0.1, columnspacing=1.0)
    return ax


def left_by_layer(table: pd.DataFrame, ax: Axes) -> Axes:
    """What is left of each layer at each share pruned, in the order of importance: layers down, shares across.

    Args:
        table: rows of ``left`` of one stack.
        ax: where to draw; its image's array is [layer, share].
    """
    grid = table.assign(part=table["kept"] / table["n_heads"]).pivot(index="layer", columns="share", values="part")
    image = ax.imshow(grid.to_numpy(float), cmap=style.SHARES, vmin=0, vmax=1, aspect="auto", interpolation="nearest")
    kept = table.pivot(index="layer", columns="share", values="kept").to_numpy()
    if inches(ax)[1] / len(grid) > 0.095 and inches(ax)[0] / grid.shape[1] > 0.2:
        size = min(6.5, 0.72 * 72 * inches(ax)[1] / len(grid))
        for (layer, share), count in np.ndenumerate(kept):
            face = np.asarray(image.cmap(image.norm(grid.to_numpy()[layer, share])), dtype=float).tolist()
            ax.text(
                share, layer, str(int(count)), ha="center", va="center", fontsize=size, color=style.text_colour(face)
            )
    ax.set_xticks(range(grid.shape[1]), [f"{share:.0%}" for share in grid.columns])
    step = 1 if len(grid) <= 16 else 5
    ax.set_yticks(range(0, len(grid), step), [str(layer) for layer in grid.index[::step]])
    ax.set(xlabel="heads pruned in the whole model", ylabel="layer")
    ax.tick_params(length=0)
    ax.spines[:].set_visible(False)
    return ax


def gates_path(table: pd.DataFrame, ax: Axes, importance: pd.DataFrame, unit: str = "nats per token") -> Axes:
    """Loss against the share of heads that learned gates close, each point with its λ; beside it, importance's order,
    as far as gates go.

    Args:
        table: the table ``gates_path``.
        ax: where to draw.
        importance: rows of ``curve`` of the order of importance, drawn thin.
        unit: of the metric.
    """
    ordered, rows = importance.sort_values("share"), table.sort_values("penalty")
    beyond = ordered.loc[ordered["share"] > rows["share_pruned"].max() + 0.02, "share"]
    end = float(beyond.iloc[0]) if len(beyond) else 1.0
    ordered = ordered.loc[ordered["share"] <= end]
    ax.plot(ordered["share"], ordered["value"], color=style.MUTED, linewidth=1.0, label="pruned by importance")
    start = float(ordered["value"].iloc[0])
    ends = [start + rows["ci_low"], start + rows["ci_high"]]
    ax.errorbar(rows["share_pruned"], rows["loss"], yerr=[rows["loss"] - ends[0], ends[1] - rows["loss"]], fmt="o-",
                color=style.ACCENT, markersize=4.5, linewidth=1.2, elinewidth=0.9, markeredgecolor="white",
                markeredgewidth=0.5, label="learned gates", zorder=3)  # fmt: skip
    ax.xaxis.set_major_formatter(PercentFormatter(1.0, decimals=0))
    ax.set(xlabel="heads pruned", ylabel=f"loss ({unit})" if unit else "metric", xlim=(-0.04 * end, 1.04 * end))
    ax.margins(y=0.1)
    sns.despine(ax=ax)
    ax.legend(loc="upper left")
    points = list(zip(rows["share_pruned"], rows["loss"], strict=True))
    groups = _close(ax, points)
    names = [_between([float(rows["penalty"].iloc[i]) for i in group]) for group in groups]
    lines = [*_along(ordered["share"], ordered["value"]), *_along(rows["share_pruned"], rows["loss"])]
    return label_points(ax, [points[group[-1]] for group in groups], names, lines)


def gates_of_heads(table: pd.DataFrame, ax: Axes) -> Axes:
    """Which heads stay: each head's gate at test time (down) at each λ (across), those that close last on top.

    Args:
        table: the table ``gates``.
        ax: where to draw; its image's array is [head, λ].
    """
    named = table.assign(name=[words.head_name(*h) for h in zip(table["layer"], table["head"], strict=True)])
    named["key"] = named["site"] + "/" + named["head"].astype(str)
    grid = named.pivot(index="key", columns="penalty", values="gate")
    last = named.loc[named["penalty"] == named["penalty"].max()].set_index("key")["log_alpha"]
    order = last.sort_values(ascending=False).index
    grid = grid.loc[order]
    ax.imshow(grid.to_numpy(float), cmap=style.SHARES, vmin=0, vmax=1, aspect="auto", interpolation="nearest")
    if len(grid) <= 40:
        names = named.drop_duplicates("key").set_index("key")["name"]
        ax.set_yticks(range(len(grid)), [str(names[key]) for key in order])
    else:
        ax.set_yticks([0, len(grid) - 1], ["1", str(len(grid))])
    ax.set_xticks(range(grid.shape[1]), [f"{penalty:g}" for penalty in grid.columns])
    ax.set(xlabel="penalty λ (nats per head)", ylabel="head" if len(grid) <= 40 else "heads, last to close on top")
    ax.tick_params(length=0)
    ax.spines[:].set_visible(False)
    return ax


def kinds_first(table: pd.DataFrame, ax: Axes, order: Sequence[str]) -> Axes:
    """Which kinds of heads go first: one dot a head, at the share pruned when it goes; a line at each kind's median.

    Args:
        table: ``kind, share`` a row for each head and kind.
        ax: where to draw.
        order: kinds from top to bottom.
    """
    for row, kind in enumerate(order):
        shares = np.sort(table.loc[table["kind"] == kind, "share"].to_numpy())
        jitter = 0.18 * np.array([((i * 7) % 5 - 2) / 2 for i in range(len(shares))])
        ax.scatter(shares, row + jitter, s=10, color=style.KIND_COLOURS.get(kind, style.MUTED), alpha=0.75, linewidth=0,
                   zorder=3)  # fmt: skip
        if len(shares) > 1:
            ax.vlines(np.median(shares), row - 0.34, row + 0.34, color=style.INK, linewidth=1.4, zorder=2)
    ax.axvline(0.5, color=style.MUTED, linewidth=0.8, linestyle=(0, (4, 3)))
    ax.set_yticks(range(len(order)), [glossary.KINDS.get(kind, kind.replace("_", " ")) for kind in order])
    ax.xaxis.set_major_formatter(PercentFormatter(1.0, decimals=0))
    ax.set(xlim=(-0.02, 1.02), ylim=(len(order) - 0.5, -0.5), xlabel="heads pruned when this head goes")
    ax.tick_params(axis="y", length=0)
    sns.despine(ax=ax, left=True)
    return ax


def _close(ax: Axes, points: Sequence[tuple[float, float]], apart: float = 11.0) -> list[list[int]]:
    """Numbers of points that follow each other within so many typographic points on paper."""
    figure_of(ax).draw_without_rendering()
    places = ax.transData.transform(points) * 72 / figure_of(ax).dpi
    groups = [[0]]
    for number in range(1, len(points)):
        near = np.hypot(*(places[number] - places[groups[-1][0]])) < apart
        groups[-1:] = [[*groups[-1], number]] if near else [groups[-1], [number]]
    return groups


def _between(penalties: Sequence[float]) -> str:
    return f"λ {penalties[0]:g}" + (f" to {penalties[-1]:g}" if len(penalties) > 1 else "")


def _along(x: Any, y: Any) -> list[tuple[float, float]]:
    """Points along a line."""
    number = np.arange(len(x))
    at = np.linspace(0, len(x) - 1, 8 * len(x))
    return list(zip(np.interp(at, number, x), np.interp(at, number, y), strict=True))


def _mark_free(ax: Axes, free: Mapping[str, float]) -> None:
    colour, share = ORDERS["importance"][1], float(free["share"])
    ax.axvline(share, color=colour, linewidth=0.8, linestyle=(0, (2, 2)), zorder=2)
    if pd.notna(free["ci_low"]):
        ax.axvspan(float(free["ci_low"]), float(free["ci_high"]), color=colour, alpha=0.08, linewidth=0, zorder=0)
    ax.annotate(f"{share:.0%} free", (share, 1.0), xycoords=ax.get_xaxis_transform(), xytext=(3, -2), va="top",
                textcoords="offset points", fontsize=style.SMALL, color=colour, fontweight="bold")  # fmt: skip
