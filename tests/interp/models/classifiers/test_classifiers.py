"""Classifiers: padded batches equal texts one by one; the few features give the whole answer; training and storage."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from interp.errors import UserError
from interp.models.classifiers import (
    AttentionClassifier,
    ClassifierConfig,
    ClassifierTraining,
    Examples,
    as_distribution,
    auc_of,
    load_classifier,
    save_classifier,
    train_classifier,
)
from interp.models.classifiers.attention import masked_softmax, uniform
from interp.models.classifiers.encoders import BiLSTM
from interp.models.classifiers.training import RESUME, score

KINDS = [(encoder, attention) for encoder in ("lstm", "cnn", "average") for attention in ("tanh", "dot")]


def classifier(encoder: str, attention: str, asks: bool, n_labels: int = 3, seed: int = 0) -> AttentionClassifier:
    torch.manual_seed(seed)
    config = ClassifierConfig(30, n_labels, asks, encoder, attention, d_embed=7, d_hidden=8)  # pyright: ignore[reportArgumentType]
    return AttentionClassifier(config).double().eval()


def examples(lengths: list[int], asks: bool, n_labels: int = 3, seed: int = 0) -> Examples:
    rng = np.random.default_rng(seed)
    texts = [np.array([2, *rng.integers(4, 30, n), 3]) for n in lengths]
    questions = [np.array([2, *rng.integers(4, 30, 1 + n % 3), 3]) for n in lengths] if asks else None
    return Examples(texts, rng.integers(0, n_labels, len(lengths)), questions)


@pytest.mark.parametrize("asks", [False, True])
@pytest.mark.parametrize(("encoder", "attention"), KINDS)
def test_a_padded_batch_gives_what_each_text_gives_alone(encoder: str, attention: str, asks: bool) -> None:
    model, texts = classifier(encoder, attention, asks), examples([5, 1, 9, 2, 7], asks)
    together = model(texts.batch(range(5)))
    for i in range(5):
        alone = model(texts.batch([i]))
        width = alone.attention.shape[1]
        torch.testing.assert_close(together.logits[i], alone.logits[0], rtol=0, atol=1e-12)
        torch.testing.assert_close(together.attention[i, :width], alone.attention[0], rtol=0, atol=1e-12)
        assert not together.attention[i, width:].any()


def test_the_bilstm_is_pytorchs_over_packed_sequences() -> None:
    encoder = BiLSTM(ClassifierConfig(30, 2, d_embed=7, d_hidden=8)).double()
    lengths = torch.tensor([4, 1, 6, 3])
    embedded = torch.randn(4, 7, 7, dtype=torch.float64, requires_grad=True)
    packed = nn.utils.rnn.pack_padded_sequence(embedded, lengths, batch_first=True, enforce_sorted=False)
    output, (last, _) = encoder.rnn(packed)
    wanted, _ = nn.utils.rnn.pad_packed_sequence(output, batch_first=True, total_length=7)
    whole = torch.cat([last[0], last[1]], -1)
    found = encoder(embedded, lengths)
    weights = list(encoder.parameters())
    slopes = [torch.autograd.grad((h.sin().sum() + w.cos().sum()), [embedded, *weights])
              for h, w in ((wanted, whole), found)]  # fmt: skip
    for one, two in zip((wanted, whole, *slopes[0]), (*found, *slopes[1]), strict=True):
        torch.testing.assert_close(two, one, rtol=0, atol=1e-12)


@pytest.mark.parametrize("asks", [False, True])
@pytest.mark.parametrize("n_labels", [2, 3])
@pytest.mark.parametrize(("encoder", "attention"), KINDS)
def test_the_features_of_each_word_are_all_that_the_answer_takes(
    encoder: str, attention: str, asks: bool, n_labels: int
) -> None:
    model, texts = classifier(encoder, attention, asks, n_labels), examples([5, 1, 9], asks)
    batch = texts.batch(range(3))
    encoded = model.encode(batch)
    other = torch.rand((3, 4, batch.tokens.shape[1]), dtype=torch.float64) * batch.is_word[:, None]
    other = other / other.sum(-1, keepdim=True)
    features = model.features(encoded)
    assert features.shape[-1] == (8 if asks and encoder == "lstm" else 4 if asks else model.config.n_outputs)
    answers = model.answer(other @ features, encoded)
    for k in range(4):
        torch.testing.assert_close(answers[:, k], model(batch, other[:, k]).logits, rtol=0, atol=1e-12)


def test_attention_is_as_the_papers_write_it() -> None:
    """Against the formulas, written out for one text."""
    for attention, asks in [("tanh", False), ("dot", False), ("tanh", True), ("dot", True)]:
        model, texts = classifier("lstm", attention, asks), examples([6], asks)
        encoded = model.encode(texts.batch([0]))
        h = encoded.hidden[0, 1:-1].detach().numpy()
        weights = {name: p.detach().numpy() for name, p in model.attention.named_parameters()}
        if attention == "tanh":
            keys = h @ weights["key.weight"].T + weights["key.bias"]
            if encoded.question is not None:
                q = encoded.question[0].detach().numpy()
                keys = keys + weights["question.weight"] @ q + weights["question.bias"]
            scores = np.tanh(keys) @ weights["score.weight"][0]
        elif encoded.question is not None:
            scores = h @ encoded.question[0].detach().numpy() / np.sqrt(16)
        else:
            scores = h @ weights["query.weight"][0] / np.sqrt(16)
        wanted = np.exp(scores) / np.exp(scores).sum()
        np.testing.assert_allclose(model.attend(encoded)[0, 1:-1].detach().numpy(), wanted, rtol=1e-10)


@given(st.lists(st.integers(0, 5), min_size=1, max_size=4))
@settings(max_examples=30, deadline=None)
def test_softmax_and_uniform_attention_are_distributions_on_permitted_positions(counts: list[int]) -> None:
    permitted = torch.arange(5) < torch.tensor(counts)[:, None]
    for weights in (masked_softmax(torch.randn(len(counts), 5) * 50, permitted), uniform(permitted)):
        assert torch.isfinite(weights).all()
        assert not weights[~permitted].any()
        torch.testing.assert_close(weights.sum(-1), (torch.tensor(counts) > 0).float())


def test_probabilities() -> None:
    logits = torch.tensor([[0.3], [-40.0]], dtype=torch.float64)
    p = as_distribution(logits)
    torch.testing.assert_close(p[:, 1], logits[:, 0].sigmoid())
    torch.testing.assert_close(p.sum(-1), torch.ones(2, dtype=torch.float64))
    several = torch.randn(2, 4)
    torch.testing.assert_close(as_distribution(several), several.softmax(-1))


def test_area_under_the_curve_against_counting_pairs() -> None:
    rng = np.random.default_rng(0)
    scores, labels = rng.integers(0, 5, 40) / 5, rng.integers(0, 2, 40)
    pairs = [(a > b) + (a == b) / 2 for a in scores[labels == 1] for b in scores[labels == 0]]
    assert auc_of(scores, labels) == pytest.approx(np.mean(pairs))
    assert np.isnan(auc_of(scores, np.ones(40, dtype=int)))


def learnable(n: int, seed: int) -> Examples:
    """The label is whether the text holds word 7."""
    made = examples(list(np.random.default_rng(seed).integers(1, 9, n)), asks=False, seed=seed)
    return replace(made, labels=np.array([int(7 in text[1:-1]) for text in made.texts]))


def test_training_learns_keeps_the_best_epoch_and_can_be_resumed(tmp_path: Path) -> None:
    train, dev = learnable(300, 1), learnable(400, 2)
    dev.labels[0] = 1 - dev.labels[0]  # no epoch answers all of them right
    training = ClassifierTraining(epochs=6, batch=16, learning_rate=0.01)
    straight = classifier("lstm", "tanh", False, 2).float()
    history = train_classifier(straight, train, dev, training)
    assert history["epoch"].tolist() == list(range(6))
    assert history["loss"].iloc[-1] < history["loss"].iloc[0] / 2
    assert score(straight, dev) == pytest.approx(history["score"].iloc[1:].max())
    assert score(straight, dev) > 0.95

    class StoppedError(Exception):
        pass

    def stop_after(n: int):
        def watch(epochs, what, total):
            for i, epoch in enumerate(epochs):
                if i == n:
                    raise StoppedError
                yield epoch

        return watch

    broken = classifier("lstm", "tanh", False, 2).float()
    with pytest.raises(StoppedError):
        train_classifier(broken, train, dev, training, folder=tmp_path, watch=stop_after(3))
    assert (tmp_path / RESUME).exists()
    other = ClassifierTraining(epochs=6, batch=16, learning_rate=0.01, seed=1)
    with pytest.raises(UserError, match="of a training with other settings or texts"):
        train_classifier(classifier("lstm", "tanh", False, 2).float(), train, dev, other, folder=tmp_path)
    resumed = classifier("lstm", "tanh", False, 2, seed=9).float()
    again = train_classifier(resumed, train, dev, training, folder=tmp_path)
    assert again.equals(history)
    for (name, one), two in zip(straight.state_dict().items(), resumed.state_dict().values(), strict=True):
        assert torch.equal(one, two), name
    assert not (tmp_path / RESUME).exists()


def test_training_ends_when_no_later_epoch_can_be_better() -> None:
    train, dev = learnable(300, 1), learnable(100, 2)
    histories, weights = [], []
    for epochs in (5, 30):
        model = classifier("cnn", "tanh", False, 2).float()
        training = ClassifierTraining(epochs=epochs, batch=16, learning_rate=0.01)
        histories.append(train_classifier(model, train, dev, training))
        weights.append(model.state_dict())
    assert histories[0]["score"].iloc[-1] == 1.0
    assert histories[1].equals(histories[0])
    assert all(torch.equal(kept, weights[1][name]) for name, kept in weights[0].items())


def test_the_loss_weighs_positives_as_published() -> None:
    from interp.models.classifiers.training import published_loss

    model, texts = classifier("average", "tanh", False, 2), examples([4, 6], False, 2)
    texts = replace(texts, labels=np.array([0, 1]))
    batch = texts.batch([0, 1])
    p = model(batch).logits.sigmoid()[:, 0]
    wanted = -(1 - p[0]).log() - 2.5 * p[1].log()
    torch.testing.assert_close(published_loss(model, batch, np.arange(2), positive=2.5), wanted)


def test_attention_that_is_given_is_not_learned() -> None:
    train = learnable(40, 1)
    model = classifier("average", "tanh", False, 2).float()
    before = {name: p.clone() for name, p in model.attention.named_parameters()}
    train_classifier(
        model, train, None, ClassifierTraining(epochs=2), given=lambda batch, _: uniform(batch.is_word).float()
    )
    assert all(torch.equal(p, before[name]) for name, p in model.attention.named_parameters())


def test_a_loss_that_is_not_finite_is_refused() -> None:
    model = classifier("average", "tanh", False, 2).float()
    with torch.no_grad():
        model.embedding.weight[5] = float("nan")
    with pytest.raises(UserError, match="the loss of epoch 1 is nan"):
        train_classifier(model, learnable(40, 1), None, ClassifierTraining(epochs=1))


@pytest.mark.parametrize("asks", [False, True])
def test_a_classifier_is_saved_and_loaded(tmp_path: Path, asks: bool) -> None:
    model, texts = classifier("cnn", "dot", asks).float(), examples([5, 2], asks)
    save_classifier(model, tmp_path / "c", ["<pad>", "héllo"], ["x", "y", "z"], {"seed": 3})
    saved = load_classifier(tmp_path / "c")
    assert (saved.words, saved.labels, saved.about) == (("<pad>", "héllo"), ("x", "y", "z"), {"seed": 3})
    assert torch.equal(saved.model(texts.batch([0, 1])).logits, model(texts.batch([0, 1])).logits)
    (tmp_path / "c" / "model.safetensors").write_bytes(b"nothing")
    with pytest.raises(UserError, match="does not hold the weights"):
        load_classifier(tmp_path / "c")
    with pytest.raises(UserError, match="holds no classifier"):
        load_classifier(tmp_path)


def test_sizes_that_do_not_fit() -> None:
    for wrong in ({"d_hidden": 6, "encoder": "cnn"}, {"n_labels": 1}, {"encoder": "gru"}):
        with pytest.raises(ValueError, match=r"got"):
            ClassifierConfig(**{"n_words": 30, "n_labels": 2, **wrong})
