"""Figures of the classifiers' half of `adversarial-attention`: a saved table and an Axes in, the Axes out."""

import numpy as np
import pandas as pd
import seaborn as sns
from matplotlib.axes import Axes
from matplotlib.ticker import MaxNLocator, PercentFormatter

from reports import style

LN2 = float(np.log(2))
BINS = ((0.0, 0.25), (0.25, 0.5), (0.5, 0.75), (0.75, 1.0))
"""Of the largest weight of a text, as in the paper."""
RANKINGS = {"attention": "attention", "gradient": "gradient", "leave_one_out": "leave-one-out"}
ORDERS = {
    "attention": "attention", "gradient": "gradient", "gradient_attention": "gradient × attention", "random": "random",
}  # fmt: skip
ENCODERS = {"lstm": "BiLSTM", "cnn": "CNN", "average": "average"}
KINDS = {
    "seed": "other seed", "uniform": "uniform", "per_instance": "one adversary a text", "consistent": "one for all "
    "texts",
}  # fmt: skip
_FEWEST = 8  # texts of a violin; fewer are drawn as points


def classes_of(table: pd.DataFrame) -> list[str]:
    """The classes that are told apart in a figure: each where there are at most four, else all as one."""
    names = sorted(set(table["class"]))
    return names if len(names) <= 4 else []


def by_class(table: pd.DataFrame) -> list[tuple[str, pd.DataFrame, str]]:
    """Name, rows and colour of each class that is told apart."""
    names = classes_of(table)
    if not names:
        return [("all texts", table, style.SERIES[0])]
    return [(name, table.loc[table["class"] == name], style.SERIES[i]) for i, name in enumerate(names)]


def of_kinds(table: pd.DataFrame) -> list[tuple[str, pd.DataFrame]]:
    """Name and rows of each classifier, seeds together, in the table's order."""
    kinds = list(dict.fromkeys(zip(table["encoder"], table["attention"], strict=True)))
    return [
        (f"{ENCODERS[encoder]}, {attention}",
         table.loc[(table["encoder"] == encoder) & (table["attention"] == attention)])
        for encoder, attention in kinds
    ]  # fmt: skip


def tau_histogram(examples: pd.DataFrame, ax: Axes, column: str) -> Axes:
    """Kendall's τ of every text, by predicted class: 30 bins from −1 to 1, as in the paper.

    Args:
        examples: rows of ``examples`` of one classifier.
        ax: where to draw.
        column: ``tau_gradient``, ``tau_leave_one_out`` or ``tau_gradient_leave_one_out``.
    """
    return _histogram(examples, ax, column, (-1.0, 1.0), 30, "Kendall's τ")


def jsd_histogram(examples: pd.DataFrame, ax: Axes) -> Axes:
    """ε-max JSD of every text by predicted class, 40 bins from 0 to 0.7; the thin line is the 0-step control."""
    drawn = _histogram(examples, ax, "jsd", (0.0, 0.7), 40, "ε-max JSD (nats)")
    start = examples["start_jsd"].dropna()
    if len(start):
        ax.hist(start, bins=40, range=(0.0, 0.7), weights=np.full(len(start), 1 / len(examples)), histtype="step",
                color=style.INK, linewidth=0.9, label="random start, no search")  # fmt: skip
    ax.axvline(LN2, color=style.MUTED, linewidth=0.8, linestyle=(0, (4, 3)))
    ax.annotate("ln 2", (LN2, 1.0), xycoords=ax.get_xaxis_transform(), xytext=(-3, -2), textcoords="offset points",
                ha="right", va="top", fontsize=style.SMALL, color=style.MUTED)  # fmt: skip
    return drawn


