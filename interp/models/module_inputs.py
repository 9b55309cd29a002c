"""What any module is given: tokens as its first argument, everything else by name."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from functools import partial
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from interp.errors import UserError
from interp.models.inputs import Batch, TransformersInputs

if TYPE_CHECKING:
    from interp.models.hooked import HookedModel

__all__ = ["IN_A_FACTORY", "ModuleInputs", "moved"]

IN_A_FACTORY = "On the command line, let the factory return interp.load(module, example, forward=…)"


class ModuleInputs(TransformersInputs):
    """Inputs of any module: tokens are its first argument, everything else is passed by name."""

    def __init__(self, module: nn.Module, example: Any, forward: Callable[..., Any] | None) -> None:
        super().__init__()
        self.kind = type(_innermost(module)).__name__
        self.n_ctx: int | None = None
        self.d_vocab: int | None = None
        signature = inspect.signature(_innermost(module).forward if forward is None else partial(forward, module))
        named = {n: p for n, p in signature.parameters.items() if p.kind not in (p.VAR_KEYWORD, p.VAR_POSITIONAL)}
        self.names = list(named)
        self.required = [n for n, p in named.items() if p.default is p.empty]
        if isinstance(example, Mapping):
            self.arguments = dict(example)
        else:
            given = example if isinstance(example, tuple) else (example,)
            try:
                self.arguments = dict(signature.bind(*given).arguments)
            except TypeError as error:
                raise UserError(
                    f"{type(module).__name__}.forward{signature} does not take the example ({error}): pass example= "
                    "as a dict or tuple of its arguments (--tokens: an .npz file that names them), or "
                    f"forward=lambda module, tokens: module(tokens, …). {IN_A_FACTORY}"
                ) from error
        if not self.arguments:
            raise UserError("example= must hold at least one input: a tensor, a tuple or a dict of arguments")

    def example(self, model: HookedModel) -> dict[str, Any]:
        """The example that the module was explored on."""
        return {"inputs": dict(self.arguments)}

    def batch(
        self, model: HookedModel, tokens: Any = None, valid: Tensor | None = None, decoder_tokens: Any = None,
        decoder_valid: Any = None, inputs: Mapping[str, Any] = MappingProxyType({}),
    ) -> Batch:  # fmt: skip
        """Arguments by name, the tokens as the first of them."""
        if decoder_tokens is not None or decoder_valid is not None:
            raise UserError(f"{type(model.module).__name__} takes its inputs by name: {', '.join(self.names)}")
        arguments = dict(inputs)
        if tokens is not None:
            first = self.names[0]
            if first in arguments:
                raise UserError(f"tokens are this module's first argument, {first!r}, which is given as well")
            arguments[first] = self._tokens(tokens, model)
        if valid is not None:
            if "valid" not in self.names:
                raise UserError(
                    "how this module is told about padding is not known: pass it as the module's own argument, or give "
                    "interp.load a forward=lambda module, tokens, valid: …"
                )
            shape = None if tokens is None else arguments[self.names[0]].shape[:2]
            if valid.dtype is not torch.bool or valid.ndim != 2 or (shape is not None and valid.shape != shape):
                raise UserError(
                    f"valid must be boolean [batch, position] as the tokens, {list(shape or ())}; got {valid.dtype} "
                    f"{list(valid.shape)}"
                )
            arguments["valid"] = valid
        if not arguments:
            raise UserError(f"run() needs tokens or the module's own inputs: {', '.join(self.names)}")
        if tokens is not None and (others := [n for n in self.required if n not in arguments]):
            raise UserError(
                f"{self.kind} needs {', '.join(others)} beside {self.names[0]}: give them by name, run(inputs={{…}}), "
                "or say how it is called on tokens alone, interp.load(module, example, forward=lambda module, tokens: "
                f"…). {IN_A_FACTORY}"
            )
        placed = moved(arguments, model.device)
        return Batch(placed, {} if valid is None else {"": valid.to(model.device)})

    def _tokens(self, tokens: Any, model: HookedModel) -> Tensor:
        if not isinstance(tokens, Tensor):
            if len({len(row) for row in tokens}) > 1:
                raise UserError(
                    "sequences of different lengths need padding, which only the module's owner can arrange"
                )
            tokens = torch.as_tensor(tokens)
        if not tokens.is_floating_point():
            if self.n_ctx is not None and tokens.shape[-1] > self.n_ctx:
                raise UserError(f"{tokens.shape[-1]} tokens are more than the module's context of {self.n_ctx}")
            if self.d_vocab is not None and tokens.numel() and int(tokens.max()) >= self.d_vocab:
                raise UserError(f"token ids must be below {self.d_vocab}; got {int(tokens.max())}")
        return tokens


def moved(arguments: Mapping[str, Any], device: torch.device) -> dict[str, Any]:
    """Arguments with their tensors on a device."""
    return {name: value.to(device) if isinstance(value, Tensor) else value for name, value in arguments.items()}


def _innermost(module: nn.Module) -> nn.Module:
    """The module whose forward names the inputs: that inside wrappers such as ``nn.DataParallel``."""
    kinds = {p.kind for p in inspect.signature(module.forward).parameters.values()}
    inner = getattr(module, "module", None)
    if inspect.Parameter.VAR_POSITIONAL in kinds and isinstance(inner, nn.Module):
        return _innermost(inner)
    return module
