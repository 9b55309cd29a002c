"""Taking a head out of another's key input: against models in which the two ways to do so must agree, and by hand."""

from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

import pandas as pd
import pytest
import torch
import transformers as hf
from torch import Tensor, nn

import interp
from analyses.induction_heads import Config, feeding
from analyses.induction_heads.inputs import Inputs
from analyses.induction_heads.kinds import Selection
from interp import HookedModel
from interp.attention.edits import GateHeads, ReplaceZ
from interp.data import Vocabulary, repeated_tokens, unrepeated_tokens
from interp.errors import UserError
from interp.results import Workspace
from tests.analyses.induction_heads.test_causes import selection
from tests.families import GROUPED, make

ROUNDING = 1e-5  # models are float64, but transformers' RMS norms compute in float32
VOCABULARY = Vocabulary.of_size(97, [0, 1, 2])
MLP_OUTPUTS = ("down_proj", "mlp.c_proj", "dense_4h_to_h", "fc_out", "fc2")


def granite() -> hf.PreTrainedModel:
    torch.manual_seed(0)
    config = hf.GraniteConfig(**GROUPED, residual_multiplier=0.3, attention_multiplier=0.35, embedding_multiplier=2.0)
    return hf.GraniteForCausalLM(config).eval()


def without_mlps(family: str) -> HookedModel:
    """What heads write is all that is added to the stream, so gating a head and taking it out of a sum are the same."""
    module = granite() if family == "granite" else make(family)
    with torch.no_grad():
        for name, parameter in module.named_parameters():
            if any(f"{output}." in name for output in MLP_OUTPUTS):
                parameter.zero_()
    return interp.load(module.double(), verify=False)


def projections(place: feeding.Place) -> dict[str, nn.Module]:
    return {role: module for role, module in place.attention.projections.items() if role != "output"}


@contextmanager
def seen(place: feeding.Place) -> Iterator[dict[str, Tensor]]:
    """Queries, keys and values as the projections give them."""
    found: dict[str, Tensor] = {}

    def keep(role: str, module: nn.Module, given: Any, output: Tensor) -> None:
        found[role] = output.clone()

    handles = [module.register_forward_hook(partial(keep, role)) for role, module in projections(place).items()]
    try:
        yield found
    finally:
        for handle in handles:
            handle.remove()


def split(place: feeding.Place, found: dict[str, Tensor]) -> dict[str, Tensor]:
    """The same by role, where they come out of one projection."""
    attention = place.attention
    if "fused" not in found:
        return found
    assert attention.layout is not None
    rows = found["fused"].movedim(-1, 0)
    n_heads = 0 if "query" in found else attention.n_heads
    query, key, value = feeding.split_fused(rows, attention.layout, n_heads, attention.n_kv_heads, attention.d_head)
    return {**found, "query": query if n_heads else found["query"], "key": key, "value": value}


FAMILIES = ["llama", "mistral", "gpt2", "gpt_neox", "gptj", "gemma2", "gemma3", "qwen3", "opt", "granite"]


@pytest.mark.parametrize("family", FAMILIES)
def test_only_the_keys_change_and_as_if_the_head_had_not_written(family: str) -> None:
    model = without_mlps(family)
    ids = repeated_tokens(VOCABULARY, 6, n=2).tokens
    names = [model.sites[0].name, model.sites[1].name]
    places = feeding.stream_places(model, set(names))
    source, target = (places[name] for name in names)
    head = 2
    with feeding._outputs({source}) as whole, seen(target) as clean:
        z = model.run(ids, keep="z").z[names[0]][:, head]
    clean = split(target, clean)
    with target.keys_without(source.written(head, z, whole[names[0]])), seen(target) as without:
        model.run(ids)
    without = split(target, without)
    with model.edit(GateHeads({(names[0], head): 0.0})), seen(target) as gated:
        model.run(ids)
    gated = split(target, gated)
    torch.testing.assert_close(without["key"], gated["key"], rtol=0, atol=ROUNDING)
    torch.testing.assert_close(without["query"], clean["query"], rtol=0, atol=0)
    torch.testing.assert_close(without["value"], clean["value"], rtol=0, atol=0)
    assert (without["key"] - clean["key"]).abs().max() > 1e-4


def test_the_direct_path_passes_by_what_lies_between() -> None:
    """Two layers on, with feed-forward layers between: against the keys computed with the model's own modules."""
    model = interp.load(make("llama").double(), verify=False)
    plain = make("llama").double()
    ids = repeated_tokens(VOCABULARY, 6, n=2).tokens
    places = feeding.stream_places(model, {"blocks.0.attn", "blocks.2.attn"})
    head, d_head = 3, 8
    z = model.run(ids, keep="z").z["blocks.0.attn"][:, head]
    written = places["blocks.0.attn"].written(head, z, torch.empty(0))
    with places["blocks.2.attn"].keys_without(written), seen(places["blocks.2.attn"]) as found:
        model.run(ids)
    heads: list[Tensor] = []
    output = plain.model.layers[0].self_attn.o_proj
    handle = output.register_forward_pre_hook(lambda module, given: heads.append(given[0]))
    with torch.no_grad():
        stream = plain(input_ids=ids, output_hidden_states=True).hidden_states[2]
        part = slice(head * d_head, (head + 1) * d_head)
        left = stream - heads[0][..., part] @ output.weight[:, part].T
        layer = plain.model.layers[2]
        expected = layer.self_attn.k_proj(layer.input_layernorm(left))
    handle.remove()
    torch.testing.assert_close(found["key"], expected, rtol=0, atol=ROUNDING)


