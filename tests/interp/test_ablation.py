"""Ablations against the untouched transformers model with heads taken out at the input of its output projection."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, cast

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from transformers import AttentionInterface, AttentionMaskInterface
from transformers.masking_utils import eager_mask

import interp
from interp import HookedModel
from interp.ablation import (
    Batch,
    Kind,
    ablation_effects,
    all_but_one,
    blocks_before,
    mean_loss,
    mean_z,
    single_heads,
    without_logits,
)
from interp.attention.edits import GateHeads
from interp.attention.probes import SelectedRows
from interp.errors import UserError
from tests.families import make
from tests.own_models import Language

KINDS: tuple[Kind, ...] = ("zero", "mean", "resample", "mean_pattern", "pattern_preserving")
EAGER = 1e-6  # transformers' eager attention takes its softmax in float32, whatever the model's dtype
OUTPUTS = {"llama": "o_proj", "gpt2": "c_proj", "gpt_neox": "dense", "gemma2": "o_proj"}


def tokens(n: int = 4, length: int = 11, seed: int = 0) -> Tensor:
    return torch.randint(3, 97, (n, length), generator=torch.Generator().manual_seed(seed))


def loss(model: HookedModel, batch: Batch) -> Tensor:
    return model.token_loss(**batch).mean(1)


def hooked(family: str, seed: int = 0) -> HookedModel:
    return interp.load(make(family, seed, torch.float64), verify=False)


def plain_loss(module: nn.Module, ids: Tensor) -> np.ndarray:
    with torch.no_grad():
        logits = module(input_ids=ids).logits[:, :-1]
    return nn.functional.cross_entropy(logits.transpose(1, 2), ids[:, 1:], reduction="none").mean(1).numpy()


@contextmanager
def output_input(
    family: str, module: nn.Module, layer: int, change: Callable[[Tensor], Tensor | None]
) -> Iterator[None]:
    """Change, or look at, what enters a layer's output projection: z of all heads side by side."""
    found = [child for name, child in module.named_modules() if f".{layer}." in name and name.endswith(OUTPUTS[family])]
    attention = next(child for child in found if "mlp" not in _path(module, child))

    def hook(_: nn.Module, given: tuple[Tensor, ...]) -> Any:
        changed = change(given[0])
        return None if changed is None else (changed,)

    handle = attention.register_forward_pre_hook(hook)
    try:
        yield
    finally:
        handle.remove()


def _path(root: nn.Module, child: nn.Module) -> str:
    return next(name for name, module in root.named_modules() if module is child)


def z_of(family: str, module: nn.Module, layer: int, ids: Tensor) -> Tensor:
    seen: list[Tensor] = []
    with output_input(family, module, layer, lambda z: seen.append(z.clone())), torch.no_grad():
        module(input_ids=ids)
    return seen[0]


@pytest.mark.parametrize("family", list(OUTPUTS))
@pytest.mark.parametrize("kind", ["zero", "mean", "resample"])
def test_effects_are_those_of_changing_what_the_output_projection_reads(family: str, kind: Kind) -> None:
    model, plain = hooked(family), make(family, dtype=torch.float64)
    plain.set_attn_implementation("eager")  # SDPA has no softcap, which Gemma-2 needs
    ids, others = tokens(), tokens(seed=1)
    layer, head = 1, 2
    d = model.site(layer).d_head
    part = slice(head * d, (head + 1) * d)
    other = z_of(family, plain, layer, others)[..., part]
    replacement = {"zero": torch.zeros(()), "mean": other.mean((0, 1)), "resample": other}[kind]

    def change(z: Tensor) -> Tensor:
        return torch.cat([z[..., : part.start], replacement.to(z).expand_as(z[..., part]), z[..., part.stop :]], -1)

    with output_input(family, plain, layer, change):
        expected = plain_loss(plain, ids)
    effects = ablation_effects(model, [{"tokens": ids}], loss, [[(layer, head)]], [kind], others=[{"tokens": others}])
    np.testing.assert_allclose(effects.untouched, plain_loss(plain, ids), rtol=0, atol=EAGER)
    np.testing.assert_allclose(effects.ablated[0, 0], expected, rtol=0, atol=EAGER)
    assert np.abs(effects.change).max() > 1e-4


