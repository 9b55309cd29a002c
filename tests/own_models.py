"""Models as a person brings them to the command line: ``tests.own_models:build``."""

from typing import Any

import torch
from torch import Tensor, nn

import interp
from interp import HookedModel
from tests.zoo import FusedSdpa, VitLike, _encoder

LENGTH, VOCABULARY = 24, 40


class Language(nn.Module):
    """A small language model whose positions are learned, so that it takes 24 tokens and no more."""

    def __init__(self, dropout: float = 0.0, vocabulary: int = VOCABULARY) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.positions = nn.Embedding(LENGTH, 16)  # comes before the tokens' embedding, and is smaller
        self.embed = nn.Embedding(vocabulary, 16)
        self.drop = nn.Dropout(dropout)
        self.blocks = nn.ModuleList([FusedSdpa(), FusedSdpa()])
        self.head = nn.Linear(16, vocabulary)

    def forward(self, idx: Tensor) -> Tensor:
        x = self.drop(self.embed(idx) + self.positions(torch.arange(idx.shape[1], device=idx.device)))
        for block in self.blocks:
            x = x + block(x)
        return self.head(x)


class Pair(nn.Module):
    """Two inputs of tokens."""

    def __init__(self) -> None:
        super().__init__()
        self.language = Language()

    def forward(self, source: Tensor, target: Tensor) -> Tensor:
        return self.language(source) + self.language(target)


def build() -> nn.Module:
    return Language().eval()


def training() -> nn.Module:
    return Language(dropout=0.1)


def patches() -> nn.Module:
    return VitLike().eval()


def series() -> nn.Module:
    return _encoder(8).double().eval()


def pair() -> nn.Module:
    return Pair().eval()


def tied_pair() -> HookedModel:
    """A pair read as a model of one sequence."""
    tokens = torch.arange(2 * LENGTH).view(2, LENGTH) % VOCABULARY
    return interp.load(Pair().eval(), tokens, forward=lambda module, tokens: module(tokens, tokens), n_ctx=LENGTH)


def with_example() -> tuple[nn.Module, Tensor]:
    return Language().eval(), torch.zeros(2, 8, dtype=torch.long)


def raising() -> nn.Module:
    raise FileNotFoundError("weights.pt is not here")


def wanting(folder: str) -> Any:
    return folder


def number() -> int:
    return 3
