"""What each token is: special, a separator, punctuation, a number, one of a pair, the beginning of a sentence, rare."""

import re
import unicodedata
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import torch
from jaxtyping import Bool, Int
from torch import Tensor

from interp.data.sequences import Sequences
from interp.data.treebank import Span

_BRACKETS = {")": "(", "]": "[", "}": "{", "）": "（", "】": "【", "》": "《"}
_QUOTES = {"”": "“", "»": "«", "」": "「", "』": "『"}
_STRAIGHT = '"'
# Ends of sentences: signs that need a space after them (beside quotes and brackets that close), and signs that do not
_END = re.compile(r"[.!?…]+[\"'”’»)\]]*(?=\s)|[。！？]+[”’」』）]*|\n[^\S\n]*\n")
# Scripts written without spaces: Thai, Lao, Burmese, Khmer, kana, Han. A character stands for a word there.
_UNSPACED = "\u0e00-\u0eff\u1000-\u109f\u1780-\u17ff\u3040-\u30ff\u3400-\u4dbf\u4e00-\u9fff\uf900-\ufaff"
_A_WORD = re.compile(rf"[{_UNSPACED}]|[^\W_{_UNSPACED}]+(?:['’\-][^\W_{_UNSPACED}]+)*")


@dataclass(frozen=True, eq=False)
class TokenLabels:
    """What is known about every token of some sequences; padding is nothing.

    Attributes:
        special: one of the tokenizer's special tokens, wherever it stands.
        separator: a special token other than a sequence's first, or a token that is nothing but line ends.
        punctuation: nothing but punctuation (Unicode's class P).
        number: holds a digit.
        sentence_start: the first token of a sentence, but for the first of a sequence.
        bracket: the position of the token that holds the other bracket of the pair; −1 for none.
        quote: likewise of a pair of double quotation marks.
        rare: positions of the tokens of the rarest word of the token's own sentence, filled up with −1.
    """

    special: Bool[Tensor, "sequence position"]
    separator: Bool[Tensor, "sequence position"]
    punctuation: Bool[Tensor, "sequence position"]
    number: Bool[Tensor, "sequence position"]
    sentence_start: Bool[Tensor, "sequence position"]
    bracket: Int[Tensor, "sequence position"]
    quote: Int[Tensor, "sequence position"]
    rare: Int[Tensor, "sequence position target"]


def token_labels(sequences: Sequences, tokenizer: Any) -> TokenLabels:
    """Labels of all tokens, from the text that they stand for.

    Sentences end at ``.``, ``!``, ``?``, ``…`` before a space, at the full stops of scripts written without spaces, and
    at empty lines; a sentence cut off by the window's end counts as one. A word's frequency is how often the sequences
    hold it, whatever its case; among words of equal frequency the one with the highest token id is the rarer, since
    vocabularies are built from frequent to rare; of these the first. In scripts without spaces a character is a word.
    """
    texts = [_Text.of(sequences, row, tokenizer) for row in range(len(sequences))]
    counts = Counter(word for text in texts for word, _ in text.words())
    special_ids = torch.tensor(sorted(tokenizer.all_special_ids), dtype=torch.int64)
    special = torch.isin(sequences.tokens, special_ids) & sequences.valid
    flags = {name: torch.zeros_like(special) for name in ("separator", "punctuation", "number", "sentence_start")}
    bracket, quote = (torch.full_like(sequences.tokens, -1) for _ in range(2))
    rare: list[list[list[int]]] = []
    for row, text in enumerate(texts):
        spelled = text.spelled()
        flags["separator"][row] = torch.tensor([_is_line_end(piece) for piece in spelled])
        flags["punctuation"][row] = torch.tensor([_is_punctuation(piece) for piece in spelled])
        flags["number"][row] = torch.tensor([any(sign.isnumeric() for sign in piece) for piece in spelled])
        starts = text.sentence_starts()
        flags["sentence_start"][row, starts] = True
        for partner, pairs in ((bracket, text.brackets()), (quote, text.quotes())):
            for one, other in pairs:
                partner[row, one], partner[row, other] = other, one
        rare.append(text.rarest(counts, sequences.tokens[row].tolist()))
    first = sequences.valid.int().argmax(1)
    behind_first = torch.arange(sequences.n_positions) > first[:, None]
    flags["separator"] |= special & behind_first
    flags["sentence_start"] &= behind_first & ~special
    kept = {name: flag & sequences.valid for name, flag in flags.items()}
    return TokenLabels(special=special, **kept, bracket=bracket, quote=quote, rare=_filled(rare))


def sentence_spans(text: str) -> list[Span]:
    """Where the sentences of a text stand: characters from the first to behind the last, spaces around left out."""
    ends = [0, *(match.end() for match in _END.finditer(text)), len(text)]
    stripped = []
    for start, end in pairwise(ends):
        inner = text[start:end]
        if inner.strip():
            stripped.append((start + len(inner) - len(inner.lstrip()), end - len(inner) + len(inner.rstrip())))
    return stripped


