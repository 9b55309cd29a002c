"""Per-head weights against what transformers' own modules compute."""

from itertools import product
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from transformers import AttentionInterface, AttentionMaskInterface, CLIPConfig, CLIPModel, SwinConfig, SwinModel
from transformers.integrations.sdpa_attention import sdpa_attention_forward
from transformers.masking_utils import sdpa_mask

from interp.models.projections import (
    AttentionModule,
    Declaration,
    UnknownAttentionError,
    attention_modules,
    head_weights,
    split_fused,
)
from tests.families import TINY_NAMES, tiny, tiny_inputs

#: Families that compute attention themselves, past transformers' attention functions.
OWN_ATTENTION = ("gpt_neo", "bloom", "falcon_grouped", "falcon_multi_query", "falcon_alibi", "mpt")
#: Families that turn queries and keys by position: at position 0 by nothing.
ROTARY = {
    "llama",
    "mistral",
    "gemma2",
    "gemma3",
    "gpt_neox",
    "qwen2",
    "qwen3",
    "gpt_oss",
    "gptj",
    "phi3",
    "phi",
    "cohere",
}
ROTARY |= {"olmo2", "granite", "modernbert"}


def assert_close(actual: Tensor, expected: Tensor) -> None:
    """Equal up to float32: some norms are computed in it in float64 models too, and experts run in nothing else."""
    torch.testing.assert_close(actual, expected, rtol=1e-5, atol=1e-5)


class Recorder:
    """What each attention module hands to transformers' attention function, and in which order."""

    def __init__(self) -> None:
        self.seen: dict[nn.Module, tuple[Tensor, Tensor, Tensor]] = {}

    def __call__(self, module: nn.Module, query: Tensor, key: Tensor, value: Tensor, *args: Any, **kwargs: Any) -> Any:
        self.seen[module] = query, key, value
        kwargs.pop("softcap", None)  # of the scores, and so of no interest here
        return sdpa_attention_forward(module, query, key, value, *args, **kwargs)


def record(model: Any) -> Recorder:
    """Run a model with a recorder in place of its attention function."""
    recorder = Recorder()
    AttentionInterface.register("recorder", recorder)
    AttentionMaskInterface.register("recorder", sdpa_mask)
    model.set_attn_implementation("recorder")
    with torch.no_grad():
        model(**tiny_inputs(model))
    return recorder


def module_inputs(model: Any, modules: dict[str, nn.Module]) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
    """What some modules read and write in one forward pass."""
    read: dict[str, Tensor] = {}
    written: dict[str, Tensor] = {}

    def keep(name: str) -> Any:
        def hook(module: nn.Module, args: tuple[Tensor, ...], output: Tensor) -> None:
            read[name], written[name] = args[0].detach().clone(), output.detach().clone()

        return hook

    handles = [module.register_forward_hook(keep(name)) for name, module in modules.items()]
    with torch.no_grad():
        model(**tiny_inputs(model))
    for handle in handles:
        handle.remove()
    return read, written


