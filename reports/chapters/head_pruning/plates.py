"""The figures of `head-pruning`, each with its words."""

import pandas as pd
from matplotlib.figure import Figure

from reports import style, words
from reports.chapters import Plate, Rows
from reports.chapters.head_pruning import smaller
from reports.chapters.head_pruning.findings import free_row, main_effects
from reports.chapters.maps import map_plate, maps_plate
from reports.chapters.reading import Reading, records
from reports.figures import head_pruning as draw

_SCORES = "Importance and norms run from 0; of the signed estimates, red is a loss that would rise without it."
_OUTLINED = 8  # at most, and no more than a fourth of the heads: a mark on most of them would mark nothing
_DOTS = 40


def opening(reading: Reading) -> Plate | None:
    """The layer x head map of importance, of the stack that has the head that matters most."""
    rows = reading.table("heads", metric="importance")
    if rows.empty:
        return None
    first = str(rows["data"].iloc[0])
    heads = reading.measured("heads", "value", metric="importance", data=first)
    effects = main_effects(reading)
    needed = effects.loc[effects["verdict"] == "needed"] if len(effects) else effects
    needed = needed.sort_values("change", ascending=False) if len(needed) else needed
    chosen = needed if len(needed) else heads.sort_values("value", ascending=False)
    stack = words.stack_name(str(chosen["site"].iloc[0]))
    most = min(_OUTLINED, len(heads) // 4)
    outlined = reading.stack(_outstanding(needed, effects) if len(needed) else chosen, stack).head(most)
    which = "needed most when ablated one by one" if len(needed) else "of highest importance"
    mark = f" Outlined: {words.agree(len(outlined), 'the head', 'heads')} {which}." if len(outlined) else ""
    caption = (
        "The importance of every head: how strongly the loss depends on its gate, as a mean over sequences of absolute "
        f"values, normalised so that the squares of each layer's heads add up to 1.{mark} Mean over {_n(heads)}."
    )
    return map_plate(reading, "importance", ("importance", first, stack), outlined, caption)


def _outstanding(chosen: pd.DataFrame, every: pd.DataFrame) -> pd.DataFrame:
    """Those of some heads whose effect is surely above the median of all: none where all are alike."""
    return chosen.loc[chosen["ci_low"] > every["change"].median()]


def plates(reading: Reading) -> tuple[Plate, ...]:
    """All figures that this run has tables for."""
    made = [
        _curve(reading), _effects(reading), _scatter(reading), _agreement(reading), *_left(reading), *_gates(reading),
        maps_plate(reading, "score-maps", what=_SCORES), smaller.cost_plate(reading),
        smaller.from_scratch_plate(reading),
    ]  # fmt: skip
    return tuple(plate for plate in made if plate is not None)


def unit(reading: Reading) -> str:
    """The unit of the metric, for an axis."""
    inputs = reading.provenance.get("inputs") or {}
    units = [described.get("unit", "") for described in inputs.values() if isinstance(described, dict)]
    return units[0] if units else "nats"


def _curve(reading: Reading) -> Plate | None:
    table = reading.measured("curve", "value")
    if table.empty:
        return None
    free = free_row(reading)

    def figure() -> Figure:
        figure, (ax,) = style.canvas(style.WIDE, 3.4)
        draw.curve(table, ax, free, unit(reading))
        return figure

    return Plate(
        "pruning-curves",
        "What pruning costs, by the order in which heads go",
        "The loss when so many heads are gated to zero, 10 % at a time, on sequences that no order was made on. Grey "
        "band: the unpruned model's interval; dotted line: where the order of importance leaves it (shaded: its "
        f"interval). Mean over {_n(table)}; shaded: 95 % intervals over sequences.",
        figure,
        (Rows("curve"), Rows("free")),
    )


def _effects(reading: Reading) -> Plate | None:
    total = main_effects(reading)
    if total.empty:
        return None
    kind = str(total["ablation"].iloc[0])
    table = reading.table("effects", ablation=kind)
    several = len(reading.stacks) > 1

    def figure() -> Figure:
        figure, (ax,) = style.canvas(style.WIDE - 1.2, 1.0 + 0.135 * min(len(total), _DOTS) + (0.4 if several else 0))
        draw.effects(table, ax, _DOTS, unit(reading))
        return figure

    left_out = f" The {_DOTS} with the largest changes in either direction." if len(total) > _DOTS else ""
    return Plate(
        "ablation-effects",
        "What happens without each head",
        f"Change of the loss when one head is {_way(kind)}. Blue: needed, orange: harmful (it is better without it), "
        "both at a corrected p of 0.05; grey: no sure difference. Rings: the head's direct path to the logits alone, "
        f"where it has one.{left_out} Mean over {_n(total)}; bars: 95 % intervals.",
        figure,
        (Rows("effects", {"ablation": kind}),),
    )


def _scatter(reading: Reading) -> Plate | None:
    table = main_effects(reading)
    if len(table) < 4:
        return None

    def figure() -> Figure:
        figure, axes = style.canvas(style.WIDE, 3.1, panels=2)
        draw.importance_against_effect(table, axes[0], ranks=False, unit=unit(reading))
        draw.importance_against_effect(table, axes[1], ranks=True)
        handles, labels = axes[1].get_legend_handles_labels()
        figure.legend(handles, labels, loc="outside upper left", ncols=3, handletextpad=0.1)
        return figure

    rho = reading.table("agreement", score="importance", ablation=str(table["ablation"].iloc[0]))
    size = "" if rho.empty else f" Spearman's ρ is {_rho(rho)}."
    return Plate(
        "importance-against-effect",
        "What importance says, and what ablation shows",
        f"One point a head of the {words.count(len(table), 'head')} that were ablated one by one: values (left) and "
        f"ranks (right, 1 the highest; dashed: equal ranks). Importance comes from other sequences than "
        f"the effect.{size} Bars: 95 % intervals.",
        figure,
        (Rows("effects", {"path": "total"}),),
    )


def _agreement(reading: Reading) -> Plate | None:
    table = reading.measured("agreement", "rho")
    if table.empty:
        return None
    scores = len(table["score"].unique())

    def figure() -> Figure:
        figure, (ax,) = style.canvas(style.WIDE - 1.2, 0.9 + 0.42 * scores)
        draw.agreement(table, ax)
        return figure

    return Plate(
        "agreement",
        "How well cheap scores rank heads as ablation does",
        f"Rank correlation over {words.count(int(max(table['n_heads'])), 'head')} between each score, from a third "
        "of the sequences, and the change that ablation makes on the others, one marker a way of ablation. Bars: "
        "95 % intervals over both.",
        figure,
        (Rows("agreement"),),
    )


def _left(reading: Reading) -> list[Plate]:
    made = []
    for stack in reading.stacks:
        table = reading.stack(reading.table("left"), stack)
        if table.empty:
            continue

        def figure(table: pd.DataFrame = table) -> Figure:
            layers = len(table["layer"].unique())
            figure, (ax,) = style.canvas(style.NARROW + 0.9, 1.0 + min(max(0.15 * layers, 0.6), 5.0))
            draw.left_by_layer(table, ax)
            style.side_bar(figure, [ax], ax.images[0], "share left")
            return figure

        of = f" ({stack})" if stack else ""
        made.append(
            Plate(
                words.slug(f"left-by-layer {stack}"),
                f"What is left of each layer{of}",
                "Heads that each layer keeps when so many of the whole model's are pruned in the order of importance; "
                "dark: all of them, white: none.",
                figure,
                (Rows("left"),),
            )
        )
    return made


def _gates(reading: Reading) -> list[Plate]:
    path, gates = reading.measured("gates_path", "loss"), reading.table("gates")
    curve = reading.table("curve", order="importance")
    if path.empty or gates.empty or curve.empty:
        return []
    n = len(gates.drop_duplicates(["site", "head"]))

    def figure() -> Figure:
        figure, axes = style.canvas(style.WIDE, 3.2 if n <= 40 else 4.4, panels=2)
        draw.gates_path(path, axes[0], curve, unit(reading))
        draw.gates_of_heads(gates, axes[1])
        style.side_bar(figure, [axes[1]], axes[1].images[0], "gate at test time")
        return figure

    frozen = "the weights stay frozen" if set(path["weights"]) == {"frozen"} else "the weights are trained beside them"
    return [
        Plate(
            "gates",
            "Which heads learned gates keep",
            f"Hard-concrete gates trained with a penalty λ for each open one, {frozen}. Left: the loss against the "
            "heads that are closed, with the curve of pruning by importance as far as gates go; right: every "
            f"head's gate as λ rises. Mean over {_n(path)}; bars: 95 % intervals of the change.",
            figure,
            (Rows("gates_path"), Rows("gates")),
        )
    ]


def _way(kind: str) -> str:
    ways = {"resample": "replaced by its output on another sequence", "mean": "replaced by its mean output",
            "zero": "set to zero", "mean_pattern": "made to use its mean pattern"}  # fmt: skip
    return ways.get(kind, kind)


def _rho(rows: pd.DataFrame) -> str:
    row = records(rows)[0]
    return words.measured(row["rho"], row["ci_low"], row["ci_high"])


def _n(table: pd.DataFrame) -> str:
    """How many sequences a figure's means are over; a range where it differs between rows."""
    least, most = int(min(table["n"])), int(max(table["n"]))
    return words.count(most, "sequence") if least == most else f"{least} to {words.count(most, 'sequence')}"