def token_texts(tokenizer: Any | None, tokens: Sequence[int]) -> list[str]:
    """Every token as text, with its space before it; its number where there is no tokenizer."""
    if tokenizer is None:
        return [str(token) for token in tokens]
    return list(_pieces(tokenizer, tokens))


@dataclass(frozen=True)
class _Text:
    """A sequence's text, and the characters of each of its positions; (0, 0) for special tokens and padding."""

    text: str
    offsets: list[Span]

    @classmethod
    def of(cls, sequences: Sequences, row: int, tokenizer: Any) -> "_Text":
        if sequences.text is not None and sequences.offsets is not None:
            return cls(sequences.text[row], [(int(a), int(b)) for a, b in sequences.offsets[row].tolist()])
        special, offsets, text = set(tokenizer.all_special_ids), [], ""
        pairs = zip(sequences.tokens[row].tolist(), sequences.valid[row].tolist(), strict=True)
        tokens = [token if valid and token not in special else None for token, valid in pairs]
        pieces = iter(token_texts(tokenizer, [token for token in tokens if token is not None]))
        for token in tokens:
            piece = "" if token is None else next(pieces)
            offsets.append((len(text), len(text) + len(piece)) if piece else (0, 0))
            text += piece
        return cls(text, offsets)

    def spelled(self) -> list[str]:
        return [self.text[start:end] for start, end in self.offsets]

    def words(self) -> Iterator[tuple[str, Span]]:
        for match in _A_WORD.finditer(self.text):
            yield match[0].casefold(), match.span()

    def at(self, span: Span) -> list[int]:
        """Positions whose tokens cover some of the characters, spaces aside."""
        found = []
        for position, (start, end) in enumerate(self.offsets):
            low, high = max(start, span[0]), min(end, span[1])
            if low < high and self.text[low:high].strip():
                found.append(position)
        return found

    def sentence_starts(self) -> list[int]:
        return [self.at(span)[0] for span in sentence_spans(self.text) if self.at(span)]

    def brackets(self) -> list[tuple[int, int]]:
        return self._pairs(_BRACKETS)

    def quotes(self) -> list[tuple[int, int]]:
        return self._pairs(_QUOTES, straight=True)

    def rarest(self, counts: Counter[str], tokens: Sequence[int]) -> list[list[int]]:
        """For each position, those of the rarest word in its sentence."""
        targets: list[list[int]] = [[] for _ in self.offsets]
        words = list(self.words())
        for span in sentence_spans(self.text):
            inside = [(word, self.at(place)) for word, place in words if span[0] <= place[0] < span[1]]
            inside = [(word, at) for word, at in inside if at]
            if not inside:
                continue
            _, rarest = min(inside, key=lambda each: (counts[each[0]], -max(tokens[i] for i in each[1])))
            for position in self.at(span):
                targets[position] = rarest
        return targets

    def _pairs(self, closing: dict[str, str], straight: bool = False) -> list[tuple[int, int]]:
        """Pairs of positions that hold the two signs of a pair; each position is in one pair at most, the first."""
        token_at = {at: i for i, (start, end) in enumerate(self.offsets) for at in range(start, end)}
        opened: list[tuple[str, int]] = []
        pairs, taken = [], set()
        for at, sign in enumerate(self.text):
            if self.text.startswith("\n\n", at) and straight:
                opened.clear()  # quotation marks that are not closed in their paragraph stay alone
            is_straight = straight and sign == _STRAIGHT
            opener = _STRAIGHT if is_straight else closing.get(sign)
            if opener is not None and opened and opened[-1][0] == opener:
                one, other = token_at.get(opened.pop()[1]), token_at.get(at)
                if one is not None and other is not None and one != other and not {one, other} & taken:
                    pairs.append((one, other))
                    taken |= {one, other}
            elif is_straight or sign in closing.values():
                opened.append((sign, at))
        return pairs


def _is_line_end(piece: str) -> bool:
    return "\n" in piece and not piece.strip()


def _is_punctuation(piece: str) -> bool:
    signs = piece.strip()
    return bool(signs) and all(unicodedata.category(sign).startswith("P") for sign in signs)


def _filled(rare: list[list[list[int]]]) -> Int[Tensor, "sequence position target"]:
    widest = max((len(targets) for row in rare for targets in row), default=0)
    return torch.tensor([[t + [-1] * (max(widest, 1) - len(t)) for t in row] for row in rare], dtype=torch.int64)


def _pieces(tokenizer: Any, tokens: Sequence[int]) -> Iterator[str]:
    for token in tokens:
        piece = tokenizer.convert_ids_to_tokens(int(token))
        text = tokenizer.decode([int(token)], clean_up_tokenization_spaces=False)
        # sentencepiece's decoder drops the space that its own sign for it stands for
        yield f" {text}" if str(piece).startswith("▁") and not text.startswith(" ") else text
