"""Train the toy models that come with the project.

``python -m analyses.train_tiny --out runs/tiny`` trains ``tiny-2l`` (two layers of attention and nothing else) and its
control ``tiny-1l`` (one layer, which cannot form the circuit) on random tokens in which a segment is copied, and saves
them with checkpoints across the moment at which copying is learned. What their heads do, and when they form, is asked
with ``interp run induction-heads runs/tiny/tiny-2l --checkpoints runs/tiny/tiny-2l runs/tiny/tiny-1l``.
"""

import json
import shlex
import sys
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path

import torch
import tyro
from torch import Tensor

from interp import UserError
from interp.data import Vocabulary, copied_segments
from interp.models.training import TrainingConfig, train
from interp.models.transformer import Transformer, TransformerConfig, save_transformer

__all__ = ["TOYS", "Config", "main", "train_toy"]

BOS, D_VOCAB, N_CTX, BATCH = 0, 128, 64, 32
_UNSEEN = 2**31  # seeds from here on are left to what checkpoints are measured on

TOYS = {
    "tiny-2l": TransformerConfig(d_vocab=D_VOCAB, n_ctx=N_CTX, n_layers=2, rotary_base=100.0, bos_token_id=BOS),
    "tiny-1l": TransformerConfig(d_vocab=D_VOCAB, n_ctx=N_CTX, n_layers=1, rotary_base=100.0, bos_token_id=BOS),
}
"""The models by name: d_model 64, 4 heads of 16, layer norms before attention and before the unembedding, no MLP."""

MOMENTS = (
    0, 200, 400, 600, 800, 850, 900, 950, 1000, 1050, 1100, 1150, 1200, 1300, 1400, 1500, 1750, 2000, 2500, 3500,
)  # fmt: skip
"""Steps of the checkpoints beside the last; the control has every second of them."""


@dataclass(frozen=True)
class Config:
    """Train tiny-2l and its one-layer control."""

    out: Path = Path("runs/tiny")
    """Folder for the models, a folder each."""
    seed: int = 1
    """Seed of weights and data; 1 is that of the models that come along."""
    steps: int = 5000
    """Optimiser steps; the learning rate falls along a cosine of this length."""
    resume: bool = False
    """Go on with training that was interrupted."""

    def __post_init__(self) -> None:
        if not 0 <= self.seed < _UNSEEN:
            raise ValueError(f"seed must lie in 0 … {_UNSEEN - 1}; got {self.seed}")
        if self.steps < 1:
            raise ValueError(f"steps must be at least 1; got {self.steps}")


def train_toy(name: str, config: Config) -> Path:
    """Train one of the models and save it, with its checkpoints; returns its folder."""
    folder = config.out / name
    if not config.resume and (folder / "config.json").exists():
        raise UserError(f"{folder} holds a model; give --out another folder, or --resume to go on with it")
    moments = MOMENTS if TOYS[name].n_layers > 1 else MOMENTS[::2]
    training = TrainingConfig(
        steps=config.steps,
        checkpoints=(*(step for step in moments if step < config.steps), config.steps),
        stored="float16",
        save_every=500,
        seed=config.seed,
    )
    model = Transformer(TOYS[name], seed=config.seed)
    model.set_attn_implementation("sdpa")
    history = train(model, _data(config.seed), training, folder, resume=config.resume)
    (folder / "resume.pt").unlink()
    save_transformer(model, folder)
    history.to_csv(folder / "training.csv", index=False)
    described = {
        "data": copied_segments(_vocabulary(), N_CTX, 1, seed=config.seed, prefix=[BOS]).source,
        "batch": BATCH,
        "weights_seed": config.seed,
        "training": asdict(training),
        "torch": torch.__version__,
    }
    (folder / "training.json").write_text(json.dumps(described, indent=2) + "\n")
    return folder


def main(config: Config, say: Callable[[str], object] = lambda line: sys.stdout.write(f"{line}\n")) -> None:
    """Train both models, and say how to see what became of them."""
    folders = [str(train_toy(name, config)) for name in TOYS]
    say(f"interp run induction-heads {shlex.join([folders[0], '--checkpoints', *folders])}")


def _data(seed: int) -> Callable[[int], Tensor]:
    """The tokens of each training step."""
    vocabulary = _vocabulary()
    return lambda step: copied_segments(
        vocabulary, N_CTX, BATCH, first=step * BATCH, seed=seed, prefix=[BOS]
    ).tokens  # fmt: skip


def _vocabulary() -> Vocabulary:
    return Vocabulary.of_size(D_VOCAB, [BOS])


if __name__ == "__main__":
    torch.set_num_threads(1)  # so that the same machine gives the same weights
    main(tyro.cli(Config, description=Config.__doc__))
