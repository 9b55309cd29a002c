"""Which heads are looked at, and how much the model's loss depends on each (Michel et al. 2019)."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

import numpy as np
import pandas as pd
import torch
from jaxtyping import Float
from numpy.typing import NDArray
from torch import Tensor

from analyses.adversarial_attention.config import Config
from analyses.adversarial_attention.heads.continuations import distributions
from analyses.adversarial_attention.heads.inputs import Inputs
from interp import HookedModel
from interp.ablation import Batch, without_logits
from interp.attention.probes import SelectedRows
from interp.errors import UserError
from interp.importance import gate_gradients

__all__ = ["aside", "chosen", "importance", "mean_rows", "together"]

Head = tuple[str, int]

_NAME = re.compile(r"L(\d+)(?:H(\d+))?$")
_TOGETHER = 18  # heads at most whose changes are run together
_NEAR = 0.1  # of the model's layers, within which such heads lie: their passes begin at the first one's
_ASIDE = 48  # tokens of the sequences that importance and the mean pattern's effect are measured on


def aside(tokens: Tensor) -> Tensor:
    """The beginning of sequences that no row is changed in, which is enough of them."""
    return tokens[:, :_ASIDE]


def importance(model: HookedModel, given: Inputs) -> pd.DataFrame:
    """Michel's derivative |∂L/∂ξ| of every head's gate in each sequence that heads are chosen on.

    L is the next-token loss; of a model without one, that of its own likeliest answers.

    Returns:
        ``site, layer, head, sequence, importance`` in nats.
    """
    batches = [{"tokens": aside(sequence[None])} for sequence in given.choosing.tokens]
    found = gate_gradients(model, batches, _loss)
    named = found.heads.loc[:, ["site", "layer", "head"]]
    parts = [named.assign(sequence=i, importance=np.abs(row)) for i, row in enumerate(found.gradient)]
    return pd.concat(parts, ignore_index=True)


def _loss(model: HookedModel, batch: Batch) -> Float[Tensor, " sequence"]:
    logits = model.run(**batch).logits
    log_output = distributions(logits).clamp_min(1e-30).log()
    if model.is_causal and model.output_head_loaded and log_output.shape[1] == batch["tokens"].shape[1]:
        told = batch["tokens"][:, 1:, None].to(log_output.device)
        return -log_output[:, :-1].gather(-1, told).mean((1, 2))
    return -log_output.amax(-1).mean(1)


def chosen(model: HookedModel, table: pd.DataFrame, config: Config) -> list[Head]:
    """The heads that the settings name, in order of execution.

    Raises:
        UserError: a name that is none, or that the model does not have.
    """
    everything = [(site.name, head) for site in model.sites for head in range(site.n_heads)]
    if config.heads == "all" or (config.heads == "top" and config.n_top is None):
        return everything
    if config.heads == "top":
        mean: Any = table.groupby(["site", "head"], sort=False)["importance"].mean()
        strongest = mean.sort_values(ascending=False, kind="stable").index[: config.n_top].tolist()
        return [head for head in everything if head in strongest]
    named: set[Head] = set()
    for name in config.heads.replace(",", " ").split():
        named |= _named(model, name)
    return [head for head in everything if head in named]


def _named(model: HookedModel, name: str) -> set[Head]:
    if (found := _NAME.match(name)) is None:
        raise UserError(f"heads are named as L5H1, whole layers as L5, or top or all; got {name!r}")
    layer, head = int(found[1]), found[2]
    sites = [site for site in model.sites if site.layer == layer]
    if not sites:
        raise UserError(f"there is no layer {layer}; the last is {max(site.layer for site in model.sites)}")
    if head is not None and int(head) >= sites[0].n_heads:
        raise UserError(f"layer {layer} has heads 0 … {sites[0].n_heads - 1}; got {name}")
    return {(s.name, h) for s in sites for h in range(s.n_heads) if head is None or h == int(head)}


def mean_rows(
    model: HookedModel, given: Inputs, sites: list[str], queries: list[int]
) -> dict[int, dict[str, Float[NDArray[np.float64], "head key"]]]:
    """Every head's mean row over the sequences that heads are chosen on, by query and site (Hassid et al. 2022)."""
    probe = SelectedRows(queries=sorted(set(queries)))
    total: dict[str, Tensor] = {}
    for sequence in given.choosing.tokens:
        run = model.run(sequence[None], probes=[probe], sites=sites, **without_logits(model))
        for site, reading in run.readings(probe).items():
            total[site] = total.get(site, torch.zeros(())) + reading.values[0].cpu()
    n = len(given.choosing)
    return {
        query: {site: (rows[:, at] / n).numpy() for site, rows in total.items()}
        for at, query in enumerate(probe.queries)
    }


def together(model: HookedModel, heads: Sequence[Head], most: int = _TOGETHER) -> list[list[Head]]:
    """Heads, in order of execution, as groups whose changes share passes: neighbours, so that few layers are
    computed in vain, and at most so many."""
    groups: list[list[Head]] = []
    reach = _NEAR * len({site.layer for site in model.sites})
    for head in heads:
        last = groups[-1] if groups else []
        apart = model.site(head[0]).layer - model.site(last[0][0]).layer if last else 0
        if last and len(last) < most and 0 <= apart <= reach:
            last.append(head)
        else:
            groups.append([head])
    return groups
