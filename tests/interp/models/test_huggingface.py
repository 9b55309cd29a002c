"""The core inside transformers' models: every family reads what its own eager attention computes."""

import copy
import gc
from functools import cache
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.testing import assert_close
from torch.utils._python_dispatch import TorchDispatchMode
from transformers.models.llama.modeling_llama import apply_rotary_pos_emb, eager_attention_forward

import interp
from interp.attention import edits, probes
from interp.errors import UserError
from interp.models.huggingface import implementation
from interp.models.owners import owner
from interp.models.projections import Declaration
from tests import eager, families
from tests.families import FAMILIES, OWN_SOFTMAX, WINDOWS, hf, load, make


@cache
def pair(family: str, dtype: torch.dtype = torch.float32) -> tuple[Any, Any]:
    """A hooked model and its untouched eager twin."""
    module = make(family, dtype=dtype)
    twin = eager.untouched(module)
    return load(module), twin


def arguments(model: interp.HookedModel, given: dict[str, Any]) -> dict[str, Any]:
    """Arguments of :meth:`HookedModel.run` as those of the model's own forward."""
    names = ("tokens", "valid", "decoder_tokens", "decoder_valid")
    rest = {name: value for name, value in given.items() if name not in names}
    tokens, valid, decoder_tokens, decoder_valid = (given.get(name) for name in names)
    return model.inputs.batch(model, tokens, valid, decoder_tokens, decoder_valid, rest).arguments


def targets_and_labels(pattern: Tensor) -> tuple[Tensor, Tensor]:
    """Three targets in every row (every fourth row two), and four labels."""
    batch, _, n_queries, n_keys = pattern.shape
    generator = torch.Generator().manual_seed(3)
    targets = torch.stack([torch.randperm(n_keys, generator=generator)[:3] for _ in range(n_queries)])
    targets[::4, 1] = -1
    return targets, torch.randint(0, 4, (batch, n_keys), generator=generator)


def compare(model: Any, twin: Any, given: dict[str, Any]) -> set[str]:
    """Assert that probes read what whole eager patterns hold, at every site and head; the names of what was read."""
    found, output = eager.patterns(twin, **arguments(model, given))
    whole = eager.by_site(found, model.sites)
    read: set[str] = set()
    for site in model.sites:
        pattern, cross = whole[site.name], site.kind == "cross"
        rows, keys = _valid(site, given, pattern)
        targets, labels = targets_and_labels(pattern)
        chosen = eager.same_probes(targets, labels, cross)
        run = model.run(**given, probes=chosen, sites=[site.name])
        expected = eager.statistics(pattern, rows, keys, cross, targets, labels)
        for probe in chosen:
            if probe.aligned and cross:
                assert (probe.name, site.name) in run.not_applicable
                continue
            got, want = run.readings(probe)[site.name].values, expected[probe.name]
            tolerance = eager.tolerance(probe)
            assert_close(
                got, want, **tolerance, equal_nan=True, msg=lambda m, p=probe, s=site: f"{s.name} {p.name}: {m}"
            )
            read.add(probe.name)
        assert_close(run.output[0][_rows(given)], output[0][_rows(given)], rtol=1e-5, atol=5e-5)
    return read


def _valid(site: Any, given: dict[str, Any], pattern: Tensor) -> tuple[Tensor, Tensor]:
    """Which rows and keys of a site are no padding."""
    batch, _, n_queries, n_keys = pattern.shape
    main, decoder = given.get("valid"), given.get("decoder_valid")
    rows = decoder if site.stack == "decoder" else main
    keys = main if site.kind == "cross" else rows
    everything = torch.ones(batch, max(n_queries, n_keys), dtype=torch.bool)
    return (everything[:, :n_queries] if rows is None else rows), (everything[:, :n_keys] if keys is None else keys)


def _rows(given: dict[str, Any]) -> Any:
    valid = given.get("decoder_valid") if "decoder_tokens" in given else given.get("valid")
    return slice(None) if valid is None else valid


# What is read ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("family", FAMILIES)
def test_statistics_are_those_of_eager_patterns(family: str) -> None:
    model, twin = pair(family)
    read = compare(model, twin, families.example(family))
    assert {"entropy", "max_weight", "offset_mass", "position_mass", "expected_distance", "target_mass", "label_match",
            "mass_received"} == read  # fmt: skip
    kinds = {(site.stack, site.kind) for site in model.sites}
    if family in families.ENCODER_DECODERS:
        assert kinds == {("encoder", "self"), ("decoder", "self"), ("decoder", "cross")}


