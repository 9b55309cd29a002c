"""Questions in the manner of bAbI's first task, as many as are wanted: the published classifiers learned from 8,500.

Each story goes as those of the task (Weston et al. 2015): ten facts, people who go to a place where they are not, and
after every two facts a question about one who is in the last five; words, people and places are the task's own.
"""

import numpy as np

from interp.data import LabelledText, LabelledTexts
from interp.data.labelled import Split
from interp.data.labelled_files import of_facts
from interp.errors import UserError

PEOPLE = ("daniel", "john", "mary", "sandra")
PLACES = ("bathroom", "bedroom", "garden", "hallway", "kitchen", "office")
MOVES = (("journeyed",), ("moved",), ("travelled",), ("went",), ("went", "back"))
QUESTIONS, FACTS_BETWEEN, FARTHEST = 5, 2, 5

TRAIN, DEV = 8_500, 1_500
"""As many as the authors learned from and chose the best epoch on."""


def with_made_stories(texts: LabelledTexts, seed: int = 0, train: int = TRAIN, dev: int = DEV) -> LabelledTexts:
    """The test questions of bAbI's first task, with questions to learn from that are made up.

    A question that is among the test questions, word for word with its facts, is not learned from.

    Args:
        texts: bAbI's first task, as it was read.
        seed: of the stories.
        train, dev: how many questions of each.

    Raises:
        UserError: the texts are not those of the first task.
    """
    test = texts.of("test")
    words = {word for text in test for word in (*text.words, *text.question)}
    known = {*PEOPLE, *PLACES, *(word for move in MOVES for word in move), "to", "the", ".", "where", "is"}
    if not words <= known:
        raise UserError(
            f"questions are made up in the words of bAbI's first task; {texts.name} also has "
            f"{', '.join(sorted(words - known)[:5])}: ask for babi-1"
        )
    rng = np.random.default_rng(seed)
    held_back = {(text.words, text.question) for text in test}
    sizes: tuple[tuple[Split, int], ...] = (("train", train), ("dev", dev))
    made: list[LabelledText] = []
    for split, size in sizes:
        some: list[LabelledText] = []
        while len(some) < size:
            some += [text for text in _story(rng, split) if (text.words, text.question) not in held_back]
        made += some[:size]
    labels = tuple(sorted({text.label for text in made}))
    return LabelledTexts(f"{texts.name}, learned from stories made up", (*made, *test), labels)


def _story(rng: np.random.Generator, split: Split) -> list[LabelledText]:
    """The questions of one story, each with the facts before it."""
    facts: list[tuple[str, ...]] = []
    last: dict[str, tuple[int, str]] = {}  # of each person: the fact that says where they are, and the place
    asked: list[LabelledText] = []
    for _ in range(QUESTIONS):
        for _ in range(FACTS_BETWEEN):
            person = str(rng.choice(PEOPLE))
            elsewhere = [place for place in PLACES if place != last.get(person, (0, ""))[1]]
            place, move = str(rng.choice(elsewhere)), MOVES[rng.integers(len(MOVES))]
            last[person] = (len(facts), place)
            facts.append((person, *move, "to", "the", place, "."))
        person = str(rng.choice([who for who in PEOPLE if who in last and last[who][0] >= len(facts) - FARTHEST]))
        fact, place = last[person]
        asked.append(of_facts(facts, ("where", "is", person), place, split, [fact]))
    return asked
