"""What heads are worth to a text classifier: the quantities of Michel et al. and of Voita et al., step by step.

Heads are scored, chosen and gated on one set of labelled texts and reported on another. Every step is kept on disk.
"""

import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import torch
from jaxtyping import Float
from numpy.typing import NDArray

from analyses.head_pruning import gates
from analyses.head_pruning.config import SHARES
from analyses.head_pruning.config import Config as Settings
from analyses.head_pruning.effects import Head
from analyses.head_pruning.labelled import Labelled
from analyses.head_pruning.metrics import values_under
from interp import HookedModel
from interp.ablation import Metric, ablation_effects, all_but_one
from interp.importance import michel
from interp.models.pruning import kept_after, prune
from interp.models.pruning.cost import measure_times, ratios
from interp.results import Workspace
from interp.results.tables import empty_table

BATCH_SIZES = (1, 64)
Samples = Float[NDArray[np.float64], "set text"]


@dataclass(frozen=True, eq=False)
class Measured:
    """What was found; samples are changes from the whole model, a column a text.

    Attributes:
        heads: in order of execution.
        errors: of the whole model on the reported texts, 1 where it is wrong.
        singles: change of the loss without each head, on the texts of both files.
        curves: by order (importance, exact), change of the errors at each share of ``SHARES`` but 0.
        alone: by layer, change of the errors with its best head alone.
        gates: ``penalty, head`` (number), ``gate``; ``gated``: by λ, change of the errors.
        times: as `interp.models.pruning.cost.ratios` gives them, with half of the heads cut out; ``length`` in tokens.
    """

    heads: list[Head]
    errors: Float[NDArray[np.float64], " text"]
    singles: dict[str, Samples]
    curves: dict[str, Samples]
    alone: dict[str, Float[NDArray[np.float64], " text"]]
    gates: pd.DataFrame
    gated: Samples
    times: pd.DataFrame


