"""Norms over the wrong axis: without attention, nothing may carry from one position, or one sequence, to another."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from analyses.model_health.checks import Row
from analyses.model_health.config import CHECKS
from analyses.model_health.subject import Subject, change, first_tensor
from interp.attention.edits import GateHeads

__all__ = ["rows"]


def rows(subject: Subject) -> list[Row]:
    """With every head's output at 0, change one position, then the other sequences, and see what else changes."""
    model = subject.model
    gates = GateHeads({(site.name, head): 0.0 for site in model.sites for head in range(site.n_heads)})
    silent = subject.gated((gates,))
    return [_positions(silent), _sequences(silent)]


def _positions(subject: Subject) -> Row:
    check = CHECKS["mixing_of_positions"]
    if subject.no_positions:
        return check.not_applicable(subject.no_positions)
    position = subject.length // 2
    others = torch.arange(subject.length, device=subject.input.device) != position
    before, after = _traced(subject), _traced(replace(subject, arguments=subject.changed_at(position)))
    return _first(check, subject, before, after, lambda apart: apart[:, others] if _fits(apart, subject) else None)


def _sequences(subject: Subject) -> Row:
    check = CHECKS["mixing_of_sequences"]
    together = _traced(subject)
    alone = _traced(replace(subject, arguments=subject.sequences([0])))
    first = {
        path: values[:1] if values.ndim and values.shape[0] == subject.batch else values[:0]
        for path, values in together.items()
    }
    return _first(check, subject, first, alone, lambda apart: apart)


def _fits(apart: Tensor, subject: Subject) -> bool:
    return apart.shape[1:2] == (subject.length,)


def _first(check: Any, subject: Subject, before: dict[str, Tensor], after: dict[str, Tensor], of: Any) -> Row:
    """The first module whose output changed where it must not; a norm there makes it a failure."""
    worst = 0.0
    for path, old in before.items():
        new = after.get(path)
        if new is None or old.shape != new.shape or old.numel() == 0:
            continue
        apart = of(change(old, new))
        if apart is None or apart.numel() == 0:
            continue
        worst = max(worst, float(apart.max()))
        if worst > subject.tolerance:
            inside = _kind(subject, path)
            note = f"first seen in the output of {path}" + (f", a {inside}" if inside else "")
            limits = {"fail_at": subject.tolerance} if _is_norm(inside) else {"warn_at": subject.tolerance}
            return check.judge(worst, (path, None, None), note, **limits)
    return check.judge(worst, note="every head's output set to 0", warn_at=subject.tolerance)


def _kind(subject: Subject, path: str) -> str:
    name = path.partition("#")[0]
    try:
        return type(subject.inner.get_submodule(name)).__name__
    except AttributeError:
        return ""


def _is_norm(kind: str) -> bool:
    return "norm" in kind.lower()


def _traced(subject: Subject) -> dict[str, Tensor]:
    """What every module gave, innermost first, as [batch, position, …], and the output; "path#2" is a second call."""
    found: dict[str, Tensor] = {}
    with torch.no_grad(), _outputs_of(subject, found):
        output = first_tensor(subject.run().output)
    if output is not None:
        found["the output"] = subject.lined_up(output)
    return found


@contextmanager
def _outputs_of(subject: Subject, found: dict[str, Tensor]) -> Iterator[None]:
    calls: Counter[str] = Counter()

    def after(path: str, _: nn.Module, args: Any, output: Any) -> None:
        calls[path] += 1
        name = path if calls[path] == 1 else f"{path}#{calls[path]}"
        tensor = output if isinstance(output, Tensor) else None
        if tensor is not None and tensor.is_floating_point():
            found[name] = subject.lined_up(tensor)

    with ExitStack() as stack:
        for path, module in subject.inner.named_modules():
            if path:
                stack.callback(module.register_forward_hook(partial(after, path)).remove)
        yield
