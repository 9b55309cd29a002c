"""Figures of the heads' half of `adversarial-attention`: a saved table and an Axes in, the Axes out."""

from collections.abc import Mapping

import numpy as np
import pandas as pd
import seaborn as sns
from matplotlib.axes import Axes
from matplotlib.ticker import PercentFormatter

from reports import style, words
from reports.figures.labels import inches

SHARES = {
    "freedom_share": ("same output, up to ε", style.SERIES[1], "o"),
    "nullspace_share": ("same head output", style.SERIES[0], "s"),
    "random_values_share": ("same head output, values at random", style.MUTED, "D"),
}
_NAMED = 10  # heads whose names are written beside their points


def on_grid(scores: pd.DataFrame, n_layers: int, n_heads: int) -> pd.DataFrame:
    """Rows of ``heads`` of one metric, and one without a value for each head of the model that was not looked at."""
    every = pd.MultiIndex.from_product([range(n_layers), range(n_heads)], names=["layer", "head"])
    filled = scores.drop_duplicates(["layer", "head"]).set_index(["layer", "head"]).reindex(every).reset_index()
    for column in ("site", "data", "metric"):
        filled[column] = scores[column].iloc[0]
    return filled


def freedom_against_importance(
    freedom: pd.DataFrame, importance: pd.DataFrame, rows: pd.DataFrame, ax: Axes,
    kinds: Mapping[tuple[int, int], str] | None = None, pinned: float = 0.1,
) -> Axes:  # fmt: skip
    """A point a head: how much freedom its attention has by how much the loss depends on its output.

    Args:
        freedom: rows of ``heads`` with metric ``freedom_share``.
        importance: with metric ``derivative``.
        rows: searched rows of ``freedom_rows``, which are the small dots. (Intervals over a few sequences would cover
            most of the axis; the rows say why.)
        ax: where to draw; importance is on a logarithmic axis.
        kinds: what heads are called, by layer and head, where another analysis of this run says so.
        pinned: share below which a row is pinned, drawn as a line.
    """
    columns = ["layer", "head"]
    table = freedom.merge(importance[[*columns, "value"]], on=columns, suffixes=("", "_importance"))
    table = table.loc[(table["value_importance"] > 0) & table["value"].notna()]
    x, y = table["value_importance"].to_numpy(float), table["value"].to_numpy(float)
    names = [kinds.get((int(layer), int(head)), "") if kinds else "" for layer, head in table[columns].to_numpy()]
    single = rows.merge(importance[[*columns, "value"]], on=columns)
    single = single.loc[single["value"] > 0]
    ends = single.groupby("value")["share"].agg(["min", "max"])
    ax.vlines(ends.index, ends["min"], ends["max"], color=style.FAINT, linewidth=0.6, zorder=1)
    ax.plot(single["value"], single["share"], "o", color=style.SERIES[5], markersize=1.6, alpha=0.45, zorder=2)
    for kind in dict.fromkeys(names):
        mine = np.array([name == kind for name in names])
        colour, marker = style.KIND_COLOURS.get(kind, style.SERIES[5]), style.KIND_MARKERS.get(kind, "o")
        label = kind.replace("_", " ") if kind else "no kind known" if kinds else ""
        ax.plot(x[mine], y[mine], marker, color=colour, markersize=4, alpha=0.85, label=label or None, zorder=3)
    ax.axhline(pinned, color=style.MUTED, linewidth=0.7, linestyle=(0, (4, 3)))
    ax.annotate("pinned\nbelow", (1.0, pinned), xycoords=ax.get_yaxis_transform(), xytext=(3, 0),
                textcoords="offset points", va="center", fontsize=style.SMALL, color=style.MUTED)  # fmt: skip
    ax.set(xscale="log", ylim=(-0.03, 1.05), xlabel="importance |∂L/∂ξ| (nats, log scale)",
           ylabel="freedom (share of the largest JSD)")  # fmt: skip
    ax.xaxis.set_major_formatter(lambda value, _: f"{value:g}")
    ax.xaxis.set_minor_formatter(lambda value, _: f"{value:g}" if f"{value:.0e}"[0] in "25" else "")
    ax.yaxis.set_major_formatter(PercentFormatter(1.0, decimals=0))
    ax.tick_params(axis="x", which="minor", labelsize=style.SMALL)
    if kinds and any(names):
        ax.legend(loc="lower left", bbox_to_anchor=(0.0, 1.0), ncols=3, handletextpad=0.2, borderaxespad=0.1)
    sns.despine(ax=ax)
    _name_points(ax, table, x, y)
    return ax


