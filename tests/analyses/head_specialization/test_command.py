"""The analysis as a program: by its module, by its path, and as the entry point names it."""

from pathlib import Path

import pytest

from interp.results import RunFolder
from tests.analyses.head_specialization.planted import WORDS, tokenizer, write_text
from tests.families import make
from tests.programs import declared, python


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    place = tmp_path_factory.mktemp("model") / "tiny-llama"
    make("llama", vocab_size=len(WORDS), bos_token_id=1, eos_token_id=None).save_pretrained(place)
    return place


def test_the_entry_point_is_an_analysis() -> None:
    analysis = declared("head-specialization")
    assert analysis.question.startswith("What does each head attend to, and how sure is that?")
    assert {"heads", "kinds", "relations", "offsets", "stability"} <= set(analysis.schemas)


def test_it_runs_as_a_module_into_a_run_folder(folder: Path, tmp_path: Path) -> None:
    flags = ["--window", "16", "--windows", "6", "--shown", "2"]
    ran = python("-m", "analyses.head_specialization", "--model", str(folder), *flags, "--out", str(tmp_path / "run"))
    assert ran.returncode == 0, ran.stderr
    result = RunFolder(tmp_path / "run").load("head-specialization")
    assert result.provenance["config"]["windows"] == 6
    assert result.provenance["inputs"]["repeated"]["what"].startswith("6 sequences of 16 tokens")
    assert any("syntax" in part["part"] for part in result.provenance["left_out"])


def test_a_broken_treebank_is_named_in_one_line(folder: Path, tmp_path: Path) -> None:
    """By the file's path. The model needs a tokenizer, or no treebank is read."""
    tokenizer(wrapped=False).save_pretrained(folder)
    (tmp_path / "broken.conllu").write_text("1\tone\n")
    flags = ["--text", str(write_text(tmp_path / "text.txt", 3)), "--window", "16", "--windows", "3"]
    ran = python(
        "analyses/head_specialization.py", "--model", str(folder), *flags, "--treebank",
        str(tmp_path / "broken.conllu"), "--out", str(tmp_path / "run"),
    )  # fmt: skip
    assert ran.returncode == 1
    last = ran.stderr.strip().splitlines()[-1]
    assert last.startswith("interp: error: ")
    assert "broken.conllu, line 1: a word has 10 columns" in last
    assert "Traceback" not in ran.stderr
