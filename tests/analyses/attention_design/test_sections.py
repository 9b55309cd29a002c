"""Each section's claims against what is known by another way; and that a broken experiment is found out."""

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from scipy import integrate
from scipy.special import softmax
from scipy.stats import norm

from analyses.attention_design import (
    SECTIONS,
    cost,
    depth,
    floating_point,
    formula,
    heads,
    kernels,
    on_model,
    positions,
    saturation,
    scaling,
)
from analyses.attention_design.claims import Claim
from analyses.attention_design.config import Config
from analyses.attention_design.subspaces import subspace_overlaps
from analyses.attention_design.tasks import Recall, fit, look_back, score, two_relations
from interp import load
from interp.attention import edits
from interp.results import Workspace

QUICK = Config(training=False)


def value(claim: Claim, start: str) -> float:
    """The measurement of this name, or the only one whose name begins so."""
    named = {number.quantity: number.value for number in claim.numbers if number.quantity.startswith(start)}
    (found,) = [named[start]] if start in named else named.values()
    return found


@pytest.mark.parametrize("topic", [topic for topic in SECTIONS if topic != "masks"])
def test_theory_holds_in_every_section_and_whatever_the_seed(topic: str) -> None:
    for seed in (0, 1):
        claims = SECTIONS[topic](Config(training=False, seed=seed))
        assert claims
        wrong = {c.name: [n.quantity for n in c.numbers if not n.agrees] for c in claims if c.verdict == "fails"}
        assert not wrong
        assert all(c.topic == topic and c.measured and c.theory for c in claims)


def test_names_are_unique_and_the_same_seed_gives_the_same_numbers() -> None:
    quick = [claim for topic in ("formula", "scaling", "floating-point") for claim in SECTIONS[topic](QUICK)]
    again = [claim for topic in ("formula", "scaling", "floating-point") for claim in SECTIONS[topic](QUICK)]
    assert len({claim.name for claim in quick}) == len(quick)
    for a, b in zip(quick, again, strict=True):
        assert [n.value for n in a.numbers] == [n.value for n in b.numbers]


# Closed forms ---------------------------------------------------------------------------------------------------------


def test_largest_of_n_normal_scores() -> None:
    expected, _ = integrate.quad(lambda x: x * 100 * norm.pdf(x) * norm.cdf(x) ** 99, -8, 8)
    assert scaling._mean_of_largest(100) == pytest.approx(expected, abs=1e-6)
    assert scaling._mean_of_largest(2) == pytest.approx(1 / math.sqrt(math.pi), abs=1e-6)


def test_common_numbers_at_width_64_are_imprecise() -> None:
    claim = scaling.said(0)
    assert claim.verdict == "imprecise"
    assert value(claim, "largest logit, unscaled") == pytest.approx(20.06, abs=0.4)  # 8 × 2.508, not 24
    assert value(claim, "e⁸ / e⁻⁸") == pytest.approx(8.886, abs=1e-3)


def test_jacobian_norm_of_softmax_is_that_of_autograd() -> None:
    sigma = np.array([0.9, 0.05, 0.05])
    logits = torch.tensor(np.log(sigma))
    jacobian = torch.autograd.functional.jacobian(lambda x: x.softmax(-1), logits)
    assert saturation._jacobian_norm(sigma) == pytest.approx(float(jacobian.norm()))
    assert saturation._closed_form(0.1, 2) == pytest.approx(float(jacobian.norm()))


def test_distance_from_the_convex_hull() -> None:
    square = np.array([[0.0, 0.0], [0.0, 1.0], [1.0, 0.0], [1.0, 1.0]])
    assert formula._distance_from_hull(np.array([0.2, 0.7]), square) == pytest.approx(0, abs=1e-9)
    assert formula._distance_from_hull(np.array([0.5, 1.25]), square) == pytest.approx(0.25)


