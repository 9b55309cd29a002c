"""A short fine-tuning that lets a pruned model make up for the heads that it lost."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import torch
from jaxtyping import Float
from numpy.typing import ArrayLike, NDArray
from torch import Tensor, nn

from interp.errors import UserError
from interp.models.hooked import HookedModel
from interp.models.loading import parameters_sha256
from interp.models.pruning.cost import without_core
from interp.models.training import Dataset, TrainingConfig, train
from interp.statistics import mean_interval

__all__ = ["losses_table", "mean_losses", "recover", "recovery_config"]


def recovery_config(
    steps: int, *, learning_rate: float = 1e-4, save_every: int | None = None, seed: int = 0
) -> TrainingConfig:
    """Settings that suit a short fine-tuning: a low learning rate, no weight decay."""
    return TrainingConfig(
        steps=steps, learning_rate=learning_rate, warmup=min(20, steps // 5), weight_decay=0.0, betas=(0.9, 0.95),
        save_every=save_every, seed=seed,
    )  # fmt: skip


def recover(
    model: HookedModel,
    data: Dataset,
    config: TrainingConfig,
    *,
    out: str | Path | None = None,
    resume: bool = False,
) -> pd.DataFrame:
    """Train a pruned model in place, without dropout, on the prediction of the next token (or of given targets).

    Silent heads (`prune`) stay silent. ``info["pruning"]["history"]`` gets an entry, and ``info["weights_sha256"]`` is
    that of the new weights.

    Args:
        model: from `prune`.
        data: the batch of each step: tokens without padding, or tokens and targets (−100 where there is none).
        config: of the training; see `recovery_config`.
        out: folder for the state to resume from.
        resume: go on from that state; what comes out is what an uninterrupted training gives.

    Returns:
        The history of `interp.models.training.train`: ``step, loss, learning_rate, gradient_norm``.

    Raises:
        UserError: the model was not pruned; tokens without targets for a model that does not predict the next one; a
            state of another training. DivergedError: the loss is not finite; the weights are then of no more use.
    """
    if "pruning" not in model.info:
        raise UserError(f"{model.info.get('name')} was not pruned: recovery is for pruned models")
    if not isinstance(data(0), tuple):
        model.require_loss()
    try:
        with without_core(model), _still_silent(model):
            history = train(_WithoutDropout(model.module), data, config, out, resume=resume)
    finally:
        for parameter in model.module.parameters():
            parameter.grad = None
    pruning = model.info["pruning"]
    step = {"recovery": {"steps": config.steps, "learning_rate": config.learning_rate, "seed": config.seed}}
    model.info["pruning"] = {**pruning, "history": [*pruning["history"], step]}
    model.info["weights_sha256"] = parameters_sha256(model.module)
    return history


@torch.no_grad()
def mean_losses(model: HookedModel, batches: Sequence[Tensor]) -> Float[NDArray[np.float64], " sequence"]:
    """Mean next-token loss of each sequence, in nats.

    Args:
        batches: tokens [sequence, position] without padding.
    """
    found = [model.token_loss(tokens).double().mean(1).cpu().numpy() for tokens in batches]
    return np.concatenate(found)


def losses_table(losses: dict[str, ArrayLike], units: Any = None) -> pd.DataFrame:
    """Losses of several models on the same sequences, and their paired differences from the first.

    Args:
        losses: by the model's name, such as unpruned, pruned and recovered, the mean loss of each sequence.
        units: a label per sequence (its document), for the intervals.

    Returns:
        A row per model: ``model, loss, ci_low, ci_high, change, change_low, change_high, n``.
    """
    first = np.asarray(next(iter(losses.values())), dtype=np.float64)
    rows = []
    for name, values in losses.items():
        mine = np.asarray(values, dtype=np.float64)
        own, change = mean_interval(mine, units), mean_interval(mine - first, units)
        rows.append({
            "model": name, "loss": float(own.value), "ci_low": float(own.low), "ci_high": float(own.high),
            "change": float(change.value), "change_low": float(change.low), "change_high": float(change.high),
            "n": int(own.n),
        })  # fmt: skip
    return pd.DataFrame(rows)


class _WithoutDropout(nn.Module):
    """A model that stays in eval mode while it is trained, and keeps no cache."""

    def __init__(self, module: nn.Module) -> None:
        super().__init__()
        self.module = module.eval()
        self._options = {"use_cache": False} if hasattr(module, "generation_config") else {}

    def forward(self, tokens: Tensor) -> Any:
        return self.module(tokens, **self._options)

    def train(self, mode: bool = True) -> _WithoutDropout:
        return self


@contextmanager
def _still_silent(model: HookedModel) -> Iterator[None]:
    """Keep the zero output projections of silent heads, and all that only they use, out of the training."""
    frozen = []
    for site in model.sites:
        if model.info["pruning"]["sites"][site.name]["silent"]:
            weight: Any = site.projections["output"].weight
            frozen += [weight] if weight.requires_grad else []
    for weight in frozen:
        weight.requires_grad_(False)
    try:
        yield
    finally:
        for weight in frozen:
            weight.requires_grad_(True)


@dataclass(frozen=True, eq=False)
class TextData:
    """Windows of text in an order drawn at random, epoch after epoch: the batch of a step depends on the step alone.

    Attributes:
        tokens: [window, position]. ``batch_size``: windows of a step. ``seed``: of the order.
    """

    tokens: Tensor
    batch_size: int = 8
    seed: int = 0

    def __call__(self, step: int) -> Tensor:
        """The batch of a step."""
        per_epoch = max(1, len(self.tokens) // self.batch_size)
        epoch, place = divmod(step, per_epoch)
        generator = torch.Generator().manual_seed(self.seed * 1_000_003 + epoch)
        order = torch.randperm(len(self.tokens), generator=generator)
        return self.tokens[order[place * self.batch_size : (place + 1) * self.batch_size]]
