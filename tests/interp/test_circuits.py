"""Circuits against vocabulary-sized matrices, planted heads, and the modules of transformers themselves."""

from itertools import permutations
from typing import Any, Literal

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.stats import ks_2samp, ortho_group
from torch import Tensor
from torch.testing import assert_close

import interp
from interp.circuits import (
    CopyingScores,
    Site,
    Weights,
    composition,
    composition_by_rotation,
    copying_eigenvalues,
    copying_logits,
    ov_norms,
    rotations,
)
from interp.errors import UserError
from interp.models.norms import Norm
from interp.models.projections import HeadWeights
from interp.models.residual import AttentionNorms
from tests.families import make, tiny

D_MODEL, VOCABULARY = 7, 13


def normal(*shape: int, seed: int) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def norm_of(kind: Literal["layernorm", "rmsnorm"] | None, seed: int) -> Norm | None:
    if kind is None:
        return None
    return Norm("norm", kind, 1 + 0.3 * normal(D_MODEL, seed=seed), 0.1 * normal(D_MODEL, seed=seed + 1), 1e-5)


def site_of(
    W_V: Tensor,
    W_O: Tensor,
    norms: AttentionNorms | None = None,
    layer: int = 0,
    W_Q: Tensor | None = None,
    W_K: Tensor | None = None,
    b_V: Tensor | None = None,
) -> Site:
    W_Q = torch.zeros_like(W_O.mT) if W_Q is None else W_Q
    W_K = torch.zeros_like(W_V) if W_K is None else W_K
    heads = HeadWeights(W_Q, W_K, W_V, W_O, b_V=b_V)
    return Site(f"layers.{layer}.attn", layer, "", "self", heads, norms or AttentionNorms("pre", None, None))


def random_weights(
    before: Literal["layernorm", "rmsnorm"] | None,
    after: Literal["layernorm", "rmsnorm"] | None,
    seed: int,
    d_head: int = 3,
    n_heads: int = 4,
    n_kv_heads: int = 2,
) -> Weights:
    """Random weights of a small model with the norms asked for."""
    norms = AttentionNorms("pre", norm_of(before, seed + 10), norm_of(after, seed + 20))
    site = site_of(
        normal(n_kv_heads, D_MODEL, d_head, seed=seed),
        normal(n_heads, d_head, D_MODEL, seed=seed + 1),
        norms,
        b_V=normal(n_kv_heads, d_head, seed=seed + 2),
    )
    ends = normal(VOCABULARY, D_MODEL, seed=seed + 3), normal(D_MODEL, VOCABULARY, seed=seed + 4)
    return Weights((site,), *ends, norm_of(before, seed + 30), norm_of("layernorm", seed + 40), 1.7)


def linear_part(norm: Norm | None) -> Tensor:
    """The matrix that a norm applies beside its division."""
    if norm is None:
        return torch.eye(D_MODEL, dtype=torch.float64)
    mean = torch.full((D_MODEL, D_MODEL), 1 / D_MODEL, dtype=torch.float64)
    center = torch.eye(D_MODEL, dtype=torch.float64) - (mean if norm.kind == "layernorm" else 0)
    return center @ torch.diag(norm.gain)


