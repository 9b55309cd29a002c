"""What must not make a difference: later tokens, padding, the other sequences of a batch, the mode, and where order is
told, what should: the order of the tokens."""

from __future__ import annotations

import inspect
import re
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from analyses.model_health.checks import Place, Row
from analyses.model_health.config import CHECKS, Config
from analyses.model_health.subject import Arguments, Seen, Subject, change, first_tensor
from interp.errors import UserError
from interp.models.modes import evaluating

__all__ = ["causal_claim", "rows"]

_CAUSAL_NAMES = re.compile(r"causal|gpt|LMHead|ForConditionalGeneration", re.IGNORECASE)


def rows(subject: Subject, config: Config) -> list[Row]:
    """All checks of leaks."""
    padding = _padding(subject)
    return [future(subject, config), *padding, *_batch(subject), *_mode(subject), order(subject, config)]


# Future -------------------------------------------------------------------------------------------------------------


def causal_claim(subject: Subject, causal: bool | None = None) -> str:
    """Why a model is taken to be causal; "" where it is not. ``causal``: what its owner says."""
    model = subject.model
    if causal is not None:
        return "the settings say so" if causal else ""
    own = getattr(model.config, "causal", None)
    if isinstance(own, bool):
        return "its config says so" if own else ""
    name = str(model.info.get("architecture", type(model.module).__name__))
    if _CAUSAL_NAMES.search(name):
        return f"it is a {name}"
    with torch.no_grad():
        masks = subject.run().masks
    for site in model.sites:
        if site.kind == "self" and site.name in masks and _nearly_causal(*masks[site.name]):
            return f"{site.name} forbids most later keys"
    return ""


def _nearly_causal(mask: Any, shape: Any) -> bool:
    """Whether a mask permits at most half as large a share of the later keys as of the earlier ones."""
    if mask.cross or shape.n_queries < 2 or shape.n_queries != shape.n_keys:
        return False
    bound = mask.bind(shape.batch, shape.n_heads, shape.n_queries, shape.n_keys, shape.device)
    allowed = bound.allowed(0, shape.n_queries, 0, shape.n_keys).double()
    later, earlier = float(allowed.triu(1).sum()), float(allowed.tril(-1).sum())
    return later <= earlier / 2


def future(subject: Subject, config: Config) -> Row:
    """Change one token; nothing before it may change, at any site. The first site that does is named."""
    check = CHECKS["future_leak"]
    if subject.no_positions:
        return check.not_applicable(subject.no_positions)
    claim = causal_claim(subject, config.is_causal)
    if not claim:
        return check.not_applicable("the model makes no claim to be causal; --causal yes says that it is meant to be")
    found = [_future_of(replace(subject, primary=name)) for name in _like_primary(subject)]
    value, place, note = min(found, key=lambda each: each[0])
    return check.judge(value, place, f"{note}; taken to be causal because {claim}", fail_at=subject.tolerance)


