"""Two runs on the same heads, side by side: which heads changed kind, and by how much scores differ.

For two texts, a checkpoint and the next, before and after fine-tuning. Works on the tables ``heads`` and ``kinds`` of
any analysis. Does not import torch.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd
from scipy import stats
from scipy.special import comb

from interp.errors import UserError
from interp.results import Result, RunFolder
from interp.statistics import benjamini_hochberg

HEAD = ["site", "layer", "head"]
SCORE = [*HEAD, "metric", "data"]
LEVEL = 0.05  # of the corrected p-value from which a score counts as changed

ASSUMPTION = (
    "Intervals of differences take the two runs for independent samples (square-and-add of the two intervals, Zou & "
    "Donner 2008); p-values are two-sided from their widths with Student's tails, corrected over the heads of a score "
    "(Benjamini & Hochberg)."
)
SAME_TOKENS = (
    "Both runs read the same tokens ({}): as far as their scores go up and down together, as those of like models do, "
    "the true intervals are narrower, and more may have changed than is called so."
)


@dataclass(frozen=True)
class Comparison:
    """What differs between two runs.

    Attributes:
        before, after: the run folders, as text.
        models: the name of either run's model.
        differences: ``analysis, site, layer, head, metric, data, before, after, difference, ci_low, ci_high,
            p_corrected, changed, n_before, n_after``; after less before.
        kinds: ``analysis, site, layer, head, kind, change (gained, lost, kept), detail_before, detail_after,
            value_before, value_after, threshold``: the kinds that a head is called in either run.
        notes: what a reader has to know: the intervals' assumption, settings that differ, what only one run has.
    """

    before: str
    after: str
    models: tuple[str, str]
    differences: pd.DataFrame
    kinds: pd.DataFrame
    notes: tuple[str, ...]

    def result(self) -> Result:
        """The same as a result that can be saved and drawn."""
        model = {"name": " and ".join(dict.fromkeys(self.models))}
        provenance = {
            "model": model,
            "config": {"before": self.before, "after": self.after},
            "command": f"interp compare {self.before} {self.after}",
            "left_out": [],
            "notes": list(self.notes),
        }
        return Result("comparison", {"differences": self.differences, "kind_changes": self.kinds}, provenance)


def compare(before: RunFolder, after: RunFolder, analyses: Sequence[str] | None = None) -> Comparison:
    """Compare every analysis that both runs have finished.

    Args:
        before: one run. after: the other, of a model with the same heads.
        analyses: which; None: all that both have and that score or call heads.

    Raises:
        UserError: no such analysis in both, or their heads are not the same ones.
    """
    names = _common(before, after, analyses)
    differences, kinds, notes = [], [], [ASSUMPTION]
    for name in names:
        old, new = before.load(name), after.load(name)
        check_same_heads(name, old, new)
        notes += list(_remarks(name, old, new))
        differences.append(score_differences(old, new).assign(analysis=name))
        kinds.append(kind_changes(old, new).assign(analysis=name))
    return Comparison(
        str(before.path), str(after.path), (_model(before), _model(after)),
        _first_column(differences), _first_column(kinds), tuple(notes),
    )  # fmt: skip


def score_differences(old: Result, new: Result) -> pd.DataFrame:
    """Each score's difference, new less old, for scores that both runs have a value for."""
    columns = [*SCORE, "value", "ci_low", "ci_high", "n"]
    sides = [result.tables.get("heads", pd.DataFrame(columns=columns)) for result in (old, new)]
    one, other = (side.reindex(columns=columns).dropna(subset="value").drop_duplicates(SCORE) for side in sides)
    both = one.merge(other, on=SCORE, suffixes=("_before", "_after"))
    difference = both["value_after"] - both["value_before"]
    low, high = difference_interval(
        *(
            both[f"{name}_{side}"].to_numpy(float)
            for side in ("after", "before")
            for name in ("value", "ci_low", "ci_high")
        )
    )
    units = (both[f"n_{side}"].to_numpy(float) for side in ("after", "before"))
    p = two_sided(difference.to_numpy(float), low, high, *units)
    family = (both["metric"] + " " + both["data"]).to_numpy(str)
    corrected = benjamini_hochberg(p, family) if len(p) else p
    return both[SCORE].assign(
        before=both["value_before"], after=both["value_after"], difference=difference, ci_low=low, ci_high=high,
        p_corrected=corrected, changed=corrected <= LEVEL, n_before=both["n_before"], n_after=both["n_after"],
    )  # fmt: skip


def difference_interval(
    value: np.ndarray,
    low: np.ndarray,
    high: np.ndarray,
    other: np.ndarray,
    other_low: np.ndarray,
    other_high: np.ndarray,
) -> tuple[np.ndarray, np.ndarray]:
    """Interval of ``value − other`` from the intervals of two independent estimates (Zou & Donner 2008).

    Each end of the difference is as far from it as the two ends that it comes from, in squares; where the intervals are
    symmetric, that is the usual sum of variances. NaN where either has no interval.
    """
    difference = value - other
    below = np.sqrt((value - low) ** 2 + (other_high - other) ** 2)
    above = np.sqrt((high - value) ** 2 + (other - other_low) ** 2)
    return difference - below, difference + above


