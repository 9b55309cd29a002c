"""Layer x head maps of any analysis that scores heads."""

from collections.abc import Sequence

import pandas as pd
from matplotlib.figure import Figure

from reports import glossary, words
from reports.chapters import Plate, Rows
from reports.chapters.reading import Reading, records
from reports.figures import heads as draw

_MOST = 12  # maps in one figure
_ON = {"repeated": "repeated", "unrepeated": "unrepeated", "weights": "weights", "other_text": "other text"}
_OTHER = "other_text"  # drawn inside the cells of the main text, where a figure has one


def map_plate(reading: Reading, name: str, of: tuple[str, str, str], outlined: pd.DataFrame, caption: str) -> Plate:
    """One large map of a (metric, data, stack), with some heads outlined and named."""
    metric, data, stack = of
    rows = reading.stack(reading.table("heads", metric=metric, data=data), stack)
    marked = [(int(row["layer"]), int(row["head"])) for row in records(reading.stack(outlined, stack))]

    def figure() -> Figure:
        figure, ax = draw.map_figure(*_size(rows), labels=bool(marked))
        draw.head_map(rows, ax, marked, metric)
        draw.colour_bar(ax, glossary.metric_axis(metric))
        draw.name_heads(ax, marked)
        return figure

    title = words.sentence_case(f"{glossary.metric_name(metric)}, head by head")
    return Plate(name, title, caption, figure, (Rows("heads", {"metric": metric, "data": data}),))


def maps_plate(
    reading: Reading,
    name: str,
    metrics: Sequence[str] = (),
    title: str = "",
    stack: str | None = None,
    what: str = "",
    main: str = "",
) -> Plate | None:
    """Small maps of every score of the table ``heads``, or of some metrics in their order, up to twelve.

    Args:
        reading: the result.
        name: of the figure's file.
        metrics: which, in their order; () for all.
        title: of the figure.
        stack: of one stack alone, which then need not be named over each map.
        what: how to read the colours; by default what the metrics shown need.
        main: the data that the figure is on, which then need not be named over each map. The same score on another
            text is drawn as a square inside each cell instead of a map of its own.
    """
    heads = reading.heads
    inside = reading.table("heads", data=_OTHER) if main else heads.head(0)
    inside = inside.loc[inside["metric"].isin(metrics)] if metrics and len(inside) else inside
    wanted = [
        (stack, str(metric), str(data), rows)
        for stack in ((reading.stacks if stack is None else (stack,)) if len(heads) else ())
        for (metric, data), rows in reading.stack(heads, stack).groupby(["metric", "data"], sort=False)  # pyright: ignore[reportGeneralTypeIssues]: two keys
        if data not in ("unrepeated", _OTHER if main else "")  # the control of what is drawn; what is drawn inside
        and len(rows.dropna(subset="value"))
    ]
    named = stack is None
    if metrics:
        wanted = sorted((each for each in wanted if each[1] in metrics), key=lambda each: metrics.index(each[1]))
    if not wanted:
        return None

    def figure() -> Figure:
        figure, axes = draw.map_grid(min(len(wanted), _MOST), *_size(heads))
        for (where, metric, data, rows), ax in zip(wanted, axes, strict=False):
            draw.head_map(rows, ax, (), metric, large=False)
            if data == main and len(others := reading.stack(inside.loc[inside["metric"] == metric], where)):
                draw.inner_squares(others, ax)
            draw.colour_bar(ax, glossary.UNITS.get(metric, "share of attention"), below=0.45)
            ax.set(
                title=_title(where if named else "", metric, "" if data == main else data),
                ylabel="layer" if ax.get_position().x0 < 0.12 else "",
            )
        return figure

    on = f"On {glossary.DATA.get(main, words.visible(main))}. " if main else ""
    other = (
        " The square in the middle of a cell is the head's score on the other text: where none is seen, they agree."
        if len(inside)
        else ""
    )
    more = f" {len(wanted) - _MOST} further scores are in the table." if len(wanted) > _MOST else ""
    how = what or _colours({metric for _, metric, _, _ in wanted})
    return Plate(
        name,
        title or "Every score, head by head",
        f"{on}{how} Hatched: not defined. Each map has its own scale.{other}{more}",
        figure,
        (Rows("heads"),),
    )


def _colours(metrics: set[str]) -> str:
    """How to read the colours of these metrics."""
    said = ["Shares of attention and other scores that cannot be negative run from 0"]
    if "copying" in metrics:
        said.append("copying runs from −1 (never) over chance (−0.92) to 1")
    if "copying_eigenvalues" in metrics:
        said.append("copying by eigenvalues has 0 in the middle")
    return "; ".join(said) + "."


def _size(heads: pd.DataFrame) -> tuple[int, int]:
    return int(max(heads["layer"])) + 1, int(max(heads["head"])) + 1


def _title(stack: str, metric: str, data: str) -> str:
    plain, twin = glossary.twin_of(metric)
    name = words.sentence_case(glossary.short_metric(plain))
    on = _ON.get(data, words.visible(data))  # '' where the whole figure is on it
    return f"{name}\n{', '.join(part for part in (stack, twin, on) if part)}".rstrip()
