"""What a chapter of the page is.

A module declared under the entry-point group ``interp.reports``, named like its analysis, has a function
``chapter(result, run) -> Chapter``. It reads saved tables and says what they show; it computes no statistic. Text is
plain: the page escapes it, turns ``L18H6`` into a link to that head and `` `code` `` into code.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from matplotlib.figure import Figure

from reports.figures.text import TextView

Cell = str | int | float | bool


@dataclass(frozen=True)
class Rows:
    """Rows of a saved table: those whose columns hold these values."""

    table: str
    where: Mapping[str, Cell] = field(default_factory=dict)


@dataclass(frozen=True)
class Sentence:
    """One sentence, and the rows that its numbers are read from; ``label``: a word before it, on a line of its own."""

    text: str
    rows: tuple[Rows, ...] = ()
    label: str = ""


@dataclass(frozen=True)
class Finding:
    """A verdict, what supports it, and what it does not show.

    Attributes:
        mark: a word that stands before the verdict, such as ``holds``; '' for none.
        section: the heading that it and those after it stand under; '' for none, or the one before.
        plate: the name of the figure that belongs to it and is shown with it; '' for none.
    """

    verdict: Sentence
    support: tuple[Sentence, ...]
    not_shown: str
    mark: str = ""
    section: str = ""
    plate: str = ""


@dataclass(frozen=True)
class Plate:
    """A figure with its words.

    Attributes:
        name: of its files, without an ending.
        title: what it is.
        caption: what to look at, n, units.
        draw: gives the figure; the page calls it, under `reports.style.paper`.
        rows: where its numbers are.
    """

    name: str
    title: str
    caption: str
    draw: Callable[[], Figure]
    rows: tuple[Rows, ...] = ()


@dataclass(frozen=True)
class Shown:
    """A pattern drawn on text, with its caption."""

    view: TextView
    caption: str


@dataclass(frozen=True)
class TableNote:
    """What a table holds, and how it is first shown.

    Attributes:
        what: its rows, in words.
        sort: the column that it is sorted by; ``-value`` is the largest first.
        filter: what is typed in its filter, as ``metric=entropy value>2``.
    """

    what: str
    sort: str = ""
    filter: str = ""


@dataclass(frozen=True)
class Method:
    """How a number comes about: in words, as a formula, and whose it is."""

    name: str
    text: str
    formula: str = ""
    source: str = ""


@dataclass(frozen=True)
class Chapter:
    """What the page says of one analysis.

    Attributes:
        title: its heading.
        question: what was asked, in one sentence.
        lead: the main finding, in one sentence that says what was run on what; the page opens with it.
        opening: the layer x head map that the page opens with.
        text: the pattern on text that the page opens with.
        findings: in words, the most important first.
        plates: figures.
        tables: notes on tables, in the order in which they are shown; others follow with none.
        methods: formulas and sources.
        paragraph: methods as a paragraph to copy into a paper.
        references: BibTeX entries.
        full: what ``--budget full`` adds; '' where this run was one.
        place: where it stands on the page: the lowest first, and of equal ones by the analysis's name.
    """

    title: str
    question: str
    lead: Sentence | None = None
    opening: Plate | None = None
    text: Shown | None = None
    findings: tuple[Finding, ...] = ()
    plates: tuple[Plate, ...] = ()
    tables: Mapping[str, TableNote] = field(default_factory=dict)
    methods: tuple[Method, ...] = ()
    paragraph: str = ""
    references: tuple[str, ...] = ()
    full: str = ""
    place: int = 100
