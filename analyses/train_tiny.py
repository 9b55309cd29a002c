"""Train the toy models that come with the project, and show their induction heads forming.

``python -m analyses.train_tiny --out runs/tiny`` trains ``tiny-2l`` (two layers of attention and nothing else) and its
control ``tiny-1l`` (one layer, which cannot form the circuit) on random tokens in which a segment is copied, saves them
with checkpoints across the moment at which copying is learned, and prints what each checkpoint's heads do.
"""

import json
import sys
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path

import pandas as pd
import torch
import tyro
from torch import Tensor

from interp import HookedModel, UserError
from interp.attention.probes import OffsetMass, TargetMass
from interp.data import CopiedSegments, Vocabulary, copied_segments, repeated_tokens
from interp.models.training import TrainingConfig, checkpoint_folders, train
from interp.models.transformer import (
    Transformer,
    TransformerConfig,
    hook_transformer,
    load_transformer,
    save_transformer,
)

__all__ = ["TOYS", "Config", "formation", "main", "strongest", "train_toy"]

BOS, D_VOCAB, N_CTX, BATCH = 0, 128, 64, 32
EARLY, LATE = slice(5, 13), slice(N_CTX - 8, N_CTX)  # positions of the tokens whose loss is taken
THRESHOLD = 0.6  # of a head that is said to have formed
_UNSEEN = 2**31  # seeds from here on are those of what checkpoints are measured on

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
    """Train tiny-2l and its one-layer control, and print what their heads do at each checkpoint."""

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


def formation(folder: Path) -> pd.DataFrame:
    """What each checkpoint of a model does, on sequences that no training run sees.

    Returns:
        Long form: ``step, metric, layer, head, value``. For every head ``prefix_matching`` and ``previous_token`` (on
        BOS and 31 random tokens twice); for the model (layer and head −1) ``loss``, ``copy_loss`` (of tokens that could
        be copied) and ``in_context_learning`` (loss at the last 8 positions minus that at positions 5 to 12), on
        training's kind of data.
    """
    parts = []
    for step, place in checkpoint_folders(folder).items():
        model = hook_transformer(load_transformer(place))
        parts.append(pd.concat([_of_heads(model), _of_model(model)]).assign(step=step))
    return pd.concat(parts, ignore_index=True).reindex(columns=["step", "metric", "layer", "head", "value"])


def strongest(found: pd.DataFrame, metric: str) -> pd.DataFrame:
    """The head that is highest in a metric at the last checkpoint, followed through all: ``step, name, value``."""
    scores = found.query("metric == @metric")
    best = scores.loc[scores.query("step == step.max()")["value"].idxmax()]
    layer, head = int(best["layer"]), int(best["head"])
    followed = scores.query("layer == @layer and head == @head").assign(name=f"L{layer}H{head}")
    return followed.reindex(columns=["step", "name", "value"])


def main(config: Config, say: Callable[[str], object] = lambda line: sys.stdout.write(f"{line}\n")) -> None:
    """Train both models and print their formation."""
    for name in TOYS:
        folder = train_toy(name, config)
        found = formation(folder)
        found.to_csv(folder / "formation.csv", index=False)
        say(f"\n{name} ({folder})")
        for line in _told(found):
            say(line)


def _data(seed: int) -> Callable[[int], Tensor]:
    """The tokens of each training step."""
    vocabulary = _vocabulary()
    return lambda step: copied_segments(
        vocabulary, N_CTX, BATCH, first=step * BATCH, seed=seed, prefix=[BOS]
    ).tokens  # fmt: skip


def _vocabulary() -> Vocabulary:
    return Vocabulary.of_size(D_VOCAB, [BOS])


def _of_heads(model: HookedModel) -> pd.DataFrame:
    repeated = repeated_tokens(_vocabulary(), (N_CTX - 1) // 2, 2, 64, seed=_UNSEEN, prefix=[BOS])
    probes = {
        "prefix_matching": TargetMass(targets=repeated.induction_targets),
        "previous_token": OffsetMass(offsets=[1]),
    }
    run = model.run(repeated.tokens, probes=list(probes.values()))
    rows = [
        {"metric": metric, "layer": site.layer, "head": head, "value": float(value)}
        for metric, probe in probes.items()
        for site in run.sites
        for head, value in enumerate(run.readings(probe)[site.name].values.reshape(-1, site.n_heads).mean(0))
    ]
    return pd.DataFrame(rows)


def _of_model(model: HookedModel) -> pd.DataFrame:
    data: CopiedSegments = copied_segments(_vocabulary(), N_CTX, 256, seed=_UNSEEN + 1, prefix=[BOS])
    loss = model.token_loss(data.tokens).double()
    values = {
        "loss": loss.mean(),
        "copy_loss": loss[data.copied[:, 1:]].mean(),
        "in_context_learning": loss[:, LATE.start - 1 : LATE.stop - 1].mean()
        - loss[:, EARLY.start - 1 : EARLY.stop - 1].mean(),
    }
    return pd.DataFrame([{"metric": m, "layer": -1, "head": -1, "value": float(v)} for m, v in values.items()])


def _told(found: pd.DataFrame) -> list[str]:
    """A line for each checkpoint, and the verdict."""
    whole = found[found["layer"] < 0].pivot(index="step", columns="metric", values="value")
    heads = {metric: strongest(found, metric).set_index("step") for metric in ("prefix_matching", "previous_token")}
    title = {metric: f"{head['name'].iloc[0]} {metric}" for metric, head in heads.items()}
    lines = [
        f"{'step':>6}{'loss':>8}{'copied':>8}{'late−early':>12}{title['prefix_matching']:>24}{title['previous_token']:>24}"
    ]
    for step, row in whole.iterrows():
        values = (heads[metric].loc[step, "value"] for metric in heads)
        lines.append(
            f"{step:>6}{row['loss']:>8.2f}{row['copy_loss']:>8.2f}{row['in_context_learning']:>12.2f}"
            + "".join(f"{value:>24.2f}" for value in values)
        )
    last = {metric: float(head["value"].iloc[-1]) for metric, head in heads.items()}
    formed = [
        name
        for name, metric in (("induction", "prefix_matching"), ("previous-token", "previous_token"))
        if last[metric] > THRESHOLD
    ]
    lines.append(f"heads above {THRESHOLD}: {' and '.join(formed) or 'none'}")
    return lines


if __name__ == "__main__":
    torch.set_num_threads(1)  # so that the same machine gives the same weights
    main(tyro.cli(Config, description=Config.__doc__))
