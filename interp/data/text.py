"""Windows of documents: sequences of one length that remember which document they come from."""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from interp.data.conventions import prefix_tokens, suffix_tokens
from interp.data.documents import Document
from interp.data.sequences import Sequences
from interp.errors import UserError

# Windows gathered for each one that is to be drawn, before reading stops: where they come from as many documents as
# windows are to be drawn, and where there are fewer, longer documents
_ENOUGH, _MOST = 8, 16


def windows(
    documents: Iterable[Document | str],
    tokenizer: Any | None,
    length: int,
    *,
    stride: int | None = None,
    n: int | None = None,
    seed: int = 0,
    vocab_size: int | None = None,
    context: int | None = None,
) -> Sequences:
    """Cut documents into windows of one length, each with the tokenizer's own special tokens around it.

    No window crosses from one document into the next. Windows start at a document's beginning and every ``stride``
    tokens; what is left at a document's end, and documents shorter than a window, make none. They are counted, and
    `Sequences.describe` says how many tokens that left out.

    Args:
        documents: from `read_documents`, or texts.
        tokenizer: a Hugging Face tokenizer; None where the documents are token ids of a model without one, which then
            get no special tokens.
        length: positions of a window, special tokens included.
        stride: tokens from one window's beginning to the next one's. None: windows do not overlap.
        n: how many windows to draw at random, from as many documents as possible; None: all. Reading stops when eight
            times as many are found in n documents, or 16 times as many in fewer; of one document (or piece of a long
            one) at most n are considered.
        seed: of the draw.
        vocab_size: of the model; None: not checked.
        context: the most positions that the model takes; None: not checked.

    Returns:
        Windows in the order of the source, with text and offsets where the tokenizer gives them (a fast one).

    Raises:
        UserError: no document is as long as a window, length above the context or too short for the special tokens,
            stride or n below 1, token ids outside the vocabulary, text without a tokenizer.
    """
    cutter = _Cutter(tokenizer, length, stride, n, vocab_size, context)
    rng = np.random.default_rng(seed)
    found: list[_Window] = []
    of_documents: set[int] = set()
    stopped = False
    for document in documents:
        if n is not None and len(found) >= n * (_ENOUGH if len(of_documents) >= n else _MOST):
            stopped = True
            break
        new = list(cutter.cut(document if isinstance(document, Document) else cutter.named(document), rng))
        of_documents.update(window.document for window in new)
        found += new
    if not found:
        raise UserError(cutter.why_none())
    drawn = found if n is None or len(found) <= n else _draw(found, n, rng)
    return cutter.sequences(drawn, len(found), stopped)


@dataclass
class _Window:
    """The tokens of a window without special ones, their text and where they lie in it."""

    document: int
    ids: NDArray[np.integer]
    text: str | None
    offsets: NDArray[np.int64] | None


@dataclass
class _Counts:
    tokens: int = 0
    longest: int = 0
    short_documents: int = 0
    in_short: int = 0
    at_ends: int = 0
    between: int = 0
    not_kept: int = 0  # windows of documents with more than n


