"""Time and memory of reading every head, against peers: ``python -m benchmarks.streaming`` (``make bench``).

Each measurement is a process of its own, and those that are compared run one after the other. docs/benchmarks.md says
what is measured and how to read it.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Literal

import numpy as np
import tyro
from rich.console import Console

from benchmarks import figure, machine, summary, tables
from benchmarks.sizes import GIGA, METHODS, Sizes, predicted_bytes, sizes_of
from interp.errors import UsageError, UserError
from interp.models.checkpoints import locate
from interp.results.storage import to_json, write_file

ROOT = Path(__file__).parents[1]
SHAPES = ((12, 12), (9, 3))
"""Heads and kv heads of attention alone."""

MethodName = Literal["plain", "interp", "eager", "eager_hooks", "bridge"]


@dataclass(frozen=True)
class Config:
    """Measure time and peak memory of reading every head of a decoder, beside a plain forward pass and peers."""

    model: str = "smollm2-135m"
    """A bundled name, folder, .gguf file or hub name."""
    lengths: tuple[int, ...] = (512, 1024, 2048, 4096, 8192)
    """Tokens of the one sequence."""
    methods: tuple[MethodName, ...] = ("plain", "interp", "eager", "eager_hooks", "bridge")
    """Which ways to run the model."""
    attention_lengths: tuple[int, ...] = (1024, 2048, 4096, 8192, 16384)
    """Tokens for attention alone; give none to leave it out."""
    divergence_lengths: tuple[int, ...] = (512,)
    """Tokens of the sequence on which every pair of heads is compared; give none to leave it out."""
    rounds: int = 3
    """How often each is measured; every round runs all methods, every other one in reverse order."""
    memory_limit: float = 16.0
    """GB; what would need more is not run but reported as such."""
    threads: int | None = None
    """Threads of PyTorch; by default what it takes by itself."""
    seed: int = 0
    """Seed of the tokens."""
    out: Path = ROOT / "benchmarks" / "results"
    """Folder of the results: streaming.json, .md, .png, .svg."""
    quick: bool = False
    """One round at 512 and 2,048 tokens, attention alone at 1,024 and 4,096."""
    check: bool = False
    """Leave with 1 where a target is missed."""

    def __post_init__(self) -> None:
        if self.rounds < 1 or self.memory_limit <= 0 or (self.threads is not None and self.threads < 1):
            raise UsageError("--rounds, --threads and --memory-limit are at least 1, 1 and above 0")
        lengths = (*self.lengths, *self.attention_lengths, *self.divergence_lengths)
        if any(length < 2 for length in lengths):
            raise UsageError(f"lengths are at least 2 tokens; got {', '.join(map(str, lengths))}")


@dataclass
class Measured:
    """What has been measured so far; see :mod:`benchmarks.summary` for the tables."""

    forwards: list[dict[str, Any]] = field(default_factory=list)
    attention: list[dict[str, Any]] = field(default_factory=list)
    divergences: list[dict[str, Any]] = field(default_factory=list)
    left_out: list[dict[str, Any]] = field(default_factory=list)
    answers: dict[tuple[int, str], dict[str, np.ndarray]] = field(default_factory=dict)
    failed: bool = False

    def leave_out(self, method: str, length: int, reason: str, predicted: float | None = None) -> None:
        self.left_out.append(
            {"method": method, "length": length, "reason": reason, "predicted_bytes": predicted}
        )  # fmt: skip

    def is_left_out(self, method: str, length: int) -> bool:
        return any(part["method"] == method and part["length"] == length for part in self.left_out)


def main(argv: Sequence[str] | None = None) -> int:
    """Measure, show and save; the exit code."""
    try:
        config = tyro.cli(Config, args=argv, prog="python -m benchmarks.streaming")
        return benchmark(replace(config, **QUICK) if config.quick else config)
    except UserError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2 if isinstance(error, UsageError) else 1


QUICK: dict[str, Any] = {"lengths": (512, 2048), "attention_lengths": (1024, 4096), "rounds": 1}


def benchmark(config: Config) -> int:
    """Measure what is asked for; Ctrl-C keeps what was measured until then."""
    started, clock, load = datetime.now(UTC), time.monotonic(), machine.load()
    folder = locate(config.model).path
    measured, stopped = Measured(), False
    try:
        measure_forwards(config, folder, measured)
        measure_attention(config, measured)
        measure_divergences(config, folder, measured)
    except KeyboardInterrupt:
        stopped = True
    run = {
        **{k: v for k, v in asdict(config).items() if k not in ("out", "check")},
        "started": started.isoformat(timespec="seconds"),
        "wall_seconds": time.monotonic() - clock,
        "load_before": load,
        "load_after": machine.load(),
        "threads": next(
            (m["threads"] for m in (*measured.forwards, *measured.attention, *measured.divergences)), config.threads
        ),
        "interrupted": stopped,
    }
    found = report(measured, run, config.out)
    if stopped:
        return 130
    return 1 if measured.failed or (config.check and _missed(found)) else 0


# Measuring ----------------------------------------------------------------------------------------------------------


def measure_forwards(config: Config, folder: Path, measured: Measured) -> None:
    """Every method at every length, in rounds."""
    sizes = sizes_of(folder)
    for length in config.lengths:
        for method in config.methods:
            _leave_out_what_does_not_fit(config, sizes, method, length, measured)
        for number in range(config.rounds):
            for method in config.methods[:: -1 if number % 2 else 1]:
                if not measured.is_left_out(method, length):
                    _measure_forward(config, folder, method, length, number, measured)


def _leave_out_what_does_not_fit(config: Config, sizes: Sizes, method: str, length: int, measured: Measured) -> None:
    needed = predicted_bytes(method, sizes, length)
    if length > sizes.n_ctx:
        measured.leave_out(method, length, f"longer than the model's context of {sizes.n_ctx:,}")
    elif needed > config.memory_limit * GIGA:
        reason = f"not run: would need about {needed / GIGA:.0f} GB"
        measured.leave_out(method, length, reason, needed)
    elif needed > machine.available_bytes():
        reason = f"not run: needs about {needed / GIGA:.1f} GB, {machine.available_bytes() / GIGA:.1f} GB are free"
        measured.leave_out(method, length, reason, needed)


def _measure_forward(config: Config, folder: Path, method: str, length: int, number: int, measured: Measured) -> None:
    _say(f"{length:>6,} tokens, round {number + 1}: {METHODS[method].title}", end=" … ")
    with tempfile.TemporaryDirectory() as scratch:
        place = Path(scratch) / "answer.npz"
        # A short pass is repeated within its process, where a disturbance would weigh more
        repeats = 3 if length <= 1024 else 1
        words = ["measure", method, folder, length, place, "--repeats", repeats, "--seed", config.seed]
        found = in_a_process(config.threads, words)
        if "error" in found:
            measured.failed = True
            measured.leave_out(method, length, f"failed: {found['error']}")
            _say(found["error"])
            return
        with np.load(place) as arrays:
            measured.answers.setdefault((length, method), dict(arrays))
    measured.forwards.append({"method": method, "length": length, "round": number, **found})
    _say(f"{found['seconds']:.2f} s, {found['peak_bytes'] / GIGA:.2f} GB")


def measure_attention(config: Config, measured: Measured) -> None:
    """Attention alone, every shape at every length; its rounds are within one process."""
    for n_heads, n_kv_heads in SHAPES:
        for length in config.attention_lengths:
            _say(f"{length:>6,} tokens, attention alone, {n_heads} heads, {n_kv_heads} kv heads", end=" … ")
            rounds = max(3, min(15, 32_768 // length))
            words = ["attention", n_heads, n_kv_heads, length, "--rounds", rounds, "--seed", config.seed]
            found = in_a_process(config.threads, words)
            if "error" in found:
                measured.failed = True
                _say(found["error"])
                continue
            shape = {"n_heads": n_heads, "n_kv_heads": n_kv_heads, "length": length}
            rest = {name: found[name] for name in ("difference", "load", "threads")}
            for way, seconds in found["seconds"].items():
                for number, value in enumerate(seconds):
                    measured.attention.append({**shape, "round": number, "way": way, "seconds": value, **rest})
            _say(f"{found['seconds']['basic'][-1]:.2f} s")


def measure_divergences(config: Config, folder: Path, measured: Measured) -> None:
    """Every pair of heads compared, every length; its rounds are within one process."""
    for length in config.divergence_lengths:
        _say(f"{length:>6,} tokens, every pair of heads compared", end=" … ")
        words = ["divergences", folder, length, "--rounds", config.rounds, "--seed", config.seed]
        found = in_a_process(config.threads, words)
        if "error" in found:
            measured.failed = True
            _say(found["error"])
            continue
        rest = {name: found[name] for name in ("n_heads", "load", "threads")}
        for way, seconds in found["seconds"].items():
            for number, value in enumerate(seconds):
                measured.divergences.append({"length": length, "round": number, "way": way, "seconds": value, **rest})
        _say(f"{found['seconds']['divergences'][-1]:.2f} s")


def in_a_process(threads: int | None, words: Sequence[object]) -> dict[str, Any]:
    """Run a measurement in a process of its own: what it found, or ``error`` in words."""
    limits = {f"{library}_NUM_THREADS": str(threads) for library in ("OMP", "MKL")} if threads else {}
    environment = {**os.environ, "HF_HUB_OFFLINE": "1", "TQDM_DISABLE": "1", **limits}
    module, *arguments = (str(word) for word in words)
    command = [sys.executable, "-m", f"benchmarks.{module}", *arguments]
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False)
    if done.returncode == 0:
        return json.loads(done.stdout.splitlines()[-1])
    if done.returncode == -9:
        return {"error": "killed, most likely for want of memory: lower --memory-limit"}
    return {"error": (done.stderr.strip().splitlines() or [f"exit code {done.returncode}"])[-1]}


# Reporting ----------------------------------------------------------------------------------------------------------


def report(measured: Measured, run: dict[str, Any], out: Path) -> list[summary.Target]:
    """Print the tables, and save them with the figure and every single measurement."""
    by_method = summary.forward_summary(measured.forwards)
    alone = summary.attention_summary(measured.attention)
    agreement = summary.agreement(measured.answers)
    compared = summary.divergence_summary(measured.divergences)
    targets = summary.targets(measured.forwards, measured.attention, measured.divergences)
    here = machine.describe()
    texts = [
        tables.forward_text(by_method, measured.left_out),
        tables.agreement_text(agreement),
        tables.attention_text(alone),
        tables.divergence_text(compared),
        tables.target_text(targets),
        tables.machine_text(here, run),
    ]
    texts = [text for text in texts if text.rows]
    console = Console(width=None if sys.stdout.isatty() else 150)
    for text in texts:
        tables.show(text, console)
    out.mkdir(parents=True, exist_ok=True)
    verdicts = [{**asdict(target), "met": target.met} for target in targets]
    saved = {
        "machine": here, "run": run, "targets": verdicts, "forwards": measured.forwards,
        "attention": measured.attention, "divergences": measured.divergences, "left_out": measured.left_out,
        "agreement": agreement,
    }  # fmt: skip
    write_file(out / "streaming.json", to_json(saved))
    write_file(out / "streaming.md", tables.markdown(texts, "Reading every head: time and memory", "streaming.svg"))
    figure.save(by_method, alone, measured.left_out, run["memory_limit"], out / "streaming")
    console.print(f"{out}/streaming.md, .json, .svg, .png", soft_wrap=True)
    return targets


def _missed(targets: Sequence[summary.Target]) -> bool:
    """Whether a target was missed; one that was not measured does not count, but all of them may not be.

    Raises:
        UsageError: no target was measured.
    """
    if all(target.met is None for target in targets):
        raise UsageError("--check, but no target was measured: the targets are at 2,048 and 8,192 tokens")
    return any(target.met is False for target in targets)


def _say(words: str, end: str = "\n") -> None:
    print(words, end=end, file=sys.stderr, flush=True)


if __name__ == "__main__":
    sys.exit(main())
