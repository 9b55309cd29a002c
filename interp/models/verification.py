"""Does a model under the core still compute what it computed before?"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from interp.attention.probes import MaxWeight
from interp.errors import UserError
from interp.models.inputs import Batch

if TYPE_CHECKING:
    from interp.models.hooked import HookedModel

__all__ = ["VerificationError", "verify"]


class VerificationError(UserError):
    """The model under the core differs from the untouched model by more than rounding."""


def verify(model: HookedModel) -> dict[str, Any]:
    """Compare the output with the untouched model's on a small input, with and without padding.

    The yardstick is how far the model's own eager and SDPA outputs are apart on the same input: the core may be at most
    ``max(3 × that, 1e-5 · max|output|)`` away from SDPA, or from eager where a family has no SDPA. A model that computes
    its own attention is compared with itself unread.

    Returns:
        ``max_error``, ``tolerance``, ``eager_against_sdpa`` (None without SDPA), ``compared_with``, ``output``.

    Raises:
        VerificationError: it is further away.
    """
    from interp.models.huggingface import implementation

    batch = _example(model)
    with torch.no_grad():
        ours = _output(model.module(**batch.arguments))
        own: dict[str, Tensor] = {}
        for name in _own_attention(model):
            with implementation(model.module, name):  # type: ignore[arg-type]
                own[name] = _output(model.module(**batch.arguments))
        if not own:  # the model computes its own attention, which reading must not change
            own["itself"] = ours
            ours = _output(model.run(**_example_arguments(model), probes=[MaxWeight()]).output)
    reference = next(iter(own))
    valid = _valid_outputs(batch, ours)
    apart = _largest(own["eager"] - own["sdpa"], valid) if len(own) == 2 else None
    error = _largest(ours - own[reference], valid)
    tolerance = max(3 * (apart or 0.0), _unit(ours.dtype) * _largest(own[reference], valid))
    found = {
        "max_error": error, "tolerance": tolerance, "eager_against_sdpa": apart, "compared_with": reference,
        "output": "logits" if hasattr(model.module, "lm_head") else "output",
    }  # fmt: skip
    if not error <= tolerance:
        raise VerificationError(
            f"{model.info.get('name', 'the model')} under the core differs from its own {reference} attention by "
            f"{error:.3g}, more than the tolerance of {tolerance:.3g}: its statistics would be those of another model"
        )
    return found


def _own_attention(model: HookedModel) -> tuple[str, ...]:
    """transformers' attention functions that the model has; none where it computes its own everywhere."""
    if all(site.source == "softmax" for site in model.sites):
        return ()
    return ("sdpa", "eager") if getattr(model.module, "_supports_sdpa", False) else ("eager",)


def _example_arguments(model: HookedModel) -> dict[str, Any]:
    """The small example input; its second sequence is padded on the right where the model takes tokens."""
    example = model.inputs.example(model)
    if "tokens" in example:
        example["valid"] = torch.ones_like(example["tokens"], dtype=torch.bool)
        example["valid"][1, -5:] = False
    return example


def _example(model: HookedModel) -> Batch:
    example = _example_arguments(model)
    given = {name: example.pop(name, None) for name in ("tokens", "valid", "decoder_tokens")}
    return model.inputs.batch(model, given["tokens"], given["valid"], given["decoder_tokens"], None, example)


def _output(output: Any) -> Tensor:
    """Logits, or the last hidden state of a model without an output head."""
    for name in ("logits", "last_hidden_state"):
        found = getattr(output, name, None)
        if found is not None:
            return found
    return output[0]


def _valid_outputs(batch: Batch, output: Tensor) -> Tensor | None:
    valid = batch.query_valid.get("")
    return valid if valid is not None and output.shape[:2] == valid.shape else None


def _largest(tensor: Tensor, valid: Tensor | None) -> float:
    tensor = tensor if valid is None else tensor[valid]
    return float(tensor.abs().max().double())


def _unit(dtype: torch.dtype) -> float:
    """Relative tolerance of one forward pass: 1e-5 in float32, scaled with the dtype's rounding."""
    return 1e-5 * max(1.0, torch.finfo(dtype).eps / torch.finfo(torch.float32).eps)
