"""Is what gets much attention needed for the answer? Weights are set to zero, the rest renormalised (Serrano & Smith).

Erasure happens inside the attention layer: the hidden states stay, so it asks what the answer takes from them, not what
the text needs.
"""

from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from analyses.adversarial_attention.bounds import divergence
from analyses.adversarial_attention.classifiers.search import Target
from analyses.adversarial_attention.classifiers.tables import mean_row, share_of, share_row
from analyses.adversarial_attention.classifiers.tested import Rows, Tested
from interp.models.classifiers import as_distribution

ORDERS = ("attention", "gradient", "gradient_attention", "random")
BINS = tuple((low / 5, (low + 1) / 5) for low in range(5))
"""Of how much more weight the most attended word has than the random one."""


@dataclass(frozen=True, eq=False)
class Erased:
    """What erasing does to every text; NaN (or False, with ``defined``) for a text of one word.

    Attributes:
        defined: texts with at least two words.
        more_weight: α of the most attended word less that of a random other one.
        more_change: JS divergence of the answer when the first is erased, less when the second is.
        top_flips, random_flips: whether the decision becomes another.
        until_flip: by order, the share of words that are erased when the decision flips; 1 where it never does.
        never: by order, whether it never does, as long as one word is left.
    """

    defined: NDArray[np.bool_]
    more_weight: NDArray[np.float64]
    more_change: NDArray[np.float64]
    top_flips: NDArray[np.bool_]
    random_flips: NDArray[np.bool_]
    until_flip: dict[str, NDArray[np.float64]]
    never: dict[str, NDArray[np.bool_]]


@torch.no_grad()
def erased(tested: Tested, seed: int) -> Erased:
    """Erase words from every text, singly and in four orders."""
    n = len(tested)
    made = Erased(
        tested.examples.n_words >= 2, np.full(n, np.nan), np.full(n, np.nan), np.zeros(n, bool), np.zeros(n, bool),
        {order: np.full(n, np.nan) for order in ORDERS}, {order: np.zeros(n, bool) for order in ORDERS},
    )  # fmt: skip
    rng = np.random.default_rng(seed)
    chance = [rng.permutation(words) / max(words, 1) for words in tested.examples.n_words]
    ranked: dict[str, Rows] = {
        "attention": tested.attention,
        "gradient": tested.gradient,
        "gradient_attention": [g * a for g, a in zip(tested.gradient, tested.attention, strict=True)],
        "random": [row.astype(float) for row in chance],
    }
    for indices in tested.examples.by_length(tested.size):
        target = Target.of(tested.model, tested.examples.batch(indices, tested.device))
        _singly(made, target, indices, ranked)
        for order in ORDERS:
            _in_order(made, target, indices, order, [ranked[order][i] for i in indices])
    for values in (made.more_weight, made.more_change, *made.until_flip.values()):
        values[~made.defined] = np.nan
    return made


def _singly(made: Erased, target: Target, indices: NDArray[np.int64], ranked: dict[str, Rows]) -> None:
    top = np.array([int(np.argmax(ranked["attention"][i])) for i in indices])
    other = []
    for i, best in zip(indices, top, strict=True):  # the first in a random order that is not the most attended
        order = np.argsort(ranked["random"][i])
        other.append(int(order[order != best][0]) if len(order) > 1 else int(best))
    one, two = (_without(target, torch.as_tensor(word)) for word in (top, np.array(other)))
    weights = target.attention.double().cpu().numpy()
    rows = np.arange(len(indices))
    p = target.probabilities.double()
    made.more_weight[indices] = weights[rows, top] - weights[rows, other]
    made.more_change[indices] = (divergence(one, p) - divergence(two, p)).cpu().numpy()
    decision = p.argmax(-1)
    made.top_flips[indices] = (one.argmax(-1) != decision).cpu().numpy()
    made.random_flips[indices] = (two.argmax(-1) != decision).cpu().numpy()


def _without(target: Target, word: Tensor) -> Tensor:
    """[text, label] the answer when a word of each text gets no attention and the others get it in proportion."""
    kept = target.attention.scatter(1, word.to(target.attention.device)[:, None], 0.0)
    kept = kept / kept.sum(-1, keepdim=True).clamp_min(torch.finfo(kept.dtype).tiny)
    return as_distribution(target.answer(kept[:, None] @ target.features))[:, 0].double()


def _in_order(made: Erased, target: Target, indices: NDArray[np.int64], order: str, ranks: Rows) -> None:
    """Erase one word after the other, the highest first, until the decision flips."""
    width = target.is_word.shape[1]
    keys = np.full((len(indices), width), -np.inf)
    for row, rank in zip(keys, ranks, strict=True):
        row[: len(rank)] = rank
    places = torch.from_numpy(np.argsort(-keys, axis=1, kind="stable")).to(target.attention.device)
    weights = target.attention.gather(1, places)
    features = target.features.gather(1, places[..., None].expand_as(target.features)) * weights[..., None]
    # what is left after m words are gone: sums from the end, so that nothing is lost by subtraction
    left = features.flip(1).cumsum(1).flip(1) / _from_end(weights)[..., None]
    decisions = as_distribution(target.answer(left)).argmax(-1)
    words = target.is_word.sum(1)
    gone = torch.arange(width, device=words.device)
    flipped = (decisions != decisions[:, :1]) & (gone < words[:, None]) & (weights.flip(1).cumsum(1).flip(1) > 0)
    never = ~flipped.any(1)
    first = torch.where(never, words, flipped.int().argmax(1))
    made.until_flip[order][indices] = (first / words.clamp(min=1)).double().cpu().numpy()
    made.never[order][indices] = never.cpu().numpy()


def _from_end(weights: Tensor) -> Tensor:
    return weights.flip(1).cumsum(1).flip(1).clamp_min(torch.finfo(weights.dtype).tiny)


def erasure_rows(of: Erased, seed: int) -> list[dict[str, object]]:
    """The table ``erasure``: ΔJS by Δα, and how often erasing the random word changes more (ΔJS < 0)."""
    made: list[dict[str, object]] = []
    for low, high in BINS:
        inside = of.defined & (of.more_weight >= low) & ((of.more_weight < high) | (high == 1.0))
        if inside.any():
            change = of.more_change[inside]
            made.append(
                {"alpha_low": low, "alpha_high": high, **mean_row(change, seed=seed), "negative": share_of(change < 0)}
            )
    return made


def flip_rows(of: Erased) -> list[dict[str, object]]:
    """The table ``flips``: shares of the texts whose decision flips without the one word, without the other."""
    made: list[dict[str, object]] = []
    for top in (True, False):
        for random in (True, False):
            both = (of.top_flips == top) & (of.random_flips == random)
            made.append(
                {"most_attended": "flips" if top else "stays", "random": "flips" if random else "stays",
                 **share_row(both[of.defined].astype(float))}
            )  # fmt: skip
    return made


def removal_rows(of: Erased, seed: int) -> list[dict[str, object]]:
    """The table ``removal``: the share of words that must go, in each order, until the decision flips."""
    return [
        {"order": order, **mean_row(of.until_flip[order], (0.0, 1.0), seed),
         "never": share_of(of.never[order][of.defined])}
        for order in ORDERS
    ]  # fmt: skip
