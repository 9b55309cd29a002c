"""The table ``heads``: every score of every head with its interval, chance, control and p-value; offsets, distances."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from analyses.head_specialization.config import Config
from analyses.head_specialization.inputs import Inputs
from analyses.head_specialization.measures import EVENTS, OFFSETS, UNBOUNDED, bins, metrics, not_applicable
from interp import HookedModel
from interp.results import Workspace
from interp.statistics import benjamini_hochberg, halves, mean_interval, paired_p, too_few, unit_means

SHARE = (0.0, 1.0)
COLUMNS = (
    "site", "layer", "head", "metric", "data", "value", "ci_low", "ci_high", "chance", "control", "p_corrected", "n",
    "half", "note",
)  # fmt: skip
#: Controls that are other scores of the same rows: the target moved by one token.
_SHIFTED = {"current_token": "mass:-1", "previous_token": "mass:-2", "next_token": "mass:2"}
#: What is destroyed where a measure's labels are another window's, or moved: a column of its own.
_RELABELLED = (
    "first_position", "special", "separator", "punctuation", "number", "sentence_start", "duplicate_token", "rare_word",
    "bracket_match", "quote_match", "prefix_matching",
)  # fmt: skip
NO_ROW = "not applicable: no row could show it"

Values = NDArray[np.float64]


def control_of(metric: str) -> str | None:
    """The column of ``scores`` that a measure is compared with; None where nothing is known to destroy it."""
    if metric in _SHIFTED:
        return _SHIFTED[metric]
    return f"control:{metric}" if metric in _RELABELLED else None


@dataclass(frozen=True, eq=False)
class Scores:
    """Scores of all heads on one text.

    Attributes:
        data: the text's name.
        heads: ``site, layer, head`` of every head of the model, in order of execution.
        undefined: (site, metric) → why the score is not defined there.
        rows: of the table that `measures.measure` made.
        units: which windows count as one observation.
    """

    data: str
    heads: pd.DataFrame
    undefined: dict[tuple[str, str], str]
    rows: pd.DataFrame
    units: NDArray[np.int64]
    seed: int

    @classmethod
    def of(cls, model: HookedModel, measured: pd.DataFrame, given: Inputs, config: Config) -> dict[str, "Scores"]:
        """Scores by text."""
        heads = pd.DataFrame(
            [(site.name, site.layer, head) for site in model.sites for head in range(site.n_heads)],
            columns=["site", "layer", "head"],
        )
        names = metrics(model)
        undefined = {(site.name, m): why for site in model.sites for m in names if (why := not_applicable(site, m))}
        by_data: Any = measured.groupby("data")
        return {
            data: cls(data, heads, undefined, by_data.get_group(data), text.units, config.seed)
            for data, text in given.texts.items()
        }

    @property
    def names(self) -> list[tuple[str, int]]:
        """(site, head) of every head."""
        return list(zip(self.heads["site"], self.heads["head"].tolist(), strict=True))

    @cached_property
    def _place(self) -> tuple[NDArray[np.intp], NDArray[np.intp]]:
        """The sequence and the head of each row."""
        number = {name: i for i, name in enumerate(self.names)}
        named = zip(self.rows["site"], self.rows["head"].tolist(), strict=True)
        return self.rows["sequence"].to_numpy(np.intp), np.array([number[name] for name in named], dtype=np.intp)

    def of_columns(self, columns: Sequence[str]) -> Values:
        """[sequence, column, head]; NaN where there is no value."""
        wide = np.full((len(self.units), len(columns), len(self.heads)), np.nan)
        sequence, head = self._place
        for i, column in enumerate(columns):
            if column in self.rows:
                wide[sequence, i, head] = self.rows[column].to_numpy(np.float64)
        return wide

    def one(self, column: str) -> Values:
        """[sequence, head]."""
        return self.of_columns([column])[:, 0]

    @cached_property
    def halves(self) -> tuple[NDArray[np.intp], NDArray[np.intp]] | None:
        """Windows that select and windows that report, no document in both; None where there is one document."""
        return halves(self.units, self.seed) if len(np.unique(self.units)) > 1 else None


def mean(values: Values, units: NDArray[np.int64] | None) -> Values:
    """Mean over units along the first axis; NaN where none has a value."""
    means = unit_means(values, units)
    n = (~np.isnan(means)).sum(0)
    return np.where(n > 0, np.nansum(means, axis=0) / np.maximum(n, 1), np.nan)


def heads_table(found: Scores, names: Sequence[str], config: Config, work: Workspace) -> pd.DataFrame:
    """The rows of the table ``heads`` that were read off one text: a row a head and score."""
    n_units = len(np.unique(found.units))
    if sentence := too_few(n_units, len(found.heads)):
        work.note(f"{found.data.capitalize().replace('_', ' ')}: {sentence}.")
    parts = [_rows(found, metric, config) for metric in work.progress(names, "scores")]
    return pd.concat(parts, ignore_index=True).reindex(columns=list(COLUMNS))


def _rows(found: Scores, metric: str, config: Config) -> pd.DataFrame:
    control_column = control_of(metric)
    values, chance = np.moveaxis(found.of_columns([metric, f"chance:{metric}"]), 1, 0)
    bounds = None if metric in UNBOUNDED else SHARE
    interval = mean_interval(values, found.units, bounds=bounds, events=metric in EVENTS, seed=config.seed)
    n_heads = len(found.heads)
    control, p_corrected, few = np.full(n_heads, np.nan), np.full(n_heads, np.nan), ""
    if control_column is not None:
        other = found.one(control_column)
        control = mean(other, found.units)
        p_corrected = benjamini_hochberg(paired_p(values, other, found.units, seed=config.seed))
        few = too_few(int(interval.n.max()), n_heads) if interval.n.max() > 0 else ""
    table = found.heads.assign(
        metric=metric, data=found.data, value=interval.value, ci_low=interval.low, ci_high=interval.high,
        chance=mean(chance, found.units), control=control, p_corrected=p_corrected, n=interval.n, half="all",
    )  # fmt: skip
    table["note"] = [
        found.undefined.get((site, metric)) or (NO_ROW if np.isnan(value) else few)
        for site, value in zip(table["site"], table["value"], strict=True)
    ]
    return table


def offsets_table(found: Scores) -> pd.DataFrame:
    """Share of rows whose strongest key is at each offset, and the mass there, over the rows that could read it."""
    parts = []
    for offset in OFFSETS:
        columns = found.of_columns([f"share:{offset}", f"mass:{offset}", f"chance:share:{offset}"])
        share, mass, chance = (mean(columns[:, i], found.units) for i in range(3))
        n = (~np.isnan(unit_means(columns[:, 0], found.units))).sum(0)
        parts.append(found.heads.assign(offset=offset, share=share, mass=mass, chance=chance, n=n))
    table: Any = pd.concat(parts, ignore_index=True)
    return table[table["n"] > 0].reset_index(drop=True)


def distances_table(found: Scores, n_positions: int) -> pd.DataFrame:
    """Mass by distance in tokens back; negative distances, which only heads that read both ways have, are forward."""
    parts = []
    for low, high in bins(n_positions):
        mass = mean(found.one(f"bin:{low}:{high}"), found.units)
        parts.append(found.heads.assign(low=low, high=high, mass=mass))
    table: Any = pd.concat(parts, ignore_index=True).dropna(subset="mass")
    reads_ahead = table[table["low"] < 0].groupby("site")["mass"].transform("max").reindex(table.index)
    return table[(table["low"] >= 0) | (reads_ahead > 0)].reset_index(drop=True)