def _future_of(subject: Subject) -> tuple[float, Place, str]:
    """The largest change before a changed position at the first site that has one, whichever position it was."""
    before, length = subject.observe(), subject.length
    leaks = [0.0] * len(before)
    for position in sorted({1, length // 2, length - 1}):
        after = subject.observe(subject.changed_at(position))
        for i, (old, new) in enumerate(zip(before, after, strict=True)):
            if old.values.shape[1] == length:
                leaks[i] = max(leaks[i], float(change(old.values, new.values)[:, :position].max()))
    first = next((i for i, leak in enumerate(leaks) if leak > subject.tolerance), None)
    if first is None:
        return max(leaks, default=0.0), ("", None, None), "nothing before a changed token changed"
    seen = before[first]
    where = "" if seen.site else ", and no attention site before it did"
    return leaks[first], (seen.site, seen.layer, None), f"{seen.name} before a changed token changed{where}"


def _like_primary(subject: Subject) -> Iterator[str]:
    """Arguments that may be the sequence which attention is causal in: the primary one, and others like it."""
    like = subject.input
    for name, value in subject.arguments.items():
        same = isinstance(value, Tensor) and value.ndim == like.ndim and value.shape == like.shape
        if name == subject.primary or (subject.wrapped and same and value.dtype == like.dtype):
            yield name


# Padding ------------------------------------------------------------------------------------------------------------


def _padding(subject: Subject) -> list[Row]:
    sides = [CHECKS["padding_leak_right"], CHECKS["padding_leak_left"]]
    reason = subject.no_positions or _no_padding(subject)
    if reason:
        return [check.not_applicable(reason) for check in (*sides, CHECKS["padding_changes"])]
    found = []
    for check in sides:
        try:
            value, place, note = _padding_leak(subject, right=check.name.endswith("right"))
        except UserError as error:
            found.append(check.not_applicable(str(error)))
        else:
            found.append(check.judge(value, place, note, fail_at=subject.tolerance))
    return [*found, _padding_changes(subject)]


def _no_padding(subject: Subject) -> str:
    """Why a model cannot be told about padding; "" where it can."""
    if subject.wrapped:
        return (
            "" if subject.valid else "the module takes no boolean argument [batch, position] that says what padding is"
        )
    known = inspect.signature(subject.model.module.forward).parameters
    if "attention_mask" in known or any(each.kind is each.VAR_KEYWORD for each in known.values()):
        return ""
    return "the model takes no attention mask, so it cannot be told what padding is"


def _padded(subject: Subject, right: bool) -> tuple[dict[str, Any], Tensor, str]:
    """Arguments of which a quarter of the positions are said to be padding; which are not; and the padded argument."""
    name = "tokens" if "tokens" in subject.arguments else subject.primary
    given: Tensor = subject.arguments[name]
    batch, length = (given.shape[0], given.shape[1]) if not subject.wrapped else (subject.batch, subject.length)
    n_padding = max(1, length // 4)
    place = torch.arange(length, device=given.device)
    valid = (place < length - n_padding) if right else (place >= n_padding)
    valid = valid.expand(batch, -1).clone()
    if subject.valid is None:
        return {**subject.arguments, "valid": valid}, valid, name
    key, value = subject.valid
    return {**subject.arguments, key: valid if value else ~valid}, valid, name


def _padding_leak(subject: Subject, right: bool) -> tuple[float, Place, str]:
    """The largest change at a valid position when what stands in padding changes."""
    given, valid, name = _padded(subject, right)
    padded = replace(subject, arguments=given, primary=name)
    other = padded.other_values()
    mask = valid if not subject.wrapped else _spread(valid, padded)
    changed = {**given, name: torch.where(mask, padded.input, other)}
    return _first_change(padded, given, changed, valid)


def _spread(valid: Tensor, subject: Subject) -> Tensor:
    """[batch, position] booleans in the layout of the primary argument."""
    assert subject.position_dim is not None
    value = subject.input
    shape = [1] * value.ndim
    shape[subject.batch_dim], shape[subject.position_dim] = subject.batch, subject.length
    turned = valid if subject.batch_dim < subject.position_dim else valid.T
    return turned.reshape(shape)


def _first_change(subject: Subject, before: Arguments, after: Arguments, valid: Tensor) -> tuple[float, Place, str]:
    worst = 0.0
    for old, new in zip(subject.observe(before), subject.observe(after), strict=True):
        apart = change(old.values, new.values)
        apart = torch.where(valid, apart, 0.0) if apart.shape == valid.shape else apart
        worst = max(worst, float(apart.max()))
        if worst > subject.tolerance:
            return worst, (old.site, old.layer, None), f"{old.name} is the first to change"
    return worst, ("", None, None), "nothing changed"


def _padding_changes(subject: Subject) -> Row:
    """A sequence alone, without padding, against itself padded in a batch."""
    check = CHECKS["padding_changes"]
    if subject.wrapped or subject.model.is_encoder_decoder:
        return check.not_applicable("only for models of one sequence of tokens, which can be cut to any length")
    given, valid, _ = _padded(subject, right=True)
    n = int(valid[0].sum())
    alone = replace(subject, arguments={"tokens": subject.input[:, :n]})
    worst, place, note = 0.0, ("", None, None), "equal with and without padding"
    for old, new in zip(alone.observe(), subject.observe(given), strict=True):
        apart = float(change(old.values, new.values[:, :n]).max())
        worst = max(worst, apart)
        if apart > subject.tolerance:
            return check.judge(apart, (old.site, old.layer, None), f"{old.name} is the first to differ",
                               fail_at=subject.tolerance)  # fmt: skip
    return check.judge(worst, place, note, fail_at=subject.tolerance)


# Batch and mode -----------------------------------------------------------------------------------------------------


def _batch(subject: Subject) -> list[Row]:
    together = subject.observe()
    n = subject.batch
    alone = [_one(subject, i) for i in range(n)]
    size = [
        Seen(seen.name, seen.site, seen.layer, torch.cat([each[at].values for each in alone]))
        for at, seen in enumerate(together)
    ]
    backwards = list(reversed(range(n)))
    order = [replace(seen, values=seen.values[backwards]) for seen in subject.observe(subject.sequences(backwards))]
    return [
        _compared(CHECKS["batch_size"], subject, together, size, "each sequence alone against all in one batch"),
        _compared(CHECKS["batch_order"], subject, together, order, "the batch in reversed order"),
    ]


def _one(subject: Subject, index: int) -> list[Seen]:
    """What a sequence alone shows."""
    return replace(subject, arguments=subject.sequences([index])).observe()


def _compared(check: Any, subject: Subject, before: list[Seen], after: list[Seen], what: str) -> Row:
    worst = 0.0
    for old, new in zip(before, after, strict=True):
        worst = max(worst, float(change(old.values, new.values).max()))
        if worst > subject.tolerance:
            note = f"{what}: {old.name} is the first to differ"
            return check.judge(worst, (old.site, old.layer, None), note, fail_at=subject.tolerance)
    return check.judge(worst, note=what, fail_at=subject.tolerance)


def _mode(subject: Subject) -> list[Row]:
    repeated, mode = CHECKS["repeats"], CHECKS["training_mode"]
    with torch.no_grad():
        first, second = (_plain(subject) for _ in range(2))
        if first is None or second is None:
            reason = "the output holds no tensor of one row a sequence"
            return [repeated.not_applicable(reason), mode.not_applicable(reason)]
        rows = [repeated.judge(float(change(first, second).max()), fail_at=subject.tolerance)]
        try:
            with _training_without_dropout(subject.model.module):
                trained = _plain(subject)
        except (RuntimeError, ValueError) as error:
            return [*rows, mode.not_applicable(f"the model does not run in training mode: {error}")]
    if trained is None or trained.shape != first.shape:
        return [*rows, mode.not_applicable("in training mode the output has another shape")]
    return [*rows, mode.judge(float(change(first, trained).max()), warn_at=subject.tolerance)]


def _plain(subject: Subject) -> Tensor | None:
    found = first_tensor(subject.plain())
    found = None if found is None else subject.lined_up(found)
    return None if found is None or found.numel() == 0 else found


@contextmanager
def _training_without_dropout(module: nn.Module) -> Iterator[None]:
    """Training mode with every dropout at 0, so that only what else depends on the mode shows; restored with the
    buffers that a pass in training mode may have moved (running means)."""
    with evaluating(module), ExitStack() as undo:
        for each in module.modules():
            for name, value in list(vars(each).items()):
                if isinstance(value, float) and ("drop" in name or (name == "p" and "Dropout" in type(each).__name__)):
                    undo.callback(setattr, each, name, value)
                    setattr(each, name, 0.0)
        kept = [(buffer, buffer.clone()) for buffer in module.buffers()]
        undo.callback(lambda: [buffer.copy_(value) for buffer, value in kept])
        module.train()
        undo.enter_context(_NoDropout())
        yield


class _NoDropout(TorchFunctionMode):
    """Calls of the dropout function return their input."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if "dropout" in getattr(func, "__name__", "") and "scaled" not in getattr(func, "__name__", ""):
            return args[0] if args else kwargs["input"]
        return func(*args, **(kwargs or {}))


# Order --------------------------------------------------------------------------------------------------------------


def order(subject: Subject, config: Config) -> Row:
    """Permute the input of a bidirectional model: if its output is the same, permuted, it is blind to order."""
    check = CHECKS["order_blindness"]
    if subject.no_positions:
        return check.not_applicable(subject.no_positions)
    if subject.model.is_encoder_decoder:
        subject = replace(subject, primary="tokens")
    elif causal_claim(subject, config.is_causal):
        return check.not_applicable("a causal mask tells order by itself")
    generator = torch.Generator().manual_seed(0)
    permuted = torch.randperm(subject.length, generator=generator).tolist()
    if subject.model.is_encoder_decoder:
        return _order_of_encoder(subject, permuted)
    before = first_tensor(subject.run().output)
    after = first_tensor(subject.run(subject.positions(permuted)).output)
    old, new = (None if t is None else subject.lined_up(t) for t in (before, after))
    if old is None or new is None or old.shape[1:2] != (subject.length,):
        return check.not_applicable("the output has no row for each position of the input")
    value = float(change(old[:, permuted], new).max())
    if not subject.reads_tokens:
        note = "the input is vectors, which may carry their positions; by itself the module "
        return check.not_applicable(note + ("is blind to order" if value < subject.tolerance else "tells order"), value)
    return check.judge(value, note="relative change of the output against itself permuted", fail_at=subject.tolerance)


def _order_of_encoder(subject: Subject, permuted: list[int]) -> Row:
    """The same for an encoder in front of a decoder: a permuted input changes what the decoder computes."""
    given = {**subject.arguments, "tokens": subject.input[:, permuted]}
    old, new = (first_tensor(subject.run(each).output) for each in (subject.arguments, given))
    assert old is not None
    assert new is not None
    value = float(change(old.double(), new.double()).max())
    note = "relative change of the decoder's output when the encoder's input is permuted"
    return CHECKS["order_blindness"].judge(value, note=note, fail_at=subject.tolerance)
