"""What breaks without the strongest heads: loss on later copies, against random heads of the same layers."""

import inspect
from collections import Counter
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd
import torch
from jaxtyping import Float, Int
from torch import Tensor

from analyses.induction_heads.config import Config
from analyses.induction_heads.inputs import Inputs, passes
from analyses.induction_heads.kinds import Head, Selection
from analyses.induction_heads.measures import later_rows, why_no_loss
from interp import HookedModel
from interp.ablation import Batch, Effects, Kind, ablation_effects
from interp.models.loss import next_token_loss
from interp.results import Workspace
from interp.results.tables import empty_table
from interp.statistics import mean_interval

KINDS: tuple[Kind, ...] = ("resample", "mean", "zero", "pattern_preserving")
_COLUMNS = {
    "ablation": str, "heads": str, "n_heads": int, "chosen": str, "draw": int, "loss": float, "loss_change": float,
    "ci_low": float, "ci_high": float, "n": int, "note": str,
}  # fmt: skip


_ATTEMPTS = 20  # draws for each random set that is wanted, since some come twice


@dataclass(frozen=True)
class HeadSet:
    """Heads that are ablated together.

    Attributes:
        heads: the heads.
        chosen: "top", the strongest by prefix matching, or "random".
        draw: number of the random draw.
        note: what has to be known of it.
    """

    heads: tuple[Head, ...]
    chosen: str
    draw: int = 0
    note: str = ""


def table(model: HookedModel, given: Inputs, top: Selection, config: Config, work: Workspace) -> pd.DataFrame:
    """The table ``ablation``: loss on later copies without sets of heads, and its change, paired by sequence.

    Heads are picked on one half of the sequences, losses taken on the other; means and resampled outputs come from the
    half that picked them.
    """
    if why_no_loss(model):
        return empty_table(_COLUMNS)  # why was said with the losses
    kinds = KINDS
    if own := [site.name for site in model.sites if site.source == "softmax"]:
        kinds = ("zero",)
        work.skip("ablations but zero", f"{own[0]} computes its own attention, so only its heads' gates are in reach")
    sets = head_sets(model, top, config, work)
    if not sets:
        return empty_table(_COLUMNS)
    parts = []
    for kind in kinds:  # a step each, so that an interrupted run loses little
        made = work.step(f"ablation-{kind}", lambda kind=kind: _measured(model, given, top, sets, kind, config, work))
        parts.append(made["ablation"])
    return pd.concat(parts, ignore_index=True)


def head_sets(model: HookedModel, top: Selection, config: Config, work: Workspace) -> list[HeadSet]:
    """The strongest heads by prefix matching, in growing sets, and as many random ones of the same layers for each."""
    ranking = top.strongest("induction", config.ablated_sizes[-1])
    n_heads = {site.name: site.n_heads for site in model.sites}
    strong = set(top.strongest("induction", len(top.means["induction"]), above_threshold=True))
    sets, left_out = [], []
    if not ranking:
        work.skip("ablation", "no head has a prefix-matching score to be picked by")
        return []
    for size in config.ablated_sizes:
        if 2 * size > sum(n_heads.values()) or size > len(ranking):
            left_out.append(size)
            continue
        chosen = tuple(ranking[:size])
        sets += [HeadSet(chosen, "top"), *_different(chosen, n_heads, strong, config)]
    if left_out:
        work.skip(
            f"ablation of {', '.join(map(str, left_out))} heads together",
            f"of {sum(n_heads.values())} heads, at most half can be compared with as many random ones",
        )
    return sets