def kind_changes(old: Result, new: Result) -> pd.DataFrame:
    """The kinds that each head is called in either run, and whether they were gained, lost or kept."""
    sides = [_called(result) for result in (old, new)]
    both = sides[0].merge(sides[1], on=[*HEAD, "kind"], how="outer", suffixes=("_before", "_after"))
    was, is_now = both["called_before"].notna(), both["called_after"].notna()
    change = np.select([was & is_now, is_now], ["kept", "gained"], "lost")
    values = {}
    for side, result in (("before", old), ("after", new)):
        scores = result.tables.get("kinds", pd.DataFrame(columns=[*HEAD, "kind", "value"]))
        best = scores.sort_values("value", ascending=False).drop_duplicates([*HEAD, "kind"])
        best = best[[*HEAD, "kind", "value"]]
        values[f"value_{side}"] = both[[*HEAD, "kind"]].merge(best, how="left")["value"].to_numpy(float)
    limits = pd.concat([result.tables["kinds"] for result in (old, new) if "kinds" in result.tables] or [both])
    limits = limits.reindex(columns=["kind", "threshold"]).sort_values("threshold", ascending=False)
    limit = dict(limits.drop_duplicates("kind").itertuples(index=False, name=None))
    details = {name: both[name].fillna("") for name in ("detail_before", "detail_after")}
    return both[[*HEAD, "kind"]].assign(
        change=change, **details, **values, threshold=[limit.get(kind) for kind in both["kind"]]
    )


def check_same_heads(analysis: str, old: Result, new: Result) -> None:
    """Refuse runs whose heads are not the same.

    Raises:
        UserError: naming heads that one of them lacks.
    """
    kept = [_kept_of_base(result) for result in (old, new)]
    if kept[0] != kept[1]:
        raise UserError(
            f"{analysis}: heads were cut out of a model, and those that stayed are numbered anew, so that a number "
            "does not mean the same head in both runs; compare runs of models with the same heads cut out"
        )
    sides = [_heads(result) for result in (old, new)]
    if sides[0] == sides[1]:
        return
    missing = [sorted(sides[0] - sides[1]), sorted(sides[1] - sides[0])]
    told = [
        f"{len(heads)} only in the {where}, such as {_head_name(heads[0])}"
        for heads, where in zip(missing, ("first", "second"), strict=True) if heads
    ]  # fmt: skip
    raise UserError(
        f"{analysis}: only runs with the same heads (site, layer and number) can be compared; the first has "
        f"{len(sides[0])}, the second {len(sides[1])}: {'; '.join(told)}. Compare runs of one architecture"
    )


def _kept_of_base(result: Result) -> dict[str, list[int]] | None:
    """Which heads of its base a pruned model has, by site; None for a model that was not pruned."""
    sites = ((result.provenance.get("model") or {}).get("pruning") or {}).get("sites")
    return None if sites is None else {site: list(about["kept"]) for site, about in sites.items()}


def _common(before: RunFolder, after: RunFolder, wanted: Sequence[str] | None) -> list[str]:
    if before.path.resolve() == after.path.resolve():
        raise UserError(f"two different runs are compared; got {before.path} twice")
    has = [set(run.analyses()) for run in (before, after)]
    for run, names in zip((before, after), has, strict=True):
        if absent := sorted(set(wanted or ()) - names):
            other = f"; it has {', '.join(sorted(names))}" if names else ", nor any other analysis"
            raise UserError(f"{run.path} has no finished {absent[0]}{other}")
    both = [name for name in before.analyses() if name in has[1]] if wanted is None else list(wanted)
    both = [name for name in both if _heads(before.load(name))]
    if not both:
        finished = [", ".join(sorted(names)) or "no analysis" for names in has]
        raise UserError(
            f"no analysis that scores heads is finished in both runs: {before.path} has finished {finished[0]}, "
            f"{after.path} {finished[1]}; `interp run ANALYSIS MODEL --out RUN` adds one"
        )
    return both


def _remarks(analysis: str, old: Result, new: Result) -> Iterator[str]:
    """Settings that differ, tokens that are the same, scores that only one run has."""
    settings = [dict(result.provenance.get("config") or {}) for result in (old, new)]
    differ = [
        f"{name.replace('_', ' ')} {_said(settings[0].get(name))} before, {_said(settings[1].get(name))} after"
        for name in dict.fromkeys([*settings[0], *settings[1]]) if settings[0].get(name) != settings[1].get(name)
    ]  # fmt: skip
    if differ:
        yield f"{analysis}: the runs' settings differ: {'; '.join(differ)}."
    yield from _verdicts_alone(analysis, old, new)
    if same := _same_inputs(old, new):
        yield f"{analysis}: {SAME_TOKENS.format(', '.join(same))}"
    scores = [_scores(result) for result in (old, new)]
    for these, others, which in ((scores[0], scores[1], "first"), (scores[1], scores[0], "second")):
        if only := sorted({f"{metric} ({data})" for *_, metric, data in these - others}):
            n = len(these - others)
            yield f"{analysis}: {n} scores have a value in the {which} run alone and are left out: {', '.join(only)}."


