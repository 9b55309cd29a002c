"""The TransformerBridge of a hooked model: TransformerLens's tools on the core, eager where they ask for patterns."""

from functools import partial
from typing import Any

import pytest
import torch
from torch.testing import assert_close

import interp
from interp.attention import edits, probes
from interp.errors import UserError
from tests.families import make

TOKENS = torch.randint(10, 90, (2, 13), generator=torch.Generator().manual_seed(1))
ON_THE_CORE = ["llama", "mistral", "gemma3", "qwen3", "gpt2", "opt", "gptj", "bert"]
EAGER = ["gpt_neox", "bloom", "mpt", "t5"]


def keep(seen: dict[str, torch.Tensor], tensor: torch.Tensor, hook: Any) -> None:
    seen[hook.name] = tensor.clone()


def logits(model: interp.HookedModel) -> torch.Tensor:
    found = model.run(TOKENS).logits
    assert found is not None
    return found


@pytest.mark.parametrize("family", [*ON_THE_CORE, "gpt_neox", "bloom"])
def test_bridge_computes_what_the_model_computes(family: str) -> None:
    model = interp.load(make(family))
    assert_close(model.bridge(TOKENS), logits(model), rtol=0, atol=5e-5)


@pytest.mark.parametrize("family", ON_THE_CORE)
def test_the_core_runs_inside(family: str) -> None:
    model = interp.load(make(family))
    bridge = model.bridge
    assert model.info["bridge"]["eager"] == []
    assert len(model.info["bridge"]["core"]) == len(model.sites)
    with model.edit(edits.GateHeads({(0, 1): 0.0})):
        edited = bridge(TOKENS)
        assert_close(edited, logits(model), rtol=0, atol=5e-5)
    assert (edited - bridge(TOKENS)).abs().max() > 1e-3


@pytest.mark.parametrize("family", EAGER)
def test_eager_where_there_is_no_room_and_said_so(family: str) -> None:
    model = interp.load(make(family))
    assert model.bridge is model.bridge
    assert model.info["bridge"]["core"] == []
    assert len(model.info["bridge"]["eager"]) == len(model.sites)


@pytest.mark.parametrize("family", ["llama", "gpt2", "bert", "gemma3"])
def test_a_pattern_hook_switches_one_site_to_eager(family: str) -> None:
    model = interp.load(make(family))
    name = model.sites[1].name
    seen: dict[str, torch.Tensor] = {}
    out = model.bridge.run_with_hooks(TOKENS, fwd_hooks=[(f"{name}.hook_pattern", partial(keep, seen))])
    run = model.run(TOKENS, probes=[probes.SelectedRows(queries=range(TOKENS.shape[1]))])
    assert_close(seen[f"{name}.hook_pattern"].double(), run.readings(0)[name].values, rtol=0, atol=1e-5)
    assert_close(out, logits(model), rtol=0, atol=5e-5)
    assert model.info["bridge"]["switched"] == [name]


@pytest.mark.parametrize("family", ["llama", "gpt2"])
def test_editing_the_pattern_through_a_hook_acts(family: str) -> None:
    model = interp.load(make(family))

    def uniform(pattern: torch.Tensor, hook: object) -> torch.Tensor:
        allowed = (pattern > 0).to(pattern)
        pattern = pattern.clone()
        pattern[:, 2] = (allowed / allowed.sum(-1, keepdim=True))[:, 2]
        return pattern

    out = model.bridge.run_with_hooks(TOKENS, fwd_hooks=[("blocks.1.attn.hook_pattern", uniform)])
    expected = model.run(TOKENS, edits=[edits.Uniform(heads=[(1, 2)])]).logits
    assert_close(out, expected, rtol=0, atol=5e-5)


