"""Texts with labels, and questions with answers: split, checked, and with what was left out said."""

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from typing import Literal

import numpy as np

from interp.data.documents import near_names
from interp.data.word_index import words_of
from interp.errors import UserError

Split = Literal["train", "dev", "test"]
SPLITS: tuple[Split, ...] = ("train", "dev", "test")
SPLIT_NAMES: dict[str, Split] = {
    "train": "train", "training": "train", "dev": "dev", "valid": "dev", "validation": "dev", "val": "dev",
    "test": "test", "testing": "test",
}  # fmt: skip
"""What files, columns and data sets call the splits."""

TEST_SHARE, DEV_SHARE = 0.2, 0.1


@dataclass(frozen=True)
class LabelledText:
    """A text, or facts and a question, with what is to be said of it.

    Attributes:
        words: the text.
        label: its class, or the question's answer.
        split: where it belongs; None where that is still to be decided.
        question: the question's words; none for classification.
        facts: [begin, end) of each fact in words, where the text is a list of facts.
        supporting: which of the facts answer the question.
    """

    words: tuple[str, ...]
    label: str
    split: Split | None = None
    question: tuple[str, ...] = ()
    facts: tuple[tuple[int, int], ...] = ()
    supporting: tuple[int, ...] = ()


@dataclass(frozen=True, eq=False)
class LabelledTexts:
    """Texts in three splits, none of them empty.

    Attributes:
        name: where they come from.
        texts: all of them.
        labels: those that occur in training, sorted.
        remarks: what a reader has to know of them.
        left_out: parts that are missing, each with the reason.
        given: which splits came with the data; the others were made.
    """

    name: str
    texts: tuple[LabelledText, ...]
    labels: tuple[str, ...]
    remarks: tuple[str, ...] = ()
    left_out: tuple[tuple[str, str], ...] = ()
    given: tuple[Split, ...] = SPLITS

    def of(self, split: Split) -> list[LabelledText]:
        """The texts of one split, in the order of the source."""
        return [text for text in self.texts if text.split == split]

    @property
    def asks(self) -> bool:
        """Whether there are questions."""
        return bool(self.texts[0].question)

    @property
    def has_facts(self) -> bool:
        """Whether it is known which facts answer the questions."""
        return all(text.supporting for text in self.texts)

    def number(self, text: LabelledText) -> int:
        """A text's label as its place among the labels."""
        return self.labels.index(text.label)


def from_rows(
    rows: Iterable[tuple[str, str, str | None, str | None]], unknown_split: str = "the split column"
) -> list[LabelledText]:
    """Texts from (text, label, question, split) as strings.

    Raises:
        UserError: a split that is none of train, dev and test (or another name of these).
    """
    made = []
    for text, label, question, split in rows:
        if split is not None and split.strip().lower() not in SPLIT_NAMES:
            raise UserError(
                f"{unknown_split} must say {', '.join(SPLITS)} (or {', '.join(sorted(set(SPLIT_NAMES) - set(SPLITS)))})"
                f"; got {split!r}"
            )
        place = None if split is None else SPLIT_NAMES[split.strip().lower()]
        made.append(LabelledText(words_of(text), label.strip(), place, words_of(question or "")))
    return made


def labelled(
    name: str, texts: Sequence[LabelledText], *, shortest: int = 1, longest: int | None = None, seed: int = 0
) -> LabelledTexts:
    """Check texts, cut what is too long, and split what is not split.

    Left out and counted: texts without words, without a label, with fewer than ``shortest`` words, questions without
    words where others have some, labels of dev and test that training lacks. A missing test split is a fifth of the
    training texts, a missing dev split a tenth of them, drawn at random; copies of one text stay together.

    Args:
        name: of the source, for what is said.
        texts: in any order.
        shortest: words of a text that is kept.
        longest: words of a text beyond which it is cut. Facts are cut as a whole, the first ones first, since a later
            fact overrides an earlier one. None: never.
        seed: of the splits that are made.

    Raises:
        UserError: nothing is left of a split; training has one class only.
    """
    sieve = _Sieve(name)
    asks = any(text.question for text in texts)
    kept = [text for text in texts if sieve.keeps(text, max(shortest, 1), asks)]
    if longest is not None:
        kept = sieve.shortened(kept, longest)
    if not kept:
        raise UserError(f"{name} holds no labelled text to learn from{sieve.told()}")
    kept, given = _split(kept, np.random.default_rng(seed), sieve)
    if not (training := [text for text in kept if text.split == "train"]):
        if given and "train" not in given:
            raise UserError(f"{name} holds no training text{sieve.told()}: name a split train, or give no splits")
        raise UserError(f"{name} has too few different texts to split them{sieve.told()}: give more texts")
    known = sorted({text.label for text in training})
    if len(known) < 2:
        raise UserError(
            f"{name} must have at least two classes in training; got {known[0]!r} alone in {len(training)} texts"
        )
    kept = sieve.of_known_labels(kept, known)
    for split in SPLITS:
        if not any(text.split == split for text in kept):
            raise UserError(f"{name} has no {split} text left{sieve.told()}: give more texts")
    sieve.look_for_copies(kept)
    return LabelledTexts(name, tuple(kept), tuple(known), tuple(sieve.remarks), tuple(sieve.left_out), given)


