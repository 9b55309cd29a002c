"""`interp prune`: score heads, cut the lowest out, fine-tune if asked to, save the smaller model, say what it costs.

An interrupted command leaves what it has decided and trained in a folder beside the one that was asked for, and goes on
from there with ``--resume``; the folder itself appears whole or not at all.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from torch import Tensor

from interp import results
from interp.data import SAMPLE, Sequences, read_documents, windows
from interp.errors import UserError
from interp.flags import Prune
from interp.importance import michel, random_order, weight_norm
from interp.models.files import read_json
from interp.models.hooked import HookedModel
from interp.models.loading import load
from interp.models.pruning import (
    keep_in_each_layer,
    keep_share,
    keep_uniform,
    kept_after,
    parse_heads,
    prune,
    save_plain,
    save_pruned,
    scores_of,
)
from interp.models.pruning.cost import measure_times, ratios, sizes
from interp.models.pruning.heads import Kept
from interp.models.pruning.recovery import TextData, losses_table, mean_losses, recover, recovery_config
from interp.results.storage import plain, to_json, write_file

__all__ = ["Texts", "carry_out", "choose"]

Say = Callable[[str], None]


def carry_out(flags: Prune, say: Say) -> Path:
    """Prune as the flags say; returns the folder of the pruned model.

    Args:
        say: takes the lines of the report.

    Raises:
        UserError: as the parts do; the folder is there already, or an interrupted command's beside it.
    """
    unfinished = _Unfinished(flags)
    unfinished.check_free()
    place = {"device_map" if flags.device == "auto" else "device": flags.device, "dtype": flags.dtype}
    given: dict[str, Any] = {name: value for name, value in place.items() if value is not None}
    model = load(flags.model, trust_remote_code=flags.trust_remote_code, **given)
    texts = Texts.read(model, flags) if flags.needs_text else None
    kept, how = unfinished.decided(model, lambda: choose(model, flags, texts))
    before, losses = sizes(model, _counted(model, flags)), {}
    if texts is not None and _has_loss(model):
        losses["unpruned"] = mean_losses(model, _batches(texts.held_out, flags))
    pruned = prune(model, kept, in_place=not flags.times)
    pruned.info["pruning"]["history"].append(how)
    measured: dict[str, Any] = {}
    if losses and texts is not None:
        losses["pruned"] = mean_losses(pruned, _batches(texts.held_out, flags))
        if flags.recover:
            _recover(pruned, texts, flags, unfinished.folder)
            losses["recovered"] = mean_losses(pruned, _batches(texts.held_out, flags))
        table = losses_table(dict(losses), texts.held_out.document)
        measured["losses"] = table.to_dict("records")
        measured["losses_on"] = texts.held_out.describe()
    measured["sizes"] = {
        "length": _counted(model, flags),
        "before": before,
        "after": sizes(pruned, _counted(model, flags)),
    }
    if flags.times:
        times = measure_times(model, pruned, batch_sizes=flags.batch_sizes, lengths=flags.lengths, rounds=flags.rounds)
        measured["times"] = {"attention": times.attention, "ratios": ratios(times).to_dict("records")}
    pruned.info["pruning"]["measured"] = plain(measured)
    _save(pruned, flags)
    unfinished.remove()
    for line in report(pruned, measured, how):
        say(line)
    return flags.out


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


def report(pruned: HookedModel, measured: dict[str, Any], how: dict[str, Any]) -> Iterator[str]:
    """What was done, in a few lines."""
    found = pruned.info["pruning"]["sites"].values()
    left = sum(0 if site["silent"] else len(site["kept"]) for site in found)
    total = sum(site["n_heads"] for site in found)
    yield f"heads: {left} of {total} stay ({how['how']})"
    if silent := sum(site["silent"] for site in found):
        yield f"silent heads, for layers that lost all: {silent}"
    before, after = measured["sizes"]["before"], measured["sizes"]["after"]
    words = {
        "parameters": "parameters", "cache_bytes_per_token": "cache, bytes per token",
        "flops_per_token": f"FLOPs per token, at {measured['sizes']['length']} tokens",
    }  # fmt: skip
    for name, said in words.items():
        if before[name]:
            yield f"{said}: {before[name]:,.0f} → {after[name]:,.0f} ({after[name] / before[name] - 1:+.1%})"
    for row in measured.get("losses", []):
        change = f", {row['change']:+.4f} [{row['change_low']:+.4f}, {row['change_high']:+.4f}]"
        yield f"loss, {row['model']}: {row['loss']:.4f}{change if row['model'] != 'unpruned' else ''}"
    for row in measured.get("times", {}).get("ratios", []):
        where = f"{row['phase']}, {row['batch_size']} × {row['length']} tokens"
        interval = f"[{row['ci_low']:.3f}, {row['ci_high']:.3f}]"
        yield f"time, {row['variant']} / unpruned, {where}: {row['ratio']:.3f} {interval}"


# Texts ------------------------------------------------------------------------------------------------------------


@dataclasses.dataclass(frozen=True, eq=False)
class Texts:
    """Windows of text for three uses; no document serves two of them, unless there are too few documents.

    Attributes:
        scored: heads are scored on them. held_out: losses are reported on them. trained: a recovery sees them.
    """

    scored: Sequences
    held_out: Sequences
    trained: Sequences

    @classmethod
    def read(cls, model: HookedModel, flags: Prune) -> Texts:
        """Cut the text into windows and divide them.

        Raises:
            UserError: no tokenizer, or a text that is too short.
        """
        length = flags.length if model.n_ctx is None else min(flags.length, model.n_ctx)
        wanted = 2 * flags.sequences + (flags.recover * flags.batch_size)
        found = windows(
            read_documents(flags.text or SAMPLE), model.tokenizer, length, n=max(wanted, 3), seed=flags.seed,
            vocab_size=model.d_vocab, context=model.n_ctx,
        )  # fmt: skip
        if len(found) < 3:
            raise UserError(f"the text gives {len(found)} windows of {length} tokens, at least 3 are needed: --length")
        parts = _divided(found, flags)
        return cls(*(found.select(np.array(part, dtype=np.int64)) for part in parts))


def _divided(found: Sequences, flags: Prune) -> list[list[int]]:
    """Numbers of the windows to score on, to report on, and to train on."""
    rng = np.random.default_rng(flags.seed)
    documents = found.document.numpy()
    labels = documents if len(set(documents.tolist())) >= 6 else np.arange(len(found))
    most = min(flags.sequences, max(1, len(found) // (4 if flags.recover else 2)))
    parts: list[list[int]] = [[], [], []]
    for label in rng.permutation(np.unique(labels)):
        mine = np.flatnonzero(labels == label).tolist()
        which = next((i for i in (0, 1) if len(parts[i]) < most), 2)
        parts[which] += mine
    parts[:2] = [sorted(part)[:most] for part in parts[:2]]
    return [sorted(part) for part in parts]


def _batches(sequences: Sequences, flags: Prune) -> list[Tensor]:
    return [batch.tokens for batch in sequences.batches(flags.batch_size)]


def _has_loss(model: HookedModel) -> bool:
    try:
        model.require_loss()
    except UserError:
        return False
    return True


def _counted(model: HookedModel, flags: Prune) -> int:
    """How many tokens arithmetic is counted for."""
    return min(max(flags.lengths), model.n_ctx or max(flags.lengths))


# Parts ------------------------------------------------------------------------------------------------------------


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
    batches = [{"tokens": tokens} for tokens in _batches(texts.scored, flags)]
    table = michel(model, batches, lambda model, batch: model.token_loss(**batch).mean(1))
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
    return gates[gates["penalty"] == penalty]


def _read_table(file: Path) -> pd.DataFrame:
    if not file.is_file():
        raise UserError(f"--scores {file}: there is no such file")
    if file.suffix not in (".parquet", ".csv"):
        raise UserError(f"--scores {file}: a table is a .parquet or .csv file")
    try:
        return pd.read_parquet(file) if file.suffix == ".parquet" else pd.read_csv(file)
    except (ValueError, OSError) as error:
        raise UserError(f"--scores {file} cannot be read as a table: {error}") from error


def _recover(pruned: HookedModel, texts: Texts, flags: Prune, folder: Path) -> None:
    if not len(texts.trained):
        raise UserError(
            "the text leaves no windows to train on beside those to score and to report on: give more --text"
        )
    config = recovery_config(
        flags.recover, learning_rate=flags.learning_rate, save_every=max(1, flags.recover // 10), seed=flags.seed
    )
    data = TextData(texts.trained.tokens, min(flags.batch_size, len(texts.trained)), flags.seed)
    recover(pruned, data, config, out=folder, resume=True)
    pruned.info["pruning"]["history"][-1]["recovery"]["trained_on"] = texts.trained.describe()


def _save(pruned: HookedModel, flags: Prune) -> None:
    if flags.uniform:
        save_plain(pruned, flags.out)
    else:
        save_pruned(pruned, flags.out, weights=not flags.without_weights)


class _Unfinished:
    """The folder of a command that is under way: what it has decided, and the state of its training."""

    def __init__(self, flags: Prune) -> None:
        self.flags = flags
        self.folder = flags.out.parent / f".{flags.out.name}.unfinished"
        self.plan = self.folder / "plan.json"

    def check_free(self) -> None:
        """Refuse to write where something is, or to begin anew what was interrupted."""
        out, flags = self.flags.out, self.flags
        if out.exists() and (not out.is_dir() or any(out.iterdir())):
            raise UserError(f"{out} is there already, and nothing is overwritten: choose another --out, or remove it")
        if self.folder.exists() and flags.force:
            shutil.rmtree(self.folder)
        if self.folder.exists() and not flags.resume:
            raise UserError(
                f"an interrupted pruning into {out} was found; --resume goes on with it, --force starts again"
            )

    def decided(
        self, model: HookedModel, choose: Callable[[], tuple[Kept, dict[str, Any]]]
    ) -> tuple[Kept, dict[str, Any]]:
        """What stays, as it was decided before the interruption, or now.

        Raises:
            UserError: what was interrupted had other settings, or was of another model.
        """
        inputs = self._inputs(model)
        if self.plan.is_file():
            before = read_json(self.plan)
            if before.get("inputs") != inputs:
                raise UserError(
                    f"the interrupted pruning into {self.flags.out} had other settings or another model: --force "
                    "starts again, another --out leaves it alone"
                )
            return {name: tuple(heads) for name, heads in before["kept"].items()}, before["how"]
        kept, how = choose()
        self.folder.mkdir(parents=True, exist_ok=True)
        write_file(self.plan, to_json({"inputs": inputs, "kept": kept, "how": how}))
        return kept, how

    def remove(self) -> None:
        """Nothing is left to go on with."""
        shutil.rmtree(self.folder, ignore_errors=True)

    def _inputs(self, model: HookedModel) -> str:
        """A hash of all that the result depends on."""
        free = ("out", "resume", "force", "debug", "times", "batch_sizes", "lengths", "rounds")
        chosen = {n: v for n, v in dataclasses.asdict(self.flags).items() if n not in free}
        said = json.dumps(plain({"model": model.info.get("weights_sha256"), "flags": chosen}), sort_keys=True)
        return hashlib.sha256(said.encode()).hexdigest()
