"""What is measured of a classifier's attention, against closed forms, brute force and scipy."""

import itertools

import numpy as np
import pytest
import torch
from scipy import stats
from scipy.spatial.distance import jensenshannon

from analyses.adversarial_attention.classifiers import agreement, erasing, facts, permuting, states, tested
from analyses.adversarial_attention.classifiers.tables import by_class, mean_row, quantile, share_row
from analyses.adversarial_attention.classifiers.tested import answers, tvd
from analyses.adversarial_attention.classifiers.training import f1_of, given_rows, given_uniform, judged, subset
from interp.data import LabelledText
from interp.models.classifiers import Examples, as_distribution
from tests.analyses.adversarial_attention.classifiers import examples, linear_classifier, random_classifier, seen_by

CASES = [("lstm", False, 2), ("lstm", True, 3), ("average", False, 3), ("cnn", False, 2)]


@pytest.mark.parametrize(("encoder", "asks", "n_labels"), CASES)
def test_gradients_hold_attention_fixed(encoder: str, asks: bool, n_labels: int) -> None:
    """Against finite differences of the predicted label's probability along each word's vector, attention given."""
    model, texts = random_classifier(encoder, asks, n_labels), examples([5, 3], asks, n_labels)
    of = seen_by(model, texts)
    for i in range(2):
        batch = texts.batch([i])
        with torch.no_grad():
            own = model(batch).attention
            embedded = model.embed(batch)

        def probability(vectors: torch.Tensor, i: int = i, batch=batch, own=own) -> float:
            with torch.no_grad():
                encoded = model.encode(batch, vectors)
                pooled = torch.einsum("bp,bpf->bf", own, model.features(encoded))
                return float(as_distribution(model.answer(pooled, encoded))[0, of.predicted[i]])

        step, wanted = 1e-6, []
        for t in range(1, embedded.shape[1] - 1):
            up, down = embedded.clone(), embedded.clone()
            up[0, t] *= 1 + step
            down[0, t] *= 1 - step
            wanted.append(abs(probability(up) - probability(down)) / (2 * step))
        np.testing.assert_allclose(of.gradient[i], np.array(wanted) / sum(wanted), rtol=1e-5, atol=1e-9)


@pytest.mark.parametrize(("encoder", "asks", "n_labels"), CASES)
def test_leaving_a_word_out_is_running_the_text_without_it(encoder: str, asks: bool, n_labels: int) -> None:
    model, texts = random_classifier(encoder, asks, n_labels), examples([6, 2, 1], asks, n_labels)
    of = seen_by(model, texts, size=2)
    for i in range(3):
        for t in range(len(texts.texts[i]) - 2):
            questions = None if texts.questions is None else [texts.questions[i]]
            without = Examples([np.delete(texts.texts[i], t + 1)], texts.labels[[i]], questions)
            with torch.no_grad():
                p = as_distribution(model(without.batch([0])).logits)[0].numpy()
            assert of.leave_one_out[i][t] == pytest.approx(np.abs(p - of.probabilities[i]).sum() / 2, abs=1e-12)


def test_words_that_cannot_differ_are_tied_in_a_classifier_of_float32() -> None:
    """An encoder that reads each word by itself treats both places of a word alike; only rounding could rank them."""
    model, texts = random_classifier("average", True, 3).float(), examples([40] * 30, True, 3, seed=2)
    of = seen_by(model, texts)
    repeated = 0
    for text, gradient, left_out in zip(texts.texts, of.gradient, of.leave_one_out, strict=True):
        words = text[1:-1]
        for word in np.unique(words):
            places = words == word
            repeated += int(places.sum() > 1)
            assert len(set(gradient[places])) == len(set(left_out[places])) == 1
    assert repeated > 100


def test_answers_and_attention_do_not_depend_on_the_batch() -> None:
    model, texts = random_classifier("lstm", True, 3), examples([6, 2, 9, 1, 4], True, 3)
    together, alone = seen_by(model, texts, 5), seen_by(model, texts, 1)
    np.testing.assert_allclose(together.probabilities, alone.probabilities, atol=1e-12)
    for one, two in zip(together.attention, alone.attention, strict=True):
        np.testing.assert_allclose(one, two, atol=1e-12)
        assert one.sum() == pytest.approx(1)


