"""The figures of `induction-heads`, each with its words."""

import pandas as pd
from matplotlib.figure import Figure

from reports import glossary, style, words
from reports.chapters import Plate, Rows
from reports.chapters.induction_heads import formation, pictured
from reports.chapters.induction_heads.findings import called
from reports.chapters.maps import map_plate, maps_plate
from reports.chapters.reading import Reading, records
from reports.figures import induction_heads as draw

_PATHS = {"key_input": "key input alone", "total": "everywhere"}
_SETS = 3  # sizes of ablated sets drawn side by side


def plates(reading: Reading) -> tuple[Plate, ...]:
    """All figures that this run has tables for."""
    scatters = [_scatter(reading, stack) for stack in reading.stacks]
    others = (_loss, _ablation, _composition, _reach, formation.plate, pictured.patterns, pictured.named_pattern)
    made = [*scatters, *(plate(reading) for plate in others), maps_plate(reading, "score-maps")]
    return tuple(plate for plate in made if plate is not None)


def opening(reading: Reading) -> Plate | None:
    """The layer x head map of prefix matching, of the stack that has the strongest head."""
    heads = reading.measured("heads", "value", metric="prefix_matching", data="repeated")
    if heads.empty:
        return None
    rows = called(reading)
    strongest = (rows if len(rows) else heads).sort_values("value", ascending=False)
    stack = words.stack_name(str(strongest["site"].iloc[0]))
    of = f" of the {stack}" if stack else ""
    outlined = "No head is called an induction head"
    if len(rows):
        outlined = words.agree(
            len(rows), "The outlined head is called an induction head", "Outlined heads are called induction heads"
        )
    caption = (
        f"The share of every head's attention{of}, on repeated random tokens, that goes to the token which followed "
        f"the current one last time. {outlined}. Mean over {_n(heads)}; chance is {words.number(max(heads['chance']))}."
    )
    return map_plate(reading, "prefix-matching", ("prefix_matching", "repeated", stack), rows, caption)


def _scatter(reading: Reading, stack: str) -> Plate | None:
    heads = reading.stack(reading.heads, stack)
    if heads.empty:
        return None
    heads = heads.loc[(heads["metric"] != "prefix_matching") | (heads["data"] == "repeated")]
    known = heads.dropna(subset="value")
    n = len(known.loc[known["metric"] == "prefix_matching"])
    if n < 2 or known.loc[known["metric"] == "copying"].empty:
        return None
    kinds = {
        (int(row["layer"]), int(row["head"])): kind
        for kind in reversed(glossary.KINDS)
        for row in records(reading.stack(called(reading, kind), stack))
    }

    def figure() -> Figure:
        figure, (ax,) = style.canvas(style.NARROW + 0.6, 3.6)
        draw.prefix_against_copying(heads, ax, kinds)
        return figure

    return Plate(
        words.slug(f"prefix-against-copying {stack}"),
        f"Where heads look, and what they write{f' ({stack})' if stack else ''}",
        "One point a head. An induction head, as Olsson et al. define it, is far right (it looks at what followed last "
        "time) and high (it raises what it looks at). Bars: 95 % intervals over sequences; dashed: chance on either "
        f"axis. {words.sentence_case(words.count(n, 'head'))}.",
        figure,
        (Rows("heads", {"metric": "prefix_matching"}), Rows("heads", {"metric": "copying"})),
    )


def _loss(reading: Reading) -> Plate | None:
    loss = reading.measured("loss_by_position", "loss", data="repeated")
    if loss.empty:
        return None
    control = reading.measured("loss_by_position", "loss", data="unrepeated")

    def figure() -> Figure:
        figure, (ax,) = style.canvas(style.WIDE, 2.6)
        draw.loss_by_position(loss, ax, control)
        return figure

    return Plate(
        "loss-by-position",
        "Loss along the repeats",
        "Loss of each next token along sequences of repeated random tokens. A model that copies drops after the dashed "
        f"line, where the tokens begin to repeat. Mean over {_n(loss)}; shaded: 95 % intervals."
        + (" Thin: the control, whose tokens do not repeat." if len(control) else ""),
        figure,
        (Rows("loss_by_position", {"data": "repeated"}),),
    )


