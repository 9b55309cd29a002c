"""Texts, the sizes of the classifiers that read them, and word vectors to begin with."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch

from analyses.adversarial_attention.classifiers.word_vectors import word_vectors
from analyses.adversarial_attention.config import Config
from interp.data import (
    Columns,
    LabelledText,
    LabelledTexts,
    Vectors,
    WordIndex,
    random_vectors,
    read_labelled,
    supporting_facts,
)
from interp.models.classifiers import AttentionClassifier, ClassifierConfig, Examples
from interp.results import Workspace


@dataclass(frozen=True)
class Sizes:
    """Of classifiers and their training, as published: for classification, and for bAbI's questions.

    Attributes:
        d_embed: of word vectors.
        d_hidden: of the encoder.
        batch: texts of a step.
        epochs: passes over the texts.
        spread: standard deviation of random word vectors.
    """

    d_embed: int
    d_hidden: int
    batch: int
    epochs: int
    spread: float


CLASSIFICATION = Sizes(300, 128, 32, 8, 0.1)
QUESTIONS = Sizes(50, 32, 50, 100, 1.0)
MADE_UP_EPOCHS = 14


@dataclass(frozen=True, eq=False)
class Task:
    """What is to be learned.

    Attributes:
        texts: in words.
        index: their words' numbers.
        sizes: of the classifiers.
        vectors: to begin with.
        what: of the vectors, in words.
    """

    texts: LabelledTexts
    index: WordIndex
    sizes: Sizes
    vectors: Vectors
    what: str

    def examples(self, texts: Sequence[LabelledText]) -> Examples:
        """Texts as numbers."""
        questions = [self.index.encode(text.question) for text in texts] if self.texts.asks else None
        return Examples(
            [self.index.encode(text.words) for text in texts],
            np.array([self.texts.number(text) for text in texts], dtype=np.int64),
            questions,
        )

    def untrained(self, encoder: str, attention: str, seed: int, device: torch.device | str) -> AttentionClassifier:
        """A classifier with weights drawn from a seed."""
        config = ClassifierConfig(
            len(self.index), len(self.texts.labels), self.texts.asks, encoder, attention,  # pyright: ignore[reportArgumentType]: checked there
            self.vectors.values.shape[1], self.sizes.d_hidden,
        )  # fmt: skip
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            model = AttentionClassifier(config)
        vectors = self.vectors.values
        if not self.vectors.known:  # random ones are another draw for every seed
            vectors = random_vectors(self.index, vectors.shape[1], self.sizes.spread, seed).values
        with torch.no_grad():
            model.embedding.weight.copy_(torch.from_numpy(vectors))
            if config.asks:
                model.question_embedding.weight.copy_(torch.from_numpy(vectors))
        return model.to(device)


def prepare(config: Config, work: Workspace) -> Task:
    """Read the texts, say what was left out of them, and set the sizes.

    Raises:
        UserError: texts or vectors cannot be read.
    """
    return task_of(read(config), config, work)


def task_of(texts: LabelledTexts, config: Config, work: Workspace) -> Task:
    """Say what was left out of texts, and set the sizes.

    Raises:
        UserError: vectors cannot be read.
    """
    for remark in texts.remarks:
        work.note(remark)
    for part, reason in texts.left_out:
        work.skip(part, reason)
    index = WordIndex.of([text.words + text.question for text in texts.texts])
    sizes = QUESTIONS if texts.asks else CLASSIFICATION
    epochs = config.epochs or (MADE_UP_EPOCHS if config.data is None else sizes.epochs)
    sizes = Sizes(sizes.d_embed, sizes.d_hidden, sizes.batch, epochs, sizes.spread)
    training = [text.words for text in texts.of("train")]
    vectors, what = word_vectors(config.vectors, index, training, (sizes.d_embed, sizes.spread), config.seed)
    work.note(f"word vectors: {what}")
    return Task(texts, index, sizes, vectors, what)


def read(config: Config) -> LabelledTexts:
    """The texts that the settings name."""
    if config.data is None:
        return supporting_facts(seed=config.seed)
    columns = Columns(config.text_column, config.label_column, config.question_column, config.split_column)
    return read_labelled(config.data, columns, shortest=config.shortest, longest=config.longest, seed=config.seed)