def test_kendall_is_scipys_and_undefined_where_it_is_none() -> None:
    rng = np.random.default_rng(0)
    one = [rng.random(9), np.array([0.5, 0.3, 0.2, 0.2]), np.array([1.0]), np.full(4, 0.25), np.zeros(0)]
    other = [rng.random(9), np.array([1.0, 2.0, 2.0, 5.0]), np.array([0.3]), rng.random(4), np.zeros(0)]
    found = agreement.kendall(one, other)
    for i in (0, 1):
        known = stats.kendalltau(one[i], other[i])
        assert (found.tau[i], found.p[i]) == tuple(known)
    assert np.isnan(found.tau[2:]).all()
    of = seen_by(random_classifier(), examples([3, 3, 3, 3, 3]))
    rows = agreement.rows(of, {"attention_gradient": found}, 0)
    assert rows[0]["class"] == "all"
    assert (rows[0]["n"], rows[0]["undefined"]) == (2, 3)
    assert rows[0]["value"] == pytest.approx(found.tau[:2].mean())
    assert rows[0]["significant"] == (found.p[:2] <= 0.05).mean()


def test_permutations_against_all_of_them() -> None:
    """Of three words there are six permutations; the median over many random ones is that over the six."""
    model = random_classifier("average", False, 2, seed=4)
    texts = examples([3, 1, 3], seed=2)
    of = seen_by(model, texts)
    changes = permuting.median_changes(of, 4001, seed=0)
    assert np.isnan(changes[1])
    for i in (0, 2):
        batch = texts.batch([i])
        every = []
        for order in itertools.permutations(range(3)):
            weights = torch.zeros((1, 5), dtype=torch.float64)
            weights[0, 1:4] = torch.from_numpy(of.attention[i][list(order)])
            with torch.no_grad():
                p = as_distribution(model(batch, weights).logits)[0].numpy()
            every.append(tvd(p, of.probabilities[i]))
        lower, upper = sorted(every)[2:4]
        assert lower - 1e-9 <= changes[i] <= upper + 1e-9
    rows = permuting.rows(of, changes, 0)
    assert rows[0]["n"] == 2
    assert rows[0]["max_attention_high"] == 1.0


def test_permuting_uniform_attention_changes_nothing() -> None:
    of = seen_by(linear_classifier({word: word / 50 for word in range(4, 40)}), examples([7, 3]))
    assert permuting.median_changes(of, 20, 0) == pytest.approx(np.zeros(2), abs=1e-12)


def test_erasing_against_doing_it_word_by_word() -> None:
    model, texts = random_classifier("lstm", False, 3, seed=2), examples([6, 4, 1, 5], False, 3, seed=5)
    of = seen_by(model, texts)
    made = erasing.erased(of, seed=0)
    assert made.defined.tolist() == [True, True, False, True]
    assert np.isnan(made.more_change[2])

    def run(i: int, gone: list[int]) -> np.ndarray:
        weights = of.attention[i].copy()
        weights[gone] = 0
        batch = texts.batch([i])
        given = torch.zeros((1, len(weights) + 2), dtype=torch.float64)
        given[0, 1:-1] = torch.from_numpy(weights / weights.sum())
        with torch.no_grad():
            return as_distribution(model(batch, given).logits)[0].numpy()

    rng = np.random.default_rng(0)
    chance = [rng.permutation(n) for n in texts.n_words]
    for i in (0, 1, 3):
        top = int(np.argmax(of.attention[i]))
        random = next(int(word) for word in np.argsort(chance[i]) if word != top)
        p = of.probabilities[i]
        one, two = run(i, [top]), run(i, [random])
        assert made.more_weight[i] == pytest.approx(of.attention[i][top] - of.attention[i][random])
        wanted = jensenshannon(p, one) ** 2 - jensenshannon(p, two) ** 2
        assert made.more_change[i] == pytest.approx(wanted, abs=1e-7)
        assert made.top_flips[i] == (one.argmax() != p.argmax())
        ranks = {"attention": of.attention[i], "gradient": of.gradient[i],
                 "gradient_attention": of.gradient[i] * of.attention[i], "random": chance[i]}  # fmt: skip
        for order, rank in ranks.items():
            words = list(np.argsort(-rank, kind="stable"))
            flips = [m for m in range(1, len(words)) if run(i, words[:m]).argmax() != p.argmax()]
            assert made.until_flip[order][i] == pytest.approx((flips[0] if flips else len(words)) / len(words))
            assert made.never[order][i] == (not flips)
    shares = [float(str(row["value"])) for row in erasing.flip_rows(made)]
    assert sum(shares) == pytest.approx(1)
    assert {row["order"] for row in erasing.removal_rows(made, 0)} == set(erasing.ORDERS)


def test_conicity_of_equal_and_of_opposed_states() -> None:
    same = seen_by(linear_classifier(dict.fromkeys(range(4, 40), 0.5)), examples([5, 1]))
    found = states.conicity(same)
    assert found[0] == pytest.approx(1)
    assert np.isnan(found[1])
    model = linear_classifier({4: -0.9, 5: 0.9, 6: 0.9})
    opposed = seen_by(model, Examples([np.array([2, 4, 5, 6, 3])], np.array([0])))
    assert states.conicity(opposed)[0] == pytest.approx((1 + 1 - 1) / 3)


