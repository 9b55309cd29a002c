"""What the softmax is fed and what it gives: saturation, width of the scores, overflow, collapse of entropy."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar, NamedTuple

import numpy as np
import pandas as pd
import torch
from torch import Tensor

from analyses.model_health.checks import Row
from analyses.model_health.config import CHECKS, SATURATED, UNSCALED, Config
from analyses.model_health.subject import Subject, heads_of
from interp.attention.probes import Probe, RowMean
from interp.attention.probes.base import Measured
from interp.attention.rows import Rows, SiteShape
from interp.statistics import mean_interval

__all__ = [
    "METRICS",
    "Measurements",
    "SoftmaxRows",
    "distance",
    "heads",
    "jacobian_norm",
    "known_mean",
    "measure",
    "rows",
    "told_by_position",
]

METRICS = ("max_weight", "saturated_rows", "entropy", "relative_entropy", "score_deviation", "softmax_jacobian")
"""What is read off every pattern row that may read at least two keys."""
_BOUNDS = {"max_weight": (0, 1), "saturated_rows": (0, 1), "relative_entropy": (0, 1 + 1e-6)}
_FLOAT16_LARGEST = 65504.0


def jacobian_norm(pattern: Tensor) -> Tensor:
    """‖diag(σ) − σσᵀ‖_F of the rows [..., key] of a pattern, in [0, √½], from O(key) sums.

    The square is Σ_i σ_i²(1 − σ_i)² + Σ_{i≠j} σ_i²σ_j². The largest weight m is taken apart and 1 − m summed from the
    others, so that a row on one key keeps its digits: for (1 − ε, ε) the norm is 2ε(1 − ε).
    """
    pattern = pattern.double()
    m, at = pattern.max(-1, keepdim=True)
    rest = pattern.scatter(-1, at, 0.0)
    m, left = m[..., 0], rest.sum(-1)
    squares = rest.square()
    total = squares.sum(-1)
    diagonal = m.square() * left.square() + (squares * (1 - rest).square()).sum(-1)
    beside = 2 * m.square() * total + (total.square() - squares.square().sum(-1)).clamp_min(0)
    return (diagonal + beside).sqrt()


@dataclass(frozen=True, eq=False)
class SoftmaxRows(RowMean):
    """:data:`METRICS` of every row, read off the pattern alone, so that it works where a model builds its own.

    Scores are known up to a constant of each row from ln p, which the standard deviation does not see. It is taken
    over the permitted keys; weights below float32's smallest count as that.
    """

    def axes(self) -> tuple[tuple[str, Sequence[object]], ...]:
        """One label a metric."""
        return (("metric", METRICS),)

    def measure(self, rows: Rows) -> tuple[Tensor, Tensor]:
        """The metrics [batch, head, row, metric]; eligible are rows with two keys or more."""
        pattern, allowed = rows.pattern.double(), rows.allowed
        n = rows.n_allowed
        mass = pattern.sum(-1, keepdim=True).clamp_min(1e-30)
        kept = pattern / mass  # without a sink's share, as for the scores of the keys
        logs = kept.clamp_min(float(np.finfo(np.float32).tiny)).log()
        logs = torch.where(allowed, logs, 0.0)
        mean = logs.sum(-1) / n.clamp_min(1)
        deviation = (torch.where(allowed, logs - mean[..., None], 0.0).square().sum(-1) / n.clamp_min(1)).sqrt()
        entropy = torch.special.entr(pattern).sum(-1)
        most = rows.max_weight.double()
        relative = torch.special.entr(kept).sum(-1) / n.clamp_min(2).log()
        values = [most, (most > SATURATED).double(), entropy, relative, deviation, jacobian_norm(pattern)]
        return torch.stack(values, -1), (n >= 2)[..., None].expand(*n.shape, len(METRICS))


@dataclass(frozen=True, eq=False)
class LargestScore(Probe):
    """Largest |score| of each head, of permitted keys, before the softmax: [batch, head]; NaN where it is not seen."""

    needs: ClassVar[frozenset[str]] = frozenset({"scores"})

    def start(self, shape: SiteShape) -> Tensor:
        """Nothing seen yet."""
        return torch.full((shape.batch, shape.n_heads), torch.nan, dtype=torch.float64, device=shape.device)

    def update(self, state: Tensor, rows: Rows) -> None:
        """A block's largest."""
        if rows.scores is not None:
            allowed = rows.readable & torch.ones_like(rows.scores, dtype=torch.bool)
            largest = rows.scores.abs().masked_fill(~allowed, 0.0).amax((-1, -2)).double()
            state.copy_(torch.fmax(state, largest))

    def finish(self, state: Tensor) -> Measured:
        """The largest."""
        return Measured(state, torch.ones_like(state))


@dataclass(frozen=True, eq=False)
class FromUniform(RowMean):
    """Total variation distance of a row from uniform attention over its permitted keys: ½ Σ |p − 1/n|, in [0, 1)."""

    def measure(self, rows: Rows) -> tuple[Tensor, Tensor]:
        """The distances; eligible are rows with two keys or more."""
        uniform = rows.allowed.to(rows.pattern.dtype) / rows.n_allowed.clamp_min(1)[..., None]
        return (rows.pattern - uniform).abs().sum(-1) / 2, rows.n_allowed >= 2