@pytest.mark.parametrize("family", ["gpt2", "t5", "bart", "bert", "roberta", "distilbert"])
def test_statistics_in_float64_keep_its_digits(family: str) -> None:
    model, twin = pair(family, torch.float64)
    given = families.example(family)
    found, _ = eager.patterns(twin, **arguments(model, given))
    whole = eager.by_site(found, model.sites)
    run = model.run(**given, probes=[probes.MaxWeight(), probes.Entropy()])
    for site in model.sites:
        pattern = whole[site.name]
        assert_close(run.readings(0)[site.name].values, pattern.amax(-1).mean(-1), rtol=0, atol=1e-13)
        assert_close(
            run.readings(1)[site.name].values, torch.special.entr(pattern).sum(-1).mean(-1), rtol=0, atol=1e-13
        )


@pytest.mark.parametrize("family", OWN_SOFTMAX)
def test_patterns_that_a_float64_model_builds_keep_its_digits(family: str) -> None:
    model, twin = pair(family, torch.float64)
    found, _ = eager.patterns(twin, **arguments(model, families.example(family)))
    rows = model.run(**families.example(family), probes=[probes.SelectedRows(queries=range(13))])
    for site in model.sites:
        assert_close(rows.readings(0)[site.name].values, found[""][site.layer].double(), rtol=0, atol=1e-13)


def test_rows_of_gpt_oss_leave_the_rest_to_the_sink() -> None:
    model, twin = pair("gpt_oss")
    run = model.run(**families.example("gpt_oss"), probes=[probes.SelectedRows(queries=range(13))])
    found, _ = eager.patterns(twin, **arguments(model, families.example("gpt_oss")))
    for site in model.sites:
        sums = run.readings(0)[site.name].values.sum(-1)
        assert (sums < 1).all()
        assert sums.mean() < 0.97
        assert_close(sums, found[""][site.layer].double().sum(-1), rtol=0, atol=1e-5)


@pytest.mark.parametrize("family", WINDOWS)
def test_windows_are_the_models_own(family: str) -> None:
    model, _ = pair(family)
    run = model.run(**families.example(family), probes=[probes.MaxWeight()])
    kinds = getattr(model.config, "layer_types", ["sliding_attention"] * 3)
    assert {"sliding_attention"} <= set(kinds)
    for site, kind in zip(model.sites, kinds, strict=True):
        assert run.masks[site.name][0].window == (WINDOWS[family] if kind == "sliding_attention" else None)


def test_smollm2_reads_its_eager_patterns(smollm2: interp.HookedModel) -> None:
    tokens = torch.randint(100, 49152, (4, 64), generator=torch.Generator().manual_seed(0))
    assert "entropy" in compare_all_at_once(smollm2, {"tokens": tokens})


def test_minilm_reads_its_eager_patterns(minilm: interp.HookedModel) -> None:
    tokens = torch.randint(1000, 30522, (4, 40), generator=torch.Generator().manual_seed(0))
    valid = torch.arange(40) < torch.tensor([[40], [31], [7], [25]])
    assert "entropy" in compare_all_at_once(minilm, {"tokens": tokens, "valid": valid})


def compare_all_at_once(model: interp.HookedModel, given: dict[str, Any]) -> set[str]:
    """As :func:`compare`, with one forward pass for all sites."""
    twin = eager.untouched(model.module)
    found, _ = eager.patterns(twin, **arguments(model, given))
    targets, labels = targets_and_labels(found[""][0])
    chosen = eager.same_probes(targets, labels, cross=False)
    run = model.run(**given, probes=chosen)
    for site in model.sites:
        pattern = found[""][site.layer]
        rows, keys = _valid(site, given, pattern)
        expected = eager.statistics(pattern, rows, keys, False, targets, labels)
        for probe in chosen:
            tolerance = eager.tolerance(probe)
            assert_close(run.readings(probe)[site.name].values, expected[probe.name], **tolerance, equal_nan=True)
    return {probe.name for probe in chosen}


# Padding --------------------------------------------------------------------------------------------------------------

LENGTHS = (13, 8, 10)


