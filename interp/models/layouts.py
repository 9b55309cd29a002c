"""Whether heads are where they are taken to be: layouts of attention calls that would be misread are refused."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from interp.errors import UserError
from interp.models.interception import AttentionCall, SoftmaxCall
from interp.models.sites import AttentionSite

__all__ = ["check_fold", "check_heads", "check_pattern", "equal_sequences"]


def check_pattern(where: str, pattern: Tensor) -> None:
    """Raise UserError for a pattern that looks like [batch, query, head, key]."""
    _, heads, queries, keys = pattern.shape
    if heads == keys != queries:
        raise UserError(
            f"{where} takes a softmax over {list(pattern.shape)}, which looks like [batch, query, head, key]: let it "
            f"be [batch, head, query, key]; or, if there are {heads} heads, give an example= with other lengths"
        )


def check_heads(site: AttentionSite, n_heads: int) -> None:
    """Raise UserError where a site has other heads than it had on the example."""
    if n_heads != site.n_heads:
        raise UserError(
            f"{site.name} had {site.n_heads} heads on the example and has {n_heads} on this input, so that what was "
            "taken for heads is something else: its queries must be [batch, head, position, d_head], or its softmax "
            "over [batch, head, query, key]"
        )


def equal_sequences(example: Mapping[str, Any], batch: int | None) -> dict[str, Any]:
    """The example with its first sequence twice, and no other."""

    def twice(value: Any) -> Any:
        if not isinstance(value, Tensor) or value.ndim == 0 or len(value) != batch:
            return value
        return value[:1].expand(2, *value.shape[1:]).clone()

    return {name: twice(value) for name, value in example.items()}


def check_fold(where: str, call: AttentionCall | SoftmaxCall, tensor: Tensor) -> None:
    """Compare what two equal sequences gave, where heads lie in one dimension with them.

    Raises:
        UserError: it differs, so that heads were taken for sequences.
    """
    if call.folded and not torch.allclose(tensor[0], tensor[1], rtol=1e-3, atol=1e-4):
        raise UserError(
            f"{where} ({call.how}) puts heads and sequences into one dimension with the heads first, "
            "[head · sequence, query, …], so that heads would be taken for sequences: put sequences first there, or "
            "keep the dimensions apart, [sequence, head, query, …]"
        )