class HeadScores(NamedTuple):
    """One site's readings: values [sequence, head, metric] and largest |score| [sequence, head]."""

    site: str
    layer: int
    d_head: int
    scale: float | None
    n_keys: int
    values: np.ndarray
    largest: np.ndarray
    chance: np.ndarray


Measurements = Sequence[HeadScores]


def measure(subject: Subject) -> Measurements:
    """One pass over the subject's input that reads every head."""
    softmax, largest = SoftmaxRows(), LargestScore()
    linear = getattr(subject.model.config, "attention", "softmax") in ("elu", "performer")
    with torch.no_grad():
        run = subject.run(probes=[softmax, largest], keep=() if subject.dense or linear else ("qk",))
    top, chance = run.readings(largest), run.chance(softmax)
    found = []
    for site, values in heads_of(run, run.readings(softmax)):
        trace = run.traces.get(site.name)
        found.append(
            HeadScores(
                site.name, site.layer, site.d_head, None if trace is None else float(trace.scale),
                run.masks[site.name][1].n_keys, values.cpu().numpy(), top[site.name].values.cpu().numpy(),
                chance[site.name].mean(0).expand_as(values[0]).cpu().numpy(),
            )
        )  # fmt: skip
    return found


def distance(subject: Subject) -> dict[str, np.ndarray]:
    """By site, the distance from uniform attention [sequence, head] where every token is the same: what is left is
    what attention makes of positions alone."""
    if subject.no_positions or subject.position_dim is None:
        return {}
    first = subject.input.narrow(subject.position_dim, 0, 1)
    given = subject.having(first.expand_as(subject.input).contiguous())
    probe = FromUniform()
    with torch.no_grad():
        run = subject.run(given, probes=[probe])
    return {site.name: values.cpu().numpy() for site, values in heads_of(run, run.readings(probe))}


def told_by_position(subject: Subject, told: Mapping[str, np.ndarray]) -> Row:
    """The head that position alone moves farthest from uniform attention."""
    check = CHECKS["told_by_position"]
    found = [
        (float(value), site, head)
        for site, values in told.items()
        for head, value in enumerate(known_mean(values))
        if value == value
    ]
    if not found:
        return check.not_applicable(subject.no_positions or "no row of attention may read more than one key")
    value, site, head = max(found)
    note = f"the largest of {len(found)} heads, on a sequence of one token over and over; 0: distance is not told"
    return check.judge(value, (site, subject.model.site(site).layer, head), note)


def heads(measured: Measurements, told: Mapping[str, np.ndarray], data: str, seed: int) -> pd.DataFrame:
    """The table ``heads``: every metric of every head, with an interval over sequences."""
    parts = []
    for site in measured:
        columns = {name: (site.values[..., i], site.chance[..., i]) for i, name in enumerate(METRICS)}
        if site.site in told:
            columns["told_by_position"] = (told[site.site], np.zeros(site.values.shape[1]))
        for name, (values, chance) in columns.items():
            ends = mean_interval(np.clip(values, None, 1e30), seed=seed)
            low, high = _BOUNDS.get(name, (0, np.inf))
            parts.append(
                pd.DataFrame(
                    {
                        "site": site.site,
                        "layer": site.layer,
                        "head": range(values.shape[1]),
                        "metric": name,
                        "data": data,
                        "value": ends.value,
                        "ci_low": np.clip(ends.low, low, high),
                        "ci_high": np.clip(ends.high, low, high),
                        "chance": chance,
                        "p_corrected": np.nan,
                        "n": ends.n.astype(float),
                        "note": np.where(np.isnan(ends.value), "no row may read more than one key", ""),
                    }
                )
            )
    return pd.concat(parts, ignore_index=True)


def rows(subject: Subject, measured: Measurements, config: Config) -> list[Row]:
    """The checks of scores and softmax."""
    found = [site for site in measured if np.isfinite(_of(site, "score_deviation")).any()]
    if not found:
        reason = "no row of attention may read more than one key"
        return [check.not_applicable(reason) for check in CHECKS.values() if check.family == "softmax"]
    return [
        _saturated(found), _deviation(found), _exponent(found), _jacobian(found, subject), _collapse(found),
        _largest(found, subject),
    ]  # fmt: skip


def _of(site: HeadScores, metric: str) -> np.ndarray:
    """A metric's mean over sequences, [head]."""
    return known_mean(site.values[..., METRICS.index(metric)])


def known_mean(values: np.ndarray) -> np.ndarray:
    """The mean over sequences of those that have a value; NaN where none has."""
    known = np.isfinite(values)
    return np.where(known, values, 0).sum(0) / np.where(known.any(0), known.sum(0), np.nan)