def _histogram(table: pd.DataFrame, ax: Axes, column: str, limits: tuple[float, float], bins: int, label: str) -> Axes:
    for name, rows, colour in by_class(table):
        values = rows[column].dropna()
        if len(values):
            ax.hist(values, bins=bins, range=limits, weights=np.full(len(values), 1 / len(rows)), color=colour,
                    alpha=0.55, edgecolor="white", linewidth=0.3, label=name)  # fmt: skip
            ax.axvline(float(np.mean(values)), ymin=0.94, color=colour, linewidth=2)
    ax.set(xlabel=label, ylabel="share of texts", xlim=limits)
    ax.yaxis.set_major_locator(MaxNLocator(6, steps=[1, 2, 5, 10]))
    ax.yaxis.set_major_formatter(PercentFormatter(1.0, decimals=0))
    sns.despine(ax=ax)
    return ax


def change_by_attention(examples: pd.DataFrame, ax: Axes, column: str, label: str, limit: float = 1.0) -> Axes:
    """Violins of a value by the largest weight of the text, low at the bottom; lines inside are quartiles.

    Args:
        examples: rows of ``examples`` of one classifier.
        ax: where to draw; fewer than eight texts are drawn as points.
        column: what lies across.
        label: of it, with its unit.
        limit: its largest value.
    """
    groups = by_class(examples)
    height = 0.8 / len(groups)
    for row, (low, high) in enumerate(BINS):
        inside = (examples["max_attention"] >= low) & ((examples["max_attention"] < high) | (high == 1.0))
        for number, (name, rows, colour) in enumerate(groups):
            values = rows.loc[inside.reindex(rows.index), column].dropna().to_numpy(float)
            place = row + (number - (len(groups) - 1) / 2) * height
            if len(values) >= _FEWEST and np.ptp(values) > 1e-6:
                _violin(ax, values, place, height, colour)
            else:
                ax.plot(values, np.full(len(values), place), "o", color=colour, markersize=3, alpha=0.7)
            if row == 0:
                ax.plot([], [], color=colour, linewidth=4, alpha=0.6, label=name)
    ax.set_yticks(range(len(BINS)), [f"{low:.2f}–{high:.2f}" for low, high in BINS])
    ax.set(xlabel=label, ylabel="largest weight", xlim=(-0.02 * limit, limit * 1.02), ylim=(-0.55, len(BINS) - 0.45))
    ax.grid(axis="x", color=style.FAINT, linewidth=0.5)
    ax.set_axisbelow(True)
    ax.tick_params(axis="y", length=0)
    sns.despine(ax=ax, left=True)
    return ax


def _violin(ax: Axes, values: np.ndarray, place: float, height: float, colour: str) -> None:
    body = ax.violinplot(values, positions=[place], orientation="horizontal", widths=0.95 * height, showextrema=False)
    for part in body["bodies"]:  # pyright: ignore[reportGeneralTypeIssues]
        part.set(facecolor=colour, alpha=0.45, linewidth=0)
    low, middle, high = np.quantile(values, [0.25, 0.5, 0.75])
    ax.plot([low, high], [place, place], color=colour, linewidth=1.6, solid_capstyle="butt")
    ax.plot(middle, place, "o", color="white", markeredgecolor=colour, markersize=4, markeredgewidth=1.2, zorder=4)


def convergence(adversaries: pd.DataFrame, ax: Axes, column: str) -> Axes:
    """ε-max JSD, or the share of texts with an adversary, by steps of the search; one line a classifier (first seed).

    Args:
        adversaries: rows of ``adversaries`` of all texts together, with one ``epsilon``.
        ax: where to draw; the first point is the random start.
        column: ``value`` (mean divergence, with its interval) or ``found``.
    """
    for number, (name, rows) in enumerate(of_kinds(adversaries)):
        ordered = rows.loc[rows["seed"] == min(rows["seed"])].sort_values("steps")
        colour = style.SERIES[number % len(style.SERIES)]
        if column == "value":
            band = (ordered["ci_low"], ordered["ci_high"])
            ax.fill_between(ordered["steps"], *band, color=colour, alpha=0.15, linewidth=0)
        ax.plot(ordered["steps"], ordered[column], color=colour, marker=style.MARKERS[number % len(style.MARKERS)],
                markersize=4.5, markeredgecolor="white", markeredgewidth=0.5, label=name)  # fmt: skip
    if column == "value":
        ax.axhline(LN2, color=style.MUTED, linewidth=0.8, linestyle=(0, (4, 3)))
        ax.set(ylabel="ε-max JSD (nats, mean)", ylim=(0, 0.72))
    else:
        ax.set(ylabel="texts with an adversary within ε", ylim=(0, 1.03))
        ax.yaxis.set_major_formatter(PercentFormatter(1.0, decimals=0))
    ax.set(xlabel="steps of the search")
    sns.despine(ax=ax)
    return ax


