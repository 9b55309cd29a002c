"""How the heads formed in training, in words and as curves."""

import pandas as pd
from matplotlib.figure import Figure

from reports import style, words
from reports.chapters import Finding, Plate, Rows, Sentence
from reports.chapters.reading import Reading, Row, first, head_rows, records
from reports.figures import formation as draw

_LIMITS = (
    "that one causes the other: these are curves of one training run, seen at its checkpoints alone, and what happens "
    "between two of them is not measured."
)
_PANELS = {
    "prefix_matching": ("induction", "prefix matching"),
    "previous_token": ("previous_token", "previous token"),
}
_NAMED = 4  # heads that stand out in a panel


def formation(reading: Reading) -> Finding | None:
    """When the strongest induction head formed, and what else changed."""
    strongest = _strongest(reading, "induction")
    if strongest is None or not reading.has("formation_heads"):
        return None
    rows = _of_head(reading, strongest)
    if rows.empty:
        return None
    limit, name = words.number(strongest["threshold"]), reading.name(strongest)
    links = (_link(strongest), head_rows("kinds", strongest, kind="induction"))
    formed = _passing(rows, float(strongest["threshold"]))
    if formed is None:
        best = first(rows.sort_values("value", ascending=False))
        verdict = (
            f"In training, the prefix matching of {name} passes {limit} at none of "
            f"{words.count(len(rows), 'checkpoint')}: the highest is {_score(best)} at step {int(best['step']):,}."
        )
    else:
        before, after = formed
        since = "" if before is None else f", after {words.number(before['value'])} at step {int(before['step']):,}"
        verdict = (
            f"In training, {name} first scores above {limit} in prefix matching at step {int(after['step']):,}: "
            f"{_score(after)}{since}."
        )
    support = (*_previous_token(reading), *_learning(reading), *_control(reading), *_unread(reading))
    return Finding(Sentence(verdict, links), support, _LIMITS)


def plate(reading: Reading) -> Plate | None:
    """Loss, in-context learning and both scores by step, one above the other."""
    heads, model = reading.measured("formation_heads", "value"), reading.measured("formation", "value")
    if heads.empty or len(heads["step"].unique()) < 2:
        return None
    units = {"loss": "loss\n(nats per token)", "in_context_learning": "late − early loss\n(nats per token)"}
    curves = [metric for metric in units if metric in set(model["metric"])] if len(model) else []
    scores = [metric for metric in _PANELS if metric in set(heads["metric"])]
    strongest = _strongest(reading, "induction")
    formed = None if strongest is None else _passing(_of_head(reading, strongest), float(strongest["threshold"]))

    def figure() -> Figure:
        figure, axes = style.column(style.WIDE, 1.25 * (len(curves) + len(scores)) + 0.5, len(curves) + len(scores))
        for metric, ax in zip(curves, axes, strict=False):
            draw.model_curve(model.loc[model["metric"] == metric], ax, units[metric])
        for metric, ax in zip(scores, axes[len(curves) :], strict=True):
            kind, name = _PANELS[metric]
            named = [(int(row["layer"]), int(row["head"])) for row in records(_named(reading, kind))]
            label = f"{name}\n(share of attention)"
            draw.head_curves(heads.loc[heads["metric"] == metric], ax, named, style.KIND_COLOURS[kind], label)
        if formed is not None and formed[0] is not None:
            draw.between(axes, formed[0]["step"], formed[1]["step"])
        axes[-1].set_xlabel("step of training")
        if curves and len(model["run"].unique()) > 1:
            axes[0].legend(loc="upper right", handlelength=2.8)
        figure.align_ylabels(axes)
        return figure

    controls = words.join(dict.fromkeys(words.visible(str(run)) for run in heads.loc[heads["is_control"], "run"]))
    dashed = f" Dashed: the control, {controls}." if controls else ""
    shaded = (
        " Grey: from the last checkpoint before the strongest induction head passes its threshold to the first after."
        if formed is not None and formed[0] is not None
        else ""
    )
    return Plate(
        "formation",
        "How the heads formed in training",
        "Checkpoints of the training run, one point each. Loss; the in-context-learning score (loss late in a sequence "
        f"minus loss early); and the scores of all heads, with those that are called named.{shaded}{dashed} Dotted: "
        "chance. Bands: 95 % intervals over the same sequences at every checkpoint, which picked no head.",
        figure,
        (Rows("formation"), Rows("formation_heads")),
    )


