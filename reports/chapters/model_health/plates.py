"""The figures of `model-health`, each with its words."""

import pandas as pd
from matplotlib.figure import Figure

from reports import glossary, style, words
from reports.chapters import Plate, Rows
from reports.chapters.maps import map_plate, maps_plate
from reports.chapters.reading import Reading, Row, first
from reports.figures import model_health as draw

_DEPTH = {
    "activation_rms": ("Activations", "root mean square"),
    "relative_gradient": ("Gradient", "‖∂L/∂x‖ ‖x‖"),
    "gradient_to_queries_and_keys": ("To queries and keys", "share of the values'"),
}


def opening(reading: Reading) -> Plate | None:
    """How far every check is from its limit."""
    checks = reading.table("checks")
    if checks.empty:
        return None
    has_limit = checks["warn_at"].notna() | checks["fail_at"].notna()
    limited = checks.loc[checks["verdict"].isin(draw.COLOURS) & has_limit]
    if limited.empty:
        return None

    def figure() -> Figure:
        figure, (ax,) = style.canvas(style.WIDE - 0.8, 0.9 + 0.19 * len(limited))
        draw.headroom(limited, ax)
        return figure

    return Plate(
        "verdicts",
        "Every check against its limit",
        "What was measured, as a share of the limit at which a check warns (or fails, where it only fails); where "
        "small values are bad, the limit as a share of what was measured. Left of the line is well. Green circle: ok; "
        "orange diamond: warn; red cross: fail. Shares below a millionth, zero among them, stand at the left edge. "
        "At the right, what was measured. Checks without a limit, and those that do not apply, are in the table.",
        figure,
        (Rows("checks"),),
    )


def plates(reading: Reading) -> tuple[Plate, ...]:
    """All figures that this run has tables for."""
    saturated = [_saturated(reading, stack) for stack in reading.stacks] if reading.has("heads") else []
    made = [*saturated, _depth(reading), _memory(reading), maps_plate(reading, "health-maps")]
    return tuple(plate for plate in made if plate is not None)


def _saturated(reading: Reading, stack: str) -> Plate | None:
    rows = reading.stack(reading.measured("heads", "value", metric="saturated_rows"), stack)
    if rows.empty or len(rows) < 2:
        return None
    data = str(rows["data"].iloc[0])
    marked = rows.loc[rows["value"] > 0.5].nlargest(8, "value")
    n = words.count(int(max(rows["n"])), "sequence")
    caption = (
        f"Share of every head's rows{f' of the {stack}' if stack else ''} with more than 0.99 on one key, on "
        f"{glossary.DATA.get(data, data)}; mean over {n}. Outlined: more than half of the rows. A head may be sharp "
        "and well; a model whose heads mostly are lets hardly a gradient through."
    )
    name = words.slug(f"saturated-rows {stack}")
    return map_plate(reading, name, ("saturated_rows", data, stack), marked, caption)


def _depth(reading: Reading) -> Plate | None:
    depth = reading.measured("depth", "value")
    shown = [m for m in _DEPTH if len(depth) and depth.loc[depth["metric"] == m, "layer"].nunique() > 1]
    if not shown:
        return None

    def figure() -> Figure:
        figure, axes = style.canvas(style.WIDE, 2.4, panels=len(shown))
        for metric, ax in zip(shown, axes, strict=True):
            title, label = _DEPTH[metric]
            draw.by_depth(depth.loc[depth["metric"] == metric], ax, label)
            ax.set_title(title)
        return figure

    return Plate(
        "by-depth",
        "Activations and gradients by depth",
        "What each layer reads (root mean square over the features, median over positions), how much the output feels "
        "a relative change of it, and how much gradient comes through each site's softmax to queries and keys, against "
        "that which reaches its values. Gradients are of random projections of the output. Every axis is logarithmic.",
        figure,
        (Rows("depth"),),
    )


def _memory(reading: Reading) -> Plate | None:
    table, cost = reading.table("memory"), reading.table("cost")
    if table.empty or cost.empty:
        return None
    context = int(first(cost)["context"])

    def figure() -> Figure:
        figure, (ax,) = style.canvas(style.NARROW + 1.0, 3.2)
        draw.memory(table, ax, context)
        return figure

    return Plate(
        "memory",
        "Memory by context",
        "One sequence. Patterns as an eager implementation holds them, of every layer where they are asked for and of "
        "the layer under way; what this project holds to read them; and the keys and values that a model which "
        f"generates keeps. Dotted: {context:,} tokens.",
        figure,
        (Rows("memory"),),
    )


def limits(row: Row) -> str:
    """Where a check's limits are."""
    told = [
        f"it {verb} {row['worse']} {draw.measured({**row, 'value': row[name]})}"
        for verb, name in (("warns", "warn_at"), ("fails", "fail_at"))
        if not pd.isna(row[name])
    ]
    return words.join(told) or "without a limit"
