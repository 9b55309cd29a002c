"""Training as Jain & Wallace trained: Adam with AMSGrad, texts of similar length together, the best epoch kept."""

import copy
import hashlib
import json
import os
import pickle
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import torch
from jaxtyping import Float
from numpy.typing import NDArray
from scipy import stats
from torch import Tensor, nn

from interp.errors import UserError
from interp.models.classifiers.batches import Batch, Examples
from interp.models.classifiers.classifier import AttentionClassifier, as_distribution

RESUME = "resume.pt"
_COLUMNS = ("epoch", "loss", "score")
_NOISE = 0.1  # of lengths, when texts are put into batches
_PERFECT = 1.0  # of either score

Given = Callable[[Batch, NDArray[np.int64]], Float[Tensor, "batch position"]]
"""Attention that is given instead of learned: from a batch and the indices of its texts."""
Objective = Callable[[AttentionClassifier, Batch, NDArray[np.int64]], Float[Tensor, ""]]


@dataclass(frozen=True)
class ClassifierTraining:
    """How a classifier is trained.

    Attributes:
        epochs: passes over the texts.
        batch: texts of a step.
        learning_rate: of Adam with AMSGrad.
        weight_decay: of all weights; for classification, of all but the attention's.
        seed: of the order of the batches; the weights come as they are.
        first_kept: the earliest epoch, from 0, that can be the best; the authors' code never keeps the first one.
    """

    epochs: int = 8
    batch: int = 32
    learning_rate: float = 1e-3
    weight_decay: float = 1e-5
    seed: int = 0
    first_kept: int = 1

    def __post_init__(self) -> None:
        if min(self.epochs, self.batch) < 1 or self.learning_rate <= 0 or self.weight_decay < 0:
            raise ValueError(
                f"epochs and batch are at least 1, learning_rate above 0, weight_decay at least 0; got {self}"
            )


def train_classifier(
    model: AttentionClassifier,
    train: Examples,
    dev: Examples | None,
    training: ClassifierTraining,
    *,
    given: Given | None = None,
    given_dev: Given | None = None,
    objective: Objective | None = None,
    folder: str | Path | None = None,
    watch: Callable[[Iterator[int], str, int], Iterator[int]] | None = None,
) -> pd.DataFrame:
    """Train a classifier in place; it ends in eval mode with the weights of its best epoch.

    Of epochs that are equally good the first is kept, so training ends early when one answers all of ``dev`` right.

    Args:
        model: the classifier.
        train: texts that it learns from.
        dev: texts on which the best epoch is found: by the area under the ROC curve for two classes, else by accuracy.
            None: the last epoch is kept.
        training: how.
        given: attention for the texts of ``train``, which is then not learned. None: the classifier's own.
        given_dev: the same for ``dev``.
        objective: what is minimised; None: `published_loss`.
        folder: where the state after each epoch is kept (``resume.pt``, removed at the end), so that an interrupted
            training goes on there; what comes out is what an uninterrupted one gives.
        watch: shows progress: called with the epochs, what they are and how many.

    Returns:
        One row an epoch that was run: ``epoch`` (from 0), ``loss`` (mean over texts), ``score`` (on dev; NaN without).

    Raises:
        UserError: the loss is not finite; a state of another training in the folder.
    """
    run = _Run(model, train, dev, training, None if folder is None else Path(folder))
    run.restore()
    epochs: Iterator[int] = iter(range(run.epoch, training.epochs))
    for epoch in watch(epochs, "epochs", training.epochs - run.epoch) if watch else epochs:
        if run.best == _PERFECT:
            break
        loss = run.learn(epoch, given, objective or published_loss)
        run.keep(epoch, loss, float("nan") if dev is None else score(model, dev, given_dev))
    run.finish()
    return run.table


def published_loss(
    model: AttentionClassifier,
    batch: Batch,
    _: NDArray[np.int64],
    given: Float[Tensor, "batch position"] | None = None,
    positive: float = 1.0,
) -> Float[Tensor, ""]:
    """Cross-entropy: for two classes summed over the batch, the positive class's weight being #negative / #positive;
    else its mean over the batch."""
    logits = model(batch, given).logits
    if logits.shape[-1] > 1:
        return nn.functional.cross_entropy(logits, batch.labels)
    weight = logits.new_tensor(positive)
    return nn.functional.binary_cross_entropy_with_logits(
        logits[:, 0], batch.labels.to(logits.dtype), pos_weight=weight, reduction="sum"
    )


@torch.no_grad()
def score(model: AttentionClassifier, examples: Examples, given: Given | None = None) -> float:
    """The area under the ROC curve for two classes, else accuracy; accuracy too where only one class is there."""
    model.eval()
    device = next(model.parameters()).device
    outputs = np.zeros((len(examples), model.config.n_labels))
    for indices in examples.by_length(256):
        batch = examples.batch(indices, device)
        logits = model(batch, None if given is None else given(batch, indices)).logits
        outputs[indices] = as_distribution(logits).double().cpu().numpy()
    if model.config.n_outputs == 1 and len(set(examples.labels.tolist())) == 2:
        return auc_of(outputs[:, 1], examples.labels)
    return float((outputs.argmax(1) == examples.labels).mean())


