"""The figures of the heads' half, each with its words."""

from collections.abc import Mapping

import pandas as pd
from matplotlib.figure import Figure

from reports import style, words
from reports.chapters import Plate, Rows
from reports.chapters.adversarial_attention.heads import epsilon, pinned_below
from reports.chapters.reading import Reading, first
from reports.figures import attended_text as texts
from reports.figures import attention_freedom as draw
from reports.figures.heads import colour_bar, head_map, map_figure, name_heads


def plates(reading: Reading, kinds: Mapping[tuple[int, int], str]) -> tuple[Plate, ...]:
    """All figures that this run has tables for."""
    made = (freedom_map(reading), against_importance(reading, kinds), by_keys(reading), rows_drawn_twice(reading),
            substitutes(reading))  # fmt: skip
    return tuple(plate for plate in made if plate is not None)


def freedom_map(reading: Reading) -> Plate | None:
    """Freedom of every head that was looked at."""
    rows = reading.measured("heads", "value", metric="freedom_share")
    if rows.empty:
        return None
    n_layers = int(reading.model.get("n_layers") or max(rows["layer"]) + 1)
    n_heads = int(reading.model.get("n_heads") or max(rows["head"]) + 1)
    pinned = rows.loc[rows["value"] < pinned_below(reading)]
    marked = [(int(layer), int(head)) for layer, head in pinned[["layer", "head"]].to_numpy()]
    grid = draw.on_grid(rows, max(n_layers, int(max(rows["layer"])) + 1), max(n_heads, int(max(rows["head"])) + 1))

    def figure() -> Figure:
        figure, ax = map_figure(n_layers, n_heads, labels=bool(marked))
        head_map(grid, ax, marked, "freedom_share")
        colour_bar(ax, "freedom (share of the largest JSD)")
        name_heads(ax, marked)
        return figure

    outlined = (
        f" Outlined: pinned, below {100 * pinned_below(reading):.0f} %."
        if marked
        else " No head is pinned in the mean of its rows."
    )
    return Plate(
        "freedom-map",
        "How much freedom the output leaves to each head's attention",
        f"The farthest row found that moves the output by at most {epsilon(reading):g} (TVD), as a share of the "
        f"largest divergence that any row could have; mean over {words.count(int(max(rows['n'])), 'sequence')}, a "
        f"lower bound. Hatched: not looked at.{outlined}",
        figure,
        (Rows("heads", {"metric": "freedom_share"}),),
    )


def against_importance(reading: Reading, kinds: Mapping[tuple[int, int], str]) -> Plate | None:
    """Freedom against importance."""
    freedom = reading.measured("heads", "value", metric="freedom_share")
    importance = reading.measured("heads", "value", metric="derivative")
    if freedom.empty or importance.empty:
        return None

    rows = reading.measured("freedom_rows", "share", searched=True)

    def figure() -> Figure:
        rows_of_legend = -(-len(set(kinds.values()) | {""}) // 3) if kinds else 0  # three names a row
        figure, ax = style.fixed(4.4, 3.0, (0.65, 0.75, 0.5, 0.1 + 0.2 * rows_of_legend))
        draw.freedom_against_importance(freedom, importance, rows, ax, kinds, pinned_below(reading))
        return figure

    return Plate(
        "freedom-against-importance",
        "Freedom against importance",
        "A point a head, the mean over its rows; small dots are the rows. A head can matter, because the loss depends "
        "on its output, and leave its attention free all the same, because many rows give an output that does as well.",
        figure,
        (
            Rows("heads", {"metric": "freedom_share"}),
            Rows("heads", {"metric": "derivative"}),
            Rows("freedom_rows", {"searched": True}),
        ),
    )


def by_keys(reading: Reading) -> Plate | None:
    """Shares by number of keys, with the null."""
    table = reading.measured("freedom_by_keys", "value")
    if table.empty:
        return None

    def figure() -> Figure:
        figure, (ax,) = style.canvas(style.NARROW + 0.9, 2.7)
        draw.share_by_keys(table, ax)
        figure.legend(loc="outside upper left", ncols=1)
        return figure

    return Plate(
        "freedom-by-keys",
        "Freedom by number of keys",
        "Means over heads, then over sequences; bars are intervals over sequences. Null spaces are those of the same "
        "sequences throughout; freedom at the same output was searched in one row of each sequence, so that its points "
        f"are of different ones ({_how_many(table)} each) and differ by more than the number of keys. "
        "Rows with more keys than the values have dimensions leave rows with the same head output, as they would if "
        "values were random; the rest of the distance is what the layers after the head do not notice.",
        figure,
        (Rows("freedom_by_keys"),),
    )


def _how_many(table: pd.DataFrame) -> str:
    n = table.loc[table["metric"] == "freedom_share", "n"].to_numpy(dtype=int)
    low, high = (int(n.min()), int(n.max())) if len(n) else (0, 0)
    return words.number_word(low) if low == high else f"{words.number_word(low)} to {words.number_word(high)}"


def substitutes(reading: Reading) -> Plate | None:
    """What rows do that need no search."""
    heads = reading.measured("heads", "value")
    if heads.empty or "mean_pattern_tvd" not in set(heads["metric"]):
        return None

    def figure() -> Figure:
        figure, (ax,) = style.canvas(style.NARROW + 0.9, 2.0)
        draw.substitutes(heads, ax, epsilon(reading))
        return figure

    return Plate(
        "attention-substitutes",
        "Rows put in place without any search",
        "Change of the output when one row is replaced; a dot a head (mean over sequences), the bar is their median. "
        f"Dashed: the change that freedom allows, {epsilon(reading):g}.",
        figure,
        (Rows("heads", {"metric": "mean_pattern_tvd"}),),
    )


def rows_drawn_twice(reading: Reading) -> Plate | None:
    """A few rows on their text, as they are and as far as they can go."""
    patterns = reading.table("patterns")
    if patterns.empty or not reading.has("tokens"):
        return None
    table = draw.as_texts(patterns, reading.table("tokens"))
    titles = ("the head's own row", "a row with the same output")
    return Plate(
        "attention-rows-drawn-twice",
        "One output under two rows of attention",
        "What one query (in ⟨ ⟩) attends to, and the farthest row found under which the model's output stays where it "
        "is; darker is more. p is the probability of the likeliest next token when the model is run with the row. The "
        "rows are of different layers, those with the heaviest single key: they show what is possible, not what is "
        "usual.",
        lambda: texts.drawn_twice(table, titles, _told),
        (Rows("patterns"),),
    )


def _told(rows: pd.DataFrame, which: str) -> str:
    row = first(rows)
    answer = style.drawable(words.visible(str(row["answer"])))
    head = f"{words.head_name(row['layer'], row['head'])}   " if which == "original" else ""
    apart = f"   JSD {row['jsd']:.2f}, TVD {row['tvd']:.3f}" if which == "adversarial" else ""
    return f"{head}next: “{answer}”, p = {row['probability']:.3f}{apart}"