def token_to_logits(weights: Weights, head: int) -> Tensor:
    """The vocabulary × vocabulary matrix of a head's direct path, written out."""
    site = weights.sites[0]
    group = len(site.heads.W_O) // len(site.heads.W_V)
    embedded = weights.embedding_scale * weights.W_E if weights.W_E is not None else torch.empty(0)
    embedded = embedded if weights.embedding_norm is None else weights.embedding_norm(embedded)
    path = embedded @ linear_part(site.norms.before) @ site.heads.W_V[head // group] @ site.heads.W_O[head]
    assert weights.W_U is not None
    return path @ linear_part(site.norms.after) @ linear_part(weights.final_norm) @ weights.W_U


@pytest.mark.parametrize("before", ["layernorm", "rmsnorm", None])
@pytest.mark.parametrize("after", ["layernorm", "rmsnorm", None])
@given(seed=st.integers(0, 10_000))
@settings(max_examples=5, deadline=None)
def test_eigenvalues_are_those_of_the_vocabulary_sized_matrix(before: Any, after: Any, seed: int) -> None:
    weights = random_weights(before, after, seed)
    (scores,) = copying_eigenvalues(weights, draws=0)
    for head in range(4):
        eigenvalues = np.linalg.eigvals(token_to_logits(weights, head).numpy())
        expected = eigenvalues.sum().real / np.abs(eigenvalues).sum()
        assert scores.value[head] == pytest.approx(expected, abs=1e-6)


def orthonormal_weights(W_OV: Tensor, d_head: int = 3) -> Weights:
    """Orthonormal embeddings that are also the unembedding, and one head with a given W_OV of rank d_head."""
    basis = torch.linalg.qr(normal(D_MODEL, D_MODEL, seed=1)).Q
    u, s, vT = torch.linalg.svd(W_OV)
    return Weights((site_of(u[None, :, :d_head] * s[:d_head], vT[None, :d_head]),), basis, basis.T)


def subspace(seed: int = 2, d_head: int = 3) -> Tensor:
    """A projection onto a random subspace."""
    basis = torch.linalg.qr(normal(D_MODEL, d_head, seed=seed)).Q
    return basis @ basis.T


def test_a_head_that_writes_what_it_reads_copies() -> None:
    for sign in (1, -1):
        (scores,) = copying_eigenvalues(orthonormal_weights(sign * subspace()), draws=400)
        assert scores.value.item() == pytest.approx(sign)
        # turned at random, the same singular values and subspaces: symmetric about 0
        assert abs(scores.chance.item()) < 4 * scores.samples.std().item() / 20
        assert scores.samples.abs().max() <= 1
        assert scores.samples.std() > 0.1


def test_a_random_head_lies_within_its_null() -> None:
    ranks = []
    for seed in range(60):
        (scores,) = copying_eigenvalues(random_weights("rmsnorm", None, 100 * seed), draws=40, seed=seed)
        ranks.append((scores.samples < scores.value).double().mean(0))
    below = torch.cat(ranks)  # uniform in [0, 1] were each null the head's own
    assert 0.4 < below.mean() < 0.6
    assert ((below > 0.95) | (below < 0.05)).double().mean() < 0.2


def test_the_null_is_that_of_rotations_between_fixed_subspaces() -> None:
    """Against scipy's random rotations, in whole matrices: read and written directions and singular values stay."""
    W_OV = subspace() @ torch.diag(torch.tensor([3, 1, 0.5, 2, 0.2, 1, 1]).double()) @ subspace(seed=9)
    weights = orthonormal_weights(W_OV)
    (scores,) = copying_eigenvalues(weights, draws=2000)
    u, s, vT = np.linalg.svd(W_OV.numpy())
    assert weights.W_E is not None
    basis = weights.W_E.numpy()
    expected = []
    for rotation in ortho_group.rvs(3, 2000, random_state=0):
        eigenvalues = np.linalg.eigvals(basis @ u[:, :3] @ rotation @ np.diag(s[:3]) @ vT[:3] @ basis.T)
        expected.append(eigenvalues.sum().real / np.abs(eigenvalues).sum())
    compared: Any = ks_2samp(scores.samples[:, 0].numpy(), expected)
    assert compared.pvalue > 0.01


def test_rotations_are_repeatable() -> None:
    weights = random_weights("rmsnorm", None, 3)
    first, second, other = (copying_eigenvalues(weights, draws=4, seed=seed)[0].samples for seed in (1, 1, 2))
    assert torch.equal(first, second)
    assert not torch.equal(first, other)


def direct_logits(weights: Weights, head: int, token: int) -> Tensor:
    """The logits of a head that attends to one token alone, one step after another."""
    site = weights.sites[0]
    kv_head = head // (len(site.heads.W_O) // len(site.heads.W_V))
    assert weights.W_E is not None
    assert weights.W_U is not None
    x = weights.embedding_scale * weights.W_E[token]
    for norm in (weights.embedding_norm, site.norms.before):
        x = x if norm is None else norm(x)
    z = x @ site.heads.W_V[kv_head] + (0 if site.heads.b_V is None else site.heads.b_V[kv_head])
    result = z @ site.heads.W_O[head] @ linear_part(site.norms.after) @ linear_part(weights.final_norm)
    return result @ weights.W_U


@pytest.mark.parametrize("before", ["layernorm", "rmsnorm", None])
@given(seed=st.integers(0, 10_000))
@settings(max_examples=5, deadline=None)
def test_copying_logits_token_by_token(before: Any, seed: int) -> None:
    weights = random_weights(before, "rmsnorm", seed)
    tokens = torch.stack([torch.randperm(VOCABULARY, generator=torch.Generator().manual_seed(s))[:5] for s in (1, 2)])
    (scores,) = copying_logits(weights, tokens)
    for row, head in np.ndindex(2, 4):
        on_attended = on_all = 0.0
        for token in tokens[row]:
            logits = direct_logits(weights, head, int(token))
            raised = (logits - logits.mean()).clamp(min=0)
            on_attended += raised[token].item()
            on_all += raised[tokens[row]].sum().item()
        expected = 2 * on_attended / on_all - 1
        assert scores.samples[row, head] == pytest.approx(expected, abs=1e-9)
    assert_close(scores.value, scores.samples.mean(0))


def test_copying_logits_of_planted_heads() -> None:
    tokens = torch.arange(D_MODEL)[None]
    identity = torch.eye(D_MODEL, dtype=torch.float64)
    (copies,) = copying_logits(orthonormal_weights(identity, D_MODEL), tokens)
    (avoids,) = copying_logits(orthonormal_weights(-identity, D_MODEL), tokens)
    assert (copies.value.item(), avoids.value.item()) == (pytest.approx(1), pytest.approx(-1))


def test_chance_is_the_mean_over_all_ways_to_pair_tokens() -> None:
    weights = random_weights("rmsnorm", None, 5)
    chosen = torch.tensor([1, 4, 6, 9])
    raised = torch.stack([(x := direct_logits(weights, 0, int(t))) - x.mean() for t in chosen])[:, chosen].clamp(min=0)
    shares = [raised[range(4), order].sum() / raised.sum() for order in map(list, permutations(range(4)))]
    (scores,) = copying_logits(weights, chosen[None])
    assert scores.chance[0] == pytest.approx(2 * torch.stack(shares).mean().item() - 1)
    assert scores.chance[0] == 2 / 4 - 1


def test_repeated_and_single_tokens_are_refused() -> None:
    weights = random_weights(None, None, 0)
    with pytest.raises(ValueError, match="must all be different"):
        copying_logits(weights, torch.tensor([[1, 2], [3, 3]]))
    for wrong in (torch.tensor([1, 2]), torch.tensor([[1]])):
        with pytest.raises(ValueError, match="at least two tokens"):
            copying_logits(weights, wrong)


def test_a_head_that_writes_nothing_has_no_score() -> None:
    weights = random_weights("rmsnorm", None, 0)
    weights.sites[0].heads.W_O[2] = 0
    for scores in (copying_eigenvalues(weights, draws=2)[0], copying_logits(weights, torch.arange(5)[None])[0]):
        nothing = scores.value.isnan().tolist()
        assert nothing[2]
        assert "writes nothing" in scores.note


def written_out(model: Any, layer: int, head: int, token: int) -> Tensor:
    """A decoder's direct path by its own modules: embedding, norm, v_proj, o_proj, final norm's gain, unembedding."""
    block, group = model.model.layers[layer], 2
    value = block.self_attn.v_proj(block.input_layernorm(model.model.embed_tokens(torch.tensor([token]))))
    z = torch.zeros(1, 48, dtype=value.dtype)
    kv_head = head // group
    z[:, head * 12 : head * 12 + 12] = value[:, kv_head * 12 : kv_head * 12 + 12]
    result, plus_one = block.self_attn.o_proj(z), 1 if "Gemma" in type(model).__name__ else 0
    if plus_one:
        result = result * (1 + block.post_attention_layernorm.weight)
    return model.lm_head(result * (plus_one + model.model.norm.weight))[0]


@pytest.mark.parametrize("family", ["llama", "gemma2"])
def test_copying_logits_by_the_model_s_own_modules(family: str) -> None:
    model = tiny(family)
    chosen = torch.tensor([5, 17, 42, 60])
    scores = copying_logits(Weights.from_transformers(model), chosen[None])
    with torch.no_grad():
        for layer, head in np.ndindex(2, 4):
            logits = torch.stack([written_out(model, layer, head, int(token)) for token in chosen])
            raised = (logits - logits.mean(1, keepdim=True))[:, chosen].clamp(min=0)
            expected = 2 * raised.trace() / raised.sum() - 1
            assert scores[layer].value[head] == pytest.approx(expected.item(), abs=1e-5)


@pytest.mark.parametrize("family", ["llama", "gemma2"])
def test_eigenvalues_by_the_model_s_own_weights(family: str) -> None:
    model = tiny(family)
    plus_one = 1 if family == "gemma2" else 0
    scores = copying_eigenvalues(Weights.from_transformers(model), draws=0)
    block = model.model.layers[1]
    head, kv_head = 3, 1
    embedded = model.model.embed_tokens.weight * (plus_one + block.input_layernorm.weight)
    result = embedded @ block.self_attn.v_proj.weight[12 * kv_head : 12 * kv_head + 12].T
    result = result @ block.self_attn.o_proj.weight[:, 12 * head : 12 * head + 12].T
    if family == "gemma2":
        result = result * (1 + block.post_attention_layernorm.weight)
    whole = (result * (plus_one + model.model.norm.weight)) @ model.lm_head.weight.T
    eigenvalues = np.linalg.eigvals(whole.detach().numpy())
    assert scores[1].value[head] == pytest.approx(eigenvalues.sum().real / np.abs(eigenvalues).sum(), abs=1e-6)


def notes(scores: list[CopyingScores]) -> set[str]:
    assert all(s.value.isnan().all() and s.samples.numel() == 0 for s in scores if s.note)
    return {s.note for s in scores}


@pytest.mark.parametrize(
    ("family", "reason"), [("bert", "between the last layer"), ("vit", "no unembedding"), ("distilbert", "between")]
)
def test_models_without_a_direct_path_say_why(family: str, reason: str) -> None:
    weights = Weights.from_transformers(tiny(family))
    for scores in (copying_eigenvalues(weights), copying_logits(weights, torch.tensor([[4, 5, 6]]))):
        (note,) = notes(scores)
        assert reason in note


def test_of_an_encoder_decoder_only_decoder_self_attention_has_a_direct_path() -> None:
    weights = Weights.from_transformers(tiny("t5"))
    scores = copying_eigenvalues(weights, draws=1)
    for site, score in zip(weights.sites, scores, strict=True):
        direct = site.stack == "decoder" and site.kind == "self"
        assert score.value.isnan().all().item() is not direct
    assert {s.note.split(":")[0] for s in scores if s.note} == {
        "the encoder does not end in the logits",
        "cross-attention",
    }
    assert notes(copying_logits(Weights.from_transformers(tiny("bart")), torch.tensor([[4, 5]]))) == {
        "the encoder does not end in the logits",
        "cross-attention: values come from another stack, not from an embedding",
        "post-norm: the stream itself passes through norms in each layer",
    }


def test_a_random_head_and_clipped_values_have_no_direct_path() -> None:
    weights = Weights.from_transformers(tiny("llama"), output_head_loaded=False)
    assert notes(copying_eigenvalues(weights)) == {"the output head was not in the checkpoint and is random"}
    clipped = Weights.from_transformers(tiny("mpt", attn_config={"clip_qkv": 3.0}))
    assert notes(copying_eigenvalues(clipped)) == {"values or z pass through clip_qkv, not in W_OV"}


def test_half_precision_and_float64_agree() -> None:
    model = tiny("gpt2", dtype=torch.bfloat16)
    half = copying_eigenvalues(Weights.from_transformers(model), draws=0)
    double = copying_eigenvalues(Weights.from_transformers(model.double()), draws=0)
    for a, b in zip(half, double, strict=True):
        assert_close(a.value, b.value)


def chain(before: Literal["layernorm", "rmsnorm"] | None, seed: int = 0) -> Weights:
    """Two layers of random heads, four query heads on two kv heads."""
    sites = []
    for layer in (0, 1):
        W_V, W_K = (normal(2, D_MODEL, 3, seed=seed + 10 * layer + i) for i in (1, 2))
        W_Q, W_O = normal(4, D_MODEL, 3, seed=seed + 10 * layer + 3), normal(4, 3, D_MODEL, seed=seed + 10 * layer + 4)
        norms = AttentionNorms("pre", norm_of(before, seed + layer), norm_of("rmsnorm", seed + 5 + layer))
        sites.append(site_of(W_V, W_O, norms, layer, W_Q, W_K))
    return Weights(tuple(sites))


@pytest.mark.parametrize("before", ["layernorm", "rmsnorm", None])
@pytest.mark.parametrize("into", ["query", "key", "value"])
def test_composition_is_that_of_the_whole_matrices(before: Any, into: Any) -> None:
    weights = chain(before)
    source, target = weights.sites
    found = composition(weights, into)
    norm = linear_part(target.norms.before)
    for one, two in np.ndindex(4, 4):
        center = linear_part(Norm("", before, torch.ones(D_MODEL).double(), None, 0)) if before else norm
        W_OV = linear_part(source.norms.before) @ source.heads.W_V[one // 2] @ source.heads.W_O[one]
        W_OV = W_OV @ linear_part(source.norms.after) @ center
        heads = target.heads
        W_QK = norm @ heads.W_Q[two] @ (norm @ heads.W_K[two // 2]).T
        reads = {
            "query": W_QK,
            "key": W_QK.T,
            "value": norm @ heads.W_V[two // 2] @ heads.W_O[two] @ linear_part(target.norms.after),
        }[into]
        expected = (W_OV @ reads).norm() / (W_OV.norm() * reads.norm())
        assert found.value[one, 4 + two].item() == pytest.approx(expected.item())
    assert found.value[4:].isnan().all()
    assert found.value[:, :4].isnan().all()
    assert found.heads[5] == ("layers.1.attn", 1, 1)


def test_composition_chance_is_that_of_a_turned_stream() -> None:
    weights = chain(None)
    squares = []
    for seed in range(2000):
        turn = torch.linalg.qr(normal(D_MODEL, D_MODEL, seed=seed))
        rotation = turn.Q * turn.R.diagonal().sign()
        source = weights.sites[0]
        turned = site_of(source.heads.W_V[:1], source.heads.W_O[:1] @ rotation)
        target = site_of(
            weights.sites[1].heads.W_V[:1],
            weights.sites[1].heads.W_O[:1],
            layer=1,
            W_Q=weights.sites[1].heads.W_Q[:1],
            W_K=weights.sites[1].heads.W_K[:1],
        )
        squares.append(composition(Weights((turned, target)), "key").value[0, 1] ** 2)
    assert torch.stack(squares).mean().sqrt().item() == pytest.approx(composition(weights, "key").chance, rel=0.03)
    assert composition(chain("layernorm"), "key").chance == (D_MODEL - 1) ** -0.5


def test_a_head_that_reads_what_another_writes_composes_fully() -> None:
    direction = torch.zeros(1, D_MODEL, 1, dtype=torch.float64)
    direction[0, 2] = 1
    elsewhere = direction.roll(3, 1)
    writer = site_of(elsewhere, direction.mT)
    reader = site_of(elsewhere, elsewhere.mT, layer=1, W_Q=elsewhere, W_K=direction)
    weights = Weights((writer, reader))
    assert composition(weights, "key").value[0, 1] == 1
    assert composition(weights, "query").value[0, 1] == 0
    assert composition(weights, "value").value[0, 1] == 0


def test_composition_says_what_it_does_not_tell() -> None:
    qwen = Weights.from_transformers(tiny("qwen3"))
    assert composition(qwen, "key").note == (
        "rotary: W_QK holds for a key at the query's own position; queries and keys pass through q_norm, k_norm, "
        "not in W_QK"
    )
    assert composition(qwen, "value").note == ""
    assert composition(Weights.from_transformers(tiny("gpt2")), "key").note == ""
    assert composition(Weights.from_transformers(tiny("falcon_alibi")), "key").note == ""
    bert = composition(Weights.from_transformers(tiny("bert")), "key")
    assert bert.value.isnan().all()
    assert bert.note == "post-norm layers are left out"


@pytest.mark.parametrize("into", ["query", "key", "value"])
def test_composition_by_rotation_is_that_of_the_whole_matrices(into: Any) -> None:
    weights = chain("rmsnorm")
    source, target = weights.sites
    d_head = target.heads.W_Q.shape[-1]
    turns = [torch.linalg.qr(normal(d_head, d_head, seed=seed)).Q for seed in (1, 2)]
    plain, *turned = composition_by_rotation(weights, into, [None, *turns])
    assert torch.equal(plain.value.nan_to_num(), composition(weights, into).value.nan_to_num())
    norm, heads = linear_part(target.norms.before), target.heads
    for found, turn in zip(turned, turns, strict=True):
        W_OV = linear_part(source.norms.before) @ source.heads.W_V[0] @ source.heads.W_O[1]
        W_OV = W_OV @ linear_part(source.norms.after)
        W_QK = norm @ heads.W_Q[3] @ turn @ (norm @ heads.W_K[1]).T
        value = norm @ heads.W_V[1] @ heads.W_O[3] @ linear_part(target.norms.after)
        reads = {"query": W_QK, "key": W_QK.T, "value": value}[into]
        expected = (W_OV @ reads).norm() / (W_OV.norm() * reads.norm())
        assert found.value[1, 4 + 3].item() == pytest.approx(expected.item())


def test_ov_norms_are_those_of_the_whole_matrices() -> None:
    weights = chain("layernorm")
    for site, found in ov_norms(weights):
        for head in range(4):
            whole = linear_part(site.norms.before) @ site.heads.W_V[head // 2] @ site.heads.W_O[head]
            assert found[head].item() == pytest.approx((whole @ linear_part(site.norms.after)).norm().item())


@pytest.mark.parametrize("family", ["llama", "mistral", "gpt_neox", "qwen3"])
def test_rotations_are_what_the_model_turns_its_queries_by(family: str) -> None:
    module = make(family)
    model = interp.load(module, verify=False)
    turns = rotations(module, range(6))
    before: dict[str, Any] = {}
    site = model.site(0)
    names = ("q_norm", "k_norm") if hasattr(site.module, "q_norm") else ("q_proj", "k_proj")
    if not hasattr(site.module, names[0]):
        names = ("query_key_value",)
    handles = [
        getattr(site.module, name).register_forward_hook(lambda _, __, out, name=name: before.__setitem__(name, out))
        for name in names
    ]
    trace = model.run(torch.arange(10, 16)[None], keep="qk").traces[site.name]
    for handle in handles:
        handle.remove()
    if len(names) == 1:
        q, k, _ = before[names[0]].view(1, 6, site.n_heads, 3, site.d_head).unbind(3)
    else:
        q = before[names[0]].view(1, 6, site.n_heads, site.d_head)
        k = before[names[1]].view(1, 6, site.n_kv_heads, site.d_head)
    q, k = q.transpose(1, 2).double(), k.transpose(1, 2).double()
    for query in range(6):
        for key in range(query + 1):
            expected = (trace.query[0, 0, query] * trace.key[0, 0, key]).sum().double()
            found = q[0, 0, query] @ turns[query - key] @ k[0, 0, key]
            assert found.item() == pytest.approx(expected.item(), rel=1e-3, abs=1e-4)


def test_rotations_that_are_not_known_are_refused() -> None:
    with pytest.raises(UserError, match="is not known"):
        rotations(make("gpt2"), [1])
