"""A needle in a haystack: a sentence hidden in text, and a question at the end that its answer follows.

The answer is forced: what is measured is where each head looks while the model predicts the answer's tokens, whether or
not it would have found them by itself; whether it would have is measured beside it.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from jaxtyping import Bool, Int
from torch import Tensor

from interp import HookedModel
from interp.data import SAMPLE, read_documents
from interp.errors import UserError
from interp.model_data import reads_text
from interp.results import Workspace

__all__ = ["Hidden", "Needle", "hide", "make_needles", "read_haystack"]

PLACES = ("harbour", "library", "orchard", "station", "theatre", "garden", "bakery", "castle", "museum", "tower")
WORDS = (
    "copper", "lantern", "river", "marble", "window", "pepper", "silver", "forest", "candle", "violin", "saddle",
    "barrel", "feather", "basket", "mirror", "anchor", "blanket", "hammer", "pillow", "thunder",
)  # fmt: skip
ANSWER_WORDS = 5


@dataclass(frozen=True)
class Needle:
    """Token ids of the hidden sentence, of the question that is asked at the end, and of the answer; ``number`` is the
    same for a needle that is used again."""

    number: int
    sentence: tuple[int, ...]
    question: tuple[int, ...]
    answer: tuple[int, ...]


@dataclass(frozen=True, eq=False)
class Hidden:
    """Needles of one length and depth in their haystacks.

    Attributes:
        tokens: the input; its last tokens are the question and the answer without its last token.
        in_needle: positions of the needle.
        rows: positions from which the answer's tokens are predicted, [sequence, k]; −1 beyond a shorter answer.
        answers: the answer's tokens, −1 beyond a shorter one.
        needles: number of the needle of each.
        length, depth: of all of them; the depth is a share of the haystack, 0 at its beginning.
    """

    tokens: Int[Tensor, "sequence position"]
    in_needle: Bool[Tensor, "sequence position"]
    rows: Int[Tensor, "sequence k"]
    answers: Int[Tensor, "sequence k"]
    needles: Int[Tensor, " sequence"]
    length: int
    depth: float

    @property
    def first_row(self) -> int:
        """The first position from which anything is predicted."""
        return int(self.rows[self.rows >= 0].min())


def hide(
    needles: Sequence[Needle], haystack: Sequence[int], prefix: Sequence[int], length: int, depth: float,
    *, apart: bool = False,
) -> Hidden:  # fmt: skip
    """Each needle in a haystack of its own (another stretch of the text), so that all inputs have one length.

    Args:
        apart: leave the needle's own tokens out of the haystack: in random tokens they would come again by chance.

    Raises:
        UserError: a needle with its question and answer does not fit into the length.
    """
    tokens = torch.empty(len(needles), length, dtype=torch.long)
    inside = torch.zeros(len(needles), length, dtype=torch.bool)
    most = max(len(needle.answer) for needle in needles)
    rows, answers = (torch.full((len(needles), most), -1, dtype=torch.long) for _ in range(2))
    for i, needle in enumerate(needles):
        end = [*needle.question, *needle.answer[:-1]]
        room = length - len(prefix) - len(needle.sentence) - len(end)
        if room < 8:
            raise UserError(f"a needle of {len(needle.sentence) + len(end)} tokens does not fit into {length} tokens")
        usable = [token for token in haystack if token not in needle.sentence] if apart else haystack
        if not usable:
            raise UserError("the needle holds every token of the haystack, which leaves nothing to hide it in")
        hay = [usable[(i * room + k) % len(usable)] for k in range(room)]
        before = len(prefix) + round(depth * room)
        row = [*prefix, *hay[: before - len(prefix)], *needle.sentence, *hay[before - len(prefix) :], *end]
        tokens[i] = torch.tensor(row)
        inside[i, before : before + len(needle.sentence)] = True
        n = len(needle.answer)
        rows[i, :n] = torch.arange(length - n, length)
        answers[i, :n] = torch.tensor(needle.answer)
    numbers = torch.tensor([needle.number for needle in needles])
    return Hidden(tokens, inside, rows, answers, numbers, length, depth)


def make_needles(model: HookedModel, n: int, seed: int, source: str | None = None) -> list[Needle]:
    """Needles from a file, or generated: sentences where the model has a tokenizer, random tokens where it has none.

    Raises:
        UserError: the file is no list of needles, or an answer does not stand in its needle.
    """
    random = np.random.default_rng(seed)
    if source is not None:
        return _read(model, source, n)
    if model.tokenizer is None:
        assert model.d_vocab is not None
        bos = getattr(model.config, "bos_token_id", None)
        ids = [token for token in range(model.d_vocab) if token != bos]
        drawn = [random.choice(ids, 4 + ANSWER_WORDS, replace=len(ids) < 4 + ANSWER_WORDS).tolist() for _ in range(n)]
        return [Needle(i, tuple(row), tuple(row[:4]), tuple(row[4:])) for i, row in enumerate(drawn)]
    made = []
    for i in range(n):
        words = " ".join(random.choice(WORDS, ANSWER_WORDS, replace=False))
        question = f" The password of the {PLACES[i % len(PLACES)]} is"
        made.append(_encoded(model, i, f"{question} {words}.", question, f" {words}"))
    return made


def read_haystack(model: HookedModel, source: str | None, least: int, seed: int, work: Workspace) -> list[int]:
    """Tokens of a text's documents in random order, one after the other, at least so many if there are.

    Raises:
        UserError: the text is none, or a model without a tokenizer is given one.
    """
    random = np.random.default_rng(seed)
    if not reads_text(model, source):
        assert model.d_vocab is not None
        bos = getattr(model.config, "bos_token_id", None)
        work.note("The model came without a tokenizer: needles are random tokens, hidden in random tokens.")
        return random.choice([token for token in range(model.d_vocab) if token != bos], least).tolist()
    found: list[list[int]] = []
    for document in read_documents(source or SAMPLE):
        if document.tokens is not None:
            found.append(document.tokens.tolist())
        elif model.tokenizer is not None and document.text is not None:
            found.append(model.tokenizer.encode(document.text, add_special_tokens=False, verbose=False))
        if sum(map(len, found)) > 4 * least:
            break
    tokens = [token for i in random.permutation(len(found)) for token in found[i]]
    if not tokens:
        raise UserError("the text that needles are to be hidden in is empty")
    if len(tokens) < least:
        work.note(f"The text has {len(tokens):,} tokens; in longer inputs it comes again.")
    return tokens


def _encoded(model: HookedModel, number: int, sentence: str, question: str, answer: str) -> Needle:
    tokenizer: Any = model.tokenizer
    ids = [tuple(tokenizer.encode(part, add_special_tokens=False)) for part in (sentence, question, answer)]
    return Needle(number, *ids)


def _read(model: HookedModel, source: str, n: int) -> list[Needle]:
    if model.tokenizer is None:
        raise UserError("needles of one's own are text, and this model came without a tokenizer")
    made: list[Needle] = []
    for number, line in enumerate(Path(source).read_text(encoding="utf-8").splitlines(), 1):
        if not line.strip():
            continue
        try:
            given = json.loads(line)
            sentence, question, answer = (str(given[name]) for name in ("needle", "question", "answer"))
        except (json.JSONDecodeError, KeyError, TypeError) as error:
            raise UserError(f"{source}, line {number}: an object with needle, question and answer is needed") from error
        needle = _encoded(model, len(made), sentence, question, answer)
        spots = range(len(needle.sentence) - len(needle.answer) + 1)
        if not any(needle.sentence[i : i + len(needle.answer)] == needle.answer for i in spots):
            raise UserError(
                f"{source}, line {number}: the answer's tokens do not stand in the needle; give it as it stands there, "
                "with its space before it"
            )
        made.append(needle)
    if len(made) < 2:
        raise UserError(f"{source} holds {len(made)} needles; an interval needs at least 2")
    return [made[i % len(made)] for i in range(n)] if len(made) < n else made[:n]