@pytest.mark.parametrize("family", ["llama", "gpt2", "bert"])
def test_ablation_through_hook_z_acts_on_the_core(family: str) -> None:
    model = interp.load(make(family))

    def ablate(z: torch.Tensor, hook: object) -> torch.Tensor:
        z = z.clone()
        z[:, :, 1] = 0.0
        return z

    out = model.bridge.run_with_hooks(TOKENS, fwd_hooks=[("blocks.1.attn.hook_z", ablate)])
    assert_close(out, model.run(TOKENS, edits=[edits.GateHeads({(1, 1): 0.0})]).logits, rtol=0, atol=5e-5)
    assert model.info["bridge"]["switched"] == []


def test_run_with_cache_gives_patterns() -> None:
    model = interp.load(make("llama"))
    _, cache = model.bridge.run_with_cache(TOKENS)
    run = model.run(TOKENS, probes=[probes.SelectedRows(queries=range(TOKENS.shape[1]))])
    for site, reading in run.readings(0).items():
        assert_close(cache[f"{site}.hook_pattern"].double(), reading.values, rtol=0, atol=1e-5)
    assert model.info["bridge"]["switched"] == [s.name for s in model.sites]


def test_padded_batch_through_the_eager_path() -> None:
    model = interp.load(make("llama"))
    valid = torch.ones_like(TOKENS, dtype=torch.bool)
    valid[1, 9:] = False
    seen: dict[str, torch.Tensor] = {}
    model.bridge.run_with_hooks(
        TOKENS,
        attention_mask=valid.long(),
        fwd_hooks=[("blocks.0.attn.hook_pattern", partial(keep, seen))],
    )
    run = model.run(TOKENS, valid, probes=[probes.SelectedRows(queries=range(9))])
    seen_rows = seen["blocks.0.attn.hook_pattern"][:, :, :9].double()
    assert_close(seen_rows, run.readings(0)["blocks.0.attn"].values, rtol=0, atol=1e-5)


def test_weights_are_shared_and_the_model_stays_as_it_was() -> None:
    model = interp.load(make("llama"))
    before = logits(model)
    bridge = model.bridge
    with torch.no_grad():
        model.module.get_submodule("model.layers.0.self_attn.q_proj").weight.mul_(1.5)  # type: ignore[operator]
    assert (logits(model) - before).abs().max() > 1e-4
    assert_close(bridge(TOKENS), logits(model), rtol=0, atol=5e-5)


def test_no_bridge_is_said_so() -> None:
    model = interp.load(make("distilbert"))
    with pytest.raises(UserError, match="TransformerLens makes no bridge for DistilBert"):
        _ = model.bridge


@pytest.mark.parametrize("family", ["gpt2", "llama", "gpt_neox"])
def test_a_bridge_of_ones_own_is_read_as_any_module(family: str) -> None:
    """One that TransformerLens made of a transformers model: it computes attention by hand, and is read there."""
    from transformer_lens.model_bridge.sources import build_bridge_from_module

    tokens = torch.randint(3, 97, (2, 9), generator=torch.Generator().manual_seed(0))
    rows = probes.SelectedRows(queries=range(9))
    expected = interp.load(make(family), verify=False).run(tokens, probes=[rows])
    module: Any = make(family)
    module.set_attn_implementation("eager")
    bridge = build_bridge_from_module(
        module, type(module).__name__, hf_config=module.config, tokenizer=None, model_name=family
    )
    model = interp.load(bridge, tokens)
    assert (model.d_vocab, model.is_causal) == (97, True)
    run = model.run(tokens, probes=[rows])
    for site, other in zip(run.sites, expected.sites, strict=True):
        assert_close(run.readings(0)[site.name].values, expected.readings(0)[other.name].values, rtol=0, atol=1e-5)


def test_a_hooked_models_own_bridge_is_read_through_that_model() -> None:
    model = interp.load(make("llama"), verify=False)
    with pytest.raises(UserError, match=r"belongs to a model that was hooked before.*through model"):
        interp.load(model.bridge, torch.zeros(2, 5, dtype=torch.long))