def random_like(
    chosen: Sequence[Head], n_heads: dict[str, int], strong: Collection[Head], draw: int, rng: np.random.Generator
) -> HeadSet:
    """As many random heads of the same layers as were chosen, none of them chosen, nor strong while others are left.

    Where a layer runs out of heads, the rest is drawn from all layers, and the note says how many.
    """
    drawn: list[Head] = []
    for site, count in Counter(site for site, _ in chosen).items():
        pool = [(site, head) for head in range(n_heads[site])]
        drawn += _draw(pool, chosen, strong, count, rng)
    missing = len(chosen) - len(drawn)
    everywhere = [(site, head) for site, n in n_heads.items() for head in range(n)]
    drawn += _draw(everywhere, [*chosen, *drawn], strong, missing, rng)
    note = f"{missing} of the heads are of other layers, whose own were too few" if missing else ""
    return HeadSet(tuple(sorted(drawn, key=everywhere.index)), "random", draw, note)


def _different(
    chosen: Sequence[Head], n_heads: dict[str, int], strong: Collection[Head], config: Config
) -> list[HeadSet]:
    """As many random sets as the settings ask for, all different; fewer where there are not so many."""
    rng = np.random.default_rng([config.seed, len(chosen)])
    found: dict[tuple[Head, ...], HeadSet] = {}
    for _ in range(_ATTEMPTS * config.random_draws):
        drawn = random_like(chosen, n_heads, strong, len(found), rng)
        found.setdefault(drawn.heads, drawn)
        if len(found) == config.random_draws:
            break
    return list(found.values())


def _draw(
    pool: list[Head], taken: Sequence[Head], strong: Collection[Head], count: int, rng: np.random.Generator
) -> list[Head]:
    free = [head for head in pool if head not in taken]
    # strong heads last: among heads that do the same, a random set would be no control
    order = sorted((free[i] for i in rng.permutation(len(free))), key=lambda head: head in strong)
    return order[:count]


def later_loss(rows: Int[Tensor, " row"]) -> Callable[[HookedModel, Batch], Float[Tensor, " sequence"]]:
    """A metric: the mean loss, in nats, of the tokens after some rows. Other logits are spared where they can be."""
    first = int(rows[0])

    def loss(model: HookedModel, batch: Batch) -> Float[Tensor, " sequence"]:
        tokens = torch.as_tensor(batch["tokens"])
        spare = "logits_to_keep" in inspect.signature(model.module.forward).parameters
        kept: dict[str, Any] = {"logits_to_keep": tokens.shape[1] - first} if spare else {}
        logits = model.run(**batch, **kept).logits
        valid = None if batch.get("valid") is None else batch["valid"][:, first:]
        assert logits is not None  # a model whose loss is defined has logits
        return next_token_loss(logits[:, -(tokens.shape[1] - first) :], tokens[:, first:], valid)[:, rows - first].mean(
            1
        )

    return loss


def _measured(
    model: HookedModel,
    given: Inputs,
    top: Selection,
    sets: Sequence[HeadSet],
    kind: Kind,
    config: Config,
    work: Workspace,
) -> dict[str, pd.DataFrame]:
    others = passes(model, given.repeated.select(top.selected_on), config)
    measured = given.repeated.select(top.reported_on[: config.ablated_sequences])
    effects = ablation_effects(
        model,
        passes(model, measured, config),
        later_loss(later_rows(given.repeated)),
        [each.heads for each in sets],
        (kind,),
        others=others,
        replay=True,
        watch=work.progress,
    )
    return {"ablation": pd.DataFrame(_rows(model, sets, kind, effects, config))}


def _rows(
    model: HookedModel, sets: Sequence[HeadSet], kind: Kind, effects: Effects, config: Config
) -> list[dict[str, object]]:
    layer = {site.name: site.layer for site in model.sites}
    change = mean_interval(effects.change[0].T, seed=config.seed)
    return [
        {
            "ablation": kind,
            "heads": " ".join(f"L{layer[site]}H{head}" for site, head in each.heads),
            "n_heads": len(each.heads),
            "chosen": each.chosen,
            "draw": each.draw,
            "loss": float(effects.ablated[0, number].mean()),
            "loss_change": float(change.value[number]),
            "ci_low": float(change.low[number]),
            "ci_high": float(change.high[number]),
            "n": int(change.n[number]),
            "note": each.note,
        }
        for number, each in enumerate(sets)
    ]
