"""The chapter on induction heads: findings in words, figures, methods."""

from interp.results import Result, RunFolder
from reports.chapters import Chapter, TableNote
from reports.chapters.induction_heads import findings, methods, pictured, plates
from reports.chapters.reading import Reading

TABLES = {
    "kinds": TableNote(
        "Which heads are called what, and what speaks for and against it; one row a head and kind.", "-value"
    ),
    "heads": TableNote(
        "Every score of every head, with its interval, chance and control.", "-value", "metric=prefix_matching"
    ),
    "ablation": TableNote(
        "Loss on later copies when sets of heads are ablated; one row a set, way and draw.", "-loss_change"
    ),
    "composition": TableNote(
        "Prefix matching of an induction head when an earlier head's output is removed.", "change"
    ),
    "reach": TableNote("Prefix matching of the strongest heads at longer periods."),
    "behaviour": TableNote("What the model itself does on repeats and on text."),
    "loss_by_position": TableNote("Loss of every next token along the sequences."),
    "formation": TableNote("Loss and in-context learning at each checkpoint of training."),
    "formation_heads": TableNote(
        "Every head's scores at each checkpoint of training.", "-step", "metric=prefix_matching"
    ),
    "patterns": TableNote("Attention weights of at least 0.005 of the strongest heads on a few sequences."),
    "tokens": TableNote("The tokens of these sequences."),
}
QUESTION = "Which heads continue a sequence by looking back at what followed last time, and does the model need them?"
FULL = (
    "runs what the report leaves out for time: it follows the reach to the end of the context, and ablates more heads, "
    "on more sequences, against more random draws"
)


def chapter(result: Result, run: RunFolder) -> Chapter:
    """The chapter of one finished result."""
    reading = Reading(result)
    return Chapter(
        title="Induction heads",
        place=20,
        question=QUESTION,
        lead=findings.lead(reading) if reading.has("heads") else None,
        opening=plates.opening(reading),
        text=pictured.shown_text(reading),
        findings=findings.findings(reading),
        plates=plates.plates(reading),
        tables=TABLES,
        methods=methods.METHODS,
        paragraph=methods.paragraph(reading),
        references=methods.REFERENCES,
        full=reading.full_adds(FULL),
    )
