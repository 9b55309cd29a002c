"""What becomes of the answer when a text's attention weights are dealt out to its words at random?"""

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from analyses.adversarial_attention.classifiers.search import Target
from analyses.adversarial_attention.classifiers.tables import by_class, mean_row, quantile
from analyses.adversarial_attention.classifiers.tested import Tested
from interp.models.classifiers import as_distribution

BINS = ((0.0, 0.25), (0.25, 0.5), (0.5, 0.75), (0.75, 1.0))
"""Of the largest weight of a text, as in the paper's figures; the last one holds 1."""
WHOLE = (0.0, 1.0)
_TOGETHER = 10  # permutations that are tried at a time


@torch.no_grad()
def median_changes(tested: Tested, n: int, seed: int) -> NDArray[np.float64]:
    """[text] median over ``n`` random permutations of the answer's change (TVD); NaN for a text of a single word."""
    found = np.full(len(tested), np.nan)
    generator = torch.Generator().manual_seed(seed)
    for indices in tested.examples.by_length(tested.size):
        target = Target.of(tested.model, tested.examples.batch(indices, tested.device))
        changes = [_changes(target, min(_TOGETHER, n - start), generator) for start in range(0, n, _TOGETHER)]
        median = np.median(torch.cat(changes, 1).double().cpu().numpy(), axis=1)
        found[indices] = np.where(tested.examples.n_words[indices] >= 2, median, np.nan)
    return found


def _changes(target: Target, n: int, generator: torch.Generator) -> Tensor:
    """[text, permutation] the change under some random permutations."""
    batch, words = target.is_word.shape
    keys = torch.rand((batch, n, words), generator=generator).to(target.attention)
    order = keys.masked_fill(~target.is_word[:, None], 2.0).argsort(-1)  # words among words, the rest behind them
    weights = target.attention[:, None].expand(batch, n, words).gather(-1, order)
    p = as_distribution(target.answer(weights @ target.features))
    return (p - target.probabilities[:, None]).abs().sum(-1) / 2


def rows(tested: Tested, changes: NDArray[np.float64], seed: int) -> list[dict[str, object]]:
    """The table ``permutation``: the change over all texts, then by the largest weight, of each predicted class."""
    made: list[dict[str, object]] = []
    for name, chosen in by_class(tested.classes):
        for low, high in (WHOLE, *BINS):
            inside = (tested.max_attention >= low) & ((tested.max_attention < high) | (high == 1.0))
            of = changes[chosen & inside & ~np.isnan(changes)]
            if len(of):
                made.append(
                    {"class": name, "max_attention_low": low, "max_attention_high": high,
                     **mean_row(of, (0.0, 1.0), seed), "median": quantile(of)}
                )  # fmt: skip
    return made