def test_pattern_preserving_is_the_model_with_its_patterns_frozen() -> None:
    """Against transformers with an attention function that takes its patterns from an eager run."""
    model, plain = hooked("llama"), make("llama", dtype=torch.float64)
    ids, heads = tokens(), [(0, 1), (0, 4), (1, 3)]
    plain.set_attn_implementation("eager")
    with torch.no_grad():
        patterns = plain(input_ids=ids, output_attentions=True).attentions

    def frozen(module: nn.Module, query: Tensor, key: Tensor, value: Tensor, *_: Any, **__: Any) -> tuple[Tensor, None]:
        z = patterns[module.layer_idx] @ value.repeat_interleave(query.shape[1] // value.shape[1], 1)
        for layer, head in heads:
            if layer == module.layer_idx:
                z[:, head] = 0.0
        return z.transpose(1, 2), None

    AttentionInterface.register("frozen", frozen)
    AttentionMaskInterface.register("frozen", eager_mask)
    plain.set_attn_implementation("frozen")
    effects = ablation_effects(model, [{"tokens": ids}], loss, [heads], ["zero", "pattern_preserving"])
    np.testing.assert_allclose(effects.ablated[1, 0], plain_loss(plain, ids), rtol=0, atol=EAGER)
    assert np.abs(effects.ablated[0] - effects.ablated[1]).max() > 1e-4  # later patterns do follow where they may


def test_pattern_preserving_keeps_every_pattern() -> None:
    model, ids = hooked("gemma2"), tokens()
    probe = SelectedRows(queries=range(ids.shape[1]))
    clean = model.run(ids, probes=[probe]).values(probe)
    seen = []

    def metric(model: HookedModel, batch: Batch) -> Tensor:
        seen.append(model.run(**batch, probes=[probe]).values(probe))
        return torch.zeros(len(ids))

    ablation_effects(model, [{"tokens": ids}], metric, [[(0, 0), (1, 2)]], ["pattern_preserving", "zero"])
    torch.testing.assert_close(seen[1], clean, rtol=0, atol=1e-12)
    assert (seen[2] - clean).abs().max() > 1e-3


@pytest.mark.parametrize("family", ["llama", "gpt2", "gemma2", "gpt_neox", "opt"])
def test_replayed_layers_change_no_number(family: str) -> None:
    model = hooked(family)
    last = model.sites[-1].layer
    sets = [[(last, 0)], [(0, 1)], [(last, 2), (last - 1, 3)]]
    batches, others = [{"tokens": tokens(3)}, {"tokens": tokens(2, seed=5)}], [{"tokens": tokens(3, seed=2)}]
    computed, replayed = (
        ablation_effects(model, batches, loss, sets, KINDS, others=others, replay=replay) for replay in (False, True)
    )
    np.testing.assert_array_equal(computed.ablated, replayed.ablated)
    assert [len(blocks_before(model, [(model.site(s).name, h) for s, h in heads])) for heads in sets] == [
        last,
        0,
        last - 1,
    ]


def test_layers_are_replayed_within_one_stack_only() -> None:
    model = hooked("t5")
    batch = {"tokens": tokens(2, 7), "decoder_tokens": tokens(2, 5, 3)}
    sets = [
        [("encoder_blocks.1.attn", 0)],
        [("decoder_blocks.1.cross_attn", 2)],
        [("encoder_blocks.0.attn", 1), ("decoder_blocks.1.self_attn", 0)],
    ]

    def metric(model: HookedModel, batch: Batch) -> Tensor:
        return cast(Tensor, model.run(**batch).logits).logsumexp(-1).mean(1)

    computed, replayed = (ablation_effects(model, [batch], metric, sets, replay=replay) for replay in (False, True))
    np.testing.assert_array_equal(computed.ablated, replayed.ablated)
    assert [len(blocks_before(model, heads)) for heads in sets] == [1, 1, 0]


def test_replayed_layers_are_not_computed_and_come_back() -> None:
    model = hooked("llama")
    model.require_loss()  # looks at the model's masks once, by a forward pass
    calls, module = [], cast(Any, model.module)
    for layer in module.model.layers:
        layer.mlp.register_forward_hook(lambda *_: calls.append(1))
    ablation_effects(model, [{"tokens": tokens()}], loss, [[(2, 0)]], ["zero"], replay=True)
    assert len(calls) == 3 + 1
    assert all("forward" not in vars(layer) for layer in module.model.layers)


@pytest.mark.parametrize("family", ["llama", "gpt2", "gemma2"])
@pytest.mark.parametrize("replay", [False, True])
def test_several_heads_in_one_pass_are_the_heads_one_by_one(family: str, replay: bool) -> None:
    model = hooked(family)
    sets = [*single_heads(model)[3:], [(0, 1), (2, 2)]]
    batches, others = [{"tokens": tokens(3)}, {"tokens": tokens(2, seed=5)}], [{"tokens": tokens(3, seed=2)}]
    one, four = (
        ablation_effects(model, batches, loss, sets, KINDS, others=others, replay=replay, at_once=n) for n in (1, 4)
    )
    np.testing.assert_allclose(one.ablated, four.ablated, rtol=0, atol=1e-12)
    assert np.abs(one.change).max() > 1e-2


@pytest.mark.parametrize("family", ["t5", "bart"])
def test_the_encoder_is_replayed_for_heads_of_the_decoder(family: str) -> None:
    model = hooked(family)
    batch = {"tokens": tokens(2, 7), "decoder_tokens": tokens(2, 5, 3)}
    other = {"tokens": tokens(3, 7, 6), "decoder_tokens": tokens(3, 5, 7)}

    def metric(model: HookedModel, batch: Batch) -> Tensor:
        return cast(Tensor, model.run(**batch).logits).logsumexp(-1).mean(1)

    sets = single_heads(model)
    kinds: tuple[Kind, ...] = ("zero", "resample", "mean_pattern")
    naive, quick = (
        ablation_effects(model, [batch], metric, sets, kinds, others=[other], replay=n > 1, at_once=n) for n in (1, 3)
    )
    np.testing.assert_allclose(naive.ablated, quick.ablated, rtol=0, atol=1e-12)
    calls, module = [], cast(Any, model.module)
    encoder = module.encoder.block if family == "t5" else module.model.encoder.layers
    encoder[0].register_forward_hook(lambda *_: calls.append(1))
    ablation_effects(model, [batch], metric, [[("decoder_blocks.1.cross_attn", 0)]], replay=True)
    assert len(calls) == 2  # a hook of a replayed layer is called; what it computes is not
    assert len(list(encoder[0].children())) > 0


def test_a_mean_pattern_is_that_of_other_sequences_on_the_own_values() -> None:
    """Against transformers with an attention function that takes one head's pattern from elsewhere."""
    model, plain = hooked("llama"), make("llama", dtype=torch.float64)
    ids, others = tokens(), tokens(5, seed=1)
    plain.set_attn_implementation("eager")
    with torch.no_grad():
        mean = plain(input_ids=others, output_attentions=True).attentions[1][:, 3].mean(0)

    def averaged(module: nn.Module, query: Tensor, key: Tensor, value: Tensor, *_: Any, **__: Any) -> Any:
        key, value = (x.repeat_interleave(query.shape[1] // x.shape[1], 1) for x in (key, value))
        scores = query @ key.mT * query.shape[-1] ** -0.5
        pattern = scores.masked_fill(torch.ones_like(scores).triu(1).bool(), -torch.inf).softmax(-1)
        if module.layer_idx == 1:
            pattern[:, 3] = mean
        return (pattern @ value).transpose(1, 2), None

    AttentionInterface.register("averaged", averaged)
    AttentionMaskInterface.register("averaged", eager_mask)
    plain.set_attn_implementation("averaged")
    split = [{"tokens": others[:2]}, {"tokens": others[2:]}]
    effects = ablation_effects(model, [{"tokens": ids}], loss, [[(1, 3)]], ["mean_pattern"], others=split)
    np.testing.assert_allclose(effects.ablated[0, 0], plain_loss(plain, ids), rtol=0, atol=EAGER)
    assert np.abs(effects.change).max() > 1e-3


def test_all_but_one_leaves_one_head_of_each_layer() -> None:
    sets = all_but_one(hooked("llama"))
    assert len(sets) == 18
    assert sets["blocks.1.attn", 2] == tuple(("blocks.1.attn", h) for h in (0, 1, 3, 4, 5))


@pytest.mark.parametrize("kind", KINDS)
def test_sequences_do_not_know_how_they_were_batched(kind: Kind) -> None:
    model, ids, others = hooked("llama"), tokens(), tokens(seed=1)
    sets = [[(1, 2)], [(0, 0), (2, 5)]]
    together = ablation_effects(model, [{"tokens": ids}], loss, sets, [kind], others=[{"tokens": others}])
    apart = ablation_effects(
        model, [{"tokens": ids[i : i + 1]} for i in range(4)], loss, sets, [kind],
        others=[{"tokens": others[i : i + 1]} for i in range(4)],
    )  # fmt: skip
    np.testing.assert_allclose(together.ablated, apart.ablated, rtol=0, atol=1e-10)
    np.testing.assert_allclose(together.untouched, apart.untouched, rtol=0, atol=1e-10)


def test_a_head_that_changes_nothing_has_no_effect_and_nothing_stays() -> None:
    model, ids = hooked("llama"), tokens()
    before = model.token_loss(ids)
    cast(Any, model.module).model.layers[1].self_attn.o_proj.weight.data[:, 8:16] = 0.0  # head 1 of 6, d_head 8
    silent = model.token_loss(ids)
    effects = ablation_effects(model, [{"tokens": ids}], loss, [[(1, 1)], [(1, 2)]], ["zero"])
    assert np.abs(effects.change[0, 0]).max() == 0.0
    assert np.abs(effects.change[0, 1]).min() > 0.0
    torch.testing.assert_close(model.token_loss(ids), silent, rtol=0, atol=0)
    assert (silent - before).abs().max() > 0


def test_edits_of_the_caller_are_in_both_arms() -> None:
    model, ids = hooked("llama"), tokens()
    with model.edit(GateHeads({(0, 0): 0.0})):
        effects = ablation_effects(model, [{"tokens": ids}], loss, [[(1, 1)]], ["zero"])
    both = ablation_effects(model, [{"tokens": ids}], loss, [[(0, 0)], [(0, 0), (1, 1)]], ["zero"])
    np.testing.assert_allclose(effects.untouched, both.ablated[0, 0], rtol=0, atol=1e-12)
    np.testing.assert_allclose(effects.ablated[0, 0], both.ablated[0, 1], rtol=0, atol=1e-12)


def test_single_heads_names_every_head_once() -> None:
    model = hooked("t5")
    sets = single_heads(model)
    assert len(sets) == len(set(sets)) == sum(site.n_heads for site in model.sites)
    batch = {"tokens": tokens(2, 7), "decoder_tokens": tokens(2, 5, 3)}

    def metric(model: HookedModel, batch: Batch) -> Tensor:
        logits = model.run(**batch).logits
        assert logits is not None
        return logits.logsumexp(-1).mean(1)

    effects = ablation_effects(model, [batch], metric, sets)
    assert effects.ablated.shape == (1, len(sets), 2)
    assert (np.abs(effects.change[0]).max(1) > 0).all()  # encoder, decoder and cross-attention heads alike


@pytest.mark.parametrize("side", ["left", "right"])
def test_padding_is_in_no_mean(side: str) -> None:
    model, ids = hooked("llama"), tokens(3)
    pad = torch.zeros(3, 4, dtype=torch.long)
    around = [pad, ids] if side == "left" else [ids, pad]
    padded = torch.cat(around, 1)
    valid = torch.cat([torch.full_like(part, part is ids, dtype=torch.bool) for part in around], 1)
    name = model.site(1).name
    expected = mean_z(model, [{"tokens": ids}], [name])[name]
    found = mean_z(model, [{"tokens": padded, "valid": valid}], [name])[name]
    torch.testing.assert_close(found, expected, rtol=0, atol=1e-10)


def test_means_weigh_every_position_of_every_batch_alike() -> None:
    model = hooked("llama")
    name = model.site(0).name
    parts = [tokens(1, 5), tokens(3, 9, 1)]
    z = [model.run(part, keep="z").z[name] for part in parts]
    expected = torch.cat([each.transpose(1, 2).flatten(0, 1) for each in z]).mean(0)
    torch.testing.assert_close(mean_z(model, [{"tokens": part} for part in parts], [name])[name], expected)


@pytest.mark.parametrize(
    ("sets", "kinds", "others", "told"),
    [
        ([[(0, 0)]], ["mean_pattern"], [{"tokens": tokens(4, 12)}], "equally long"),
        ([[(0, 0)]], ["mean_pattern"], [{"tokens": tokens(), "valid": tokens() > 5}], "some of them padding"),
        ([[]], ["zero"], [], "at least one head"),
        ([[(0, 9)]], ["zero"], [], "no head 9|there is no 9"),
        ([[(7, 0)]], ["zero"], [], "there is no site 7"),
        ([[(0, 0)]], ["mean"], [], "give others="),
        ([[(0, 0)]], ["resample"], [{"tokens": tokens(4, 12)}], "equally long"),
    ],
)
def test_what_cannot_be_ablated_is_refused(sets: Any, kinds: Any, others: Any, told: str) -> None:
    with pytest.raises(UserError, match=told):
        ablation_effects(hooked("llama"), [{"tokens": tokens()}], loss, sets, kinds, others=others)


def test_a_model_that_computes_its_own_attention_can_only_be_zeroed() -> None:
    model, batch = hooked("bloom"), {"tokens": tokens()}
    assert np.abs(ablation_effects(model, [batch], loss, [[(0, 1)]], ["zero"]).change).max() > 0
    with pytest.raises(UserError, match="computes its own attention"):
        ablation_effects(model, [batch], loss, [[(0, 1)]], ["mean"], others=[batch])


def test_a_metric_gives_one_number_per_sequence() -> None:
    with pytest.raises(ValueError, match=r"one number per sequence, \[4\]"):
        ablation_effects(
            hooked("llama"), [{"tokens": tokens()}], lambda model, batch: model.token_loss(**batch), [[(0, 0)]]
        )


def test_a_metric_is_finite() -> None:
    with pytest.raises(ValueError, match="must be finite; got nan"):
        ablation_effects(hooked("llama"), [{"tokens": tokens()}], lambda m, b: loss(m, b) * np.nan, [[(0, 0)]])
    with pytest.raises(ValueError, match="at_once must be at least 1"):
        ablation_effects(hooked("llama"), [{"tokens": tokens()}], loss, [[(0, 0)]], at_once=0)


def test_the_mean_loss_is_a_metric() -> None:
    model, ids = hooked("llama"), tokens()
    torch.testing.assert_close(mean_loss(model, {"tokens": ids}), loss(model, {"tokens": ids}))


def test_the_unembedding_is_spared_where_it_can_be() -> None:
    model = hooked("llama")
    logits = model.run(tokens(), **without_logits(model)).logits
    assert logits is not None
    assert logits.shape[1] == 1


def test_layers_of_ones_own_are_computed_again_because_they_need_not_be_a_chain() -> None:
    """Layers that return what is to be added, not the stream: the last one's output says nothing of the others."""
    language = Language()
    language.blocks = nn.ModuleList([*language.blocks, *Language().blocks]).double()
    model = interp.load(language.double().eval(), torch.randint(40, (2, 9)), n_ctx=24)
    assert blocks_before(model, [("blocks.3", 0)]) == []
    batch = {"tokens": torch.randint(40, (3, 9), generator=torch.Generator().manual_seed(0))}
    sets = [[(3, 0)], [(2, 1), (3, 2)]]
    plain, replayed = (ablation_effects(model, [batch], loss, sets, replay=replay) for replay in (False, True))
    np.testing.assert_array_equal(plain.ablated, replayed.ablated)
    assert (np.abs(plain.change) > 1e-6).all()
