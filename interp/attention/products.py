"""Matrix products on the processor.

PyTorch gives float32 products to the BLAS that it was built with. Its usual builds carry MKL, which on processors of
other makers than Intel leaves half of the vector width unused; oneDNN, which the same builds carry, does not. Both
multiply in float32 and differ in the order of their sums alone.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.autograd import forward_ad
from torch.overrides import TorchFunctionMode

__all__ = ["batched", "linear", "linear_layers"]

LARGE = 4_000_000
"""Operations of one matrix product from which oneDNN's call, 10 µs dearer, pays."""

COLUMNS = 4096
"""The most columns of a batched product that oneDNN computes at once."""

_PLAIN = (Tensor, nn.Parameter)  # quantised weights and other kinds of tensor have products of their own
_linear = nn.functional.linear


def batched(
    left: Float[Tensor, "matrix row inner"],
    right: Float[Tensor, "matrix inner column"],
    out: Float[Tensor, "matrix row column"] | None = None,
) -> Float[Tensor, "matrix row column"]:
    """``torch.bmm``, each product through oneDNN where that can do it and the products are large.

    Which one computes depends on sizes, dtypes and devices alone, so that results repeat. Gradients reach both factors;
    where one is wanted, it is ``torch.bmm`` that computes.
    """
    fits = left.shape[0] == right.shape[0] and left.shape[2] == right.shape[1]  # where not, torch.bmm says so
    if not fits or not _pays(left.shape[1] * left.shape[2] * right.shape[2], left, right):
        return torch.bmm(left, right) if out is None else torch.bmm(left, right, out=out)
    if out is None:
        out = left.new_empty(*left.shape[:2], right.shape[2])
    for i in range(len(left)):
        # Results of one size, each let go before the next: of ever larger ones the allocator keeps a heap of gaps
        for some in range(0, right.shape[2], COLUMNS):
            columns = slice(some, some + COLUMNS)
            out[i, :, columns] = _by_onednn(left[i], right[i, :, columns].t())
    return out


def linear(
    input: Float[Tensor, "*row inner"],  # by this name models may call it
    weight: Float[Tensor, "column inner"],
    bias: Float[Tensor, " column"] | None = None,
) -> Float[Tensor, "*row column"]:
    """``torch.nn.functional.linear`` in the same way."""
    fits = weight.ndim == 2 and input.shape[-1:] == weight.shape[1:]
    fits = fits and (bias is None or bias.shape == weight.shape[:1])
    if fits and _pays(input.numel() * len(weight), input, weight, *([] if bias is None else [bias])):
        return _by_onednn(input, weight, bias)
    return _linear(input, weight, bias)


@contextmanager
def linear_layers() -> Iterator[None]:
    """While this is in force, this thread's ``torch.nn.functional.linear``, and so ``nn.Linear``, goes the same way."""
    with _LinearLayers() if _HAS_ONEDNN else nullcontext():
        yield


class _LinearLayers(TorchFunctionMode):
    """Stands before every function of PyTorch; only ``linear`` is answered here."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return (linear if func is _linear else func)(*args, **(kwargs or {}))


def _by_onednn(rows: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    # With gaps in memory oneDNN falls back to a way that is a hundred times slower; transposed is as good as not
    rows, weight = rows.contiguous(), weight if weight.t().is_contiguous() else weight.contiguous()
    return torch.ops.mkldnn._linear_pointwise(rows, weight, bias, "none", [], "")


def _pays(products: int, *tensors: Tensor) -> bool:
    if 2 * products < LARGE or not _HAS_ONEDNN or torch.is_autocast_enabled("cpu"):
        return False
    if torch.is_grad_enabled() and any(t.requires_grad for t in tensors):
        return False
    if forward_ad._current_level >= 0:  # oneDNN's operator would lose tangents without a word
        return False
    return all(type(t) in _PLAIN and t.device.type == "cpu" and t.dtype is torch.float32 for t in tensors)


def _has_onednn() -> bool:
    """Whether this build of PyTorch has oneDNN, and the operator by which its compiler reaches it."""
    return torch.backends.mkldnn.is_available() and hasattr(torch.ops.mkldnn, "_linear_pointwise")


_HAS_ONEDNN = _has_onednn()
