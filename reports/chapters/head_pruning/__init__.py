"""The chapter on head pruning: findings in words, figures, methods."""

from interp.results import Result, RunFolder
from reports.chapters import Chapter, TableNote
from reports.chapters.head_pruning import findings, kinds, methods, plates
from reports.chapters.reading import Reading

TABLES = {
    "effects": TableNote(
        "The metric without each head, in all and by its direct path alone; one row a head, ablation and path.",
        "-change",
    ),
    "heads": TableNote("Every score of every head, with its interval.", "-value", "metric=importance"),
    "curve": TableNote("The metric at each share of heads pruned, in each order."),
    "areas": TableNote("Area under each curve, and by how much that of importance is smaller (margin).", "area"),
    "free": TableNote("The share of heads that goes before a curve leaves the unpruned model.", "-share"),
    "agreement": TableNote("How well each score ranks heads as ablating them one by one does.", "-rho"),
    "transfer": TableNote("Whether importance is the same on other data."),
    "best_head": TableNote("Each layer with its best head alone.", "change"),
    "left": TableNote("Heads that each layer keeps at each share pruned, in the order of importance."),
    "gates_path": TableNote("Learned gates at each penalty: heads kept, and the metric."),
    "cost": TableNote("What models cost from which heads were cut out, over the unpruned one.", "share"),
    "from_scratch": TableNote("Small models with few heads from the beginning, and cut out of larger ones.", "n_heads"),
    "gates": TableNote("Every head's gate at each penalty.", "-gate"),
    "order": TableNote("When each head goes in each order.", "rank", "order=importance"),
}
QUESTION = "Which heads does the model need, how many can go, and which go first?"
FULL = (
    "ablates every head, in four ways; leaves each layer its best head alone; prunes in the order of exact ablation "
    "and with importance scored again at every step; trains gates; measures the time of models from which heads were "
    "cut out; and trains small models with few heads from scratch, to compare with larger ones cut to as few"
)
FULL_OF_SMALL = (
    "also measures the time of models from which heads were cut out, and trains small models with few heads from "
    "scratch, to compare with larger ones cut to as few"
)


def chapter(result: Result, run: RunFolder) -> Chapter:
    """The chapter of one finished result."""
    reading = Reading(result)
    of_kinds = kinds.when_kinds_go(reading, run)
    return Chapter(
        title="Head pruning",
        place=30,
        question=QUESTION,
        lead=findings.lead(reading) if reading.has("free") else None,
        opening=plates.opening(reading),
        findings=(*findings.findings(reading), *kinds.finding(of_kinds)),
        plates=(*plates.plates(reading), *kinds.plate(of_kinds)),
        tables=TABLES,
        methods=methods.METHODS,
        paragraph=methods.paragraph(reading),
        references=methods.REFERENCES,
        # of a small model the report leaves out little
        full=reading.full_adds(FULL_OF_SMALL if reading.has("best_head") else FULL),
    )
