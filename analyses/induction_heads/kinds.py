"""Which heads are called what, and which are picked to be looked at more closely."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from analyses.induction_heads.config import Config
from analyses.induction_heads.scores import SHARE, Scores, control_of
from interp.statistics import called, halves

#: Each kind's score. Heads are called by their scores on repeated tokens.
KINDS = {
    "induction": "prefix_matching",
    "previous_token": "previous_token",
    "duplicate_token": "duplicate_token",
}
_DATA = "repeated"
Head = tuple[str, int]  # site, head


def threshold(kind: str, config: Config) -> float:
    """The score above which a head can be called a kind."""
    return getattr(config, f"{kind}_threshold")


def table(found: Scores, config: Config) -> pd.DataFrame:
    """The table ``kinds``: one row a head and kind, called or not, and why.

    A head is called where the lower end of its interval, simultaneous over all heads, is above the kind's threshold,
    and its difference from the control is significant after correction over all heads.
    """
    parts = []
    for kind, metric in KINDS.items():
        control = control_of(metric, _DATA)
        calls = called(
            found.values[metric, _DATA],
            None if control is None else found.values[control.metric, control.data],
            threshold(kind, config),
            bounds=SHARE,
            seed=config.seed,
        )
        part = found.heads.assign(
            kind=kind, metric=metric, value=calls.value, simultaneous_low=calls.low, threshold=threshold(kind, config),
            chance=found.chance[metric, _DATA].mean(0), control=calls.control, p_corrected=calls.p_corrected,
            called=calls.called, reason=calls.reason,
        )  # fmt: skip
        why = [found.undefined.get((site, metric), "") for site in part["site"]]
        parts.append(part.assign(reason=np.where(np.array(why, dtype=object) != "", why, part["reason"])))
    return pd.concat(parts, ignore_index=True)


@dataclass(frozen=True, eq=False)
class Selection:
    """Heads picked on one half of the sequences, to be reported on the other.

    Attributes:
        selected_on: numbers of the sequences that picked them.
        reported_on: numbers of the others.
        means: kind → each head's mean on the first, strongest first; heads without a value are left out.
    """

    selected_on: NDArray[np.intp]
    reported_on: NDArray[np.intp]
    means: dict[str, dict[Head, float]]
    thresholds: dict[str, float]

    @classmethod
    def of(cls, found: Scores, config: Config) -> "Selection":
        """Heads by their scores on a random half of the repeated sequences."""
        first, second = halves(config.sequences, config.seed)
        means = {kind: ranked(found.names, found.values[metric, _DATA][first]) for kind, metric in KINDS.items()}
        return cls(first, second, means, {kind: threshold(kind, config) for kind in KINDS})

    def strongest(self, kind: str, most: int, above_threshold: bool = False) -> list[Head]:
        """The strongest heads of a kind, all of them or those above its threshold."""
        least = self.thresholds[kind] if above_threshold else -np.inf
        return [head for head, mean in self.means[kind].items() if mean > least][:most]


def ranked(heads: Sequence[Head], values: NDArray[np.float64]) -> dict[Head, float]:
    """Heads with their means over sequences, strongest first; ties in order of execution."""
    n = (~np.isnan(values)).sum(0)
    means = np.nansum(values, axis=0) / np.maximum(n, 1)
    order = np.argsort(-means, kind="stable")
    return {heads[i]: float(means[i]) for i in order if n[i]}
