"""Which tokens a random sequence may be drawn from."""

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Self

import numpy as np
from numpy.typing import ArrayLike, NDArray

from interp.errors import UserError

# Entries that only reserve a place and were never trained: [unused7], <reserved_3>, <|extra_id_0|>, madeupword0001
_PLACEHOLDER = re.compile(
    r"[<\[]\|?(unused|reserved|extra_id|placeholder|dummy)[\w-]*\|?[>\]]|madeupword\d+", re.IGNORECASE
)


@dataclass(frozen=True, eq=False)
class Vocabulary:
    """A model's token ids, and which of them random sequences are drawn from.

    Attributes:
        size: token ids go from 0 to size − 1.
        usable: the ids to draw from, ascending.
        excluded: how many ids are not, by the reason.
    """

    size: int
    usable: NDArray[np.int64]
    excluded: Mapping[str, int] = field(default_factory=dict)

    @classmethod
    def of_size(cls, n: int, special: Iterable[int] = ()) -> Self:
        """Ids from 0 to n − 1 but the special ones.

        Raises:
            UserError: a special id outside the vocabulary.
        """
        special = np.unique(np.fromiter(special, dtype=np.int64))
        if special.size and (special[0] < 0 or special[-1] >= n):
            raise UserError(f"special tokens must lie within the vocabulary, 0 to {n - 1}; got {special.tolist()}")
        return cls(n, np.setdiff1d(np.arange(n), special), {"special or added": special.size} if special.size else {})

    @classmethod
    def from_tokenizer(cls, tokenizer: Any, vocab_size: int | None = None) -> Self:
        """The tokenizer's ids but special and added tokens, placeholders, and ids that stand for no token.

        Args:
            tokenizer: with ``get_vocab()``, ``all_special_ids`` and ``get_added_vocab()``.
            vocab_size: of the model, whose embedding may be larger than the tokenizer's vocabulary (rows that were
                never trained) or smaller. None: the tokenizer's.
        """
        token_of = {index: token for token, index in tokenizer.get_vocab().items()}
        size = vocab_size or max(token_of) + 1
        kept, excluded = [], {"special or added": 0, "placeholders": 0, "no token": 0}
        added = {*tokenizer.all_special_ids, *tokenizer.get_added_vocab().values()}
        for index in range(size):
            if index in added:
                excluded["special or added"] += 1
            elif index not in token_of:
                excluded["no token"] += 1
            elif _PLACEHOLDER.fullmatch(token_of[index]):
                excluded["placeholders"] += 1
            else:
                kept.append(index)
        return cls(size, np.array(kept, dtype=np.int64), {reason: n for reason, n in excluded.items() if n})

    def without_extremes(self, frequencies: ArrayLike, share: float = 0.05) -> Self:
        """Leave out the most and the least common of the usable tokens, as Olsson et al. 2022 do.

        Args:
            frequencies: how common each id is, [size], in any unit.
            share: of the usable tokens, left out at either end; ties go by id.

        Raises:
            ValueError: frequencies for another number of ids, or a share outside 0 to 0.5.
        """
        frequencies = np.asarray(frequencies)
        if frequencies.shape != (self.size,):
            raise ValueError(f"frequencies needs one number per id, [{self.size}]; got {list(frequencies.shape)}")
        if not 0 <= share < 0.5:
            raise ValueError(f"the share left out at either end must lie between 0 and 0.5; got {share}")
        n = round(share * len(self.usable))
        by_frequency = self.usable[np.argsort(frequencies[self.usable], kind="stable")]
        excluded = {**self.excluded, "most common": n, "least common": n}
        return type(self)(self.size, np.sort(by_frequency[n : len(by_frequency) - n]), excluded)

    def describe(self) -> str:
        """How many ids are drawn from, and what the others are."""
        reasons = ", ".join(f"{n:,} {reason}" for reason, n in self.excluded.items() if n)
        return f"{len(self.usable):,} of {self.size:,} token ids" + (f" (without {reasons})" if reasons else "")
