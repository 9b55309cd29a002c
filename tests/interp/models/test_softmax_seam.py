"""Models that compute their own attention: their softmax, and no other, is read and edited."""

import copy
import pickle
from functools import partial
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.testing import assert_close

from interp.attention import edits, probes
from tests import eager, families
from tests.families import OWN_SOFTMAX, hf, load, make
from tests.interp.models.test_huggingface import compare

TOKENS = families.tokens(2, 11)


@pytest.mark.parametrize("family", OWN_SOFTMAX)
def test_probes_see_the_pattern_after_edits_and_the_model_uses_it(family: str) -> None:
    model = load(make(family))
    read = [probes.SelectedRows(queries=range(11)), probes.Entropy()]
    run = model.run(TOKENS, probes=read, edits=[edits.Uniform(heads=[(0, 1)])])
    pattern = run.readings(0)["blocks.0.attn"].values
    uniform = torch.ones(11, 11).tril() / torch.arange(1, 12)[:, None]
    assert_close(pattern[:, 1], uniform.double().expand(2, -1, -1), rtol=0, atol=1e-6)
    assert_close(run.readings(1)["blocks.0.attn"].values[:, 1], torch.arange(1, 12).double().log().mean().expand(2))
    assert not torch.allclose(run.readings(0)["blocks.1.attn"].values, model.run(TOKENS, probes=read).values(0)[1])


@pytest.mark.parametrize("family", OWN_SOFTMAX)
@pytest.mark.parametrize("block", [1, 8 << 20])
def test_the_size_of_blocks_changes_nothing(family: str, block: int, monkeypatch: pytest.MonkeyPatch) -> None:
    from interp.attention import blocked

    model = load(make(family))
    chosen = [
        edits.Permute(heads=[(0, 1)]),
        edits.KnockOut(edges=[(9, 3)], heads=[(1, 2)]),
        edits.GateHeads({(1, 1): 0.5}),
    ]
    before = model.run(TOKENS, probes=probes.basic(), edits=chosen)
    for limit in (blocked.BLOCK_BYTES, blocked.TALL_BYTES):
        monkeypatch.setitem(limit, "cpu", block)
    after = model.run(TOKENS, probes=probes.basic(), edits=chosen)
    assert_close(after.logits, before.logits, rtol=1e-6, atol=1e-6)
    for number in range(5):
        assert_close(after.values(number), before.values(number), rtol=1e-6, atol=1e-6, equal_nan=True)


@pytest.mark.parametrize("family", OWN_SOFTMAX)
def test_several_edits_act_in_order(family: str) -> None:
    """Scores, then pattern, then gates; a temperature after a cut does not bring the cut edge back."""
    model = load(make(family))
    cut, flat = edits.KnockOut(edges=[(None, 0)], heads=[(0, 1)]), edits.Temperature({(0, 1): 1e6})
    read = [probes.SelectedRows(queries=range(11))]
    pattern = model.run(TOKENS, probes=read, edits=[cut, flat]).readings(0)["blocks.0.attn"].values[:, 1]
    keys = torch.arange(11)
    expected = ((keys > 0) & (keys <= keys[:, None])).double()
    expected = expected / expected.sum(-1, keepdim=True).clamp_min(1)
    assert_close(pattern.nan_to_num(), expected.expand(2, -1, -1), rtol=0, atol=1e-4)
    run = model.run(TOKENS, probes=[probes.MaxWeight()], edits=[cut])
    assert run.readings(0)["blocks.0.attn"].n.expand(2, 4)[:, 1].tolist() == [10, 10]  # row 0 may read nothing


def test_chance_of_patterns_that_the_model_builds() -> None:
    model = load(make("bloom"))
    run = model.run(TOKENS, probes=[probes.PositionMass(), probes.MaxWeight()])
    expected = (1 / torch.arange(1, 12)).double().mean()
    for site in model.sites:
        assert float(run.chance(0)[site.name].flatten()[0]) == pytest.approx(float(expected))
    masks = [mask for mask, _ in run.masks.values()]
    assert masks[0] is masks[1]


@pytest.mark.parametrize("family", OWN_SOFTMAX)
def test_padding_that_only_the_caller_knows_of(family: str) -> None:
    """Rows of padding are left out though the model's own softmax fills them."""
    model = load(make(family))
    valid = torch.arange(11) >= torch.tensor([[0], [4]])
    run = model.run(TOKENS, valid, probes=[probes.MaxWeight(), probes.PositionMass()])
    for site in model.sites:
        assert run.readings(0)[site.name].n.expand(2, 4).tolist() == [[11] * 4, [7] * 4]
        assert (run.readings(1)[site.name].values > 0).all()


class Other(nn.Module):
    """An attention module that also takes softmaxes that are none over keys."""

    def __init__(self, inner: nn.Module) -> None:
        super().__init__()
        self.inner = inner

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        nn.functional.softmax(torch.randn(2, 5, 11), dim=-1)
        torch.softmax(torch.randn(3), 0)
        torch.randn(2, 4, 11, 11).softmax(-1).sum()
        return self.inner(*args, **kwargs)


