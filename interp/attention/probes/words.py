"""What is read word by word, where a word may be several tokens."""

# ruff: noqa: D102 (what the methods are for, Probe says)

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar, NamedTuple

import torch
from jaxtyping import Int
from torch import Tensor

from interp.attention.rows import Rows, SiteShape

from .base import Measured, Probe, integers, per_key

__all__ = ["StrongestGroup"]


class _Open(NamedTuple):
    """A word some of whose rows may still come."""

    group: Tensor  # []: which word
    total: Tensor  # [head, key_group]: its rows' weights, summed
    n_rows: Tensor  # [head]


@dataclass
class _Words:
    choice: Tensor  # [batch, head, query_group]: strongest group, −1 where there was none
    weight: Tensor  # [batch, head, query_group]: weight on it
    reader: Tensor  # [batch, head, key_group]: group that reads it most, −1 where none does
    read: Tensor  # [batch, head, key_group]: that group's weight on it
    open: list[_Open | None]  # one per sequence


@dataclass(frozen=True, eq=False)
class StrongestGroup(Probe):
    """Strongest *word* for each word, where words are groups of consecutive tokens (Clark et al. 2019).

    Weights to a split word are summed over its tokens, weights from a split word are averaged over its rows. The word
    itself, and keys without a word, are left out of the choice.

    Args:
        groups: word of each token, non-decreasing where ≥ 0, −1 for none (separators, padding); [key] or [batch, key].
        n_groups: number of words.
        both_ways: also say, for each word, which other word attends to it most (Clark et al.'s other direction).
        earlier: the choice is among the words before.

    Values: [batch, head, word, 2] of (strongest word or −1, its weight); both ways [batch, head, word, 4], also with
    the word that attends to it most or −1, and that one's weight. Of equal weights the first word's counts. Queries and
    keys must be the same tokens.
    """

    groups: Int[Tensor, "#batch key"] | None = None
    n_groups: int = 0
    both_ways: bool = False
    earlier: bool = False
    aligned: ClassVar[bool] = True

    def __post_init__(self) -> None:
        integers(self, "groups")
        assert self.groups is not None
        groups = self.groups[None] if self.groups.ndim == 1 else self.groups
        for row in groups:
            real = row[row >= 0]
            if (real[1:] < real[:-1]).any():
                raise ValueError("StrongestGroup.groups must not decrease along the tokens: words are consecutive")
            if real.numel() and int(real.max()) >= self.n_groups:
                raise ValueError(f"StrongestGroup.groups names word {int(real.max())}, n_groups is {self.n_groups}")

    def axes(self) -> tuple[tuple[str, Sequence[object]], ...]:
        choice = ["group", "weight", *(["reader", "read"] if self.both_ways else [])]
        return (("group", list(range(self.n_groups))), ("choice", choice))

    def start(self, shape: SiteShape) -> _Words:
        """No word seen yet."""
        size = (shape.batch, shape.n_heads, self.n_groups)
        choice = torch.full(size, -1, dtype=torch.long, device=shape.device)
        weight = torch.zeros(size, dtype=torch.float64, device=shape.device)
        return _Words(choice, weight, choice.clone(), weight.clone(), [None] * shape.batch)

    def update(self, state: _Words, rows: Rows) -> None:
        """Sum a block's rows by word, and choose for each word that has ended."""
        batch, n_heads, n_rows = rows.mask.batch, rows.mask.n_heads, rows.stop - rows.start
        groups = per_key(self, "groups", rows).long()
        query_group = rows.of_queries(groups).expand(batch, -1)
        key_group = groups[:, rows.low : rows.high].expand(batch, -1)
        valid = (
            torch.ones(1, 1, n_rows, dtype=torch.bool, device=rows.mask.device) if rows.valid is None else rows.valid
        )
        pattern, valid = rows.pattern.expand(batch, n_heads, -1, -1), valid.expand(batch, n_heads, -1)
        for b in range(batch):
            self._add(state, b, pattern[b], query_group[b], key_group[b], valid[b])

    def _add(
        self, state: _Words, b: int, pattern: Tensor, query_group: Tensor, key_group: Tensor, valid: Tensor
    ) -> None:
        in_word = query_group >= 0
        words, place = torch.unique_consecutive(query_group[in_word], return_inverse=True)
        if not len(words):
            return
        # Tokens without a word go to one column, and one row, more, which are dropped
        column = torch.where(key_group >= 0, key_group, self.n_groups)
        row = torch.full_like(query_group, len(words)).masked_scatter(in_word, place)
        by_key = pattern.new_zeros(*pattern.shape[:2], self.n_groups + 1).index_add_(-1, column, pattern)[..., :-1]
        counted = valid.double()
        total = counted.new_zeros(len(by_key), len(words) + 1, self.n_groups)
        total = total.index_add_(1, row, by_key * counted[..., None])[:, :-1]
        n_rows = counted.new_zeros(len(by_key), len(words) + 1).index_add_(1, row, counted)[:, :-1]
        if (before := state.open[b]) is not None:
            if before.group == words[0]:
                total[:, 0] += before.total
                n_rows[:, 0] += before.n_rows
            else:
                self._close(state, b, before.group[None], before.total[:, None], before.n_rows[:, None])
        self._close(state, b, words[:-1], total[:, :-1], n_rows[:, :-1])
        state.open[b] = _Open(words[-1], total[:, -1].clone(), n_rows[:, -1].clone())

    def _close(self, state: _Words, b: int, words: Tensor, total: Tensor, n_rows: Tensor) -> None:
        mean = total / n_rows[..., None].clamp_min(1)
        if not len(words):
            return
        mean[:, torch.arange(len(words), device=words.device), words] = -1.0  # a word does not choose itself
        if self.earlier:
            mean = mean.masked_fill(torch.arange(self.n_groups, device=words.device) >= words[:, None], -1.0)
        weight, choice = mean.max(-1)
        found = weight > 0
        state.weight[b, :, words] = weight.where(found, 0.0)
        state.choice[b, :, words] = choice.where(found, -1)
        if self.both_ways:
            read, reader = mean.max(1)
            more = read > state.read[b]  # words come in their order, so that of equal weights the first stays
            state.read[b] = read.where(more, state.read[b])
            state.reader[b] = words[reader].where(more, state.reader[b])

    def finish(self, state: _Words) -> Measured:
        """Choices of all words."""
        for b, last in enumerate(state.open):
            if last is not None:
                self._close(state, b, last.group[None], last.total[:, None], last.n_rows[:, None])
        parts = [state.choice.double(), state.weight]
        parts += [state.reader.double(), state.read] if self.both_ways else []
        return Measured(torch.stack(parts, dim=-1), (state.choice >= 0).long()[..., None])
