"""Sizes and kinds of a classifier."""

from dataclasses import asdict, dataclass
from typing import Any, Literal

from interp.settings import check_at_least

Encoder = Literal["lstm", "cnn", "average"]
Attention = Literal["tanh", "dot"]
KERNELS = (1, 3, 5, 7)


@dataclass(frozen=True)
class ClassifierConfig:
    """What a classifier is made of.

    Attributes:
        n_words: numbers that stand for words, the padding (0) among them.
        n_labels: classes, or answers.
        asks: whether there is a question beside the text.
        encoder: ``lstm`` (bidirectional), ``cnn`` (kernels 1, 3, 5, 7 with ReLU) or ``average`` (each word by itself:
            linear, tanh).
        attention: ``tanh``, additive: w·tanh(Wh); or ``dot``: w·h/√d. With a question q: w·tanh(Wh + Uq), or h·q/√d.
        d_embed: of word vectors.
        d_hidden: of the encoder: of each direction of an LSTM, of all kernels together.
    """

    n_words: int
    n_labels: int
    asks: bool = False
    encoder: Encoder = "lstm"
    attention: Attention = "tanh"
    d_embed: int = 300
    d_hidden: int = 128

    def __post_init__(self) -> None:
        check_at_least(self, n_words=5, n_labels=2, d_embed=1, d_hidden=4)
        if self.encoder not in ("lstm", "cnn", "average") or self.attention not in ("tanh", "dot"):
            raise ValueError(
                f"encoder is lstm, cnn or average, attention tanh or dot; got {self.encoder}, {self.attention}"
            )
        if self.encoder == "cnn" and self.d_hidden % len(KERNELS):
            raise ValueError(f"d_hidden must be a multiple of the {len(KERNELS)} kernels; got {self.d_hidden}")

    @property
    def d_encoded(self) -> int:
        """Size of what the encoder gives for each word."""
        return 2 * self.d_hidden if self.encoder == "lstm" else self.d_hidden

    @property
    def n_outputs(self) -> int:
        """Numbers that the classifier gives: one, of a sigmoid, for two classes; else one a label."""
        return 1 if self.n_labels == 2 and not self.asks else self.n_labels

    def to_dict(self) -> dict[str, Any]:
        """As plain values."""
        return asdict(self)
