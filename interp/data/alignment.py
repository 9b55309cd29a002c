"""Words and tokens: which tokens of a text each word is written with, told by characters."""

import re
import unicodedata
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from interp.data.treebank import Span

_WORDPIECE = "##"
_AHEAD = 24  # characters looked through for a token that does not come next


@dataclass(frozen=True)
class Alignment:
    """A text as tokens, and the word of each.

    Attributes:
        tokens: ids, without special tokens.
        words: number of each token's word; −1 for a token that belongs to no word, or to parts of several.
        unaligned: words that have no token of their own: merged with a neighbour, dropped or changed beyond recognition
            by the tokenizer, or not told apart from another word (French "du").
    """

    tokens: tuple[int, ...]
    words: tuple[int, ...]
    unaligned: tuple[int, ...]


def align(tokenizer: Any, text: str, spans: Sequence[Span]) -> Alignment:
    """The tokens of a text, each with the word that it is part of.

    A token belongs to the word whose characters it covers (spaces aside); one that covers characters of several words
    belongs to none of them.

    Args:
        tokenizer: like a Hugging Face one.
        text: as written.
        spans: the characters of each word (start, end), in order; equal spans cannot be told apart, and stay unaligned.
    """
    tokens, offsets = token_offsets(tokenizer, text)
    owner: dict[int, int] = {}
    for word, (start, end) in enumerate(spans):
        alone = spans.count((start, end)) == 1
        owner |= dict.fromkeys(range(start, end), word if alone else -1)
    words = []
    for start, end in offsets:
        covered = {owner[at] for at in range(start, end) if at in owner and not text[at].isspace()}
        words.append(covered.pop() if len(covered) == 1 else -1)
    present = set(words)
    return Alignment(tuple(tokens), tuple(words), tuple(word for word in range(len(spans)) if word not in present))


def token_offsets(tokenizer: Any, text: str) -> tuple[list[int], list[Span]]:
    """Token ids of a text without special tokens, and the characters (start, end) of each.

    From the tokenizer's own offset mapping where it has one (a fast tokenizer). Else tokens are looked for in the text
    one after the other, by their letters without case, accents and spaces; (0, 0) for one that is not found.
    """
    is_fast = bool(getattr(tokenizer, "is_fast", False))
    if is_fast:
        encoded = tokenizer(text, add_special_tokens=False, return_offsets_mapping=True, verbose=False)
        return list(encoded["input_ids"]), [(int(a), int(b)) for a, b in encoded["offset_mapping"]]
    tokens = list(tokenizer(text, add_special_tokens=False)["input_ids"])
    return tokens, _searched(text, [_spelled(tokenizer, token) for token in tokens])


def plain_letters(text: str) -> list[tuple[str, int]]:
    """Letters without case, accents and spaces, each with the place in the text that it comes from."""
    found = []
    for at, character in enumerate(text):
        for letter in unicodedata.normalize("NFKD", character.casefold()):
            if not letter.isspace() and not unicodedata.combining(letter):
                found.append((letter, at))
    return found


def _searched(text: str, pieces: Sequence[str]) -> list[Span]:
    letters = plain_letters(text)
    stream, at = "".join(letter for letter, _ in letters), 0
    offsets: list[Span] = []
    for piece in pieces:
        wanted = "".join(letter for letter, _ in plain_letters(piece))
        found = stream.find(wanted, at, at + len(wanted) + _AHEAD) if wanted else -1
        if found < 0:
            offsets.append((0, 0))
            continue
        at = found + len(wanted)
        offsets.append((letters[found][1], letters[at - 1][1] + 1))
    return offsets


def _spelled(tokenizer: Any, token: int) -> str:
    piece = str(tokenizer.convert_ids_to_tokens(token))
    if piece.startswith(_WORDPIECE):
        return piece.removeprefix(_WORDPIECE)
    spelled = tokenizer.decode([token], clean_up_tokenization_spaces=False)
    return re.sub("�", "", spelled)  # part of a character: not found, and the next token is
