"""What models cost, against counts by hand and against what caches really hold."""

from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
from torch import nn

from interp.errors import UserError
from interp.models.pruning import prune
from interp.models.pruning.cost import Times, _masked, measure_times, ratios, sizes, without_core
from interp.models.transformer import Transformer, TransformerConfig
from tests.families import load, make, tokens
from tests.interp.models.pruning.gated import assert_same, gated, kept_at_random, output

KEEP = {"blocks.0.attn": (0, 1, 3), "blocks.1.attn": (4, 5), "blocks.2.attn": ()}


def linear_flops(module: nn.Module, length: int) -> int:
    return sum(2 * length * m.weight.numel() for m in module.modules() if isinstance(m, nn.Linear))


def test_sizes_by_hand() -> None:
    model = load(make("llama"), verify=False)
    pruned = prune(model, KEEP)
    for one, heads, kv_heads in ((model, 18, 6), (pruned, 5, 3)):
        found = sizes(one, length=32)
        assert found["parameters"] == sum(p.numel() for p in one.module.parameters())
        assert found["attention_parameters"] == 48 * 8 * (2 * heads + 2 * kv_heads)
        assert found["cache_bytes_per_token"] == 2 * kv_heads * 8 * 4
        assert found["cache_bytes_per_source_token"] == 0
        attention = 2 * 2 * heads * 8 * 32 * 32
        assert found["flops_prompt"] == linear_flops(one.module, 32) + attention
        assert found["flops_per_token"] == found["flops_prompt"] / 32


def test_the_cache_is_as_small_as_it_is_said_to_be() -> None:
    for family in ("llama", "gemma3", "t5"):
        model = load(make(family), verify=False)
        pruned = prune(model, kept_at_random(model, seed=1))
        for one in (model, pruned):
            given = {"decoder_input_ids": tokens(1, 5)} if family == "t5" else {}
            output = one.module(tokens(1, 5), use_cache=True, **given)
            cache = output.get("past_key_values", output.get("cache"))
            parts = [cache] if family != "t5" else [cache.self_attention_cache, cache.cross_attention_cache]
            held = [sum(layer.keys.nbytes + layer.values.nbytes for layer in part.layers) for part in parts]
            found = sizes(one, 8)
            said = [found["cache_bytes_per_token"], found["cache_bytes_per_source_token"]]
            assert [5 * n for n in said[: len(held)]] == held


@pytest.mark.parametrize("family", ["gpt2", "bert", "t5", "bloom", "vit", "own"])
def test_every_kind_of_model_has_sizes(family: str) -> None:
    own = Transformer(TransformerConfig(d_vocab=97, n_layers=3, attention="elu", positions="none"))
    model = load(own if family == "own" else make(family), verify=False)
    pruned = prune(model, kept_at_random(model, seed=1))
    before, after = sizes(model, 16), sizes(pruned, 16)
    assert after["parameters"] < before["parameters"]
    assert after["flops_prompt"] < before["flops_prompt"]
    assert (after["cache_bytes_per_token"] > 0) == (family in ("gpt2", "t5", "bloom"))


def test_times_of_three_variants_in_alternation() -> None:
    model = load(make("llama"), verify=False)
    pruned = prune(model, KEEP)
    times = measure_times(model, pruned, batch_sizes=(1, 2), lengths=(8,), new_tokens=2, rounds=3)
    assert times.attention == "sdpa"
    assert len(times.seconds) == 2 * 2 * 3 * 3
    assert (times.seconds[["seconds", "cpu_seconds"]].to_numpy() > 0).all()
    assert np.isfinite(ratios(times, "cpu_seconds")["ratio"].to_numpy()).all()
    first = times.seconds.query("batch_size == 1 and phase == 'prompt'").groupby("round")["variant"].first()
    assert len(set(first.tolist())) == 3, "every round begins with another variant"
    table = ratios(times)
    assert set(table["variant"]) == {"masked", "pruned"}
    assert (table["ci_low"].to_numpy() <= table["ratio"].to_numpy()).all()
    assert set(table["n"]) == {3}
    assert model.module.config._attn_implementation == "interp"
    assert not any(site.projections["output"]._forward_pre_hooks for site in model.sites)


