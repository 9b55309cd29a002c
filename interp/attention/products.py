"""Batches of matrix products on the processor.

PyTorch gives float32 products to the BLAS that it was built with. Its usual builds carry MKL, which on processors of
other makers than Intel leaves half of the vector width unused; oneDNN, which the same builds carry, does not. Both
multiply in float32 and differ in the order of their sums alone.
"""

from __future__ import annotations

import torch
from jaxtyping import Float
from torch import Tensor

__all__ = ["batched", "with_transposed"]

LARGE = 4_000_000
"""Operations of one matrix product from which oneDNN's call, 10 µs dearer, pays."""


def batched(
    left: Float[Tensor, "matrix row inner"],
    right: Float[Tensor, "matrix inner column"],
    out: Float[Tensor, "matrix row column"] | None = None,
) -> Float[Tensor, "matrix row column"]:
    """``torch.bmm``, each product through oneDNN where that can do it and the products are large.

    Which one computes depends on sizes, dtypes and devices alone, so that results repeat. Gradients reach both factors;
    where one is wanted, it is ``torch.bmm`` that computes.
    """
    if not _pays(left, right, left.shape[1] * left.shape[2] * right.shape[2]):
        return torch.bmm(left, right) if out is None else torch.bmm(left, right, out=out)
    if out is None:
        out = left.new_empty(*left.shape[:2], right.shape[2])
    for i in range(len(left)):
        out[i].copy_(_by_onednn(left[i], right[i].t()))
    return out


def with_transposed(
    rows: Float[Tensor, "row inner"], weight: Float[Tensor, "column inner"]
) -> Float[Tensor, "row column"]:
    """``rows @ weight.T`` in the same way."""
    return _by_onednn(rows, weight) if _pays(rows, weight, len(rows) * weight.numel()) else rows @ weight.t()


def _by_onednn(rows: Tensor, weight: Tensor) -> Tensor:
    return torch.ops.mkldnn._linear_pointwise(rows, weight, None, "none", [], "")


def _pays(left: Tensor, right: Tensor, products: int) -> bool:
    if (
        2 * products < LARGE
        or not _HAS_ONEDNN
        or (torch.is_grad_enabled() and (left.requires_grad or right.requires_grad))
    ):
        return False
    return all(factor.device.type == "cpu" and factor.dtype is torch.float32 for factor in (left, right))


def _has_onednn() -> bool:
    """Whether this build of PyTorch has oneDNN, and the operator by which its compiler reaches it."""
    return torch.backends.mkldnn.is_available() and hasattr(torch.ops.mkldnn, "_linear_pointwise")


_HAS_ONEDNN = _has_onednn()
