"""How high the toy's highest number is: an analysis that uses another's findings."""

from dataclasses import dataclass
from typing import Any

import pandas as pd

from interp.results import Result, Workspace

USES = ("toy",)


@dataclass(frozen=True)
class Config:
    """It has no settings."""


def run(model: Any, config: Config, work: Workspace) -> Result:
    """Read the toy's table, or say that it is not there."""
    toy = work.earlier("toy")
    if toy is None:
        work.skip("highest", "toy is not finished in this run")
        return Result("toy-second", {})
    return Result("toy-second", {"highest": pd.DataFrame({"number": [toy.tables["steps"]["number"].max()]})})
