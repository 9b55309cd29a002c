"""The table ``heads``: every score of every head with its interval, chance, control and p-value."""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import product
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from analyses.induction_heads.config import Config
from analyses.induction_heads.inputs import Inputs
from analyses.induction_heads.measures import METRICS, NEXT, SECOND_PREVIOUS, not_applicable
from interp import HookedModel
from interp.results import Workspace
from interp.statistics import benjamini_hochberg, mean_interval, paired_p, too_few, unit_means

SHARE = (0.0, 1.0)
COLUMNS = (
    "site", "layer", "head", "metric", "data", "value", "ci_low", "ci_high", "chance", "control", "p_corrected", "n",
    "note",
)  # fmt: skip


@dataclass(frozen=True, eq=False)
class Control:
    """What a score is compared with, paired by sequence: another score, or the same one on other tokens."""

    metric: str
    data: str


def control_of(metric: str, data: str) -> Control | None:
    """What is known to destroy a behaviour; None where nothing is.

    Induction and attention to duplicates are destroyed where nothing repeats: the same keys on unrepeated tokens. What
    attends to the previous token does so whatever the tokens are; there the target is moved instead, to the token
    before it, which a head that merely looks nearby attends to as well.
    """
    if metric in ("prefix_matching", "duplicate_token") and data == "repeated":
        return Control(metric, "unrepeated")
    if metric == "previous_token":
        return Control(SECOND_PREVIOUS, data)
    return None


@dataclass(frozen=True, eq=False)
class Scores:
    """Scores of all heads by sequence.

    Attributes:
        heads: ``site, layer, head`` of every head of the model, in order of execution.
        undefined: (site, metric) → why the score is not defined there.
        values: (metric, data) → [sequence, head], as in ``heads``; NaN where a sequence has no eligible row.
        chance: likewise, under uniform attention with the same mask.
        units: data → which sequences count as one observation.
        remarks: (site, metric, data) → what has to be known to read a score.
    """

    heads: pd.DataFrame
    undefined: dict[tuple[str, str], str]
    values: dict[tuple[str, str], NDArray[np.float64]]
    chance: dict[tuple[str, str], NDArray[np.float64]]
    units: dict[str, NDArray[np.int64] | None]
    remarks: dict[tuple[str, str, str], str]

    @property
    def names(self) -> list[tuple[str, int]]:
        """(site, head) of every head."""
        return list(zip(self.heads["site"], self.heads["head"].tolist(), strict=True))

    @classmethod
    def of(cls, model: HookedModel, measured: pd.DataFrame, given: Inputs) -> "Scores":
        """Scores from the table that `measures.measure` made."""
        heads = pd.DataFrame(
            [(site.name, site.layer, head) for site in model.sites for head in range(site.n_heads)],
            columns=["site", "layer", "head"],
        )
        named = list(zip(heads["site"], heads["head"], strict=True))
        values, chance = {}, {}
        for data, metric in product(given.by_name, (*METRICS, SECOND_PREVIOUS)):
            rows = _where(measured, metric=metric, data=data)
            values[metric, data], chance[metric, data] = (by_sequence(rows, named, c) for c in ("value", "chance"))
        sites = {site.name: site for site in model.sites}
        undefined = {(name, m): why for name, s in sites.items() for m in METRICS if (why := not_applicable(s, m))}
        both_ways = set(_where(measured, metric=NEXT).dropna(subset="value")["site"])
        units = {data: given.units(data) for data in given.by_name}
        remarks = {
            (name, metric, data): _BOTH_WAYS["text" if data == "text" else "repeated"]
            for name in both_ways
            for metric in ("prefix_matching", "duplicate_token")
            for data in given.by_name
        }
        return cls(heads, undefined, values, chance, units, remarks)


def by_sequence(rows: pd.DataFrame, heads: Sequence[tuple[str, int]], column: str) -> NDArray[np.float64]:
    """A column of one score's rows as [sequence, head], for heads (site, head); NaN where there is no row."""
    wide = rows.pivot(index="sequence", columns=["site", "head"], values=column)
    return wide.reindex(columns=pd.MultiIndex.from_tuples(heads)).to_numpy(np.float64)


def _where(table: pd.DataFrame, **where: str) -> pd.DataFrame:
    """The rows in which every named column has the named value."""
    rows: Any = table
    for column, value in where.items():
        rows = rows[rows[column] == value]
    return rows


_BOTH_WAYS = {
    "repeated": "reads both ways: attention to earlier copies alone is counted, that to later ones is not",
    "text": "reads both ways: other occurrences on either side are counted",
}
NO_ROW = "not applicable: the mask lets no row read its target"


def heads_table(found: Scores, config: Config, work: Workspace) -> pd.DataFrame:
    """The table ``heads`` but for what weights say: one row a head, score and kind of tokens."""
    parts = [_rows(found, metric, data, config) for data in found.units for metric in METRICS]
    n = len(found.values[METRICS[0], "repeated"])
    if sentence := too_few(n, len(found.heads)):
        work.note(f"Repeated tokens: {sentence}.")
    return pd.concat(parts, ignore_index=True).reindex(columns=list(COLUMNS))


def joined(heads: pd.DataFrame, copying: pd.DataFrame) -> pd.DataFrame:
    """Both kinds of rows of the table ``heads``; columns that one kind lacks are NaN there."""
    more = copying.columns.difference(list(COLUMNS))
    return pd.concat([heads, copying], ignore_index=True).reindex(columns=[*COLUMNS, *more])


def _rows(found: Scores, metric: str, data: str, config: Config) -> pd.DataFrame:
    units, n_heads = found.units[data], len(found.heads)
    values = found.values[metric, data]
    interval = mean_interval(values, units, bounds=SHARE, seed=config.seed)
    mean_chance, _ = _mean(found.chance[metric, data], units)
    control, p_corrected = np.full(n_heads, np.nan), np.full(n_heads, np.nan)
    few = ""
    if (against := control_of(metric, data)) is not None:
        other = found.values[against.metric, against.data]
        control, _ = _mean(other, units)
        p_corrected = benjamini_hochberg(paired_p(values, other, units, seed=config.seed))
        few = too_few(int(interval.n.max()), n_heads)
    table = found.heads.assign(
        metric=metric, data=data, value=interval.value, ci_low=interval.low, ci_high=interval.high, chance=mean_chance,
        control=control, p_corrected=p_corrected, n=interval.n,
    )  # fmt: skip
    table["note"] = [
        found.undefined.get((site, metric)) or (NO_ROW if np.isnan(value) else _remark(found, site, metric, data, few))
        for site, value in zip(table["site"], table["value"], strict=True)
    ]
    return table


def _remark(found: Scores, site: str, metric: str, data: str, few: str) -> str:
    return "; ".join(filter(None, (found.remarks.get((site, metric, data), ""), few)))


def _mean(
    values: NDArray[np.float64], units: NDArray[np.int64] | None
) -> tuple[NDArray[np.float64], NDArray[np.int64]]:
    """Mean over units, and how many have a value; NaN where none has."""
    means = unit_means(values, units)
    n = (~np.isnan(means)).sum(0)
    return np.where(n > 0, np.nansum(means, axis=0) / np.maximum(n, 1), np.nan), n
