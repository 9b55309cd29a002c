"""A few texts drawn twice: under the model's own attention and under an adversarial one."""

import pandas as pd

from reports import style, words
from reports.chapters import Plate, Rows
from reports.chapters.reading import Reading, first
from reports.figures import attended_text as draw


def texts_drawn_twice(reading: Reading) -> Plate | None:
    """A few texts with their own and with adversarial attention, side by side."""
    table = reading.table("instances")
    if table.empty:
        return None
    titles = ("the model's own attention", "adversarial attention")
    return Plate(
        "texts-drawn-twice",
        "The same answer under two attentions",
        "Each text under the model's own weights and under the farthest weights found that leave its answer where it "
        "was; darker is more. p is the probability of the model's answer when it is run with them. The texts are those "
        "with the largest divergence of each answer: they show what is possible, not what is usual.",
        lambda: draw.drawn_twice(table, titles, _told),
        (Rows("instances", {}),),
    )


def _told(rows: pd.DataFrame, which: str) -> str:
    """What is asked and answered."""
    row = first(rows)
    asked = f"{row['question']}? " if row["question"] else ""
    apart = f"   JSD {row['jsd']:.2f} of at most 0.69" if which == "adversarial" else ""
    return style.drawable(words.visible(f"{asked}{row['label']}   p = {row['output']:.3f}{apart}"))
