"""What cutting heads out saves, and what masking them saves: ``python -m benchmarks.pruning`` (``make bench``).

The model is pruned to the same share in several ways; each is measured against the unpruned model and against the model
with the same heads masked. docs/pruning.md says how to read it.
"""

from __future__ import annotations

import random
import sys
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Literal

import pandas as pd
import torch
import tyro
from rich.console import Console

import interp
from benchmarks import machine
from benchmarks.tables import Text, show
from interp.errors import UsageError, UserError
from interp.models.hooked import HookedModel
from interp.models.pruning import keep_share, possible_counts, prune
from interp.models.pruning.cost import measure_times, ratios, sizes
from interp.models.pruning.selection import keep_uniform
from interp.results.storage import plain, to_json, write_file

ROOT = Path(__file__).parents[1]
Way = Literal["scattered", "groups", "uniform", "none"]


@dataclass(frozen=True)
class Config:
    """Measure a model with a share of its heads, pruned and masked, against the whole model."""

    model: str = "smollm2-135m"
    """A bundled name, folder, .gguf file or hub name."""
    share: float = 0.5
    """Share of the heads that stays."""
    ways: tuple[Way, ...] = ("scattered", "groups", "uniform", "none")
    """scattered: heads drawn from the whole model, groups uneven; groups: whole groups of query heads with their kv
    head; uniform: all layers and groups alike (the possible number nearest to the share); none: no heads but those
    that have to stay, a bound of what pruning could save."""
    batch_sizes: tuple[int, ...] = (1, 8)
    """Sequences at once."""
    lengths: tuple[int, ...] = (128, 512)
    """Tokens of a prompt."""
    new_tokens: int = 16
    """Tokens that decoding is measured on."""
    rounds: int = 7
    """Rounds; each runs all three variants, in an order of its own."""
    threads: int | None = None
    """Threads of PyTorch; by default what it takes by itself."""
    seed: int = 0
    """Of the heads that are drawn, and of the tokens."""
    out: Path = ROOT / "benchmarks" / "results"
    """Folder of the result, pruning.json."""
    quick: bool = False
    """One sequence of 128 tokens, three rounds."""

    def __post_init__(self) -> None:
        if not 0 < self.share < 1:
            raise UsageError(f"--share lies between 0 and 1; got {self.share}")


def main(argv: Sequence[str] | None = None) -> int:
    """Measure, show and save; the exit code."""
    try:
        config = tyro.cli(Config, args=argv, prog="python -m benchmarks.pruning")
        quick: dict[str, Any] = {"batch_sizes": (1,), "lengths": (128,), "rounds": 3}
        benchmark(replace(config, **quick) if config.quick else config)
    except UserError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2 if isinstance(error, UsageError) else 1
    return 0


def benchmark(config: Config) -> pd.DataFrame:
    """The table of time ratios of all ways."""
    if config.threads is not None:
        torch.set_num_threads(config.threads)
    started, load = datetime.now(UTC), machine.load()
    model = interp.load(config.model)
    length = max(config.lengths)
    whole = sizes(model, length)
    tables, held = [], [{"way": "unpruned", **whole}]
    for way in config.ways:
        print(f"{way} …", file=sys.stderr, flush=True)
        pruned = prune(model, WAYS[way](model, config))
        held.append({"way": way, **sizes(pruned, length)})
        times = measure_times(
            model, pruned, batch_sizes=config.batch_sizes, lengths=config.lengths, new_tokens=config.new_tokens,
            rounds=config.rounds, seed=config.seed,
        )  # fmt: skip
        by_cpu = ratios(times, "cpu_seconds")[["ratio", "ci_low", "ci_high"]].add_prefix("cpu_")
        tables.append(pd.concat([ratios(times), by_cpu], axis=1).assign(way=way, attention=times.attention))
        del pruned
    found = pd.concat(tables, ignore_index=True)
    console = Console(width=None if sys.stdout.isatty() else 130)
    show(_sizes_text(held, length), console)
    show(_times_text(found), console)
    run = {"started": started.isoformat(timespec="seconds"), "threads": torch.get_num_threads(), "load_before": load,
           "load_after": machine.load()}  # fmt: skip
    config.out.mkdir(parents=True, exist_ok=True)
    saved = {"machine": machine.describe(), "config": plain(asdict(config)), "run": run, "sizes": held}
    write_file(config.out / "pruning.json", to_json({**saved, "ratios": found.to_dict("records")}))
    console.print(f"{config.out}/pruning.json", soft_wrap=True)
    return found


# Which heads stay -------------------------------------------------------------------------------------------------


def _scattered(model: HookedModel, config: Config) -> dict[str, tuple[int, ...]]:
    return keep_share(model, _drawn(model, config), config.share)


def _whole_groups(model: HookedModel, config: Config) -> dict[str, list[int]]:
    groups = [(site.name, kv) for site in model.sites for kv in range(site.n_kv_heads)]
    chosen = set(random.Random(config.seed).sample(groups, max(1, round(config.share * len(groups)))))
    return {
        site.name: [head for head in range(site.n_heads) if (site.name, site.kv_head_of(head)) in chosen]
        for site in model.sites
    }


def _uniform(model: HookedModel, config: Config) -> dict[str, tuple[int, ...]]:
    wanted = config.share * model.sites[0].n_heads
    nearest = min(possible_counts(model), key=lambda counts: abs(counts.n_heads - wanted))
    return keep_uniform(model, _drawn(model, config), nearest.n_heads)


def _none(model: HookedModel, config: Config) -> dict[str, list[int]]:
    return {site.name: [0] if site is model.sites[-1] else [] for site in model.sites}


def _drawn(model: HookedModel, config: Config) -> dict[tuple[str, int], float]:
    rng = random.Random(config.seed)
    return {(site.name, head): rng.random() for site in model.sites for head in range(site.n_heads)}


WAYS: dict[Way, Callable[[HookedModel, Config], Any]] = {
    "scattered": _scattered, "groups": _whole_groups, "uniform": _uniform, "none": _none,
}  # fmt: skip


# Tables -----------------------------------------------------------------------------------------------------------


def _sizes_text(held: list[dict[str, Any]], length: int) -> Text:
    rows = [
        [row["way"], *(f"{row[name]:,.0f}" for name in ("parameters", "cache_bytes_per_token", "flops_per_token"))]
        for row in held
    ]
    return Text(
        "What is held and computed", ["", "parameters", "cache, bytes per token", "FLOPs per token"], rows,
        f"FLOPs of a prompt of {length} tokens, divided by its length, all logits included.",
    )  # fmt: skip


def _times_text(found: pd.DataFrame) -> Text:
    rows = [
        [
            row["way"], row["variant"], row["phase"], f"{row['batch_size']} × {row['length']}",
            *(f"{row[f'{c}ratio']:.2f} [{row[f'{c}ci_low']:.2f}, {row[f'{c}ci_high']:.2f}]" for c in ("", "cpu_")),
            f"{1000 * row['seconds']:.0f}", f"{1000 * row['seconds_unpruned']:.0f}",
        ]
        for row in found.to_dict("records")
    ]  # fmt: skip
    return Text(
        "Time over that of the unpruned model",
        ["heads", "", "phase", "sequences × tokens", "time [95 %]", "CPU time [95 %]", "ms", "ms, unpruned"], rows,
        "Geometric mean over rounds of the ratio within a round. Prompt: the pass over all tokens. Decoding: the "
        "median of the passes for one further token of every sequence.",
        n_words=3,
    )  # fmt: skip


if __name__ == "__main__":
    sys.exit(main())
