"""Small models with few heads from the beginning, against larger ones cut to as few: this part of the analysis alone.

``python -m analyses.head_pruning.train_few_heads`` needs no model. Each finished seed is kept in ``--out``, and
taken up again by the same command.
"""

import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import TextIO

import pandas as pd
import tyro

from analyses.head_pruning import from_scratch
from analyses.head_pruning.config import Config as Settings
from interp.errors import UserError
from interp.results import Workspace, code_sha256, fingerprint
from interp.results.folder import check_writable


@dataclass(frozen=True)
class Config:
    """Train small models with few heads from scratch, and cut as few out of larger ones."""

    seeds: int = Settings.scratch_seeds
    """How many times, each with its own weights and data."""
    steps: int = Settings.scratch_steps
    """Steps of training of each model."""
    seed: int = 0
    """The first seed."""
    out: Path = Path("runs/few-heads")
    """Folder of what is finished; the table is written there as from_scratch.csv."""


def main(config: Config) -> None:
    """Train what is missing, print the table and write it down."""
    check_writable(config.out)
    table = trained(config)
    config.out.mkdir(parents=True, exist_ok=True)
    table.to_csv(config.out / "from_scratch.csv", index=False)
    _say("\n".join(markdown(table)), sys.stdout)


def trained(config: Config) -> pd.DataFrame:
    """The table ``from_scratch``, of seeds that are finished and of those trained now.

    Raises:
        UserError: too few seeds or steps.
    """
    try:
        settings = Settings(budget="full", scratch_seeds=config.seeds, scratch_steps=config.steps, seed=config.seed)
    except ValueError as error:
        raise UserError(str(error).replace("scratch_", "--")) from None
    inputs = fingerprint("from-scratch", {"steps": config.steps}, {}, code_sha256(from_scratch))
    began = time.monotonic()

    def told(seed: int, done: int) -> None:
        each = (time.monotonic() - began) / done
        left = config.seeds - (seed - config.seed) - 1
        _say(f"seed {seed} is finished; {left} to come, about {each * left / 60:.0f} min", sys.stderr)

    work = Workspace(config.out / "steps" / inputs[:16])
    return from_scratch.table(settings, work, finished=told)


def markdown(table: pd.DataFrame) -> list[str]:
    """A row a model: its loss, and the difference from the one from scratch that ends with as many heads."""
    lines = ["| heads in the end | head dropout | model | loss, nats | from scratch with as many: difference |",
             "|---:|---:|---|---:|---:|"]  # fmt: skip
    ordered = table.sort_values(["n_heads", "dropout"], kind="stable")
    for row in ordered.to_dict("records"):
        change = f"{row['change']:+.3f} [{row['change_low']:+.3f}, {row['change_high']:+.3f}]".replace("-", "−")
        loss = f"{row['loss']:.3f} [{row['ci_low']:.3f}, {row['ci_high']:.3f}]"
        compared = "" if row["model"] == "scratch" else change
        lines.append(f"| {row['n_heads']} | {row['dropout']:.0%} | {row['model']} | {loss} | {compared} |")
    return lines


def _say(text: str, where: TextIO) -> None:
    where.write(f"{text}\n")
    where.flush()


if __name__ == "__main__":
    try:
        main(tyro.cli(Config, prog="python -m analyses.head_pruning.train_few_heads"))
    except UserError as error:
        sys.exit(f"error: {error}")
