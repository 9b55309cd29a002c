"""Does a model under the core still compute what it computed before?"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from interp.attention.probes import MaxWeight
from interp.errors import UserError
from interp.models.groups import is_regrouped
from interp.models.inputs import Batch
from interp.models.modes import evaluating
from interp.models.module_inputs import ModuleInputs

if TYPE_CHECKING:
    from interp.models.hooked import HookedModel

__all__ = ["VerificationError", "verify"]


_EXACT = (torch.float32, torch.float64)


class VerificationError(UserError):
    """The model under the core differs from the untouched model by more than rounding."""


def verify(model: HookedModel) -> dict[str, Any]:
    """Compare the output with the untouched model's on a small input, one sequence of it padded, while a probe reads.

    The yardstick is how far the model's own eager and SDPA outputs are apart on the same input; where it has only one
    of them (a family without SDPA, a model with uneven groups), how far that output moves when every score is scaled by
    one rounding unit of its dtype. The core may be at most ``max(3 × that, floor · max|output|)`` away from SDPA (from
    eager where there is no SDPA). The floor is 1e-5 in float32 and float64, and four rounding units in float16 and
    bfloat16. There a rounding may exchange two experts of a mixture, so the three quarters of positions that are
    nearest are compared; in float32 and float64, all. A
    model that computes its own attention and has no second implementation is compared with itself unread.

    Returns:
        ``max_error``, ``tolerance``, ``yardstick``, ``eager_against_sdpa`` (None without SDPA), ``compared_with``,
        ``output`` (what was compared).

    Raises:
        VerificationError: it is further away.
    """
    from interp.models.huggingface import implementation

    arguments = _example_arguments(model)
    with evaluating(model.module), model.seam.aside(), torch.no_grad():
        ours, what = _output(model.run(**arguments, probes=[MaxWeight()]).output)
        batch = _batch(model, arguments)
        own: dict[str, Tensor] = {}
        names = _own_attention(model)
        for name in names:
            with implementation(model.module, name):  # type: ignore[arg-type]
                own[name] = _output(model.module(**batch.arguments))[0]
                if len(names) == 1:
                    with _nudged(model):
                        own["nudged"] = _output(model.module(**batch.arguments))[0]
        if not own:
            own["itself"] = _output(model.module(**batch.arguments))[0]
    reference, *others = own
    valid = _valid_outputs(batch, ours)
    yardstick = _largest(own[reference] - own[others[0]], valid) if others else 0.0
    error = _largest(ours - own[reference], valid)
    tolerance = max(3 * yardstick, _floor(ours.dtype) * _largest(own[reference], valid))
    found = {
        "max_error": error, "tolerance": tolerance, "yardstick": yardstick,
        "eager_against_sdpa": yardstick if reference == "sdpa" else None, "compared_with": reference, "output": what,
    }  # fmt: skip
    if not error <= tolerance:
        raise VerificationError(
            f"{model.info.get('name', 'the model')} under the core differs from its own {reference} attention by "
            f"{error:.3g}, more than the tolerance of {tolerance:.3g}: its statistics would be those of another model"
        )
    return found


def _own_attention(model: HookedModel) -> tuple[str, ...]:
    """transformers' attention functions that the model has, the one to compare with first; none where it always
    computes its own."""
    from interp.models.huggingface import PRUNED_SDPA

    if isinstance(model.inputs, ModuleInputs) or not hasattr(model.module, "set_attn_implementation"):
        return ()  # a module of someone's own is compared with itself left alone, whatever lies inside (a bridge)
    if hasattr(model.config, "_attn_implementation") and any(is_regrouped(site.module) for site in model.sites):
        can_set = model.module._can_set_attn_implementation() and model.module._supports_sdpa  # type: ignore[operator]
        return (PRUNED_SDPA,) if can_set else ()  # transformers' own functions do not fit what was pruned
    if getattr(model.module, "_supports_sdpa", False):
        return ("sdpa", "eager")
    return () if all(site.source == "softmax" for site in model.sites) else ("eager",)


@contextmanager
def _nudged(model: HookedModel) -> Iterator[None]:
    """Every score larger by one rounding unit."""
    with ExitStack() as undo:
        for site in model.sites:
            scaling = getattr(site.module, "scaling", None)
            if isinstance(scaling, float):
                undo.callback(setattr, site.module, "scaling", scaling)
                site.module.scaling = scaling * (1 + torch.finfo(model.dtype).eps)  # type: ignore[assignment]
        yield


def _example_arguments(model: HookedModel) -> dict[str, Any]:
    """The small example input; its second sequence is padded on the right where the model takes tokens."""
    example = model.inputs.example(model)
    if "tokens" in example:
        example["valid"] = torch.ones_like(example["tokens"], dtype=torch.bool)
        example["valid"][1, -5:] = False
    return example


def _batch(model: HookedModel, arguments: dict[str, Any]) -> Batch:
    rest = {name: value for name, value in arguments.items() if name not in ("tokens", "valid", "decoder_tokens")}
    rest |= rest.pop("inputs", {})
    tokens, valid, decoder_tokens = (arguments.get(name) for name in ("tokens", "valid", "decoder_tokens"))
    return model.inputs.batch(model, tokens, valid, decoder_tokens, None, rest)


def _output(output: Any) -> tuple[Tensor, str]:
    """Logits, or the last hidden state of a model without an output head; and which of them."""
    for name in ("logits", "last_hidden_state"):
        found = getattr(output, name, None)
        if found is not None:
            return found, name
    return (output, "output") if isinstance(output, Tensor) else (output[0], "first output")


def _valid_outputs(batch: Batch, output: Tensor) -> Tensor | None:
    valid = batch.query_valid.get("")
    return valid if valid is not None and output.shape[:2] == valid.shape else None


def _largest(tensor: Tensor, valid: Tensor | None) -> float:
    tensor = tensor if valid is None else tensor[valid.to(tensor.device)]
    by_position = tensor.abs().float().flatten(0, -2).amax(-1)
    return float(by_position.quantile(1.0 if tensor.dtype in _EXACT else 0.75))


def _floor(dtype: torch.dtype) -> float:
    """Relative tolerance of one forward pass, however close the model's own implementations happen to be."""
    return 1e-5 if dtype in _EXACT else 4 * torch.finfo(dtype).eps
