"""Sequences of tokens: which positions are real, and which sequences belong together."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from hashlib import sha256
from typing import Any, ClassVar, Self

import torch
from jaxtyping import Bool, Int
from torch import Tensor


@dataclass(frozen=True, eq=False)
class Sequences:
    """Token sequences of equal or, padded on the right, of different lengths.

    Attributes:
        tokens: int64 token ids; any id where not valid.
        valid: which positions hold a token of the sequence rather than padding.
        document: number of the document that each sequence comes from. Sequences of one document are no separate
            evidence: pass it as ``units`` to `interp.statistics`.
        source: where the tokens come from, in words.
        names: names of the documents by their number; empty where they have none.
        text: the text of each sequence, where it has one.
        offsets: where each token lies in the sequence's text, as (start, end) characters; (0, 0) for special tokens
            and padding. None where unknown.
        left_out: tokens of the source that no sequence covers.
        notes: sentences that a reader should know, about what was left out among others.
    """

    tokens: Int[Tensor, "sequence position"]
    valid: Bool[Tensor, "sequence position"]
    document: Int[Tensor, " sequence"]
    source: str
    names: tuple[str, ...] = ()
    text: tuple[str, ...] | None = None
    offsets: Int[Tensor, "sequence position 2"] | None = None
    left_out: int = 0
    notes: tuple[str, ...] = ()

    _per_sequence: ClassVar[tuple[str, ...]] = ("tokens", "valid", "document", "text", "offsets")
    _per_position: ClassVar[tuple[str, ...]] = ("tokens", "valid", "offsets")

    def __post_init__(self) -> None:
        n, n_positions = self.tokens.shape
        if self.tokens.dtype != torch.int64 or self.valid.dtype != torch.bool:
            raise ValueError(f"tokens must be int64 and valid bool; got {self.tokens.dtype} and {self.valid.dtype}")
        if self.valid.shape != self.tokens.shape or self.document.shape != (n,):
            raise ValueError(
                f"valid must be [{n}, {n_positions}] as tokens and document [{n}]; "
                f"got {list(self.valid.shape)} and {list(self.document.shape)}"
            )
        if self.text is not None and len(self.text) != n:
            raise ValueError(f"text must have one string per sequence, {n}; got {len(self.text)}")
        if self.offsets is not None and self.offsets.shape != (n, n_positions, 2):
            raise ValueError(f"offsets must be [{n}, {n_positions}, 2]; got {list(self.offsets.shape)}")
        if not self.valid.any(1).all():
            raise ValueError(f"sequence {int((~self.valid.any(1)).nonzero()[0])} has no valid token")

    def __len__(self) -> int:
        return len(self.tokens)

    @property
    def n_positions(self) -> int:
        """Positions of the longest sequence."""
        return self.tokens.shape[1]

    @property
    def lengths(self) -> Int[Tensor, " sequence"]:
        """Valid tokens of each sequence."""
        return self.valid.sum(1)

    def select(self, rows: slice | Sequence[int] | Any) -> Self:
        """Some of the sequences, by a slice, indices or a boolean mask, in the order given."""
        index = torch.arange(len(self))[rows if isinstance(rows, slice) else torch.as_tensor(rows)]
        taken = {name: _take(getattr(self, name), index) for name in self._per_sequence}
        return replace(self, **taken)

    def batches(self, size: int) -> Iterator[Self]:
        """Sequences in their order, ``size`` at a time, each batch as long as its longest sequence.

        Raises:
            ValueError: size below 1.
        """
        if size < 1:
            raise ValueError(f"a batch must hold at least 1 sequence; got size {size}")
        for start in range(0, len(self), size):
            batch = self.select(slice(start, start + size))
            yield batch.cut(int(batch.valid.any(0).nonzero().max()) + 1)

    def cut(self, n_positions: int) -> Self:
        """The first positions of every sequence."""
        known = {name: getattr(self, name) for name in self._per_position}
        return replace(self, **{name: t[:, :n_positions] for name, t in known.items() if t is not None})

    def hash(self) -> str:
        """SHA-256 of the valid tokens, their places and their documents; padding's ids do not count."""
        digest = sha256(repr(tuple(self.tokens.shape)).encode())
        for tensor in (self.tokens.masked_fill(~self.valid, 0), self.valid, self.document.long()):
            digest.update(tensor.cpu().contiguous().numpy().tobytes())
        return digest.hexdigest()

    def describe(self) -> str:
        """What these sequences are and what was left out, in a few sentences."""
        shortest, longest = int(self.lengths.min()), int(self.lengths.max())
        size = f"{longest}" if shortest == longest else f"{shortest} to {longest}"
        n_documents = len(self.document.unique())
        of = "" if n_documents == len(self) else f"{_count(n_documents, 'document')} of "
        first = f"{_count(len(self), 'sequence')} of {size} tokens from {of}{self.source}."
        return " ".join([first, *self.notes])

    def provenance(self) -> dict[str, str]:
        """What they are, and the hash of their tokens."""
        return {"what": self.describe(), "sha256": self.hash()}

    def token_text(self, sequence: int) -> list[str]:
        """The text of each token of a sequence; empty for special tokens and padding.

        Raises:
            ValueError: the sequences' text or offsets are not known.
        """
        if self.text is None or self.offsets is None:
            raise ValueError(f"the sequences from {self.source} do not know their text; decode their tokens instead")
        return [self.text[sequence][start:end] for start, end in self.offsets[sequence].tolist()]

    @classmethod
    def padded(cls, rows: Sequence[Sequence[int]], document: Sequence[int] | None = None, **known: Any) -> Self:
        """Sequences from lists of token ids, padded on the right with 0 to the longest.

        Args:
            rows: token ids of each sequence.
            document: number of each sequence's document; None: each is its own.
            known: the other fields.

        Raises:
            ValueError: no rows, or an empty one.
        """
        if not rows or not all(len(row) for row in rows):
            raise ValueError(f"sequences need at least one token each; got {[len(row) for row in rows]} tokens")
        longest = max(len(row) for row in rows)
        tokens = torch.zeros(len(rows), longest, dtype=torch.int64)
        valid = torch.zeros(len(rows), longest, dtype=torch.bool)
        for i, row in enumerate(rows):
            tokens[i, : len(row)] = torch.as_tensor(row)
            valid[i, : len(row)] = True
        documents = torch.arange(len(rows)) if document is None else torch.as_tensor(document)
        return cls(tokens=tokens, valid=valid, document=documents, **known)


def _take(values: Any, index: Tensor) -> Any:
    if isinstance(values, tuple):
        return tuple(values[i] for i in index.tolist())
    return None if values is None else values[index]


def _count(n: int, what: str) -> str:
    return f"{n:,} {what}" if n == 1 else f"{n:,} {what}s"