def test_conicity_of_random_directions_is_near_its_chance() -> None:
    rng = np.random.default_rng(0)
    h = rng.normal(size=(20, 512))
    cosines = h @ h.mean(0) / (np.linalg.norm(h, axis=1) * np.linalg.norm(h.mean(0)))
    assert cosines.mean() == pytest.approx(1 / np.sqrt(20), abs=0.01)


def test_the_fact_that_answers() -> None:
    spans = ((0, 2), (2, 4), (4, 6))
    texts = [
        LabelledText(tuple("abcdef"), "x", "test", ("q",), spans, (1,)),
        LabelledText(tuple("abcdef"), "x", "test", ("q",), spans, (0, 2)),
        LabelledText(tuple("ab"), "x", "test", ("q",), ((0, 2),), (0,)),
        LabelledText(tuple("abcdef"), "x", "test", ("q",), spans, (1,)),
    ]
    weights = [np.array([0.3, 0.1, 0.25, 0.25, 0.1, 0.0]), np.array([0.3, 0.1, 0.1, 0.1, 0.3, 0.1]), np.ones(2) / 2,
               np.full(6, 1 / 6)]  # fmt: skip
    found = facts.hits(texts, weights)
    np.testing.assert_allclose(found, [1, 1, np.nan, 1 / 3])


def test_supporting_facts_are_counted_where_the_answer_is_right() -> None:
    model, numbers = random_classifier("lstm", True, 3), examples([6, 6, 6], True, 3)
    spans = ((0, 3), (3, 6))
    words = [LabelledText(tuple("abcdef"), "x", "test", ("q",), spans, (0,))] * 3
    of = tested.Tested(model, numbers, words, ["0", "1", "2"], 4)
    right = Examples(numbers.texts, of.predicted.copy(), numbers.questions)
    rows = facts.rows(tested.Tested(model, right, words, ["0", "1", "2"], 4))
    assert [row["ranking"] for row in rows] == ["attention", "gradient", "leave_one_out"]
    assert all(row["n"] == 3 and row["chance"] == 0.5 for row in rows)
    wrong = Examples(numbers.texts, (of.predicted + 1) % 3, numbers.questions)
    assert all(row["n"] == 0 for row in facts.rows(tested.Tested(model, wrong, words, ["0", "1", "2"], 4)))


def test_attention_that_is_given_is_what_is_used() -> None:
    model, texts = random_classifier(), examples([4, 2])
    rows = [np.array([0.1, 0.2, 0.3, 0.4]), np.array([0.0, 1.0])]
    _, attention = answers(model, texts, 2, given_rows(rows))
    for found, wanted in zip(attention, rows, strict=True):
        np.testing.assert_allclose(found, wanted, atol=1e-7)
    batch = texts.batch([0, 1])
    uniform = given_uniform(batch, np.arange(2))
    assert uniform[1].tolist() == [0, 0.5, 0.5, 0, 0, 0]


def test_whether_a_classifier_learned() -> None:
    labels = np.array([0] * 60 + [1] * 40)
    good = np.eye(2)[np.where(np.arange(100) % 10 == 0, 1 - labels, labels)]
    lazy = np.eye(2)[np.zeros(100, dtype=int)]
    assert judged(good, labels, lazy, labels).learned
    found = judged(lazy, labels, good, labels)  # good on the texts on which the epoch was chosen is not enough
    assert not found.learned
    assert "0.600 of the test texts are right, the commonest class is 0.600" in found.note
    assert (found.chance, found.dev_accuracy) == (0.6, 0.9)


def test_f1() -> None:
    predicted, labels = np.array([1, 1, 0, 0, 1]), np.array([1, 0, 0, 1, 1])
    assert f1_of(predicted, labels, 2) == pytest.approx(2 * (2 / 3) * (2 / 3) / (4 / 3))
    assert f1_of(np.array([0, 1, 2]), np.array([0, 1, 1]), 3) == pytest.approx((1 + 2 / 3) / 2)


def test_rows_of_tables() -> None:
    assert [(name, chosen.tolist()) for name, chosen in by_class(np.array(["a", "b", "a"], dtype=object))] == [
        ("all", [True] * 3), ("a", [True, False, True]), ("b", [False, True, False]),
    ]  # fmt: skip
    assert len(list(by_class(np.array(list("abcde"), dtype=object)))) == 1
    assert mean_row(np.full(3, np.nan))["n"] == 0
    row = share_row(np.array([1.0] * 20))
    assert (row["value"], row["ci_high"], row["n"]) == (1.0, 1.0, 20)
    assert row["ci_low"] == pytest.approx(0.025 ** (1 / 20))  # the exact end where all are hits
    assert np.isnan(quantile(np.array([np.nan])))
    assert list(subset(5, None, 0)) == [0, 1, 2, 3, 4]
    assert len(set(subset(50, 10, 0))) == 10
