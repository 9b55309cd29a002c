"""One small forward pass, and what passed through chosen modules of the model."""

import contextlib
from collections.abc import Iterable, Mapping
from functools import partial
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor, nn

from interp.errors import UserError
from interp.models.modes import evaluating


class Trace:
    """What modules read and wrote in their first call, by path: float32 copies on the CPU, ``[batch · token, width]``.

    A module that was not called, or does not pass tensors, is missing.
    """

    def __init__(self, dtype: torch.dtype) -> None:
        self.read: dict[str, Tensor] = {}
        self.written: dict[str, Tensor] = {}
        self._rounding = max(2 * torch.finfo(dtype).eps, 1e-5)

    @staticmethod
    def same(a: Tensor | None, b: Tensor | None) -> bool:
        """Whether two tensors are one: the same values to the last bit (they may have moved between devices)."""
        return a is not None and b is not None and a.shape == b.shape and torch.equal(a, b)

    def close(self, a: Tensor | None, b: Tensor | None) -> bool:
        """Whether two tensors differ by one rounding in the model's dtype."""
        if a is None or b is None or a.shape != b.shape:
            return False
        return bool((a - b).norm() <= self._rounding * b.norm())

    def factor(self, a: Tensor | None, b: Tensor | None, size: float | None = None) -> float | None:
        """c where a = c · b up to rounding of numbers of norm ``size`` (that of a when None); else None."""
        if a is None or b is None or a.shape != b.shape or not b.any():
            return None
        c = float((a * b).sum() / b.square().sum())
        return c if (a - c * b).norm() <= 2 * self._rounding * (size or a.norm()) else None


def trace(model: nn.Module, paths: Iterable[str], run: nn.Module, inputs: Mapping[str, Any]) -> tuple[Trace, Any]:
    """Run a model, or a part of it, once, in eval mode and without gradients.

    Args:
        model: the whole model.
        paths: of the modules to trace.
        run: the model or the part that takes the inputs.
        inputs: its keyword arguments.

    Returns:
        The trace, and the output.
    """
    seen = Trace(next(p.dtype for p in model.parameters() if p.is_floating_point()))
    with contextlib.ExitStack() as undo, torch.no_grad():
        for path in dict.fromkeys(paths):
            module = model.get_submodule(path)
            undo.callback(module.register_forward_pre_hook(partial(_keep_read, seen, path), with_kwargs=True).remove)
            undo.callback(module.register_forward_hook(partial(_keep_written, seen, path)).remove)
        undo.enter_context(evaluating(model))
        output = run(**inputs)
    return seen, output


def example_inputs(model: Any) -> dict[str, Tensor]:
    """Two sequences of three different tokens each (or two random images), as keyword arguments of the model.

    Raises:
        UserError: the model reads neither tokens nor images.
    """
    device = next(model.parameters()).device
    name = model.main_input_name
    if name == "input_ids":
        n_tokens = model.get_input_embeddings().num_embeddings
        # from the middle of the vocabulary: special tokens lie at its ends, and rows that were never trained
        tokens = ((n_tokens // 2 + torch.arange(6)) % n_tokens).reshape(2, 3).to(device)
        decoder = {"decoder_input_ids": tokens} if model.config.is_encoder_decoder else {}
        return {"input_ids": tokens} | decoder
    if name == "pixel_values":
        size, channels = model.config.image_size, model.config.num_channels
        height, width = size if isinstance(size, list | tuple) else (size, size)
        images = torch.randn(2, channels, height, width, generator=torch.Generator().manual_seed(0))
        return {"pixel_values": images.to(device, model.dtype)}
    raise UserError(f"{type(model).__name__} reads {name}, expected input_ids or pixel_values: give an example input")


def _keep_read(seen: Trace, path: str, module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
    value = next((x for x in (*args, kwargs.get("hidden_states"), *kwargs.values()) if isinstance(x, Tensor)), None)
    if value is not None and value.is_floating_point():
        seen.read.setdefault(path, _copy(value))


def _keep_written(seen: Trace, path: str, module: nn.Module, args: Any, output: Any) -> None:
    value = output if isinstance(output, Tensor) else next((x for x in output if isinstance(x, Tensor)), None)
    if value is not None and value.is_floating_point():
        seen.written.setdefault(path, _copy(value))


def _copy(value: Tensor) -> Float[Tensor, "row width"]:
    # a copy in any case: residual sums may be taken in place
    return value.detach().to("cpu", torch.float32, copy=True).reshape(-1, value.shape[-1])
