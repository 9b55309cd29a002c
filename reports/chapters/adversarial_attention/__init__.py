"""The chapter on adversarial attention: what classifiers and heads leave to it, in words and figures."""

from interp.results import Result, RunFolder
from reports.chapters import Chapter
from reports.chapters.reading import Reading

QUESTION = "Is attention an explanation: how far can it be changed before the output notices?"


def chapter(result: Result, run: RunFolder) -> Chapter:
    """The chapter of one finished result."""
    reading = Reading(result)
    return Chapter(
        title="Adversarial attention",
        question=QUESTION,
        full="" if reading.config.get("budget") != "report" else "`--budget full` runs what the report leaves out.",
    )
