"""Command-line flags, made from dataclasses: an analysis's own Config, and what all commands share."""

import dataclasses
import os
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from enum import Enum
from pathlib import Path
from typing import Annotated, Any, Literal, TypeVar

import numpy as np
import tyro
from tyro.conf import FlagCreatePairsOff, OmitArgPrefixes, Positional, arg

from interp.errors import UsageError, UserError
from interp.help import explain
from interp.plugins import Analysis

Flags = TypeVar("Flags")

MODEL_HELP = (
    "a Hugging Face name, a folder, a .gguf file, a factory package.module:function, or a bundled name: tiny-2l, "
    "smollm2-135m, minilm"
)
INPUTS_HELP = (
    "what a module of one's own is run on to find its attention: .npy with token ids [sequence, position], as long as "
    "it takes them, or with numbers (patches, time steps); .npz with every argument by name. Token ids are also the "
    "text of analyses that read one, unless --text names another. Default: random tokens, where it has an "
    "embedding."
)


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


DEFAULT_MODEL = "tiny-2l"


@dataclass(frozen=True)
class Report:
    """Run the installed analyses on a model and draw one HTML page."""

    model: Annotated[Positional[str], arg(metavar="MODEL", help=MODEL_HELP)] = DEFAULT_MODEL
    analyses: Annotated[str | None, arg(metavar="NAME,NAME")] = None
    """Which, as names with commas between. None: all that are installed (`interp list`)."""
    budget: Literal["quick", "report", "full"] | None = None
    """quick: seconds, without the parts that train models of their own. report: what fits into minutes.
    full: everything; the page says what that adds. None: quick on tiny-2l, report on any other model."""
    seed: Annotated[int | None, arg(metavar="NUMBER")] = None
    """The seed of every analysis. None: each one's own."""
    inputs: Annotated[str | None, arg(metavar="FILE", aliases=["--tokens"], help=INPUTS_HELP)] = None
    text: Annotated[str | None, arg(metavar="FILE")] = None
    """A text for the analyses that read one: txt, jsonl, npy or a hub data set. None: the sample that comes along."""
    running: Annotated[Running, OmitArgPrefixes] = field(default_factory=Running)


@dataclass(frozen=True)
class Prune:
    """Cut heads out of a model and save the smaller model: docs/pruning.md."""

    model: Annotated[Positional[str], arg(metavar="MODEL", help=MODEL_HELP)]
    out: Annotated[Path, arg(metavar="FOLDER")]
    """A new folder for the pruned model."""
    keep: Annotated[float | None, arg(metavar="SHARE")] = None
    """The share of all heads that stays, above 0 and at most 1."""
    per_layer: Annotated[int | None, arg(metavar="NUMBER")] = None
    """How many heads stay in each layer."""
    heads: Annotated[str | None, arg(metavar="L3H4,L5H0")] = None
    """Which heads go; where layers have several kinds of attention, SITE.H4 (decoder_blocks.0.cross_attn.H4)."""
    by: Literal["importance", "gates", "weight_norm", "random"] = "importance"
    """What decides which heads go first: the lowest importance for the loss on text (Michel et al. 2019), learned gates
    (Voita et al. 2019) of a finished run (--run), the smallest W_V W_O, or chance."""
    run: Annotated[Path | None, arg(metavar="RUN")] = None
    """The run folder whose `head-pruning` has trained gates. By itself, heads whose gate is open stay; with --keep or
    --per-layer, those whose gates are most likely open."""
    penalty: Annotated[float | None, arg(metavar="LAMBDA")] = None
    """At which of the run's penalties the gates are taken. None: the highest."""
    scores: Annotated[Path | None, arg(metavar="FILE")] = None
    """Scores of one's own: a .parquet or .csv table with the columns site, head and --column; the lowest go first."""
    column: Annotated[str, arg(metavar="NAME")] = "importance"
    """The column of --scores that says what a head is worth."""
    uniform: bool = False
    """Keep all layers and groups alike, so that the result is a checkpoint that transformers loads by itself."""
    without_weights: bool = False
    """Save which heads stay and no weights: they are cut out of the same model again when the folder is loaded."""
    recover: Annotated[int, arg(metavar="STEPS")] = 0
    """Steps of fine-tuning after the pruning."""
    learning_rate: Annotated[float, arg(metavar="RATE")] = 1e-4
    """Of the fine-tuning, at its highest."""
    text: Annotated[str | None, arg(metavar="FILE")] = None
    """The text to score, fine-tune and report on: txt, jsonl, npy or a hub data set. None: the sample that comes
    along."""
    sequences: int = 32
    """Windows of text to score on, and as many others to report the loss on."""
    length: int = 128
    """Tokens of a window."""
    batch_size: int = 8
    """Windows of one pass, and of one step of fine-tuning."""
    times: bool = False
    """Measure time, pruned and masked against unpruned."""
    batch_sizes: tuple[int, ...] = (1, 8)
    """Sequences at once, where time is measured."""
    lengths: tuple[int, ...] = (128, 512)
    """Tokens of a prompt, where time is measured; FLOPs are counted at the longest."""
    rounds: int = 7
    """Rounds of the measurement."""
    seed: int = 0
    """Of the text's draw, the random order and the fine-tuning."""
    device: Annotated[str | None, arg(metavar="DEVICE")] = None
    """Where the model runs: cpu, cuda, cuda:1, mps; auto spreads it over all GPUs. None: the CPU."""
    dtype: Annotated[str | None, arg(metavar="DTYPE")] = None
    """The weights' type: float32, bfloat16, float16 or float64. None: as they were saved."""
    trust_remote_code: bool = False
    """Let a hub model run the Python code that comes with it."""
    resume: bool = False
    """Go on with an interrupted pruning into the same folder."""
    force: bool = False
    """Forget an interrupted pruning into the same folder, and start again. A finished one is never overwritten."""
    debug: bool = False
    """Show the traceback of an error."""

    def __post_init__(self) -> None:
        asked = sum(given is not None for given in (self.keep, self.per_layer, self.heads))
        if asked > 1 or (asked == 0 and self.by != "gates"):
            raise UsageError(
                "how many heads stay is said by --keep SHARE or --per-layer N; or which go, by --heads L3H4,…"
            )
        if (self.by == "gates") != (self.run is not None) or (self.penalty is not None and self.run is None):
            raise UsageError(
                "--by gates takes the gates of a finished run: --run RUN, and --penalty to choose among them"
            )
        if self.run is not None and (self.heads is not None or self.scores is not None):
            raise UsageError("--by gates says which heads stay, and so do --heads and --scores: give one of them")
        if self.keep is not None and not 0 < self.keep <= 1:
            raise UsageError(f"--keep is the share of heads that stays, above 0 and at most 1; got {self.keep}")
        if self.resume and self.force:
            raise UsageError("--resume goes on with what was interrupted and --force starts again: give one of them")
        if self.without_weights and (self.uniform or self.recover):
            raise UsageError("--without-weights saves which heads stay alone: not with --uniform, nor with --recover")
        if self.recover < 0 or not self.learning_rate > 0:
            raise UsageError("--recover is at least 0 and --learning-rate above 0")
        least = {"sequences": self.sequences, "batch_size": self.batch_size, "length": self.length - 1}
        if low := [name for name, value in least.items() if value < 1]:
            raise UsageError(f"--{low[0].replace('_', '-')} {getattr(self, low[0])} is too small")

    @property
    def needs_text(self) -> bool:
        """Whether heads are scored on text, or the model is trained on it."""
        scored = self.heads is None and self.scores is None and self.by == "importance"
        return scored or self.recover > 0 or self.text is not None


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
    explain(kind)
    try:
        return tyro.cli(kind, args=list(argv), prog=prog, description=description, config=(FlagCreatePairsOff,))
    except ValueError as error:
        raise UsageError(str(error)) from error


