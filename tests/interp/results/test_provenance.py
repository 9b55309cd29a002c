"""What made a result, what its fingerprint counts, and Configs as JSON."""

import json
import math
import subprocess
import sys
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from enum import Enum
from pathlib import Path
from types import ModuleType, SimpleNamespace

import numpy as np
import pandas as pd
import pytest

from interp.results import code_sha256, fingerprint, provenance, storage
from interp.results.provenance import peak_memory_bytes
from interp.results.storage import plain, to_json
from tests.interp.results.toy import MODEL, OTHER


@dataclass(frozen=True)
class Config:
    period: int = 64
    text: str | None = None
    seed: int = 7


def test_provenance_says_what_made_a_result() -> None:
    started = datetime.now(UTC) - timedelta(seconds=5)
    made = provenance(
        MODEL, Config(), started=started, command=["interp", "run", "toy", "a b"], seconds_before=10,
        left_out=[{"part": "p", "reason": "r"}], notes=["n"],
    )  # fmt: skip
    assert made["config"] == {"period": 64, "text": None, "seed": 7}
    assert made["seed"] == 7
    assert made["device"] == "cpu"
    assert made["command"] == "interp run toy 'a b'"
    assert 15 <= made["wall_seconds"] < 20
    assert made["versions"]["pandas"] == pd.__version__
    assert made["left_out"] == [{"part": "p", "reason": "r"}]
    assert made["notes"] == ["n"]
    json.loads(to_json(made))


@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="counts memory as Linux does")
def test_peak_memory_is_the_processs_own() -> None:
    script = (
        "from interp.results.provenance import peak_memory_bytes as peak; "
        "a = peak(); b = bytearray(2**28); c = peak(); del b; print(c - a, peak() - a)"
    )
    root = Path(storage.__file__).parents[2]
    run = subprocess.run([sys.executable, "-c", script], cwd=root, capture_output=True, text=True, check=True)
    held, later = map(int, run.stdout.split())
    assert held == pytest.approx(2**28, rel=0.1)
    assert later == pytest.approx(held, rel=0.01)  # the system counts pages in batches
    assert peak_memory_bytes() is not None


def test_the_fingerprint_changes_with_every_input(tmp_path: Path) -> None:
    text = tmp_path / "text.txt"
    text.write_text("one")
    prints = [
        fingerprint("toy", Config(), MODEL, "code"),
        fingerprint("toy2", Config(), MODEL, "code"),
        fingerprint("toy", Config(period=65), MODEL, "code"),
        fingerprint("toy", Config(), OTHER, "code"),
        fingerprint("toy", Config(), MODEL | {"dtype": "float64"}, "code"),
        fingerprint("toy", Config(), MODEL, "code 2"),
        fingerprint("toy", Config(), MODEL, "code", version="2"),
        fingerprint("toy", Config(), MODEL, "code", used={"other": "x"}),
        fingerprint("toy", Config(text=str(text)), MODEL, "code"),
    ]
    text.write_text("two")
    prints.append(fingerprint("toy", Config(text=str(text)), MODEL, "code"))
    assert len(set(prints)) == len(prints)


def test_folders_that_a_config_names_count_with_what_lies_in_them(tmp_path: Path) -> None:
    @dataclass(frozen=True)
    class Following:
        folders: tuple[str, ...] | None = None

    def print_of(*folders: Path) -> str:
        return fingerprint("toy", Following(tuple(map(str, folders))), MODEL, "code")

    run = tmp_path / "run"
    (run / "step-1").mkdir(parents=True)
    (run / "step-1" / "weights").write_bytes(b"1")
    prints = [print_of(), print_of(tmp_path / "none"), print_of(run), print_of(run, run)]
    assert print_of(run) == prints[2]
    (run / "step-1" / "weights").write_bytes(b"11")
    prints.append(print_of(run))
    (run / "step-2").mkdir()
    (run / "step-2" / "weights").write_bytes(b"1")
    prints.append(print_of(run))
    assert len(set(prints)) == len(prints)


def test_the_fingerprint_does_not_change_with_what_is_no_input() -> None:
    same = fingerprint("toy", Config(), MODEL, "code")
    assert fingerprint("toy", Config(), MODEL | {"name": "/elsewhere/toy", "verify_error": 1e-6}, "code") == same
    assert fingerprint("toy", Config(text="a text, not a file. " * 400), MODEL, "code") != same


def test_the_code_counts_and_the_place_where_it_lies_does_not(tmp_path: Path) -> None:
    def hash_of(folder: str, source: str) -> str:
        file = tmp_path / folder / "analysis.py"
        file.parent.mkdir(exist_ok=True)
        file.write_text(source)
        module = ModuleType("analysis")
        module.__file__ = str(file)
        return code_sha256(module)

    assert hash_of("a", "x = 1") == hash_of("b", "x = 1")
    assert hash_of("a", "x = 1") != hash_of("a", "x = 2")


class Colour(Enum):
    RED = "red"


def test_plain_says_everything_that_a_config_holds() -> None:
    values = {
        "nan": math.nan, "inf": -math.inf, "path": Path("a/b"), "enum": Colour.RED, "tuple": (1, 2), "set": {2, 1},
        "numpy": np.float32(0.5), "array": np.arange(3), "bool": np.bool_(True), "nested": Config(), 3: None,
    }  # fmt: skip
    assert json.loads(to_json(values)) == {
        "nan": None, "inf": "-inf", "path": "a/b", "enum": "red", "tuple": [1, 2], "set": [1, 2],
        "numpy": 0.5, "array": [0, 1, 2], "bool": True, "nested": {"period": 64, "text": None, "seed": 7}, "3": None,
    }  # fmt: skip
    with pytest.raises(TypeError, match="cannot be saved as JSON"):
        plain(SimpleNamespace())