def auc_of(scores: NDArray[np.float64], labels: NDArray[np.int64]) -> float:
    """Area under the ROC curve: the probability that a positive text scores above a negative one, ties counting half.

    NaN where one class is missing.
    """
    positive = labels == 1
    n, m = int(positive.sum()), int((~positive).sum())
    if not n or not m:
        return float("nan")
    return float((stats.rankdata(scores)[positive].sum() - n * (n + 1) / 2) / (n * m))


class _Run:
    """A training under way."""

    def __init__(
        self, model: AttentionClassifier, train: Examples, dev: Examples | None, training: ClassifierTraining,
        folder: Path | None,
    ) -> None:  # fmt: skip
        self.model, self.train, self.training, self.folder = model, train, training, folder
        self.has_dev = dev is not None
        self.epoch, self.best = 0, float("-inf")
        self.kept: dict[str, Tensor] = {}
        self.rows: list[tuple[int, float, float]] = []
        self.positive = float((train.labels == 0).sum() / max((train.labels == 1).sum(), 1))
        attention = [p for name, p in model.named_parameters() if name.startswith("attention.")]
        others = [p for name, p in model.named_parameters() if not name.startswith("attention.")]
        groups = [
            {"params": others},
            {"params": attention, "weight_decay": training.weight_decay if model.config.asks else 0.0},
        ]
        self.optimizer = torch.optim.Adam(
            [group for group in groups if group["params"]],
            lr=training.learning_rate, weight_decay=training.weight_decay, amsgrad=True, fused=True,
        )  # fmt: skip

    def learn(self, epoch: int, given: Given | None, objective: Objective) -> float:
        """One pass; the mean loss of a text."""
        self.model.train()
        device, total = next(self.model.parameters()).device, 0.0
        for indices in self._batches(epoch):
            batch = self.train.batch(indices, device)
            if objective is published_loss:
                attention = None if given is None else given(batch, indices)
                loss = published_loss(self.model, batch, indices, attention, self.positive)
            else:
                loss = objective(self.model, batch, indices)
            self.optimizer.zero_grad(set_to_none=True)
            loss.backward()
            self.optimizer.step()
            total += float(loss.detach()) * (1 if self.model.config.n_outputs == 1 else len(indices))
        if not np.isfinite(total):
            raise UserError(
                f"the loss of epoch {epoch + 1} is {total}: lower the learning rate, or look at the vectors"
            )
        return total / len(self.train)

    def _batches(self, epoch: int) -> Iterator[NDArray[np.int64]]:
        """Texts of nearly the same length together, in a random order."""
        rng = np.random.default_rng([self.training.seed, epoch])
        lengths = self.train.n_words * (1 + _NOISE * rng.uniform(-1, 1, len(self.train)))
        order = np.argsort(lengths, kind="stable")
        starts = np.arange(0, len(order), self.training.batch)
        rng.shuffle(starts)
        for start in starts:
            yield order[start : start + self.training.batch]

    def keep(self, epoch: int, loss: float, on_dev: float) -> None:
        """Note an epoch; remember its weights if they are the best so far; write the state down."""
        self.rows.append((epoch, loss, on_dev))
        self.epoch = epoch + 1
        may = epoch >= min(self.training.first_kept, self.training.epochs - 1)
        if self.has_dev and may and on_dev > self.best:
            self.best, self.kept = on_dev, copy.deepcopy(self.model.state_dict())
        if self.folder is not None:
            self._save()

    def finish(self) -> None:
        """The best epoch's weights; the state is no longer needed."""
        if self.kept:
            self.model.load_state_dict(self.kept)
        self.model.eval()
        if self.folder is not None:
            (self.folder / RESUME).unlink(missing_ok=True)

    @property
    def table(self) -> pd.DataFrame:
        """The history."""
        return pd.DataFrame(self.rows, columns=pd.Index(_COLUMNS))

    # Resuming -----------------------------------------------------------------------------------------------------

    def _save(self) -> None:
        assert self.folder is not None
        state = {
            "of": self._fingerprint(), "epoch": self.epoch, "best": self.best, "kept": self.kept,
            "model": self.model.state_dict(), "optimizer": self.optimizer.state_dict(), "rows": self.rows,
        }  # fmt: skip
        self.folder.mkdir(parents=True, exist_ok=True)
        part = self.folder / f"{RESUME}.{os.getpid()}.part"
        torch.save(state, part)
        part.replace(self.folder / RESUME)

    def restore(self) -> None:
        """Read what was written down, if anything was.

        Raises:
            UserError: it is damaged, or of another training.
        """
        if self.folder is None or not (file := self.folder / RESUME).exists():
            return
        try:
            state: dict[str, Any] = torch.load(file, weights_only=True, map_location="cpu")
        except (OSError, RuntimeError, EOFError, pickle.UnpicklingError) as error:
            raise UserError(f"{file} cannot be read ({error}): remove it to begin again") from error
        if state["of"] != self._fingerprint():
            raise UserError(f"{file} is of a training with other settings or texts: remove it to begin again")
        self.model.load_state_dict(state["model"])
        self.optimizer.load_state_dict(state["optimizer"])
        self.epoch, self.best, self.kept = state["epoch"], state["best"], state["kept"]
        self.rows = [tuple(row) for row in state["rows"]]

    def _fingerprint(self) -> str:
        digest = hashlib.sha256(json.dumps([self.model.config.to_dict(), asdict(self.training)]).encode())
        for text in self.train.texts:
            digest.update(text.tobytes())
        digest.update(self.train.labels.tobytes())
        return digest.hexdigest()