def measure(
    model: HookedModel, scored: Labelled, reported: Labelled, steps: Path, *, penalties: Sequence[float],
    gate_steps: int, rounds: int, seed: int,
) -> Measured:  # fmt: skip
    """Everything, from disk where ``steps`` has it. Says on standard error how far it is."""
    heads: list[Head] = [(site.name, head) for site in model.sites for head in range(site.n_heads)]
    files = {"scored": scored, "reported": reported}
    jobs = _Jobs(Workspace(steps), _total(model, scored, len(penalties), gate_steps))
    importance = jobs.done("importance", 3.0, lambda: {"found": michel(model, scored.batches, scored.loss)})["found"]
    errors = jobs.values("whole", 1.0, lambda: values_under(model, reported.batches, reported.errors, {})[None])[0]
    singles: dict[str, list[Samples]] = {name: [] for name in files}
    kept: dict[str, Sequence[Head]] = {}
    for name, texts in files.items():
        for site in model.sites:
            mine = [[(site.name, head)] for head in range(site.n_heads)]
            others = {head: gone for head, gone in all_but_one(model).items() if head[0] == site.name}
            sets = [*mine, *(others.values() if name == "scored" else ())]
            cost = len(sets) * _after(model, site.name)
            found = jobs.values(
                f"single-{name}-{site.name}", cost, lambda s=sets, t=texts: _changes(model, t, t.loss, s)
            )
            singles[name].append(found[: len(mine)])
            if name == "scored" and others:
                kept[site.name] = list(others.values())[int(found[len(mine) :].mean(1).argmin())]
    by_file = {name: np.concatenate(parts) for name, parts in singles.items()}
    scores = {"importance": importance["importance"].to_numpy(), "exact": by_file["scored"].mean(1)}
    orders = {name: [heads[i] for i in np.argsort(score, kind="stable")] for name, score in scores.items()}
    curves = {
        name: jobs.values(f"curve-{name}", len(SHARES) - 1, lambda o=order: _curve(model, reported, o))
        for name, order in orders.items()
    }
    alone = {
        site: jobs.values(f"alone-{site}", _after(model, site),
                          lambda g=gone: _changes(model, reported, reported.errors, [g]))[0]
        for site, gone in kept.items()
    }  # fmt: skip
    gate, gated = _gates(model, scored, reported, heads, errors, jobs, penalties, gate_steps, seed)
    half = orders["importance"][: len(heads) // 2]
    length = max(1, round(reported.n_tokens / len(errors)))
    times = jobs.done("times", 0.0, lambda: {"times": _times(model, half, length, rounds, seed)})["times"]
    return Measured(heads, errors, by_file, curves, alone, gate, gated, times)


class _Jobs:
    """Steps that say how far all of it is. Cost is in forward passes over all texts of a file."""

    def __init__(self, work: Workspace, total: float) -> None:
        self._work, self._left = work, total
        self._spent, self._paid = 0.0, 0.0

    def done(self, name: str, cost: float, compute: Callable[[], dict[str, pd.DataFrame]]) -> dict[str, pd.DataFrame]:
        began, computed = time.monotonic(), []

        def now() -> dict[str, pd.DataFrame]:
            computed.append(name)
            return compute()

        found = self._work.step(name, now)
        self._left -= cost
        if computed and cost:
            self._spent, self._paid = self._spent + time.monotonic() - began, self._paid + cost
            left = self._spent / self._paid * max(self._left, 0.0) / 60
            sys.stderr.write(f"{name} is finished; about {left:.0f} min left\n")
            sys.stderr.flush()
        return found

    def values(self, name: str, cost: float, compute: Callable[[], Samples]) -> Samples:
        """A step that is one array."""
        found = self.done(name, cost, lambda: {"values": pd.DataFrame(compute()).rename(columns=str)})
        return found["values"].to_numpy(float)


def _total(model: HookedModel, scored: Labelled, n_penalties: int, gate_steps: int) -> float:
    """Cost of everything."""
    by_site = sum(site.n_heads * _after(model, site.name) for site in model.sites)
    several = sum(site.n_heads * _after(model, site.name) for site in model.sites if site.n_heads > 1)
    alone = sum(_after(model, site.name) for site in model.sites if site.n_heads > 1)
    return 4 + 2 * by_site + several + alone + 2 * (len(SHARES) - 1) + n_penalties * _gate_cost(scored, gate_steps)


def _after(model: HookedModel, site: str) -> float:
    """Share of a forward pass that is left where the layers before a site are not computed again."""
    names = [each.name for each in model.sites]
    return 1 - names.index(site) / len(names)


def _gate_cost(scored: Labelled, gate_steps: int) -> float:
    return 1 + 3 * gate_steps / len(scored.batches)


def _changes(model: HookedModel, texts: Labelled, metric: Metric, sets: Sequence[Sequence[Head]]) -> Samples:
    return ablation_effects(model, texts.batches, metric, sets, replay=True).change[0]


def _curve(model: HookedModel, texts: Labelled, order: Sequence[Head]) -> Samples:
    sets = [order[: round(share * len(order))] for share in SHARES[1:]]
    return ablation_effects(model, texts.batches, texts.errors, sets).change[0]


def _gates(
    model: HookedModel, scored: Labelled, reported: Labelled, heads: list[Head], errors: NDArray[np.float64],
    jobs: _Jobs, penalties: Sequence[float], gate_steps: int, seed: int,
) -> tuple[pd.DataFrame, Samples]:  # fmt: skip
    """Learned gates at each λ, each from the one before, and the change of the errors under them."""
    settings = Settings(gate_steps=gate_steps, seed=seed)
    order = np.random.default_rng(seed).permutation(len(scored.batches))  # batches are sorted by length
    batches = [scored.batches[i] for i in order]
    log_alpha = np.full(len(heads), gates.START)
    parts, changes = [], []

    def trained(penalty: float, start: NDArray[np.float64]) -> dict[str, pd.DataFrame]:
        moved = torch.tensor(start, dtype=torch.float32, requires_grad=True)
        gates.train(model, batches, scored.loss, heads, moved, penalty, settings)
        gate = gates.at_test(moved.detach())
        given = dict(zip(heads, gate.tolist(), strict=True))
        change = values_under(model, reported.batches, reported.errors, given) - errors
        found = pd.DataFrame({"log_alpha": moved.detach().numpy(), "gate": gate.numpy()})
        return {"gates": found, "change": pd.DataFrame({"change": change})}

    for number, penalty in enumerate(sorted(penalties)):
        cost = _gate_cost(scored, gate_steps)
        found = jobs.done(f"gates-{number}", cost, lambda p=penalty, start=log_alpha: trained(p, start))
        log_alpha = found["gates"]["log_alpha"].to_numpy(float)
        parts.append(found["gates"].assign(penalty=penalty, head=range(len(heads))))
        changes.append(found["change"]["change"].to_numpy(float))
    return pd.concat(parts, ignore_index=True), np.array(changes)


def _times(model: HookedModel, going: Sequence[Head], length: int, rounds: int, seed: int) -> pd.DataFrame:
    """Time of the pruned and of the masked model over that of the unpruned one."""
    columns = ["phase", "batch_size", "length", "variant", "ratio", "ci_low", "ci_high", "n"]
    if not rounds:
        return empty_table(dict.fromkeys(columns, float))
    pruned: Any = prune(model, kept_after(model, going))
    found = measure_times(model, pruned, batch_sizes=BATCH_SIZES, lengths=(length,), new_tokens=0, rounds=rounds,
                          seed=seed)  # fmt: skip
    made: Any = ratios(found, "cpu_seconds" if model.device.type == "cpu" else "seconds")[columns]
    return made
