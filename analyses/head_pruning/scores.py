"""How heads are scored without ablating them: importance, estimates of ablation, weight norms."""

from dataclasses import dataclass

import numpy as np
import pandas as pd
from jaxtyping import Float
from numpy.typing import NDArray

from analyses.head_pruning.config import Config
from analyses.head_pruning.inputs import Data, Inputs
from interp import HookedModel
from interp.ablation import replacements
from interp.errors import UserError
from interp.importance import GateGradients, gate_gradients, integrated, seen_less, weight_norm
from interp.replacements import Kind
from interp.results import Workspace
from interp.statistics import mean_interval

#: Estimates of an ablation, and what they put in the head's place.
ESTIMATES: dict[str, Kind] = {
    "first_order_zero": "zero", "first_order_resample": "resample", "integrated_zero": "zero",
}  # fmt: skip

Samples = Float[NDArray[np.float64], "sequence head"]


@dataclass(frozen=True, eq=False)
class Scores:
    """Scores of every head in every sequence of the scoring part.

    Attributes:
        heads: site, layer, head, in order of execution.
        derivative: by data (text, …), |∂L/∂ξ|, scaled where a site has few active positions.
        estimates: by name, signed estimates of what an ablation changes.
        weight_norm: of the heads; NaN where the weights are not known.
        units: by data, which sequences count as one.
    """

    heads: pd.DataFrame
    derivative: dict[str, Samples]
    estimates: dict[str, Samples]
    weight_norm: NDArray[np.float64]
    units: dict[str, NDArray[np.int64]]

    def importance(self, data: str, rows: NDArray[np.intp] | None = None) -> NDArray[np.float64]:
        """Michel's importance: the mean over sequences, or some of them, normalised by site."""
        derivative = self.derivative[data]
        return self.normalised(derivative.mean(0) if rows is None else derivative[rows].mean(0))

    def normalised(self, values: NDArray[np.float64]) -> NDArray[np.float64]:
        """Values of all heads, divided by the ℓ2 norm over those of a site."""
        sites = pd.factorize(self.heads["site"])[0]
        size = np.sqrt(np.bincount(sites, weights=values**2))[sites]
        return np.divide(values, size, out=np.zeros_like(values), where=size > 0)


def score(model: HookedModel, given: Inputs, config: Config, work: Workspace) -> Scores:
    """All scores of all heads."""
    heads = pd.DataFrame(
        [(site.name, site.layer, head) for site in model.sites for head in range(site.n_heads)],
        columns=pd.Index(["site", "layer", "head"]),
    )
    first = work.step("importance", lambda: {"samples": _of_first(model, given.first, config, work)})["samples"]
    tables = [first]
    if given.second is not None:
        second = given.second
        tables.append(work.step("importance-second", lambda: {"samples": _of_second(model, second, config)})["samples"])
    estimates = work.step("integrated", lambda: {"samples": _integrated(model, given.first, config, work)})["samples"]
    norms = work.step("weight-norm", lambda: {"norms": _norms(model, heads, work)})["norms"]
    derivative = {str(t["data"].iloc[0]): _wide(t, "scaled") for t in tables}
    columns = [name for name in ESTIMATES if name in first]
    found = {name: _wide(first, name) for name in columns} | {"integrated_zero": _wide(estimates, "integrated_zero")}
    units = {given.first.name: given.first.units(given.first.scored_on)}
    if given.second is not None:
        every = np.arange(len(given.second.sequences))
        units[given.second.name] = given.second.units(every)
    return Scores(heads, derivative, found, norms["weight_norm"].to_numpy(), units)


