"""The whole classifier: encode, attend, answer."""

from dataclasses import dataclass
from typing import NamedTuple

import torch
from jaxtyping import Bool, Float
from torch import Tensor, nn

from interp.models.classifiers.attention import ATTENTIONS, masked_softmax
from interp.models.classifiers.batches import PAD, Batch
from interp.models.classifiers.config import ClassifierConfig
from interp.models.classifiers.encoders import ENCODERS


class Answer(NamedTuple):
    """What a classifier says, and where it looked.

    Attributes:
        logits: before sigmoid (one) or softmax.
        attention: over positions; exactly 0 on all but words.
    """

    logits: Float[Tensor, "batch output"]
    attention: Float[Tensor, "batch position"]


@dataclass(frozen=True, eq=False)
class Encoded:
    """A batch as the encoder leaves it.

    Attributes:
        hidden: one vector a position.
        is_word: positions that may be attended to.
        question: the question as one vector; None where there is none.
    """

    hidden: Float[Tensor, "batch position d"]
    is_word: Bool[Tensor, "batch position"]
    question: Float[Tensor, "batch d"] | None


class AttentionClassifier(nn.Module):
    """An encoder, attention over its words, and an answer from the weighted mean of what it made of them.

    With context c = Σ_t α_t h_t the logits are W c + b; with a question q they are W tanh(V c + U q + a) + b. Both
    depend on α through Σ_t α_t f_t alone, with the features f_t = W h_t or V h_t: `features` and `answer`.
    """

    def __init__(self, config: ClassifierConfig) -> None:
        super().__init__()
        self.config = config
        size = config.d_encoded
        self.embedding = nn.Embedding(config.n_words, config.d_embed, padding_idx=PAD)
        self.encoder = ENCODERS[config.encoder](config)
        self.attention = ATTENTIONS[config.attention](config)
        if config.asks:
            self.question_embedding = nn.Embedding(config.n_words, config.d_embed, padding_idx=PAD)
            self.question_encoder = ENCODERS[config.encoder](config)
            self.from_context, self.from_question = nn.Linear(size, size // 2), nn.Linear(size, size // 2)
            self.output = nn.Linear(size // 2, config.n_outputs)
        else:
            self.output = nn.Linear(size, config.n_outputs)

    def forward(self, batch: Batch, attention: Float[Tensor, "batch position"] | None = None) -> Answer:
        """The answer under the classifier's own attention, or under another.

        Args:
            batch: texts.
            attention: what to attend to instead; None: the classifier's own.
        """
        encoded = self.encode(batch)
        weights = self.attend(encoded) if attention is None else attention.to(encoded.hidden)
        context = torch.einsum("bp,bpd->bd", weights, encoded.hidden)
        return Answer(self.answer(self._project(context), encoded), weights)

    def embed(self, batch: Batch) -> Float[Tensor, "batch position d_embed"]:
        """Word vectors of the texts."""
        return self.embedding(batch.tokens)

    def encode(self, batch: Batch, embedded: Float[Tensor, "batch position d_embed"] | None = None) -> Encoded:
        """Hidden states; of ``embedded``, where word vectors are given."""
        hidden, _ = self.encoder(self.embed(batch) if embedded is None else embedded, batch.lengths)
        question = None
        if batch.question is not None:
            _, question = self.question_encoder(self.question_embedding(batch.question), batch.question_lengths)
        return Encoded(hidden, batch.is_word, question)

    def attend(self, encoded: Encoded) -> Float[Tensor, "batch position"]:
        """The classifier's own attention."""
        return masked_softmax(self.attention(encoded.hidden, encoded.question), encoded.is_word)

    def features(self, encoded: Encoded) -> Float[Tensor, "batch position feature"]:
        """The numbers of each position that the answer depends on: one for two classes, one a class for more, half the
        hidden size with a question."""
        return self._project(encoded.hidden) * encoded.is_word[..., None]

    def answer(
        self, pooled: Float[Tensor, "batch *more feature"], encoded: Encoded
    ) -> Float[Tensor, "batch *more output"]:
        """Logits from the weighted mean of the features."""
        if encoded.question is None:
            return pooled + self.output.bias
        question = self.from_question(encoded.question) + self.from_context.bias
        return self.output((pooled + question.reshape(len(question), *([1] * (pooled.ndim - 2)), -1)).tanh())

    def _project(self, vectors: Tensor) -> Tensor:
        return vectors @ (self.from_context if self.config.asks else self.output).weight.T


def as_distribution(logits: Float[Tensor, "*batch output"]) -> Float[Tensor, "*batch label"]:
    """Probabilities of the labels: of one logit, (1 − σ, σ); else its softmax."""
    if logits.shape[-1] == 1:
        return torch.cat([(-logits).sigmoid(), logits.sigmoid()], dim=-1)
    return logits.softmax(-1)
