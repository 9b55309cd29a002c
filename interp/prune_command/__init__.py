"""`interp prune`: score heads, cut the lowest out, fine-tune if asked to, save the smaller model, say what it costs.

An interrupted command leaves what it has decided and trained in a folder beside the one that was asked for, and goes on
from there with ``--resume``; the folder itself appears whole or not at all.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from interp.errors import UserError
from interp.flags import Prune
from interp.models.hooked import HookedModel
from interp.models.loading import load
from interp.models.pruning import prune, save_plain, save_pruned
from interp.models.pruning.cost import CLOCKS, measure_times, ratios, sizes
from interp.models.pruning.recovery import TextData, losses_table, mean_losses, recover, recovery_config
from interp.prune_command.choosing import choose
from interp.prune_command.texts import Texts, batches
from interp.prune_command.unfinished import Unfinished
from interp.results.storage import plain

__all__ = ["carry_out"]

Say = Callable[[str], None]


def carry_out(flags: Prune, say: Say) -> Path:
    """Prune as the flags say; returns the folder of the pruned model.

    Args:
        say: takes the lines of the report.

    Raises:
        UserError: as the parts do; the folder is there already, or an interrupted command's beside it.
    """
    unfinished = Unfinished(flags)
    unfinished.check_free()
    place = {"device_map" if flags.device == "auto" else "device": flags.device, "dtype": flags.dtype}
    given: dict[str, Any] = {name: value for name, value in place.items() if value is not None}
    model = load(flags.model, trust_remote_code=flags.trust_remote_code, **given)
    if flags.recover:
        model.require_loss()  # before anything takes long
    texts = Texts.read(model, flags) if flags.needs_text else None
    kept, how = unfinished.decided(model, lambda: choose(model, flags, texts))
    before, losses = sizes(model, _counted(model, flags)), {}
    if texts is not None and _has_loss(model):
        losses["unpruned"] = mean_losses(model, batches(texts.held_out, flags))
    pruned = prune(model, kept, in_place=not flags.times)
    pruned.info["pruning"]["history"].append(how)
    measured: dict[str, Any] = {}
    if losses and texts is not None:
        losses["pruned"] = mean_losses(pruned, batches(texts.held_out, flags))
        if flags.recover:
            _recover(pruned, texts, flags, unfinished.folder)
            losses["recovered"] = mean_losses(pruned, batches(texts.held_out, flags))
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
        by_clock = {clock: ratios(times, clock).to_dict("records") for clock in CLOCKS}
        measured["times"] = {"attention": times.attention, "ratios": by_clock}
    pruned.info["pruning"]["measured"] = plain(measured)
    _save(pruned, flags)
    unfinished.remove()
    for line in report(pruned, measured, how):
        say(line)
    return flags.out


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
    for row in measured.get("times", {}).get("ratios", {}).get("seconds", []):
        where = f"{row['phase']}, {row['batch_size']} × {row['length']} tokens"
        interval = f"[{row['ci_low']:.3f}, {row['ci_high']:.3f}]"
        yield f"time, {row['variant']} / unpruned, {where}: {row['ratio']:.3f} {interval}"


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
