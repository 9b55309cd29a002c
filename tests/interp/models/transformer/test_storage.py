"""A transformer in a folder, and back."""

import json
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch.testing import assert_close

from interp.errors import UserError
from interp.models.checkpoints import locate
from interp.models.transformer import is_transformer, load_transformer, save_transformer
from tests.interp.models.transformer.small import KINDS, small, tokens


@pytest.mark.parametrize("kind", KINDS)
def test_what_is_saved_is_loaded(kind: str, tmp_path: Path) -> None:
    model = small(kind)
    loaded = load_transformer(save_transformer(model, tmp_path / "folder"))
    assert loaded.config == model.config
    assert next(loaded.parameters()).dtype is torch.float64
    assert torch.equal(loaded(tokens()).logits, model(tokens()).logits)
    assert is_transformer(tmp_path / "folder")
    assert not is_transformer(tmp_path)


def test_tied_embeddings_are_written_once_and_stay_tied(tmp_path: Path) -> None:
    save_transformer(small("window"), tmp_path)
    assert "unembed.weight" not in load_file(tmp_path / "model.safetensors")
    loaded = load_transformer(tmp_path)
    assert loaded.unembed.weight is loaded.embed.weight


def test_weights_stored_in_16_bit_are_loaded_in_the_model_s_own_dtype(tmp_path: Path) -> None:
    model = small("rotary", dtype=torch.float32)
    save_transformer(model, tmp_path, stored=torch.float16)
    assert load_file(tmp_path / "model.safetensors")["embed.weight"].dtype is torch.float16
    loaded = load_transformer(tmp_path)
    assert loaded.embed.weight.dtype is torch.float32
    assert_close(loaded(tokens()).logits, model(tokens()).logits, rtol=0, atol=0.05)
    assert load_transformer(tmp_path, dtype="float64").embed.weight.dtype is torch.float64


def test_a_weight_that_16_bit_cannot_hold_is_refused(tmp_path: Path) -> None:
    model = small("rotary")
    with torch.no_grad():
        model.embed.weight[0, 0] = 1e6
    with pytest.raises(UserError, match=r"embed\.weight holds values that torch\.float16 cannot"):
        save_transformer(model, tmp_path, stored=torch.float16)


def test_the_folder_is_a_checkpoint_like_any_other(tmp_path: Path) -> None:
    found = locate(str(save_transformer(small("rotary"), tmp_path / "mine")))
    assert found.path == tmp_path / "mine"
    assert len(found.weights_sha256) == 64


def test_damaged_folders_are_refused(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="holds no transformer"):
        load_transformer(tmp_path)
    save_transformer(small("rotary"), tmp_path)
    weights = load_file(tmp_path / "model.safetensors")
    with pytest.raises(UserError, match="dtype must be"):
        load_transformer(tmp_path, dtype="int8")
    save_file({name: w for name, w in weights.items() if "q_proj" not in name}, tmp_path / "model.safetensors")
    with pytest.raises(UserError, match="does not fit the config"):
        load_transformer(tmp_path)
    save_file(weights | {"embed.weight": weights["embed.weight"] * torch.nan}, tmp_path / "model.safetensors")
    with pytest.raises(UserError, match=r"embed\.weight holds 552 NaN"):
        load_transformer(tmp_path)
    (tmp_path / "model.safetensors").write_bytes(b"short")
    with pytest.raises(UserError, match="cannot be read"):
        load_transformer(tmp_path)
    described = json.loads((tmp_path / "config.json").read_text())
    (tmp_path / "config.json").write_text(json.dumps(described | {"n_head": 3}))
    with pytest.raises(UserError, match="no n_head"):
        load_transformer(tmp_path)
