"""Texts of different lengths side by side."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np
import torch
from jaxtyping import Bool, Int
from numpy.typing import NDArray
from torch import Tensor

PAD = 0


@dataclass(frozen=True, eq=False)
class Batch:
    """Texts, padded at their ends. Each begins and ends with a token that is read but never attended to.

    Attributes:
        tokens: numbers of words; 0 is padding.
        lengths: tokens of each text, the two around it included.
        question, question_lengths: the same of the questions; None where there are none.
        labels: what is right.
    """

    tokens: Int[Tensor, "batch position"]
    lengths: Int[Tensor, " batch"]
    question: Int[Tensor, "batch word"] | None
    question_lengths: Int[Tensor, " batch"] | None
    labels: Int[Tensor, " batch"]

    @property
    def is_word(self) -> Bool[Tensor, "batch position"]:
        """Which positions may be attended to: those between the first token and the last."""
        return between(self.lengths, self.tokens.shape[1])

    def __len__(self) -> int:
        return len(self.tokens)


def between(lengths: Int[Tensor, " batch"], width: int) -> Bool[Tensor, "batch position"]:
    """Positions that hold words: neither the first token, nor the last, nor padding."""
    position = torch.arange(width, device=lengths.device)
    return (position > 0) & (position < lengths[:, None] - 1)


@dataclass(frozen=True, eq=False)
class Examples:
    """Texts as numbers, each with a token before and after it.

    Attributes:
        texts: [position] of each.
        labels: [text] places among the labels.
        questions: [word] of each; None for classification.
    """

    texts: Sequence[NDArray[np.int64]]
    labels: NDArray[np.int64]
    questions: Sequence[NDArray[np.int64]] | None = None

    def __len__(self) -> int:
        return len(self.texts)

    @property
    def n_words(self) -> NDArray[np.int64]:
        """[text] how many words each has."""
        return np.array([len(text) - 2 for text in self.texts], dtype=np.int64)

    def select(self, indices: Sequence[int] | NDArray[np.integer]) -> "Examples":
        """Some of the texts."""
        chosen = [int(i) for i in indices]
        asked = None if self.questions is None else [self.questions[i] for i in chosen]
        return replace(self, texts=[self.texts[i] for i in chosen], labels=self.labels[chosen], questions=asked)

    def batch(self, indices: Sequence[int] | NDArray[np.integer], device: torch.device | str = "cpu") -> Batch:
        """Some of the texts, padded to the longest of them."""
        chosen = [int(i) for i in indices]
        tokens, lengths = padded([self.texts[i] for i in chosen], device)
        asked = (None, None)
        if self.questions is not None:
            asked = padded([self.questions[i] for i in chosen], device)
        return Batch(tokens, lengths, *asked, torch.from_numpy(self.labels[chosen]).to(device))

    def by_length(self, size: int) -> Iterator[NDArray[np.int64]]:
        """Indices of texts of similar length, at most ``size`` together, all of them once."""
        order = np.argsort(self.n_words, kind="stable")
        for start in range(0, len(order), size):
            yield order[start : start + size]


def padded(
    texts: Sequence[NDArray[np.int64]], device: torch.device | str = "cpu"
) -> tuple[Int[Tensor, "batch position"], Int[Tensor, " batch"]]:
    """Texts as one tensor, and how long each is."""
    lengths = [len(text) for text in texts]
    tokens = np.full((len(texts), max(lengths)), PAD, dtype=np.int64)
    for row, text in zip(tokens, texts, strict=True):
        row[: len(text)] = text
    return torch.from_numpy(tokens).to(device), torch.tensor(lengths, device=device)
