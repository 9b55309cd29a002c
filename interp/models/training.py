"""A short training loop: AdamW, warm-up and cosine, clipping, checkpoints at chosen steps, exact resume.

The data is a function of the step, so that a resumed run sees what an uninterrupted one would have seen::

    def batch(step):
        return tokens[step * 32 : (step + 1) * 32]

    history = train(model, batch, TrainingConfig(steps=2000, checkpoints=(0, 500, 1000, 2000)), out="runs/mine")
"""

from __future__ import annotations

import dataclasses
import math
import os
import pickle
import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pandas as pd
import torch
from jaxtyping import Float, Int
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn
from torch import Tensor, nn

from interp.errors import UserError
from interp.models.files import SAFETENSORS
from interp.models.transformer import Transformer, save_transformer
from interp.models.transformer.storage import save_weights

__all__ = ["Batch", "Dataset", "DivergedError", "TrainingConfig", "checkpoint_folders", "loss_of", "train"]

Batch = Int[Tensor, "batch position"] | tuple[Int[Tensor, "batch position"], Int[Tensor, "batch position"]]
"""Tokens, whose next tokens are to be predicted; or tokens and targets, −100 where none is."""

Dataset = Callable[[int], Batch]
"""The batch of a step, which depends on the step alone."""

RESUME = "resume.pt"
_COLUMNS = ("step", "loss", "learning_rate", "gradient_norm")


class DivergedError(UserError):
    """The loss became NaN or infinite. ``history``: the table of the steps before."""

    def __init__(self, message: str, history: pd.DataFrame) -> None:
        super().__init__(message)
        self.history = history


@dataclass(frozen=True)
class TrainingConfig:
    """How a model is trained.

    Attributes:
        steps: optimiser steps to take.
        horizon: step at which the learning rate reaches its end; ``steps`` when None. With a longer one, training stops
            before the rate has fallen that far.
        learning_rate: at its highest. ``warmup``: steps in which it rises to that, linearly.
        final_share: of the highest rate that is left at the horizon, along a cosine.
        betas, weight_decay: of AdamW; parameters of one dimension (gains, biases) do not decay.
        clip: largest norm of the gradient.
        balance: weight of the load-balancing loss of a mixture of experts.
        checkpoints: steps after which weights are saved; 0 is before the first.
        stored: dtype of the checkpoints' files.
        save_every: steps between two states to resume from; None: only at the end.
        seed: of torch's random numbers, which only a model with dropout draws.
    """

    steps: int = 2000
    horizon: int | None = None
    learning_rate: float = 2e-3
    warmup: int = 100
    final_share: float = 0.1
    betas: tuple[float, float] = (0.9, 0.98)
    weight_decay: float = 0.01
    clip: float = 1.0
    balance: float = 0.01
    checkpoints: tuple[int, ...] = ()
    stored: str = "float32"
    save_every: int | None = None
    seed: int = 0

    def __post_init__(self) -> None:
        if self.steps < 1 or (self.horizon is not None and self.horizon < 1) or self.warmup < 0:
            raise UserError(f"steps and horizon must be at least 1, warmup at least 0; got {self}")
        if not self.learning_rate > 0 or not self.clip > 0 or not 0 <= self.final_share <= 1:
            raise UserError(f"learning_rate and clip must be above 0, final_share between 0 and 1; got {self}")
        if self.save_every is not None and self.save_every < 1:
            raise UserError(f"save_every must be at least 1; got {self.save_every}")
        if outside := [step for step in self.checkpoints if not 0 <= step <= self.steps]:
            raise UserError(f"checkpoints must lie in 0 … {self.steps}; got {outside}")
        if self.stored not in ("float32", "float16", "bfloat16"):
            raise UserError(f"checkpoints are stored in float32, float16 or bfloat16; got {self.stored!r}")

    def rate(self, step: int) -> float:
        """Learning rate of step 0, 1, …"""
        if step < self.warmup:
            return self.learning_rate * (step + 1) / self.warmup
        horizon = self.horizon or self.steps
        done = min(1.0, (step - self.warmup) / max(1, horizon - self.warmup))
        share = self.final_share + (1 - self.final_share) * (1 + math.cos(math.pi * done)) / 2
        return self.learning_rate * share


