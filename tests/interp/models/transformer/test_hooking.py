"""The transformer as a hooked model: read, edited, hooked; and TransformerLens's own tools on it."""

from typing import Any

import pytest
import torch
from torch import Tensor
from torch.testing import assert_close

from interp.attention.edits import GateHeads, KnockOut, ScaleExponent
from interp.attention.probes import Entropy, NormWeighted, OffsetMass, PositionMass, SelectedRows
from interp.circuits import Weights
from interp.errors import UserError
from interp.models.transformer import Cache, hook_transformer
from tests.interp.models.transformer.small import BIDIRECTIONAL, CAUSAL, D_VOCAB, LINEAR, small, tokens

SOFTMAX = tuple(kind for kind in CAUSAL if kind not in LINEAR)


def patterns(kind: str, model: Any, given: Tensor) -> list[Tensor]:
    """Every layer's pattern, written out from TransformerLens's cache and the definition."""
    _, cache = model.run_with_cache(given)
    config, found = model.config, []
    at = torch.arange(given.shape[1])
    for layer in range(config.n_layers):
        rot = "rot_" if config.positions == "rotary" else ""
        attn = model.blocks[layer].attn
        query, key = (cache[f"blocks.{layer}.attn.hook_{rot}{name}"].transpose(1, 2) for name in "qk")
        if config.attention != "softmax":
            query, key = attn.features(query, of_queries=True), attn.features(key, of_queries=False)
        key = key.repeat_interleave(config.n_heads // config.kv_heads, 1)
        allowed = torch.ones(len(at), len(at), dtype=torch.bool)
        allowed = allowed.tril() if config.causal else allowed
        if config.window is not None:
            allowed &= (at[:, None] - at).abs() < config.window
        if config.attention == "softmax":
            scores = query @ key.mT / attn.d_head**config.scale_exponent
            if config.positions == "alibi":
                scores = scores - attn.slopes[:, None, None] * (at[:, None] - at).abs()
            weights = scores.masked_fill(~allowed, -torch.inf).softmax(-1)
        else:
            kernel = (query @ key.mT) * allowed
            weights = kernel / kernel.sum(-1, keepdim=True)
        found.append(weights)
    return found


@pytest.mark.parametrize("kind", [*CAUSAL, *BIDIRECTIONAL])
def test_probes_read_the_pattern_and_reading_changes_nothing(kind: str) -> None:
    module = small(kind)
    plain = module(tokens()).logits
    expected = patterns(kind, module, tokens())
    model = hook_transformer(module)
    rows = SelectedRows(queries=range(13))
    run = model.run(tokens(), probes=[rows, OffsetMass([1]), PositionMass([0])])
    for site, whole in zip(model.sites, expected, strict=True):
        assert_close(run.readings(rows)[site.name].values, whole, rtol=0, atol=1e-9)
    assert run.logits is not None
    assert_close(run.logits, plain, rtol=0, atol=1e-9)
    assert_close(run.values(1)[0, ..., 0], expected[0].diagonal(-1, -2, -1).mean(-1), rtol=0, atol=1e-9)


@pytest.mark.parametrize("kind", LINEAR)
def test_entropy_of_linear_rows_is_that_of_their_weights(kind: str) -> None:
    module = small(kind)
    expected = torch.stack([torch.special.entr(p).sum(-1).mean(-1) for p in patterns(kind, module, tokens())])
    assert_close(hook_transformer(module).run(tokens(), probes=[Entropy()]).values(0), expected, rtol=0, atol=1e-9)


@pytest.mark.parametrize("kind", CAUSAL)
def test_gating_a_head_is_what_an_ablation_at_hook_z_is(kind: str) -> None:
    module = small(kind)

    def ablate(z: Tensor, hook: Any) -> Tensor:
        z = z.clone()
        z[:, :, 2] = 0
        return z

    expected = module.run_with_hooks(tokens(), fwd_hooks=[("blocks.0.attn.hook_z", ablate)]).logits
    model = hook_transformer(module)
    with model.edit(GateHeads({(0, 2): 0.0})):
        gated = model(tokens()).logits
    assert_close(gated, expected, rtol=0, atol=1e-9)
    assert_close(model.run(tokens(), hooks={"blocks.0.attn.hook_z": ablate}).logits, expected, rtol=0, atol=1e-9)
    assert not torch.allclose(gated, module(tokens()).logits)


@pytest.mark.parametrize("kind", CAUSAL)
def test_cut_edges_are_as_if_their_weights_had_never_been(kind: str) -> None:
    module = small(kind, n_layers=1)
    edges = torch.zeros(13, 13, dtype=torch.bool)
    edges[5, 2] = edges[9, 9] = edges[12, 3] = True
    left = patterns(kind, module, tokens())[0].masked_fill(edges, 0.0)
    expected = left / left.sum(-1, keepdim=True)
    rows = SelectedRows(queries=range(13))
    model = hook_transformer(module)
    found = model.run(tokens(), probes=[rows], edits=[KnockOut(edges)])
    assert_close(found.values(rows)[0], expected, rtol=0, atol=1e-9)


@pytest.mark.parametrize("kind", LINEAR)
def test_gradients_through_linear_rows_are_those_of_the_sums(kind: str) -> None:
    module = small(kind)
    weight = module.blocks[0].attn.q_proj.weight
    (expected,) = torch.autograd.grad(module(tokens()).logits.square().sum(), weight)
    run = hook_transformer(module).run(tokens(), probes=[Entropy()], grad=True)
    assert run.logits is not None
    assert_close(torch.autograd.grad(run.logits.square().sum(), weight)[0], expected, rtol=1e-6, atol=1e-9)


@pytest.mark.parametrize("kind", LINEAR)
def test_what_would_mean_nothing_for_linear_attention_is_refused(kind: str) -> None:
    model = hook_transformer(small(kind))
    with pytest.raises(UserError, match="no scores to scale"):
        model.run(tokens(), edits=[ScaleExponent({(1, 0): 1.0})])
    with pytest.raises(UserError, match="keep='z' only"):
        model.run(tokens(), keep="qk")
    with pytest.raises(UserError, match="without a cache"), model.edit(GateHeads({(0, 0): 0.0})):
        model(tokens(), cache=Cache())
    assert model.run(tokens(), keep="z").z["blocks.0.attn"].shape == (3, 6, 13, 4)


@pytest.mark.parametrize("kind", ["rotary", "alibi", "grouped"])
def test_edits_act_while_tokens_are_generated_with_a_cache(kind: str) -> None:
    model = hook_transformer(small(kind))
    with model.edit(GateHeads({(1, 3): 0.0})):
        whole, cache = model(tokens()).logits, Cache()
        parts = [model(part, cache=cache).logits for part in tokens().split(5, 1)]
    assert_close(torch.cat(parts, 1), whole, rtol=0, atol=1e-9)


def test_padding_enters_no_statistic() -> None:
    model = hook_transformer(small("learned"))
    alone = model.run(tokens(1, 8), probes=[Entropy(), OffsetMass([1])])
    rows = [tokens(1, 8)[0].tolist(), tokens(1, 13)[0].tolist()]
    padded = model.run(rows, probes=[Entropy(), OffsetMass([1])])
    for number in range(2):
        assert_close(padded.values(number)[:, :1], alone.values(number), rtol=0, atol=1e-9)


@pytest.mark.parametrize("kind", [*CAUSAL, *BIDIRECTIONAL])
def test_what_is_known_of_the_model(kind: str) -> None:
    module = small(kind)
    model = hook_transformer(module, info={"name": "mine"})
    assert model.is_causal != kind.endswith("bidirectional")
    assert model.d_vocab == D_VOCAB
    assert model.n_ctx == module.config.n_ctx
    assert [site.name for site in model.sites] == ["blocks.0.attn", "blocks.1.attn"]
    assert model.info["name"] == "mine"
    assert model.info["n_kv_heads"] == model.site(0).n_kv_heads == module.config.kv_heads
    assert model.verify()["max_error"] < 1e-9


@pytest.mark.parametrize("kind", CAUSAL)
def test_hooks_of_the_hooked_model_are_those_of_the_module(kind: str) -> None:
    module = small(kind)

    def change(x: Tensor, hook: Any) -> Tensor:
        return x + 0.3 * x.roll(1, 1)

    points = [f"blocks.1.attn.hook_{name}" for name in ("q", "k", "v", "z")] + ["blocks.1.hook_resid_pre"]
    if kind == "rotary":
        points += ["blocks.1.attn.hook_rot_q", "blocks.1.attn.hook_rot_k"]
    expected = [module.run_with_hooks(tokens(), fwd_hooks=[(point, change)]).logits for point in points]
    model = hook_transformer(module)
    for point, logits in zip(points, expected, strict=True):
        found = model.run(tokens(), hooks={point: change}).logits
        assert found is not None
        assert_close(found, logits, rtol=0, atol=1e-9)


@pytest.mark.parametrize("kind", ["rotary", "elu"])
def test_a_context_without_edits_changes_nothing(kind: str) -> None:
    model = hook_transformer(small(kind))
    plain = model(tokens()).logits
    with model.edit():
        assert_close(model(tokens()).logits, plain, rtol=0, atol=1e-9)


def test_hook_points_are_transformer_lens_s() -> None:
    dense = small("sinusoidal").hook_dict
    block = {f"blocks.0.{name}" for name in (
        "hook_resid_pre", "hook_attn_out", "hook_resid_mid", "hook_mlp_out", "hook_resid_post", "attn.hook_q",
        "attn.hook_k", "attn.hook_v", "attn.hook_z", "mlp.hook_pre", "mlp.hook_post",
    )}  # fmt: skip
    assert {name for name in dense if "blocks.1" not in name} == {"hook_embed", "hook_pos_embed"} | block
    assert {"blocks.1.attn.hook_rot_q", "blocks.1.attn.hook_rot_k"} <= set(small("rotary").hook_dict)
    assert "blocks.0.hook_resid_mid" not in small("rotary").hook_dict


def test_the_stream_is_the_sum_of_what_is_written_into_it() -> None:
    module = small("sinusoidal")
    _, cache = module.run_with_cache(tokens())
    stream = cache["hook_embed"] + cache["hook_pos_embed"]
    for layer in range(2):
        assert_close(cache[f"blocks.{layer}.hook_resid_pre"], stream)
        stream = stream + cache[f"blocks.{layer}.hook_attn_out"]
        assert_close(cache[f"blocks.{layer}.hook_resid_mid"], stream)
        stream = stream + cache[f"blocks.{layer}.hook_mlp_out"]
        assert_close(cache[f"blocks.{layer}.hook_resid_post"], stream)


@pytest.mark.parametrize("kind", CAUSAL)
def test_weights_by_head_are_the_projections_ones(kind: str) -> None:
    module = small(kind)
    model, x = hook_transformer(module), torch.randn(2, 5, 24, dtype=torch.float64)
    for layer, block in enumerate(module.blocks):
        attn, heads = block.attn, model.head_weights(layer)
        for name in ("W_Q", "W_K", "W_V", "W_O"):
            assert torch.equal(getattr(heads, name), getattr(attn, name))
        for weight, projection in ((attn.W_Q, attn.q_proj), (attn.W_K, attn.k_proj), (attn.W_V, attn.v_proj)):
            by_head = torch.einsum("bpd,hde->bphe", x, weight)
            assert_close(by_head.flatten(2), projection(x))
        z = torch.randn(2, 5, attn.n_heads, attn.d_head, dtype=torch.float64)
        assert_close(torch.einsum("bphe,hed->bpd", z, attn.W_O), attn.o_proj(z.flatten(2)))


@pytest.mark.parametrize("kind", SOFTMAX)
def test_circuits_find_embedding_norms_and_unembedding(kind: str) -> None:
    module = small(kind)
    weights = Weights.from_transformers(module)
    assert [site.layer for site in weights.sites] == [0, 1]
    if module.config.norm_position == "pre" and module.config.residual:
        before = weights.sites[1].norms.before
        assert before is not None
        assert before.kind == module.config.norm
        assert weights.final_norm is not None
        assert not weights.sites[1].no_direct_path
        assert weights.W_E is not None
        assert weights.W_U is not None
        assert torch.equal(weights.W_U, module.unembed.weight.T)
    assert bool(weights.sites[0].scores_caveat) == (module.config.positions == "rotary")


def test_norm_weighted_probes_know_w_o() -> None:
    model = hook_transformer(small("grouped"))
    run = model.run(tokens(), probes=[NormWeighted(PositionMass([0]))])
    assert run.values(0).shape == (2, 3, 6, 1)