def consistent(table: pd.DataFrame, ax: Axes) -> Axes:
    """How far attention is from the base's against how much the answer changes; one adversarial classifier a point.

    Args:
        table: rows of ``consistent`` that have a divergence and a change; the path joins the weights in their order,
            but not where attention leaves at once.
        ax: where to draw: low and right is attention that is not exclusive.
    """
    for number, (kind, name) in enumerate(KINDS.items()):
        rows = table.loc[table["kind"] == kind].dropna(subset=["jsd", "tvd"]).sort_values("weight")
        if rows.empty:
            continue
        colour, marker = style.SERIES[number], style.MARKERS[number]
        if kind == "consistent":
            joined = rows["jsd"].diff().fillna(0) < LN2 / 3  # nothing is known to lie on a line across a leap
            for _, part in rows.groupby((~joined).cumsum()):
                ax.plot(part["jsd"], part["tvd"], color=colour, linewidth=0.9, zorder=2)
            for jsd, tvd, weights in _together(rows):
                is_right = jsd > 0.6
                ax.annotate(f"λ {weights}", (jsd, tvd), xytext=(-6 if is_right else 6, 6),
                            textcoords="offset points", ha="right" if is_right else "left", fontsize=style.SMALL,
                            color=colour)  # fmt: skip
        spans = [[rows[value] - rows[f"{value}_low"], rows[f"{value}_high"] - rows[value]] for value in ("jsd", "tvd")]
        ax.errorbar(rows["jsd"], rows["tvd"], xerr=np.abs(spans[0]), yerr=np.abs(spans[1]), fmt=marker, color=colour,
                    markersize=5, markeredgecolor="white", markeredgewidth=0.5, elinewidth=0.8, label=name,
                    zorder=3)  # fmt: skip
    ax.set(xlabel="JSD from the base's attention (nats, mean)", ylabel="change of the answer (TVD, mean)",
           xlim=(0, 0.72), ylim=(min(-0.02, ax.get_ylim()[0]), None))  # fmt: skip
    ax.axvline(LN2, color=style.MUTED, linewidth=0.8, linestyle=(0, (4, 3)))
    ax.legend(loc="lower left", bbox_to_anchor=(0.0, 1.0), ncols=2, handletextpad=0.3, borderaxespad=0.1)
    sns.despine(ax=ax)
    return ax


def _together(rows: pd.DataFrame) -> list[tuple[float, float, str]]:
    """The path's points where a label is written, and the weights it names: neighbours that are close share one."""
    made: list[tuple[float, float, str]] = []
    for jsd, tvd, weight in zip(rows["jsd"], rows["tvd"], rows["weight"], strict=True):
        name = f"{weight:g}"
        if made and abs(jsd - made[-1][0]) < 0.06 and abs(tvd - made[-1][1]) < 0.06:
            name = f"{made.pop()[2]}, {name}"
        made.append((jsd, tvd, name))
    return made


