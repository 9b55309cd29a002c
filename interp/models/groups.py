"""Which kv head a query head reads, in attention modules whose groups were pruned unevenly.

A pruned module holds, in the order of the model it was cut from, the query heads that were kept and every kv head that
at least one of them reads. Where each kv head is left with equally many query heads, nothing else is needed:
query head h reads kv head ``h // (n_heads // n_kv_heads)``, as ever. Otherwise the module carries a buffer
``interp_kv_index`` [n_heads]: query head h reads kv head ``interp_kv_index[h]``. Projections and cache hold each kv
head once; keys and values are laid out for the query heads only where attention is computed.

A second buffer, ``interp_kept_heads`` [n_heads], is for what a model makes for all heads of a stack at once and hands
to every layer (T5's position bias, ALiBi): the numbers that the kept heads had there. Neither buffer is saved with the
weights; both follow the module to its device.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

__all__ = ["for_query_heads", "in_full_groups", "is_regrouped", "kept_heads", "kv_index", "mark", "of_kept_heads"]

_KV_INDEX = "interp_kv_index"
_KEPT = "interp_kept_heads"


def mark(module: nn.Module, kv_of_head: Sequence[int], kept: Sequence[int] | None) -> bool:
    """Write down a pruned module's groups; returns whether they are alike, so that they need no index.

    Args:
        module: an attention module.
        kv_of_head: of each query head that was kept, the number of its kv head among those that were kept; ascending.
        kept: numbers of the kept heads in tensors that the model makes for all heads at once; None: it makes none.
    """
    n_kv_heads = len(set(kv_of_head))
    alike = not kv_of_head or all(kv_of_head.count(kv) * n_kv_heads == len(kv_of_head) for kv in set(kv_of_head))
    device = next(module.parameters()).device
    for name, numbers in ((_KV_INDEX, None if alike else kv_of_head), (_KEPT, kept)):
        buffer = None if numbers is None else torch.tensor(list(numbers), dtype=torch.long, device=device)
        module.register_buffer(name, buffer, persistent=False)
    return alike


def kv_index(module: nn.Module) -> Int[Tensor, " n_heads"] | None:
    """The kv head that each query head reads; None where groups are alike."""
    return getattr(module, _KV_INDEX, None)


def kept_heads(module: nn.Module) -> Int[Tensor, " n_heads"] | None:
    """Numbers of a pruned module's heads in what is made for all heads at once; None: it is given no such thing."""
    return getattr(module, _KEPT, None)


def is_regrouped(module: nn.Module) -> bool:
    """Whether a module's attention function must know of its pruning."""
    return kv_index(module) is not None or kept_heads(module) is not None


def for_query_heads(
    module: nn.Module, *tensors: Float[Tensor, "batch kv_head key d_head"]
) -> tuple[Float[Tensor, "batch head key d_head"], ...]:
    """Keys and values laid out for the query heads where groups are uneven; as they are where groups are alike."""
    index = kv_index(module)
    return tensors if index is None else tuple(tensor.index_select(1, index) for tensor in tensors)


def of_kept_heads(module: nn.Module, made_for_all: Tensor, dim: int = 1) -> Tensor:
    """The kept heads' part of a tensor made for all heads; all of one that is broadcast over heads."""
    kept = kept_heads(module)
    return made_for_all if kept is None or made_for_all.shape[dim] == 1 else made_for_all.index_select(dim, kept)


def in_full_groups(
    query: Float[Tensor, "batch head d_head"], index: Int[Tensor, " head"]
) -> tuple[Float[Tensor, "batch kv_head member d_head"], Int[Tensor, " head"]]:
    """One query of every head, in groups that are filled up to the largest with zeros; and where each head went.

    Args:
        index: of `kv_index`, ascending.

    Returns:
        The groups, and of each head its place in ``groups.flatten(1, 2)``.
    """
    sizes = torch.bincount(index)
    largest = int(sizes.max())
    first = torch.cumsum(sizes, 0) - sizes
    place = index * largest + torch.arange(len(index), device=index.device) - first[index]
    filled = query.new_zeros(query.shape[0], len(sizes) * largest, query.shape[2])
    filled[:, place] = query
    return filled.unflatten(1, (-1, largest)), place
