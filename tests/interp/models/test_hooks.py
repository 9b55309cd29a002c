"""Hook points: their names, their values against transformers' own tensors and TransformerLens's hooks, and writing."""

from functools import cache
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.testing import assert_close

import interp
from interp.attention import edits
from interp.errors import UserError
from tests import eager, families
from tests.families import FAMILIES, load, make

TOKENS = families.tokens(2, 11)
ROTARY = ["llama", "mistral", "gemma2", "gemma3", "gpt_neox", "qwen3", "gpt_oss", "gptj", "modernbert"]


@cache
def pair(family: str) -> tuple[Any, Any]:
    module = make(family)
    twin = eager.untouched(module)
    return load(module), twin


def given(family: str) -> dict[str, Any]:
    return families.example(family, length=11)


def seen(model: interp.HookedModel, names: list[str], family: str) -> dict[str, Tensor]:
    """What hooks at some points are given."""
    kept: dict[str, Tensor] = {}
    hooks = {name: lambda tensor, hook: kept.update({hook.name: tensor.detach().clone()}) for name in names}
    model.run(**given(family), hooks=hooks)
    return kept


def output(run: Any) -> Tensor:
    return run.logits if run.logits is not None else run.output.last_hidden_state


# Names ----------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("family", FAMILIES)
def test_every_hook_point_fires(family: str) -> None:
    model, _ = pair(family)
    names = model.hook_points()
    kept = seen(model, names, family)
    assert list(dict.fromkeys(names)) == names
    assert set(kept) == set(names)
    for site in model.sites:
        shapes = {point: kept[f"{site.name}.{point}"].shape for point in ("hook_z", "hook_pattern")}
        length = kept[f"{site.name}.hook_pattern"].shape[2]
        assert shapes["hook_z"] == (2, length, site.n_heads, site.d_head)
        assert shapes["hook_pattern"][:2] == (2, site.n_heads)
        for point, n_heads in (("hook_q", site.n_heads), ("hook_k", site.n_kv_heads), ("hook_v", site.n_kv_heads),
                               ("hook_rot_q", site.n_heads), ("hook_rot_k", site.n_kv_heads)):  # fmt: skip
            if f"{site.name}.{point}" in kept:
                assert kept[f"{site.name}.{point}"].shape[2:] == (n_heads, site.d_head)
        rotated = {f"{site.name}.hook_rot_q", f"{site.name}.hook_rot_k"}
        assert (rotated <= set(names)) is (family in ROTARY)
        core = family not in families.OWN_SOFTMAX
        assert (f"{site.name}.hook_v" in names) is core
        fused = family in ("gpt_neox", "modernbert", *families.OWN_SOFTMAX)
        assert (f"{site.name}.hook_q" in names) is (not fused)


def test_unknown_points_say_what_there_is() -> None:
    model, _ = pair("gpt_neox")
    with pytest.raises(
        UserError,
        match=r"no hook_q at blocks.0.attn: a fused projection.*\(model.bridge splits them\); it has hook_rot_q",
    ):
        model.run(TOKENS, hooks={"blocks.0.attn.hook_q": print})
    with pytest.raises(UserError, match=r"there is no hook_result at blocks.0.attn; it has hook_rot_q, .*hook_pattern"):
        model.run(TOKENS, hooks={"blocks.0.attn.hook_result": print})
    with pytest.raises(UserError, match=r"no hook point 'blocks.9.attn.hook_z'; the sites are blocks.0.attn, blocks.1"):
        model.run(TOKENS, hooks={"blocks.9.attn.hook_z": print})
    bloom, _ = pair("bloom")
    with pytest.raises(UserError, match=r"there is no hook_k at blocks.0.attn.*it has hook_z, hook_pattern"):
        bloom.run(TOKENS, hooks={"blocks.0.attn.hook_k": print})