def train(
    model: nn.Module,
    data: Dataset,
    config: TrainingConfig = TrainingConfig(),
    out: str | Path | None = None,
    *,
    resume: bool = False,
    watch: Callable[[int, nn.Module], None] | None = None,
) -> pd.DataFrame:
    """Train a model in place.

    Args:
        model: whose output has ``logits``, and ``balance`` where it has experts.
        data: the batch of each step.
        out: folder for checkpoints (``checkpoints/step-000500/``) and for the state to resume from (``resume.pt``).
        resume: go on from that state, if there is one. What comes out is, to the bit, what an uninterrupted run gives.
        watch: called with the step and the model at every checkpoint, in eval mode.

    Returns:
        One row a step: ``step`` (from 1), ``loss`` (nats, of the batch, before the step), ``learning_rate``,
        ``gradient_norm`` (before clipping).

    Raises:
        UserError: checkpoints, save_every or resume without ``out``; a state of another run.
        DivergedError: the loss is not finite.
    """
    folder = None if out is None else Path(out)
    if folder is None and (resume or config.save_every or (config.checkpoints and watch is None)):
        raise UserError("checkpoints and states to resume from need a folder: give out")
    run = _Run(model, config, folder)
    if not (resume and run.restore()):
        torch.manual_seed(config.seed)
        run.at_checkpoint(watch)
    with _progress(config.steps, run.step) as shown:
        while run.step < config.steps:
            shown(run.take_step(data(run.step)))
            run.at_checkpoint(watch)
            if folder is not None and (run.step == config.steps or _is_due(run.step, config.save_every)):
                run.save()
    model.eval()
    return run.table


def loss_of(model: nn.Module, batch: Batch, balance: float = 0.0) -> tuple[Float[Tensor, ""], Float[Tensor, ""]]:
    """What is minimised, and the prediction's mean loss in nats, which is a part of it.

    Args:
        balance: weight of the load-balancing loss, where the model has one.
    """
    tokens, targets = batch if isinstance(batch, tuple) else (batch, None)
    device = next(model.parameters()).device
    output = model(tokens.to(device))
    if targets is None:
        logits, targets = output.logits[:, :-1], tokens[:, 1:]
    else:
        logits = output.logits
    loss = nn.functional.cross_entropy(logits.flatten(0, 1).float(), targets.to(device).flatten())
    extra = getattr(output, "balance", None)
    return loss if extra is None else loss + balance * extra, loss.detach()


def checkpoint_folders(folder: str | Path) -> dict[int, Path]:
    """The checkpoints in a folder by their step, ascending: subfolders whose name ends in the step's number.

    Understands ``step-000500``, ``checkpoint-500`` and ``step500``, in the folder or in its ``checkpoints/``. Whether a
    checkpoint is whole shows when it is loaded.

    Raises:
        UserError: there is none, or two of one step.
    """
    folder = Path(folder)
    found: dict[int, Path] = {}
    for place in (*folder.glob("checkpoints/*"), *folder.glob("*")):
        number = re.fullmatch(r"(?:step|checkpoint)[-_]?(\d+)", place.name)
        if number is None or not place.is_dir():
            continue
        step = int(number[1])
        if step in found:
            raise UserError(f"{folder} has two checkpoints of step {step}: {found[step].name} and {place.name}")
        found[step] = place
    if not found:
        raise UserError(f"{folder} holds no checkpoints (subfolders step-N or checkpoint-N)")
    return dict(sorted(found.items()))


