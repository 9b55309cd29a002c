"""interp.load: whatever names a model, and what is wrong with a name, its files or what was asked for."""

import json
import re
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.testing import assert_close

import interp
from interp.attention import probes
from interp.errors import UserError
from tests import families
from tests.families import FAMILIES, hf, load, make

TOKENS = families.tokens(2, 9)


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    make("llama").save_pretrained(tmp_path / "tiny")
    return tmp_path / "tiny"


# A folder -------------------------------------------------------------------------------------------------------------


def test_a_folder_is_the_model_saved_there(folder: Path) -> None:
    model = load(str(folder))
    assert_close(model.run(TOKENS).logits, load(make("llama")).run(TOKENS).logits)
    info = model.info
    assert info["name"] == str(folder)
    assert re.fullmatch("[0-9a-f]{64}", info["weights_sha256"])
    assert info["source"] == f"folder {folder}"
    assert {name: info[name] for name in ("revision", "quantisation", "architecture", "dtype", "device", "n_sites",
                                          "n_layers", "n_heads", "n_kv_heads", "d_head")} == {
        "revision": None, "quantisation": None, "architecture": "LlamaForCausalLM", "dtype": "float32", "device": "cpu",
        "n_sites": 3, "n_layers": 3, "n_heads": 6, "n_kv_heads": 2, "d_head": 8}  # fmt: skip
    assert json.loads(json.dumps(info)) == info
    assert model.output_head_loaded
    assert model.tokenizer is None
    assert repr(model).startswith(f"HookedModel({folder}: 3 attention sites, 6 heads, torch.float32, cpu")


@pytest.mark.parametrize("family", FAMILIES)
def test_every_family_from_a_folder(family: str, tmp_path: Path) -> None:
    module = make(family)
    module.save_pretrained(tmp_path)
    model, given = load(str(tmp_path)), families.example(family)
    assert type(model.module) is type(module)
    assert_close(model.run(**given).output[0], load(module).run(**given).output[0], rtol=1e-5, atol=1e-5)


def test_dtype_and_device(folder: Path) -> None:
    model = load(str(folder), dtype="bfloat16", device="cpu")
    assert model.dtype is torch.bfloat16
    assert model.info["dtype"] == "bfloat16"
    assert load(str(folder), dtype=torch.float64).dtype is torch.float64


def test_a_map_of_devices(folder: Path) -> None:
    model = load(str(folder), device_map={"": "cpu"})
    assert_close(model.run(TOKENS).logits, load(str(folder)).run(TOKENS).logits)
    assert model.device == torch.device("cpu")


@pytest.mark.filterwarnings("ignore")
def test_weights_that_lie_elsewhere_are_brought_in(folder: Path, tmp_path: Path) -> None:
    """One layer offloaded to disk: its weights are nowhere until it runs."""
    whole = load(str(folder)).run(TOKENS, probes=probes.basic())
    layers = {"model.layers.0": "cpu", "model.layers.1": "disk", "model.layers.2": "cpu"}
    rest = {"model.embed_tokens": "cpu", "model.norm": "cpu", "model.rotary_emb": "cpu", "lm_head": "cpu"}
    model = load(str(folder), device_map=layers | rest, offload_folder=str(tmp_path / "disk"))
    run = model.run(TOKENS, probes=probes.basic())
    assert_close(run.logits, whole.logits)
    for number in range(5):
        assert_close(run.values(number), whole.values(number))
    with pytest.raises(UserError, match="offloaded"):
        model.head_weights(1)


@pytest.mark.parametrize(
    ("asked", "said"),
    [
        ({"device": "cuda:99"}, "device cuda:99 was asked for, but torch sees"),
        ({"device": "gpu"}, "there is no device 'gpu'"),
        ({"device": "cpu", "device_map": "auto"}, "device puts a whole model on one device, device_map spreads it"),
        ({"device_map": "everywhere"}, "transformers cannot load"),
        ({"dtype": "float33"}, "`dtype` provided as a `str` can only be"),
        ({"revision": "main"}, "a revision is for hub models"),
    ],
)
def test_what_cannot_be_had(folder: Path, asked: dict[str, Any], said: str) -> None:
    with pytest.raises(UserError, match=re.escape(said)):
        load(str(folder), **asked)


def test_code_from_a_checkpoint_is_off_unless_asked_for(folder: Path) -> None:
    config = json.loads((folder / "config.json").read_text())
    config |= {
        "model_type": "home_made",
        "auto_map": {"AutoConfig": "home.Config", "AutoModelForCausalLM": "home.Model"},
    }
    (folder / "config.json").write_text(json.dumps(config))
    (folder / "home.py").write_text("raise SystemExit('this code ran')")
    with pytest.raises(UserError, match=r"brings its own code .*allow it with trust_remote_code=True"):
        load(str(folder))
    with pytest.raises(SystemExit, match="this code ran"):
        load(str(folder), trust_remote_code=True)


