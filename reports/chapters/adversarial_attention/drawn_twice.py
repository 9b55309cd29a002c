"""A few texts drawn twice: under the model's own attention and under an adversarial one."""

import pandas as pd
from matplotlib.figure import Figure

from reports import style, words
from reports.chapters import Plate, Rows
from reports.chapters.reading import Reading, first
from reports.figures import attended_text as draw


def texts_drawn_twice(reading: Reading) -> Plate | None:
    """A few texts with their own and with adversarial attention, side by side."""
    table = reading.table("instances")
    if table.empty:
        return None
    width = style.WIDE / 2 - 0.12
    high = draw.heights(table, width)

    def figure() -> Figure:
        total = sum(high.values()) + 0.47 * len(high) + 0.3
        figure = style.blank(style.WIDE, total)
        top = total - 0.24
        for column, title in enumerate(("the model's own attention", "adversarial attention")):
            figure.text((column * (width + 0.24)) / style.WIDE, 1 - 0.06 / total, title, va="top", fontsize=8.5,
                        fontweight="bold", color=style.INK)  # fmt: skip
        for number, height in high.items():
            rows = table.loc[table["instance"] == number]
            _told_above(figure, rows, (top - 0.2) / total, width)
            for column, which in enumerate(("original", "adversarial")):
                box = (
                    column * (width + 0.24) / style.WIDE,
                    (top - 0.33 - height) / total,
                    width / style.WIDE,
                    height / total,
                )
                draw.attended_text(rows.loc[rows["which"] == which], figure.add_axes(box), width)
            top -= height + 0.47
        return figure

    return Plate(
        "texts-drawn-twice",
        "The same answer under two attentions",
        "Each text under the model's own weights and under the farthest weights found that leave its answer where it "
        "was; darker is more. p is the probability of the model's answer when it is run with them. The texts are those "
        "with the largest divergence of each answer: they show what is possible, not what is usual.",
        figure,
        (Rows("instances", {}),),
    )


def _told_above(figure: Figure, rows: pd.DataFrame, at: float, width: float) -> None:
    """What is asked and answered, above either drawing of a text."""
    for column, which in enumerate(("original", "adversarial")):
        row = first(rows.loc[rows["which"] == which])
        asked = f"{row['question']}? " if row["question"] else ""
        apart = f"   JSD {row['jsd']:.2f} of at most 0.69" if which == "adversarial" else ""
        text = f"{asked}{row['label']}   p = {row['output']:.3f}{apart}"
        figure.text(column * (width + 0.24) / style.WIDE, at, style.drawable(words.visible(text)),
                    fontsize=style.SMALL, color=style.MUTED, va="bottom")  # fmt: skip
