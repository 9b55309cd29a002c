"""Pruned models as folders: what is loaded is what was saved, here and in other processes."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

import interp
from interp.errors import UserError
from interp.models.pruning import load_base, prune, save_pruned
from interp.models.transformer import Transformer, TransformerConfig, save_transformer
from tests.families import FAMILIES, example, load, make, tokens
from tests.interp.models.pruning.gated import assert_same, gated, kept_at_random, output

ROOT = Path(__file__).parents[4]


def with_an_empty_layer(model: Any, seed: int = 0) -> Any:
    keep = kept_at_random(model, seed=seed)
    return {**keep, model.sites[-1].name: (), model.sites[0].name: ()} if len(model.sites) > 2 else keep


@pytest.mark.parametrize("family", FAMILIES)
def test_loaded_equals_saved(family: str, tmp_path: Path) -> None:
    model = load(make(family), verify=False)
    pruned = prune(model, with_an_empty_layer(model))
    save_pruned(pruned, tmp_path / "pruned")
    state = torch.get_rng_state()
    again = interp.load(str(tmp_path / "pruned"))
    assert torch.equal(state, torch.get_rng_state())
    inputs = example(family)
    assert_same(output(again, **inputs), output(pruned, **inputs), 0)
    assert again.info["pruning"] == pruned.info["pruning"]
    assert again.output_head_loaded == pruned.output_head_loaded
    assert [p.shape for p in again.module.parameters()] == [p.shape for p in pruned.module.parameters()]


def test_another_process(tmp_path: Path) -> None:
    own = Transformer(TransformerConfig(d_vocab=97, n_kv_heads=2))
    for name, module in {"llama": make("llama"), "t5": make("t5"), "own": own}.items():
        model = load(module, verify=False)
        pruned = prune(model, kept_at_random(model, seed=4))
        save_pruned(pruned, tmp_path / name)
        inputs = example("llama" if name == "own" else name)
        torch.save((inputs, output(pruned, **inputs)), tmp_path / f"{name}.pt")
    code = (
        "import interp, sys, torch\n"
        "for name in ('llama', 't5', 'own'):\n"
        "    inputs, wanted = torch.load(f'{sys.argv[1]}/{name}.pt')\n"
        "    with torch.no_grad():\n"
        "        got = interp.load(f'{sys.argv[1]}/{name}').run(**inputs).output[0]\n"
        "    print(float((got - wanted).abs().max()))\n"
    )
    words = [sys.executable, "-c", code, str(tmp_path)]
    done = subprocess.run(words, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stdout.split() == ["0.0"] * 3


def test_pruned_again_after_loading(tmp_path: Path) -> None:
    model = load(make("qwen3", dtype=torch.float64), verify=False)
    once = prune(model, {0: (1, 2, 4), 1: ()})
    save_pruned(once, tmp_path / "once")
    twice = prune(interp.load(str(tmp_path / "once")), {0: (0, 2), 2: (0, 1, 2)})
    save_pruned(twice, tmp_path / "twice")
    again = interp.load(str(tmp_path / "twice"))
    assert again.info["pruning"]["sites"]["blocks.0.attn"]["kept"] == [1, 4]
    keep = {"blocks.0.attn": (1, 4), "blocks.1.attn": (), "blocks.2.attn": (0, 1, 2)}
    assert_same(output(again, tokens=tokens()), gated(model, keep, tokens=tokens()))


def test_dtype_and_generation(tmp_path: Path) -> None:
    model = load(make("llama", dtype=torch.bfloat16), verify=False)
    model.module.generation_config.max_new_tokens = 3
    save_pruned(prune(model, kept_at_random(model)), tmp_path / "pruned")
    again = interp.load(str(tmp_path / "pruned"))
    assert again.dtype is torch.bfloat16
    assert again.generate(tokens(1, 5), do_sample=False, eos_token_id=None).shape == (1, 8)
    assert interp.load(str(tmp_path / "pruned"), dtype="float32").dtype is torch.float32


def test_the_tokenizer_comes_along(minilm: Any, tmp_path: Path) -> None:
    pruned = prune(minilm, kept_at_random(minilm))
    save_pruned(pruned, tmp_path / "pruned")
    again = interp.load(str(tmp_path / "pruned"))
    assert again.tokenizer is not None
    assert again.tokenizer("two words")["input_ids"] == minilm.tokenizer("two words")["input_ids"]
    assert again.info["pruning"]["base"]["name"] == "minilm"
    batch = torch.randint(1000, 20_000, (2, 12), generator=torch.Generator().manual_seed(0))
    assert_same(output(again, tokens=batch), output(pruned, tokens=batch), 0)


# Without weights, and the base ----------------------------------------------------------------------------------------


@pytest.fixture
def base(tmp_path: Path) -> Path:
    return save_transformer(Transformer(TransformerConfig(d_vocab=97, n_layers=3, n_kv_heads=2)), tmp_path / "base")


def test_heads_alone_are_cut_out_of_the_base_again(base: Path, tmp_path: Path) -> None:
    pruned = prune(interp.load(str(base)), {0: (1, 2, 3), 1: ()})
    save_pruned(pruned, tmp_path / "heads", weights=False)
    assert [file.name for file in (tmp_path / "heads").iterdir()] == ["pruning.json"]
    again = interp.load(str(tmp_path / "heads"))
    assert_same(output(again, tokens=tokens()), output(pruned, tokens=tokens()), 0)
    assert again.info["weights_sha256"] == pruned.info["weights_sha256"]


def test_a_base_that_does_not_match_is_an_error(base: Path, tmp_path: Path) -> None:
    pruned = prune(interp.load(str(base)), {0: (1, 2)})
    save_pruned(pruned, tmp_path / "heads", weights=False)
    save_pruned(pruned, tmp_path / "whole")
    assert load_base(tmp_path / "whole").info["weights_sha256"] == interp.load(str(base)).info["weights_sha256"]
    save_transformer(Transformer(TransformerConfig(d_vocab=97, n_layers=3, n_kv_heads=2), seed=1), base)
    for use in (lambda: interp.load(str(tmp_path / "heads")), lambda: load_base(tmp_path / "whole")):
        with pytest.raises(UserError, match="the base does not match"):
            use()
    assert_same(output(interp.load(str(tmp_path / "whole")), tokens=tokens()), output(pruned, tokens=tokens()), 0)


def test_a_model_given_in_python_has_no_base_to_load(tmp_path: Path) -> None:
    pruned = prune(load(make("llama"), verify=False), {0: (1,)})
    with pytest.raises(UserError, match="given in Python"):
        save_pruned(pruned, tmp_path / "heads", weights=False)
    save_pruned(pruned, tmp_path / "whole")
    with pytest.raises(UserError, match="given in Python"):
        load_base(tmp_path / "whole")


# Whole or not at all --------------------------------------------------------------------------------------------------


def test_nothing_is_overwritten(tmp_path: Path) -> None:
    pruned = prune(load(make("llama"), verify=False), {0: (1,)})
    (tmp_path / "there").mkdir()
    save_pruned(pruned, tmp_path / "there")  # an empty folder gives way
    for place in (tmp_path / "there", tmp_path / "there" / "config.json"):
        with pytest.raises(UserError, match="is there already"):
            save_pruned(pruned, place)
    assert [path.name for path in tmp_path.iterdir()] == ["there"]


def test_an_interrupted_save_leaves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def stopped(*_: Any) -> None:
        raise KeyboardInterrupt

    pruned = prune(load(make("llama"), verify=False), {0: (1,)})
    monkeypatch.setattr("interp.models.pruning.storage.write_description", stopped)
    with pytest.raises(KeyboardInterrupt):
        save_pruned(pruned, tmp_path / "pruned")
    assert list(tmp_path.iterdir()) == []


def test_unpruned_models_are_not_saved(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="was not pruned"):
        save_pruned(load(make("llama"), verify=False), tmp_path / "pruned")


@pytest.mark.parametrize(
    ("changed", "says"),
    [
        ({"format": 2}, "format 2"),
        ({"layout": "round"}, "damaged"),
        ({"weights_sha256": "0" * 64}, "not those that were saved"),
        ({"class": "NoSuchModel"}, "NoSuchModel"),
    ],
)
def test_damaged_folders(changed: dict[str, Any], says: str, tmp_path: Path) -> None:
    folder = tmp_path / "pruned"
    save_pruned(prune(load(make("llama"), verify=False), {0: (1,)}), folder)
    described = json.loads((folder / "pruning.json").read_text())
    (folder / "pruning.json").write_text(json.dumps(described | changed))
    with pytest.raises(UserError, match=says):
        interp.load(str(folder))


def test_other_weights_are_noticed(tmp_path: Path) -> None:
    model = load(make("llama"), verify=False)
    save_pruned(prune(model, {0: (1,)}), tmp_path / "one")
    save_pruned(prune(model, {0: (2,)}), tmp_path / "other")
    (tmp_path / "other" / "model.safetensors").replace(tmp_path / "one" / "model.safetensors")
    with pytest.raises(UserError, match="not those that were saved"):
        interp.load(str(tmp_path / "one"))


def test_transformers_alone_refuses_a_cut_folder(tmp_path: Path) -> None:
    import transformers

    save_pruned(prune(load(make("llama"), verify=False), {0: (1, 2, 3)}), tmp_path / "pruned")
    with pytest.raises(RuntimeError, match="mismatch"):
        transformers.AutoModelForCausalLM.from_pretrained(tmp_path / "pruned")
