"""How alike are the hidden states of a text? Conicity (Mohankumar et al. 2020): mean cosine to their mean.

Where all states point one way, their weighted mean is nearly the same under any weights, and permuting attention cannot
change the answer: whatever attention says then, the test of permutations comes out flat.
"""

import numpy as np
import torch
from numpy.typing import NDArray

from analyses.adversarial_attention.classifiers.tables import by_class, mean_row
from analyses.adversarial_attention.classifiers.tested import Tested


@torch.no_grad()
def conicity(tested: Tested) -> NDArray[np.float64]:
    """[text] mean over words of cos(h_t, mean of h), from −1 to 1; NaN for a text of one word."""
    found = np.full(len(tested), np.nan)
    for indices in tested.examples.by_length(tested.size):
        encoded = tested.model.encode(tested.examples.batch(indices, tested.device))
        is_word = encoded.is_word[..., None]
        hidden = encoded.hidden.double() * is_word
        mean = hidden.sum(1, keepdim=True) / is_word.sum(1, keepdim=True).clamp(min=1)
        cosines = torch.cosine_similarity(hidden, mean, dim=-1)
        values = ((cosines * encoded.is_word).sum(1) / encoded.is_word.sum(1).clamp(min=1)).cpu().numpy()
        found[indices] = np.where(tested.examples.n_words[indices] >= 2, values, np.nan)
    return found


def rows(tested: Tested, values: NDArray[np.float64], seed: int) -> list[dict[str, object]]:
    """The table ``conicity``; chance is that of independent directions in many dimensions, 1/√n of n words."""
    chance = 1 / np.sqrt(np.maximum(tested.examples.n_words, 1))
    return [
        {"class": name, **mean_row(values[chosen], (-1.0, 1.0), seed),
         "chance": float(chance[chosen & ~np.isnan(values)].mean()) if (chosen & ~np.isnan(values)).any() else np.nan}
        for name, chosen in by_class(tested.classes)
    ]  # fmt: skip