# Values ---------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("family", ["llama", "gpt2", "bert", "opt", "t5", "bart", "vit", "bloom", "gpt_neox", "gptj"])
def test_the_residual_stream_is_the_models_hidden_states(family: str) -> None:
    model, twin = pair(family)
    names = {"tokens": "input_ids", "decoder_tokens": "decoder_input_ids"}
    with torch.no_grad():
        own = twin(**{names.get(k, k): v for k, v in given(family).items()}, output_hidden_states=True)
    stacks = {"": own.get("hidden_states"), "encoder_": own.get("encoder_hidden_states"),
              "decoder_": own.get("decoder_hidden_states")}  # fmt: skip
    kept = seen(model, [name for name in model.hook_points() if "resid" in name], family)
    n = 0
    for prefix, states in stacks.items():
        for layer, state in enumerate(states or []):
            block = f"{prefix}blocks.{layer}"
            if f"{block}.hook_resid_pre" in kept:
                assert_close(kept[f"{block}.hook_resid_pre"], state, rtol=1e-5, atol=1e-5)
                n += 1
            # the last hidden state is after the final norm, so the last block's output is not among them
            if layer > 0 and layer < len(states) - 1:
                assert_close(kept[f"{prefix}blocks.{layer - 1}.hook_resid_post"], state, rtol=1e-5, atol=1e-5)
    assert n == len(kept) / 2


@pytest.mark.parametrize("family", ["llama", "gemma3", "qwen3", "opt", "bert", "t5", "bart", "gpt_oss", "gptj"])
def test_queries_and_keys_are_what_the_projections_write(family: str) -> None:
    model, twin = pair(family)
    found: dict[str, Tensor] = {}
    handles = []
    for site in model.sites:
        module = twin.get_submodule(site.path)
        projection = {"hook_q": ("q_proj", "query", "q"), "hook_k": ("k_proj", "key", "k"),
                      "hook_v": ("v_proj", "value", "v")}  # fmt: skip
        for point, children in projection.items():
            child = next(getattr(module, name) for name in children if hasattr(module, name))
            handles.append(child.register_forward_hook(
                lambda m, args, out, name=f"{site.name}.{point}": found.update({name: out})))  # fmt: skip
    names = {"tokens": "input_ids", "decoder_tokens": "decoder_input_ids"}
    with torch.no_grad():
        twin(**{names.get(k, k): v for k, v in given(family).items()})
    for handle in handles:
        handle.remove()
    kept = seen(model, list(found), family)
    for name, value in found.items():
        assert_close(kept[name].flatten(-2), value, rtol=1e-5, atol=1e-5, msg=lambda m, n=name: f"{n}: {m}")


def bridge_of(family: str) -> Any:
    from transformer_lens.model_bridge.sources import build_bridge_from_module

    twin = eager.untouched(pair(family)[1])
    return build_bridge_from_module(twin, type(twin).__name__, hf_config=twin.config, tokenizer=None)


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("family", ["llama", "gpt2", "qwen3"])
def test_values_are_those_of_transformer_lens(family: str) -> None:
    model, _ = pair(family)
    _, cache_of_bridge = bridge_of(family).run_with_cache(TOKENS)
    names = [name for name in model.hook_points() if name in cache_of_bridge]
    points = {name.rpartition(".")[2] for name in names}
    rotated = set() if family == "gpt2" else {"hook_rot_q", "hook_rot_k"}
    assert (
        points
        == {"hook_q", "hook_k", "hook_v", "hook_z", "hook_pattern", "hook_resid_pre", "hook_resid_post"} | rotated
    )
    for name, value in seen(model, names, family).items():
        expected = cache_of_bridge[name]
        if family == "qwen3" and name.endswith(("hook_rot_q", "hook_rot_k")):
            expected = expected.reshape(value.shape)
        assert_close(value, expected, rtol=1e-5, atol=1e-5, msg=lambda m, n=name: f"{n}: {m}")


# Writing --------------------------------------------------------------------------------------------------------------


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("family", ["llama", "gpt2"])
def test_writing_does_what_it_does_in_transformer_lens(family: str) -> None:
    model, _ = pair(family)
    bridge = bridge_of(family)
    plain = model.run(TOKENS).logits
    for point in ("hook_q", "hook_k", "hook_v", "hook_z"):

        def half(tensor: Tensor, hook: Any) -> Tensor:
            tensor = tensor.clone()
            tensor[:, :, 1] *= 0.5
            return tensor

        name = f"blocks.1.attn.{point}"
        expected = bridge.run_with_hooks(TOKENS, fwd_hooks=[(name, half)])
        found = model.run(TOKENS, hooks={name: half}).logits
        assert_close(found, expected, rtol=1e-5, atol=2e-5, msg=lambda m, n=name: f"{n}: {m}")
        assert (found - plain).abs().max() > 1e-3


