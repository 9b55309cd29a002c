"""Which module speaks for an analysis: found by entry point."""

from importlib.metadata import entry_points
from typing import Any

from reports.chapters import plain

GROUP = "interp.reports"


def find_chapter(analysis: str) -> Any:
    """The module that declares a chapter for an analysis; the plain one where none does."""
    for entry in entry_points(group=GROUP):
        if entry.name == analysis:
            return entry.load()
    return plain