def facts(table: pd.DataFrame, ax: Axes) -> Axes:
    """How often the fact with the most weight is the one that answers, by ranking; dashes: a fact drawn at random.

    Args:
        table: the table ``supporting_facts``; classifiers of several seeds are several marks.
        ax: where to draw.
    """
    kinds = of_kinds(table)
    width = 0.7 / max(len(kinds), 1)
    for number, (name, rows) in enumerate(kinds):
        colour = style.SERIES[number % len(style.SERIES)]
        for row in rows.to_dict("records"):
            seeds = sorted(set(rows["seed"]))
            place = list(RANKINGS).index(row["ranking"]) + (number - (len(kinds) - 1) / 2) * width
            place += (seeds.index(row["seed"]) - (len(seeds) - 1) / 2) * width / (len(seeds) + 1)
            ax.errorbar(place, row["value"], yerr=[[row["value"] - row["ci_low"]], [row["ci_high"] - row["value"]]],
                        fmt=style.MARKERS[number % len(style.MARKERS)], color=colour, markersize=5, elinewidth=1,
                        markeredgecolor="white", markeredgewidth=0.5, zorder=3)  # fmt: skip
            ax.hlines(row["chance"], place - width / 2.4, place + width / 2.4, color=style.MUTED, linewidth=0.9,
                      linestyle=(0, (3, 2)))  # fmt: skip
        ax.plot([], [], style.MARKERS[number % len(style.MARKERS)], color=colour,
                label=name)  # fmt: skip
    ax.set_xticks(range(len(RANKINGS)), list(RANKINGS.values()))
    ax.set(ylabel="top fact is the one that answers", ylim=(0, 1.03), xlim=(-0.5, len(RANKINGS) - 0.5))
    ax.yaxis.set_major_formatter(PercentFormatter(1.0, decimals=0))
    ax.tick_params(axis="x", length=0)
    ax.legend(loc="lower left", bbox_to_anchor=(0.0, 1.0), ncols=2, handletextpad=0.2, borderaxespad=0.1)
    sns.despine(ax=ax)
    return ax


def erasure(table: pd.DataFrame, ax: Axes) -> Axes:
    """How much more the answer changes without the most attended word than without a random one, by their weights.

    Args:
        table: rows of ``erasure`` of one seed.
        ax: where to draw; below 0 the random word mattered more.
    """
    for number, (name, rows) in enumerate(of_kinds(table)):
        middle = (rows["alpha_low"] + rows["alpha_high"]) / 2 + 0.012 * number
        spans = [(rows["value"] - rows["ci_low"]).fillna(0), (rows["ci_high"] - rows["value"]).fillna(0)]
        ax.errorbar(middle, rows["value"], yerr=spans, color=style.SERIES[number % len(style.SERIES)],
                    marker=style.MARKERS[number % len(style.MARKERS)], markersize=4.5, markeredgecolor="white",
                    markeredgewidth=0.5, elinewidth=0.9, linewidth=1,
                    label=name)  # fmt: skip
    ax.axhline(0, color=style.INK, linewidth=0.7)
    ax.set(xlabel="Δα: most attended less random word", ylabel="ΔJS (nats)", xlim=(0, 1))
    ax.legend(loc="upper left", fontsize=style.SMALL)
    sns.despine(ax=ax)
    return ax


def removal(table: pd.DataFrame, ax: Axes) -> Axes:
    """The share of words erased until the decision flips, by the order in which they go; 1 where it never does.

    Args:
        table: rows of ``removal`` of one seed.
        ax: where to draw.
    """
    kinds = of_kinds(table)
    height = 0.7 / max(len(kinds), 1)
    for number, (_, of) in enumerate(kinds):
        rows = of.set_index("order")
        for row, order in enumerate(ORDERS):
            if order not in rows.index:
                continue
            found = rows.loc[order]
            ax.errorbar(found["value"], row + (number - (len(kinds) - 1) / 2) * height,
                        xerr=[[found["value"] - found["ci_low"]], [found["ci_high"] - found["value"]]],
                        fmt=style.MARKERS[number % len(style.MARKERS)], color=style.SERIES[number % len(style.SERIES)],
                        markersize=5, elinewidth=1, markeredgecolor="white", markeredgewidth=0.5)  # fmt: skip
    ax.set_yticks(range(len(ORDERS)), list(ORDERS.values()))
    ax.set(xlabel="share of words erased until the decision flips", xlim=(0, 1), ylim=(len(ORDERS) - 0.5, -0.5))
    ax.xaxis.set_major_formatter(PercentFormatter(1.0, decimals=0))
    ax.grid(axis="x", color=style.FAINT, linewidth=0.5)
    ax.tick_params(axis="y", length=0)
    sns.despine(ax=ax, left=True)
    return ax