def test_symmetric_scores_cannot_hold_a_cycle_and_two_matrices_can() -> None:
    loss, _ = formula._learn_cycle(3, shared=True)
    assert loss >= math.log(2) - 1e-9
    loss, right = formula._learn_cycle(3, shared=False)
    assert loss < 0.01
    assert right == 3


def test_taylor_rows_are_the_polynomials() -> None:
    scores = torch.randn(5, 7, dtype=torch.float64)
    polynomial = np.clip(1 + scores.numpy() + scores.numpy() ** 2 / 2, 0, None)
    rows = polynomial / polynomial.sum(-1, keepdims=True)
    expected = np.abs(rows - softmax(scores.numpy(), -1)).sum(-1).mean() / 2
    assert kernels._taylor_error(scores, 2) == pytest.approx(expected)


def test_orthogonal_features_are_better_than_independent_ones() -> None:
    errors = {kind: np.mean([kernels._kernel_error(s, 16, 16, kind) ** 2 for s in range(40)]) for kind in (True, False)}
    assert errors[True] < errors[False]


def test_pairs_of_a_window_are_those_of_the_mask() -> None:
    i, j = np.arange(50)[:, None], np.arange(50)
    assert cost.pairs_of(50, 8, 3) == ((j <= i) & ((i - j < 8) | (j < 3))).sum()


def test_memory_is_counted_as_it_is_held() -> None:
    with cost._Held() as held:
        kept = torch.zeros(1000)
        for _ in range(5):
            torch.ones(500)
        kept.add_(1)
    assert held.peak == 4 * 1500
    assert held.now == 4 * 1000


def test_exp_overflows_where_the_types_say() -> None:
    assert floating_point._largest_finite(np.float32) == pytest.approx(88.722, abs=1e-2)
    assert floating_point._largest_finite(np.float16) == pytest.approx(11.09, abs=1e-2)
    assert not floating_point._naive_breaks(88.0, np.float32)
    assert floating_point._naive_breaks(89.0, np.float32)


def test_batch_norm_is_what_depends_on_the_batch() -> None:
    assert value(depth.normalisation(0), "largest change, LayerNorm") == 0
    assert value(depth.normalisation(0), "largest change, BatchNorm") > 0.05


# Broken on purpose ----------------------------------------------------------------------------------------------------


def test_a_definition_without_its_scale_is_found_out(monkeypatch: pytest.MonkeyPatch) -> None:
    exact = formula._definition
    monkeypatch.setattr(formula, "_definition", lambda q, k, v, causal: exact(q * 1.001, k, v, causal))
    assert formula.three_lines(0).verdict == "fails"


def test_positions_that_do_nothing_are_found_out(monkeypatch: pytest.MonkeyPatch) -> None:
    built = positions._untrained
    monkeypatch.setattr(positions, "_untrained", lambda kind, d_vocab, seed: built("none", d_vocab, seed))
    assert positions.permutation(0).verdict == "fails"


# Training, one seed each ----------------------------------------------------------------------------------------------


def test_a_mask_after_the_softmax_leaks_and_one_before_it_does_not() -> None:
    floor = math.log(floating_point.VOCABULARY)
    assert floating_point._train_leaky(7, "before") > floor - 0.01
    assert floating_point._train_leaky(7, "after") < floor / 2


def test_recall_is_learned_by_content() -> None:
    task = Recall(keys=8, values=4, pairs=6, batch=32, seed=5)
    tokens, targets = task(0)
    keys, answers = tokens[:, :-1] // task.values, tokens[:, :-1] % task.values
    asked = tokens[:, -1:] - task.keys * task.values
    assert (keys.sort(-1).values.diff(dim=-1) > 0).all()
    assert (answers[keys == asked] == targets[:, -1]).all()
    model, losses = fit(
        task, steps=250, seed=5, d_vocab=task.d_vocab, d_model=64, n_layers=1, n_heads=1, positions="none"
    )
    assert np.mean(losses[-10:]) < losses[0] / 2
    assert score(model, task).accuracy > 0.7


