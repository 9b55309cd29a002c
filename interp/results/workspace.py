"""What an analysis works in: steps that outlive an interruption, progress, and what was left out."""

import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TypeVar

import pandas as pd
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn

from interp.results import storage
from interp.results.result import Result

Item = TypeVar("Item")
Tables = dict[str, pd.DataFrame]


class Workspace:
    """Made by the command line for a run folder, or as ``Workspace()`` in memory, for a notebook or a test.

    Attributes:
        left_out: what `skip` recorded, as ``{"part": …, "reason": …}``.
        notes: what `note` recorded.
        seconds_before: time that an interrupted run had spent on the steps taken over from it.
    """

    def __init__(
        self,
        steps: Path | None = None,
        *,
        uses: Iterable[str] | None = None,
        earlier: Mapping[str, Result] | None = None,
    ) -> None:
        """Work in the folder ``steps``, or in memory.

        Args:
            steps: where finished steps are kept; None keeps nothing.
            uses: the analyses whose findings may be asked for (an analysis's ``USES``); None allows all.
            earlier: those of them that are finished.
        """
        self.left_out: list[dict[str, str]] = []
        self.notes: list[str] = []
        self.seconds_before = 0.0
        self._steps = steps
        self._uses = None if uses is None else set(uses)
        self._earlier = dict(earlier or {})
        self._names: set[str] = set()
        self._shown = _Shown()
        if steps is not None and steps.exists():
            storage.tidy_up(steps)

    def step(self, name: str, compute: Callable[[], Tables]) -> Tables:
        """The tables that ``compute()`` returns, computed once for the same inputs.

        If an interrupted run had finished this step they come from the disk, together with what `skip` and `note`
        recorded meanwhile. Either way they are what was read back from the disk, so that a resumed run equals one
        that was never interrupted. Steps must not depend on each other through random state: each seeds its own.

        Raises:
            ValueError: a second step of this name, or ``compute`` returned something else than named DataFrames.
        """
        if storage.check_name(name, "a step") in self._names:
            raise ValueError(f"each step of an analysis has its own name; {name!r} came twice")
        self._names.add(name)
        if self._steps is None:
            with self._shown.task(name, None):
                return _checked(name, compute())
        place = self._steps / name
        if (meta := storage.read_meta(place)) is not None:
            self.left_out += meta["left_out"]
            self.notes += meta["notes"]
            self.seconds_before += meta["seconds"]
        else:
            meta = self._compute(name, compute, place)
        return storage.read_tables(place, meta)

    def progress(self, iterable: Iterable[Item], what: str, total: int | None = None) -> Iterator[Item]:
        """Go through ``iterable`` and show how far it is, on standard error, if that is a terminal.

        Args:
            iterable: what to go through.
            what: what its items are, as a person would say it: ``"sequences"``.
            total: how many there will be, where ``len(iterable)`` does not tell.
        """
        if total is None and hasattr(iterable, "__len__"):
            total = len(iterable)  # pyright: ignore[reportArgumentType]
        with self._shown.task(what, total) as advance:
            for item in iterable:
                yield item
                advance()

    def skip(self, part: str, reason: str) -> None:
        """Record what is left out of the result, and why; the page says it."""
        self.left_out.append({"part": part, "reason": reason})

    def note(self, text: str) -> None:
        """Record a remark that a reader of the result needs."""
        self.notes.append(text)

    def earlier(self, analysis: str) -> Result | None:
        """What another analysis found in the same run folder; None where it is not finished there.

        Raises:
            ValueError: the analysis does not name it in its ``USES``, so that its own result would not be made again
                when that one changes.
        """
        if self._uses is not None and analysis not in self._uses:
            raise ValueError(
                f"findings of {analysis!r} are read but not named in USES; got USES = {sorted(self._uses)}"
            )
        return self._earlier.get(analysis)

    def _compute(self, name: str, compute: Callable[[], Tables], place: Path) -> Mapping[str, Any]:
        """Compute and save a step; returns its ``meta.json``."""
        skipped, noted, started = len(self.left_out), len(self.notes), time.monotonic()
        with self._shown.task(name, None):
            tables = _checked(name, compute())
        meta = {
            "step": name,
            "left_out": self.left_out[skipped:],
            "notes": self.notes[noted:],
            "seconds": time.monotonic() - started,
        }
        place.parent.mkdir(parents=True, exist_ok=True)
        return storage.write_folder(place, tables, meta)


class _Shown:
    """Tasks in progress on the terminal. One display for all, since a terminal has room for one."""

    def __init__(self) -> None:
        columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
        console = Console(stderr=True)
        self._display = Progress(
            *columns, TimeRemainingColumn(), console=console, transient=True, disable=not console.is_terminal
        )
        self._tasks = 0

    @contextmanager
    def task(self, what: str, total: int | None) -> Iterator[Callable[[], None]]:
        """Show one task; yields what is called after each of its items."""
        if self._tasks == 0:
            self._display.start()
        self._tasks += 1
        task = self._display.add_task(what, total=total)
        try:
            yield lambda: self._display.advance(task)
        finally:
            self._display.remove_task(task)
            self._tasks -= 1
            if self._tasks == 0:
                self._display.stop()


def _checked(step: str, tables: Tables) -> Tables:
    if not isinstance(tables, dict) or not all(isinstance(table, pd.DataFrame) for table in tables.values()):
        raise ValueError(f"a step returns a dict of DataFrames by name; step {step!r} returned {type(tables).__name__}")
    return tables
