"""The chapter of an analysis that brings none of its own: its tables, and maps of its head scores."""

from interp.results import Result, RunFolder
from reports import words
from reports.chapters import Chapter
from reports.chapters.maps import maps_plate
from reports.chapters.reading import Reading


def chapter(result: Result, run: RunFolder) -> Chapter:
    """The tables of a result, and a map of every head score."""
    maps = maps_plate(Reading(result), "score-maps")
    return Chapter(
        title=words.sentence_case(result.analysis.replace("-", " ")),
        question="No chapter is declared for this analysis; these are its tables.",
        plates=(maps,) if maps else (),
    )
