"""The transformer against models of transformers and torch with the same weights, and against itself."""

from typing import Any

import pytest
import torch
import transformers as hf
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn
from torch.testing import assert_close
from transformers.models.mixtral.modeling_mixtral import load_balancing_loss_func

from interp.attention import AlibiSlopes, Mask, reference
from interp.errors import UserError
from interp.models.transformer import Cache, Transformer, TransformerConfig
from interp.models.transformer.attention import sdpa
from interp.models.transformer.mlp import MixtureOfExperts, balance_loss
from interp.models.transformer.positions import Rotary, alibi_slopes, sinusoidal
from tests.interp.models.transformer.small import BIDIRECTIONAL, CAUSAL, D_VOCAB, config, small, tokens

IMPLEMENTATIONS = ("interp", "sdpa", "eager")


def copied(model: Any, weights: dict[str, Tensor]) -> None:
    """Fill a module: every parameter named, none left over."""
    parameters = dict(model.named_parameters())
    assert set(parameters) == set(weights)
    with torch.no_grad():
        for name, weight in weights.items():
            parameters[name].copy_(weight)


# Against others -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("implementation", IMPLEMENTATIONS)
def test_learned_positions_pre_layer_norm_dense_mlp_and_tied_embeddings_are_gpt2(implementation: Any) -> None:
    sizes: dict[str, Any] = {"vocab_size": D_VOCAB, "n_embd": 24, "n_layer": 2, "n_head": 6, "n_positions": 40}
    other = hf.GPT2LMHeadModel(hf.GPT2Config(**sizes, activation_function="gelu", bos_token_id=0, eos_token_id=0))
    other = other.double().eval()
    model = small("learned", mlp="dense", tied_embeddings=True)
    weights = other.state_dict()
    for layer, block in enumerate(model.blocks):
        at = f"transformer.h.{layer}"
        state = dict(block.named_parameters())
        fused = torch.cat([state[f"attn.{name}_proj.weight"] for name in "qkv"])
        weights[f"{at}.attn.c_attn.weight"], weights[f"{at}.attn.c_attn.bias"] = fused.T, torch.zeros(len(fused))
        weights[f"{at}.attn.c_proj.weight"] = state["attn.o_proj.weight"].T
        weights[f"{at}.attn.c_proj.bias"] = torch.zeros(24)
        for name, own in (("c_fc", "up_proj"), ("c_proj", "down_proj")):
            weights[f"{at}.mlp.{name}.weight"] = state[f"mlp.{own}.weight"].T
            weights[f"{at}.mlp.{name}.bias"] = state[f"mlp.{own}.bias"]
        for name, own in (("ln_1", "ln1"), ("ln_2", "ln2")):
            for part in ("weight", "bias"):
                weights[f"{at}.{name}.{part}"] = state[f"{own}.{part}"]
    weights["transformer.wte.weight"] = weights["lm_head.weight"] = model.embed.weight
    weights["transformer.wpe.weight"] = model.pos_embed.weight
    weights["transformer.ln_f.weight"], weights["transformer.ln_f.bias"] = model.ln_final.weight, model.ln_final.bias
    other.load_state_dict(weights)
    model.set_attn_implementation(implementation)
    assert_close(model(tokens()).logits, other(tokens()).logits, rtol=0, atol=1e-9)


def llama_weights(model: Any, other: Any) -> dict[str, Tensor]:
    """The weights of a Llama or Mistral that computes attention alone: its MLPs write zeros."""
    weights = {f"model.{name}": torch.zeros_like(p) for name, p in other.model.named_parameters()}
    for layer, block in enumerate(model.blocks):
        at = f"model.layers.{layer}"
        for name in ("q_proj", "k_proj", "v_proj", "o_proj"):
            weights[f"{at}.self_attn.{name}.weight"] = getattr(block.attn, name).weight
        weights[f"{at}.input_layernorm.weight"] = block.ln1.weight
    weights["model.embed_tokens.weight"], weights["model.norm.weight"] = model.embed.weight, model.ln_final.weight
    return weights | {"lm_head.weight": model.unembed.weight}