class _Run:
    """A training run under way."""

    def __init__(self, model: nn.Module, config: TrainingConfig, folder: Path | None) -> None:
        self.model, self.config, self.folder = model, config, folder
        self.step = 0
        self.rows: list[tuple[float, float, float]] = []
        self.parameters = [p for p in model.parameters() if p.requires_grad]
        decaying = [p for p in self.parameters if p.ndim > 1]
        plain = [p for p in self.parameters if p.ndim <= 1]
        groups = [{"params": decaying}, {"params": plain, "weight_decay": 0.0}]
        self.optimizer = torch.optim.AdamW(
            [group for group in groups if group["params"]],
            lr=config.learning_rate, betas=config.betas, weight_decay=config.weight_decay,
        )  # fmt: skip

    def take_step(self, batch: Batch) -> float:
        """One step of the optimiser; returns the loss."""
        self.model.train()
        rate = self.config.rate(self.step)
        for group in self.optimizer.param_groups:
            group["lr"] = rate
        total, loss = loss_of(self.model, batch, self.config.balance)
        if not torch.isfinite(total):
            raise DivergedError(f"the loss of step {self.step + 1} is {float(loss)}: lower learning_rate", self.table)
        self.optimizer.zero_grad(set_to_none=True)
        total.backward()
        norm = nn.utils.clip_grad_norm_(self.parameters, self.config.clip)
        self.optimizer.step()
        self.step += 1
        self.rows.append((float(loss), rate, float(norm)))
        return self.rows[-1][0]

    @property
    def table(self) -> pd.DataFrame:
        """The history."""
        return pd.DataFrame([(i + 1, *row) for i, row in enumerate(self.rows)], columns=pd.Index(_COLUMNS))

    def at_checkpoint(self, watch: Callable[[int, nn.Module], None] | None) -> None:
        """Save and show the model, if this is a step at which that is wanted."""
        if self.step not in self.config.checkpoints:
            return
        if self.folder is not None:
            place = self.folder / "checkpoints" / f"step-{self.step:06d}"
            stored = getattr(torch, self.config.stored)
            if isinstance(self.model, Transformer):
                save_transformer(self.model, place, stored=stored)
            else:
                place.mkdir(parents=True, exist_ok=True)
                save_weights(self.model, place / SAFETENSORS, stored)
        if watch is not None:
            self.model.eval()
            watch(self.step, self.model)

    # Resuming -----------------------------------------------------------------------------------------------------

    def save(self) -> None:
        """Write all that the next step depends on."""
        assert self.folder is not None
        state = {
            "step": self.step,
            "config": _fingerprint(self.config),
            "model": self.model.state_dict(),
            "optimizer": self.optimizer.state_dict(),
            "rng": torch.get_rng_state(),
            "rng_cuda": torch.cuda.get_rng_state_all() if torch.cuda.is_available() else [],
            "rows": torch.tensor(self.rows, dtype=torch.float64),
        }
        self.folder.mkdir(parents=True, exist_ok=True)
        part = self.folder / f"{RESUME}.{os.getpid()}.part"
        torch.save(state, part)
        part.replace(self.folder / RESUME)

    def restore(self) -> bool:
        """Read what :meth:`save` wrote; False where there is no such file.

        Raises:
            UserError: it is damaged, or of a run with another model or config.
        """
        assert self.folder is not None
        file = self.folder / RESUME
        if not file.exists():
            return False
        try:
            state: dict[str, Any] = torch.load(file, weights_only=True, map_location="cpu")
        except (OSError, RuntimeError, EOFError, pickle.UnpicklingError) as error:
            raise UserError(f"{file} cannot be read ({error}): remove it to begin again") from error
        here = _fingerprint(self.config)
        if changed := [name for name, value in here.items() if state["config"].get(name) != value]:
            raise UserError(
                f"{file} is of a run with other settings ({', '.join(changed)}); only steps, checkpoints, stored and "
                "save_every may change (and steps only under a horizon): remove it to begin again"
            )
        try:
            self.model.load_state_dict(state["model"])
            self.optimizer.load_state_dict(state["optimizer"])
        except (RuntimeError, ValueError) as error:
            raise UserError(f"{file} is of another model ({error}): remove it to begin again") from error
        torch.set_rng_state(state["rng"])
        if state["rng_cuda"] and torch.cuda.is_available():
            torch.cuda.set_rng_state_all(state["rng_cuda"])
        self.step, self.rows = state["step"], [tuple(row) for row in state["rows"].tolist()]
        return True


def _fingerprint(config: TrainingConfig) -> dict[str, Any]:
    """The settings on which a step depends."""
    fields = dataclasses.asdict(config)
    free = ("steps", "checkpoints", "save_every", "stored")
    return {
        **{
            name: list(value) if isinstance(value, tuple) else value
            for name, value in fields.items()
            if name not in free
        },
        "horizon": config.horizon or config.steps,
    }


def _is_due(step: int, every: int | None) -> bool:
    return every is not None and step % every == 0


@contextmanager
def _progress(total: int, done: int) -> Iterator[Callable[[float], None]]:
    """Steps, loss and time left on standard error, where that is a terminal."""
    console = Console(stderr=True)
    columns = (TextColumn("training"), BarColumn(), MofNCompleteColumn(), TextColumn("loss {task.fields[loss]:.3f}"))
    with Progress(
        *columns, TimeRemainingColumn(), console=console, transient=True, disable=not console.is_terminal
    ) as bar:
        task = bar.add_task("", total=total, completed=done, loss=float("nan"))
        yield lambda loss: bar.update(task, advance=1, loss=loss)
