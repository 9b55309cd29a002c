"""The analysis as a program: by its module, by its path, and as the entry point names it."""

from pathlib import Path

import pytest

from interp.results import RunFolder
from tests.families import make
from tests.programs import declared, python


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    place = tmp_path_factory.mktemp("model") / "tiny-llama"
    make("llama").save_pretrained(place)
    return place


def test_the_entry_point_is_an_analysis() -> None:
    analysis = declared("induction-heads")
    assert analysis.question.startswith("Which heads are induction heads")
    assert {"heads", "kinds", "ablation", "composition", "reach"} <= set(analysis.schemas)


def test_it_runs_as_a_module_into_a_run_folder(folder: Path, tmp_path: Path) -> None:
    flags = ["--period", "8", "--sequences", "4", "--ablated", "1", "2", "--reach", "16", "--draws", "1"]
    ran = python("-m", "analyses.induction_heads", "--model", str(folder), *flags, "--out", str(tmp_path / "run"))
    assert ran.returncode == 0, ran.stderr
    result = RunFolder(tmp_path / "run").load("induction-heads")
    assert result.provenance["config"]["ablated"] == [1, 2]
    assert result.provenance["inputs"]["repeated"]["what"].startswith("4 sequences of 17 tokens")
    assert any(part["part"] == "everything on text" for part in result.provenance["left_out"])
    assert set(result.tables["ablation"]["n_heads"]) == {1, 2}


def test_a_person_s_mistake_is_one_line(folder: Path, tmp_path: Path) -> None:
    """By the file's path; a period beyond the context."""
    ran = python(
        "analyses/induction_heads.py", "--model", str(folder), "--period", "99", "--out", str(tmp_path / "run")
    )
    assert ran.returncode == 1
    last = ran.stderr.strip().splitlines()[-1]
    assert last.startswith("interp: error: 2 repeats of period 99")
    assert "Traceback" not in ran.stderr
