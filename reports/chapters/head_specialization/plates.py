"""The figures of `head-specialization`, each with its words."""

import pandas as pd
from matplotlib.figure import Figure

from reports import glossary, style, words
from reports.chapters import Plate, Rows
from reports.chapters.head_specialization.called import called, main_data
from reports.chapters.maps import maps_plate
from reports.chapters.reading import Reading, records
from reports.figures import head_specialization as draw
from reports.figures.kind_map import KindMap, kind_figure

_MEASURES = (
    "relative_entropy", "max_weight", "expected_distance", "first_position", "first_position_norm", "separator",
    "punctuation", "previous_token", "current_token", "duplicate_token", "rare_word", "copying_eigenvalues",
)  # fmt: skip
_RELATIONS = 26  # rows of the relations figure
_COREFERENT = 8  # heads of the coreference figure


def opening(reading: Reading) -> Plate | None:
    """The map of the model: what every head is called."""
    if not reading.has("kinds"):
        return None
    heads, rows = reading.table("kinds"), called(reading)

    def figure() -> Figure:
        maps = [
            KindMap(
                stack, reading.stack(rows, stack), int(max(here["layer"])) + 1, int(max(here["head"])) + 1
            )
            for stack in reading.stacks
            if len(here := reading.stack(heads, stack))
        ]  # fmt: skip
        return kind_figure(maps)

    return Plate(
        "map-of-heads",
        "What each head attends to",
        "Every head in the colour and with the letter of what it is called; the more opaque, the higher its score. A "
        "cell cut in two shows two kinds, the more telling one above; further ones are in the table. Empty: called "
        "nothing. Behind each kind, how many heads are called so.",
        figure,
        (Rows("kinds", {"called": True}),),
    )


def plates(reading: Reading) -> tuple[Plate, ...]:
    """All figures that this run has tables for, cards apart."""
    layers = [plate(reading, stack) for stack in reading.stacks for plate in (_entropy, _sink)]
    relations = [_relations(reading, stack) for stack in reading.stacks]
    groups = [_groups(reading, stack) for stack in reading.stacks]
    measures = [
        maps_plate(
            reading,
            words.slug(f"measures {stack}"),
            _MEASURES,
            f"The main measures, head by head{_of(stack)}",
            stack,
            main=main_data(reading),
        )
        for stack in reading.stacks
    ]
    made = [*relations, _coreference(reading), *layers, *measures, *groups, _stability(reading)]
    return tuple(plate for plate in made if plate is not None)


def _entropy(reading: Reading, stack: str) -> Plate | None:
    rows = _text_scores(reading, "entropy", stack)
    if rows.empty:
        return None

    def figure() -> Figure:
        figure, (ax,) = style.canvas(style.NARROW + 0.4, 2.6)
        draw.by_layer({"": rows}, ax, "entropy")
        return figure

    return Plate(
        words.slug(f"entropy-by-layer {stack}"),
        f"How widely heads attend, layer by layer{_of(stack)}",
        f"Entropy of the rows of each head (one dot), and the mean of each layer (line). {_n(rows)}. Dashed: attention "
        "spread evenly over what a row may read. Clark et al. (2019) call heads of BERT broad above 3.8 nats on rows "
        "of 128 tokens.",
        figure,
        (Rows("heads", {"metric": "entropy", "data": main_data(reading)}),),
    )


def _sink(reading: Reading, stack: str) -> Plate | None:
    plain = _text_scores(reading, "first_position", stack)
    if plain.empty:
        return None
    weighted = _text_scores(reading, "first_position_norm", stack)
    series = {"weights α": plain} | ({"norm-weighted ‖αf(x)‖": weighted} if len(weighted) else {})

    def figure() -> Figure:
        figure, (ax,) = style.canvas(style.NARROW + 0.4, 2.8)
        draw.by_layer(series, ax, "first_position")
        return figure

    beside = (
        " A sink whose values are small takes much of the weights and little of what is written (Kobayashi et al. "
        "2020)."
        if len(weighted)
        else ""
    )
    return Plate(
        words.slug(f"sink-by-layer {stack}"),
        f"How much rests on the first position, layer by layer{_of(stack)}",
        f"Share of attention on the first position, of each head (dots) and on average over a layer (lines).{beside} "
        f"{_n(plain)}.",
        figure,
        (Rows("heads", {"metric": "first_position", "data": main_data(reading)}),),
    )


def _relations(reading: Reading, stack: str) -> Plate | None:
    table = reading.measured("relations", "accuracy", best=True)
    table = reading.stack(table, stack) if len(table) else table
    if table.empty:
        return None
    rows = table.sort_values("difference", ascending=False).head(_RELATIONS)
    causal = bool((rows["possible"] < 0.999).any())

    def figure() -> Figure:
        figure, ax = style.fixed(3.7, 0.215 * len(rows) + 0.1, (1.55, 2.0 if causal else 1.4, 0.5, 0.52))
        draw.relations(rows, ax)
        handles, labels = ax.get_legend_handles_labels()
        figure.legend(
            handles, labels, loc="upper left", ncols=3, handletextpad=0.3, columnspacing=1.2, borderaxespad=0.1
        )
        return figure

    more = (
        f" {len(table) - len(rows)} further ones, where heads do less well, are in the table."
        if len(table) > len(rows)
        else ""
    )
    seen = (
        " Visible: share of the relation's pairs that a causal head can see; the others do not count." if causal else ""
    )
    return Plate(
        words.slug(f"relations {stack}"),
        f"Relations between words: best head against best fixed offset{_of(stack)}",
        "Share of words whose most attended other word is the one that the relation leads to, for the best head of "
        "each relation and direction, chosen on the other half of the sentences; bars: 95 % intervals. The tick is the "
        f"best fixed offset (in words) on the same pairs.{seen}{more}",
        figure,
        (Rows("relations", {"best": True}),),
    )


