"""`interp doctor`: the table, JSON, the page and the exit code."""

import json
from pathlib import Path

import pytest

from interp.cli import main
from interp.results import RunFolder


@pytest.fixture
def doctor(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    def run(*flags: str) -> tuple[int, str]:
        code = main(["doctor", "tiny-1l", "--out", str(tmp_path / "run"), "--resume", *flags])
        return code, capsys.readouterr().out

    return run


def test_a_sound_model(doctor, tmp_path: Path) -> None:
    code, told = doctor("--fail-on", "warn", "--json", str(tmp_path / "health.json"))
    assert code == 0
    assert "future leak" in told
    assert "\nok: " in told
    found = json.loads((tmp_path / "health.json").read_text())
    assert found["verdict"] == "ok"
    assert sum(found["counts"].values()) == len(found["checks"])
    saved = RunFolder(tmp_path / "run").load("model-health").tables["checks"]
    assert [row["check"] for row in found["checks"]] == saved["check"].tolist()
    page = (tmp_path / "run" / "index.html").read_text()
    assert "Model health" in page
    assert "none warns or fails" in page


@pytest.fixture
def without_a_page(monkeypatch: pytest.MonkeyPatch) -> None:
    """Drawing takes longer than all the rest."""
    monkeypatch.setattr("interp.cli.find_page", lambda: lambda folder: folder)


@pytest.mark.usefixtures("without_a_page")
def test_the_exit_code(doctor) -> None:
    tight = ("--context", "4096", "--requests", "8", "--memory", "0.01", "--json", "-")
    code, told = doctor(*tight)
    assert code == 0
    found = json.loads(told)
    assert found["verdict"] == "fail"
    assert [row["check"] for row in found["checks"] if row["verdict"] == "fail"] == ["kv_cache"]
    assert doctor(*tight, "--fail-on", "fail")[0] == 1
    assert doctor(*tight, "--fail-on", "warn")[0] == 1


@pytest.mark.usefixtures("without_a_page")
def test_a_model_that_is_ill_is_not_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """One that is random in evaluation mode does not agree with itself, and is examined nevertheless."""
    factory = "tests.analyses.model_health.faults:dropping"
    assert main(["doctor", factory, "--out", str(tmp_path / "run"), "--fail-on", "fail"]) == 1
    assert "repeats" in capsys.readouterr().out
