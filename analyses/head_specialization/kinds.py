"""Which heads are called what, and why. A head has every kind that it meets; most have none."""

from collections.abc import Mapping
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from analyses.head_specialization.config import Config
from analyses.head_specialization.measures import OFFSETS
from analyses.head_specialization.scores import SHARE, Scores, control_of, mean
from interp.results import Workspace
from interp.statistics import called

#: Kinds that one score decides: kind → (metric, the threshold's name in the Config).
BY_SCORE = {
    "previous_token": ("previous_token", "position_mass"),
    "current_token": ("current_token", "position_mass"),
    "sink": ("first_position", "sink_epsilon"),
    "separator": ("separator", "special_mass"),
    "duplicate_token": ("duplicate_token", "match_mass"),
    "induction": ("prefix_matching", "match_mass"),
    "rare_word": ("rare_word", "rare_word_mass"),
    "bracket_matching": ("bracket_match", "match_mass"),
    "broad": ("relative_entropy", "broad_entropy"),
}  # fmt: skip
COLUMNS = (
    "site", "layer", "head", "kind", "metric", "detail", "value", "simultaneous_low", "threshold", "chance", "control",
    "p_corrected", "called", "reason",
)  # fmt: skip


def by_score(found: Scores, config: Config, work: Workspace) -> pd.DataFrame:
    """The rows of the table ``kinds`` that the text decides: one a head and kind, called or not, and why.

    A head is called where the lower end of its interval, simultaneous over all heads, is above the kind's threshold and
    its difference from the control is significant after correction over all heads. Nothing is selected on the data
    here, so every document counts. broad has no control: nothing destroys it.
    """
    parts = [_positional(found, config)]
    for kind, (metric, threshold) in work.progress(list(BY_SCORE.items()), "kinds"):
        values = found.one(metric)
        control = control_of(metric)
        part = _judged(
            found,
            kind,
            values,
            None if control is None else found.one(control),
            getattr(config, threshold),
            config.seed,
        )
        chance = mean(found.one(f"chance:{metric}"), found.units)
        parts.append(part.assign(metric=metric, detail="", chance=chance))
    table = pd.concat(parts, ignore_index=True).reindex(columns=list(COLUMNS))
    why = [found.undefined.get((site, m), "") for site, m in zip(table["site"], table["metric"], strict=True)]
    return table.assign(reason=np.where(np.array(why, dtype=object) != "", why, table["reason"]))


def _judged(
    found: Scores,
    kind: str,
    values: NDArray[np.float64],
    control: NDArray[np.float64] | None,
    threshold: float,
    seed: int,
) -> pd.DataFrame:
    calls = called(values, control, threshold, units=found.units, bounds=SHARE, seed=seed)
    return found.heads.assign(
        kind=kind, value=calls.value, simultaneous_low=calls.low, threshold=threshold, control=calls.control,
        p_corrected=calls.p_corrected, called=calls.called, reason=calls.reason,
    )  # fmt: skip


def _positional(found: Scores, config: Config) -> pd.DataFrame:
    """Positional heads (Voita et al.): the strongest key is at one offset in at least 90 % of the rows.

    The offset is chosen on one half of the documents and counted on the other, both ways; where the two halves choose
    different ones there is none. Control: the share of the offset next to it, one token further away.
    """
    shares, chances = (found.of_columns([f"{what}:{o}" for o in OFFSETS]) for what in ("share", "chance:share"))
    parts = found.halves or (np.arange(len(shares)), np.arange(len(shares)))
    best = [_best(mean(shares[half], found.units[half])) for half in parts]
    whole = _best(mean(shares, found.units))
    agree = best[0] == best[1]
    values, chance = _taken(shares, whole), _taken(chances, whole)
    offsets = np.array(OFFSETS)[whole]
    beside = np.clip(offsets + np.where(offsets <= 0, -1, 1), OFFSETS[0], OFFSETS[-1])
    beside = np.where(beside == offsets, offsets - np.sign(offsets), beside)
    control = _taken(shares, beside - OFFSETS[0])
    table = _judged(found, "positional", values, control, config.positional_share, config.seed)
    disagree = [f"the halves choose {OFFSETS[a]:+d} and {OFFSETS[b]:+d}" for a, b in zip(*best, strict=True)]
    exists = ~np.isnan(mean(values, found.units))
    return table.assign(
        metric="strongest_offset",
        detail=np.where(exists, [f"{offset:+d}".replace("+0", "0") for offset in offsets], ""),
        chance=mean(chance, found.units),
        called=table["called"] & agree,
        reason=np.where(agree | ~exists, table["reason"], disagree),
    )


def _best(means: NDArray[np.float64]) -> NDArray[np.intp]:
    """The offset with the highest share of each head; of equal ones the nearest."""
    order = sorted(range(len(OFFSETS)), key=lambda i: abs(OFFSETS[i]))
    ordered = np.where(np.isnan(means), -1.0, means)[order]
    return np.array(order)[ordered.argmax(0)]


def _taken(columns: NDArray[np.float64], index: NDArray[np.intp]) -> NDArray[np.float64]:
    return np.take_along_axis(columns, index[None, None], axis=1)[:, 0]


def syntactic(relations: pd.DataFrame, config: Config) -> pd.DataFrame:
    """A row of ``kinds`` for each head and relation that is called; "all" names no relation."""
    rows: Any = relations[relations["called"] & (relations["relation"] != "all")]
    points = config.syntactic_margin
    return _made(
        rows, "syntactic", "relation_accuracy", rows["accuracy"], rows["relation"] + " " + rows["direction"],
        rows["difference_low"] + rows["baseline"], rows["baseline"] + points, rows["baseline"],
        [
            f"{a:.3f} of {n} pairs, {d:.3f} above always taking the word at {o:+d} (p = {p:.2g} over all heads)"
            for a, n, d, o, p in rows[
                ["accuracy", "n", "difference", "baseline_offset", "p_corrected"]
            ].itertuples(index=False)
        ],
    )  # fmt: skip


def coreference(table: pd.DataFrame, config: Config) -> pd.DataFrame:
    """A row of ``kinds`` for each head that is called."""
    rows: Any = table[table["called"]]
    baseline = rows[["nearest", "head_match"]].max(axis=1)
    return _made(
        rows, "coreference", "coreference_accuracy", rows["accuracy"], "", rows["difference_low"] + baseline,
        baseline + config.coreference_margin, baseline,
        [
            f"{a:.3f} of {n} mentions, {d:.3f} above the better baseline (p = {p:.2g} over all heads)"
            for a, n, d, p in zip(rows["accuracy"], rows["n"], rows["difference"], rows["p_corrected"], strict=True)
        ],
    )  # fmt: skip


def _made(
    heads: pd.DataFrame, kind: str, metric: str, value: object, detail: object, low: object, threshold: object,
    control: object, reason: list[str],
) -> pd.DataFrame:  # fmt: skip
    made: Mapping[str, object] = {
        "kind": kind, "metric": metric, "detail": detail, "value": value, "simultaneous_low": low,
        "threshold": threshold, "chance": np.nan, "control": control,
        "p_corrected": heads.get("p_corrected", np.nan), "called": True,
    }  # fmt: skip
    table = heads[["site", "layer", "head"]].assign(**made)
    table["reason"] = pd.Series(reason, index=table.index, dtype=object)
    return table.reindex(columns=list(COLUMNS)).reset_index(drop=True)
