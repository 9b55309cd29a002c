"""How far can attention be from the classifier's own while the answer stays the same?"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from analyses.adversarial_attention.bounds import ceiling, divergence
from analyses.adversarial_attention.classifiers.search import Adversaries, Search, Target, search, with_ends
from analyses.adversarial_attention.classifiers.tables import by_class, mean_row, quantile, share_of
from analyses.adversarial_attention.classifiers.tested import Rows, Tested
from interp.models.classifiers import Batch, as_distribution

PAPER_EPSILON = {False: 0.01, True: 0.05}
"""The largest change that counts in the paper: for classification, and for questions. The authors' plots have 0.05 for
both."""


@dataclass(frozen=True, eq=False)
class Found:
    """The adversaries of every text after some number of steps.

    Attributes:
        jsd: [text, adversary] divergence from the classifier's own attention; NaN where the search broke down.
        tvd: [text, adversary] change of the untouched classifier's answer when it is run with the adversary.
        among: [text] mean divergence of the adversaries from each other; NaN with one adversary.
        ceiling: [text] the largest divergence that any distribution on the text's words can have.
        weights: [adversary, word] of each text.
    """

    jsd: NDArray[np.float64]
    tvd: NDArray[np.float64]
    among: NDArray[np.float64]
    ceiling: NDArray[np.float64]
    weights: list[NDArray[np.float64]]

    def best(self, epsilon: float) -> NDArray[np.int64]:
        """[text] the adversary farthest away among those within ε; −1 where none is, or none has moved."""
        inside = np.where((self.tvd <= epsilon) & (self.jsd > 0), self.jsd, -np.inf)
        return np.where(np.isfinite(inside.max(1)), inside.argmax(1), -1)

    def farthest(self, epsilon: float) -> NDArray[np.float64]:
        """[text] ε-max JSD; NaN where no adversary is within ε: never 0 for a search that found nothing."""
        return self._of(self.jsd, self.best(epsilon))

    def change(self, epsilon: float) -> NDArray[np.float64]:
        """[text] the change of the answer under that adversary."""
        return self._of(self.tvd, self.best(epsilon))

    def chosen(self, epsilon: float) -> Rows:
        """The weights of that adversary; empty where there is none."""
        return [
            weights[k] if k >= 0 else np.zeros(0) for weights, k in zip(self.weights, self.best(epsilon), strict=True)
        ]

    @staticmethod
    def _of(values: NDArray[np.float64], best: NDArray[np.int64]) -> NDArray[np.float64]:
        picked = np.take_along_axis(values, np.maximum(best, 0)[:, None], axis=1)[:, 0]
        return np.where(best >= 0, picked, np.nan)


def adversaries(tested: Tested, how: Search, at: Sequence[int], seed: int) -> dict[int, Found]:
    """Search for adversaries of every text, and check each by running the untouched classifier with it."""
    steps = sorted({*at, how.steps})
    parts: dict[int, list[tuple[NDArray[np.int64], Found]]] = {step: [] for step in steps}
    generator = torch.Generator().manual_seed(seed)
    for indices in tested.examples.by_length(tested.size):
        batch = tested.examples.batch(indices, tested.device)
        target = Target.of(tested.model, batch)
        for step, weights in search(target, how, generator, steps).items():
            parts[step].append((indices, checked(tested, batch, target, weights, tested.examples.n_words[indices])))
    return {step: joined(parts[step], len(tested)) for step in steps}


@torch.no_grad()
def checked(tested: Tested, batch: Batch, target: Target, weights: Adversaries, n_words: NDArray[np.int64]) -> Found:
    """Adversaries of one batch with what they do to the classifier when it is run with them."""
    own = as_distribution(tested.model(batch).logits)
    changes = []
    for k in range(weights.shape[1]):  # the classifier itself, with its attention replaced: nothing of the search
        p = as_distribution(tested.model(batch, with_ends(weights[:, k])).logits)
        changes.append((p - own).abs().sum(-1) / 2)
    jsd = divergence(weights.double(), target.attention.double()[:, None])
    return Found(
        _numbers(jsd), _numbers(torch.stack(changes, 1)), _among(weights.double()),
        _numbers(ceiling(target.attention.double(), target.is_word)),
        [row[:, :n] for row, n in zip(_numbers(weights), n_words, strict=True)],
    )  # fmt: skip


def _among(weights: Tensor) -> NDArray[np.float64]:
    n = weights.shape[1]
    if n < 2:
        return np.full(len(weights), np.nan)
    pairs = [divergence(weights[:, k], weights[:, other]) for k in range(n) for other in range(k)]
    return _numbers(torch.stack(pairs).mean(0))


def _numbers(values: Tensor) -> NDArray[np.float64]:
    return values.double().cpu().numpy()


def joined(parts: Sequence[tuple[NDArray[np.int64], Found]], n: int) -> Found:
    """Batches as one, in the order of the texts."""
    order = np.concatenate([indices for indices, _ in parts])
    back = np.argsort(order)
    weights = [row for _, found in parts for row in found.weights]
    joined = {
        name: np.concatenate([getattr(found, name) for _, found in parts])[back]
        for name in ("jsd", "tvd", "among", "ceiling")
    }
    return Found(**joined, weights=[weights[i] for i in back])


def epsilons(asks: bool, given: float | None) -> tuple[float, ...]:
    """The changes of the output that count: the one given or the paper's first, then the other of the paper's two."""
    first = given if given is not None else PAPER_EPSILON[asks]
    return (first, *(value for value in (0.01, 0.05) if value != first))


def rows(tested: Tested, found: dict[int, Found], levels: Sequence[float], seed: int) -> list[dict[str, object]]:
    """The table ``adversaries``: ε-max JSD by steps of the search, of each predicted class.

    Texts of one word are left out: their attention cannot differ. ``found`` is the share of texts with an adversary
    within ε; ``value`` and ``median`` are over these, ``above_half`` over all.
    """
    made: list[dict[str, object]] = []
    several = tested.examples.n_words >= 2
    for step, of in found.items():
        for epsilon in levels:
            jsd, change = of.farthest(epsilon), of.change(epsilon)
            for name, inside in by_class(tested.classes):
                chosen = inside & several
                made.append(
                    {"class": name, "epsilon": epsilon, "steps": step, **mean_row(jsd[chosen], (0.0, np.log(2)), seed),
                     "median": quantile(jsd[chosen]), "above_half": share_of(jsd[chosen] > 0.5),
                     "share": _mean(jsd[chosen] / np.maximum(of.ceiling[chosen], 1e-12)),
                     "among": _mean(of.among[chosen]), "tvd": _mean(change[chosen]),
                     "found": share_of(~np.isnan(jsd[chosen])),
                     "failed": int((~np.isfinite(of.jsd[chosen]) | ~np.isfinite(of.tvd[chosen])).any(1).sum())}
                )  # fmt: skip
    return made


def _mean(values: NDArray[np.float64]) -> float:
    known = values[np.isfinite(values)]
    return float(known.mean()) if len(known) else float("nan")