def padded(side: str, length: int = 13) -> tuple[Tensor, Tensor, list[Tensor]]:
    """Three sequences of different lengths in one batch, its mask, and the sequences."""
    rows = [families.tokens(1, n, seed=n)[0] for n in LENGTHS]
    tokens = torch.full((3, length + 2), 5)
    valid = torch.zeros(3, length + 2, dtype=torch.bool)
    for i, row in enumerate(rows):
        place = slice(length + 2 - len(row), None) if side == "left" else slice(len(row))
        tokens[i, place], valid[i, place] = row, True
    return tokens, valid, rows


def of_one(run: Any, probe: int, sequence: int) -> Tensor:
    return torch.cat([r.values[sequence].flatten() for r in run.readings(probe).values()])


@pytest.mark.parametrize("side", ["left", "right"])
@pytest.mark.parametrize("family", [*families.DECODERS, *families.ENCODERS])
def test_padding_changes_nothing(family: str, side: str) -> None:
    model, _ = pair(family)
    tokens, valid, rows = padded(side)
    chosen = probes.basic()
    run = model.run(tokens, valid, probes=chosen)
    for i, row in enumerate(rows):
        alone = model.run(row[None], probes=chosen)
        assert_close(run.logits[i, valid[i]], alone.logits[0], rtol=1e-5, atol=1e-5)
        for number in range(len(chosen)):
            assert_close(of_one(run, number, i), of_one(alone, number, 0), rtol=1e-5, atol=1e-5, equal_nan=True)


@pytest.mark.parametrize("decoder_side", ["left", "right"])
@pytest.mark.parametrize("side", ["left", "right"])
@pytest.mark.parametrize("family", families.ENCODER_DECODERS)
def test_padding_of_either_stack_changes_nothing(family: str, side: str, decoder_side: str) -> None:
    model, _ = pair(family)
    tokens, valid, rows = padded(side)
    decoder_tokens, decoder_valid, decoder_rows = padded(decoder_side)
    given = {"decoder_tokens": decoder_tokens.flip(0), "decoder_valid": decoder_valid.flip(0)}
    chosen = probes.basic()
    if family == "bart" and "left" in (side, decoder_side):
        with pytest.raises(UserError, match="cannot be told positions, so padding on the left would shift them"):
            model.run(tokens, valid, **given, probes=chosen)
        return
    run = model.run(tokens, valid, **given, probes=chosen)
    for i, (row, other) in enumerate(zip(rows, reversed(decoder_rows), strict=True)):
        alone = model.run(row[None], decoder_tokens=other[None], probes=chosen)
        assert_close(run.logits[i, given["decoder_valid"][i]], alone.logits[0], rtol=1e-5, atol=1e-5)
        for number in range(len(chosen)):
            assert_close(of_one(run, number, i), of_one(alone, number, 0), rtol=1e-5, atol=1e-5, equal_nan=True)


@pytest.mark.parametrize("family", ["llama", "bert", "t5", "bloom"])
def test_padded_statistics_are_those_of_eager_patterns(family: str) -> None:
    model, twin = pair(family)
    tokens, valid, _ = padded("left" if family != "bert" else "right")
    decoder = {"decoder_tokens": tokens, "decoder_valid": valid} if family == "t5" else {}
    compare(model, twin, {"tokens": tokens, "valid": valid, **decoder})


def test_smollm2_padded_on_either_side(smollm2: interp.HookedModel) -> None:
    rows = [torch.randint(100, 49152, (n,), generator=torch.Generator().manual_seed(n)) for n in (40, 23)]
    alone = [smollm2.run(row[None], probes=probes.basic()) for row in rows]
    for side in ("left", "right"):
        tokens, valid = torch.zeros(2, 40, dtype=torch.long), torch.zeros(2, 40, dtype=torch.bool)
        for i, row in enumerate(rows):
            place = slice(40 - len(row), None) if side == "left" else slice(len(row))
            tokens[i, place], valid[i, place] = row, True
        run = smollm2.run(tokens, valid, probes=probes.basic())
        for i, number in ((i, number) for i in range(2) for number in range(5)):
            assert_close(of_one(run, number, i), of_one(alone[i], number, 0), rtol=1e-5, atol=1e-5, equal_nan=True)


# Generation -----------------------------------------------------------------------------------------------------------