@dataclass
class _Sieve:
    """Goes through texts and remembers what it took out."""

    name: str
    counts: Counter[str] = field(default_factory=Counter)
    remarks: list[str] = field(default_factory=list)
    unseen: Counter[str] = field(default_factory=Counter)

    @property
    def left_out(self) -> list[tuple[str, str]]:
        return [(f"{n:,} of the labelled texts", reason) for reason, n in self.counts.items()]

    def told(self) -> str:
        return "".join(f"; {n:,} left out: {reason}" for reason, n in self.counts.items())

    def keeps(self, text: LabelledText, shortest: int, asks: bool) -> bool:
        reason = ""
        if not text.words:
            reason = "they hold no word"
        elif not text.label:
            reason = "their label is missing"
        elif len(text.words) < shortest:
            reason = f"they have fewer than {shortest} words"
        elif asks and not text.question:
            reason = "their question is missing"
        self.counts.update([reason] if reason else [])
        return not reason

    def shortened(self, texts: Sequence[LabelledText], longest: int) -> list[LabelledText]:
        """Texts of at most so many words; those whose supporting fact does not fit are left out."""
        made, cut, lost = [], 0, 0
        for text in texts:
            if len(text.words) <= longest:
                made.append(text)
                continue
            short = _last_facts(text, longest) if text.facts else replace(text, words=text.words[:longest])
            if short is None:
                self.counts.update([f"the fact that answers is further back than {longest} words"])
                continue
            cut, lost = cut + 1, lost + len(text.words) - len(short.words)
            made.append(short)
        if cut:
            self.remarks.append(
                f"{cut:,} of {len(texts):,} texts are longer than {longest:,} words and were cut there: {lost:,} words "
                "are not read (--longest)"
            )
        return made

    def of_known_labels(self, texts: Sequence[LabelledText], known: Sequence[str]) -> list[LabelledText]:
        """Texts whose label is one that training has."""
        kept = [text for text in texts if text.label in known]
        if len(kept) < len(texts):
            unseen = sorted({text.label for text in texts} - set(known))
            shown = ", ".join(map(repr, unseen[:5])) + (", …" if len(unseen) > 5 else "")
            self.counts[f"their label does not occur in training ({shown})"] += len(texts) - len(kept)
        return kept

    def look_for_copies(self, texts: Sequence[LabelledText]) -> None:
        """Remark on texts of dev and test that are in another split too."""
        seen = {split: {_identity(text) for text in texts if text.split == split} for split in SPLITS}
        for one, other in (("train", "dev"), ("train", "test"), ("dev", "test")):
            copies = sum(text.split == other and _identity(text) in seen[one] for text in texts)
            if copies:
                total = sum(text.split == other for text in texts)
                self.remarks.append(
                    f"{copies:,} of {total:,} {other} texts are in {one} too, word for word; accuracy there is no "
                    "accuracy on unseen texts"
                )


def _identity(text: LabelledText) -> tuple[tuple[str, ...], tuple[str, ...]]:
    return text.words, text.question


def _split(
    texts: Sequence[LabelledText], rng: np.random.Generator, sieve: _Sieve
) -> tuple[list[LabelledText], tuple[Split, ...]]:
    """Every text with its split; splits that are not given are drawn from training."""
    given: tuple[Split, ...] = tuple(split for split in SPLITS if any(text.split == split for text in texts))
    place: list[Split] = [text.split or "train" for text in texts]
    made: list[str] = []
    shares: tuple[tuple[Split, float], ...] = (("test", TEST_SHARE), ("dev", DEV_SHARE))
    for split, share in shares:
        if split in given:
            continue
        groups: dict[object, list[int]] = {}
        for i, text in enumerate(texts):
            if place[i] == "train":
                groups.setdefault(_identity(text), []).append(i)
        order = rng.permutation(len(groups))
        members = list(groups.values())
        wanted = max(1, round(share * sum(map(len, members))))
        taken = 0
        for i in order:
            if taken >= wanted:
                break
            for j in members[i]:
                place[j] = split
            taken += len(members[i])
        made.append(f"{split} ({taken:,} texts)")
    if made:
        sieve.remarks.append(f"{sieve.name} comes without {' and '.join(made)}: drawn at random from training")
    return [replace(text, split=where) for text, where in zip(texts, place, strict=True)], given


def _last_facts(text: LabelledText, longest: int) -> LabelledText | None:
    """The last facts that fit; None where a supporting one does not."""
    first = next((i for i, (begin, _) in enumerate(text.facts) if len(text.words) - begin <= longest), len(text.facts))
    if first == len(text.facts) or any(fact < first for fact in text.supporting):
        return None
    start = text.facts[first][0]
    return replace(
        text,
        words=text.words[start:],
        facts=tuple((begin - start, end - start) for begin, end in text.facts[first:]),
        supporting=tuple(fact - first for fact in text.supporting),
    )


def check_column(name: str, columns: Sequence[str], where: str) -> str:
    """A column's name, if it exists.

    Raises:
        UserError: it does not; with near names.
    """
    if name not in columns:
        known = ", ".join(map(str, columns)) or "none"
        raise UserError(f"{where} has no column {name!r}{near_names(name, columns)}; it has: {known}")
    return name
