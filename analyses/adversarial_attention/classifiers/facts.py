"""Does the ranking find the fact that answers the question, where it is known?"""

import numpy as np
from numpy.typing import NDArray

from analyses.adversarial_attention.classifiers.tables import share_row
from analyses.adversarial_attention.classifiers.tested import Rows, Tested
from interp.data import LabelledText

RANKINGS = ("attention", "gradient", "leave_one_out")
_TIED = 1e-9


def hits(texts: list[LabelledText], ranking: Rows) -> NDArray[np.float64]:
    """[text] 1 where the fact with the most weight on its words is one that answers; ties share it out.

    NaN for a text of one fact, and where some weight is not known.
    """
    found = np.full(len(texts), np.nan)
    for i, (text, weights) in enumerate(zip(texts, ranking, strict=True)):
        if len(text.facts) >= 2:
            mass = np.array([weights[begin:end].sum() for begin, end in text.facts])
            if not np.isnan(mass).any():
                top = np.flatnonzero(mass >= mass.max() - _TIED)
                found[i] = np.isin(top, text.supporting).mean()
    return found


def rows(tested: Tested) -> list[dict[str, object]]:
    """The table ``supporting_facts``, over texts that were answered correctly; chance is a fact drawn at random."""
    right = tested.predicted == tested.examples.labels
    texts = list(tested.texts)
    chance = np.array([len(text.supporting) / max(len(text.facts), 1) for text in texts])
    made: list[dict[str, object]] = []
    for ranking in RANKINGS:
        hit = hits(texts, getattr(tested, ranking))
        used = right & ~np.isnan(hit)
        made.append(
            {"ranking": ranking, **share_row(hit[used]),
             "chance": float(chance[used].mean()) if used.any() else np.nan}
        )  # fmt: skip
    return made