@pytest.mark.parametrize("task", [look_back(3, 20, offset=4), two_relations(3)[0]])
def test_tasks_depend_on_seed_and_step_alone(task: Callable[[int], tuple[torch.Tensor, torch.Tensor]]) -> None:
    for first, second in zip(task(4), task(4), strict=True):
        assert torch.equal(first, second)
    assert not torch.equal(task(4)[0], task(5)[0])


def test_two_relations_ask_for_the_ordered_pair() -> None:
    task, d_vocab = two_relations(1, keys=5, values=6)
    tokens, targets = task(0)
    assert tokens.max() < d_vocab
    pairs, query = tokens[:, :-1], tokens[:, -1] - 30
    for row, asked, target in zip(pairs, query, targets[:, -1], strict=True):
        held = {int(token) // 6: int(token) % 6 for token in row}
        assert target == held[int(asked) // 5] * 6 + held[int(asked) % 5]


@pytest.mark.long
@pytest.mark.parametrize("topic", list(SECTIONS))
def test_trained_claims_hold(topic: str) -> None:
    assert not [claim.name for claim in SECTIONS[topic](Config(seed=100)) if claim.verdict == "fails"]


# On a model -----------------------------------------------------------------------------------------------------------


def test_scores_of_a_model_against_an_eager_computation() -> None:
    model = load("tiny-2l")
    tokens = torch.randint(1, model.d_vocab or 0, (2, 20), generator=torch.Generator().manual_seed(0))
    run = model.run(tokens, probes=[on_model.ScoreDeviation(first_position=4)], keep="qk")
    for site in model.sites:
        trace = run.traces[site.name]
        key = trace.key.repeat_interleave(trace.query.shape[1] // trace.key.shape[1], 1)
        scores = (trace.query @ key.mT * trace.scale).double()
        expected = torch.stack([scores[:, :, i, : i + 1].std(-1) for i in range(4, 20)], -1).mean(-1)
        torch.testing.assert_close(run.readings(0)[site.name].values, expected, rtol=1e-5, atol=1e-5)


def test_random_tokens_are_not_called_text_and_claims_on_a_model_name_it() -> None:
    made = on_model.tables(load("tiny-2l"), QUICK, Workspace())
    assert set(made["heads"]["data"]) == {"repeated"}
    named = dict(zip(made["claims"]["claim"], made["claims"]["data"], strict=True))
    assert named["features-on-heads"] == named["trained-deviation"] == "tiny-2l"


def test_scale_of_a_model_is_edited_around_its_own() -> None:
    model = load("tiny-2l")
    text = on_model._text(model, QUICK, Workspace())
    assert text is not None
    claim = on_model.scale(model, text, 0.5)
    assert value(claim, "change of the loss at α = 0.5") == 0
    heads = {(site.name, h): 0.8 for site in model.sites for h in range(site.n_heads)}
    plain = model.token_loss(text.tokens).double().nanmean()
    edited = model.token_loss(text.tokens, edits=[edits.ScaleExponent(heads)]).double().nanmean()
    assert value(claim, "change of the loss at α = 0.8") == pytest.approx(float(edited - plain), abs=1e-6)


def test_equal_heads_have_one_subspace() -> None:
    model = load("tiny-2l")
    found = subspace_overlaps(model, "W_V")
    assert ((found > 0) & (found < 1)).all()
    weights = model.head_weights(0).W_V
    with torch.no_grad():
        weights[1:] = weights[:1].clone()
    assert subspace_overlaps(model, "W_V")[0] == pytest.approx(1)


def test_settings_that_mean_nothing_are_refused() -> None:
    refused: list[dict[str, Any]] = [{"topics": ("formulas",)}, {"topics": ()}, {"seeds": 2}, {"tokens": 4}]
    for wrong in refused:
        with pytest.raises(ValueError, match=r"topics|seeds|tokens"):
            Config(**wrong)


def test_heads_cost_counts_the_projections() -> None:
    claim = heads.cost()
    assert value(claim, "softmax weights, 16 heads over one, said") == 16
    assert claim.verdict == "imprecise"
