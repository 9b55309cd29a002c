"""Modules of one's own through the command line, with their inputs in a file."""

import shlex
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from interp.cli import main
from interp.results import load
from tests.own_models import LENGTH, VOCABULARY

QUICK = "--sequences 4 --windows 4 --draws 1 --ablated 1 --ablated-on 2"
Shell = Callable[[str], tuple[int, str, str]]


@pytest.fixture
def shell(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Shell:
    """Types a command into a fresh folder: code, output, errors."""
    monkeypatch.chdir(tmp_path)
    random = np.random.default_rng(0)
    np.save("tokens.npy", random.integers(0, VOCABULARY, (6, LENGTH), dtype=np.int32))
    np.save("images.npy", random.normal(size=(5, 3, 12, 12)))
    np.save("series.npy", random.normal(size=(5, 9, 48)).astype(np.float16))

    def typed(command: str) -> tuple[int, str, str]:
        code = main(shlex.split(command))
        out, err = capsys.readouterr()
        return code, out, err

    return typed


def test_a_report_on_a_module_of_ones_own(shell: Shell) -> None:
    code, out, err = shell("report tests.own_models:build --tokens tokens.npy --analyses induction-heads")
    assert code == 0, err
    page = Path(out.strip())
    assert page.read_text().count("tests.own_models:build") > 1
    made: Any = load(page.parent, "induction-heads")
    assert set(made.tables["heads"]["data"]) == {"repeated", "unrepeated", "text", "weights"}
    known = made.provenance
    assert known["model"]["source"] == "factory tests.own_models:build"
    assert known["inputs"]["repeated"]["period"] == LENGTH // 2
    assert known["inputs"]["text"]["what"].startswith(f"6 sequences of {LENGTH} tokens")
    assert known["config"]["text"] == "tokens.npy"
    assert "--inputs tokens.npy" in known["rerun"]
    assert "raised" not in err


def test_one_analysis_on_it_and_the_command_that_makes_it_again(shell: Shell) -> None:
    code, _, err = shell(f"run induction-heads tests.own_models:build --inputs tokens.npy {QUICK} --out one")
    assert code == 0, err
    again = load("one", "induction-heads").provenance["rerun"].removeprefix("interp ")
    code, _, err = shell(f"{again} --out two")
    assert code == 0, err
    for name, table in load("one", "induction-heads").tables.items():
        assert table.equals(load("two", "induction-heads").tables[name]), name


def test_other_tokens_are_another_input(shell: Shell) -> None:
    command = f"run induction-heads tests.own_models:build --tokens tokens.npy {QUICK} --out here"
    assert shell(command)[0] == 0
    assert "finished before" in shell(command)[2]
    np.save("tokens.npy", np.zeros((6, LENGTH), dtype=np.int64))
    code, _, err = shell(command)
    assert code == 1
    assert "with other inputs" in err


@pytest.mark.parametrize("factory", ["tied_pair", "with_example"])
def test_a_factory_may_say_how_its_module_is_called(shell: Shell, factory: str) -> None:
    more = "--period 4 --reach 8" if factory == "with_example" else "--reach 16"
    code, _, err = shell(f"run induction-heads tests.own_models:{factory} {QUICK} {more}")
    assert code == 0, err


def test_arguments_by_name(shell: Shell) -> None:
    tokens = np.load("tokens.npy")
    np.savez("both.npz", source=tokens, target=tokens)
    code, _, err = shell("run induction-heads tests.own_models:pair --inputs both.npz --period 4")
    assert code == 1
    assert "Pair needs target beside source: give them by name" in err
    assert "let the factory return interp.load(module, example, forward=…)" in err


@pytest.mark.parametrize(("factory", "file"), [("patches", "images.npy"), ("series", "series.npy")])
def test_an_analysis_of_tokens_says_so_of_a_model_of_patches_or_time_steps(
    shell: Shell, factory: str, file: str
) -> None:
    for command in ("run induction-heads", "report --analyses induction-heads"):
        code, _, err = shell(f"{command} tests.own_models:{factory} --inputs {file} --out {command.split()[0]}")
        assert code == 1
        assert err.count("\n") == 1
        assert f"in sequences of tokens, but tests.own_models:{factory} reads none" in err


def objects(file: str) -> None:
    np.save(file, np.array([{}, []], dtype=object), allow_pickle=True)


BAD: dict[str, tuple[Any, str]] = {
    "missing": (lambda file: None, "there is no file bad.npy"),
    "text": (
        lambda file: Path(file).write_text("a b c"),
        "bad.npy is no array of numbers, or damaged: it has no header of NumPy's",
    ),
    "empty file": (lambda file: Path(file).write_bytes(b""), "no array of numbers, or damaged"),
    "folder": (lambda file: Path(file).mkdir(), "no array of numbers, or damaged"),
    "objects": (objects, "no array of numbers, or damaged"),
    "words": (lambda file: np.save(file, np.array([["a", "b"]])), "must hold token ids or numbers; got <U1"),
    "complex": (lambda file: np.save(file, np.ones((2, 4), complex)), "must hold token ids or numbers; got complex128"),
    "one dimension": (lambda file: np.save(file, np.arange(9)), r"got [9]: a single one is array[None]"),
    "no sequence": (lambda file: np.save(file, np.zeros((0, 9), int)), "holds nothing; got [0, 9]"),
    "huge": (lambda file: np.save(file, np.full((2, 4), 2**63, np.uint64)), "which is no token id"),
    "NaN": (lambda file: np.save(file, np.full((2, 4), np.nan)), "holds NaN or infinity"),
    "numbers for tokens": (lambda file: np.save(file, np.ones((2, 4))), "could not be run on the example (idx float32"),
    "truth values": (lambda file: np.save(file, np.ones((2, 4), bool)), "could not be run on the example (idx bool"),
    "ids outside": (
        lambda file: np.save(file, np.full((2, 4), VOCABULARY)),
        f"(idx int64 [2, 4] from {VOCABULARY} to {VOCABULARY}): it raised IndexError",
    ),
    "negative ids": (lambda file: np.save(file, np.full((2, 4), -1)), "from -1 to -1): it raised IndexError"),
    "too long": (lambda file: np.save(file, np.zeros((2, LENGTH + 1), int)), "it raised IndexError"),
    "too many dimensions": (lambda file: np.save(file, np.zeros((2, 3, 4), int)), "could not be run on the example"),
}  # fmt: skip


@pytest.mark.parametrize("case", BAD)
def test_bad_inputs_are_one_line(shell: Shell, case: str) -> None:
    make, told = BAD[case]
    make("bad.npy")
    code, _, err = shell("report tests.own_models:build --tokens bad.npy")
    assert code == 1
    assert told in err
    assert err.count("\n") == 1


@pytest.mark.parametrize(
    ("command", "told"),
    [
        ("build --inputs tokens.txt", "must be a NumPy file, .npy or .npz"),
        ("raising", "tests.own_models:raising() raised FileNotFoundError: weights.pt is not here"),
        ("wanting", "raised TypeError: wanting() missing 1 required positional argument"),
        ("number", "must return a module, a module and an example input, or interp.load(module, …); got int"),
        ("nothing", "has no 'nothing'; it has"),
        ("patches", "has no embedding, so what it takes is not known"),
        ("pair --tokens tokens.npy", "does not take the example (missing a required argument: 'target')"),
        ("tied_pair --tokens tokens.npy", "returned a hooked model, which has its example already"),
        ("training --tokens tokens.npy", "Language is in training mode, where dropout makes every number random"),
    ],
)
def test_factories_that_do_not_do_are_one_line(shell: Shell, command: str, told: str) -> None:
    code, _, err = shell(f"report --analyses induction-heads tests.own_models:{command}")
    assert code == 1
    assert told in err
    assert err.count("\n") == 1


def test_a_model_by_name_takes_no_inputs(shell: Shell) -> None:
    code, _, err = shell("report tiny-2l --tokens tokens.npy")
    assert code == 1
    assert "example (--tokens), forward and sites are for a module of one's own" in err


def test_what_is_longer_than_the_module_takes_is_said(shell: Shell) -> None:
    """Without a file nothing tells how long its inputs may be."""
    code, _, err = shell("run induction-heads tests.own_models:build")
    assert code == 1
    assert "Language raised IndexError on idx int64 [" in err
    assert "n_ctx=…" in err