@pytest.mark.parametrize("family", ["llama", "gpt2", "bert", "bloom", "t5"])
def test_writing_at_every_point_changes_the_output(family: str) -> None:
    model, _ = pair(family)
    plain = output(model.run(**given(family)))
    for name in model.hook_points():
        if "pattern" in name:
            continue
        changed = output(
            model.run(**given(family), hooks={name: lambda x, hook: x * torch.linspace(0.5, 1.5, x.shape[-1])})
        )
        assert (changed - plain).abs().max() > 1e-4, name
    assert torch.equal(output(model.run(**given(family))), plain)


@pytest.mark.parametrize("family", ["llama", "bert", "bloom", "mistral"])
def test_patterns_are_written_a_block_of_rows_at_a_time(family: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Row 7 of head 1 made uniform through its block; also when written in place without returning anything."""
    from interp.attention import blocked

    monkeypatch.setitem(blocked.BLOCK_BYTES, "cpu", 1)
    monkeypatch.setitem(blocked.TALL_BYTES, "cpu", 1)
    model, _ = pair(family)
    name = f"{model.sites[1].name}.hook_pattern"
    blocks: list[tuple[int, int, int, int]] = []

    def write(pattern: Tensor, hook: Any) -> None:
        block = hook.block
        blocks.append((block.start, block.stop, block.low, block.high))
        assert pattern.shape[2:] == (block.stop - block.start, block.high - block.low)
        if block.start <= 9 < block.stop:
            row = pattern[:, 1, 9 - block.start]
            row.copy_((row > 0) / (row > 0).sum(-1, keepdim=True))

    found = model.run(TOKENS, hooks={name: write}).logits
    assert [b[:2] for b in blocks] == [(0, 8), (8, 11)]
    uniform = torch.tensor([0.0] * 11)
    keys = slice(0, 10) if family != "bert" else slice(0, 11)
    keys = slice(3, 10) if family == "mistral" else keys
    uniform[keys] = 1 / (keys.stop - keys.start)
    expected = model.run(TOKENS, edits=[edits.ReplaceRows({(1, 1): ([9], uniform[None])})]).logits
    assert_close(found, expected, rtol=1e-5, atol=1e-5)


def test_hooks_of_a_wrong_shape_are_refused() -> None:
    model, _ = pair("llama")
    for point in ("hook_q", "hook_rot_k", "hook_z", "hook_pattern"):
        with pytest.raises(ValueError, match=rf"the hook at blocks.0.attn.{point} returned"):
            model.run(TOKENS, hooks={f"blocks.0.attn.{point}": lambda x, hook: x[:, :1]})
    assert model.run(TOKENS).logits.isfinite().all()


def test_hooks_nest_and_act_on_calls_and_generation() -> None:
    model, _ = pair("llama")
    calls: list[str] = []
    name = "blocks.1.attn.hook_z"

    def double(z: Tensor, hook: Any) -> Tensor:
        calls.append("double")
        return 2 * z

    def halve(z: Tensor, hook: Any) -> Tensor:
        calls.append("halve")
        return z / 2

    plain = model.run(TOKENS).logits
    with model.hooks({name: double}):
        doubled = model(TOKENS).logits
        with model.hooks({name: halve}):
            assert_close(model(TOKENS).logits, plain, rtol=1e-6, atol=1e-6)
        assert torch.equal(model.run(TOKENS).logits, doubled)
    assert calls == ["double", "double", "halve", "double"]
    gate = edits.GateHeads({(1, head): 2.0 for head in range(6)})
    with model.edit(gate):
        expected = model.generate(TOKENS, max_new_tokens=5, do_sample=False)
    with model.hooks({name: double}):
        assert torch.equal(model.generate(TOKENS, max_new_tokens=5, do_sample=False), expected)


def test_a_hook_names_its_layer_as_transformer_lens_does() -> None:
    model, _ = pair("llama")
    layers: list[int] = []
    model.run(TOKENS, hooks={"blocks.2.attn.hook_z": lambda z, hook: layers.append(hook.layer())})
    assert layers == [2]