def _ablation(reading: Reading) -> Plate | None:
    table = reading.measured("ablation", "loss_change")
    if table.empty:
        return None
    sizes = sorted(int(n) for n in table["n_heads"].unique())
    sizes = sizes if len(sizes) <= _SETS else [sizes[0], sizes[len(sizes) // 2], sizes[-1]]

    def figure() -> Figure:
        height = 0.95 + 0.42 * len(table["ablation"].unique())
        figure, axes = style.canvas(style.WIDE, height, panels=len(sizes), share=True)
        for n, ax in zip(sizes, axes, strict=True):
            draw.ablation(table.loc[table["n_heads"] == n], ax)
            ax.set(title=words.count(n, "head"), xlabel="")
        figure.supxlabel("change of loss on later copies (nats per token)", fontsize=8.5)
        handles, labels = axes[0].get_legend_handles_labels()
        figure.legend(handles[::-1], labels[::-1], loc="outside upper right", ncols=2, handletextpad=0.2)
        return figure

    return Plate(
        "ablation",
        "What breaks when heads go",
        "Change of the loss on later copies when the strongest heads by prefix matching are ablated, against the same "
        "number of random heads of the same layers (one mark a draw). 0 is the untouched model. Mean over "
        f"{_n(table)}; bars: 95 % intervals.",
        figure,
        (Rows("ablation"),),
    )


def _composition(reading: Reading) -> Plate | None:
    table = reading.measured("composition", "change")
    if table.empty:
        return None
    paths = [path for path in _PATHS if path in set(table["path"])]
    down = len(table.drop_duplicates(["source_layer", "source_head"]))
    across = len(table.drop_duplicates(["target_layer", "target_head"]))

    def figure() -> Figure:
        width = min(style.WIDE, 2.0 + 0.55 * across * len(paths))
        figure, axes = style.canvas(width, min(max(1.1 + 0.3 * down, 1.7), 7.0), panels=len(paths))
        limit = max(abs(change) for change in table["change"]) or 1.0
        for path, ax in zip(paths, axes, strict=True):
            draw.composition(table.loc[table["path"] == path], ax, limit)
            ax.set(title=_PATHS[path], ylabel="source (removed)" if ax is axes[0] else "")
        style.side_bar(figure, axes, axes[-1].images[0], "change of prefix matching")
        return figure

    return Plate(
        "which-feeds-which",
        "Which head feeds which",
        "Change of the target's prefix matching when the source's output is taken out: of the target's key input alone "
        "(left), and everywhere (right). Blue: the target needs the source. Hatched: the source is not in an earlier "
        f"layer. Mean over {_n(table)}.",
        figure,
        (Rows("composition"),),
    )


def _reach(reading: Reading) -> Plate | None:
    table = reading.measured("reach", "value")
    if table.empty or len(table["period"].unique()) < 2:
        return None
    nearest = table.loc[table["period"] == table["period"].min()].sort_values("value", ascending=False)
    heads = [(int(row["layer"]), int(row["head"])) for row in records(nearest)]

    def figure() -> Figure:
        figure, (ax,) = style.canvas(style.NARROW + 0.6, 3.3)
        draw.reach(table, ax, heads)
        return figure

    most = len(style.SERIES)
    drawn = f"the {most} strongest of {len(heads)} heads" if len(heads) > most else words.count(len(heads), "head")
    return Plate(
        "reach",
        "How far back a head finds the copy",
        f"Prefix matching when the tokens repeat after ever longer periods; {drawn}. Mean over {_n(table)}; shaded: "
        "95 % intervals; dashed: uniform attention.",
        figure,
        (Rows("reach"),),
    )


def _n(table: pd.DataFrame) -> str:
    """How many sequences a figure's means are over; a range where it differs between rows."""
    least, most = int(min(table["n"])), int(max(table["n"]))
    return words.count(most, "sequence") if least == most else f"{least} to {words.count(most, 'sequence')}"
