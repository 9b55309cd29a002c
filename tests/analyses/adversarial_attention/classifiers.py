"""Classifiers whose attention is understood: small ones with weights at random or put in by hand."""

import numpy as np
import torch

from analyses.adversarial_attention.classifiers.tested import Tested
from interp.data import LabelledText
from interp.models.classifiers import AttentionClassifier, ClassifierConfig, Examples

N_WORDS = 40


def random_classifier(
    encoder: str = "lstm", asks: bool = False, n_labels: int = 2, seed: int = 0
) -> AttentionClassifier:
    """Small, in float64, with weights so large that its answers differ."""
    torch.manual_seed(seed)
    config = ClassifierConfig(N_WORDS, n_labels, asks, encoder, "tanh", d_embed=6, d_hidden=8)  # pyright: ignore[reportArgumentType]
    model = AttentionClassifier(config).double().eval()
    with torch.no_grad():
        for p in model.parameters():
            p.mul_(2.0)
    return model


def linear_classifier(values: dict[int, float], scores: dict[int, float] | None = None) -> AttentionClassifier:
    """Each word has a value, which is all that the answer takes: logit = Σ α_t · value(word_t); attention is uniform.

    The encoder is the average one with d_hidden 4: a word's first hidden number is its value in (−1, 1), its second its
    score divided by 10. ``scores`` are the logits of attention.
    """
    config = ClassifierConfig(N_WORDS, 2, False, "average", "dot", d_embed=4, d_hidden=4)
    model = AttentionClassifier(config).double().eval()
    with torch.no_grad():
        for p in model.parameters():
            p.zero_()
        model.encoder.projection.weight.copy_(torch.eye(4))
        for word, value in values.items():
            model.embedding.weight[word, 0] = np.arctanh(value)
        for word, score in (scores or {}).items():
            model.embedding.weight[word, 1] = np.arctanh(score / 10)
        model.output.weight[0, 0] = 1.0
        model.attention.query.weight[0, 1] = 10 * 2.0  # √d_hidden = 2
    return model


def examples(lengths: list[int], asks: bool = False, n_labels: int = 2, seed: int = 0) -> Examples:
    rng = np.random.default_rng(seed)
    texts = [np.array([2, *rng.integers(4, N_WORDS, n), 3]) for n in lengths]
    questions = [np.array([2, *rng.integers(4, N_WORDS, 2), 3]) for _ in lengths] if asks else None
    return Examples(texts, rng.integers(0, n_labels, len(lengths)), questions)


def seen_by(model: AttentionClassifier, texts: Examples, size: int = 4) -> Tested:
    """A classifier on texts, computed a few at a time."""
    words = [LabelledText(tuple(f"w{t}" for t in text[1:-1]), "x", "test") for text in texts.texts]
    labels = [f"class {i}" for i in range(model.config.n_labels)]
    return Tested(model, texts, words, labels, size)