def test_softmaxes_outside_attention_modules_are_let_be() -> None:
    model = load(make("bloom"))
    for block in model.module.transformer.h:
        block.mlp = Other(block.mlp)
    run = model.run(TOKENS, probes=[probes.MaxWeight()])
    assert len(run.readings(0)) == 2


@pytest.mark.parametrize("spelling", ["functional", "torch", "method", "keyword"])
def test_every_spelling_of_softmax_is_seen(spelling: str, monkeypatch: pytest.MonkeyPatch) -> None:
    from transformers.models.mpt import modeling_mpt

    spelled = {
        "functional": nn.functional.softmax,
        "torch": torch.softmax,
        "method": lambda x, dim: x.softmax(dim),
        "keyword": lambda x, dim: torch.softmax(input=x, dim=dim),
    }[spelling]
    plain = load(make("mpt")).run(TOKENS, probes=probes.basic())
    softmax = nn.functional.softmax

    class Functional:
        def __getattr__(self, name: str) -> Any:
            return getattr(torch.nn.functional, name)

        softmax = staticmethod(spelled)

    class Modules:
        functional = Functional()

        def __getattr__(self, name: str) -> Any:
            return getattr(nn, name)

    monkeypatch.setattr(modeling_mpt, "nn", Modules())
    assert nn.functional.softmax is softmax
    run = load(make("mpt")).run(TOKENS, probes=probes.basic())
    for number in range(5):
        assert_close(run.values(number), plain.values(number), equal_nan=True)


def test_copies_and_pickles_are_plain() -> None:
    model = load(make("bloom"))
    expected = model.run(TOKENS).logits
    for twin in (copy.deepcopy(model.module), pickle.loads(pickle.dumps(model.module))):
        with model.edit(edits.Uniform()):
            assert torch.equal(twin(TOKENS).logits, expected)
        again = load(twin)
        assert len(again.run(TOKENS, probes=[probes.MaxWeight()]).readings(0)) == 2
    with model.edit(edits.Uniform()):
        assert not torch.equal(model.module(TOKENS).logits, expected)


def test_a_forward_that_was_replaced_before_is_kept() -> None:
    """As accelerate does it: a forward of the instance's own, around the class's."""
    module = make("bloom")
    calls: list[int] = []

    def around(forward: Any, *args: Any, **kwargs: Any) -> Any:
        calls.append(1)
        return forward(*args, **kwargs)

    for block in module.transformer.h:
        block.self_attention.forward = partial(around, block.self_attention.forward)
    model = load(module)
    calls.clear()
    run = model.run(TOKENS, probes=[probes.MaxWeight()])
    assert len(calls) == len(run.readings(0)) == 2


@pytest.mark.parametrize(
    ("kind", "config", "changed"),
    [
        ("GPTNeoForCausalLM", "GPTNeoConfig",
         {"num_layers": 2, "num_heads": 4, "attention_types": [[["global", "local"], 1]], "window_size": 5}),
        ("DebertaV2ForMaskedLM", "DebertaV2Config", {"relative_attention": True, "pos_att_type": ["c2p", "p2c"]}),
        ("MPNetForMaskedLM", "MPNetConfig", {}),
        ("FalconForCausalLM", "FalconConfig", {"alibi": True, "multi_query": False}),
    ],
)  # fmt: skip
def test_further_families_read_what_eager_says(kind: str, config: str, changed: dict[str, Any]) -> None:
    module = getattr(hf, kind)(getattr(hf, config)(**families.SIZES | changed))
    module = families.randomised(module).eval()
    twin = eager.untouched(module)
    model = load(module)
    assert {site.source for site in model.sites} == {"softmax"}
    valid = torch.arange(11) < torch.tensor([[11], [7]])
    compare(model, twin, {"tokens": TOKENS})
    compare(model, twin, {"tokens": TOKENS, "valid": valid})


def test_gates_reach_gradients_through_the_models_own_softmax() -> None:
    model = load(make("bloom", dtype=torch.float64))
    gate = torch.tensor(1.0, dtype=torch.float64, requires_grad=True)
    logits = torch.zeros(11, dtype=torch.float64, requires_grad=True)
    chosen = [edits.GateHeads({(0, 1): gate}), edits.AddLogits({(1, 2): logits})]
    model.run(TOKENS, edits=chosen, grad=True).logits.square().mean().backward()
    assert gate.grad is not None
    assert gate.grad.abs() > 1e-6
    assert isinstance(logits.grad, Tensor)
    assert logits.grad.abs().max() > 1e-7


def test_what_was_read_off_the_models_own_pattern_is_recorded_as_such() -> None:
    model = load(make("bloom"))
    model.run(TOKENS, probes=[probes.MaxWeight()])
    assert model.seam.engines == {"dense"}
    core = load(make("llama"))
    core.run(TOKENS, probes=[probes.MaxWeight()])
    assert core.seam.engines == {"blocked"}
