"""Uniform pruning: checkpoints that transformers loads without this project, or a reason why there is none."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

import interp
from interp.errors import UserError
from interp.models.pruning import (
    Counts,
    keep_in_each_layer,
    keep_share,
    keep_uniform,
    possible_counts,
    prune,
    save_plain,
    scores_of,
)
from interp.models.transformer import Transformer, TransformerConfig
from tests.families import example, load, make, tokens
from tests.interp.models.pruning.gated import assert_same, gated, output

PLAIN = {"llama": 4, "mistral": 3, "gemma2": 2, "gemma3": 4, "qwen3": 3, "gpt_oss": 4, "t5": 3, "vit": 2}
"""Families whose config says how wide a head is, and a number of heads to keep."""


def scores(model: Any, seed: int = 0) -> dict[tuple[str, int], float]:
    generator = torch.Generator().manual_seed(seed)
    values = {(s.name, h): 0.0 for s in model.sites for h in range(s.n_heads)}
    return dict(zip(values, torch.rand(len(values), generator=generator).tolist(), strict=True))


def uniform(family: str, dtype: torch.dtype = torch.float32) -> tuple[Any, Any, Any]:
    model = load(make(family, dtype=dtype), verify=False)
    keep = keep_uniform(model, scores(model), PLAIN[family])
    return model, keep, prune(model, keep)


def test_transformers_alone_loads_it_in_a_fresh_process(tmp_path: Path) -> None:
    for family in PLAIN:
        model, keep, pruned = uniform(family)
        save_plain(pruned, tmp_path / family)
        inputs = model.inputs.batch(model, *map(example(family).get, ("tokens", "valid", "decoder_tokens")), None,
                                    {k: v for k, v in example(family).items() if k == "pixel_values"})  # fmt: skip
        torch.save((inputs.arguments, gated(model, keep, **example(family))), tmp_path / f"{family}.pt")
    code = (
        "import sys, torch, transformers\n"
        f"for family in {list(PLAIN)!r}:\n"
        "    arguments, wanted = torch.load(f'{sys.argv[1]}/{family}.pt')\n"
        "    name = transformers.AutoConfig.from_pretrained(f'{sys.argv[1]}/{family}').architectures[0]\n"
        "    auto = {'t5': 'AutoModelForSeq2SeqLM', 'vit': 'AutoModel'}.get(family, 'AutoModelForCausalLM')\n"
        "    model, info = getattr(transformers, auto).from_pretrained(\n"
        "        f'{sys.argv[1]}/{family}', output_loading_info=True)\n"
        "    assert type(model).__name__ == name and not any(info.values()), (name, info)\n"
        "    with torch.no_grad():\n"
        "        got = model.eval()(**arguments)[0]\n"
        "    print(family, float((got - wanted).abs().max() / wanted.abs().max()))\n"
        "assert not any(name.partition('.')[0] == 'interp' for name in sys.modules)\n"
    )
    words = [sys.executable, "-c", code, str(tmp_path)]
    done = subprocess.run(words, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    found = dict(line.split() for line in done.stdout.splitlines())
    assert found.keys() == PLAIN.keys()
    assert all(float(difference) < 1e-5 for difference in found.values()), found


@pytest.mark.parametrize("family", PLAIN)
def test_loaded_by_interp(family: str, tmp_path: Path) -> None:
    model, keep, pruned = uniform(family)
    before = output(pruned, **example(family))
    save_plain(pruned, tmp_path / "plain")
    assert_same(output(pruned, **example(family)), before, 0)
    again = interp.load(str(tmp_path / "plain"))
    assert_same(output(again, **example(family)), before, 1e-4 if family == "gpt_oss" else 1e-5)
    assert {site.n_heads for site in again.sites} == {PLAIN[family]}
    assert again.info["pruning"]["sites"][model.sites[-1].name]["kept"] == list(keep[model.sites[-1].name])
    further = prune(again, {again.sites[0].name: (1,)})
    assert further.info["pruning"]["sites"][model.sites[0].name]["kept"] == [keep[model.sites[0].name][1]]


@pytest.mark.parametrize("family", ["gpt2", "bert", "gpt_neox", "bart", "opt", "bloom", "falcon", "mpt", "roberta"])
def test_configs_without_a_width_of_heads_are_refused(family: str) -> None:
    model = load(make(family), verify=False)
    with pytest.raises(UserError, match="its config has no width of a head"):
        keep_uniform(model, scores(model), 2)


def test_counts_that_the_config_refuses() -> None:
    # 48 features: the validator wants a multiple of the number of heads; 6 heads over 2 kv heads
    model = load(make("llama"), verify=False)
    assert possible_counts(model) == [
        Counts(1, 1),
        Counts(2, 1),
        Counts(2, 2),
        Counts(3, 1),
        Counts(4, 2),
        Counts(6, 2),
    ]
    with pytest.raises(UserError, match=r"no plain checkpoint has 5 heads .* 2 \(over 1 or 2 kv heads\)"):
        keep_uniform(model, scores(model), 5)
    small = load(make("llama", hidden_size=32, head_dim=8, num_attention_heads=8, num_key_value_heads=2), verify=False)
    assert Counts(6, 2) not in possible_counts(small)
    with pytest.raises(UserError, match="no plain checkpoint has 6 heads"):
        keep_uniform(small, scores(small), 6)
    pruned = prune(small, dict.fromkeys((site.name for site in small.sites), (0, 1, 2, 4, 5, 6)))
    with pytest.raises(UserError, match="cannot have 6 heads over 2 kv heads in each layer; possible are 1"):
        save_plain(pruned, "never-made")
    assert not Path("never-made").exists()


@pytest.mark.parametrize(
    ("keep", "says"),
    [
        ({0: (0, 3)}, "one number of heads for all layers"),
        ({0: (0, 1, 3), 1: (0, 1, 3), 2: (0, 1, 3)}, "groups of one size"),
        ({1: ()}, "and none"),
        ({0: (), 1: (0,), 2: (0,)}, "cannot have layers without heads"),
    ],
)
def test_layers_and_groups_that_are_not_alike_are_refused(keep: Any, says: str, tmp_path: Path) -> None:
    pruned = prune(load(make("llama"), verify=False), keep)
    with pytest.raises(UserError, match=says):
        save_plain(pruned, tmp_path / "plain")
    assert list(tmp_path.iterdir()) == []


def test_other_kinds_of_model_are_refused() -> None:
    model = load(Transformer(TransformerConfig(d_vocab=97)), verify=False)
    with pytest.raises(UserError, match="no model of transformers"):
        keep_uniform(model, scores(model), 2)


def test_t5_keeps_the_same_heads_in_all_layers_of_a_stack(tmp_path: Path) -> None:
    model, keep, pruned = uniform("t5", torch.float64)
    assert keep["encoder_blocks.0.attn"] == keep["encoder_blocks.1.attn"]
    assert keep["decoder_blocks.0.self_attn"] == keep["decoder_blocks.1.self_attn"]
    save_plain(pruned, tmp_path / "plain")
    again = interp.load(str(tmp_path / "plain"))
    assert_same(output(again, **example("t5")), gated(model, keep, **example("t5")))
    other = {**keep, "encoder_blocks.0.attn": (0, 1, 2), "encoder_blocks.1.attn": (1, 2, 3)}
    mixed = prune(model, other)
    with pytest.raises(UserError, match="the same heads in all of them"):
        save_plain(mixed, tmp_path / "mixed")
    assert_same(output(mixed, **example("t5")), gated(model, other, **example("t5")))


def test_nothing_is_overwritten(tmp_path: Path) -> None:
    (tmp_path / "there").mkdir()
    (tmp_path / "there" / "file").touch()
    _, _, pruned = uniform("llama")
    with pytest.raises(UserError, match="is there already"):
        save_plain(pruned, tmp_path / "there")
    save_plain(pruned, tmp_path / "plain")
    described = json.loads((tmp_path / "plain" / "pruning.json").read_text())
    assert described["layout"] == "plain"


# Choosing -------------------------------------------------------------------------------------------------------------


def test_shares_of_all_heads() -> None:
    model = load(make("llama"), verify=False)
    worth = scores(model)
    order = sorted(worth, key=lambda head: worth[head])
    for share, n in ((0.5, 9), (1.0, 18), (0.7, 13), (0.001, 1)):
        kept = keep_share(model, worth, share)
        assert {(name, head) for name, heads in kept.items() for head in heads} == set(order[18 - n :])
    for share in (0, -0.1, 1.1, float("nan")):
        with pytest.raises(UserError, match="above 0 and is at most 1"):
            keep_share(model, worth, share)


def test_a_number_in_each_layer() -> None:
    model = load(make("llama"), verify=False)
    worth = {(layer, head): float((head * 5 + layer) % 6) for layer in range(3) for head in range(6)}
    kept = keep_in_each_layer(model, worth, 2)
    for layer in range(3):
        best = sorted(range(6), key=lambda head: worth[layer, head])[-2:]
        assert kept[f"blocks.{layer}.attn"] == tuple(sorted(best))
    for number in (0, 7):
        with pytest.raises(UserError, match=r"can keep 1 … 6 heads"):
            keep_in_each_layer(model, worth, number)


def test_groups_are_chosen_by_what_their_best_heads_are_worth() -> None:
    model = load(make("llama"), verify=False)
    worth = {(layer, head): 0.0 for layer in range(3) for head in range(6)}
    for layer in range(3):  # head 0 alone is best, but the second group has the two best together
        worth |= {(layer, 0): 1.0, (layer, 3): 0.9, (layer, 5): 0.8}
    assert set(keep_uniform(model, worth, 2).values()) == {(0, 3)}, "two groups of one"
    worth |= {(layer, 0): 0.7 for layer in range(3)}
    assert set(keep_uniform(model, worth, 2).values()) == {(3, 5)}, "one group of two"
    for number in (1, 2, 3, 4, 6):
        assert {len(heads) for heads in keep_uniform(model, worth, number).values()} == {number}


def test_scores_that_do_not_fit() -> None:
    import pandas as pd

    model = load(make("llama"), verify=False)
    worth: dict[Any, float] = scores(model)
    first = next(iter(worth))
    for wrong, says in (
        ({**worth, first: float("nan")}, "is NaN"),
        ({**worth, ("blocks.0.attn", 6): 0.0}, "score for head 6"),
        ({**worth, (0, 0): 0.0}, "two scores"),
        ({**worth, (9, 0): 0.0}, "no site 9"),
        ({head: value for head, value in worth.items() if head != first}, "1 of 18 heads have no score"),
    ):
        with pytest.raises(UserError, match=says):
            keep_share(model, wrong, 0.5)
    table = pd.DataFrame([(*head, value) for head, value in worth.items()], columns=pd.Index(["site", "head", "value"]))
    assert scores_of(table, "value") == worth
    with pytest.raises(UserError, match="lacks importance"):
        scores_of(table, "importance")


def test_the_pruned_model_of_a_share_runs() -> None:
    model = load(make("llama", dtype=torch.float64), verify=False)
    keep = keep_share(model, scores(model), 0.4)
    assert_same(output(prune(model, keep), tokens=tokens()), gated(model, keep, tokens=tokens()))
