"""The chapter on attention's design: for each claim a line, the verdict, a figure, and what it does not show."""

from collections.abc import Iterator

import pandas as pd

from interp.results import Result, RunFolder
from reports import words
from reports.chapters import Chapter, Finding, Plate, Rows, Sentence, TableNote
from reports.chapters.attention_design import methods
from reports.chapters.declared import find_chapter
from reports.chapters.maps import maps_plate
from reports.chapters.reading import Reading, Row, records
from reports.figures import attention_design as draw

TITLES = {
    "formula": "The formula",
    "scaling": "Why √d",
    "saturation": "Saturation",
    "floating-point": "Softmax in floating point",
    "kernels": "The kernel view, and linear attention",
    "heads": "Several heads",
    "masks": "Encoder and decoder",
    "positions": "Positions",
    "depth": "Norms and residual connections",
    "cost": "Cost",
    "model": "In the model",
}
#: Analyses that ask of the same model whether attention explains what it does.
EXPLAINING = ("adversarial-attention", "head-pruning")
MARKS = {"holds": "holds", "imprecise": "imprecise", "fails": "fails"}
TABLES = {
    "claims": TableNote("Every claim: what is said, what theory predicts, what was measured, and the verdict."),
    "measurements": TableNote(
        "Every number behind a verdict, what it should be, and whether it is; `source` tells theory from what is said."
    ),
    "curves": TableNote("The points of the figures."),
    "panels": TableNote("What the figures' axes are."),
}


def chapter(result: Result, run: RunFolder) -> Chapter:
    """The chapter of one finished result."""
    reading = Reading(result)
    claims = reading.table("claims")
    plates = [plate for plate in (_plate(reading, claim) for claim in records(claims)) if plate is not None]
    maps = maps_plate(reading, "score-maps")
    return Chapter(
        title="Attention by measurement",
        place=70,
        question="Why is attention built as it is, and what do its design choices cost? Every claim is measured.",
        lead=_lead(claims) if len(claims) else None,
        findings=(*_findings(reading, claims, {plate.name for plate in plates}), *_explaining(run)),
        plates=(*plates, *([maps] if maps else [])),
        tables=TABLES,
        methods=methods.METHODS,
        paragraph=methods.paragraph(reading),
        references=methods.REFERENCES,
        full=reading.full_adds("trains ten models for each setting instead of five, and goes to 48 layers"),
    )


def _lead(claims: pd.DataFrame) -> Sentence:
    verdicts = claims["verdict"].tolist()
    held, loose, failed = (verdicts.count(name) for name in ("holds", "imprecise", "fails"))
    text = f"Of {words.count(len(claims), 'claim')} about attention's design, {held} hold as they are stated"
    text += f", {loose} are imprecise as they are commonly put" if loose else ""
    text += f", and {failed} {words.agree(failed, 'does', 'do')} not hold here" if failed else ""
    return Sentence(f"{text}.", (Rows("claims"),))


def _findings(reading: Reading, claims: pd.DataFrame, drawn: set[str]) -> Iterator[Finding]:
    section = ""
    for claim in records(claims):
        where = {"claim": str(claim["claim"])}
        heading = TITLES.get(str(claim["topic"]), str(claim["topic"]))
        if heading == TITLES["model"]:
            heading = f"In {reading.model_name}"
        support = [
            Sentence(words.visible(str(claim["measured"])), (Rows("measurements", where),), "Measured"),
            Sentence(words.visible(str(claim["theory"])), label="Theory"),
        ]
        if claim["said"]:
            support.append(
                Sentence(
                    f"{words.visible(str(claim['said']))} {_missed(reading, claim)}".strip(), label="Commonly said"
                )
            )
        name = _name(claim)
        yield Finding(
            Sentence(words.visible(str(claim["statement"]))),
            tuple(support),
            words.visible(str(claim["not_shown"])),
            mark=MARKS[str(claim["verdict"])],
            section=heading if heading != section else "",
            plate=name if name in drawn else "",
        )
        section = heading


def _missed(reading: Reading, claim: Row) -> str:
    """What of the common saying the measurement does not bear out; '' where none of it was measured."""
    asked = reading.table("measurements", claim=str(claim["claim"]), source="said")
    missed = asked.loc[~asked["agrees"].astype(bool)]
    if missed.empty:
        return "It is so." if len(asked) else ""
    told = [f"{row['quantity']}: {_value(row)}{_unit(row)}" for row in records(missed)]
    return f"It is not so: {'; '.join(told)}."


def _value(row: Row) -> str:
    value = float(row["value"])
    return words.small(value) if 0 < abs(value) < 1e-3 else words.number(value)


def _unit(row: Row) -> str:
    return f" {row['unit']}" if row["unit"] else ""


def _name(claim: Row) -> str:
    return f"claim-{claim['claim']}"


def _plate(reading: Reading, claim: Row) -> Plate | None:
    declared = reading.table("panels", claim=str(claim["claim"]))
    curves = reading.table("curves", claim=str(claim["claim"]))
    if declared.empty:
        return None
    bands = f" Bands and bars are {declared['bands'].iloc[0]}." if bool(curves["low"].notna().any()) else ""
    dashed = " Dashed: theory." if bool(curves["theory"].any()) else ""
    return Plate(
        _name(claim),
        str(declared["title"].iloc[0]) if len(declared) == 1 else "; ".join(declared["title"]),
        f"{'On data made for it' if claim['data'] == 'synthetic' else 'In ' + words.visible(str(claim['data']))}."
        f"{bands}{dashed}",
        lambda: draw.panels(declared, curves),
        (Rows("curves", {"claim": str(claim["claim"])}),),
    )


def _explaining(run: RunFolder) -> Iterator[Finding]:
    """What other analyses of this run say on whether attention explains, in their own words."""
    leads = []
    for analysis in EXPLAINING:
        if analysis in run.analyses():
            chapter = find_chapter(analysis).chapter(run.load(analysis), run)
            if chapter.lead is not None:
                leads.append(Sentence(f"{chapter.title}: {chapter.lead.text}"))
    missing = [f"`{analysis}`" for analysis in EXPLAINING if analysis not in run.analyses()]
    if missing:
        leads.append(
            Sentence(
                f"Not in this run: {words.join(missing)}, which {words.agree(len(missing), 'asks', 'ask')} it of the "
                "same model."
            )
        )
    yield Finding(
        Sentence("Whether attention explains what a model does is no single question."),
        (
            *leads,
            Sentence(
                "Changing a head's weights and finding the same output shows that those weights were not needed for "
                "it (Jain & "
                "Wallace 2019); that the model would have learned others is not shown by it (Wiegreffe & Pinter 2019)."
            ),
            Sentence(
                "Removing a head and finding a changed output shows that it was used; a head that can be removed may "
                "still be "
                "used where others do not step in for it (Michel et al. 2019)."
            ),
        ),
        "Either test is about outputs under changes that training never saw.",
        section="Is attention an explanation?",
    )
