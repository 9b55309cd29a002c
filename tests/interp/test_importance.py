"""Importance of heads against autograd through the untouched transformers model, exact ablations, and planted heads."""

from typing import Any, cast

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import interp
from interp import HookedModel
from interp.ablation import Batch, ablation_effects, single_heads
from interp.attention.edits import GateHeads, ReplaceZ
from interp.errors import UserError
from interp.importance import (
    first_order,
    gate_gradients,
    integrated,
    michel,
    normalised_by_site,
    random_order,
    weight_norm,
)
from interp.models.planted import plant, twins
from tests.families import example, make

EAGER = 1e-6  # transformers' eager attention takes its softmax in float32, whatever the model's dtype
OUTPUTS = {
    "llama": "self_attn.o_proj",
    "gpt2": "attn.c_proj",
    "bloom": "self_attention.dense",
    "gpt_neox": "attention.dense",
}


def tokens(n: int = 4, length: int = 11, seed: int = 0) -> Tensor:
    return torch.randint(3, 97, (n, length), generator=torch.Generator().manual_seed(seed))


def loss(model: HookedModel, batch: Batch) -> Tensor:
    return model.token_loss(**batch).nanmean(1)


def score(model: HookedModel, batch: Batch) -> Tensor:
    return cast(Tensor, model.run(**batch).logits).logsumexp(-1).mean(1)


def hooked(family: str, seed: int = 0) -> HookedModel:
    return interp.load(make(family, seed, torch.float64), verify=False)


def derivative_of_plain(family: str, ids: Tensor) -> np.ndarray:
    """∂ loss / ∂ gate [sequence, head], gates being multiplied onto what the output projections read; by autograd."""
    plain: Any = make(family, dtype=torch.float64)
    plain.set_attn_implementation("eager")
    projections = [m for name, m in plain.named_modules() if name.endswith(OUTPUTS[family])]
    n_heads = plain.config.num_attention_heads
    gates = [torch.ones(len(ids), 1, n_heads, 1, dtype=torch.float64, requires_grad=True) for _ in projections]
    for projection, gate in zip(projections, gates, strict=True):
        projection.register_forward_pre_hook(
            lambda _, given, gate=gate: ((given[0].unflatten(-1, (n_heads, -1)) * gate).flatten(-2), *given[1:])
        )
    logits = plain(input_ids=ids).logits[:, :-1]
    value = nn.functional.cross_entropy(logits.transpose(1, 2), ids[:, 1:], reduction="none").mean(1)
    return torch.cat([g.flatten(1) for g in torch.autograd.grad(value.sum(), gates)], 1).numpy()


@pytest.mark.parametrize("family", list(OUTPUTS))
def test_gradients_are_those_of_gates_at_the_output_projection(family: str) -> None:
    ids = tokens()
    found = gate_gradients(hooked(family), [{"tokens": ids[:3]}, {"tokens": ids[3:]}], loss)
    expected = derivative_of_plain(family, ids)
    assert np.abs(expected).max() > 1e-3
    np.testing.assert_allclose(found.gradient, expected, rtol=0, atol=EAGER)


def test_michel_takes_absolute_values_per_sequence_and_normalises_by_layer() -> None:
    ids = tokens()
    table = michel(hooked("llama"), [{"tokens": ids}], loss)
    expected = np.abs(derivative_of_plain("llama", ids)).mean(0)
    np.testing.assert_allclose(table["derivative"], expected, rtol=0, atol=EAGER)
    by_layer = expected.reshape(3, 6)
    np.testing.assert_allclose(
        table["importance"], (by_layer / np.linalg.norm(by_layer, axis=1, keepdims=True)).ravel(), rtol=0, atol=1e-6
    )
    of_batch = np.abs(derivative_of_plain("llama", ids).mean(0))
    assert np.abs(of_batch - expected).max() > 1e-4  # what the mean of signed derivatives would have given
    assert list(table.columns[:4]) == ["site", "layer", "head", "importance"]


@pytest.mark.parametrize("side", ["left", "right"])
def test_padding_takes_no_part(side: str) -> None:
    model, ids = hooked("llama"), tokens(3)
    pad = torch.zeros(3, 4, dtype=torch.long)
    parts = [pad, ids] if side == "left" else [ids, pad]
    valid = torch.cat([torch.full_like(part, part is ids, dtype=torch.bool) for part in parts], 1)
    plain = michel(model, [{"tokens": ids}], loss)
    padded = michel(model, [{"tokens": torch.cat(parts, 1), "valid": valid}], loss)
    np.testing.assert_allclose(padded["importance"], plain["importance"], rtol=0, atol=1e-9)
    np.testing.assert_array_equal(padded["active"], plain["active"])
    assert set(plain["active"]) == {ids.shape[1] - 1}  # the last token predicts nothing that is measured


def test_a_layer_of_which_few_positions_are_read_is_scaled_up() -> None:
    """A classifier reads one position, so in the last layer one query in each sequence is active."""
    model = hooked("bert")
    ids = tokens(2)
    table = michel(model, [{"tokens": ids}], lambda m, b: cast(Tensor, m.run(**b).logits)[:, 0].logsumexp(-1))
    assert table["active"].tolist() == [ids.shape[1]] * 4 + [1] * 4
    found = gate_gradients(model, [{"tokens": ids}], lambda m, b: cast(Tensor, m.run(**b).logits)[:, 0].logsumexp(-1))
    by_hand = np.abs(found.gradient).mean(0).reshape(2, 4) * np.array([[1.0], [ids.shape[1]]])
    by_hand /= np.linalg.norm(by_hand, axis=1, keepdims=True)
    np.testing.assert_allclose(table["importance"], by_hand.ravel(), rtol=0, atol=1e-9)


