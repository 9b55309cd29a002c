"""Steps, notes and progress of an analysis that runs."""

from pathlib import Path

import pandas as pd
import pytest
from pandas.testing import assert_frame_equal

from interp.results import RunFolder, Workspace, save
from tests.interp.results.toy import MODEL, PRINT, heads, result, table_of


def test_a_step_is_taken_from_the_interrupted_run_with_what_it_left_out(tmp_path: Path) -> None:
    def scores(work: Workspace) -> dict[str, pd.DataFrame]:
        work.skip("copying", "no direct path")
        work.note("weights are quantised")
        return {"heads": heads()}

    with RunFolder.claim(tmp_path, MODEL) as run:
        work = run.workspace("toy", PRINT)
        work.skip("before", "outside of any step")
        assert_frame_equal(work.step("scores", lambda: scores(work))["heads"], heads())
        assert run.has_steps("toy", PRINT)
        assert not run.has_steps("toy", "0" * 64)

        again = run.workspace("toy", PRINT)
        tables = again.step("scores", lambda: pytest.fail("computed twice"))
        assert_frame_equal(tables["heads"], heads())
        assert again.left_out == [{"part": "copying", "reason": "no direct path"}]
        assert again.notes == ["weights are quantised"]
        assert again.seconds_before > 0

        computed: list[str] = []
        run.workspace("toy", "0" * 64).step("scores", table_of("other inputs", computed))
        assert computed == ["other inputs"]

        run.save(result())
    assert not (tmp_path / ".partial").exists()


def test_an_interrupted_step_is_not_kept(tmp_path: Path) -> None:
    def interrupted() -> dict[str, pd.DataFrame]:
        raise KeyboardInterrupt

    with RunFolder.claim(tmp_path, MODEL) as run:
        with pytest.raises(KeyboardInterrupt):
            run.workspace("toy", PRINT).step("scores", interrupted)
        assert not run.has_steps("toy", PRINT)


def test_a_workspace_without_a_folder_keeps_everything_in_memory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    work = Workspace()
    assert work.step("scores", lambda: {"heads": heads()})["heads"].equals(heads())
    assert list(work.progress(iter("abc"), "letters")) == ["a", "b", "c"]
    assert work.earlier("anything") is None
    assert list(tmp_path.iterdir()) == []


def test_steps_have_names_of_their_own_and_return_tables() -> None:
    work = Workspace()
    work.step("scores", lambda: {"heads": heads()})
    with pytest.raises(ValueError, match="'scores' came twice"):
        work.step("scores", lambda: {"heads": heads()})
    with pytest.raises(ValueError, match="a dict of DataFrames by name; step 'other' returned DataFrame"):
        work.step("other", heads)  # pyright: ignore[reportArgumentType]


def test_findings_of_another_analysis(tmp_path: Path) -> None:
    save(result(), tmp_path)
    with RunFolder.claim(tmp_path, MODEL) as run:
        work = run.workspace("second", PRINT, uses=("toy", "absent"))
        found = work.earlier("toy")
        assert found is not None
        assert_frame_equal(found.tables["heads"], heads())
        assert work.earlier("absent") is None
        with pytest.raises(ValueError, match="findings of 'third' are read but not named in USES"):
            work.earlier("third")


def test_progress_writes_nothing_where_there_is_no_terminal(capfd: pytest.CaptureFixture[str]) -> None:
    work = Workspace()
    for _ in work.progress(range(3), "outer"):
        for _ in work.progress(range(2), "inner"):
            pass
    assert capfd.readouterr() == ("", "")


def test_progress_shows_nested_tasks_on_a_terminal(
    capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FORCE_COLOR", "1")  # rich then takes standard error for a terminal
    work = Workspace()
    for _ in work.progress(range(3), "outer"):
        list(work.progress(range(2), "inner"))
        break  # leaves the outer one unfinished
    shown = capfd.readouterr().err
    assert "outer" in shown
    assert "inner" in shown
