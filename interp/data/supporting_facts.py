"""A task in which it is known what a good answer rests on: people move between places; where is one of them?

The answer is the place of the last fact about the person asked for; the other facts are about others, or out of date.
After task 1 of bAbI (Weston et al. 2015), made anew from a seed.
"""

import numpy as np

from interp.data.labelled import LabelledText, LabelledTexts, Split
from interp.data.labelled_files import of_facts
from interp.errors import UserError

PEOPLE = ("anna", "ben", "clara", "david")
PLACES = ("attic", "cellar", "garden", "kitchen", "office", "studio")
MOVES = ("went", "moved", "walked", "returned")


def supporting_facts(
    n: int = 4000, *, fewest: int = 2, most: int = 5, n_dev: int = 500, n_test: int = 500, seed: int = 0
) -> LabelledTexts:
    """Stories of a few facts (``anna went to the garden``) with a question (``where is anna``).

    The person asked for is drawn among those of the story, so that the supporting fact may be any of them: chance is
    one over the number of facts.

    Args:
        n: stories for training.
        fewest, most: facts of a story.
        n_dev, n_test: stories of the other splits.
        seed: the same seed gives the same stories.

    Raises:
        UserError: fewer than two facts, or fewer at most than at least; no story.
    """
    if not 2 <= fewest <= most or min(n, n_dev, n_test) < 1:
        raise UserError(
            f"stories have at least 2 facts and at most no fewer, and each split has one; got fewest {fewest}, "
            f"most {most}, n {n}, n_dev {n_dev}, n_test {n_test}"
        )
    rng = np.random.default_rng(seed)
    sizes: dict[Split, int] = {"train": n, "dev": n_dev, "test": n_test}
    texts = tuple(_story(rng, fewest, most, split) for split, size in sizes.items() for _ in range(size))
    return LabelledTexts("supporting facts, made up", texts, tuple(sorted({text.label for text in texts})))


def _story(rng: np.random.Generator, fewest: int, most: int, split: Split) -> LabelledText:
    length = int(rng.integers(fewest, most + 1))
    who, where = rng.integers(len(PEOPLE), size=length), rng.integers(len(PLACES), size=length)
    how = rng.integers(len(MOVES), size=length)
    facts = [
        (PEOPLE[person], MOVES[move], "to", "the", PLACES[place])
        for person, move, place in zip(who, how, where, strict=True)
    ]
    asked = rng.choice(np.unique(who))
    last = int(np.flatnonzero(who == asked)[-1])
    return of_facts(facts, ("where", "is", PEOPLE[asked]), PLACES[where[last]], split, [last])