def _coreference(reading: Reading) -> Plate | None:
    table = reading.measured("coreference", "accuracy")
    if table.empty:
        return None
    rows = table.sort_values("accuracy", ascending=False).head(_COREFERENT)

    def figure() -> Figure:
        figure, (ax,) = style.canvas(style.NARROW, 0.9 + 0.2 * len(rows))
        draw.coreference(rows, ax)
        return figure

    return Plate(
        "coreference",
        "Earlier mentions of the same entity",
        f"Share of mentions whose most attended earlier mention is of the same entity, for the {len(rows)} best heads; "
        "bars: 95 % intervals. Lines: what taking the nearest mention, and the nearest one with the same head word, "
        "would give.",
        figure,
        (Rows("coreference"),),
    )


def _groups(reading: Reading, stack: str) -> Plate | None:
    table = reading.table("groups", stack=stack)
    if len(table) < 3:
        return None
    kinds = {
        (str(row["site"]), int(row["layer"]), int(row["head"])): kind
        for kind in reversed(glossary.KINDS)
        if kind != "redundant"
        for row in records(called(reading, kind))
    }
    chosen = reading.table("clusterings", stack=stack, chosen=True)

    def figure() -> Figure:
        return groups_figure(table, kinds)

    stress = f" Stress {words.number(chosen['stress'].iloc[0])} (0 perfect, 0.1 fair, 0.2 poor)." if len(chosen) else ""
    return Plate(
        words.slug(f"groups {stack}"),
        f"Which heads attend alike{_of(stack)}",
        "Heads laid out so that those with alike rows are near one another: multidimensional scaling of the mean "
        f"Jensen–Shannon divergence between rows of {words.count(len(table), 'head')}, as Clark et al. (2019)."
        f"{stress} Left by kind (hollow: called nothing; the outermost heads are named), middle by group (named: the "
        "head in its middle), right by layer.",
        figure,
        (Rows("groups"), Rows("clusterings")),
    )


def groups_figure(table: pd.DataFrame, kinds: dict[tuple[str, int, int], str]) -> Figure:
    """The same places three times, by kind, by group and by layer, each with its own legend below."""
    lines = max(-(-len(set(kinds.values())) // 2), 3)
    side, gap, below, above = 2.26, 0.14, 0.15 + 0.125 * lines, 0.25
    width, height = 3 * side + 2 * gap + 0.06, above + side + below
    figure = style.blank(width, height)
    axes = [
        figure.add_axes(((0.03 + i * (side + gap)) / width, below / height, side / width, side / height))
        for i in range(3)
    ]
    draw.embedding_by_kind(table, axes[0], kinds)
    draw.embedding_by_group(table, axes[1])
    draw.embedding_by_layer(table, axes[2])
    for ax, title in zip(axes, ("by kind", "by group (heads in it)", "by layer"), strict=True):
        ax.set_title(title)
    for ax, columns in zip(axes[:2], (2, 3), strict=True):
        if ax.get_legend_handles_labels()[0]:
            ax.legend(loc="upper left", bbox_to_anchor=(-0.03, -0.01), ncols=columns, handletextpad=0.1,
                      columnspacing=0.9, fontsize=6.6, borderaxespad=0.2, labelspacing=0.3)  # fmt: skip
    bar = figure.add_axes(
        ((0.03 + 2 * (side + gap) + 0.1) / width, (below - 0.2) / height, (side - 0.2) / width, 0.07 / height)
    )
    drawn = figure.colorbar(axes[2].collections[0], cax=bar, orientation="horizontal")
    drawn.outline.set_visible(False)  # pyright: ignore[reportCallIssue]: its annotation is wrong
    bar.tick_params(labelsize=style.SMALL, length=2)
    bar.locator_params(axis="x", integer=True, nbins=6)
    bar.set_xlabel("layer", fontsize=style.SMALL + 0.5, labelpad=2)
    return figure


def _stability(reading: Reading) -> Plate | None:
    table = reading.measured("stability", "spearman")
    table = table.loc[[not glossary.twin_of(str(metric))[1] for metric in table["metric"]]] if len(table) else table
    if table.empty:
        return None

    def figure() -> Figure:
        figure, (ax,) = style.canvas(style.NARROW + 0.2, 0.75 + 0.18 * len(set(table["metric"])))
        draw.stability(table, ax)
        return figure

    return Plate(
        "stability",
        "Which scores depend on the text",
        "Rank correlation of the heads' scores between two halves of the text, and between two kinds of text. Low in "
        "both: the score is noisy. Low between kinds alone: it depends on the text. "
        f"{words.count(int(max(table['n_heads'])), 'head')}; bars: 95 % intervals.",
        figure,
        (Rows("stability"),),
    )


def _text_scores(reading: Reading, metric: str, stack: str) -> pd.DataFrame:
    rows = reading.measured("heads", "value", metric=metric, data=main_data(reading))
    return reading.stack(rows, stack) if len(rows) else rows


def _of(stack: str) -> str:
    return f" ({stack})" if stack else ""


def _n(rows: pd.DataFrame) -> str:
    least, most = int(min(rows["n"])), int(max(rows["n"]))
    size = words.count(most, "document") if least == most else f"{least} to {words.count(most, 'document')}"
    return f"Means over {size}"
