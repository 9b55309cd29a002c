"""Command-line flags, made from dataclasses: an analysis's own Config, and what all commands share."""

import dataclasses
import os
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from enum import Enum
from pathlib import Path
from typing import Annotated, Any, Literal, TypeVar

import tyro
from tyro.conf import FlagCreatePairsOff, OmitArgPrefixes, Positional, arg

from interp.errors import UsageError, UserError
from interp.plugins import Analysis

Flags = TypeVar("Flags")

MODEL_HELP = "a Hugging Face name, a folder, a .gguf file, or a bundled name: smollm2-135m, minilm"


@dataclass(frozen=True)
class Running:
    """Flags that every command with a model has."""

    device: Annotated[str | None, arg(metavar="DEVICE")] = None
    """Where the model runs: cpu, cuda, cuda:1, mps; auto spreads it over all GPUs. None: the CPU."""
    dtype: Annotated[str | None, arg(metavar="DTYPE")] = None
    """The weights' type: float32, bfloat16, float16 or float64. None: as they were saved."""
    trust_remote_code: bool = False
    """Let a hub model run the Python code that comes with it."""
    out: Annotated[Path | None, arg(metavar="FOLDER")] = None
    """The run folder. None: runs/MODEL."""
    resume: bool = False
    """Go on with what the run folder holds: take over what has the same inputs, compute again what has not."""
    force: bool = False
    """Compute everything again; also remove a run of another model from the run folder."""
    debug: bool = False
    """Show the traceback of an error."""

    def __post_init__(self) -> None:
        if self.resume and self.force:
            raise UsageError("--resume takes over what is finished and --force computes it again: give one of them")


@dataclass(frozen=True)
class Report:
    """Run the installed analyses on a model and draw one HTML page."""

    model: Annotated[Positional[str], arg(metavar="MODEL", help=MODEL_HELP)]
    analyses: Annotated[str | None, arg(metavar="NAME,NAME")] = None
    """Which, as names with commas between. None: all that are installed (`interp list`)."""
    budget: Literal["report", "full"] = "report"
    """report: what fits into minutes. full: everything; the page says what that adds."""
    seed: Annotated[int | None, arg(metavar="NUMBER")] = None
    """The seed of every analysis. None: each one's own."""
    text: Annotated[str | None, arg(metavar="FILE")] = None
    """A text for the analyses that read one: txt, jsonl, npy or a hub data set. None: the sample that comes along."""
    running: Annotated[Running, OmitArgPrefixes] = field(default_factory=Running)


@dataclass(frozen=True)
class Page:
    """Draw the page of a finished run again, from its saved tables alone."""

    run: Annotated[Positional[Path], arg(metavar="RUN", help="the run folder")]
    debug: bool = False
    """Show the traceback of an error."""


@dataclass(frozen=True)
class Compare:
    """Compare two runs on the same heads: two texts, a checkpoint and the next, before and after fine-tuning."""

    before: Annotated[Positional[Path], arg(metavar="RUN", help="a run folder")]
    after: Annotated[Positional[Path], arg(metavar="RUN", help="the other, of a model with the same heads")]
    analyses: Annotated[str | None, arg(metavar="NAME,NAME")] = None
    """Which analyses, as names with commas between. None: all that both runs have finished."""
    json: bool = False
    """Print everything as JSON instead of tables."""
    out: Annotated[Path | None, arg(metavar="FOLDER")] = None
    """Save the comparison there, with a page."""
    debug: bool = False
    """Show the traceback of an error."""


def parse(kind: type[Flags], argv: Sequence[str], *, prog: str, description: str | None = None) -> Flags:
    """Flags from the command line; tyro leaves the process with 2 for a wrong flag and with 0 after ``--help``.

    Raises:
        UsageError: a dataclass refused a value.
    """
    try:
        return tyro.cli(kind, args=list(argv), prog=prog, description=description, config=(FlagCreatePairsOff,))
    except ValueError as error:
        raise UsageError(str(error)) from error


def run_flags(analysis: Analysis, *, positional: bool) -> type[Any]:
    """A dataclass ``model, config, running`` for one analysis; the model is positional or the flag ``--model``."""
    shared = {each.name for each in dataclasses.fields(Running)} | {"model"}
    clashes = shared & {each.name for each in dataclasses.fields(analysis.config_class)}
    if clashes:
        raise UserError(f"{analysis.name}: Config has {', '.join(sorted(clashes))}, which every command has already")
    model = Positional[str] if positional else str
    return dataclasses.make_dataclass(
        "RunFlags",
        [
            ("model", Annotated[model, arg(metavar="MODEL", help=MODEL_HELP)]),
            (
                "config",
                Annotated[analysis.config_class, arg(name=analysis.name), OmitArgPrefixes],
                field(default_factory=analysis.config_class),
            ),
            ("running", Annotated[Running, OmitArgPrefixes], field(default_factory=Running)),
        ],
        frozen=True,
    )


def config_for(analysis: Analysis, report: Report) -> Any:
    """The Config with which `interp report` runs an analysis: its defaults, and those report flags that it knows."""
    known = {each.name for each in dataclasses.fields(analysis.config_class)}
    given = {"budget": report.budget, "seed": report.seed, "text": report.text}
    try:
        return analysis.config_class(
            **{name: value for name, value in given.items() if name in known and value is not None}
        )
    except ValueError as error:
        raise UsageError(f"{analysis.name}: {error}") from error


def to_flags(config: Any) -> list[str]:
    """The flags that make ``config`` from its defaults, so that a result names the command that repeats it."""
    return list(_changed(config, type(config)(), ""))


def default_out(model: str) -> Path:
    """``runs/`` and the model's name, as a folder can be called."""
    name = Path(model).absolute().name.removesuffix(".gguf") if Path(model).exists() else model.replace("/", "--")
    return Path("runs") / (re.sub(r"[^\w.-]+", "-", name).strip("-.") or "model")


def _changed(config: Any, default: Any, prefix: str) -> Iterator[str]:
    for each in dataclasses.fields(config):
        value, usual = getattr(config, each.name), getattr(default, each.name)
        name = prefix + each.name.replace("_", "-")
        if value == usual:
            continue
        if dataclasses.is_dataclass(value) and type(value) is type(usual):
            yield from _changed(value, usual, f"{name}.")
        elif isinstance(value, bool):
            yield f"--{name}" if value else f"--{prefix}no-{each.name.replace('_', '-')}"
        elif isinstance(value, (tuple, list)):
            yield from (f"--{name}", *map(_said, value))
        else:
            said = _said(value)
            yield from (f"--{name}={said}",) if said.startswith("-") else (f"--{name}", said)


def _said(value: Any) -> str:
    if isinstance(value, Enum):
        return value.name
    return os.fspath(value) if isinstance(value, os.PathLike) else str(value)
