"""A run folder: what is saved is what is read, what is damaged is refused, what is not ours stays."""

import errno
import fcntl
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pandas.testing import assert_frame_equal

from interp.errors import RunFolderError
from interp.results import Result, RunFolder, load, save, storage
from tests.interp.results.toy import MODEL, OTHER, heads, result

# --- what is saved is what is read


def test_a_result_comes_back_as_it_was_saved(tmp_path: Path) -> None:
    save(result(), tmp_path / "run")
    back = load(tmp_path / "run", "toy")
    assert back.analysis == "toy"
    assert back.provenance == {"model": MODEL, "value": 0.5}
    assert set(back.tables) == {"heads", "extra"}
    assert_frame_equal(back.tables["heads"], heads())


CELLS = st.one_of(
    st.lists(st.floats(), min_size=3, max_size=3),
    st.lists(st.integers(-(2**63), 2**63 - 1), min_size=3, max_size=3),
    st.lists(st.booleans(), min_size=3, max_size=3),
    st.lists(st.text(st.characters(exclude_categories=["Cs"])), min_size=3, max_size=3),
)


@given(st.dictionaries(st.text("abcdefgh_", min_size=1), CELLS, min_size=1, max_size=5))
def test_any_table_comes_back_bit_for_bit(
    tmp_path_factory: pytest.TempPathFactory, columns: dict[str, list[Any]]
) -> None:
    table = pd.DataFrame(columns)
    run = tmp_path_factory.mktemp("run")
    save(Result("toy", {"any": table}), run)
    assert_frame_equal(load(run, "toy").tables["any"], table, check_exact=True)


def test_saving_again_replaces_tables_and_figures(tmp_path: Path) -> None:
    save(result(), tmp_path)
    (RunFolder(tmp_path).figures("toy") / "old.svg").write_text("<svg/>")
    save(Result("toy", {"heads": heads(0.7)}, {"model": MODEL}), tmp_path)
    assert set(load(tmp_path, "toy").tables) == {"heads"}
    assert list(RunFolder(tmp_path).figures("toy").iterdir()) == []
    assert {path.name for path in tmp_path.iterdir()} == {"run.json", ".lock", "toy"}


def test_two_analyses_share_a_run_folder(tmp_path: Path) -> None:
    save(result(), tmp_path)
    save(result(name="second"), tmp_path)
    (tmp_path / "my-notes").mkdir()
    assert RunFolder(tmp_path).analyses() == ["second", "toy"]


def test_saved_files_follow_the_umask(tmp_path: Path) -> None:
    old = os.umask(0o022)
    try:
        save(result(), tmp_path)
    finally:
        os.umask(old)
    assert (tmp_path / "toy").stat().st_mode & 0o777 == 0o755
    assert (tmp_path / "toy" / "meta.json").stat().st_mode & 0o777 == 0o644


# --- what is damaged is refused


def test_a_changed_table_is_refused(tmp_path: Path) -> None:
    save(result(), tmp_path)
    heads(0.9).to_parquet(tmp_path / "toy" / "tables" / "heads.parquet", index=False)
    with pytest.raises(RunFolderError, match=r"heads.parquet is not the table that was saved"):
        load(tmp_path, "toy")


def test_a_missing_table_is_refused(tmp_path: Path) -> None:
    save(result(), tmp_path)
    (tmp_path / "toy" / "tables" / "extra.parquet").unlink()
    with pytest.raises(RunFolderError, match=r"extra.parquet is missing"):
        load(tmp_path, "toy")


def test_a_table_that_was_put_there_is_refused(tmp_path: Path) -> None:
    save(result(), tmp_path)
    heads().to_parquet(tmp_path / "toy" / "tables" / "stranger.parquet")
    with pytest.raises(RunFolderError, match="does not name: stranger"):
        load(tmp_path, "toy")


@pytest.mark.parametrize(("text", "reason"), [("{", "damaged"), ("[]", "names no tables"), ("", "damaged")])
def test_a_damaged_meta_is_refused(tmp_path: Path, text: str, reason: str) -> None:
    save(result(), tmp_path)
    (tmp_path / "toy" / "meta.json").write_text(text)
    with pytest.raises(RunFolderError, match=reason):
        load(tmp_path, "toy")


