"""Small tasks whose answer is known, and the training of small models on them.

Every batch depends on the step and the seed alone. Scores are measured on batches that no training step has seen.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F  # noqa: N812 (the name everyone knows)
from torch import Tensor

from interp.models.training import Batch, DivergedError, TrainingConfig, train
from interp.models.transformer import Transformer, TransformerConfig

__all__ = ["Recall", "Scored", "first_below", "fit", "go_on", "look_back", "score", "two_relations"]

HELD_OUT = 10_000_000  # steps from here on are for testing
IGNORED = -100

Task = Callable[[int], Batch]


@dataclass(frozen=True)
class Scored:
    """What a model does on held-out batches: mean loss in nats, and the share of targets it ranks first."""

    loss: float
    accuracy: float


def fit(
    task: Task, *, steps: int, seed: int, learning_rate: float = 3e-3, warmup: int = 30, **choices: Any
) -> tuple[Transformer, list[float]]:
    """A transformer with some design choices, trained on a task; and the loss of every step.

    A run whose loss becomes infinite ends there: its losses are kept, and the rest is NaN.
    """
    model = Transformer(TransformerConfig(**choices), seed=seed)
    return model, go_on(model, task, steps=steps, seed=seed, learning_rate=learning_rate, warmup=warmup)


def go_on(
    model: Transformer,
    task: Task,
    *,
    steps: int,
    seed: int,
    learning_rate: float = 3e-3,
    warmup: int = 30,
    first: int = 0,
) -> list[float]:
    """Train a model further; ``first`` is the step whose batch comes first."""
    if model.config.attention == "softmax":
        model.set_attn_implementation("sdpa")
    settings = TrainingConfig(steps=steps, learning_rate=learning_rate, warmup=warmup, weight_decay=0.0, seed=seed)
    try:
        losses = train(model, lambda step: task(first + step), settings)["loss"].tolist()
    except DivergedError as error:
        losses = error.history["loss"].tolist()
        model.eval()
    return losses + [float("nan")] * (steps - len(losses))


@torch.no_grad()
def score(model: torch.nn.Module, task: Task, batches: int = 4) -> Scored:
    """The model on batches that training does not reach."""
    losses, right, count = 0.0, 0, 0
    for step in range(HELD_OUT, HELD_OUT + batches):
        tokens, targets = split(task(step))
        logits = model(tokens).logits
        losses += float(F.cross_entropy(logits.flatten(0, 1), targets.flatten(), ignore_index=IGNORED, reduction="sum"))
        asked = targets != IGNORED
        right += int((logits.argmax(-1) == targets)[asked].sum())
        count += int(asked.sum())
    return Scored(losses / count, right / count)


def split(batch: Batch) -> tuple[Tensor, Tensor]:
    """Tokens and targets of a batch; next tokens where it names none."""
    if isinstance(batch, tuple):
        return batch
    return batch, F.pad(batch[:, 1:], (0, 1), value=IGNORED)


def generator(seed: int, step: int) -> torch.Generator:
    """Random numbers of one step of one seed."""
    return torch.Generator().manual_seed((seed * 1_000_003 + step) % (1 << 62))


@dataclass(frozen=True)
class Recall:
    """Pairs of a key and a value, each one token, and a query for a key: the answer is its value.

    The keys of a sequence are all different, so that content alone tells where to look: one layer suffices, and no
    position is needed. Token ids: pair (k, v) is k · values + v, the query for k is keys · values + k.

    Attributes:
        keys, values: how many there are. ``pairs``: of a sequence. ``seed``: of the data.
    """

    keys: int = 16
    values: int = 8
    pairs: int = 12
    batch: int = 64
    seed: int = 0

    @property
    def d_vocab(self) -> int:
        """Number of token ids."""
        return self.keys * self.values + self.keys

    def __call__(self, step: int) -> tuple[Tensor, Tensor]:
        """Tokens [batch, pairs + 1] and targets, which only the last position has."""
        random = generator(self.seed, step)
        keys = torch.rand(self.batch, self.keys, generator=random).argsort(-1)[:, : self.pairs]
        values = torch.randint(self.values, (self.batch, self.pairs), generator=random)
        asked = torch.randint(self.pairs, (self.batch, 1), generator=random)
        query = self.keys * self.values + keys.gather(1, asked)
        tokens = torch.cat([keys * self.values + values, query], 1)
        targets = torch.full_like(tokens, IGNORED)
        targets[:, -1:] = values.gather(1, asked)
        return tokens, targets


def two_relations(seed: int, keys: int = 8, values: int = 6, batch: int = 64) -> tuple[Task, int]:
    """Two lookups at once: the last token names two keys in order, the answer is the ordered pair of their values.

    A head that weighs both alike learns which two values there are, and not which is whose: half of the unequal pairs
    are then guessed wrong. Returns the task and the number of token ids; pairs (k, v) come first, then queries (a, b).
    """

    def task(step: int) -> tuple[Tensor, Tensor]:
        random = generator(seed, step)
        found = torch.randint(values, (batch, keys), generator=random)
        order = torch.rand(batch, keys, generator=random).argsort(-1)
        asked = torch.rand(batch, keys, generator=random).argsort(-1)[:, :2]
        tokens = torch.cat([(torch.arange(keys) * values + found).gather(1, order),
                            keys * values + asked[:, :1] * keys + asked[:, 1:]], 1)  # fmt: skip
        targets = torch.full_like(tokens, IGNORED)
        answer = found.gather(1, asked)
        targets[:, -1] = answer[:, 0] * values + answer[:, 1]
        return tokens, targets

    return task, keys * values + keys * keys


def look_back(seed: int, length: int, offset: int = 3, d_vocab: int = 16, batch: int = 32) -> Task:
    """Random tokens; the target at every position is the token ``offset`` places before it."""

    def task(step: int) -> tuple[Tensor, Tensor]:
        tokens = torch.randint(d_vocab, (batch, length), generator=generator(seed, step))
        targets = F.pad(tokens[:, : length - offset], (offset, 0), value=IGNORED)
        return tokens, targets

    return task


def first_below(losses: list[float], level: float, window: int = 10) -> int:
    """The step from which the mean of the last ``window`` losses is below a level; the number of steps if never."""
    means = np.convolve(losses, np.ones(window) / window, "valid")
    below = np.flatnonzero(means < level)
    return int(below[0]) + window if len(below) else len(losses)