def _of_first(model: HookedModel, data: Data, config: Config, work: Workspace) -> pd.DataFrame:
    batches = data.batches(model, data.scored_on, config)
    zero = gate_gradients(model, batches, data.measure.scored)
    table = _long(zero, data.name).assign(first_order_zero=-zero.gradient.ravel())
    if any(site.source == "softmax" for site in model.sites):
        work.skip(
            "estimates of resample ablation", "the model computes its own attention, whose outputs are out of reach"
        )
        return table
    others = data.batches(model, data.reported_on, config)
    put_in = replacements(model, batches, "resample", others)
    resampled = gate_gradients(model, batches, data.measure.scored, put_in)
    return table.assign(first_order_resample=-resampled.gradient.ravel())


def _of_second(model: HookedModel, data: Data, config: Config) -> pd.DataFrame:
    every = np.arange(len(data.sequences))
    return _long(gate_gradients(model, data.batches(model, every, config), data.measure.scored), data.name)


def _integrated(model: HookedModel, data: Data, config: Config, work: Workspace) -> pd.DataFrame:
    batches = data.batches(model, data.scored_on, config)
    found = integrated(model, batches, data.measure.scored, steps=config.integral_steps, watch=work.progress)
    n, n_heads = found.shape
    return pd.DataFrame(
        {"sequence": np.repeat(np.arange(n), n_heads), "number": np.tile(np.arange(n_heads), n),
         "integrated_zero": found.ravel()}
    )  # fmt: skip


def _norms(model: HookedModel, heads: pd.DataFrame, work: Workspace) -> pd.DataFrame:
    try:
        return weight_norm(model)
    except UserError as reason:
        work.skip("weight norms", str(reason))
        return heads.assign(weight_norm=np.nan)


def _long(found: GateGradients, data: str) -> pd.DataFrame:
    n, n_heads = found.gradient.shape
    scaled = np.abs(found.gradient) * seen_less(found.active)
    return pd.DataFrame(
        {"data": data, "sequence": np.repeat(np.arange(n), n_heads), "number": np.tile(np.arange(n_heads), n),
         "gradient": found.gradient.ravel(), "scaled": scaled.ravel(), "active": found.active.ravel()}
    )  # fmt: skip


def _wide(table: pd.DataFrame, column: str) -> Samples:
    return table.pivot(index="sequence", columns="number", values=column).to_numpy()


# The table heads ------------------------------------------------------------------------------------------------------


def heads_table(scores: Scores, config: Config) -> pd.DataFrame:
    """Rows of ``heads`` for all scores; importance has the interval of its derivative, scaled as the mean is.

    Chance of importance is what each head of a site has where all are alike, 1/√(heads of the site).
    """
    parts = []
    sizes = scores.heads.groupby("site", sort=False)["head"].transform("size").to_numpy()
    for data, samples in scores.derivative.items():
        mean = mean_interval(samples, scores.units[data], bounds=(0.0, np.inf), seed=config.seed)
        value = scores.normalised(mean.value)
        factor = np.divide(value, mean.value, out=np.zeros_like(value), where=mean.value > 0)
        ends = (mean.low * factor, np.minimum(mean.high * factor, 1.0))  # normalised by layer, no head exceeds 1
        parts.append(_rows(scores, "importance", data, value, *ends, 1 / np.sqrt(sizes), mean.n))
    first = next(iter(scores.derivative))
    for name, samples in scores.estimates.items():
        mean = mean_interval(samples, scores.units[first], seed=config.seed)
        parts.append(_rows(scores, name, first, mean.value, mean.low, mean.high, 0.0, mean.n))
    parts.append(_rows(scores, "weight_norm", "weights", scores.weight_norm, np.nan, np.nan, np.nan, 0))
    return pd.concat(parts, ignore_index=True)


def _rows(
    scores: Scores, metric: str, data: str, value: NDArray[np.float64], low: object, high: object, chance: object,
    n: object,
) -> pd.DataFrame:  # fmt: skip
    return scores.heads.assign(
        metric=metric, data=data, value=value, ci_low=low, ci_high=high, chance=chance, p_corrected=np.nan, n=n,
        note=np.where(np.isnan(value), "not applicable: the projections of this attention module are not known", ""),
    )  # fmt: skip
