"""The engines against other ways to compute and to read attention alone: ``python -m benchmarks.engines``.

For each length, all ways take turns in one process, so that ratios are those of one run; then each runs once more in a
process of its own, which tells its memory. How time and memory grow, and which context fits into a given memory, is
fitted to what was measured. docs/benchmarks.md says how to read it.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from datetime import UTC, datetime
from pathlib import Path
from statistics import median
from typing import Any, Literal

import tyro
from rich.console import Console

from benchmarks import machine, tables
from benchmarks.engine_tables import KINDS, draw, growth, growth_text, summary, times_text
from benchmarks.sizes import GIGA
from benchmarks.streaming import in_a_process
from benchmarks.summary import Record
from interp.errors import UsageError, UserError
from interp.results.storage import to_json, write_file

ROOT = Path(__file__).parents[1]
D_HEAD = 64

Name = Literal["sdpa", "basic", "fused", "two_calls", "flex", "eager"]


@dataclass(frozen=True)
class Config:
    """Measure time and memory of attention alone, one causal sequence, computed and read in several ways."""

    lengths: tuple[int, ...] = (1024, 2048, 4096, 8192, 16384)
    """Tokens of the sequence."""
    ways: tuple[Name, ...] = ("sdpa", "basic", "fused", "two_calls", "flex", "eager")
    """Which ways; SDPA is what the others are set against."""
    n_heads: int = 9
    """Query heads."""
    n_kv_heads: int = 3
    """Key-value heads."""
    rounds: int = 5
    """How often each way is timed at the longest length; shorter ones are timed oftener."""
    memory_limit: float = 16.0
    """GB: what would need more is not run, and the largest context is the one that fits into as much."""
    device: Literal["auto", "cpu", "cuda"] = "auto"
    """Where; on a GPU in bfloat16, else in float32."""
    threads: int | None = None
    """Threads of PyTorch; by default what it takes by itself."""
    seed: int = 0
    """Seed of the tensors."""
    out: Path = ROOT / "benchmarks" / "results"
    """Folder of the results: engines.json, .md, .png, .svg."""

    def __post_init__(self) -> None:
        if self.rounds < 1 or self.memory_limit <= 0 or any(length < 2 for length in self.lengths):
            raise UsageError("--rounds is at least 1, --memory-limit above 0, and lengths are at least 2 tokens")
        if not self.lengths or "sdpa" not in self.ways:
            raise UsageError("give at least one length, and sdpa among the ways: the others are set against it")
        if self.n_kv_heads < 1 or self.n_heads % self.n_kv_heads:
            raise UsageError(f"--n-heads is a multiple of --n-kv-heads; got {self.n_heads} and {self.n_kv_heads}")


@dataclass
class Measured:
    """What has been measured: records of time and of memory, and what was left out."""

    times: list[Record] = field(default_factory=list)
    memory: list[Record] = field(default_factory=list)
    left_out: list[Record] = field(default_factory=list)
    threads: int | None = None


def main(argv: Sequence[str] | None = None) -> int:
    """Measure, show and save; the exit code."""
    try:
        return benchmark(tyro.cli(Config, args=argv, prog="python -m benchmarks.engines"))
    except UserError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2 if isinstance(error, UsageError) else 1


def benchmark(config: Config) -> int:
    """Measure what is asked for; Ctrl-C keeps what was measured until then."""
    if config.device == "auto":
        config = replace(config, device="cuda" if _cuda() else "cpu")
    started, clock, load, measured = datetime.now(UTC), time.monotonic(), machine.load(), Measured()
    try:
        for length in config.lengths:
            measure(config, length, measured)
    except KeyboardInterrupt:
        print("stopped", file=sys.stderr)
    if not measured.times:
        raise UserError("nothing was measured")
    run = {
        **{name: value for name, value in asdict(config).items() if name != "out"},
        "started": started.isoformat(timespec="seconds"), "wall_seconds": time.monotonic() - clock,
        "load_before": load, "load_after": machine.load(), "threads": measured.threads,
    }  # fmt: skip
    report(config, measured, run)
    return 0


# Measuring ----------------------------------------------------------------------------------------------------------


def measure(config: Config, length: int, measured: Measured) -> None:
    """Every way at one length: times in turns, then memory one by one."""
    fits = [way for way in config.ways if not _too_large(config, way, length, measured)]
    rounds = max(config.rounds, min(5 * config.rounds, config.rounds * max(config.lengths) // (2 * length)))
    found = _worker(config, length, fits, rounds)
    if "error" in found:
        raise UserError(f"{length:,} tokens: {found['error']}")
    measured.threads = found["threads"]
    for way, reason in found["left_out"].items():
        measured.left_out.append({"way": way, "length": length, "reason": reason})
    for way, seconds in found["seconds"].items():
        rest = {"statistics_off": found["statistics_off"].get(way), "load": found["load"]}
        measured.times += [
            {"way": way, "length": length, "round": number, "seconds": value, **rest}
            for number, value in enumerate(seconds)
        ]
        alone = _worker(config, length, [way], 1)
        if "error" in alone:
            measured.left_out.append({"way": way, "length": length, "reason": f"memory: {alone['error']}"})
        else:
            measured.memory.append({"way": way, "length": length, "bytes": alone["held_bytes"]})
        print(f"{length:>6,} tokens: {KINDS[way].title}, {median(seconds):.3f} s", file=sys.stderr, flush=True)


def _too_large(config: Config, way: str, length: int, measured: Measured) -> bool:
    """Whether a way would hold too much: the eager one has two tensors of heads × query × key at once."""
    needed = 8.0 * config.n_heads * length**2 if way == "eager" else 0.0
    most = config.memory_limit * GIGA
    if config.device == "cpu":
        most = min(most, machine.available_bytes())
    if needed > most:
        reason = f"not run: needs about {needed / GIGA:.0f} GB, {most / GIGA:.0f} GB are free or allowed"
        measured.left_out.append({"way": way, "length": length, "reason": reason})
    return needed > most


def _worker(config: Config, length: int, ways: Sequence[str], rounds: int) -> dict[str, Any]:
    words = ["attention", config.n_heads, config.n_kv_heads, length, "--ways", *ways, "--rounds", rounds]
    return in_a_process(config.threads, [*words, "--seed", config.seed, "--device", config.device])


def _cuda() -> bool:
    import torch

    return torch.cuda.is_available()


# Reporting ----------------------------------------------------------------------------------------------------------


def report(config: Config, measured: Measured, run: Mapping[str, Any]) -> None:
    """Print the tables, and save them with the figure and every single measurement."""
    rows = summary(measured.times, measured.memory)
    item = 4 if config.device == "cpu" else 2
    inputs = item * D_HEAD * (config.n_heads + 2 * config.n_kv_heads)
    fits = growth(rows, inputs, config.memory_limit * GIGA)
    here = machine.describe() | ({"gpu": _card()} if config.device == "cuda" else {})
    texts = [
        times_text(rows, measured.left_out), growth_text(fits, config.memory_limit), where_text(config, here, run),
    ]  # fmt: skip
    console = Console(width=None if sys.stdout.isatty() else 150)
    for text in texts:
        tables.show(text, console)
    config.out.mkdir(parents=True, exist_ok=True)
    saved = {"machine": here, "run": run, "summary": rows, "growth": fits, **asdict(measured)}
    write_file(config.out / "engines.json", to_json(saved))
    write_file(config.out / "engines.md", tables.markdown(texts, "Attention alone, and read", "engines.svg"))
    draw(rows, config.out / "engines")
    console.print(f"{config.out}/engines.md, .json, .svg, .png", soft_wrap=True)


def where_text(config: Config, here: Mapping[str, Any], run: Mapping[str, Any]) -> tables.Text:
    """What it was measured on."""
    text = tables.machine_text(here, {**run, "model": ""})
    dtype = "float32" if config.device == "cpu" else "bfloat16"
    tensors = f"{config.n_heads} heads, {config.n_kv_heads} kv heads, d_head {D_HEAD}, {dtype}, seed {config.seed}"
    rows = [["tensors", tensors] if row[0] == "model" else row for row in text.rows]
    return replace(text, rows=[*([["device", here["gpu"]]] if "gpu" in here else []), *rows])


def _card() -> str:
    import torch

    return torch.cuda.get_device_name()


if __name__ == "__main__":
    sys.exit(main())