@dataclass
class _Cutter:
    """Cuts documents and counts what it leaves out."""

    tokenizer: Any | None
    length: int
    stride: int | None
    n: int | None
    vocab_size: int | None
    context: int | None
    prefix: list[int] = field(init=False)
    suffix: list[int] = field(init=False)
    numbers: dict[str, int] = field(default_factory=dict)
    source: str = "text"
    counts: _Counts = field(default_factory=_Counts)

    def __post_init__(self) -> None:
        self.prefix = [] if self.tokenizer is None else prefix_tokens(self.tokenizer)
        self.suffix = [] if self.tokenizer is None else suffix_tokens(self.tokenizer)
        if self.context is not None and self.length > self.context:
            raise UserError(f"a window of {self.length} is longer than the {self.context} positions the model takes")
        if self.body < 2:
            special = len(self.prefix) + len(self.suffix)
            raise UserError(f"a window needs at least 2 tokens beside {special} special ones; got {self.length}")
        for name in ("stride", "n"):
            if getattr(self, name) is not None and getattr(self, name) < 1:
                raise UserError(f"{name} must be at least 1; got {getattr(self, name)}")

    @property
    def body(self) -> int:
        """Tokens of a window that come from the document."""
        return self.length - len(self.prefix) - len(self.suffix)

    def named(self, text: str) -> Document:
        return Document(f"text#{len(self.numbers) + 1}", "text", text)

    def cut(self, document: Document, rng: np.random.Generator) -> Iterator[_Window]:
        if not self.numbers:
            self.source = document.source
        number = self.numbers.setdefault(document.name, len(self.numbers))
        ids, offsets = self._encode(document)
        self._check(ids, document)
        starts = np.arange(0, len(ids) - self.body + 1, self.stride or self.body)
        self._count(document, len(ids), starts)
        if self.n is not None and len(starts) > self.n:
            self.counts.not_kept += len(starts) - self.n
            starts = np.sort(rng.choice(starts, self.n, replace=False))
        for start in starts.tolist():
            yield self._window(number, document.text, ids[start : start + self.body], offsets, start)

    def why_none(self) -> str:
        special = len(self.prefix) + len(self.suffix)
        beside = f" beside {special} special ones" if special else ""
        if not self.numbers:
            return "there is no document to cut windows from: give a text that holds some"
        return (
            f"a window needs {self.body} tokens{beside}; the longest of {len(self.numbers):,} documents of "
            f"{self.source} has {self.counts.longest}: ask for shorter windows or give longer texts"
        )

    def sequences(self, drawn: list[_Window], n_found: int, stopped: bool) -> Sequences:
        used = sorted({window.document for window in drawn})
        renumbered = {number: i for i, number in enumerate(used)}
        names = list(self.numbers)
        known_offsets = all(window.offsets is not None for window in drawn)
        return Sequences.padded(
            [[*self.prefix, *window.ids.tolist(), *self.suffix] for window in drawn],
            document=[renumbered[window.document] for window in drawn],
            source=self.source,
            names=tuple(names[number] for number in used),
            text=None if any(window.text is None for window in drawn) else tuple(str(w.text) for w in drawn),
            offsets=torch.stack([self._placed(window.offsets) for window in drawn]) if known_offsets else None,
            left_out=self.counts.in_short + self.counts.at_ends + self.counts.between,
            notes=tuple(self._notes(len(drawn), n_found, stopped)),
        )

    def _encode(self, document: Document) -> tuple[NDArray[np.integer], NDArray[np.int64] | None]:
        if document.tokens is not None:
            return document.tokens, None
        if self.tokenizer is None:
            raise UserError(f"{document.name} is text, which needs a tokenizer; give token ids (.npy) instead")
        is_fast = bool(getattr(self.tokenizer, "is_fast", False))
        # verbose: a document longer than the context is no fault, since it is cut
        encoded = self.tokenizer(document.text, add_special_tokens=False, return_offsets_mapping=is_fast, verbose=False)
        ids = np.asarray(encoded["input_ids"], dtype=np.int64)
        return ids, np.asarray(encoded["offset_mapping"], dtype=np.int64).reshape(-1, 2) if is_fast else None

    def _check(self, ids: NDArray[np.integer], document: Document) -> None:
        top = np.iinfo(np.int64).max if self.vocab_size is None else self.vocab_size
        outside = np.flatnonzero((ids < 0) | (ids >= top))
        if outside.size:
            limit = "at least 0" if self.vocab_size is None else f"0 to {self.vocab_size - 1}, the model's vocabulary"
            at = int(outside[0])
            raise UserError(f"token ids must be {limit}; {document.name} has {int(ids[at])} at position {at}")

    def _count(self, document: Document, n_tokens: int, starts: NDArray[np.int64]) -> None:
        counts = self.counts
        counts.tokens += n_tokens
        counts.longest = max(counts.longest, n_tokens)
        if len(starts):
            counts.at_ends += n_tokens - int(starts[-1]) - self.body
            counts.between += (len(starts) - 1) * max((self.stride or self.body) - self.body, 0)
        elif document.is_continued:
            counts.at_ends += n_tokens
        else:
            counts.short_documents += 1
            counts.in_short += n_tokens

    def _window(
        self, number: int, text: str | None, ids: NDArray[np.integer], offsets: NDArray[np.int64] | None, start: int
    ) -> _Window:
        if text is None or offsets is None:
            decoded = None if self.tokenizer is None else self.tokenizer.decode(ids.tolist())
            return _Window(number, ids, decoded, None)
        mine = offsets[start : start + self.body]
        first = int(mine[0, 0])
        return _Window(number, ids, text[first : int(mine[:, 1].max())], mine - first)

    def _placed(self, offsets: NDArray[np.int64] | None) -> torch.Tensor:
        placed = torch.zeros(self.length, 2, dtype=torch.int64)
        placed[len(self.prefix) : len(self.prefix) + self.body] = torch.as_tensor(offsets)
        return placed

    def _notes(self, n_drawn: int, n_found: int, stopped: bool) -> Iterator[str]:
        counts = self.counts
        parts = [
            (counts.at_ends, "at the ends of documents"),
            (counts.in_short, f"in {counts.short_documents:,} shorter than a window"),
            (counts.between, "between windows"),
        ]
        if told := ", ".join(f"{tokens:,} {where}" for tokens, where in parts if tokens):
            yield f"Left out are {sum(tokens for tokens, _ in parts):,} of {counts.tokens:,} tokens: {told}."
        if self.n is not None and n_drawn < self.n:
            yield f"Asked for were {self.n:,} windows; there are no more."
        if n_drawn < n_found + counts.not_kept:
            yield f"{n_drawn:,} of {n_found + counts.not_kept:,} windows are read, drawn at random."
        if stopped:
            yield "The source was not read to its end."


def _draw(found: list[_Window], n: int, rng: np.random.Generator) -> list[_Window]:
    """Windows at random from as many documents as possible: one of each before a second of any."""
    turn = np.zeros(len(found), dtype=np.int64)  # which of its document's windows each one is, in random order
    seen: dict[int, int] = {}
    order = rng.permutation(len(found))
    for i in order:
        turn[i] = seen.get(found[i].document, 0)
        seen[found[i].document] = int(turn[i]) + 1
    by_turn = order[np.argsort(turn[order], kind="stable")]
    return [found[i] for i in np.sort(by_turn[:n])]
