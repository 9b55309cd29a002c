"""The chapter on head specialization: findings in words, figures, methods."""

from interp.results import Result, RunFolder
from reports.chapters import Chapter, TableNote
from reports.chapters.head_specialization import cards, findings, methods, plates
from reports.chapters.reading import Reading

TABLES = {
    "kinds": TableNote(
        "Which heads are called what, and why or why not; one row a head and kind.", "-value", "called=true"
    ),
    "heads": TableNote("Every score of every head, with its interval, chance and control.", "-value"),
    "relations": TableNote(
        "Accuracy on each relation against the best fixed offset on the same pairs of words.",
        "-difference",
        "best=true",
    ),
    "coreference": TableNote("Whether the strongest earlier mention is of the same entity.", "-accuracy"),
    "offsets": TableNote("Rows whose strongest key is at each offset, and the mass there.", "-share"),
    "distances": TableNote("Attention by how far back the key is."),
    "groups": TableNote("The group of each head (cluster 0 is group 1), and its place in the embedding.", "cluster"),
    "clusterings": TableNote(
        "How well each number of groups fits, and how stable it is; its interval is where 95 % of the resamples lie.",
        "-silhouette",
    ),
    "divergences": TableNote("How far every pair of heads is apart, in nats.", "jsd"),
    "composition": TableNote(
        "How much of what earlier heads write is read by later ones, from the weights.", "-excess"
    ),
    "stability": TableNote("How alike the order of heads is on two halves of the text, and on two kinds of text."),
    "patterns": TableNote("The strongest edges of notable heads on a few sentences."),
    "tokens": TableNote("The tokens of these sentences."),
}
QUESTION = "What does each head attend to: which kinds of token, how far away, along which relations between words?"
FULL = "reads more and longer windows of text and the whole treebank, and compares pairs of heads on every row"


def chapter(result: Result, run: RunFolder) -> Chapter:
    """The chapter of one finished result."""
    reading = Reading(result)
    return Chapter(
        title="Head specialization",
        place=10,
        question=QUESTION,
        lead=findings.lead(reading) if reading.has("kinds") else None,
        opening=plates.opening(reading),
        text=cards.shown_text(reading),
        findings=findings.findings(reading),
        plates=(*plates.plates(reading), *cards.plates(reading)),
        tables=TABLES,
        methods=methods.METHODS,
        paragraph=methods.paragraph(reading),
        references=methods.REFERENCES,
        full=reading.full_adds(FULL),
    )