def _name_points(ax: Axes, table: pd.DataFrame, x: np.ndarray, y: np.ndarray) -> None:
    """Names of the heads with the least freedom and of the most important ones, each beside its point, where no other
    name or point is; without room it is left out."""
    few = max(1, _NAMED // 2)
    chosen = list(dict.fromkeys([*np.argsort(y)[:few].tolist(), *np.argsort(-x)[:few].tolist()]))
    width, height = (72 * size for size in inches(ax))
    across = np.log(x / ax.get_xlim()[0]) / np.log(ax.get_xlim()[1] / ax.get_xlim()[0]) * width
    up = (y - ax.get_ylim()[0]) / (ax.get_ylim()[1] - ax.get_ylim()[0]) * height
    taken = [(a - 3, u - 3, a + 3, u + 3) for a, u in zip(across, up, strict=True)]
    for i in chosen:
        name = words.head_name(*table.iloc[i][["layer", "head"]])
        size = 0.62 * style.SMALL * len(name)
        for right, above in ((5, -3), (5, 4), (5, -10), (-5 - size, -3), (-5 - size, 4), (-5 - size, -10)):
            box = (across[i] + right, up[i] + above, across[i] + right + size, up[i] + above + style.SMALL)
            if all(box[2] < b[0] or b[2] < box[0] or box[3] < b[1] or b[3] < box[1] for b in taken):
                taken.append(box)
                ax.annotate(name, (x[i], y[i]), xytext=(right, above), textcoords="offset points",
                            fontsize=style.SMALL, url=f"#{name}")  # fmt: skip
                break


def share_by_keys(table: pd.DataFrame, ax: Axes) -> Axes:
    """Shares of the largest divergence by number of keys, in doublings; bars are intervals over sequences.

    Args:
        table: ``freedom_by_keys``.
        ax: where to draw.
    """
    bins = sorted(set(zip(table["low"], table["high"], strict=True)))
    at = {low: place for place, (low, _) in enumerate(bins)}
    for shift, (metric, (label, colour, marker)) in enumerate(SHARES.items()):
        rows = table.loc[table["metric"] == metric].sort_values("low")
        if rows.empty:
            continue
        x = np.array([at[low] for low in rows["low"]]) + 0.09 * (shift - 1)
        y = rows["value"].to_numpy(float)
        ends = [np.maximum(y - rows["ci_low"].fillna(rows["value"]), 0),
                np.maximum(rows["ci_high"].fillna(rows["value"]) - y, 0)]  # fmt: skip
        # freedom was searched in another sequence for each number of keys: a line would show a trend that may be theirs
        line = {"random_values_share": (0, (4, 2)), "freedom_share": "none"}.get(metric, "-")
        ax.errorbar(x, y, yerr=ends, color=colour, marker=marker, markersize=4, linewidth=1.2, elinewidth=0.8,
                    linestyle=line, label=label)  # fmt: skip
    ax.set_xticks(range(len(bins)), [f"{low}–{high}" for low, high in bins])
    ax.set(
        xlabel="keys of the row", ylabel="share of the largest JSD", ylim=(-0.03, 1.05), xlim=(-0.4, len(bins) - 0.6)
    )
    ax.yaxis.set_major_formatter(PercentFormatter(1.0, decimals=0))
    sns.despine(ax=ax)
    return ax


def substitutes(heads: pd.DataFrame, ax: Axes, epsilon: float) -> Axes:
    """Change of the output when one row is replaced without any search, a dot a head.

    Args:
        heads: rows of ``heads`` with the metrics ``permuted_tvd``, ``uniform_tvd``, ``first_position_tvd`` and
            ``mean_pattern_tvd``.
        ax: where to draw. epsilon: the change that freedom allows, drawn as a line.
    """
    rows = {
        "mean_pattern_tvd": "its mean pattern", "uniform_tvd": "uniform", "permuted_tvd": "its weights shuffled",
        "first_position_tvd": "all on the first key",
    }  # fmt: skip
    for place, (metric, _) in enumerate(reversed(rows.items())):
        values = np.sort(heads.loc[heads["metric"] == metric, "value"].dropna().to_numpy(float))
        if not len(values):
            continue
        spread = 0.3 * ((np.arange(len(values)) * 0.618) % 1 - 0.5)
        ax.plot(np.maximum(values, 1e-4), place + spread, "o", color=style.SERIES[0], markersize=3, alpha=0.5)
        middle = max(float(np.median(values)), 1e-4)
        ax.plot([middle, middle], [place - 0.3, place + 0.3], color=style.INK, linewidth=1.6)
    ax.axvline(epsilon, color=style.MUTED, linewidth=0.8, linestyle=(0, (4, 3)))
    ax.annotate("ε", (epsilon, 1.0), xycoords=ax.get_xaxis_transform(), xytext=(3, -2), textcoords="offset points",
                va="top", fontsize=style.SMALL + 1, color=style.MUTED)  # fmt: skip
    ax.set_yticks(range(len(rows)), list(reversed(rows.values())))
    ax.set(xscale="log", xlabel="change of the output (TVD, log scale)", ylim=(-0.6, len(rows) - 0.4))
    ax.xaxis.set_major_formatter(lambda value, _: f"{value:g}")
    ax.tick_params(axis="y", length=0)
    ax.grid(axis="x", color=style.FAINT, linewidth=0.5)
    ax.set_axisbelow(True)
    sns.despine(ax=ax, left=True)
    return ax


def as_texts(patterns: pd.DataFrame, tokens: pd.DataFrame) -> pd.DataFrame:
    """The rows of ``patterns`` as texts to be drawn: ``instance, which, position, text, weight`` and what was found.

    Every key gets the text of its token; the query's own is marked by ⟨ ⟩.
    """
    parts = []
    keys = ["site", "head", "sequence", "query"]
    for number, (_, rows) in enumerate(patterns.groupby(keys, sort=False)):
        mine = tokens.loc[tokens["sequence"] == rows["sequence"].iloc[0]].set_index("position")["text"]
        texts = [words.visible(str(mine[key])).strip() or "␣" for key in rows["key"]]  # a token that is all spaces
        texts = [
            f"⟨{t}⟩" if key == query else t for t, key, query in zip(texts, rows["key"], rows["query"], strict=True)
        ]
        parts.append(rows.assign(instance=number, position=rows["key"], text=texts))
    return pd.concat(parts, ignore_index=True)