def test_with_z_put_back_nothing_follows() -> None:
    model = interp.load(make("gpt2"), verify=False)
    ids = repeated_tokens(VOCABULARY, 6, n=2).tokens
    places = feeding.stream_places(model, {"blocks.0.attn", "blocks.1.attn"})
    clean = model.run(ids, keep="z")
    written = places["blocks.0.attn"].written(1, clean.z["blocks.0.attn"][:, 1], torch.empty(0))
    back = ReplaceZ({("blocks.1.attn", head): clean.z["blocks.1.attn"][:, head] for head in range(6)})
    with places["blocks.1.attn"].keys_without(written):
        changed, restored = model.run(ids).logits, model.run(ids, edits=[back]).logits
    assert isinstance(clean.logits, Tensor)
    assert isinstance(changed, Tensor)
    assert isinstance(restored, Tensor)
    torch.testing.assert_close(restored, clean.logits, rtol=0, atol=1e-5)
    assert (changed - clean.logits).abs().max() > 1e-4
    after = model.run(ids).logits
    assert after is not None
    torch.testing.assert_close(after, clean.logits, rtol=0, atol=0)  # and the hooks are gone


def test_shared_keys_are_those_of_the_group() -> None:
    model = interp.load(make("llama"), verify=False)
    site = model.sites[1]
    assert [feeding.shared_keys(site, head) for head in (0, 2, 4)] == [[1, 2], [0, 1], [3, 5]]
    assert feeding.shared_keys(interp.load(make("gpt2"), verify=False).sites[0], 3) == []


def given() -> Inputs:
    return Inputs(VOCABULARY, repeated_tokens(VOCABULARY, 6, n=8), unrepeated_tokens(VOCABULARY, 6, n=8), None)


def picked(previous: list[tuple[str, int]], induction: list[tuple[str, int]]) -> Selection:
    found = selection({})
    found.means.update(previous_token=dict.fromkeys(previous, 0.9), induction=dict.fromkeys(induction, 0.8))
    return found


def test_pairs_are_of_earlier_and_later_layers_and_say_who_shares_the_keys() -> None:
    model = interp.load(make("llama"), verify=False)
    top = picked([("blocks.0.attn", 1), ("blocks.2.attn", 0)], [("blocks.1.attn", 4), ("blocks.2.attn", 3)])
    table: Any = feeding.table(model, given(), top, Config(period=6, sequences=8), Workspace())
    pairs = set(
        zip(table["source_layer"], table["source_head"], table["target_layer"], table["target_head"], strict=True)
    )
    assert pairs == {(0, 1, 1, 4), (0, 1, 2, 3)}
    notes = table[table["path"] == "key_input"].set_index("target_layer")["note"]
    assert "L1H3, L1H5" in notes[1]
    assert "L2H4, L2H5" in notes[2]
    assert (table[table["path"] == "total"]["note"] == "").all()
    assert (table["n"] == 4).all()


@pytest.mark.parametrize(
    ("family", "previous", "induction", "told"),
    [
        ("llama", [], [("blocks.1.attn", 0)], "no previous-token head"),
        ("llama", [("blocks.0.attn", 0)], [], "no induction head"),
        ("llama", [("blocks.2.attn", 0)], [("blocks.1.attn", 0)], "comes before"),
        ("bert", [("blocks.0.attn", 0)], [("blocks.1.attn", 0)], "post-norm"),
        ("bloom", [("blocks.0.attn", 0)], [("blocks.1.attn", 0)], "computes its own attention"),
    ],
)
def test_what_cannot_be_told_is_left_out_with_its_reason(
    family: str, previous: list[tuple[str, int]], induction: list[tuple[str, int]], told: str
) -> None:
    work = Workspace()
    model = interp.load(make(family), verify=False)
    table = feeding.table(model, given(), picked(previous, induction), Config(period=6, sequences=8), work)
    assert table.empty
    assert told in work.left_out[0]["reason"]


def test_a_site_without_projections_is_named() -> None:
    with pytest.raises(UserError, match="there is no site"):
        feeding.stream_places(interp.load(make("llama"), verify=False), {"blocks.7.attn"})


def test_targets_measured_together_do_not_feel_each_other() -> None:
    """A changed pattern in one layer must not reach a target in a later one."""
    model = interp.load(make("llama"), verify=False)
    source, targets = ("blocks.0.attn", 1), [("blocks.1.attn", 4), ("blocks.1.attn", 5), ("blocks.2.attn", 3)]
    config = Config(period=6, sequences=8)
    together: Any = feeding.table(model, given(), picked([source], targets), config, Workspace())
    for target in targets:
        alone: Any = feeding.table(model, given(), picked([source], [target]), config, Workspace())
        same = (together["target_site"] == target[0]) & (together["target_head"] == target[1])
        columns = ["path", "prefix_matching", "change", "ci_low", "ci_high", "note"]
        pd.testing.assert_frame_equal(
            together[same][columns].reset_index(drop=True), alone[columns], check_exact=False, rtol=0, atol=1e-6
        )
