"""A few texts, each with the classifier's own attention and an adversarial one, as rows of tables."""

import numpy as np
import torch

from analyses.adversarial_attention.classifiers.adversaries import Found
from analyses.adversarial_attention.classifiers.tested import Tested
from interp.models.classifiers import as_distribution

SHOWN, LONGEST = 4, 40  # texts, and words of a text that can be read at a glance


def instance_rows(tested: Tested, found: Found, epsilon: float) -> list[dict[str, object]]:
    """The table ``instances``: texts with the farthest adversaries, of different classes where there are some.

    ``output`` is the probability of the label that the untouched classifier gives, under either attention: with the
    adversary it is that of the classifier run with it.
    """
    jsd, tvd, chosen = found.farthest(epsilon), found.change(epsilon), found.chosen(epsilon)
    n_words = tested.examples.n_words
    ranked = [int(i) for i in np.argsort(np.where(np.isnan(jsd), -1.0, -jsd), kind="stable")]
    readable = [i for i in ranked if not np.isnan(jsd[i]) and 6 <= n_words[i] <= LONGEST]
    readable = readable or [i for i in ranked if not np.isnan(jsd[i])]
    made: list[dict[str, object]] = []
    for number, i in enumerate(_of_all_classes(tested, readable)):
        p = float(tested.probabilities[i].max())
        text = tested.texts[i]
        said = {"label": str(tested.classes[i]), "question": " ".join(text.question), "jsd": float(jsd[i]),
                "tvd": float(tvd[i]), "instance": number}  # fmt: skip
        outputs = {"original": p, "adversarial": _output(tested, i, chosen[i])}
        for which, weights in (("original", tested.attention[i]), ("adversarial", chosen[i])):
            made += [
                {**said, "which": which, "position": position, "text": word, "weight": float(weight),
                 "output": outputs[which]}
                for position, (word, weight) in enumerate(zip(text.words, weights, strict=True))
            ]  # fmt: skip
    return made


def _of_all_classes(tested: Tested, ranked: list[int]) -> list[int]:
    """The first few, from each predicted class in turn."""
    queues: dict[object, list[int]] = {}
    for i in ranked:
        queues.setdefault(tested.classes[i], []).append(i)
    picked: list[int] = []
    while len(picked) < SHOWN and any(queues.values()):
        picked += [queue.pop(0) for queue in queues.values() if queue]
    return picked[:SHOWN]


def _output(tested: Tested, i: int, weights: np.ndarray) -> float:
    """The probability of the untouched label when the classifier is run with these weights."""
    batch = tested.examples.batch([i], tested.device)
    row = torch.zeros(batch.tokens.shape)
    row[0, 1 : 1 + len(weights)] = torch.from_numpy(weights)
    with torch.no_grad():
        p = as_distribution(tested.model(batch, row.to(tested.device)).logits)[0]
    return float(p[int(tested.predicted[i])])


def example_rows(tested: Tested, columns: dict[str, np.ndarray], kept: int) -> list[dict[str, object]]:
    """The table ``examples``: one row a text with everything that figures need of it, of the first ``kept`` texts."""
    classes, n_words, largest = tested.classes, tested.examples.n_words, tested.max_attention
    top = tested.probabilities.max(1)
    return [
        {"class": str(classes[i]), "instance": i, "n_words": int(n_words[i]), "max_attention": float(largest[i]),
         "output": float(top[i]), **{name: float(values[i]) for name, values in columns.items()}}
        for i in range(min(len(tested), kept))
    ]  # fmt: skip
