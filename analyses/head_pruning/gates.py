"""Voita et al.'s learned gates: which heads stay where each open gate costs λ.

A gate is a hard-concrete variable (Louizos et al. 2018): s = σ((log u − log(1 − u) + log a) / β), stretched to (γ, ζ)
and clipped to [0, 1]. Training minimises L + λ Σ P(open), P(open) = σ(log a − β log(−γ/ζ)), from the converged model,
with λ raised step by step. At test time a gate is the clipped, stretched σ(log a), without noise or temperature.
"""

import contextlib
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import pandas as pd
import torch
from jaxtyping import Float
from numpy.typing import NDArray
from torch import Tensor

from analyses.head_pruning.config import Config
from analyses.head_pruning.effects import Head
from analyses.head_pruning.inputs import Data, is_cheap
from analyses.head_pruning.metrics import values_under
from analyses.head_pruning.scores import Scores
from interp import HookedModel
from interp.ablation import Batch, Metric
from interp.attention.edits import GateHeads
from interp.results import Workspace
from interp.results.tables import empty_table
from interp.statistics import mean_interval

BETA, LOW, HIGH = 0.33, -0.1, 1.1  # Voita's temperature and stretch
_EPSILON = 1e-6
START = 2.0  # of log a: P(open) is 0.94

GATES = {"penalty": float, "site": str, "layer": int, "head": int, "log_alpha": float, "p_open": float, "gate": float}
PATH = {
    "penalty": float, "weights": str, "kept": int, "share_pruned": float, "loss": float, "change": float,
    "ci_low": float, "ci_high": float, "n": int, "steps": int,
}  # fmt: skip


def p_open(log_alpha: Float[Tensor, "..."]) -> Float[Tensor, "..."]:
    """The probability that a gate is not 0."""
    return torch.sigmoid(log_alpha - BETA * np.log(-LOW / HIGH))


def sampled(log_alpha: Float[Tensor, "..."], generator: torch.Generator) -> Float[Tensor, "..."]:
    """Gates drawn from their distribution, in [0, 1]; differentiable where not clipped."""
    u = torch.rand(log_alpha.shape, generator=generator).clamp(_EPSILON, 1 - _EPSILON).to(log_alpha)
    s = torch.sigmoid((u.log() - (1 - u).log() + log_alpha) / BETA)
    return (s * (HIGH - LOW) + LOW).clamp(0, 1)


def at_test(log_alpha: Float[Tensor, "..."]) -> Float[Tensor, "..."]:
    """The deterministic gates of a trained model."""
    return (torch.sigmoid(log_alpha) * (HIGH - LOW) + LOW).clamp(0, 1)


def tables(model: HookedModel, data: Data, scores: Scores, config: Config, work: Workspace) -> dict[str, pd.DataFrame]:
    """The tables ``gates`` (each head at each λ) and ``gates_path`` (heads kept, the metric on the reported part)."""
    if not config.is_full and not is_cheap(model):
        work.skip("learned gates", "budget is report")
        return {"gates": empty_table(GATES), "gates_path": empty_table(PATH)}
    reported = data.batches(model, data.reported_on, config)
    untouched = values_under(model, reported, data.measure.metric, {})
    start = np.full(len(scores.heads), START, np.float32)

    def path(penalties: Sequence[float], start: NDArray[np.float32]) -> dict[str, pd.DataFrame]:
        parts = []
        with _weights_put_back(model, config.weight_rate > 0):
            for penalty in work.progress(penalties, "penalties"):
                parts.append(_trained(model, data, scores, untouched, penalty, start, config))
                start = parts[-1]["gates"]["log_alpha"].to_numpy(np.float32)
        return {name: pd.concat([part[name] for part in parts], ignore_index=True) for name in parts[0]}

    penalties = sorted(config.gate_penalties)
    if config.weight_rate > 0:  # trained weights are not kept, so that the path cannot be taken up in the middle
        return work.step("gates", lambda: path(penalties, start))
    found = []
    for number, penalty in enumerate(penalties):
        found.append(work.step(f"gates-{number}", lambda p=penalty, a=start: path([p], a)))
        start = found[-1]["gates"]["log_alpha"].to_numpy(np.float32)
    return {name: pd.concat([part[name] for part in found], ignore_index=True) for name in found[0]}


def _trained(
    model: HookedModel, data: Data, scores: Scores, untouched: NDArray[np.float64], penalty: float,
    start: NDArray[np.float32], config: Config,
) -> dict[str, pd.DataFrame]:  # fmt: skip
    """Both tables at one λ, from gates that stand at ``start`` (log a)."""
    heads: list[Head] = list(zip(scores.heads["site"], scores.heads["head"].astype(int), strict=True))
    scored, reported = (data.batches(model, rows, config) for rows in (data.scored_on, data.reported_on))
    log_alpha = torch.tensor(start, requires_grad=True)
    train(model, scored, data.measure.scored, heads, log_alpha, penalty, config)
    gate = at_test(log_alpha.detach())
    values = values_under(model, reported, data.measure.metric, dict(zip(heads, gate.tolist(), strict=True)))
    change = mean_interval(values - untouched, data.units(data.reported_on), seed=config.seed)
    kept = int((gate > 0).sum())
    gates: Any = scores.heads.assign(penalty=penalty, log_alpha=log_alpha.detach().numpy(),
                                     p_open=p_open(log_alpha.detach()).numpy(), gate=gate.numpy())  # fmt: skip
    path = pd.DataFrame([
        {"penalty": penalty, "weights": "trained" if config.weight_rate > 0 else "frozen", "kept": kept,
         "share_pruned": 1 - kept / len(heads), "loss": float(values.mean()), "change": float(change.value),
         "ci_low": float(change.low), "ci_high": float(change.high), "n": int(change.n), "steps": config.gate_steps}
    ])  # fmt: skip
    return {"gates": gates[list(GATES)], "gates_path": path}


def train(
    model: HookedModel, batches: Sequence[Batch], metric: Metric, heads: Sequence[Head], log_alpha: Tensor,
    penalty: float, config: Config,
) -> None:  # fmt: skip
    """Train gates, and weights where they have a rate, for some steps on some batches in turn, in place.

    ``config``: ``gate_steps, gate_rate, weight_rate, seed`` of it.
    """
    generator = torch.Generator().manual_seed(config.seed)
    groups = [{"params": [log_alpha], "lr": config.gate_rate}]
    if config.weight_rate > 0:
        groups.append({"params": list(model.module.parameters()), "lr": config.weight_rate})
    optimiser = torch.optim.Adam(groups)
    for step in range(config.gate_steps):
        gate = sampled(log_alpha, generator).to(model.device)
        with torch.enable_grad(), model.edit(GateHeads(dict(zip(heads, gate, strict=True)))):
            loss = metric(model, {**batches[step % len(batches)], "grad": True}).mean()
            objective = loss + penalty * p_open(log_alpha).sum().to(loss.device)
            if config.weight_rate > 0:
                optimiser.zero_grad()
                objective.backward()
            else:
                (log_alpha.grad,) = torch.autograd.grad(objective, [log_alpha])
        optimiser.step()


@contextlib.contextmanager
def _weights_put_back(model: HookedModel, trained: bool) -> Iterator[None]:
    before = {name: p.detach().clone() for name, p in model.module.named_parameters()} if trained else {}
    try:
        yield
    finally:
        with torch.no_grad():
            for name, parameter in model.module.named_parameters():
                if name in before:
                    parameter.copy_(before[name])
                    parameter.grad = None
