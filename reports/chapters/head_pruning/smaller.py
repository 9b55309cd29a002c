"""What the chapter says and shows of models with fewer heads: what they save, and whether they could learn as well."""

from matplotlib.figure import Figure

from reports import style, words
from reports.chapters import Finding, Plate, Rows, Sentence
from reports.chapters.reading import Reading, Row, records
from reports.figures import smaller_models as draw

_COST_LIMITS = (
    "how fast it is on other machines, or with other lengths and batches: `interp prune --times` measures these."
)
_SCRATCH_LIMITS = (
    "what more heads are worth while a larger model learns, or after longer training: these have two layers, and learn "
    "one thing."
)
_COUNTED = {"parameters": "parameters", "KV cache": "KV cache", "FLOPs": "arithmetic"}


def cost_finding(reading: Reading) -> Finding | None:
    """What models save from which heads were cut out."""
    table = reading.measured("cost", "ratio")
    shares = [row["share"] for row in records(table) if row["share"] > 0]
    if not shares:
        return None
    share = min(shares, key=lambda value: abs(value - 0.5))
    rows = {row["quantity"]: row for row in records(table) if row["share"] == share}
    said = [f"{percent(rows[name]['ratio'])} of the {text}" for name, text in _COUNTED.items() if name in rows]
    verdict = f"With {percent(share)} of the heads cut out, the model has {words.join(said)}."
    support = []
    for name, text in (("prompt", "A prompt"), ("decoding", "A further token")):
        if name in rows and f"{name}, masked" in rows:
            took, masked = (
                words.measured(row["ratio"], row["ci_low"], row["ci_high"])
                for row in (rows[name], rows[f"{name}, masked"])
            )
            text = f"{text} takes {took} of the unpruned model's time; with the same heads masked, {masked}."
            support.append(Sentence(text, (Rows("cost", {"quantity": name}),)))
    link = (Rows("cost", {"n_pruned": int(next(iter(rows.values()))["n_pruned"])}),)
    return Finding(Sentence(verdict, link), tuple(support), _COST_LIMITS)


def from_scratch_finding(reading: Reading) -> Finding | None:
    """Whether heads that are cut later helped small models to learn."""
    table = reading.measured("from_scratch", "loss")
    pruned = table.loc[table["model"] == "pruned"] if len(table) else table
    if pruned.empty:
        return None
    better, worse = len(pruned.loc[pruned["change_high"] < 0]), len(pruned.loc[pruned["change_low"] > 0])
    of = f"in {words.number_word(better)} of {words.count(len(pruned), 'comparison')}"
    verdict = (
        f"Small models that learned with {int(max(table['n_heads']))} heads in each layer and were cut to few are "
        f"surely better than those that had as few from the beginning {of}, and surely worse in "
        f"{words.number_word(worse)}."
    )
    support = [Sentence(f"{_way_there(row)}.", (Rows("from_scratch", _address(row)),)) for row in records(pruned)]
    return Finding(Sentence(verdict, (Rows("from_scratch", {"model": "pruned"}),)), tuple(support), _SCRATCH_LIMITS)


def _way_there(row: Row) -> str:
    dropout = f" and head dropout of {percent(row['dropout'])}" if row["dropout"] else ""
    size = words.measured(row["change"], row["change_low"], row["change_high"], sign=True)
    return f"With {words.few(int(row['n_heads']), 'head')} in the end{dropout} the loss differs by {size}"


def _address(row: Row) -> dict[str, str | int | float]:
    return {name: row[name] for name in ("model", "n_heads", "dropout")}


def percent(share: float) -> str:
    """A share in percent."""
    return f"{100 * share:.0f} %"


def cost_plate(reading: Reading) -> Plate | None:
    """Parameters, cache and arithmetic of models from which heads were cut out, and time where it was measured."""
    table = reading.measured("cost", "ratio")
    if table.empty:
        return None
    timed = table["unit"] == "seconds"
    counted, times = table.loc[~timed], table.loc[timed]

    def figure() -> Figure:
        panels = 2 if len(times) else 1
        figure, axes = style.canvas(style.WIDE if panels == 2 else style.NARROW + 0.6, 2.8, panels=panels)
        draw.cost(counted, axes[0])
        if panels == 2:
            draw.cost(times, axes[1])
        return figure

    length = int(max(counted["length"]))
    caption = (
        "Models from which heads were cut out, the first in the order of importance, over the unpruned one (1). "
        f"FLOPs: of one pass over {length} tokens, all logits included; KV cache: bytes per token, of kv heads that "
        "are left. Counted, so without intervals."
    )
    if len(times):
        n = words.count(int(max(times["n"])), "alternating round")
        caption += (
            f" Right: time of one sequence of {int(max(times['length']))} tokens, pruned (solid) and with the same "
            f"heads' outputs multiplied by zero (dashed); {n}, bars: 95 % intervals."
        )
    return Plate("cost", "What cutting heads out saves", caption, figure, (Rows("cost"),))


def from_scratch_plate(reading: Reading) -> Plate | None:
    """Small models with few heads from the beginning, and the same cut out of larger ones."""
    table = reading.measured("from_scratch", "loss")
    if table.empty:
        return None
    shares = sorted(table["dropout"].unique())

    def figure() -> Figure:
        figure, axes = style.canvas(style.WIDE, 3.0, panels=len(shares), share=True)
        for ax, share in zip(axes, shares, strict=True):
            draw.from_scratch(table.loc[table["dropout"] == share], ax)
            ax.set_title("no head dropout" if share == 0 else f"head dropout {share:.0%}", loc="left")
        for ax in axes[1:]:
            ax.set_ylabel("")
        handles, labels = axes[0].get_legend_handles_labels()
        figure.legend(handles, labels, loc="outside upper left", ncols=4, handletextpad=0.1, columnspacing=1.2)
        return figure

    most = int(max(table["n_heads"]))
    return Plate(
        "from-scratch",
        "Few heads from the beginning, or cut out of many",
        f"Two-layer models that learn to go on with random tokens that repeat, {int(max(table['steps']))} steps each. "
        f"Cut: trained with {most} heads in each layer, then left with those of highest importance; trained on: for "
        f"the last quarter of the steps. Mean over {words.count(int(max(table['n'])), 'seed')}; bars: 95 % intervals.",
        figure,
        (Rows("from_scratch"),),
    )
