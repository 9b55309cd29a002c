"""How high random numbers are: an analysis that costs nothing, for the tests of what runs analyses."""

import os
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np
import pandas as pd
import pandera.pandas as pa

from interp.cli import run_module
from interp.results import Result, Workspace

SCHEMAS = {"steps": pa.DataFrameSchema({"step": pa.Column(int), "number": pa.Column(float)})}
MEMORY_SETTINGS = ("sequences",)


@dataclass(frozen=True)
class Config:
    """Settings of the toy."""

    period: int = 4
    """Tokens before a repeat."""
    sequences: int = 3
    """How many sequences, one step each."""
    offsets: tuple[int, ...] = (0, 1)
    """Which offsets."""
    text: str | None = None
    """A text."""
    budget: Literal["report", "full"] = "report"
    """How much."""
    seed: int = 0
    """The seed."""

    def __post_init__(self) -> None:
        if self.period < 1:
            raise ValueError(f"period is at least 1; got {self.period}")


def run(model: Any, config: Config, work: Workspace) -> Result:
    """Draw a number a step."""
    numbers = []
    for step in work.progress(range(config.sequences), "steps"):
        numbers.append(work.step(f"step-{step}", lambda step=step: compute(step, config, work))["steps"])
    steps = pd.concat(numbers, ignore_index=True)
    if config.budget == "report":
        work.skip("everything", "budget is report")
    return Result("toy", {"heads": heads(steps), "steps": steps})


def compute(step: int, config: Config, work: Workspace) -> dict[str, pd.DataFrame]:
    """One step; fails, or waits for a signal, where the environment says so."""
    if log := os.environ.get("TOY_LOG"):
        with Path(log).open("a") as file:
            file.write(f"{step} ")
    if os.environ.get("TOY_FAILS_AT") == str(step):
        raise FAILURES[os.environ["TOY_FAILURE"]]
    number = np.random.default_rng([config.seed, step]).random()
    return {"steps": pd.DataFrame({"step": [step], "number": [number]})}


def heads(steps: pd.DataFrame) -> pd.DataFrame:
    """A head a step."""
    fixed = {"site": "blocks.0.attn", "layer": 0, "metric": "prefix_matching", "data": "repeated"}
    return pd.DataFrame(
        {
            **{name: [value] * len(steps) for name, value in fixed.items()},
            "head": steps["step"],
            "value": steps["number"],
            "ci_low": steps["number"] - 0.1,
            "ci_high": steps["number"] + 0.1,
            "chance": 0.5,
            "p_corrected": np.nan,
            "n": 1,
        }
    )


FAILURES: dict[str, BaseException] = {
    "interrupt": KeyboardInterrupt(),
    "memory": MemoryError(),
    "torch-memory": RuntimeError("DefaultCPUAllocator: can't allocate memory: you tried to allocate 9 bytes"),
    "value": ValueError("the period 4 is longer than\nthe context 2"),
    "bug": RuntimeError("shapes do not match"),
}

if __name__ == "__main__":
    run_module(sys.modules[__name__])
