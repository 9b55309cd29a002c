"""The figures of the classifiers' half, each with its words."""

from collections.abc import Sequence

import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from reports import style, words
from reports.chapters import Plate, Rows
from reports.chapters.adversarial_attention.drawn_twice import texts_drawn_twice
from reports.chapters.adversarial_attention.told import kind_name, main_kind, of_kind
from reports.chapters.reading import Reading, Row, records
from reports.figures import adversarial_attention as draw

_PANELS = 3  # classifiers side by side


def plates(reading: Reading) -> tuple[Plate, ...]:
    """All figures that this run has tables for."""
    made = (
        texts_drawn_twice, supporting_facts, rank_agreement, permutations, divergences, by_weight, convergence, path,
        erasing,
    )  # fmt: skip
    return tuple(plate for plate in (make(reading) for make in made) if plate is not None)


def supporting_facts(reading: Reading) -> Plate | None:
    """How often the fact that answers is found."""
    table = reading.measured("supporting_facts", "value")
    if table.empty:
        return None

    def figure() -> Figure:
        figure, (ax,) = style.canvas(style.NARROW, 2.7)
        draw.facts(table, ax)
        return figure

    return Plate(
        "supporting-facts",
        "Does the ranking find the fact that answers?",
        "Share of the texts answered correctly in which the fact with the most weight on its words is the one that "
        "answers. Bars: 95 % intervals; dashed: a fact drawn at random. "
        f"{words.sentence_case(words.count(int(max(table['n'])), 'text'))} at most.",
        figure,
        (Rows("supporting_facts", {}),),
    )


def rank_agreement(reading: Reading) -> Plate | None:
    """Histograms of τ of the main classifier."""
    row, rows = _main(reading)
    if row is None or rows is None:
        return None
    columns = {
        "tau_gradient": "attention, gradient", "tau_leave_one_out": "attention, leave-one-out",
        "tau_gradient_leave_one_out": "gradient, leave-one-out",
    }  # fmt: skip

    def figure() -> Figure:
        figure, axes = style.canvas(style.WIDE, 2.3, panels=3, share=True)
        for ax, (column, title) in zip(axes, columns.items(), strict=True):
            draw.tau_histogram(rows, ax, column)
            ax.set_title(title)
        _one_y_label(axes)
        _legend(axes[0], rows)
        return figure

    return Plate(
        "rank-agreement",
        "Do attention, gradients and leave-one-out rank words alike?",
        f"Kendall's τ within each text, of {kind_name(row)}, by the answer that it gives; 1 is the same order, 0 none. "
        f"Marks at the top are means. {_n(rows)}.",
        figure,
        (_rows("agreement", row), _rows("examples", row)),
    )  # fmt: skip


def permutations(reading: Reading) -> Plate | None:
    """Violins of the change under shuffled attention, a panel a classifier."""
    return _violins(
        reading, "permutations", "permutation_tvd", "change of the answer (TVD)", 1.0,
        "What shuffling the weights does",
        "Median over random permutations of each text's weights of how far the answer moves, by the largest weight of "
        "the "
        "text. Attention that matters is to the right, most of all where one weight is large.",
    )  # fmt: skip


def by_weight(reading: Reading) -> Plate | None:
    """Violins of ε-max JSD."""
    return _violins(
        reading, "eps-max-jsd-by-weight", "jsd", "ε-max JSD (nats)", draw.LN2,
        "How far adversaries get, by the largest weight",
        "ε-max JSD of each text by its largest weight. Where attention is flat the divergence cannot be as large as "
        "ln 2, whatever the model: 0.216 is all there is for two equal words.",
    )  # fmt: skip


def divergences(reading: Reading) -> Plate | None:
    """Histograms of ε-max JSD, a panel a classifier."""
    kinds = _kinds(reading, "jsd")
    if not kinds:
        return None

    def figure() -> Figure:
        figure, axes = style.canvas(style.WIDE if len(kinds) > 1 else style.NARROW, 2.4, panels=len(kinds), share=True)
        for ax, (name, rows, _) in zip(axes, kinds, strict=True):
            draw.jsd_histogram(rows, ax)
            ax.set_title(name)
        _one_y_label(axes)
        _legend(axes[0], kinds[0][1])
        return figure

    return Plate(
        "eps-max-jsd",
        "How far attention can go while the answer stays",
        "The largest divergence from the model's own attention among adversaries within ε, by answer. The thin line is "
        "the control: random weights, no search. Texts without an adversary within ε are in no bar, and count in the "
        f"total. {_n(kinds[0][1])}.",
        figure,
        tuple(_rows("examples", row) for _, _, row in kinds),
    )


