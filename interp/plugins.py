"""Analyses, chapters and pages, found by entry point: those of this project and of any other installed package."""

import ast
import difflib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, is_dataclass
from graphlib import CycleError, TopologicalSorter
from importlib import metadata
from importlib.metadata import EntryPoint
from importlib.util import find_spec
from pathlib import Path
from types import ModuleType
from typing import Any

from interp.errors import UsageError, UserError

ANALYSES = "interp.analyses"
CHAPTERS = "interp.reports"
PAGES = "interp.pages"


@dataclass(frozen=True)
class Analysis:
    """An analysis's module under its name; what the module must and may carry is in docs/writing-an-analysis.md."""

    name: str
    module: ModuleType

    def __post_init__(self) -> None:
        if not is_dataclass(getattr(self.module, "Config", None)):
            raise UserError(f"the analysis {self.name} needs a dataclass Config in {self.module.__name__}")
        if not callable(getattr(self.module, "run", None)):
            raise UserError(f"the analysis {self.name} needs run(model, config, work) in {self.module.__name__}")

    @property
    def config_class(self) -> type[Any]:
        """The dataclass that its flags are made from."""
        return self.module.Config

    @property
    def question(self) -> str:
        """What it asks of a model: the module's docstring."""
        return (self.module.__doc__ or "").strip()

    @property
    def schemas(self) -> Mapping[str, Any]:
        """Its pandera schemas by table."""
        return getattr(self.module, "SCHEMAS", {})

    @property
    def uses(self) -> tuple[str, ...]:
        """The analyses whose findings it reads."""
        return tuple(getattr(self.module, "USES", ()))

    @property
    def version(self) -> str:
        """Its own version, where it has one."""
        return str(getattr(self.module, "VERSION", ""))

    @property
    def verify(self) -> bool:
        """Whether a model must agree with itself under the core before it is run."""
        return bool(getattr(self.module, "VERIFY", True))

    @property
    def quick(self) -> Mapping[str, Any]:
        """Settings with which it takes seconds, for a report that shall."""
        return getattr(self.module, "QUICK", {})

    @property
    def memory_settings(self) -> tuple[str, ...]:
        """The settings that its memory grows with."""
        return tuple(getattr(self.module, "MEMORY_SETTINGS", ()))


def installed(group: str) -> dict[str, EntryPoint]:
    """Entry points of a group by name.

    Raises:
        UserError: two packages declare different things under one name.
    """
    found: dict[str, EntryPoint] = {}
    for point in metadata.entry_points(group=group):
        other = found.setdefault(point.name, point)
        if other.value != point.value:
            raise UserError(
                f"{group} {point.name!r} is declared twice, as {other.value} and {point.value}: uninstall one"
            )
    return dict(sorted(found.items()))


def find_analysis(name: str) -> Analysis:
    """An installed analysis by name.

    Raises:
        UsageError: none has this name; the message has near ones.
        UserError: it cannot be imported, or is no analysis.
    """
    points = installed(ANALYSES)
    if name not in points:
        raise UsageError(unknown("analysis", name, points))
    return Analysis(name, _loaded(points[name]))


def find_page(name: str = "html") -> Any:
    """``write(run_folder) -> Path``, which draws the page of a run folder.

    Raises:
        UserError: none is installed.
    """
    points = installed(PAGES)
    if name not in points:
        raise UserError(f"no {name} page is installed (entry-point group {PAGES}): install the package again")
    return _loaded(points[name])


def in_order(analyses: Iterable[Analysis]) -> list[Analysis]:
    """Analyses so that each comes after those whose findings it uses.

    Raises:
        UserError: some use each other in a circle.
    """
    chosen = {analysis.name: analysis for analysis in analyses}
    sorter = TopologicalSorter({name: set(analysis.uses) & set(chosen) for name, analysis in chosen.items()})
    try:
        return [chosen[name] for name in sorter.static_order()]
    except CycleError as error:
        raise UserError(f"analyses use each other in a circle: {' → '.join(error.args[1])}") from error


def unknown(what: str, name: str, known: Iterable[str]) -> str:
    """What to say of a name that does not exist: near ones, else all."""
    known = sorted(known)
    near = difflib.get_close_matches(name.replace("_", "-"), known, n=3, cutoff=0.5)
    if near:
        return f"unknown {what} {name!r}; did you mean {' or '.join(near)}?"
    return f"unknown {what} {name!r}; there are: {', '.join(known) or 'none (install the package: pip install -e .)'}"


def first_line(point: EntryPoint) -> str:
    """The first line of a module's docstring, read without importing it (and torch with it)."""
    try:
        spec = find_spec(point.module)
    except ModuleNotFoundError:
        spec = None
    if spec is None or spec.origin is None:
        return f"(cannot be found: {point.value})"
    told = ast.get_docstring(ast.parse(Path(spec.origin).read_text(encoding="utf-8"))) or ""
    return told.partition("\n")[0]


def _loaded(point: EntryPoint) -> Any:
    try:
        return point.load()
    except (ImportError, AttributeError) as error:
        raise UserError(f"{point.name} ({point.value}) cannot be imported: {error}") from error
