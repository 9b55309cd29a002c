"""The chapter on a model's health: verdicts in words, figures, methods."""

from interp.results import Result, RunFolder
from reports.chapters import Chapter


def chapter(result: Result, run: RunFolder) -> Chapter:
    """The chapter of one finished result."""
    return Chapter(title="Model health", question="What goes wrong silently in this model's attention?")