@pytest.mark.parametrize("implementation", IMPLEMENTATIONS)
@pytest.mark.parametrize("window", [None, 5])
def test_rotary_rms_norm_grouped_heads_and_window_are_mistral_without_its_mlps(
    implementation: Any, window: int
) -> None:
    model = small("rotary", n_kv_heads=2, d_head=8, rotary_scale=1.0, window=window)
    sizes: dict[str, Any] = {
        "vocab_size": D_VOCAB, "hidden_size": 24, "intermediate_size": 4, "num_hidden_layers": 2, "head_dim": 8,
        "num_attention_heads": 6, "num_key_value_heads": 2, "rms_norm_eps": 1e-5, "sliding_window": window,
        "rope_parameters": {"rope_type": "default", "rope_theta": 100.0}, "max_position_embeddings": 64,
    }  # fmt: skip
    other = hf.MistralForCausalLM(hf.MistralConfig(**sizes)).double().eval()
    copied(other, llama_weights(model, other))
    model.set_attn_implementation(implementation)
    # transformers turns by angles in float32
    assert_close(model(tokens()).logits, other(tokens()).logits, rtol=0, atol=1e-5)


@pytest.mark.parametrize("implementation", IMPLEMENTATIONS)
def test_alibi_is_that_of_mpt(implementation: Any) -> None:
    model = small("alibi", n_kv_heads=None, n_heads=4, mlp="dense", tied_embeddings=True)
    sizes: dict[str, Any] = {"vocab_size": D_VOCAB, "d_model": 24, "n_layers": 2, "n_heads": 4, "max_seq_len": 64}
    other = hf.MptForCausalLM(hf.MptConfig(**sizes)).double().eval()
    with torch.no_grad():  # MPT has no biases
        for name, parameter in model.named_parameters():
            if name.endswith("bias"):
                parameter.zero_()
    weights = {"transformer.wte.weight": model.embed.weight, "transformer.norm_f.weight": model.ln_final.weight}
    for layer, block in enumerate(model.blocks):
        at, attn = f"transformer.blocks.{layer}", block.attn
        fused = torch.cat([attn.q_proj.weight, attn.k_proj.weight, attn.v_proj.weight])
        weights |= {
            f"{at}.attn.Wqkv.weight": fused, f"{at}.attn.out_proj.weight": attn.o_proj.weight,
            f"{at}.ffn.up_proj.weight": block.mlp.up_proj.weight, f"{at}.norm_1.weight": block.ln1.weight,
            f"{at}.ffn.down_proj.weight": block.mlp.down_proj.weight, f"{at}.norm_2.weight": block.ln2.weight,
        }  # fmt: skip
    copied(other, weights)
    model.set_attn_implementation(implementation)
    assert_close(model(tokens()).logits, other(tokens()).logits, rtol=0, atol=1e-6)


@pytest.mark.parametrize("first", [True, False], ids=["pre", "post"])
@pytest.mark.parametrize("causal", [True, False])
def test_norm_positions_are_those_of_torch(first: bool, causal: bool) -> None:
    kind = "post_norm" if causal else "post_norm_bidirectional"
    model = small(kind, norm_position="pre" if first else "post", positions="none")
    layer = nn.TransformerEncoderLayer(24, 6, 20, dropout=0.0, activation="gelu", batch_first=True, norm_first=first)
    other = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False).double()  # in training mode: no fast path
    for mine, theirs in zip(model.blocks, other.layers, strict=True):
        attn = mine.attn
        copied(theirs, {
            "self_attn.in_proj_weight": torch.cat([attn.q_proj.weight, attn.k_proj.weight, attn.v_proj.weight]),
            "self_attn.in_proj_bias": torch.zeros(72), "self_attn.out_proj.weight": attn.o_proj.weight,
            "self_attn.out_proj.bias": torch.zeros(24),
            "linear1.weight": mine.mlp.up_proj.weight, "linear1.bias": mine.mlp.up_proj.bias,
            "linear2.weight": mine.mlp.down_proj.weight, "linear2.bias": mine.mlp.down_proj.bias,
            "norm1.weight": mine.ln1.weight, "norm1.bias": mine.ln1.bias,
            "norm2.weight": mine.ln2.weight, "norm2.bias": mine.ln2.bias,
        })  # fmt: skip
    mask = nn.Transformer.generate_square_subsequent_mask(13, dtype=torch.float64) if causal else None
    stream = other(model.embed(tokens()), mask=mask)
    assert_close(model(tokens()).logits, model.unembed(model.ln_final(stream)), rtol=0, atol=1e-9)


# Parts ----------------------------------------------------------------------------------------------------------------


def test_sinusoidal_positions_are_the_paper_s() -> None:
    table = sinusoidal(torch.arange(5)[None], 6, torch.float64)[0]
    for position in range(5):
        for i in range(3):
            angle = torch.tensor(position / 10_000 ** (2 * i / 6), dtype=torch.float64)
            assert_close(table[position, 2 * i], angle.sin())
            assert_close(table[position, 2 * i + 1], angle.cos())