@dataclass(frozen=True)
class Verdict:
    """What `interp doctor` does with what it found."""

    fail_on: Literal["warn", "fail"] | None = None
    """Exit with 1 where a check's verdict is this or worse. None: never for what was found."""
    json: Annotated[Path | None, arg(metavar="FILE")] = None
    """Write verdict and checks as JSON; `-` writes them to standard output instead of the table."""


def run_flags(analysis: Analysis, *, positional: bool, more: type[Any] | None = None) -> type[Any]:
    """A dataclass ``model, config, inputs, running`` for one analysis; the model is positional or the flag ``--model``.

    ``--inputs`` is also called ``--tokens``, unless the analysis has a setting of that name. ``more`` is a dataclass of
    further flags, the field ``more``.
    """
    own = {each.name for each in dataclasses.fields(analysis.config_class)}
    shared = {each.name for each in dataclasses.fields(Running)} | {"model", "inputs"}
    clashes = shared & own
    aliases = [] if "tokens" in own else ["--tokens"]
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
            ("inputs", Annotated[str | None, arg(metavar="FILE", aliases=aliases, help=INPUTS_HELP)], None),
            ("running", Annotated[Running, OmitArgPrefixes], field(default_factory=Running)),
            *([] if more is None else [("more", Annotated[more, OmitArgPrefixes], field(default_factory=more))]),
        ],
        frozen=True,
    )


def config_for(analysis: Analysis, report: Report) -> Any:
    """The Config with which `interp report` runs an analysis: its defaults, and those report flags that it knows."""
    known = {each.name for each in dataclasses.fields(analysis.config_class)}
    budget = report.budget or ("quick" if report.model == DEFAULT_MODEL else "report")
    given = {"budget": "report" if budget == "quick" else budget, "seed": report.seed, "text": report.text}
    given = {name: value for name, value in given.items() if name in known and value is not None}
    if budget == "quick":
        given |= analysis.quick
    try:
        config = analysis.config_class(**given)
        return reading_tokens(config, report.inputs)
    except ValueError as error:
        raise UsageError(f"{analysis.name}: {error}") from error


def reading_tokens(config: Any, inputs: str | None) -> Any:
    """The Config with the token ids that a model is run on as its text, where it reads one and none is named."""
    if inputs is None or getattr(config, "text", "") is not None or not _are_tokens(Path(inputs)):
        return config
    return dataclasses.replace(config, text=inputs)


def _are_tokens(file: Path) -> bool:
    """Whether a file holds token ids [sequence, position]; what is wrong with it is said where it is read."""
    try:
        ids = np.load(file, mmap_mode="r", allow_pickle=False)
    except (OSError, ValueError, EOFError):
        return False
    return isinstance(ids, np.ndarray) and ids.ndim == 2 and ids.dtype.kind in "iu"


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