def test_a_later_format_is_refused(tmp_path: Path) -> None:
    save(result(), tmp_path)
    meta = tmp_path / "toy" / "meta.json"
    meta.write_text(json.dumps(json.loads(meta.read_text()) | {"format": 2}))
    with pytest.raises(RunFolderError, match="format 2; this version of interp reads format 1"):
        load(tmp_path, "toy")


def test_a_renamed_analysis_is_refused(tmp_path: Path) -> None:
    save(result(), tmp_path)
    (tmp_path / "toy").rename(tmp_path / "copy")
    assert RunFolder(tmp_path).analyses() == []
    with pytest.raises(RunFolderError, match="holds 'toy', not 'copy'"):
        load(tmp_path, "copy")


def test_an_absent_analysis_is_named_with_those_that_are_there(tmp_path: Path) -> None:
    save(result(), tmp_path)
    with pytest.raises(RunFolderError, match="no finished second; finished are: toy"):
        load(tmp_path, "second")


def test_no_run_folder_is_said(tmp_path: Path) -> None:
    with pytest.raises(RunFolderError, match="is no run folder"):
        RunFolder(tmp_path)
    with pytest.raises(RunFolderError, match="does not exist"):
        RunFolder(tmp_path / "absent")


# --- a folder that is not ours stays as it is


def test_a_folder_with_other_content_is_refused_even_with_force(tmp_path: Path) -> None:
    (tmp_path / "thesis.tex").write_text("years of work")
    with pytest.raises(RunFolderError, match=r"not empty and is no run folder \(it holds thesis.tex\)"):
        RunFolder.claim(tmp_path, MODEL, force=True)
    assert [path.name for path in tmp_path.iterdir()] == ["thesis.tex"]


def test_a_file_is_no_run_folder(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    for path in (tmp_path / "file", tmp_path / "file" / "run"):
        with pytest.raises(RunFolderError, match="is a file"):
            RunFolder.claim(path, MODEL)


def test_a_folder_that_cannot_be_written_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "access", lambda path, mode: False)  # tests may run as root, who may write anywhere
    with pytest.raises(RunFolderError, match="cannot be written"):
        RunFolder.claim(tmp_path / "run", MODEL)
    assert list(tmp_path.iterdir()) == []


def test_another_models_run_makes_way_only_by_force(tmp_path: Path) -> None:
    save(result(), tmp_path)
    (tmp_path / "my-notes.txt").write_text("kept")
    with pytest.raises(RunFolderError, match=r"holds a run of toy \(weights_sha256 aaaaaaaaaaaa.* not of other"):
        RunFolder.claim(tmp_path, OTHER)
    assert load(tmp_path, "toy").provenance["value"] == 0.5
    with RunFolder.claim(tmp_path, OTHER, force=True) as run:
        assert run.analyses() == []
        assert run.model["name"] == "other"
    assert (tmp_path / "my-notes.txt").read_text() == "kept"


def test_a_folder_of_ones_own_in_the_place_of_an_analysis_stays(tmp_path: Path) -> None:
    with RunFolder.claim(tmp_path, MODEL) as run:
        (tmp_path / "toy").mkdir()
        (tmp_path / "toy" / "mine.txt").write_text("mine")
        with pytest.raises(RunFolderError, match="is no saved analysis"):
            run.save(result())
    assert (tmp_path / "toy" / "mine.txt").read_text() == "mine"


def test_two_processes_do_not_write_one_folder(tmp_path: Path) -> None:
    script = (
        "import sys; from interp.results import RunFolder; from interp.errors import RunFolderError\n"
        f"try: RunFolder.claim(sys.argv[1], {MODEL!r})\n"
        "except RunFolderError as error: print(error)\n"
        "else: print('claimed')\n"
    )

    def other() -> str:
        root = Path(storage.__file__).parents[2]
        return subprocess.run(
            [sys.executable, "-c", script, tmp_path], cwd=root, capture_output=True, text=True, check=True
        ).stdout

    with RunFolder.claim(tmp_path, MODEL):
        assert "is being written by another process" in other()
    assert other() == "claimed\n"


def test_a_file_system_without_locks_is_written_all_the_same(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def no_locks(file: Any, operation: int) -> None:
        raise OSError(errno.ENOLCK, os.strerror(errno.ENOLCK))

    monkeypatch.setattr(fcntl, "flock", no_locks)
    save(result(), tmp_path)
    assert RunFolder(tmp_path).analyses() == ["toy"]
