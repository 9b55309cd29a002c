"""Are redundant heads useful while training? Small models with few heads from scratch, and the same cut out of larger.

Three models a start, each trained for as many steps on the same data: one with all heads (*whole*); one that has few
heads from the beginning (*scratch*); one that is trained with all of them, cut to as few by importance (*cut*: before
it is trained on) and trained on (*pruned*). Scratch and pruned have the same shape in the end. Each also with head
dropout (Zhou et al. 2020) until the moment of cutting: in every sequence a head is left out with some probability, the
others scaled up. What is learned is to go on with a sequence that repeats, which takes a circuit of two layers.
"""

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

import numpy as np
import pandas as pd
import torch
from jaxtyping import Float, Int
from numpy.typing import NDArray
from torch import Tensor, nn

from analyses.head_pruning.config import Config
from interp import HookedModel
from interp.ablation import Batch
from interp.importance import michel
from interp.models.pruning import keep_in_each_layer, prune, scores_of
from interp.models.training import TrainingConfig, train
from interp.models.transformer import Transformer, TransformerConfig, hook_transformer
from interp.results import Workspace
from interp.results.tables import empty_table
from interp.statistics import mean_interval

N_HEADS, FEWER, DROPOUTS = 8, (1, 2), (0.0, 0.2)
_D_VOCAB, _LENGTH, _PERIODS, _BATCH, _HELD_OUT = 64, 32, (6, 16), 64, 256
_AFTER = 0.25  # share of the steps that come after cutting
_SHAPE = TransformerConfig(d_vocab=_D_VOCAB, n_ctx=_LENGTH, d_model=48, n_layers=2, d_head=6, rotary_base=100.0)
_COLUMNS = {
    "model": str, "n_heads": int, "dropout": float, "loss": float, "ci_low": float, "ci_high": float, "change": float,
    "change_low": float, "change_high": float, "n": int, "steps": int,
}  # fmt: skip


def table(
    config: Config, work: Workspace, finished: Callable[[int, int], None] = lambda seed, trained: None
) -> pd.DataFrame:
    """The table ``from_scratch``: mean loss on held-out sequences over seeds, and its difference from *scratch* with as
    many heads (for *whole*: the most of them) and the same dropout, paired by seed, with intervals over seeds.

    ``finished`` hears of each seed that was trained now, and of how many these are.
    """
    if not config.is_full:
        work.skip("small models with few heads from scratch, against larger ones cut to as few", "budget is report")
        return empty_table(_COLUMNS)
    trained: list[int] = []

    def losses(seed: int) -> dict[str, pd.DataFrame]:
        trained.append(seed)
        return {"losses": of_seed(seed, config)}

    parts = []
    for seed in range(config.seed, config.seed + config.scratch_seeds):
        before = len(trained)
        parts.append(work.step(f"from-scratch-{seed}", lambda seed=seed: losses(seed))["losses"])
        if len(trained) > before:
            finished(seed, len(trained))
    return _summarised(pd.concat(parts, ignore_index=True), config)


def of_seed(seed: int, config: Config) -> pd.DataFrame:
    """All models of one seed (of weights, data and dropout): ``seed, model, n_heads, dropout, loss``."""
    rows = []
    for dropout in DROPOUTS:
        first, after = _phases(config, seed)
        many = _trained(_new(N_HEADS, seed), first, seed, dropout)
        importance = michel(hook_transformer(many), [{"tokens": _tokens(_BATCH, seed, 2)}], _repeated_loss)
        for fewer in FEWER:
            scratch = _trained(_trained(_new(fewer, seed), first, seed, dropout), after, seed, 0.0)
            rows.append((seed, "scratch", fewer, dropout, held_out_loss(scratch, seed)))
            hooked = hook_transformer(many)
            small: Any = prune(hooked, keep_in_each_layer(hooked, scores_of(importance, "importance"), fewer)).module
            rows.append((seed, "cut", fewer, dropout, held_out_loss(small, seed)))
            rows.append((seed, "pruned", fewer, dropout, held_out_loss(_trained(small, after, seed, 0.0), seed)))
        rows.append((seed, "whole", N_HEADS, dropout, held_out_loss(_trained(many, after, seed, 0.0), seed)))
    return pd.DataFrame(rows, columns=pd.Index(["seed", "model", "n_heads", "dropout", "loss"]))


@torch.no_grad()
def held_out_loss(model: Transformer, seed: int) -> float:
    """Mean loss in nats of the second occurrences, on sequences that no model is trained on."""
    return float(_of_repeats(model(_tokens(_HELD_OUT, seed, 3)).logits, _tokens(_HELD_OUT, seed, 3)).mean())