def _strongest(reading: Reading, kind: str) -> Row | None:
    """The strongest head of a kind, called or not."""
    rows = reading.measured("kinds", "value", kind=kind)
    return None if rows.empty else first(rows.sort_values("value", ascending=False))


def _named(reading: Reading, kind: str) -> pd.DataFrame:
    """The heads that are called a kind, the strongest of them; the strongest head where none is."""
    rows = reading.measured("kinds", "value", kind=kind).sort_values("value", ascending=False)
    called = rows.loc[rows["called"].astype(bool)]
    return called.head(_NAMED) if len(called) else rows.head(1)


def _of_head(reading: Reading, head: Row) -> pd.DataFrame:
    """One head's score at each checkpoint of the model."""
    where = {"site": str(head["site"]), "head": int(head["head"]), "metric": str(head["metric"]), "is_control": False}
    rows = reading.measured("formation_heads", "value", **where)
    return rows.sort_values("step") if len(rows) else rows


def _passing(rows: pd.DataFrame, threshold: float) -> tuple[Row | None, Row] | None:
    """The first row above a threshold and the one before it; None where none is."""
    ordered = records(rows)
    for before, row in zip([None, *ordered], ordered, strict=False):
        if row["value"] > threshold:
            return before, row
    return None


def _link(head: Row) -> Rows:
    where = {"is_control": False, "metric": str(head["metric"])}
    return head_rows("formation_heads", head, **where)


def _score(row: Row) -> str:
    return words.measured(row["value"], row["ci_low"], row["ci_high"])


def _previous_token(reading: Reading) -> list[Sentence]:
    head = _strongest(reading, "previous_token")
    if head is None or (rows := _of_head(reading, head)).empty:
        return []
    limit, links = words.number(head["threshold"]), (_link(head), head_rows("kinds", head, kind="previous_token"))
    formed = _passing(rows, float(head["threshold"]))
    if formed is None:
        return [Sentence(f"No checkpoint has {reading.name(head)} above {limit} in its previous-token score.", links)]
    at = f"{_score(formed[1])} at step {int(formed[1]['step']):,}"
    return [Sentence(f"{reading.name(head)} first gives the previous token more than {limit}: {at}.", links)]


def _learning(reading: Reading) -> list[Sentence]:
    rows = reading.measured("formation", "value", metric="in_context_learning", is_control=False)
    if len(rows) < 2:
        return []
    ends = [first(part) for part in (rows.sort_values("step"), rows.sort_values("step", ascending=False))]
    told = " and ".join(f"{_score(row)} nats at step {int(row['step']):,}" for row in ends)
    link = Rows("formation", {"metric": "in_context_learning", "is_control": False})
    return [Sentence(f"The in-context-learning score is {told}.", (link,))]


def _control(reading: Reading) -> list[Sentence]:
    """The highest that any head of a control comes to."""
    made = []
    rows = reading.measured("formation_heads", "value", metric="prefix_matching", is_control=True)
    for run in rows["run"].unique() if len(rows) else ():
        best = first(rows.loc[rows["run"] == run].sort_values("value", ascending=False))
        link = Rows("formation_heads", {"run": str(run), "metric": "prefix_matching"})
        # not as L0H1, which would be a link to a head of the model
        where = f"head {int(best['head'])} of layer {int(best['layer'])} at step {int(best['step']):,}"
        made.append(
            Sentence(
                f"In the control, {words.visible(str(run))}, no head's prefix matching is ever above {_score(best)} "
                f"({where}).",
                (link,),
            )
        )
    return made


def _unread(reading: Reading) -> list[Sentence]:
    """Checkpoints that could not be read, by name."""
    table = reading.table("formation")
    rows = table.loc[table["note"].astype(str).str.startswith("not read: ")] if len(table) else table
    return [
        Sentence(
            f"{words.visible(str(row['run']))} lacks {words.visible(str(row['checkpoint']))}: "
            f"{words.visible(str(row['note'])).removeprefix('not read: ').rstrip('.')}.",
            (Rows("formation", {"run": str(row["run"]), "checkpoint": str(row["checkpoint"])}),),
        )
        for row in records(rows)
    ]