GREEDY = {"do_sample": False, "max_new_tokens": 12, "min_new_tokens": 12}


@pytest.mark.parametrize("padding", [False, True])
@pytest.mark.parametrize("family", [*families.DECODERS, *families.ENCODER_DECODERS])
def test_generation_with_a_cache_gives_the_models_tokens(family: str, padding: bool) -> None:
    model, twin = pair(family)
    tokens = families.tokens(2, 9)
    mask = torch.ones_like(tokens)
    if padding:
        mask[0, :3] = 0
    expected = twin.generate(tokens, attention_mask=mask, **GREEDY)
    assert torch.equal(model.generate(tokens, attention_mask=mask, **GREEDY), expected)
    assert expected.shape[1] >= 12


def test_smollm2_generates_its_own_tokens(smollm2: Any) -> None:
    batch = smollm2.tokenizer(["The capital of France is", "Once upon a time there was a little girl who"],
                              padding=True, padding_side="left", return_tensors="pt")  # fmt: skip
    with implementation(smollm2.module, "sdpa"):
        expected = smollm2.module.generate(**batch, **GREEDY)
    assert torch.equal(smollm2.generate(**batch, **GREEDY), expected)
    assert " Paris" in smollm2.tokenizer.decode(expected[0])


@pytest.mark.parametrize("family", ["llama", "mistral", "gpt2"])
def test_generation_with_a_static_cache(family: str) -> None:
    model, twin = pair(family)
    tokens = families.tokens(2, 9)
    expected = twin.generate(tokens, cache_implementation="static", **GREEDY)
    assert torch.equal(model.generate(tokens, cache_implementation="static", **GREEDY), expected)


@pytest.mark.parametrize("family", ["llama", "mistral", "bloom", "t5", "bart"])
def test_edits_act_during_generation(family: str) -> None:
    """Generation with a cache under edits gives what argmax of whole edited passes gives."""
    model, _ = pair(family)
    edit = edits.GateHeads({(site.name, head): 0.0 for site in model.sites[-2:] for head in range(site.n_heads - 1)})
    tokens = families.tokens(2, 9)
    with model.edit(edit):
        generated = model.generate(tokens, **GREEDY)
        if family in families.ENCODER_DECODERS:
            for i in range(1, generated.shape[1]):
                logits = model.run(tokens, decoder_tokens=generated[:, :i]).logits
                logits[..., 2] = -torch.inf  # min_new_tokens forbids the end
                assert torch.equal(logits[:, -1].argmax(-1), generated[:, i])
        else:
            logits = model.run(generated[:, :-1]).logits[:, 8:]
            logits[..., 2] = -torch.inf
            assert torch.equal(logits.argmax(-1), generated[:, 9:])
    assert not torch.equal(generated, model.generate(tokens, **GREEDY))


# Memory ---------------------------------------------------------------------------------------------------------------


class Largest(TorchDispatchMode):
    """The most elements that any tensor has had with two dimensions of at least ``length``."""

    def __init__(self, length: int) -> None:
        super().__init__()
        self.length, self.pairs = length, 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        out = func(*args, **(kwargs or {}))
        for tensor in out if isinstance(out, tuple | list) else [out]:
            if isinstance(tensor, Tensor) and sum(size >= self.length for size in tensor.shape) >= 2:
                self.pairs = max(self.pairs, tensor.numel())
        return out


@pytest.mark.parametrize(("family", "padding"), [("llama", False), ("llama", True), ("mistral", True), ("gpt2", True),
                                                 ("bert", True), ("modernbert", True), ("gpt_oss", False)])  # fmt: skip
