"""Which heads stay, as the flags say."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pandas as pd

from interp import results
from interp.errors import UserError
from interp.flags import Prune
from interp.importance import michel, random_order, weight_norm
from interp.models.hooked import HookedModel
from interp.models.pruning import keep_in_each_layer, keep_share, keep_uniform, kept_after, parse_heads, scores_of
from interp.models.pruning.heads import Kept
from interp.prune_command.texts import Texts, batches

__all__ = ["choose"]


def choose(model: HookedModel, flags: Prune, texts: Texts | None = None) -> tuple[Kept, dict[str, Any]]:
    """Which heads stay, and how that was decided.

    Raises:
        UserError: scores that cannot be had for this model, or a number of heads that it cannot keep.
    """
    if flags.heads is not None:
        removed = parse_heads(flags.heads)
        return kept_after(model, removed), {"how": "heads named", "removed": len(removed)}
    scores, how = _scores(model, flags, texts)
    if flags.keep is None and flags.per_layer is None:
        opened = _gates(model, flags)
        closed = [(r["site"], r["head"]) for r in opened.to_dict("records") if r["gate"] == 0]
        return kept_after(model, closed), how
    if flags.uniform:
        n_heads = model.sites[0].n_heads
        number = flags.per_layer if flags.per_layer is not None else round((flags.keep or 0) * n_heads)
        return keep_uniform(model, scores, number), how | {"in_each_layer": number, "uniform": True}
    if flags.per_layer is not None:
        return keep_in_each_layer(model, scores, flags.per_layer), how | {"in_each_layer": flags.per_layer}
    assert flags.keep is not None
    return keep_share(model, scores, flags.keep), how | {"share": flags.keep}


def _scores(
    model: HookedModel, flags: Prune, texts: Texts | None
) -> tuple[dict[tuple[str, int], float], dict[str, Any]]:
    if flags.scores is not None:
        return scores_of(_read_table(flags.scores), flags.column), {"how": f"{flags.column} of {flags.scores.name}"}
    if flags.by == "gates":
        gates = _gates(model, flags)
        how = {"how": "gates", "run": str(flags.run), "penalty": float(gates["penalty"].iloc[0])}
        return scores_of(gates, "log_alpha"), how
    if flags.by == "random":
        return scores_of(random_order(model, flags.seed), "random"), {"how": "random", "seed": flags.seed}
    if flags.by == "weight_norm":
        return scores_of(weight_norm(model), "weight_norm"), {"how": "weight_norm"}
    assert texts is not None
    try:
        model.require_loss()
    except UserError as error:
        raise UserError(
            f"importance is that for the next-token loss, and {error}. Score heads with --by weight_norm or random, or "
            "give --scores FILE"
        ) from error
    given = [{"tokens": tokens} for tokens in batches(texts.scored, flags)]
    table = michel(model, given, lambda model, batch: model.token_loss(**batch).mean(1))
    return scores_of(table, "importance"), {"how": "importance", "scored_on": texts.scored.describe()}


def _gates(model: HookedModel, flags: Prune) -> pd.DataFrame:
    """The gates that a finished run has trained, at one penalty.

    Raises:
        UserError: there are none, or none at that penalty, or they are of another model.
    """
    assert flags.run is not None
    result = results.load(flags.run, "head-pruning")
    gates = result.tables.get("gates", pd.DataFrame())
    if not len(gates):
        raise UserError(
            f"{flags.run} has no trained gates: interp run head-pruning {flags.model} --budget full --out {flags.run}"
        )
    trained_on, mine = result.provenance["model"].get("weights_sha256"), model.info.get("weights_sha256")
    if trained_on != mine:
        raise UserError(f"the gates of {flags.run} are of a model with other weights ({str(trained_on)[:12]}…)")
    penalties = sorted(gates["penalty"].unique().tolist())
    penalty = penalties[-1] if flags.penalty is None else flags.penalty
    if penalty not in penalties:
        raise UserError(f"{flags.run} has gates at the penalties {', '.join(map(str, penalties))}; got {penalty}")
    return gates.loc[gates["penalty"] == penalty].copy()


def _read_table(file: Path) -> pd.DataFrame:
    if not file.is_file():
        raise UserError(f"--scores {file}: there is no such file")
    if file.suffix not in (".parquet", ".csv"):
        raise UserError(f"--scores {file}: a table is a .parquet or .csv file")
    try:
        return pd.read_parquet(file) if file.suffix == ".parquet" else pd.read_csv(file)
    except (ValueError, OSError) as error:
        raise UserError(f"--scores {file} cannot be read as a table: {error}") from error
