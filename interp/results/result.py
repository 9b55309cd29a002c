"""What an analysis found."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import pandas as pd


@dataclass(frozen=True)
class Result:
    """Tidy tables of one analysis (one row per observation) and what made them.

    ``tables`` maps a name to a DataFrame; the table ``heads`` has the columns that `interp.results.HEADS` asks for.
    ``provenance`` may stay empty in what ``run()`` returns: the command line fills in what it knows (model, versions,
    command, time, memory, what was left out) before it saves.
    """

    analysis: str
    tables: Mapping[str, pd.DataFrame]
    provenance: Mapping[str, Any] = field(default_factory=dict)