@pytest.mark.parametrize("family", ["t5", "bart"])
def test_every_kind_of_site_has_its_own_norm(family: str) -> None:
    table = michel(hooked(family), [example(family)], score)
    assert set(table["site"].str.split(".").str[-1]) == {"attn", "self_attn", "cross_attn"}
    np.testing.assert_allclose(table.groupby("site")["importance"].apply(lambda x: (x**2).sum()), 1.0)


def test_first_order_is_the_slope_of_the_ablation() -> None:
    """With the replacement nearly the output itself, an ablation is its own first order."""
    model, ids = hooked("gpt2"), tokens()
    z = model.run(ids, keep="z").z
    small = 1e-5
    other = {name: kept * (1 - small) for name, kept in z.items()}
    found = gate_gradients(model, [{"tokens": ids}], loss, [other])
    by_zero = gate_gradients(model, [{"tokens": ids}], loss)
    np.testing.assert_allclose(first_order(found), small * first_order(by_zero), rtol=1e-9, atol=1e-15)
    with model.edit(GateHeads({(1, 2): 1 - small})):
        change = (loss(model, {"tokens": ids}) - torch.from_numpy(by_zero.values)).numpy()
    np.testing.assert_allclose(first_order(found)[:, 6 + 2], change, rtol=1e-3, atol=1e-10)


@pytest.mark.parametrize("together", ["model", "site"])
def test_integrated_estimates_add_up_to_the_joint_ablation(together: Any) -> None:
    model, batch = hooked("gpt2"), {"tokens": tokens()}
    found = integrated(model, [batch], loss, steps=40, together=together)
    whole = [[head for (head,) in single_heads(model)]]
    sets = whole if together == "model" else [[h for h in whole[0] if h[0] == site.name] for site in model.sites]
    exact = ablation_effects(model, [batch], loss, sets).change[0]
    groups = np.split(found, len(sets), axis=1)
    np.testing.assert_allclose([g.sum(1) for g in groups], exact, rtol=0, atol=2e-3)
    assert np.abs(exact).max() > 0.1


def test_integrated_goes_to_the_replacement() -> None:
    model, ids = hooked("gpt2"), tokens()
    donor = model.run(tokens(seed=1), keep="z").z
    found = integrated(model, [{"tokens": ids}], loss, [donor], steps=40)
    with model.edit(ReplaceZ({(name, h): z[:, h] for name, z in donor.items() for h in range(z.shape[1])})):
        replaced = loss(model, {"tokens": ids})
    np.testing.assert_allclose(found.sum(1), (replaced - loss(model, {"tokens": ids})).numpy(), rtol=0, atol=2e-3)


def test_the_planted_head_is_first_and_its_twin_is_nothing() -> None:
    planted = plant(*twins(), gain=8.0)
    half = torch.randint(64, (6, 20), generator=torch.Generator().manual_seed(0))
    batch = {"tokens": torch.cat([half, half], 1)}
    table = michel(planted.model, [batch], lambda m, b: m.token_loss(**b)[:, 20:].mean(1))
    np.testing.assert_allclose(table["importance"], [1, 0, 1, 0], rtol=0, atol=1e-12)


def test_weight_norms_are_those_of_the_products() -> None:
    model = hooked("llama")
    table = weight_norm(model)
    for site in model.sites:
        weights: Any = site.weights()
        products = weights.for_query_heads(weights.W_V) @ weights.W_O
        mine = table[table["site"] == site.name]["weight_norm"]
        np.testing.assert_allclose(mine, products.detach().norm(dim=(-2, -1)), rtol=1e-10)


def test_random_orders_are_permutations_and_repeat() -> None:
    model = hooked("llama")
    first, again, other = (random_order(model, seed)["random"].tolist() for seed in (3, 3, 4))
    assert first == again != other
    assert sorted(first) == list(range(18))


def test_a_site_without_influence_has_importance_zero() -> None:
    table = michel(hooked("llama"), [{"tokens": tokens(2)}], lambda m, b: 0.0 * score(m, b))
    np.testing.assert_array_equal(table["importance"], 0.0)
    np.testing.assert_array_equal(normalised_by_site(table.assign(x=[3.0, 4, 0, 0, 0, 0] * 3), "x")[:3], [0.6, 0.8, 0])


@pytest.mark.parametrize(
    ("metric", "told"),
    [
        (lambda m, b: score(m, b) * float("nan"), "finite; got nan for sequence 0"),
        (lambda m, b: score(m, b).mean(), r"\[4\]; got \[\]"),
        (lambda m, b: 3.0, "got float"),
        (lambda m, b: score(m, {"tokens": b["tokens"]}), "no gradient"),
    ],
)
def test_metrics_that_are_none_are_refused(metric: Any, told: str) -> None:
    with pytest.raises(ValueError, match=told):
        michel(hooked("llama"), [{"tokens": tokens()}], metric)


def test_other_nonsense_is_refused() -> None:
    model, batch = hooked("llama"), {"tokens": tokens()}
    with pytest.raises(UserError, match="at least one batch"):
        michel(model, [], loss)
    with pytest.raises(ValueError, match="one for each of 1"):
        gate_gradients(model, [batch], loss, [{}, {}])
    with pytest.raises(ValueError, match="at least 1 step"):
        integrated(model, [batch], loss, steps=0)


def test_parameters_keep_no_gradient_and_the_model_is_as_before() -> None:
    model, batch = hooked("llama"), {"tokens": tokens()}
    before = loss(model, batch)
    michel(model, [batch], loss)
    assert all(p.grad is None for p in model.module.parameters())
    torch.testing.assert_close(loss(model, batch), before, rtol=0, atol=0)
