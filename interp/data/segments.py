"""Random tokens in which one segment is copied to a later place: what a model can only predict by looking back."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import torch
from jaxtyping import Bool, Int
from torch import Tensor

from interp.data.sequences import Sequences
from interp.data.vocabulary import Vocabulary
from interp.errors import UserError


@dataclass(frozen=True, eq=False, kw_only=True)
class CopiedSegments(Sequences):
    """Sequences ``prefix, random tokens`` in which a segment occurs twice.

    Attributes:
        source_start: position of the segment.
        copy_start: position of its copy, at or after the segment's end.
        copied_length: tokens of both.
    """

    source_start: Int[Tensor, " sequence"]
    copy_start: Int[Tensor, " sequence"]
    copied_length: Int[Tensor, " sequence"]

    _per_sequence: ClassVar[tuple[str, ...]] = (
        *Sequences._per_sequence, "source_start", "copy_start", "copied_length",
    )  # fmt: skip

    @property
    def copied(self) -> Bool[Tensor, "sequence position"]:
        """Tokens that could be told from the one before and its earlier occurrence: the copy, but for its first."""
        position = torch.arange(self.n_positions)
        after = position > self.copy_start[:, None]
        return after & (position < (self.copy_start + self.copied_length)[:, None])


def copied_segments(
    vocabulary: Vocabulary,
    length: int = 64,
    n: int = 32,
    *,
    shortest: int = 8,
    longest: int = 31,
    first: int = 0,
    seed: int = 0,
    prefix: Sequence[int] = (),
) -> CopiedSegments:
    """Uniform random tokens, with one segment copied to a later, not overlapping place of each sequence.

    Length and distance vary from sequence to sequence, so that no fixed offset finds the segment. Sequence i depends on
    (seed, i) alone: an endless set of sequences is taken from with ``first``.

    Args:
        vocabulary: what to draw from, with replacement; the prefix's tokens are not drawn.
        length: positions of a sequence, the prefix included.
        n: sequences.
        shortest, longest: tokens of a segment, drawn uniformly.
        first: number of the first sequence.
        seed: of the draw.
        prefix: tokens before the random ones.

    Raises:
        UserError: a segment and its copy do not fit, fewer than one sequence, or fewer than two tokens to draw from.
    """
    room = length - len(prefix)
    if not 2 <= shortest <= longest or 2 * longest > room:
        raise UserError(
            f"a segment has 2 tokens or more, and fits twice into the {room} positions after the prefix; got "
            f"{shortest} to {longest} tokens"
        )
    if n < 1 or first < 0:
        raise UserError(f"at least 1 sequence is needed, counted from 0; got n {n}, first {first}")
    usable = np.setdiff1d(vocabulary.usable, prefix)
    if len(usable) < 2:
        raise UserError(f"random tokens need at least 2 usable tokens; got {vocabulary.describe()}")
    tokens = np.empty((n, length), dtype=np.int64)
    tokens[:, : len(prefix)] = prefix
    places = np.empty((n, 3), dtype=np.int64)
    for row in range(n):
        rng = np.random.default_rng([seed, first + row])
        body = usable[rng.integers(len(usable), size=room)]
        size = int(rng.integers(shortest, longest + 1))
        # two cuts into what is neither segment nor copy: each place for them is as likely as any other
        before, until = np.sort(rng.integers(room - 2 * size + 1, size=2))
        copy = until + size
        body[copy : copy + size] = body[before : before + size]
        tokens[row, len(prefix) :] = body
        places[row] = before + len(prefix), copy + len(prefix), size
    start, copied_to, sizes = torch.from_numpy(places).unbind(1)
    return CopiedSegments(
        tokens=torch.from_numpy(tokens),
        valid=torch.ones(n, length, dtype=torch.bool),
        document=torch.arange(first, first + n),
        source=f"random tokens with a copied segment ({shortest} to {longest} tokens, seed {seed}, drawn from "
        f"{vocabulary.describe()})",
        source_start=start,
        copy_start=copied_to,
        copied_length=sizes,
    )
