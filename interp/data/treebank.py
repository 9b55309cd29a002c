"""Treebanks in CoNLL-U: sentences with their words, heads and relations, and which mentions mean the same.

Format: universaldependencies.org/format.html; coreference as GUM and CorefUD mark it (``Entity=`` in the last column).
"""

import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from interp.errors import UserError

_COLUMNS = 10
_WORD, _RANGE, _EMPTY = re.compile(r"[1-9]\d*"), re.compile(r"([1-9]\d*)-([1-9]\d*)"), re.compile(r"\d+\.\d+")
_MENTIONS = re.compile(r"\(([^()]+)(\))?|([^()]+)\)")  # (opened), (opened and closed), closed)

Span = tuple[int, int]


@dataclass(frozen=True)
class Mention:
    """Words ``first`` … ``last`` (inclusive) that mention an entity; ``head``: the word on which the others depend."""

    entity: str
    first: int
    last: int
    head: int


@dataclass(frozen=True)
class Sentence:
    """One sentence. Words are syntactic words, numbered from 0: "don't" is two.

    Attributes:
        name: its ``sent_id``, or its number in the file.
        document: the ``newdoc`` that it belongs to; its own name where the file names no documents.
        text: as written.
        words: their forms.
        spans: the characters of ``text`` that each word stands on; words of one written token that are not its parts
            (French "du": "de" and "le") share its span.
        heads: number of each word's head; −1 for a root.
        relations: to that head, with their subtypes: "nmod:poss".
        mentions: of entities, where the treebank marks them, in the order of their beginnings.
    """

    name: str
    document: str
    text: str
    words: tuple[str, ...]
    spans: tuple[Span, ...]
    heads: tuple[int, ...]
    relations: tuple[str, ...]
    mentions: tuple[Mention, ...] = ()

    def __len__(self) -> int:
        return len(self.words)


def read_treebank(path: str | Path) -> Iterator[Sentence]:
    """The sentences of a CoNLL-U file, one after the other.

    Empty nodes (``8.1``) are left out, ``\\r\\n`` ends a line as ``\\n`` does. Where ``# text`` does not hold the words
    as they are, the text is put together from them and ``SpaceAfter=No``.

    Raises:
        UserError: no such file, not UTF-8, no sentence; or a line breaks a rule of the format, which the message names:
            ten columns, words numbered from 1 on, ranges of words that follow, heads in the sentence, no cycle.
    """
    path = Path(path)
    if not path.is_file():
        raise UserError(f"there is no treebank {str(path)!r}: give a CoNLL-U file")
    is_empty, document, number = True, None, 0
    for first, lines in _blocks(path):
        block = _Block(path, first, lines)
        if (named := block.comment("newdoc")) is not None:
            document = named or f"document after line {first}"
        if not block.rows:
            continue
        number += 1
        is_empty = False
        yield block.sentence(number, document)
    if is_empty:
        raise UserError(f"{path} holds no sentence: give a treebank in CoNLL-U")


def shuffled(sentences: Iterable[Sentence], seed: int = 0) -> list[Sentence]:
    """The control of syntax: every sentence's words in random order, its tree left where it was.

    What a head knows of positions stays as true as it was; which word stands where is destroyed. Mentions are left out.
    """
    rng, made = np.random.default_rng(seed), []
    for sentence in sentences:
        words = tuple(sentence.words[i] for i in rng.permutation(len(sentence)))
        text, spans = _joined(words, [True] * len(words))
        made.append(replace(sentence, text=text, words=words, spans=spans, mentions=()))
    return made


def _blocks(path: Path) -> Iterator[tuple[int, list[str]]]:
    """Lines of a sentence, and the number of the first."""
    lines: list[str] = []
    start, number = 1, 0
    try:
        with path.open(encoding="utf-8-sig", newline="\n") as file:
            for number, raw in enumerate(file, 1):
                line = raw.rstrip("\r\n")
                if line.strip():
                    lines.append(line)
                    continue
                if lines:
                    yield start, lines
                lines, start = [], number + 1
    except UnicodeDecodeError as error:
        raise UserError(f"{path} must be UTF-8; after line {number} it is not ({error.reason}): convert it") from error
    if lines:
        yield start, lines


@dataclass(frozen=True)
class _Row:
    line: int
    form: str
    head: int
    relation: str
    misc: str