def test_nothing_holds_queries_times_keys(family: str, padding: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    from interp.attention import blocked

    length = 512
    for limit in (blocked.BLOCK_BYTES, blocked.TALL_BYTES):
        monkeypatch.setitem(limit, "cpu", 64 << 10)
    model = load(make(family, max_position_embeddings=length, n_positions=length) if family == "gpt2" else
                        make(family, max_position_embeddings=length))  # fmt: skip
    tokens = families.tokens(1, length)
    valid = torch.arange(length)[None] < length - 5 if padding else None
    with Largest(length) as largest:
        model.run(tokens, valid, probes=probes.basic())
    assert largest.pairs == 0
    assert "model_built_pairs" not in model.info
    assert "model_built_patterns" not in model.info


def test_models_that_build_pairs_are_said_so() -> None:
    t5, _ = pair("t5")
    assert t5.info["model_built_pairs"] == [site.name for site in t5.sites]
    for family in OWN_SOFTMAX:
        model, _ = pair(family)
        assert model.info["model_built_patterns"] == [site.name for site in model.sites]
    with Largest(40) as largest:
        t5.run(families.tokens(1, 40), decoder_tokens=families.tokens(1, 40))
    assert largest.pairs == 4 * 40 * 40  # the bias of four heads


# Whose model is it ----------------------------------------------------------------------------------------------------


def test_two_models_of_a_class_do_not_disturb_each_other() -> None:
    first, second = load(make("llama", seed=1)), load(make("llama", seed=2))
    tokens = families.tokens()
    before = second.run(tokens).logits
    with first.edit(edits.Uniform()):
        assert torch.equal(second.run(tokens).logits, before)
        inside = first.run(tokens, probes=[probes.MaxWeight()], hooks={"blocks.0.attn.hook_z": lambda z, hook: None})
        assert set(inside.readings(0)) == {site.name for site in first.sites}
    assert not torch.equal(inside.logits, first.run(tokens).logits)


@pytest.mark.parametrize("family", ["llama", "bloom"])
def test_a_model_that_is_gone_leaves_its_module_plain(family: str) -> None:
    module = make(family)
    expected = eager.untouched(module)(families.tokens()).logits
    model = load(module)
    edited = model.edit(edits.Uniform())
    edited.__enter__()
    assert not torch.allclose(module(families.tokens()).logits, expected, atol=1e-2)
    path = model.sites[0].path
    del model, edited
    gc.collect()
    assert owner(module.get_submodule(path)) is None
    assert_close(module(families.tokens()).logits, expected, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("family", ["llama", "bloom", "t5"])
def test_the_last_to_load_a_module_owns_it(family: str) -> None:
    module = make(family)
    first, second = load(module), load(module)
    given = families.example(family)
    run = second.run(**given, probes=[probes.MaxWeight()])
    assert len(run.readings(0)) == len(second.sites)
    with pytest.raises(UserError, match="loaded again and belongs to another HookedModel now"):
        first.run(**given, probes=[probes.MaxWeight()])
    with pytest.raises(UserError, match="loaded again and belongs to another HookedModel now"):
        first.run(**given, edits=[edits.Uniform()])


def test_loading_twice_reads_once() -> None:
    module = make("bloom")
    load(module)
    kept = load(module)
    tokens = families.tokens()
    halved = kept.run(tokens, edits=[edits.GateHeads({(0, 0): 0.5})]).logits
    assert_close(halved, load(make("bloom")).run(tokens, edits=[edits.GateHeads({(0, 0): 0.5})]).logits)


def test_another_implementation_set_behind_its_back_is_noticed() -> None:
    model = load(make("llama"))
    model.module.set_attn_implementation("sdpa")
    with pytest.raises(UserError, match="came to none of its sites: its attention implementation was changed"):
        model.run(families.tokens(), edits=[edits.Uniform()])


@pytest.mark.parametrize("family", ["llama", "bloom"])
def test_a_deep_copy_is_a_plain_model_of_its_own(family: str) -> None:
    model = load(make(family))
    twin = copy.deepcopy(model.module)
    tokens = families.tokens()
    expected = model.run(tokens).logits
    with torch.no_grad():
        for parameter in model.module.parameters():
            parameter.zero_()
    with model.edit(edits.Uniform()):
        assert_close(twin(tokens).logits, expected)


# What is served, and what is refused ----------------------------------------------------------------------------------


@pytest.mark.parametrize("family", FAMILIES)
def test_sites_are_named_and_sized(family: str) -> None:
    model, _ = pair(family)
    layers = len({(s.stack, s.layer) for s in model.sites})
    assert len({site.name for site in model.sites}) == len(model.sites)
    assert model.info["n_sites"] == len(model.sites)
    assert model.info["n_layers"] == layers
    if family in families.ENCODER_DECODERS:
        assert [site.name for site in model.sites] == [
            "encoder_blocks.0.attn", "encoder_blocks.1.attn", "decoder_blocks.0.self_attn",
            "decoder_blocks.0.cross_attn", "decoder_blocks.1.self_attn", "decoder_blocks.1.cross_attn"]  # fmt: skip
    else:
        assert [site.name for site in model.sites] == [f"blocks.{i}.attn" for i in range(layers)]


def test_a_module_that_serves_several_layers_is_refused() -> None:
    module = hf.AlbertForMaskedLM(hf.AlbertConfig(**families.SIZES, embedding_size=16))
    with pytest.raises(UserError, match=r"runs one attention module \(AlbertAttention\) for several layers"):
        load(module)
    assert module.config._attn_implementation == "sdpa"


def test_attention_that_takes_no_softmax_is_refused() -> None:
    module = make("bloom")
    for block in module.transformer.h:
        block.self_attention.forward = lambda hidden, residual, **_: (hidden + residual, None)
    with pytest.raises(UserError, match="neither calls transformers' attention interface nor takes a softmax"):
        load(module)


class OddAttention(nn.Module):
    """Llama's attention under other names."""

    def __init__(self, known: Any) -> None:
        super().__init__()
        self.config, self.head_dim, self.is_causal, self.scaling = known.config, known.head_dim, True, known.scaling
        self.num_key_value_groups = known.num_key_value_groups
        self.to_q, self.to_k, self.to_v, self.to_out = known.q_proj, known.k_proj, known.v_proj, known.o_proj

    def forward(self, hidden_states: Tensor, position_embeddings: Any, attention_mask: Any, **_: Any) -> Any:
        heads = [
            p(hidden_states).unflatten(-1, (-1, self.head_dim)).transpose(1, 2)
            for p in (self.to_q, self.to_k, self.to_v)
        ]
        query, key = apply_rotary_pos_emb(*heads[:2], *position_embeddings)
        attend = hf.AttentionInterface().get_interface(self.config._attn_implementation, eager_attention_forward)
        z, weights = attend(self, query, key, heads[2], attention_mask, scaling=self.scaling)
        return self.to_out(z.flatten(-2)), weights


def test_unknown_projections_are_served_without_weights_until_declared() -> None:
    known, odd = load(make("llama")), make("llama")
    for layer in odd.model.layers:
        layer.self_attn = OddAttention(layer.self_attn)
    model, tokens = load(odd), families.tokens()
    assert [(s.name, s.n_heads, s.n_kv_heads, s.d_head) for s in model.sites] == [
        (s.name, s.n_heads, s.n_kv_heads, s.d_head) for s in known.sites
    ]
    edit = edits.Uniform(heads=[(1, 2)])
    expected = known.run(tokens, edits=[edit], probes=probes.basic())
    run = model.run(tokens, edits=[edit], probes=probes.basic())
    assert_close(run.logits, expected.logits)
    assert_close(run.values(0), expected.values(0))
    with pytest.raises(UserError, match=r"projections of model.layers.1.self_attn \(OddAttention\) are not known; its "
                       r"children are to_q, to_k, to_v, to_out. Pass declarations"):  # fmt: skip
        model.head_weights(1)
    names = Declaration("to_out", query="to_q", key="to_k", value="to_v", classes=("OddAttention",))
    assert load(odd, declarations=[names]).head_weights(1).W_Q.shape == (6, 48, 8)


def test_a_projection_that_cannot_be_read_costs_its_own_site_its_weights_and_no_other() -> None:
    module, known = make("llama"), load(make("llama"))
    adapted = module.model.layers[1].self_attn
    adapted.v_proj = nn.Sequential(adapted.v_proj)
    model, tokens = load(module), families.tokens()
    assert [site.name for site in model.sites] == [site.name for site in known.sites]
    for layer in (0, 2):
        assert_close(model.head_weights(layer).W_V, known.head_weights(layer).W_V)
    with pytest.raises(UserError, match=r"value projection of model\.layers\.1\.self_attn is a Sequential"):
        model.head_weights(1)
    run, expected = (m.run(tokens, probes=probes.basic()) for m in (model, known))
    assert_close(run.values(0), expected.values(0))


def test_latent_attention_is_read_too() -> None:
    """DeepSeek's queries and keys are wider than its values, and come from no plain projections."""
    latent = {"kv_lora_rank": 8, "q_lora_rank": 8, "qk_rope_head_dim": 4, "qk_nope_head_dim": 8, "v_head_dim": 6,
              "num_key_value_heads": 4}  # fmt: skip
    experts = {"n_routed_experts": 4, "num_experts_per_tok": 2, "first_k_dense_replace": 1, "n_group": 2,
               "topk_group": 1, "moe_intermediate_size": 16}  # fmt: skip
    module = hf.DeepseekV3ForCausalLM(hf.DeepseekV3Config(**families.SIZES, **latent, **experts))
    module = families.randomised(module).eval()
    twin = eager.untouched(module)
    model = load(module)
    compare(model, twin, {"tokens": families.tokens()})
    with pytest.raises(UserError, match="are not known; its children are q_a_proj"):
        model.head_weights(0)


def test_chunked_attention() -> None:
    """Llama 4: two layers that look back no further than their chunk, one that sees everything."""
    chunks = {
        "attention_chunk_size": 5,
        "no_rope_layers": [1, 1, 0],
        "moe_layers": [],
        "intermediate_size_mlp": 64,
        "layer_types": ["chunked_attention", "chunked_attention", "full_attention"],
        "num_local_experts": 2,
    }
    module = hf.Llama4ForCausalLM(hf.Llama4TextConfig(**families.GROUPED, **chunks))
    module = families.randomised(module).eval()
    twin = eager.untouched(module)
    model = load(module)
    tokens, valid, _ = padded("left")
    compare(model, twin, {"tokens": tokens})
    compare(model, twin, {"tokens": tokens, "valid": valid})


def test_the_language_part_of_a_model_that_also_sees() -> None:
    text = hf.Gemma3TextConfig(**families.GROUPED, sliding_window=7, query_pre_attn_scalar=8)
    sight = hf.SiglipVisionConfig(**families.IMAGES | {"patch_size": 8})
    both = hf.Gemma3Config(text_config=text, vision_config=sight, mm_tokens_per_image=4, image_token_index=95,
                           boi_token_index=93, eoi_token_index=94)  # fmt: skip
    module = families.randomised(hf.Gemma3ForConditionalGeneration(both)).eval()
    twin = eager.untouched(module)
    model = load(module)
    assert model.info["not_reached"] == [f"model.vision_tower.encoder.layers.{i}.self_attn" for i in range(2)]
    assert [site.name for site in model.sites] == ["blocks.0.attn", "blocks.1.attn", "blocks.2.attn"]
    assert (model.n_ctx, model.d_vocab, model.is_causal) == (128, 97, True)
    compare(model, twin, {"tokens": families.tokens().clamp_max(90)})


def test_packed_sequences_are_read_apart() -> None:
    model, twin = pair("mistral")
    position_ids = torch.cat([torch.arange(6), torch.arange(7)]).expand(2, -1)
    compare(model, twin, {"tokens": families.tokens(), "position_ids": position_ids})
    first = model.run(families.tokens()[:, :6], probes=probes.basic())
    both = model.run(families.tokens(), position_ids=position_ids, probes=[probes.SelectedRows(queries=range(6))])
    assert_close(both.logits[:, :6], first.logits, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("kind", ["bool", "float"])
@pytest.mark.parametrize("family", ["llama", "gpt2", "bert"])
def test_masks_that_a_user_gives_whole(family: str, kind: str) -> None:
    """A prefix that all may read, the rest in causal order; in float with a bias beside it."""
    model, twin = pair(family)
    mask = torch.ones(13, 13, dtype=torch.bool).tril()
    mask[:, :4] = True
    mask = mask.expand(2, 1, -1, -1)
    if kind == "float":
        bias = torch.linspace(-1, 1, 13).expand(2, 1, 13, 13)
        mask = bias.masked_fill(~mask, torch.finfo(torch.float32).min)
    own = mask if kind == "float" else torch.zeros(mask.shape).masked_fill(~mask, torch.finfo(torch.float32).min)
    tokens = families.tokens()
    found, output = eager.patterns(twin, input_ids=tokens, attention_mask=own)
    run = model.run(tokens, attention_mask=mask, probes=[probes.SelectedRows(queries=range(13)), probes.PositionMass()])
    assert_close(run.logits, output.logits, rtol=1e-5, atol=1e-5)
    for site in model.sites:
        assert_close(run.readings(0)[site.name].values, found[""][site.layer].double(), rtol=0, atol=1e-5)
    masks = {id(mask.allowed) for mask, _ in run.masks.values()}
    assert len(masks) == 1  # every layer was handed a tensor: one is kept
