"""Words, their numbers, and vectors to begin with."""

import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray
from scipy import sparse
from scipy.sparse.linalg import svds

from interp.data.documents import utf8_lines
from interp.errors import UserError

PAD, UNKNOWN, BEGIN, END = range(4)
SPECIAL = ("<pad>", "<unknown>", "<s>", "</s>")
_WINDOW = 5  # words on either side that count as context


def words_of(text: str) -> tuple[str, ...]:
    """Lower-case words; whatever is neither letter, digit nor underscore separates them (Jain & Wallace's for SST)."""
    return tuple(re.sub(r"\W+", " ", text.lower()).split())


@dataclass(frozen=True, eq=False)
class WordIndex:
    """Words and their numbers, in the order of how often they occur, after the four special ones.

    Attributes:
        words: all of them, `SPECIAL` first.
    """

    words: tuple[str, ...]
    numbers: dict[str, int] = field(init=False, repr=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "numbers", {word: number for number, word in enumerate(self.words)})

    @classmethod
    def of(cls, texts: Iterable[Sequence[str]]) -> "WordIndex":
        """The index of all words of some texts."""
        counts = Counter(word for text in texts for word in text)
        return cls((*SPECIAL, *(word for word, _ in sorted(counts.items(), key=lambda item: (-item[1], item[0])))))

    def __len__(self) -> int:
        return len(self.words)

    def encode(self, words: Sequence[str]) -> NDArray[np.int64]:
        """Numbers [position] with begin and end around them; unknown words are `UNKNOWN`."""
        return np.array([BEGIN, *(self.numbers.get(word, UNKNOWN) for word in words), END], dtype=np.int64)


class Vectors(NamedTuple):
    """Word vectors [word, d_embed] in float32, the padding's zero, and how many words have one of their own."""

    values: NDArray[np.float32]
    known: int


def random_vectors(index: WordIndex, d_embed: int, std: float, seed: int) -> Vectors:
    """Normal vectors with a standard deviation."""
    values = np.random.default_rng(seed).normal(0.0, std, (len(index), d_embed)).astype(np.float32)
    values[PAD] = 0.0
    return Vectors(values, 0)


def read_vectors(path: str | Path, index: WordIndex, seed: int = 0) -> Vectors:
    """Vectors of the index's words from a file in text format (GloVe, fastText): a word and its numbers on each line.

    Words that the file lacks get normal vectors with the mean and the spread of those that it has.

    Raises:
        UserError: no such file, not UTF-8, lines of different lengths, a number that is none, no word in common.
    """
    path = Path(path)
    if not path.is_file():
        raise UserError(
            f"there is no file of word vectors {str(path)!r}; vectors are random, text, model:NAME, or a file"
        )
    found: dict[int, NDArray[np.float32]] = {}
    size = 0
    for number, line in enumerate(utf8_lines(path), 1):
        parts = line.rstrip("\n").rstrip(" ").split(" ")
        if number == 1 and len(parts) == 2 and all(part.isdigit() for part in parts):
            continue  # fastText's first line: how many words, how many numbers
        size = size or len(parts) - 1
        if len(parts) - 1 != size or size < 1:
            raise UserError(f"{path}, line {number} must hold a word and {size} numbers; got {len(parts) - 1} numbers")
        if (place := index.numbers.get(parts[0])) is not None:
            try:
                found[place] = np.array(parts[1:], dtype=np.float32)
            except ValueError as error:
                raise UserError(f"{path}, line {number} holds something that is no number: {error}") from error
    if not found:
        raise UserError(
            f"{path} has none of the {len(index) - len(SPECIAL):,} words of the texts: are they lower-case?"
        )
    if not np.isfinite(np.stack(list(found.values()))).all():
        raise UserError(f"{path} holds vectors with NaN or infinite numbers")
    return completed_vectors(found, index, seed)


def completed_vectors(found: Mapping[int, NDArray[np.float32]], index: WordIndex, seed: int = 0) -> Vectors:
    """Vectors of some words, by their numbers; the others get normal ones with the mean and the spread of these."""
    known = np.stack(list(found.values()))
    values = np.random.default_rng(seed).normal(known.mean(), known.std(), (len(index), known.shape[1]))
    values = values.astype(np.float32)
    values[list(found)] = known
    values[PAD] = 0.0
    return Vectors(values, len(found))


def text_vectors(texts: Sequence[Sequence[str]], index: WordIndex, d_embed: int, std: float, seed: int = 0) -> Vectors:
    """Vectors made from the texts: positive pointwise mutual information in windows of ±5 words, then an SVD.

    Left singular vectors times the square root of the singular values (Levy, Goldberg & Dagan 2015), scaled to a
    standard deviation; where there are fewer than ``d_embed`` dimensions, the rest is random.
    """
    pairs: Counter[tuple[int, int]] = Counter()
    for text in texts:
        numbers = index.encode(text)[1:-1].tolist()
        for i, word in enumerate(numbers):
            for context in numbers[i + 1 : i + 1 + _WINDOW]:
                pairs[word, context] += 1
                pairs[context, word] += 1
    random = random_vectors(index, d_embed, std, seed).values
    if not pairs:
        return Vectors(random, 0)
    places, counts = np.array(list(pairs)), np.array(list(pairs.values()), dtype=np.float64)
    table = sparse.coo_matrix((counts, (places[:, 0], places[:, 1])), shape=(len(index), len(index))).tocsr()
    margin = np.asarray(table.sum(1)).ravel()
    rows, columns = table.nonzero()
    pmi = np.log(np.asarray(table[rows, columns]).ravel() * counts.sum() / (margin[rows] * margin[columns]))
    positive = sparse.csr_matrix((np.maximum(pmi, 0.0), (rows, columns)), shape=table.shape)
    rank = min(d_embed, len(index) - 1)
    start = np.random.default_rng(seed).normal(size=len(index))
    left, singular, _ = svds(positive, k=rank, v0=start)
    made = (left * np.sqrt(np.maximum(singular, 0.0))).astype(np.float32)
    values, known = random.copy(), margin > 0
    values[known, :rank] = made[known] * (std / max(float(made[known].std()), 1e-12))
    values[PAD] = 0.0
    return Vectors(values, int(known.sum()))