class _Block:
    """The lines of one sentence, checked as they are read."""

    def __init__(self, path: Path, first: int, lines: Sequence[str]) -> None:
        self.path = path
        self.comments: list[str] = []
        self.rows: list[_Row] = []
        self.written: list[tuple[int, int, str, str]] = []  # ranges of words: from, to (0-based, inclusive), form, misc
        for number, line in enumerate(lines, first):
            if line.startswith("#"):
                self.comments.append(line[1:].strip())
            else:
                self._read(number, line)
        self._check()

    def comment(self, key: str) -> str | None:
        """What a comment says: ``# newdoc id = x`` is x; "" for one without a value; None where there is none."""
        for comment in self.comments:
            name, _, value = comment.partition("=")
            if name.split()[:1] == [key]:
                return value.strip()
        return None

    def sentence(self, number: int, document: str | None) -> Sentence:
        name = self.comment("sent_id") or f"sentence {number}"
        words = tuple(row.form for row in self.rows)
        text, spans = self._placed()
        return Sentence(
            name, document or name, text, words, spans, tuple(row.head for row in self.rows),
            tuple(row.relation for row in self.rows), tuple(self._mentions()),
        )  # fmt: skip

    def _read(self, number: int, line: str) -> None:
        columns = line.split("\t")
        if len(columns) != _COLUMNS:
            raise self._broken(number, f"a word has {_COLUMNS} columns, separated by tabs", f"{len(columns)} columns")
        identity, form, head, relation, misc = columns[0], columns[1], columns[6], columns[7], columns[9]
        if _EMPTY.fullmatch(identity):
            return
        if found := _RANGE.fullmatch(identity):
            low, high = int(found[1]), int(found[2])
            if low != len(self.rows) + 1 or high < low:
                raise self._broken(number, "a range of words begins with the word that follows it", repr(identity))
            self.written.append((low - 1, high - 1, form, misc))
            return
        if not _WORD.fullmatch(identity) or int(identity) != len(self.rows) + 1:
            raise self._broken(number, f"words are numbered from 1 on, this one {len(self.rows) + 1}", repr(identity))
        if not head.isdecimal():
            raise self._broken(number, "HEAD (column 7) is the number of a word, or 0", repr(head))
        if relation in ("", "_"):
            raise self._broken(number, "DEPREL (column 8) names a relation", repr(relation))
        self.rows.append(_Row(number, form, int(head) - 1, relation, misc))

    def _check(self) -> None:
        for _, last, form, _ in self.written:
            if last >= len(self.rows):
                raise self._broken(self.rows[-1].line, "a range of words ends within its sentence", repr(form))
        for row in self.rows:
            if row.head >= len(self.rows):
                raise self._broken(
                    row.line, f"HEAD is a word of the sentence, 0 to {len(self.rows)}", str(row.head + 1)
                )
        reaches_root = [False] * len(self.rows)
        for start in range(len(self.rows)):
            path, word = [], start
            while word >= 0 and not reaches_root[word]:
                if word in path:
                    round_trip = " → ".join(str(i + 1) for i in [*path[path.index(word) :], word])
                    raise self._broken(self.rows[word].line, "heads lead to a root, without cycles", round_trip)
                path.append(word)
                word = self.rows[word].head
            for each in path:
                reaches_root[each] = True

    def _placed(self) -> tuple[str, tuple[Span, ...]]:
        """The sentence's text and each word's place in it."""
        tokens = self._tokens()
        text = self.comment("text")
        spans = None if text is None else _found(text, [form for _, _, form, _ in tokens])
        if text is None or spans is None:
            text, spans = _joined([form for _, _, form, _ in tokens], [space for *_, space in tokens])
        places: list[Span] = []
        for (first, last, form, _), (start, end) in zip(tokens, spans, strict=True):
            parts = [row.form for row in self.rows[first : last + 1]]
            if "".join(parts) == form:
                ends = np.cumsum([len(part) for part in parts]) + start
                places += [(int(stop) - len(part), int(stop)) for part, stop in zip(parts, ends, strict=True)]
            else:
                places += [(start, end)] * len(parts)
        return text, tuple(places)

    def _tokens(self) -> list[tuple[int, int, str, bool]]:
        """Tokens as written: their first and last word, form, and whether a space follows."""
        ranges = {first: (last, form, misc) for first, last, form, misc in self.written}
        tokens, word = [], 0
        while word < len(self.rows):
            last, form, misc = ranges.get(word, (word, self.rows[word].form, self.rows[word].misc))
            tokens.append((word, last, form, "SpaceAfter=No" not in misc.split("|")))
            word = last + 1
        return tokens

    def _mentions(self) -> list[Mention]:
        opened: list[tuple[str, int]] = []
        found: list[tuple[str, int, int]] = []
        for word, row in enumerate(self.rows):
            marks = [part.removeprefix("Entity=") for part in row.misc.split("|") if part.startswith("Entity=")]
            for opens, closes_too, closes in _MENTIONS.findall("".join(marks)):
                entity = _entity(opens or closes)
                if opens and not closes_too:
                    opened.append((entity, word))
                elif opens:
                    found.append((entity, word, word))
                elif (at := _latest(opened, entity)) is not None:
                    found.append((entity, opened.pop(at)[1], word))
                else:
                    raise self._broken(row.line, "Entity= closes a mention that is open", repr(entity))
        found.sort(key=lambda each: (each[1], -each[2]))
        return [Mention(entity, first, last, self._head(first, last)) for entity, first, last in found]

    def _head(self, first: int, last: int) -> int:
        """The first word of a span whose head lies outside."""
        return next(word for word in range(first, last + 1) if not first <= self.rows[word].head <= last)

    def _broken(self, line: int, rule: str, got: str) -> UserError:
        return UserError(f"{self.path}, line {line}: {rule}; got {got}")


def _entity(mark: str) -> str:
    """The entity's own name: what stands before its type; parts of a mention in several pieces count as one name."""
    return re.sub(r"\[\d+/\d+\]", "", mark.split("-", 1)[0])


def _latest(opened: Sequence[tuple[str, int]], entity: str) -> int | None:
    return next((i for i in range(len(opened) - 1, -1, -1) if opened[i][0] == entity), None)


def _found(text: str, forms: Sequence[str]) -> tuple[Span, ...] | None:
    """Where tokens stand in a text, with nothing but spaces between; None where they do not."""
    spans, at = [], 0
    for form in forms:
        while at < len(text) and text[at].isspace() and not text.startswith(form, at):
            at += 1
        if not text.startswith(form, at):
            return None
        spans.append((at, at + len(form)))
        at += len(form)
    return tuple(spans)


def _joined(forms: Sequence[str], spaces: Sequence[bool]) -> tuple[str, tuple[Span, ...]]:
    text, spans = "", []
    for form, space in zip(forms, spaces, strict=True):
        spans.append((len(text), len(text) + len(form)))
        text += form + (" " if space else "")
    return text.rstrip(), tuple(spans)
