"""Training the classifiers, and whether they learned."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from scipy import stats

from analyses.adversarial_attention.classifiers.task import Task
from analyses.adversarial_attention.classifiers.tested import Rows, answers
from interp.errors import UserError
from interp.models.classifiers import (
    AttentionClassifier,
    Batch,
    ClassifierTraining,
    auc_of,
    load_classifier,
    save_classifier,
    train_classifier,
)
from interp.models.classifiers.attention import uniform
from interp.models.classifiers.training import Given, Objective
from interp.results import Workspace

LEVEL = 0.01  # of the test against chance


@dataclass(frozen=True)
class Quality:
    """How good a classifier is.

    Attributes:
        accuracy: on the test texts.
        auc: area under the ROC curve on them; NaN for more than two classes.
        f1: of the second class on them; the mean over classes where there are more than two.
        chance: the share of the commonest class of the test texts.
        dev_accuracy: on the development texts; the best of all epochs, so it flatters.
        learned: whether it is better on the test texts than always naming their commonest class: one-sided binomial
            test, p < 0.01.
        note: why it did not; ''.
    """

    accuracy: float
    auc: float
    f1: float
    chance: float
    dev_accuracy: float
    learned: bool
    note: str


@dataclass(frozen=True, eq=False)
class Trained:
    """A trained classifier: its model, how good it is, and which epoch was kept."""

    model: AttentionClassifier
    quality: Quality
    best_epoch: int
    epochs: int


def train(
    task: Task,
    kind: tuple[str, str, int],
    work: Workspace,
    device: torch.device,
    *,
    keep: str | None = None,
    name: str = "base",
    given: Mapping[str, Given] | None = None,
    objective: Objective | None = None,
    select: bool = True,
    start: AttentionClassifier | None = None,
    epochs: int | None = None,
) -> Trained:
    """Train a classifier, or take it up where it is kept.

    Args:
        task: what is learned.
        kind: encoder, attention, seed.
        work: shows progress.
        device: where.
        keep: the folder of trained classifiers.
        name: of this one beside others of its kind.
        given: attention for the texts of each split, which is then not learned.
        objective: see `train_classifier`.
        start: the classifier that training begins from; None: weights drawn from the seed.
        select: whether the best epoch on development data is kept; else the last.
        epochs: other than the task's.

    Raises:
        UserError: the folder holds another classifier of this name.
    """
    encoder, attention, seed = kind
    model = task.untrained(encoder, attention, seed, device)
    if start is not None:
        model.load_state_dict(start.state_dict())
    training = ClassifierTraining(epochs=epochs or task.sizes.epochs, batch=task.sizes.batch, seed=seed)
    texts = {split: task.examples(task.texts.of(split)) for split in ("train", "dev")}
    folder = None if keep is None else Path(keep) / f"{encoder}-{attention}-{seed}-{name}"
    about = {"training": repr(training), "texts": task.texts.name, "n": len(texts["train"])}
    if folder is not None and (folder / "config.json").exists():
        saved = load_classifier(folder, device)
        if {**saved.about, "best_epoch": 0} != {**about, "best_epoch": 0} or saved.words != task.index.words:
            raise UserError(f"{folder} holds a classifier of other texts or settings: give --keep another folder")
        return Trained(saved.model, quality(task, saved.model, given), int(saved.about["best_epoch"]), training.epochs)
    history = train_classifier(
        model, texts["train"], texts["dev"] if select else None, training,
        given=given["train"] if given else None, given_dev=given["dev"] if given else None, objective=objective,
        folder=folder,
        watch=work.progress,
    )  # fmt: skip
    scores = history["score"].to_numpy()
    first = min(training.first_kept, training.epochs - 1)
    best = len(scores) - 1 if np.isnan(scores).all() else first + int(np.argmax(scores[first:]))
    if folder is not None:
        save_classifier(model, folder, task.index.words, task.texts.labels, {**about, "best_epoch": best})
    return Trained(model, quality(task, model, given), best, training.epochs)


def quality(task: Task, model: AttentionClassifier, given: Mapping[str, Given] | None = None) -> Quality:
    """How good a classifier is, under its own attention or under what is given for the splits."""
    test, dev = (task.examples(task.texts.of(split)) for split in ("test", "dev"))
    given = given or {}
    p, on_dev = (
        answers(model, examples, 256, given.get(split))[0] for split, examples in (("test", test), ("dev", dev))
    )
    return judged(p, test.labels, on_dev, dev.labels)


def judged(
    p: NDArray[np.float64], labels: NDArray[np.int64], on_dev: NDArray[np.float64], dev_labels: NDArray[np.int64]
) -> Quality:
    """The quality of some answers."""
    majority = float(np.bincount(labels).max() / len(labels))
    right = int((p.argmax(1) == labels).sum())
    accuracy = right / len(labels)
    sure = stats.binomtest(right, len(labels), majority, alternative="greater").pvalue < LEVEL
    note = "" if sure else (
        f"did not learn: {accuracy:.3f} of the test texts are right, the commonest class is {majority:.3f}"
    )  # fmt: skip
    return Quality(
        accuracy, auc_of(p[:, 1], labels) if p.shape[1] == 2 else float("nan"), f1_of(p.argmax(1), labels, p.shape[1]),
        majority, float((on_dev.argmax(1) == dev_labels).mean()), bool(sure), note,
    )  # fmt: skip


def f1_of(predicted: NDArray[np.int64], labels: NDArray[np.int64], n_labels: int) -> float:
    """F1 of the second of two classes; of more, the mean over classes that occur."""
    classes = [1] if n_labels == 2 else sorted(set(labels.tolist()))
    scores = []
    for of in classes:
        both = ((predicted == of) & (labels == of)).sum()
        scores.append(2 * both / max((predicted == of).sum() + (labels == of).sum(), 1))
    return float(np.mean(scores))


def given_rows(rows: Rows) -> Given:
    """Attention of some texts, one array over its words each, as attention that is given."""

    def attention(batch: Batch, indices: NDArray[np.int64]) -> torch.Tensor:
        weights = np.zeros(tuple(batch.tokens.shape), dtype=np.float32)
        for row, i in zip(weights, indices, strict=True):
            row[1 : 1 + len(rows[i])] = rows[i]
        return torch.from_numpy(weights).to(batch.tokens.device)

    return attention


def given_uniform(batch: Batch, _: NDArray[np.int64]) -> torch.Tensor:
    """The same weight for every word."""
    return uniform(batch.is_word).float()


def subset(n: int, wanted: int | None, seed: int) -> Sequence[int]:
    """Which of n texts are used, in their order: all, or so many drawn at random."""
    if wanted is None or wanted >= n:
        return range(n)
    return np.sort(np.random.default_rng(seed).choice(n, wanted, replace=False)).tolist()
