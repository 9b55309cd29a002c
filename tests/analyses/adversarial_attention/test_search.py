"""The search for adversarial attention: its gradient, its bounds, and classifiers whose adversary is known."""

import itertools

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.spatial.distance import jensenshannon
from torch import Tensor

from analyses.adversarial_attention.bounds import ceiling
from analyses.adversarial_attention.classifiers.adversaries import Found, adversaries, epsilons, rows
from analyses.adversarial_attention.classifiers.search import (
    Search,
    Target,
    _gradient,
    objective,
    search,
    with_ends,
    words_only,
)
from interp.models.classifiers import Examples
from interp.models.classifiers.attention import masked_softmax
from tests.analyses.adversarial_attention.classifiers import examples, linear_classifier, random_classifier, seen_by

CASES = [("lstm", False, 2), ("lstm", False, 3), ("average", True, 4), ("cnn", False, 2)]


def start(n: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(n)


@pytest.mark.parametrize("k", [1, 2, 3, 4, 5])
@pytest.mark.parametrize(("encoder", "asks", "n_labels"), CASES)
def test_the_written_gradient_is_that_of_the_objective(encoder: str, asks: bool, n_labels: int, k: int) -> None:
    model, texts = random_classifier(encoder, asks, n_labels), examples([7, 3, 5, 1], asks, n_labels)
    target, how = Target.of(model, texts.batch(range(4))), Search(adversaries=k, margin=0.001, penalty=7.0)
    permitted = target.is_word[:, None].expand(-1, k, -1)
    logits = torch.randn(permitted.shape, dtype=torch.float64, generator=start()).masked_fill(~permitted, -1e4)
    free = logits.clone().requires_grad_()
    objective(masked_softmax(free, permitted), target, how).sum().backward()
    with torch.no_grad():
        slope = _gradient(logits, target, how)
    assert free.grad is not None
    torch.testing.assert_close(slope, free.grad, rtol=1e-8, atol=1e-12)
    assert not slope[~permitted].any()


def authors_loop(model, batch, target: Target, how: Search, logits: Tensor) -> Tensor:
    """The search as the authors wrote it down: contexts formed, autograd, torch's Adam; one batch."""
    encoded = model.encode(batch)
    hidden = words_only(encoded.hidden).detach()
    free = logits.clone().requires_grad_()
    optimizer = torch.optim.Adam([free], lr=how.learning_rate, amsgrad=True)
    for _ in range(how.steps):
        weights = free.masked_fill(~target.is_word[:, None], -torch.inf).softmax(-1)
        context = (weights[..., None] * hidden[:, None]).sum(2)
        p = (context @ model.output.weight.T + model.output.bias).sigmoid()
        change = (p - target.probabilities[:, None, 1:]).abs().sum(-1)

        def jsd(x: Tensor, y: Tensor) -> Tensor:
            middle = (x + y) / 2
            kl = [torch.where(z > 0, z * (z.clamp_min(1e-300) / middle.clamp_min(1e-300)).log(), 0.0) for z in (x, y)]
            return (kl[0] + kl[1]).sum(-1) / 2

        away, among = jsd(weights, target.attention[:, None]), jsd(weights[:, None], weights[:, :, None])
        loss = -away.sum() + how.penalty * (change - how.margin).relu().sum() - among.sum(0).mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    return masked_softmax(free.detach(), target.is_word[:, None].expand_as(free))


def test_the_search_walks_the_way_of_the_authors_loop() -> None:
    model, texts = random_classifier(), examples([6, 6, 4], seed=3)
    batch = texts.batch(range(3))
    target, how = Target.of(model, batch), Search(steps=40, adversaries=5)
    shape = (3, 5, 6)
    logits = 3 * torch.randn(shape, generator=start(1)).double() - target.is_word.sum(-1).log()[:, None, None]
    found = search(target, how, start(1), [0])
    torch.testing.assert_close(
        found[0], masked_softmax(logits, target.is_word[:, None].expand(shape)), rtol=1e-10, atol=1e-12
    )
    torch.testing.assert_close(found[40], authors_loop(model, batch, target, how, logits), rtol=1e-5, atol=1e-8)


@given(st.lists(st.integers(1, 9), min_size=1, max_size=5), st.integers(1, 5), st.sampled_from([0, 1, 7]))
@settings(max_examples=25, deadline=None)
def test_adversaries_are_distributions_on_words_only(lengths: list[int], k: int, steps: int) -> None:
    target = Target.of(random_classifier(), examples(lengths).batch(range(len(lengths))))
    weights = search(target, Search(adversaries=k, steps=steps), start())[steps]
    assert torch.isfinite(weights).all()
    assert (weights >= 0).all()
    torch.testing.assert_close(weights.sum(-1), torch.ones(len(lengths), k, dtype=torch.float64))
    assert not weights.masked_select(~target.is_word[:, None].expand_as(weights)).any()
    assert with_ends(weights[:, 0]).shape[1] == max(lengths) + 2


def test_texts_of_other_lengths_beside_it_change_nothing_but_the_start() -> None:
    model, texts = random_classifier(), examples([3, 8])
    both, alone = Target.of(model, texts.batch([0, 1])), Target.of(model, texts.batch([0]))
    permitted = alone.is_word[:, None]
    how = Search(adversaries=2)
    logits = torch.randn((1, 2, 3), dtype=torch.float64, generator=start())
    wide = torch.full((2, 2, 8), -1e4, dtype=torch.float64)
    wide[:1, :, :3] = logits
    with torch.no_grad():
        torch.testing.assert_close(_gradient(wide, both, how)[:1, :, :3], _gradient(logits, alone, how))
    assert permitted.all()


def test_where_the_output_ignores_attention_the_ceiling_is_reached() -> None:
    """All words have one value, so every distribution gives the same answer: ε-max JSD → max_j JSD(α, δ_j)."""
    words = dict.fromkeys(range(4, 40), 0.5)
    model = linear_classifier(words, {word: word / 40 for word in words})
    of = seen_by(model, examples([9, 8, 12, 10], seed=1))
    found = adversaries(of, Search(steps=2000, learning_rate=0.05, adversaries=3), [0], 0)[2000]
    assert found.tvd.max() < 1e-9
    shares = found.farthest(0.01) / found.ceiling
    assert (shares <= 1 + 1e-9).all()
    # one of them stays near the farthest vertex while the others are pushed apart
    assert shares.min() > 0.9
    single = adversaries(of, Search(steps=3000, learning_rate=0.05, adversaries=1), [], 2)[3000]
    assert np.isnan(single.among).all()
    assert (single.jsd <= single.ceiling[:, None] + 1e-9).all()


def test_a_linear_classifier_whose_adversary_is_known() -> None:
    """Two words with values −v and v under uniform attention: moving mass m changes the logit by 2vm exactly.

    The farthest allowed distribution puts ½ + m on one word with σ(2vm) − ½ = ε, so JSD(ε) is known.
    """
    value, epsilon = 0.9, 0.05
    model = linear_classifier({4: -value, 5: value})
    of = seen_by(model, Examples([np.array([2, 4, 5, 3])], np.array([0])))
    assert of.attention[0].tolist() == [0.5, 0.5]
    # a penalty of 10 outweighs the divergence everywhere; one of 500 makes AMSGrad's steps tiny once it is met
    how = Search(steps=3000, learning_rate=0.003, adversaries=2, margin=epsilon, penalty=10.0, spread=0.3)
    found = adversaries(of, how, [], 0)[3000]
    moved = np.log((0.5 + epsilon) / (0.5 - epsilon)) / (2 * value)
    known = jensenshannon([0.5, 0.5], [0.5 + moved, 0.5 - moved]) ** 2
    assert found.farthest(epsilon + 1e-3)[0] == pytest.approx(known, rel=0.05)
    assert found.change(epsilon + 1e-3)[0] == pytest.approx(epsilon, abs=1e-3)


def test_a_classifier_that_copies_one_of_distinct_values_leaves_nothing_as_epsilon_falls() -> None:
    """Four words, four labels, each word the value of its own: the answer fixes attention, and JSD → 0 with ε."""
    model = linear_classifier({4: -0.95, 5: 0.95}, {5: 2.0})
    of = seen_by(model, Examples([np.array([2, 4, 5, 3])], np.array([0])))
    by_epsilon = []
    for epsilon in (0.2, 0.02, 0.002):
        how = Search(steps=4000, learning_rate=0.001, adversaries=1, margin=epsilon)
        by_epsilon.append(adversaries(of, how, [], 1)[4000].farthest(epsilon + 1e-5)[0])
    assert by_epsilon[0] > by_epsilon[1] > by_epsilon[2]
    assert by_epsilon[2] < 1e-4


def test_what_is_reported_is_measured_on_the_untouched_classifier() -> None:
    model, texts = random_classifier("lstm", True, 3), examples([6, 4, 9], True, 3)
    of = seen_by(model, texts)
    found = adversaries(of, Search(steps=20, adversaries=3), [0], 5)
    assert sorted(found) == [0, 20]
    for step, i in itertools.product((0, 20), range(3)):
        with torch.no_grad():
            batch = texts.batch([i])
            own = model(batch)
            for k, row in enumerate(found[step].weights[i]):
                weights = torch.zeros_like(own.attention)
                weights[0, 1:-1] = torch.from_numpy(row)
                change = (model(batch, weights).logits.softmax(-1) - own.logits.softmax(-1)).abs().sum() / 2
                assert found[step].tvd[i, k] == pytest.approx(float(change), abs=1e-9)
                distance = jensenshannon(row, own.attention[0, 1:-1].detach().numpy()) ** 2
                assert found[step].jsd[i, k] == pytest.approx(distance, abs=1e-7)
                assert found[step].jsd[i, k] <= np.log(2)


def test_a_search_that_found_nothing_is_never_a_divergence_of_zero() -> None:
    nothing = Found(
        jsd=np.array([[0.3, 0.4], [0.1, 0.6], [np.nan, np.nan], [0.0, 0.2]]),
        tvd=np.array([[0.5, 0.6], [0.02, 0.9], [np.nan, np.nan], [0.0, 0.5]]),
        among=np.full(4, 0.1), ceiling=np.full(4, 0.6), weights=[np.full((2, 2), 0.5)] * 4,
    )  # fmt: skip
    np.testing.assert_array_equal(nothing.farthest(0.05), [np.nan, 0.1, np.nan, np.nan])
    np.testing.assert_array_equal(nothing.change(0.05), [np.nan, 0.02, np.nan, np.nan])
    assert [len(row) for row in nothing.chosen(0.05)] == [0, 2, 0, 0]
    of = seen_by(random_classifier(), examples([2, 2, 2, 2]))
    table = rows(of, {0: nothing}, (0.05, 0.01), 0)
    assert table[0]["class"] == "all"
    assert (table[0]["n"], table[0]["found"], table[0]["failed"], table[0]["value"]) == (1, 0.25, 1, 0.1)


def test_not_a_number_in_the_classifier_is_counted_as_a_failure() -> None:
    model, texts = random_classifier(), examples([4, 4])
    with torch.no_grad():
        model.output.bias.fill_(float("nan"))
    of = seen_by(model, texts)
    found = adversaries(of, Search(steps=3), [], 0)[3]
    assert np.isnan(found.farthest(0.05)).all()
    assert rows(of, {3: found}, (0.05,), 0)[0]["failed"] == 2


def test_epsilons_and_the_ceiling_of_two_equal_words() -> None:
    assert epsilons(False, None) == (0.01, 0.05)
    assert epsilons(True, None) == (0.05, 0.01)
    assert epsilons(True, 0.2) == (0.2, 0.01, 0.05)
    assert float(ceiling(torch.tensor([0.5, 0.5]))) == pytest.approx(0.2158, abs=1e-4)