@pytest.mark.parametrize("family", ["bert", "t5", "gemma2", "own"])
def test_times_of_other_kinds(family: str) -> None:
    own = Transformer(TransformerConfig(d_vocab=97, n_layers=2))
    model = load(own if family == "own" else make(family), verify=False)
    pruned = prune(model, kept_at_random(model, seed=1))
    times = measure_times(model, pruned, batch_sizes=(1,), lengths=(6,), new_tokens=2, rounds=1)
    assert times.attention == ("interp" if family == "gemma2" else "sdpa")
    assert set(times.seconds["phase"]) == ({"prompt"} if family == "bert" else {"prompt", "decoding"})
    assert np.isnan(ratios(times)["ci_low"].to_numpy()).all(), "one round has no interval"


@pytest.mark.parametrize("family", ["llama", "qwen3", "gemma3", "gpt2", "t5", "bert"])
def test_masked_and_pruned_without_the_core_compute_the_same(family: str) -> None:
    model = load(make(family, dtype=torch.float64), verify=False)
    keep = kept_at_random(model, seed=2)
    pruned = prune(model, keep)
    inputs: dict[str, Any] = {"tokens": tokens()} | ({"decoder_tokens": tokens(2, 7)} if family == "t5" else {})
    wanted = gated(model, keep, **inputs)
    arguments = model.inputs.batch(model, *map(inputs.get, ("tokens", "valid", "decoder_tokens")), None, {}).arguments
    with torch.no_grad(), without_core(model), without_core(pruned):
        assert_same(pruned.module(**arguments)[0], wanted, 1e-8)
        with _masked(model, pruned):
            assert_same(model.module(**arguments)[0], wanted, 1e-8)


def test_a_model_that_was_pruned_before_may_be_the_larger_one() -> None:
    model = load(make("llama", dtype=torch.float64), verify=False)
    once, other = prune(model, {0: (1, 2, 4, 5)}), prune(model, {0: (0, 1)})
    twice = prune(once, {0: (0, 3), 1: ()})
    with torch.no_grad(), _masked(once, twice):
        masked = output(once, tokens=tokens())
    assert_same(output(twice, tokens=tokens()), masked)
    measure_times(once, twice, batch_sizes=(1,), lengths=(6,), new_tokens=0, rounds=1)
    with pytest.raises(UserError, match=r"keeps heads of blocks\.0\.attn that the other model has lost"):
        measure_times(once, other)


@pytest.mark.parametrize("family", ["llama", "qwen3", "gemma3", "gpt2", "t5", "bart"])
def test_decoding_without_the_core(family: str) -> None:
    """One query at a time, uneven groups are filled up instead of copied."""
    model = load(make(family, dtype=torch.float64), verify=False)
    pruned = prune(model, kept_at_random(model, share=0.6, seed=3))
    mask = torch.ones(3, 9, dtype=torch.long)
    mask[1, :4] = 0
    options: Any = {
        "attention_mask": mask, "max_new_tokens": 7, "do_sample": False, "eos_token_id": None, "output_logits": True,
        "return_dict_in_generate": True,
    }  # fmt: skip
    wanted = pruned.generate(tokens(3, 9), **options)
    with without_core(pruned):
        got = pruned.generate(tokens(3, 9), **options)
    for one, other in zip(got.logits, wanted.logits, strict=True):
        assert_same(one, other, 1e-8)


def test_ratios_are_paired_within_rounds() -> None:
    generator = np.random.default_rng(0)
    load_of_machine = np.exp(generator.normal(size=40))
    rows = [
        {
            "phase": "prompt",
            "batch_size": 1,
            "length": 8,
            "round": i,
            "variant": variant,
            "seconds": load_of_machine[i] * x,
        }
        for i in range(40)
        for variant, x in (("unpruned", 1.0), ("masked", 1.0), ("pruned", 0.5 * np.exp(generator.normal() / 50)))
    ]
    table = ratios(Times(pd.DataFrame(rows), "sdpa")).set_index("variant")
    assert table.loc["masked", ["ratio", "ci_low", "ci_high"]].tolist() == [1.0, 1.0, 1.0]
    assert 0.49 < table.loc["pruned", "ci_low"] < 0.5 < table.loc["pruned", "ci_high"] < 0.51  # type: ignore[operator]


def test_what_cannot_be_measured() -> None:
    model, other = (load(make("llama", seed=seed), verify=False) for seed in (0, 1))
    pruned = prune(model, KEEP)
    for call, says in (
        (lambda: measure_times(other, pruned), "the base does not match"),
        (lambda: measure_times(model, model), "was not pruned"),
        (lambda: measure_times(model, pruned, rounds=0), "at least 1"),
        (lambda: measure_times(model, pruned, lengths=(127,)), "more than the context"),
        (lambda: sizes(model, 129), "more than the context"),
    ):
        with pytest.raises(UserError, match=says):
            call()