@contextmanager
def head_dropout(model: Transformer, share: float, seed: int) -> Iterator[None]:
    """While a model is in training mode, leave each head out of each sequence with a probability; the others are scaled
    by 1 / (1 − share), so that what the layer adds stays the same on average."""
    generator = torch.Generator().manual_seed(seed)

    def drop(d_head: int) -> Callable[..., Any]:
        def hook(projection: nn.Module, given: tuple[Tensor, ...]) -> Any:
            if not projection.training:
                return None
            z = given[0]
            stays = torch.rand(len(z), 1, z.shape[-1] // d_head, generator=generator) >= share
            return (z * (stays / (1 - share)).repeat_interleave(d_head, -1),)

        return hook

    with ExitStack() as hooks:
        for block in model.blocks if share > 0 else ():
            attention: Any = block.attn
            hooks.callback(attention.o_proj.register_forward_pre_hook(drop(attention.d_head)).remove)
        yield


# Parts ----------------------------------------------------------------------------------------------------------------


def _new(n_heads: int, seed: int) -> Transformer:
    fields = {**_SHAPE.to_dict(), "n_heads": n_heads}
    return Transformer(TransformerConfig.from_dict(fields), seed)


def _phases(config: Config, seed: int) -> tuple[TrainingConfig, TrainingConfig]:
    """Training before and after the moment of cutting."""
    after = max(1, round(_AFTER * config.scratch_steps))
    before = max(1, config.scratch_steps - after)
    warmup = min(50, before // 4)
    return (
        TrainingConfig(steps=before, learning_rate=5e-3, warmup=warmup, final_share=0.3, seed=seed),
        TrainingConfig(steps=after, learning_rate=1.5e-3, warmup=0, seed=seed + 1),
    )


def _trained(model: Transformer, config: TrainingConfig, seed: int, dropout: float) -> Transformer:
    model.set_attn_implementation("sdpa")
    tokens = _tokens(_BATCH * config.steps, seed, config.seed - seed).split(_BATCH)
    with torch.random.fork_rng(devices=[]), head_dropout(model, dropout, seed):
        train(model, lambda step: _with_targets(tokens[step]), config)
    return model


def _tokens(n: int, seed: int, part: int) -> Int[Tensor, "sequence position"]:
    """Random tokens that repeat with a period drawn for each sequence, so that no fixed distance finds them.

    ``part``: 0 and 1 are trained on, 2 scores heads, 3 is held out.
    """
    rng = np.random.default_rng([seed, part])
    tokens = rng.integers(_D_VOCAB, size=(n, _LENGTH))
    period = rng.integers(_PERIODS[0], _PERIODS[1] + 1, size=(n, 1))
    return torch.from_numpy(np.take_along_axis(tokens, np.arange(_LENGTH) % period, 1))


def _with_targets(tokens: Int[Tensor, "sequence position"]) -> tuple[Tensor, Tensor]:
    """Tokens, and the next ones where they can be told: after the longest period."""
    targets = torch.full_like(tokens, -100)
    targets[:, _PERIODS[1] : -1] = tokens[:, _PERIODS[1] + 1 :]
    return tokens, targets


def _of_repeats(logits: Tensor, tokens: Int[Tensor, "sequence position"]) -> Float[Tensor, " sequence"]:
    _, targets = _with_targets(tokens)
    loss = nn.functional.cross_entropy(logits.transpose(1, 2), targets, reduction="none", ignore_index=-100)
    return loss.sum(1) / (targets != -100).sum(1)


def _repeated_loss(model: HookedModel, batch: Batch) -> Float[Tensor, " sequence"]:
    logits: Any = model.run(**batch).logits
    return _of_repeats(logits, batch["tokens"])


def _summarised(losses: pd.DataFrame, config: Config) -> pd.DataFrame:
    """Means over seeds, and paired differences from the model from scratch."""
    wide = losses.pivot(index="seed", columns=["model", "n_heads", "dropout"], values="loss")
    rows = []
    for key in wide.columns:
        model, n_heads, dropout = key
        mine: NDArray[np.float64] = wide[key].to_numpy()
        from_scratch = wide["scratch", n_heads if n_heads in FEWER else max(FEWER), dropout].to_numpy()
        loss = mean_interval(mine, bounds=(0.0, np.inf), seed=config.seed)
        change = mean_interval(mine - from_scratch, seed=config.seed)
        rows.append(
            {"model": model, "n_heads": n_heads, "dropout": dropout, "loss": float(loss.value),
             "ci_low": float(loss.low), "ci_high": float(loss.high), "change": float(change.value),
             "change_low": float(change.low), "change_high": float(change.high), "n": int(change.n),
             "steps": config.scratch_steps}
        )  # fmt: skip
    return pd.DataFrame(rows).astype({name: kind for name, kind in _COLUMNS.items() if kind is not str})
