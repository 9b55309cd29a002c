"""What is no number, and rows of attention that are no distributions."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from analyses.model_health.checks import Check, Place, Row
from analyses.model_health.config import CHECKS
from analyses.model_health.subject import Subject
from interp.attention.blocked import row_blocks
from interp.models.verification import VerificationError

__all__ = ["in_dtype", "rows"]

_TYPES = {"finite_float16": torch.float16, "finite_bfloat16": torch.bfloat16}
_SLACK = {torch.float16: 1e-2, torch.bfloat16: 6e-2}
"""By how much the sum of a row may differ from 1 in half precision, whose weights are rounded one by one."""


def rows(subject: Subject) -> list[Row]:
    """The checks of numbers."""
    finite = _finite(subject)
    return [_core(subject, sound=finite[0].verdict == "ok"), *finite, *_row_sums(subject), _empty_rows(subject)]


def _core(subject: Subject, sound: bool) -> Row:
    """The output while a probe reads against the untouched model's (`HookedModel.verify`)."""
    check, model = CHECKS["agrees_under_the_core"], subject.model
    if not sound:
        return check.not_applicable("not even the model alone gives numbers")
    try:
        found = model.info["verify"] = model.info.get("verify") or model.verify()
    except VerificationError as error:
        return check.judge(math.inf, note=str(error))
    note = f"against {found['compared_with']}"
    return check.judge(found["max_error"], note=note, fail_at=max(found["tolerance"], 1e-300))


# NaN and infinity ---------------------------------------------------------------------------------------------------


def _finite(subject: Subject) -> list[Row]:
    own = CHECKS["finite"]
    with torch.no_grad():
        found = [_judged(own, subject, "")]
        for name, dtype in _TYPES.items():
            check = CHECKS[name]
            if subject.model.dtype is dtype:
                found.append(check.not_applicable("it is the model's own type"))
                continue
            if found[0].verdict == "fail":
                found.append(check.not_applicable("not even the model's own type gives numbers"))
                continue
            try:
                with in_dtype(subject.inner, dtype):
                    found.append(_judged(check, subject, f" in {str(dtype).removeprefix('torch.')}"))
            except (RuntimeError, TypeError, ValueError) as error:
                found.append(check.not_applicable(f"the model does not run in {dtype}: {_short(error)}"))
    return found


def _judged(check: Check, subject: Subject, where: str) -> Row:
    """Share of the output that is no finite number, and where the first one came from."""
    with _watched(subject.inner) as first:
        output = _tensors(subject.plain(_converted(subject)))
    bad = sum(int((~t.isfinite()).sum()) for t in output)
    share = bad / max(1, sum(t.numel() for t in output))
    if not first and not bad:
        return check.judge(0.0, note="every number is finite")
    path, note = first[0] if first else ("", "in the output")
    return check.judge(max(share, 1e-300), _place(subject, path), f"{note}{where}; share of the output")


def _converted(subject: Subject) -> dict[str, Any]:
    """The arguments with vectors in the type that the parameters have now."""
    dtype = next(subject.inner.parameters()).dtype
    return {
        name: value.to(dtype) if isinstance(value, Tensor) and value.is_floating_point() else value
        for name, value in subject.arguments.items()
    }


def _place(subject: Subject, path: str) -> Place:
    """The attention site that a module belongs to, else the module."""
    for site in subject.model.sites:
        if site.path and (path == site.path or path.startswith(f"{site.path}.")):
            return site.name, site.layer, None
    return path, None, None


@contextmanager
def _watched(module: nn.Module) -> Iterator[list[tuple[str, str]]]:
    """Modules in or before which a number that is none was first seen: (path, what)."""
    first: list[tuple[str, str]] = []

    def before(path: str, parent: str, _: nn.Module, args: tuple[Any, ...]) -> None:
        if not first and args and isinstance(args[0], Tensor) and _bad(args[0]):
            first.append((parent, f"first seen in what {path or 'the model'} reads"))

    def after(path: str, _: nn.Module, args: tuple[Any, ...], output: Any) -> None:
        if not first and any(_bad(t) for t in _tensors(output)):
            first.append((path, f"first seen in the output of {path or 'the model'}"))

    with ExitStack() as stack:
        for path, each in module.named_modules():
            if next(each.children(), None) is None:
                hook = partial(before, path, path.rpartition(".")[0])
                stack.callback(each.register_forward_pre_hook(hook).remove)
            stack.callback(each.register_forward_hook(partial(after, path)).remove)
        yield first


def _bad(tensor: Tensor) -> bool:
    return tensor.is_floating_point() and not bool(tensor.isfinite().all())


def _tensors(output: Any) -> list[Tensor]:
    """Floating tensors of an output, the first of them alone where there are several of a kind."""
    if isinstance(output, Tensor):
        return [output] if output.is_floating_point() else []
    values = output.values() if hasattr(output, "values") else output if isinstance(output, (tuple, list)) else ()
    return [v for v in values if isinstance(v, Tensor) and v.is_floating_point()]


