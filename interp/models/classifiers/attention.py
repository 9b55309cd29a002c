"""Attention over the words of a text: one row of weights, with or without a question."""

import math

import torch
from jaxtyping import Bool, Float
from torch import Tensor, nn

from interp.models.classifiers.config import ClassifierConfig

Scores = Float[Tensor, "batch position"]


class Additive(nn.Module):
    """Scores w·tanh(Wh), with a question w·tanh(Wh + Uq); half as wide as h (Bahdanau et al. 2015)."""

    def __init__(self, config: ClassifierConfig) -> None:
        super().__init__()
        size = config.d_encoded
        self.key = nn.Linear(size, size // 2)
        self.question = nn.Linear(size, size // 2) if config.asks else None
        self.score = nn.Linear(size // 2, 1, bias=False)

    def forward(self, hidden: Float[Tensor, "batch position d"], question: Float[Tensor, "batch d"] | None) -> Scores:
        """Scores of all positions."""
        keys = self.key(hidden)
        if self.question is not None:
            keys = keys + self.question(question)[:, None]
        return self.score(keys.tanh()).squeeze(-1)


class Dot(nn.Module):
    """Scores w·h/√d with a learned w, with a question h·q/√d (Vaswani et al. 2017)."""

    def __init__(self, config: ClassifierConfig) -> None:
        super().__init__()
        self.scale = 1 / math.sqrt(config.d_encoded)
        self.query = None if config.asks else nn.Linear(config.d_encoded, 1, bias=False)

    def forward(self, hidden: Float[Tensor, "batch position d"], question: Float[Tensor, "batch d"] | None) -> Scores:
        """Scores of all positions."""
        if self.query is not None:
            return self.query(hidden).squeeze(-1) * self.scale
        return torch.einsum("bpd,bd->bp", hidden, question) * self.scale


ATTENTIONS = {"tanh": Additive, "dot": Dot}


def masked_softmax(scores: Float[Tensor, "... position"], permitted: Bool[Tensor, "... position"]) -> Tensor:
    """Softmax over permitted positions; exactly 0 elsewhere, and everywhere in a row without one."""
    lowest = torch.finfo(scores.dtype).min
    return scores.masked_fill(~permitted, lowest).softmax(-1) * permitted


def uniform(permitted: Bool[Tensor, "batch position"]) -> Float[Tensor, "batch position"]:
    """The same weight for every permitted position."""
    return permitted / permitted.sum(-1, keepdim=True).clamp(min=1)