def by_head(x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    """[batch, head, position, d_head] from the stream."""
    made = x[:, None] @ weight
    return made if bias is None else made + bias[:, None]


def normed(attention: AttentionModule, made: Tensor, name: str) -> Tensor:
    """Through the module's own norm of queries or keys, where it has one."""
    norm = getattr(attention.module, name, None)
    if norm is None:
        return made
    if norm.weight.numel() == attention.d_head:
        return norm(made)
    flat = norm(made.transpose(1, 2).flatten(2))
    return flat.unflatten(2, (-1, attention.d_head)).transpose(1, 2)


@pytest.mark.parametrize("family", [name for name in TINY_NAMES if name not in OWN_ATTENTION])
def test_queries_keys_and_values_are_those_of_the_attention_function(family: str) -> None:
    model = tiny(family)
    attentions = attention_modules(model)
    recorder = record(model)
    assert list(recorder.seen) == [a.module for a in attentions], "not in the order of execution"
    reads = {f"{a.path} {role}": m for a in attentions for role, m in a.projections.items() if role != "output"}
    read, _ = module_inputs(model, reads)
    at = slice(0, 1) if family in ROTARY else slice(None)
    for attention in attentions:
        weights = head_weights(attention)
        query, key, value = recorder.seen[attention.module]
        of_query = read.get(f"{attention.path} query", read.get(f"{attention.path} fused"))
        of_key = read.get(f"{attention.path} key", read.get(f"{attention.path} fused"))
        assert of_query is not None
        assert of_key is not None
        # OPT scales queries itself and asks for a scale of 1
        scale = attention.d_head**-0.5 if family == "opt" else 1
        expected = normed(attention, by_head(of_query, weights.W_Q, weights.b_Q) * scale, "q_norm")
        assert_close(query[:, :, at], expected[:, :, at])
        expected = normed(attention, by_head(of_key, weights.W_K, weights.b_K), "k_norm")
        assert_close(key[:, :, at], expected[:, :, at])
        assert_close(value, by_head(of_key, weights.W_V, weights.b_V))


@pytest.mark.parametrize(
    ("family", "method"),
    [("bloom", "_reshape"), *((name, "_split_heads") for name in TINY_NAMES if name.startswith("falcon"))],
)
def test_fused_projections_are_cut_as_their_own_modules_do(family: str, method: str) -> None:
    model = tiny(family)
    attention = attention_modules(model)[-1]
    weights = head_weights(attention)
    cut: list[tuple[Tensor, ...]] = []
    own = getattr(attention.module, method)
    setattr(attention.module, method, lambda fused: cut.append(own(fused)) or cut[-1])
    read, _ = module_inputs(model, {"x": attention.projections["fused"]})
    # Bloom hands on [batch, head, position, d_head], Falcon [batch, position, head, d_head]
    query, key, value = (part if family == "bloom" else part.transpose(1, 2) for part in cut[0])
    assert_close(query, by_head(read["x"], weights.W_Q, weights.b_Q))
    for part, weight, bias in ((key, weights.W_K, weights.b_K), (value, weights.W_V, weights.b_V)):
        expected = by_head(read["x"], weight, bias)
        group = part.shape[1] // expected.shape[1]
        assert_close(part, expected.repeat_interleave(group, 1))


@pytest.mark.parametrize("family", ["mpt", "gpt_neo"])
def test_queries_and_keys_make_the_pattern(family: str) -> None:
    """Log-odds of two keys, for one query less those for another: a bias by distance is the same for both, and goes."""
    model = tiny(family)
    model.set_attn_implementation("eager")
    attention = attention_modules(model)[0]
    weights = head_weights(attention)
    reading = attention.projections.get("query") or attention.projections["fused"]
    read, _ = module_inputs(model, {"x": reading})
    with torch.no_grad():
        pattern = model(**tiny_inputs(model), output_attentions=True).attentions[0].log()
    query, key = (by_head(read["x"], w, b) for w, b in ((weights.W_Q, weights.b_Q), (weights.W_K, weights.b_K)))
    scores = query @ key.mT * (attention.d_head**-0.5 if family == "mpt" else 1)
    odds = pattern[:, :, 3:, :3] - pattern[:, :, 3:, :1]
    expected = scores[:, :, 3:, :3] - scores[:, :, 3:, :1]
    assert_close(odds - odds[:, :, :1], expected - expected[:, :, :1])


@pytest.mark.parametrize("family", TINY_NAMES)
def test_output_is_the_sum_over_heads_of_z_times_w_o(family: str) -> None:
    model = tiny(family)
    attentions = attention_modules(model)
    read, written = module_inputs(model, {a.path: a.projections["output"] for a in attentions})
    for attention in attentions:
        weights = head_weights(attention)
        z = read[attention.path].unflatten(-1, (attention.n_heads, attention.d_head))
        result = torch.einsum("bqhd,hdm->bqm", z, weights.W_O)
        assert_close(written[attention.path], result if weights.b_O is None else result + weights.b_O)


@pytest.mark.parametrize(
    ("family", "name"),
    # queries of grouped keys lie apart in Falcon's one parameter: W_Q is a copy there
    [pair for pair in product(TINY_NAMES, ["W_V", "W_K", "W_Q"]) if pair != ("falcon_grouped", "W_Q")],
)
def test_a_head_s_weights_are_views_and_move_that_head_alone(family: str, name: str) -> None:
    model = tiny(family)
    attention = attention_modules(model)[-1]
    weights = head_weights(attention)
    output = {"z": attention.projections["output"]}
    z = module_inputs(model, output)[0]["z"].unflatten(-1, (attention.n_heads, attention.d_head))
    touched = len(getattr(weights, name)) - 1
    with torch.no_grad():
        getattr(weights, name)[touched] *= -2
    moved = module_inputs(model, output)[0]["z"].unflatten(-1, (attention.n_heads, attention.d_head))
    changed = (moved - z).abs().amax((0, 1, 3)) > 1e-5
    group = 1 if name == "W_Q" else attention.n_heads // attention.n_kv_heads
    # OLMo 2 norms the queries of all heads together, and the keys
    together = family == "olmo2" and name != "W_V"
    assert changed.tolist() == [together or head // group == touched for head in range(attention.n_heads)]


def test_one_kv_head_is_read_by_all() -> None:
    model = tiny("falcon_multi_query")
    weights = head_weights(attention_modules(model)[0])
    assert weights.W_K.shape == (1, 32, 8)
    assert_close(weights.for_query_heads(weights.W_V), weights.W_V.expand(4, 32, 8))


def test_grouped_heads_read_kv_head_h_div_group() -> None:
    weights = head_weights(
        attention_modules(tiny("llama", hidden_size=48, num_attention_heads=6, num_key_value_heads=3))[0]
    )
    shared = weights.for_query_heads(weights.W_V)
    assert [int((weights.W_V == W).all((1, 2)).nonzero()) for W in shared] == [0, 0, 1, 1, 2, 2]


@pytest.mark.parametrize(
    ("family", "expected"),
    [
        ("t5", [("encoder", "self", 0), ("encoder", "self", 1)]),
        ("bart", [("encoder", "self", 0), ("encoder", "self", 1)]),
        ("opt", [("", "self", 0), ("", "self", 1)]),
        ("bert", [("", "self", 0), ("", "self", 1)]),
    ],
)
def test_layers_stacks_and_kinds(family: str, expected: list[tuple[str, str, int]]) -> None:
    if expected[0][0] == "encoder":
        expected = expected + [("decoder", kind, layer) for layer in (0, 1) for kind in ("self", "cross")]
    found = attention_modules(tiny(family))
    assert [(a.stack, a.kind, a.layer) for a in found] == expected


def test_cross_attention_with_keys_and_values_fused() -> None:
    model = tiny("gpt2", add_cross_attention=True)
    self_attention, cross = attention_modules(model)[:2]
    assert (self_attention.kind, cross.kind) == ("self", "cross")
    states = torch.randn(2, 3, 32, generator=torch.Generator().manual_seed(0)).double()
    recorder = Recorder()
    AttentionInterface.register("recorder", recorder)
    AttentionMaskInterface.register("recorder", sdpa_mask)
    model.set_attn_implementation("recorder")
    with torch.no_grad():
        model(input_ids=torch.tensor([[5, 6], [7, 8]]), encoder_hidden_states=states)
    weights = head_weights(cross)
    _, key, value = recorder.seen[cross.module]
    assert_close(key, by_head(states, weights.W_K, weights.b_K))
    assert_close(value, by_head(states, weights.W_V, weights.b_V))


def test_two_towers_and_stages() -> None:
    sizes = {"hidden_size": 32, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 32}
    text = sizes | {"vocab_size": 50, "bos_token_id": 1, "eos_token_id": 2}
    config = CLIPConfig(text_config=text, vision_config=sizes | {"image_size": 16, "patch_size": 8})
    assert [a.stack for a in attention_modules(CLIPModel(config))] == ["text_model", "vision_model"]
    swin = SwinModel(
        SwinConfig(image_size=32, patch_size=4, embed_dim=8, depths=[1, 2], num_heads=[2, 2], window_size=4)
    )
    assert [a.layer for a in attention_modules(swin)] == [0, 1, 2]


def test_a_wrapped_model_keeps_its_layers() -> None:
    wrapper = nn.ModuleDict({"policy": tiny("llama")})
    assert [(a.path, a.layer, a.stack) for a in attention_modules(wrapper)] == [
        ("policy.model.layers.0.self_attn", 0, ""),
        ("policy.model.layers.1.self_attn", 1, ""),
    ]


def test_what_lies_beside_the_projections_is_named() -> None:
    assert head_weights(attention_modules(tiny("qwen3"))[0]).unread == ("q_norm", "k_norm")
    assert head_weights(attention_modules(tiny("gpt_oss"))[0]).unread == ("sinks",)
    assert head_weights(attention_modules(tiny("t5"))[0]).unread == ("relative_attention_bias",)
    assert head_weights(attention_modules(tiny("llama"))[0]).unread == ()
    clipped = tiny("mpt", attn_config={"clip_qkv": 3.0})
    assert head_weights(attention_modules(clipped)[0]).clip == 3.0


class StrangeAttention(nn.Module):
    """Attention whose projection has a name and an order of its own."""

    def __init__(self, d_model: int = 8, heads: int = 2) -> None:
        super().__init__()
        self.head_dim = d_model // heads
        self.mix = nn.Linear(d_model, 3 * d_model)
        self.back = nn.Linear(d_model, d_model)


def test_an_unknown_module_is_named_with_its_children_and_how_to_declare_them() -> None:
    model = nn.ModuleDict({"layers": nn.ModuleList([StrangeAttention()])})
    with pytest.raises(
        UnknownAttentionError, match=r"layers\.0 \(StrangeAttention\).*mix \(Linear 8→24\).*Declaration\("
    ):
        attention_modules(model)
    assert attention_modules(model, unknown="skip") == []


@pytest.mark.parametrize("layout", ["blocks", "grouped"])
def test_a_declaration_is_honoured(layout: Any) -> None:
    model = nn.ModuleDict({"layers": nn.ModuleList([StrangeAttention()])})
    declared = Declaration("back", fused="mix", layout=layout, classes=("StrangeAttention",))
    (attention,) = attention_modules(model, [declared])
    weights, rows = head_weights(attention), model["layers"][0].mix.weight  # type: ignore[index]
    key_of_head_1 = rows[12:16] if layout == "blocks" else rows[16:20]
    assert_close(weights.W_K[1], key_of_head_1.T)


def test_a_declaration_comes_before_what_is_known() -> None:
    model = tiny("gpt_neox")
    declared = Declaration("dense", fused="query_key_value", layout="blocks", classes=("GPTNeoXAttention",))
    known, other = (head_weights(attention_modules(model, given)[0]) for given in ((), (declared,)))
    assert_close(known.W_Q[0], other.W_Q[0])
    assert not torch.equal(known.W_Q[1], other.W_Q[1])


def test_a_declaration_must_be_whole() -> None:
    for wrong in ({"query": "q"}, {"fused": "qkv"}, {"query": "q", "key": "k", "value": "v", "fused": "x"}):
        with pytest.raises(Exception, match="a Declaration names output and either"):
            Declaration("o", **wrong)  # type: ignore[arg-type]


def test_gated_queries_are_refused() -> None:
    model = tiny("llama")
    model.model.layers[0].self_attn.q_proj = nn.Linear(32, 96)
    with pytest.raises(UnknownAttentionError, match=r"layers\.0\.self_attn .*4 heads of 12 .*'query': 96"):
        attention_modules(model)


def test_an_adapter_and_quantised_weights_are_refused() -> None:
    class Adapter(nn.Module):
        def __init__(self, base: nn.Linear) -> None:
            super().__init__()
            self.base = base

    model = tiny("llama")
    attention = model.model.layers[0].self_attn
    plain = attention.q_proj
    attention.q_proj = Adapter(plain)
    with pytest.raises(UnknownAttentionError, match=r"query projection .* is a Adapter, expected nn.Linear.*merge"):
        attention_modules(model)
    attention.q_proj = plain
    plain.weight = nn.Parameter(plain.weight.to(torch.int8), requires_grad=False)
    with pytest.raises(UnknownAttentionError, match="quantised"):
        head_weights(attention_modules(model)[0])


def test_modules_that_cannot_be_read_are_listed_where_the_others_are_wanted() -> None:
    model = tiny("llama")
    attention = model.model.layers[0].self_attn
    attention.q_proj = nn.Sequential(attention.q_proj)
    reasons: dict[str, UnknownAttentionError] = {}
    (other,) = attention_modules(model, unreadable=reasons)
    assert (other.path, other.layer) == ("model.layers.1.self_attn", 1)
    assert list(reasons) == ["model.layers.0.self_attn"]
    assert "is a Sequential, expected nn.Linear" in str(reasons["model.layers.0.self_attn"])


def test_torchs_own_attention_is_named_and_not_passed_over() -> None:
    model = tiny("llama")
    model.extra = nn.MultiheadAttention(32, 4)
    with pytest.raises(UnknownAttentionError, match=r"extra is an nn\.MultiheadAttention.*interp\.load"):
        attention_modules(model)
    assert len(attention_modules(model, unknown="skip")) == 2


def test_sizes_are_those_of_a_pruned_model() -> None:
    model = tiny("llama")
    attention = model.model.layers[1].self_attn
    keep = torch.arange(24)  # the first kv head and its two query heads
    for name, dim in (("q_proj", 0), ("o_proj", 1)):
        projection = getattr(attention, name)
        projection.weight = nn.Parameter(projection.weight.index_select(dim, keep))
    for name in ("k_proj", "v_proj"):
        projection = getattr(attention, name)
        projection.weight = nn.Parameter(projection.weight[:12])
    whole, pruned = attention_modules(model)
    assert (whole.n_heads, whole.n_kv_heads) == (4, 2)
    assert (pruned.n_heads, pruned.n_kv_heads) == (2, 1)
    assert head_weights(pruned).W_O.shape == (2, 12, 32)


def test_split_fused_takes_feature_numbers_too() -> None:
    query, key, value = split_fused(torch.arange(8), "grouped", n_heads=2, n_kv_heads=1, d_head=2)
    assert query.tolist() == [[0, 1], [2, 3]]
    assert (key.tolist(), value.tolist()) == ([[4, 5]], [[6, 7]])
    query, key, value = split_fused(torch.arange(8), "blocks", n_heads=0, n_kv_heads=2, d_head=2)
    assert (query.tolist(), key.tolist(), value.tolist()) == ([], [[0, 1], [2, 3]], [[4, 5], [6, 7]])