def convergence(reading: Reading) -> Plate | None:
    """ε-max JSD by steps."""
    table = reading.measured("adversaries", "value", **{"class": "all"})
    if table.empty or len(set(table["steps"])) < 2:
        return None
    epsilon = float(table["epsilon"].iloc[0])
    table = table.loc[table["epsilon"] == epsilon]

    def figure() -> Figure:
        figure, (left, right) = style.canvas(style.WIDE, 2.5, panels=2)
        draw.convergence(table, left, "value")
        draw.convergence(table, right, "found")
        right.legend(loc="lower right", fontsize=style.SMALL)
        return figure

    return Plate(
        "adversaries-by-steps",
        "Has the search come to its end?",
        f"Left: mean ε-max JSD (ε = {epsilon:g}) of the texts in which an adversary was found; right: in how many one "
        f"was. "
        "Read them together: the mean may fall while texts come in that leave less room. 0 steps is the random start. "
        "Shaded: 95 % intervals; dashed: ln 2.",
        figure,
        (Rows("adversaries", {"class": "all"}),),
    )


def path(reading: Reading) -> Plate | None:
    """Divergence against change, of whole classifiers and of adversaries for single texts."""
    table = reading.measured("consistent", "jsd")
    if table.empty:
        return None

    def figure() -> Figure:
        figure, (ax,) = style.canvas(style.NARROW + 0.4, 3.1)
        draw.consistent(table, ax)
        return figure

    return Plate(
        "consistent-path",
        "One adversarial classifier for all texts",
        "How far attention is from the base's, against how far the answers are; means over texts with 95 % intervals. "
        "Points low and to the right say that attention is not tied to the answers. TVD is ½ Σ|p − q| (|Δσ| for two "
        "classes), which is twice Wiegreffe & Pinter's.",
        figure,
        (Rows("consistent", {}),),
    )


def erasing(reading: Reading) -> Plate | None:
    """Erasing words by attention: single ones, and until the decision flips."""
    seed = main_kind(reading)
    single, order = (reading.measured(name, "value") for name in ("erasure", "removal"))
    if seed is None or single.empty or order.empty:
        return None
    single, order = (table.loc[table["seed"] == seed["seed"]] for table in (single, order))

    def figure() -> Figure:
        figure, (left, right) = style.canvas(style.WIDE, 2.6, panels=2)
        draw.erasure(single, left)
        draw.removal(order, right)
        return figure

    return Plate(
        "erasing",
        "Is the most attended word the one that matters?",
        "Left: how much more the answer's distribution changes without the most attended word than without a random "
        "one, "
        "by how much more weight it has; below 0 the random word mattered more. Right: how many words must go until "
        "the "
        "decision flips, in four orders; never counts as all of them. 95 % intervals.",
        figure,
        (Rows("erasure", {}), Rows("removal", {})),
    )


def _violins(
    reading: Reading, name: str, column: str, label: str, limit: float, title: str, caption: str
) -> Plate | None:
    kinds = _kinds(reading, column)
    if not kinds:
        return None

    def figure() -> Figure:
        size = style.WIDE if len(kinds) > 1 else style.NARROW
        figure, axes = style.canvas(size, 2.7, panels=len(kinds), share=True)
        for ax, (kind, rows, _) in zip(axes, kinds, strict=True):
            draw.change_by_attention(rows, ax, column, label, limit)
            ax.set_title(kind)
        _one_y_label(axes)
        _legend(axes[0], kinds[0][1])
        return figure

    return Plate(
        name, title, f"{caption} Thick lines: quartiles; fewer than eight texts are points. {_n(kinds[0][1])}.", figure,
        tuple(_rows("examples", row) for _, _, row in kinds),
    )  # fmt: skip


def _kinds(reading: Reading, column: str) -> list[tuple[str, pd.DataFrame, Row]]:
    """Classifiers of the first seed that have values, at most three: those of the main one's attention first."""
    made = []
    for row in records(reading.table("classifiers", tested=True).drop_duplicates(["encoder", "attention"])):
        rows = of_kind(reading, "examples", row)
        if len(rows) and len(rows.dropna(subset=column)):
            made.append((f"{draw.ENCODERS[str(row['encoder'])]}, {row['attention']}", rows, row))
    return made[:_PANELS]


def _main(reading: Reading) -> tuple[Row | None, pd.DataFrame | None]:
    row = main_kind(reading)
    rows = None if row is None else of_kind(reading, "examples", row)
    return (None, None) if rows is None or rows.empty else (row, rows)


def _legend(ax: Axes, rows: pd.DataFrame) -> None:
    if len(draw.classes_of(rows)) > 1 or ax.get_legend_handles_labels()[1].count("random start, no search"):
        ax.legend(loc="upper left", fontsize=style.SMALL, handlelength=1.2)


def _one_y_label(axes: Sequence[Axes]) -> None:
    for ax in axes[1:]:
        ax.set_ylabel("")


def _n(rows: pd.DataFrame) -> str:
    return words.sentence_case(words.count(len(rows), "text"))


def _rows(table: str, row: Row) -> Rows:
    return Rows(table, {"encoder": str(row["encoder"]), "attention": str(row["attention"]), "seed": int(row["seed"])})