@contextmanager
def in_dtype(module: nn.Module, dtype: torch.dtype) -> Iterator[None]:
    """Parameters and buffers in another type for a while; afterwards they are the same tensors as before.

    Wavelengths of rotary positions stay as they are, as in models that are loaded in half precision.
    """
    parameters = [(p, p.data) for p in module.parameters()]
    buffers = [
        (each, name, tensor)
        for each in module.modules()
        for name, tensor in each._buffers.items()
        if tensor is not None and tensor.is_floating_point() and not name.endswith("inv_freq")
    ]
    try:
        for parameter, data in parameters:
            parameter.data = data.to(dtype)
        for each, name, tensor in buffers:
            each._buffers[name] = tensor.to(dtype)
        yield
    finally:
        for parameter, data in parameters:
            parameter.data = data
        for each, name, tensor in buffers:
            each._buffers[name] = tensor


def _short(error: Exception) -> str:
    return " ".join(str(error).split())[:160]


# Rows ---------------------------------------------------------------------------------------------------------------


def _row_sums(subject: Subject) -> list[Row]:
    """What the weights that meet the values add up to. The core's rows add up to 1 by construction; a model's own may
    be changed between softmax and values, by a mask for instance."""
    check = CHECKS["row_sums"]
    watching = _Weights(subject.inner)
    with torch.no_grad(), watching.tracking(), watching:
        subject.plain()
    if not watching.found:
        return [check.judge(0.0, note="attention is computed by kernels whose rows add up to 1 by construction")]
    path, value = max(watching.found, key=lambda each: each[1])
    note = f"largest |Σ − 1| of {len(watching.found)} products of weights and values"
    return [check.judge(value, _place(subject, path), note, fail_at=_SLACK.get(subject.model.dtype, check.fail_at))]


@dataclass(eq=False)
class _Weights(TorchFunctionMode):
    """Watches what becomes of a softmax over [.., query, key] until a matrix product takes it as weights."""

    module: nn.Module
    found: list[tuple[str, float]] = field(default_factory=list)
    stack: list[str] = field(default_factory=lambda: [""])

    def __post_init__(self) -> None:
        super().__init__()

    @contextmanager
    def tracking(self) -> Iterator[None]:
        """Know which module runs."""
        with ExitStack() as undo:
            for path, each in self.module.named_modules():
                undo.callback(each.register_forward_pre_hook(lambda *_, path=path: self.stack.append(path)).remove)
                undo.callback(each.register_forward_hook(lambda *_: self._left(), always_call=True).remove)
            yield

    def _left(self) -> None:
        self.stack.pop()

    def __torch_function__(self, func: Callable[..., Any], types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        name = getattr(func, "__name__", "")
        tensors = [a for arg in args for a in (arg if isinstance(arg, (tuple, list)) else (arg,))]
        tensors = [t for t in (*tensors, *kwargs.values()) if isinstance(t, Tensor)]
        result = func(*args, **kwargs)
        if not isinstance(result, Tensor):
            return result
        weights = [t for t in tensors if getattr(t, "_interp_weights", False)]
        if name == "softmax":
            given = tensors[0]
            is_pattern = getattr(given, "_interp_product", False) and result.ndim >= 3
            result._interp_weights = is_pattern  # type: ignore[attr-defined]
        elif name in _PRODUCTS:
            if weights:
                sums = weights[0].detach().double().sum(-1)
                # a row without a permitted key is another check's
                apart = torch.where(sums == 0, 0.0, (sums - 1).abs())
                self.found.append((self.stack[-1], float(apart.nan_to_num(nan=0.0).max())))
            parameters = any(isinstance(t, nn.Parameter) for t in tensors)
            result._interp_product = len(tensors) >= 2 and not parameters  # type: ignore[attr-defined]
        elif tensors and not isinstance(tensors[0], nn.Parameter):
            same = [t for t in tensors if result.ndim >= 2 and t.ndim >= 2 and t.shape[-2:] == result.shape[-2:]]
            for mark in ("_interp_product", "_interp_weights"):
                if any(getattr(t, mark, False) for t in same):
                    setattr(result, mark, True)
        return result


_PRODUCTS = {"matmul", "__matmul__", "bmm", "baddbmm", "einsum"}


def _empty_rows(subject: Subject) -> Row:
    """Rows that may read no key although they are not padding."""
    check = CHECKS["empty_rows"]
    with torch.no_grad():
        run = subject.run()
    shares, n_rows = {}, 0
    for site in run.sites:
        mask, shape = run.masks[site.name]
        bound = mask.bind(shape.batch, shape.n_heads, shape.n_queries, shape.n_keys, shape.device)
        empty, total = 0, 0
        for start, stop in row_blocks(bound, None, torch.float32):
            low, high = bound.key_range(start, stop)
            none = ~bound.allowed(start, stop, low, high).any(-1)
            none = none.expand(bound.batch, *none.shape[1:])
            if bound.query_valid is not None:
                none = none & bound.query_valid[:, None, start:stop]
            empty, total = empty + int(none.sum()), total + none.numel()
        n_rows += total
        shares[site] = empty / max(total, 1)
    first = next((site for site, share in shares.items() if share), None)
    if first is None:
        return check.judge(0.0, note=f"all {n_rows:,} rows have a key")
    note = f"share of the first such site's rows; {sum(map(bool, shares.values()))} of {len(shares)} sites have some"
    return check.judge(shares[first], (first.name, first.layer, None), note)
