"""A trained classifier on the texts that its attention is tested on: answers, attention, gradients, words left out.

Gradients and words left out are computed in float64. In float32 the change of an answer that is nearly sure is lost in
rounding, and rounding ranks words that change it equally, such as a word that occurs twice for an encoder that reads
each word by itself.
"""

import copy
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from interp.data import LabelledText
from interp.models.classifiers import AttentionClassifier, Examples, as_distribution
from interp.models.classifiers.training import Given

Rows = list[NDArray[np.float64]]
"""One array a text, over its words."""

_DECIMALS = 12  # what differs by less is equal, for ranks


@dataclass(frozen=True, eq=False)
class Tested:
    """A classifier and texts.

    Attributes:
        model: the classifier, in eval mode.
        examples: the texts as numbers.
        texts: the same in words.
        labels: what the numbers of labels stand for.
        size: texts that are computed together.
    """

    model: AttentionClassifier
    examples: Examples
    texts: Sequence[LabelledText]
    labels: Sequence[str]
    size: int = 256

    @property
    def device(self) -> torch.device:
        """Where it is computed."""
        return next(self.model.parameters()).device

    def __len__(self) -> int:
        return len(self.examples)

    @cached_property
    def _precise(self) -> AttentionClassifier:
        return copy.deepcopy(self.model).double()

    @cached_property
    def _answers(self) -> tuple[NDArray[np.float64], Rows]:
        return answers(self.model, self.examples, self.size)

    @property
    def probabilities(self) -> NDArray[np.float64]:
        """[text, label] of the untouched classifier."""
        return self._answers[0]

    @property
    def attention(self) -> Rows:
        """The classifier's own attention; adds up to 1 over a text's words."""
        return self._answers[1]

    @property
    def predicted(self) -> NDArray[np.int64]:
        """[text] the label with the highest probability."""
        return self.probabilities.argmax(1)

    @property
    def classes(self) -> NDArray[np.object_]:
        """[text] the predicted labels' names."""
        return np.array([self.labels[i] for i in self.predicted], dtype=object)

    @property
    def max_attention(self) -> NDArray[np.float64]:
        """[text] the largest weight."""
        return np.array([row.max(initial=0.0) for row in self.attention])

    @cached_property
    def gradient(self) -> Rows:
        """|∂p/∂e_t · e_t| of each word, p being the predicted label's probability and e_t the word's vector.

        Attention is held fixed: no gradient goes through it, as in Jain & Wallace. Adds up to 1 over a text's words
        (all zero where the gradient vanishes).
        """
        found: Rows = [np.zeros(0)] * len(self)
        for indices in self.examples.by_length(self.size):
            batch = self.examples.batch(indices, self.device)
            embedded = self._precise.embed(batch).detach().requires_grad_()
            # cuDNN's LSTM has no backward pass in eval mode; who asks may be under no_grad
            with torch.enable_grad(), torch.backends.cudnn.flags(enabled=False):
                encoded = self._precise.encode(batch, embedded)
                attention = self._precise.attend(encoded).detach()
                pooled = torch.einsum("bp,bpf->bf", attention, self._precise.features(encoded))
                p = as_distribution(self._precise.answer(pooled, encoded))
                predicted = torch.from_numpy(self.predicted[indices]).to(self.device)
                (slope,) = torch.autograd.grad(p.gather(1, predicted[:, None]).sum(), embedded)
            size = (slope * embedded).sum(-1).abs()
            for i, row in zip(indices, rows_of(size, self.examples.n_words[indices]), strict=True):
                found[i] = np.round(row / max(row.sum(), np.finfo(float).tiny), _DECIMALS)
        return found

    @cached_property
    def leave_one_out(self) -> Rows:
        """How far the answer moves (TVD) when a word is taken out of the text and everything is computed again."""
        found: Rows = []
        waiting: list[tuple[int, int]] = []
        whole, _ = answers(self._precise, self.examples, self.size)
        for i, text in enumerate(self.examples.texts):
            found.append(np.full(len(text) - 2, np.nan))
            waiting += [(i, word) for word in range(len(text) - 2)]
            if len(waiting) >= 16 * self.size:
                self._leave_out(waiting, whole, found)
                waiting = []
        if waiting:
            self._leave_out(waiting, whole, found)
        return found

    def _leave_out(self, pairs: Sequence[tuple[int, int]], whole: NDArray[np.float64], found: Rows) -> None:
        texts, questions = self.examples.texts, self.examples.questions
        without = Examples(
            [np.delete(texts[i], word + 1) for i, word in pairs],
            np.array([self.examples.labels[i] for i, _ in pairs]),
            None if questions is None else [questions[i] for i, _ in pairs],
        )
        changed, _ = answers(self._precise, without, 2 * self.size)
        for (i, word), row in zip(pairs, changed, strict=True):
            found[i][word] = np.round(tvd(row, whole[i]), _DECIMALS)


@torch.no_grad()
def answers(
    model: AttentionClassifier, examples: Examples, size: int, given: Given | None = None
) -> tuple[NDArray[np.float64], Rows]:
    """Probabilities [text, label] and attention of some texts, under the classifier's own attention or a given one."""
    device = next(model.parameters()).device
    probabilities = np.zeros((len(examples), model.config.n_labels))
    attention: Rows = [np.zeros(0)] * len(examples)
    for indices in examples.by_length(size):
        batch = examples.batch(indices, device)
        answer = model(batch, None if given is None else given(batch, indices))
        probabilities[indices] = as_distribution(answer.logits).double().cpu().numpy()
        for i, row in zip(indices, rows_of(answer.attention, examples.n_words[indices]), strict=True):
            attention[i] = row
    return probabilities, attention


def rows_of(positions: Tensor, n_words: NDArray[np.int64]) -> Rows:
    """[batch, position] as one array a text, over its words alone."""
    whole = positions.detach().double().cpu().numpy()
    return [row[1 : 1 + n] for row, n in zip(whole, n_words, strict=True)]


def tvd(p: NDArray[np.float64], q: NDArray[np.float64]) -> NDArray[np.float64]:
    """Total variation distance ½ Σ |p − q| over the last axis; for one sigmoid output it is |Δσ|."""
    return np.abs(p - q).sum(-1) / 2