def test_nan_in_a_file_names_the_parameter(folder: Path) -> None:
    module = make("llama")
    with torch.no_grad():
        module.model.layers[1].self_attn.k_proj.weight[0, 0] = float("nan")
    module.save_pretrained(folder)
    with pytest.raises(UserError, match=r"model.layers.1.self_attn.k_proj.weight holds 1 NaN or infinite values"):
        load(str(folder))


def test_names_that_mean_nothing(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="Did you mean smollm2-135m"):
        load("smolm2-135m/")
    with pytest.raises(UserError):
        load(str(tmp_path))


# A model in Python ----------------------------------------------------------------------------------------------------


def test_a_model_in_python_is_hooked_in_place() -> None:
    module = make("gpt2")
    model = load(module)
    assert model.module is module
    assert model.info["source"] == "given in Python"
    assert model.info["name"] == "GPT2LMHeadModel"
    assert model.output_head_loaded
    assert not load(hf.GPT2Model(module.config)).output_head_loaded


def test_a_model_in_python_is_put_into_eval_mode() -> None:
    module = make("gpt2").train()
    load(module)
    assert not module.training


def test_a_model_in_python_is_moved_when_asked_to() -> None:
    model = load(make("gpt2"), dtype="float64", device="cpu")
    assert (model.dtype, model.info["dtype"]) == (torch.float64, "float64")
    for device in ("cuda:99", "gpu"):
        with pytest.raises(UserError, match=f"cannot be moved to device {device}: "):
            load(make("gpt2"), device=device)
    with pytest.raises(UserError, match="there is no floating dtype 'int8'"):
        load(make("gpt2"), dtype="int8")
    for asked in ({"revision": "main"}, {"device_map": "auto"}):
        with pytest.raises(UserError, match="are for models by name; this one is a module"):
            load(make("gpt2"), **asked)


@pytest.mark.parametrize("bad", [float("nan"), float("inf")])
def test_broken_weights_in_python_name_the_parameter(bad: float) -> None:
    module = make("gpt2")
    with torch.no_grad():
        module.transformer.h[2].attn.c_attn.weight[3, 3] = bad
    with pytest.raises(UserError, match=r"transformer.h.2.attn.c_attn.weight holds 1 NaN or infinite"):
        load(module)


@pytest.mark.parametrize("thing", [3, None, Path("/tmp")])
def test_things_that_are_no_models(thing: Any) -> None:
    with pytest.raises(UserError, match=f"takes a name, a path or a module; got {type(thing).__name__}"):
        load(thing)


def test_models_without_attention() -> None:
    mamba = hf.MambaForCausalLM(hf.MambaConfig(**families.TOKENS, hidden_size=16, num_hidden_layers=1))
    with pytest.raises(UserError, match="no attention was found in MambaForCausalLM"):
        load(mamba)


def test_a_load_that_fails_leaves_the_model_as_it_was() -> None:
    """ALBERT is refused after the core was put in; its own attention is back in place."""
    module = hf.AlbertForMaskedLM(hf.AlbertConfig(**families.SIZES, embedding_size=16)).eval()
    expected = module(TOKENS).logits
    with pytest.raises(UserError):
        load(module)
    assert module.config._attn_implementation == "sdpa"
    assert torch.equal(module(TOKENS).logits, expected)


# The real models ------------------------------------------------------------------------------------------------------


def test_smollm2(smollm2: interp.HookedModel) -> None:
    assert smollm2.info["quantisation"] == "Q4_1"
    assert (smollm2.n_ctx, smollm2.d_vocab, smollm2.is_causal) == (8192, 49152, True)
    assert (len(smollm2.sites), smollm2.sites[0].n_heads, smollm2.sites[0].n_kv_heads) == (30, 9, 3)
    assert smollm2.tokenizer is not None
    assert smollm2.tokenizer.decode(smollm2.tokenizer.encode("naïve café")) == "naïve café"


def test_minilm(minilm: interp.HookedModel) -> None:
    assert (minilm.n_ctx, minilm.is_causal, minilm.output_head_loaded) == (512, False, False)
    assert (len(minilm.sites), minilm.sites[0].n_heads, minilm.sites[0].n_kv_heads) == (6, 12, 12)
    assert minilm.tokenizer is not None
    batch = minilm.tokenizer(["A dog.", "What does the stock market do today?"], padding=True, return_tensors="pt")
    run = minilm.run(**batch, probes=[probes.MaxWeight()])
    lengths = batch["attention_mask"].sum(1)
    assert torch.equal(run.readings(0)["blocks.0.attn"].n.expand(2, 12)[:, 0], lengths)