@given(st.integers(0, 200), st.integers(-5, 5))
def test_rotary_products_depend_on_distance_alone(shift: int, distance: int) -> None:
    query, key = torch.randn(2, 1, 1, 1, 8, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    rotary = Rotary(8, 50.0)

    def product(at: int) -> Tensor:
        return (rotary(query, torch.tensor([[at + distance]])) * rotary(key, torch.tensor([[at]]))).sum()

    assert_close(product(10 + shift), product(10), rtol=0, atol=1e-12)


def test_rotary_scale_is_position_interpolation() -> None:
    x = torch.randn(1, 6, 2, 8, dtype=torch.float64)
    plain, stretched = Rotary(8, 50.0), Rotary(8, 50.0, scale=4.0)
    assert_close(stretched(x, 4 * torch.arange(6)[None]), plain(x, torch.arange(6)[None]))


@pytest.mark.parametrize(("n_heads", "expected"), [
    (1, [2**-8]), (4, [2**-2, 2**-4, 2**-6, 2**-8]), (3, [2**-4, 2**-8, 2**-2]),
    (6, [2**-2, 2**-4, 2**-6, 2**-8, 2**-1, 2**-3]),
])  # fmt: skip
def test_alibi_slopes_are_the_paper_s(n_heads: int, expected: list[float]) -> None:
    assert alibi_slopes(n_heads).tolist() == pytest.approx(expected)


@pytest.mark.parametrize("exponent", [0.0, 0.25, 0.5, 1.0])
@pytest.mark.parametrize("implementation", IMPLEMENTATIONS)
def test_scores_are_divided_by_a_power_of_the_head_s_width(exponent: float, implementation: Any) -> None:
    model = small("plain", n_layers=1, scale_exponent=exponent)
    model.set_attn_implementation(implementation)
    attn, x = model.blocks[0].attn, model.embed(tokens())
    q, k, v = (torch.einsum("bpd,hde->bhpe", x, w) for w in (attn.W_Q, attn.W_K, attn.W_V))
    scores = (q @ k.mT / 4**exponent).masked_fill(torch.ones(13, 13).triu(1).bool(), -torch.inf)
    added = torch.einsum("bhpe,hed->bpd", scores.softmax(-1) @ v, attn.W_O)
    assert_close(model(tokens()).logits, model.unembed(x + added))


def test_without_residuals_a_sublayer_replaces_its_input() -> None:
    model = small("no_residual", norm_position="none", mlp="dense")
    with torch.no_grad():
        model.blocks[1].mlp.down_proj.weight.zero_()
    bias = model.blocks[1].mlp.down_proj.bias
    assert_close(model(tokens()).logits, model.unembed(bias).expand(3, 13, -1))


@torch.no_grad()
def test_experts_are_summed_as_their_router_says() -> None:
    moe = MixtureOfExperts(config("experts")).double()
    x = torch.randn(2, 5, 24, dtype=torch.float64)
    found, logits = moe(x)
    for b in range(2):
        for p in range(5):
            best = sorted(range(3), key=lambda e: -float(logits[b, p, e]))[:2]
            shares = torch.stack([logits[b, p, e] for e in best]).softmax(0)
            each = [moe.experts[e](x[b, p][None, None])[0, 0] for e in best]
            assert_close(found[b, p], shares[0] * each[0] + shares[1] * each[1])


def test_an_expert_is_computed_for_its_own_tokens_only() -> None:
    moe, seen = MixtureOfExperts(config("experts")), 0

    def count(module: nn.Module, given: tuple[Tensor, ...]) -> None:
        nonlocal seen
        seen += given[0].shape[1]

    for expert in moe.experts:
        expert.register_forward_pre_hook(count)
    moe(torch.randn(4, 7, 24))
    assert seen == 4 * 7 * 2


@pytest.mark.parametrize("top_k", [1, 2])
def test_balance_loss_is_that_of_mixtral(top_k: int) -> None:
    logits = torch.randn(3, 11, 5, generator=torch.Generator().manual_seed(0))
    theirs = load_balancing_loss_func((logits.flatten(0, 1),), num_experts=5, top_k=top_k)
    assert_close(balance_loss(logits, top_k) * top_k, theirs)  # they sum the shares of routed tokens to top_k


def test_balance_loss_is_least_for_even_routing_and_leaves_padding_out() -> None:
    even = torch.eye(4).repeat(3, 2, 1) * 50
    assert_close(balance_loss(even, 1), torch.tensor(1.0))
    collapsed = torch.tensor([50.0, 0, 0, 0]).expand(3, 8, 4)
    assert_close(balance_loss(collapsed, 1), torch.tensor(4.0))
    valid = torch.arange(16).expand(3, 16) < 8
    assert_close(balance_loss(torch.cat([even, collapsed], 1), 1, valid), torch.tensor(1.0))


def test_the_model_s_balance_loss_is_the_mean_over_its_layers() -> None:
    model = small("experts")
    _, cache = model.run_with_cache(tokens())
    layers = [balance_loss(cache[f"blocks.{i}.mlp.hook_router"], 2) for i in range(2)]
    found = model(tokens()).balance
    assert found is not None
    assert_close(found, (layers[0] + layers[1]) / 2)
    assert small("plain")(tokens()).balance is None


# Against itself -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", [*CAUSAL, *BIDIRECTIONAL])
def test_implementations_agree(kind: str) -> None:
    model, found = small(kind), {}
    valid = torch.arange(13) >= torch.tensor([[0], [3], [0]])
    valid[2, -2:] = False
    for implementation in IMPLEMENTATIONS:
        model.set_attn_implementation(implementation)
        found[implementation] = model(tokens()).logits, model(tokens(), valid).logits[valid]
    for implementation in ("sdpa", "eager"):
        for mine, other in zip(found["interp"], found[implementation], strict=True):
            assert_close(mine, other, rtol=0, atol=1e-9)


@pytest.mark.parametrize("implementation", ["interp", "sdpa"])
@pytest.mark.parametrize("kind", [*CAUSAL, *BIDIRECTIONAL])
def test_padding_on_either_side_changes_nothing(kind: str, implementation: Any) -> None:
    model, row = small(kind), tokens(1, 9)
    model.set_attn_implementation(implementation)
    plain = model(row).logits[0]
    for before, after in ((0, 4), (4, 0), (2, 2)):
        padded = torch.cat([tokens(1, before, 7), row, tokens(1, after, 8)], 1)
        valid = torch.zeros(padded.shape)
        valid[:, before : before + 9] = 1
        assert_close(model(padded, valid).logits[0, before : before + 9], plain, rtol=0, atol=1e-9)


@pytest.mark.parametrize("kind", CAUSAL)
def test_a_causal_model_does_not_see_the_future_and_a_bidirectional_one_does(kind: str) -> None:
    changed = tokens()
    changed[:, 7] = (changed[:, 7] + 1) % D_VOCAB
    causal = small(kind)
    assert torch.equal(causal(tokens()).logits[:, :7], causal(changed).logits[:, :7])
    both = small(f"{kind}_bidirectional")
    assert not torch.allclose(both(tokens()).logits[:, 6], both(changed).logits[:, 6])


@pytest.mark.parametrize("implementation", ["interp", "sdpa"])
@pytest.mark.parametrize("kind", CAUSAL)
@settings(max_examples=6, deadline=None)
@given(parts=st.lists(st.integers(1, 4), min_size=2, max_size=5))
def test_decoding_with_a_cache_equals_one_pass(kind: str, implementation: Any, parts: list[int]) -> None:
    model, length = small(kind), sum(parts)
    model.set_attn_implementation(implementation)
    whole, cache, found = model(tokens(2, length)).logits, Cache(), []
    for part in tokens(2, length).split(parts, 1):
        found.append(model(part, cache=cache).logits)
    assert cache.length == length
    assert_close(torch.cat(found, 1), whole, rtol=0, atol=1e-9)


@pytest.mark.parametrize("kind", CAUSAL)
def test_decoding_with_a_cache_and_padding_on_the_left_equals_one_pass(kind: str) -> None:
    model, given = small(kind), tokens(2, 9)
    valid = torch.arange(9) >= torch.tensor([[0], [3]])
    whole, cache = model(given, valid).logits, Cache()
    first = model(given[:, :6], valid[:, :6], cache=cache).logits
    rest = [model(given[:, i : i + 1], valid[:, : i + 1], cache=cache).logits for i in range(6, 9)]
    assert_close(torch.cat([first, *rest], 1)[valid], whole[valid], rtol=0, atol=1e-9)


def test_the_cache_of_grouped_heads_is_smaller_and_that_of_linear_attention_does_not_grow() -> None:
    sizes = {}
    for name, kind, length in (
        ("many", "rotary", 8),
        ("grouped", "grouped", 8),
        ("short", "elu", 8),
        ("long", "elu", 30),
    ):
        cache = Cache()
        small(kind, d_head=4)(tokens(1, length), cache=cache)
        sizes[name] = cache.nbytes
    assert sizes["many"] == 2 * 2 * 6 * 8 * 4 * 8  # layers, keys and values, heads, positions, features, bytes
    assert sizes["grouped"] * 3 == sizes["many"]
    assert sizes["short"] == sizes["long"]


def test_generating_takes_the_likeliest_token_again_and_again() -> None:
    model, found = small("learned"), tokens(2, 5)
    for _ in range(6):
        found = torch.cat([found, model(found).logits[:, -1:].argmax(-1)], 1)
    assert torch.equal(model.generate(tokens(2, 5), 6), found)
    drawn = [model.generate(tokens(2, 5), 6, 2.0, torch.Generator().manual_seed(seed)) for seed in (0, 0, 1)]
    assert torch.equal(drawn[0], drawn[1])
    assert not torch.equal(drawn[0], drawn[2])


def test_the_same_seed_gives_the_same_weights() -> None:
    one, same, other = (Transformer(config("performer"), seed).state_dict() for seed in (3, 3, 4))
    assert all(torch.equal(one[name], same[name]) for name in one)
    differ = {name for name in one if not torch.equal(one[name], other[name])}
    assert {"embed.weight", "blocks.1.attn.q_proj.weight", "blocks.0.attn.directions"} <= differ


def test_weights_begin_at_the_sizes_that_are_documented() -> None:
    model = Transformer(TransformerConfig(d_vocab=300, d_model=256, n_layers=3, n_heads=4, mlp="dense"))
    block: Any = model.blocks[1]
    sizes = {model.embed: 0.5, block.attn.q_proj: 1 / 16, block.attn.o_proj: 1 / 16 / 6**0.5, model.unembed: 1 / 16,
             block.mlp.down_proj: 1 / 32 / 6**0.5}  # fmt: skip
    for module, size in sizes.items():
        assert float(module.weight.detach().std()) == pytest.approx(size, rel=0.05)


def test_an_altered_model_has_the_same_weights() -> None:
    model = small("rotary", n_ctx=13)
    longer = model.altered(n_ctx=None, rotary_scale=4.0)
    assert longer(tokens(1, 30)).logits.shape == (1, 30, D_VOCAB)
    for name, weight in model.state_dict().items():
        assert torch.equal(longer.state_dict()[name], weight)
    assert_close(model.altered()(tokens()).logits, model(tokens()).logits)
    with pytest.raises(UserError, match="do not fit"):
        model.altered(d_model=36)


def test_inputs_that_do_not_fit_are_refused() -> None:
    model = small("rotary", n_ctx=12)
    with pytest.raises(UserError, match="13 tokens are more than the model's context of 12"):
        model(tokens())
    cache = Cache()
    model(tokens(1, 10), cache=cache)
    with pytest.raises(UserError, match="13 tokens are more"):
        model(tokens(1, 3), cache=cache)
    with pytest.raises(UserError, match=r"must be \[3, 12\]"):
        model(tokens(3, 12), torch.ones(3, 11))
    with pytest.raises(UserError, match="cache is for causal models"):
        small("plain_bidirectional")(tokens(), cache=Cache())
    with pytest.raises(ValueError, match="interp, sdpa or eager"):
        model.set_attn_implementation("flash")  # pyright: ignore[reportArgumentType]


@pytest.mark.parametrize(
    "mask",
    [
        Mask(causal=True),
        Mask(causal=True, window=3),
        Mask(window=2),
        Mask(causal=True, key_valid=torch.arange(9) >= torch.tensor([[0], [4]])),
        Mask(bias=AlibiSlopes(torch.tensor([0.5, 0.1, 0.3, 0.2]))),
    ],
    ids=["causal", "window", "both_ways", "empty_rows", "alibi"],
)
@pytest.mark.parametrize("n_queries", [9, 2])
def test_torch_s_fused_attention_is_the_definition_empty_rows_too(mask: Mask, n_queries: int) -> None:
    generator = torch.Generator().manual_seed(0)
    query = torch.randn(2, 4, n_queries, 5, dtype=torch.float64, generator=generator)
    key, value = torch.randn(2, 2, 2, 9, 5, dtype=torch.float64, generator=generator)
    expected = reference(query, key, value, mask, 0.3).output
    assert_close(sdpa(query, key, value, mask, 0.3), expected)
