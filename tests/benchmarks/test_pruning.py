"""The benchmark of pruning, on a model that costs nothing."""

import json
from pathlib import Path

import pytest

from benchmarks import pruning
from tests.families import make


def test_every_way_is_measured(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    make("llama").save_pretrained(tmp_path / "model")
    words = ["--model", str(tmp_path / "model"), "--out", str(tmp_path / "out"), "--batch-sizes", "1", "--lengths", "8"]
    assert pruning.main([*words, "--new-tokens", "2", "--rounds", "2"]) == 0
    found = json.loads((tmp_path / "out" / "pruning.json").read_text())
    assert {row["way"] for row in found["ratios"]} == {"scattered", "groups", "uniform", "none"}
    assert {(row["phase"], row["variant"]) for row in found["ratios"]} == {
        (phase, variant) for phase in ("prompt", "decoding") for variant in ("masked", "pruned")
    }
    parameters = {row["way"]: row["parameters"] for row in found["sizes"]}
    assert parameters["none"] < parameters["groups"] < parameters["unpruned"]
    cache = {row["way"]: row["cache_bytes_per_token"] for row in found["sizes"]}
    assert cache["groups"] == cache["unpruned"] / 2
    assert "Time over that of the unpruned model" in capsys.readouterr().out


def test_wrong_shares() -> None:
    assert pruning.main(["--share", "1.5"]) == 2