def _verdicts_alone(analysis: str, old: Result, new: Result) -> Iterator[str]:
    """Heads that are called a kind in one run alone though their score is beyond the threshold in both, or unknown."""
    changes = kind_changes(old, new)
    moved = changes.loc[changes["change"] != "kept"]
    beyond = [moved[f"value_{side}"] > moved["threshold"] for side in ("before", "after")]
    known = moved["value_before"].notna() & moved["value_after"].notna() & moved["threshold"].notna()
    for rows, what in (
        (moved.loc[known & (beyond[0] == beyond[1])], "their score is on the same side of the threshold in both: what "
         "differs is how sure it is (fewer documents, wider intervals, no test)"),
        (moved.loc[~known], "one run has no score for that kind (not measured there, or listed only if called)"),
    ):  # fmt: skip
        if len(rows):
            kinds = ", ".join(dict.fromkeys(str(kind).replace("_", " ") for kind in rows["kind"]))
            yield f"{analysis}: of the kinds gained or lost, {len(rows)} ({kinds}) say little, since {what}."


def _same_inputs(old: Result, new: Result) -> list[str]:
    known = [
        {name: given.get("sha256") for name, given in (result.provenance.get("inputs") or {}).items()
         if isinstance(given, Mapping)}
        for result in (old, new)
    ]  # fmt: skip
    return [name for name, sha256 in known[0].items() if sha256 is not None and known[1].get(name) == sha256]


def _called(result: Result) -> pd.DataFrame:
    """One row a head and kind that it is called, its details joined."""
    table = result.tables.get("kinds", pd.DataFrame(columns=[*HEAD, "kind", "called"]))
    rows = table.loc[table["called"].astype(bool)]
    rows = rows.assign(detail=rows.get("detail", ""))
    made = rows.groupby([*HEAD, "kind"], as_index=False)["detail"].agg(
        lambda each: "; ".join(sorted(filter(None, each)))
    )
    made = made if len(rows) else rows[[*HEAD, "kind", "detail"]]
    return made.assign(called=True)


def _heads(result: Result) -> set[tuple[str, int, int]]:
    tables = [result.tables[name] for name in ("heads", "kinds") if name in result.tables]
    return {
        (str(site), int(layer), int(head))
        for table in tables for site, layer, head in table[HEAD].drop_duplicates().itertuples(index=False)
    }  # fmt: skip


def _scores(result: Result) -> set[tuple[Any, ...]]:
    table = result.tables.get("heads")
    return set() if table is None else set(table.dropna(subset="value")[SCORE].itertuples(index=False, name=None))


def two_sided(
    difference: np.ndarray, low: np.ndarray, high: np.ndarray, n: np.ndarray, other_n: np.ndarray
) -> np.ndarray:
    """p of the difference being zero, from the nearer half of its 95 % interval.

    Tails are Student's, with one degree of freedom less than the run with fewer units has: corrected over many heads,
    what counts is far out, where a normal tail would be ten times too thin for a handful of units. And p is at least
    2 / C(n₁ + n₂, n₁), that of the most extreme of all ways to deal the units out to two runs: intervals of no width
    (all units alike) do not make a few units certain.

    Args:
        difference, low, high: with its interval. n, other_n: units of either run; tails are normal, and there is no
            least p, where they are not known.
    """
    fewest = np.minimum(n, other_n)
    fewest = np.where(fewest >= 2, fewest, np.inf)
    half = np.where(difference >= 0, difference - low, high - difference)
    with np.errstate(divide="ignore", invalid="ignore"):
        t = np.where(half > 0, np.abs(difference) / half * stats.t.ppf(0.975, fewest - 1), np.inf)
    known = np.isfinite(fewest)
    ways = comb(np.where(known, n + other_n, 4), np.where(known, n, 2))
    least = np.where(known, 2 / ways, 0.0)
    p = np.minimum(np.maximum(2 * stats.t.sf(np.where(difference == 0, 0.0, t), fewest - 1), least), 1.0)
    return np.where(np.isnan(half), np.nan, p)


def _first_column(parts: Sequence[pd.DataFrame]) -> pd.DataFrame:
    table = pd.concat(parts, ignore_index=True)
    return table.reindex(columns=["analysis", *(name for name in table.columns if name != "analysis")])


def _model(run: RunFolder) -> str:
    return str(run.model.get("name") or run.path.name)


def _head_name(head: tuple[str, int, int]) -> str:
    return f"L{head[1]}H{head[2]} of {head[0]}"


def _said(value: Any) -> str:
    """The value of a setting in words; a list as its flag takes it."""
    if value is None:
        return "not given"
    if isinstance(value, bool):
        return "on" if value else "off"
    if isinstance(value, (list, tuple)):
        return " ".join(map(str, value)) or "given without a value"
    return str(value)