def _typical(site: HeadScores, metric: str, of: Callable[[np.ndarray], np.floating] = np.mean) -> float:
    """A metric's mean (or median) over the site's heads that have a value; NaN where none has."""
    values = _of(site, metric)
    values = values[np.isfinite(values)]
    return float(of(values)) if len(values) else math.nan


def _saturated(measured: Measurements) -> Row:
    shares = np.concatenate([_of(site, "saturated_rows") for site in measured])
    many = int((shares > 0.5).sum())
    note = f"in {many} of {len(shares)} heads more than half of the rows"
    return CHECKS["saturated_rows"].judge(float(np.nanmean(shares)), note=note)


def _deviation(measured: Measurements) -> Row:
    """The site whose heads' scores are widest (their median) against where a softmax over so many keys freezes."""
    widths = [_typical(site, "score_deviation", np.median) for site in measured]
    limits = [_widest(site) for site in measured]
    at = int(np.nanargmax(np.array(widths) / np.array(limits)))
    site, limit = measured[at], limits[at]
    used = _exponent_in_use(site)
    note = f"median of the site's heads; random scores over {site.n_keys} keys freeze at √(2 ln {site.n_keys}) = "
    scaled = "how q·k is scaled is out of sight" if used is None else f"q·k is divided by d_head^{used:.2f}"
    note += f"{_freezing(site):.1f}; {scaled}, so that it warns at {limit:.1f}"
    return CHECKS["score_deviation"].judge(
        widths[at], (site.site, site.layer, None), note, warn_at=limit, fail_at=2 * limit
    )


def _freezing(site: HeadScores) -> float:
    """The standard deviation above which a softmax over n independent Gaussian scores has its mass on a few keys
    whatever they hold: the freezing of the random energy model, √(2 ln n) (Derrida 1981)."""
    return math.sqrt(2 * math.log(max(site.n_keys, 3)))


def _widest(site: HeadScores) -> float:
    """Where scores are too wide: at the freezing where they are seen not to be scaled by d_head, which random queries
    and keys need. Trained heads have structure, and are wide without being frozen: three times as wide there."""
    used = _exponent_in_use(site)
    return _freezing(site) * (1 if used is not None and used < UNSCALED else 3)


def _exponent_in_use(site: HeadScores) -> float | None:
    """α of the scale d_head^−α that a site applies; None where that is not seen."""
    return None if site.scale is None or site.d_head < 2 else 0.0 - math.log(site.scale) / math.log(site.d_head)


def _exponent(measured: Measurements) -> Row:
    """α of the site whose heads' median is lowest: d_head^(½ − α) is the deviation of its scores."""
    check = CHECKS["effective_exponent"]
    known = [site for site in measured if site.d_head > 1]
    if not known:
        return check.not_applicable("d_head is not seen where a model computes its own attention")
    exponents = [
        0.5 - math.log(max(_typical(site, "score_deviation", np.median), 1e-12)) / math.log(site.d_head)
        for site in known
    ]
    at = int(np.argmin(exponents))
    site = known[at]
    used = _exponent_in_use(site)
    told = "" if used is None else f"; in use is {used:.2f}"
    note = f"the lowest of {len(known)} sites, by the median of its heads; d_head is {site.d_head}{told}"
    return check.judge(exponents[at], (site.site, site.layer, None), note)


def _jacobian(measured: Measurements, subject: Subject) -> Row:
    norms = [(float(v), site, h) for site in measured for h, v in enumerate(_of(site, "softmax_jacobian")) if v == v]
    value, site, head = min(norms, key=lambda each: each[0])
    check = CHECKS["softmax_jacobian"]
    low = sum(norm < (check.warn_at or 0) for norm, _, _ in norms)
    note = f"the smallest of {len(norms)} heads; below the limit: {low}"
    return check.judge(value, (site.site, site.layer, head), note)


def _collapse(measured: Measurements) -> Row:
    means = [_typical(site, "relative_entropy") for site in measured]
    at = int(np.nanargmin(means))
    site = measured[at]
    return CHECKS["entropy_collapse"].judge(
        means[at], (site.site, site.layer, None), "mean over the site's heads, as a share of ln(permitted keys)"
    )


def _largest(measured: Measurements, subject: Subject) -> Row:
    """The largest q · k, before it is scaled: what a product in half precision has to hold."""
    check = CHECKS["largest_score"]
    seen = [site for site in measured if np.isfinite(site.largest).any()]
    if not seen:
        return check.not_applicable("scores are not seen where a model computes its own attention")
    products = [float(np.nanmax(site.largest)) / (site.scale or 1.0) for site in seen]
    at = int(np.argmax(products))
    site = seen[at]
    head = int(np.nanargmax(np.nanmax(site.largest, axis=0)))
    own = torch.finfo(subject.model.dtype).max
    dtype = str(subject.model.dtype).removeprefix("torch.")
    note = f"before scaling; float16 ends at {_FLOAT16_LARGEST:,.0f}, the model's {dtype} at {own:.3g}"
    return check.judge(products[at], (site.site, site.layer, head), note, fail_at=min(own, 1e37))
