"""Random tokens that repeat with a period, and their control in which nothing does."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import torch
from jaxtyping import Bool, Int
from numpy.typing import NDArray
from torch import Tensor

from interp.data.sequences import Sequences
from interp.data.vocabulary import Vocabulary
from interp.errors import UserError

Tokens = NDArray[np.int64]


@dataclass(frozen=True, eq=False, kw_only=True)
class RepeatedTokens(Sequences):
    """Sequences ``prefix, copy, copy, …, suffix`` of random tokens, or the control of the same make without repeats.

    The control has the same targets: where they would be if the copies were the same.

    Attributes:
        period: tokens of a copy.
        repeats: how many copies.
        start: position of the first copy, after the prefix.
    """

    period: int
    repeats: int
    start: int

    @property
    def eligible(self) -> Bool[Tensor, "sequence position"]:
        """Rows whose token occurred a period before: the second copy and the later ones."""
        return (self.duplicate_targets >= 0).any(-1)

    @property
    def duplicate_targets(self) -> Int[Tensor, "sequence position earlier"]:
        """Key i − kP of each row i for every earlier copy k = 1, …: where its token occurred; −1 for none."""
        position = torch.arange(self.n_positions)[:, None]
        earlier = position - self.period * torch.arange(1, self.repeats)
        within = (earlier >= self.start) & (position < self.start + self.period * self.repeats)
        return torch.where(within, earlier, -1).expand(len(self), -1, -1)

    @property
    def induction_targets(self) -> Int[Tensor, "sequence position earlier"]:
        """Key i − kP + 1 of each row i for every earlier copy: the token after its token's occurrence; −1 for none."""
        duplicates = self.duplicate_targets
        return torch.where(duplicates >= 0, duplicates + 1, -1)


def repeated_tokens(
    vocabulary: Vocabulary,
    period: int,
    repeats: int = 2,
    n: int = 32,
    *,
    seed: int = 0,
    prefix: Sequence[int] = (),
    suffix: Sequence[int] = (),
    context: int | None = None,
) -> RepeatedTokens:
    """Random tokens repeated with a period, on which induction and duplicate-token heads show themselves.

    The tokens of a period are drawn without replacement, so that every token's earlier occurrences are its targets and
    no others. Only where the vocabulary has fewer tokens than the period are they drawn with replacement; the notes
    then say so. Sequence i depends on (seed, i) alone: it is the same in a larger set, its first tokens are the same
    for a longer period, and its first copy is the same in the control.

    Args:
        vocabulary: what to draw from; the prefix's and the suffix's tokens are not drawn.
        period: tokens of a copy, at least 2.
        repeats: copies, at least 2.
        n: sequences.
        seed: of the draw.
        prefix: tokens before the first copy: the model's own convention, see `prefix_tokens`.
        suffix: tokens after the last copy, see `suffix_tokens`.
        context: the most positions that the model takes.

    Raises:
        UserError: period or repeats below 2, n below 1, sequences longer than the context, a prefix outside the
            vocabulary, or a vocabulary with fewer than two usable tokens.
    """
    make = _Make(vocabulary, period, repeats, n, seed, tuple(prefix), tuple(suffix), context)
    note = (
        ""
        if len(make.usable) >= period
        else f"Only {len(make.usable)} tokens are usable, fewer than a period: tokens occur more than once in a period."
    )
    return make.sequences(lambda rng: np.tile(_first_copy(make, rng), repeats), "repeated random tokens", note)


def unrepeated_tokens(
    vocabulary: Vocabulary,
    period: int,
    repeats: int = 2,
    n: int = 32,
    *,
    seed: int = 0,
    prefix: Sequence[int] = (),
    suffix: Sequence[int] = (),
    context: int | None = None,
) -> RepeatedTokens:
    """The control of `repeated_tokens` with the same arguments: the same first copy, then new tokens all along.

    No token occurs twice. Where the vocabulary has fewer tokens than a sequence, some do, but none at a multiple of
    the period after itself, so that no target is met; the notes then say so.

    Raises:
        UserError: as `repeated_tokens`, or a vocabulary with fewer usable tokens than repeats.
    """
    make = _Make(vocabulary, period, repeats, n, seed, tuple(prefix), tuple(suffix), context)
    n_usable, note = len(make.usable), ""
    if n_usable < repeats:
        raise UserError(
            f"the control of {repeats} repeats needs as many usable tokens; the vocabulary has {n_usable}: repeat less"
        )
    if n_usable < period * repeats:
        note = (
            f"Only {n_usable} tokens are usable, fewer than a sequence's {period * repeats}: tokens occur more than "
            "once, but none a period after itself."
        )
    return make.sequences(lambda rng: _nothing_repeats(make, rng), "unrepeated random tokens", note)


@dataclass(frozen=True)
class _Make:
    """How sequences are made, checked."""

    vocabulary: Vocabulary
    period: int
    repeats: int
    n: int
    seed: int
    prefix: tuple[int, ...]
    suffix: tuple[int, ...]
    context: int | None

    def __post_init__(self) -> None:
        if self.period < 2:
            raise UserError(f"period must be at least 2 tokens; got {self.period}")
        if self.repeats < 2:
            raise UserError(f"repeats must be at least 2, or nothing is repeated; got {self.repeats}")
        if self.n < 1:
            raise UserError(f"at least 1 sequence is needed; got {self.n}")
        around = len(self.prefix) + len(self.suffix)
        length = around + self.period * self.repeats
        if self.context is not None and length > self.context:
            longest = (self.context - around) // self.repeats
            raise UserError(
                f"{self.repeats} repeats of period {self.period} with {around} special tokens take {length} positions; "
                f"the model takes {self.context}: a period of at most {longest} fits"
            )
        size = self.vocabulary.size
        if outside := [token for token in self.prefix + self.suffix if not 0 <= token < size]:
            raise UserError(f"prefix and suffix must lie within the vocabulary, 0 to {size - 1}; got {outside}")
        if len(self.usable) < 2:
            raise UserError(
                f"random tokens need at least 2 usable tokens; the vocabulary of {size} has {len(self.usable)}"
            )

    @cached_property
    def usable(self) -> Tokens:
        """What is drawn from."""
        return np.setdiff1d(self.vocabulary.usable, self.prefix + self.suffix)

    def sequences(self, body: Callable[[np.random.Generator], Tokens], what: str, note: str) -> RepeatedTokens:
        rows = [
            [*self.prefix, *body(np.random.default_rng([self.seed, i])).tolist(), *self.suffix] for i in range(self.n)
        ]
        return RepeatedTokens.padded(
            rows,
            source=f"{what} (period {self.period}, {self.repeats} copies, seed {self.seed}, drawn from "
            f"{self.vocabulary.describe()})",
            notes=(note,) if note else (),
            period=self.period,
            repeats=self.repeats,
            start=len(self.prefix),
        )


def _first_copy(make: _Make, rng: np.random.Generator) -> Tokens:
    """A period of tokens: the start of a random order of all, where there are enough."""
    if len(make.usable) >= make.period:
        return rng.permutation(make.usable)[: make.period]
    return rng.choice(make.usable, make.period)


def _nothing_repeats(make: _Make, rng: np.random.Generator) -> Tokens:
    length = make.period * make.repeats
    if len(make.usable) >= length:
        return rng.permutation(make.usable)[:length]
    first = np.searchsorted(make.usable, _first_copy(make, rng))
    # for each place in the period an order of all tokens of its own, the first copy's token in front
    order = rng.random((make.period, len(make.usable)))
    order[np.arange(make.period), first] = -1.0
    return make.usable[order.argsort(1)[:, : make.repeats].T.ravel()]
