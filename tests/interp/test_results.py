"""Results: what is saved is what is read, or nothing is; whatever dies when."""

import errno
import fcntl
import json
import math
import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from enum import Enum
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import numpy as np
import pandas as pd
import pandera.pandas as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pandas.testing import assert_frame_equal

from interp.errors import RunFolderError
from interp.results import (
    Result,
    RunFolder,
    Workspace,
    check_tables,
    code_sha256,
    fingerprint,
    load,
    provenance,
    save,
    storage,
)
from interp.results.provenance import peak_memory_bytes
from interp.results.storage import plain, to_json

MODEL = {"name": "toy", "weights_sha256": "a" * 64, "dtype": "float32", "device": "cpu"}
OTHER = MODEL | {"name": "other", "weights_sha256": "b" * 64}
PRINT = "f" * 64


def heads(value: float = 0.5) -> pd.DataFrame:
    return pd.DataFrame(
        {
            "site": ["blocks.0.attn", "blocks.0.attn"],
            "layer": [0, 0],
            "head": [0, 1],
            "metric": "prefix_matching",
            "data": "repeated",
            "value": [value, math.nan],
            "ci_low": [value - 0.1, math.nan],
            "ci_high": [value + 0.1, math.nan],
            "chance": 0.01,
            "p_corrected": [0.001, math.nan],
            "n": [3, 0],
            "note": ["", "no eligible row"],
        }
    )


def result(value: float = 0.5, name: str = "toy") -> Result:
    return Result(
        name, {"heads": heads(value), "extra": pd.DataFrame({"x": [value]})}, {"model": MODEL, "value": value}
    )


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


# --- dying at any moment


class Killed(BaseException):
    """Stands for SIGKILL: nothing that runs after it has any effect on the disk."""


@dataclass
class Disk:
    """Lets a number of operations on the disk happen; then the process is as good as dead."""

    left: int
    dead: bool = False

    def guard(self, real: Callable[..., Any], half: Callable[..., Any] | None = None) -> Callable[..., Any]:
        def operation(*args: Any, **kwargs: Any) -> Any:
            if self.dead:
                return None
            if self.left == 0:
                self.dead = True
                if half is not None:
                    half(*args, **kwargs)
                raise Killed
            self.left -= 1
            return real(*args, **kwargs)

        return operation

    def install(self, monkeypatch: pytest.MonkeyPatch) -> None:
        for owner, name in [(Path, "rename"), (Path, "replace"), (Path, "mkdir"), (Path, "unlink"), (Path, "rmdir")]:
            monkeypatch.setattr(owner, name, self.guard(getattr(owner, name)))
        monkeypatch.setattr(Path, "write_bytes", self.guard(Path.write_bytes, write_half))
        monkeypatch.setattr(storage, "_write", self.guard(storage._write, write_half))
        monkeypatch.setattr(shutil, "rmtree", self.guard(shutil.rmtree, remove_half))


def write_half(path: Path, data: bytes) -> None:
    with path.open("wb") as file:
        file.write(data[: len(data) // 2])


def remove_half(path: Path, ignore_errors: bool = False) -> None:
    files = sorted(each for each in Path(path).rglob("*") if each.is_file())
    for file in files[: len(files) // 2 + 1]:
        os.unlink(file)  # noqa: PTH108  (Path.unlink is what is guarded)


def deaths() -> Iterator[int]:
    """As many operations as a save may need, and more."""
    return iter(range(60))


def die_while(act: Callable[[], object], operations: int) -> bool:
    """Act, dying after so many operations; whether it died."""
    disk = Disk(operations)
    with pytest.MonkeyPatch.context() as monkeypatch:
        disk.install(monkeypatch)
        try:
            act()
        except Killed:
            return True
    return False


@pytest.mark.parametrize("before", [None, 0.2])
def test_dying_at_any_operation_of_a_save_leaves_the_old_or_the_new(tmp_path: Path, before: float | None) -> None:
    seen = set()
    for operations in deaths():
        run = tmp_path / str(operations)
        if before is not None:
            save(result(before), run)
        died = die_while(lambda run=run: save(result(0.8), run), operations)
        if (run / "run.json").exists():
            reader = RunFolder(run)  # a reader that comes now: nothing, the old, the new; never a mixture
            value = reader.load("toy").provenance["value"] if reader.analyses() else None
            assert value in {None, before, 0.8}
            if value is not None:
                assert_frame_equal(reader.load("toy").tables["heads"], heads(value))
        with RunFolder.claim(
            run, MODEL
        ) as writer:  # the next run: nothing half-written is left, nothing finished is lost
            value = writer.load("toy").provenance["value"] if writer.analyses() else None
        assert value in {before, 0.8}
        assert not [path for path in run.rglob("*") if storage.is_half_written(path)]
        seen.add((died, value))
        if not died:
            assert value == 0.8
            break
    assert seen == {(True, before), (True, 0.8), (False, 0.8)}


def test_dying_at_any_operation_of_a_step_costs_at_most_that_step(tmp_path: Path) -> None:
    for operations in deaths():
        with RunFolder.claim(tmp_path / str(operations), MODEL) as run:
            computed: list[str] = []
            run.workspace("toy", PRINT).step("first", table_of("first", computed))

            def go_on(run: RunFolder = run, computed: list[str] = computed) -> None:
                work = run.workspace("toy", PRINT)
                work.step("first", table_of("first", computed))
                work.step("second", table_of("second", computed))

            died = die_while(go_on, operations)
            work = run.workspace("toy", PRINT)
            assert work.step("first", table_of("first", computed))["t"]["x"].item() == "first"
            assert work.step("second", table_of("second", computed))["t"]["x"].item() == "second"
            assert computed.count("first") == 1
            assert computed.count("second") in {1, 2}
            run.save(result())
            assert run.interrupted() == []
        if not died:
            return
    raise AssertionError("the step never finished")


def test_a_full_disk_loses_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    save(result(0.2), tmp_path)

    def full(path: Path, data: bytes) -> None:
        write_half(path, data)
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(storage, "_write", full)
    with pytest.raises(OSError, match="No space left"):
        save(result(0.8), tmp_path)
    assert load(tmp_path, "toy").provenance["value"] == 0.2
    assert {path.name for path in tmp_path.iterdir()} == {"run.json", ".lock", "toy"}


# --- schemas


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"note": ["", " "]}, "row 1: a value that is NaN needs its reason"),
        ({"ci_low": [0.9, math.nan]}, "row 0: ci_low must not be above ci_high"),
        ({"layer": [0, -1]}, r"layer: greater_than_or_equal_to\(0\) \(got -1\)"),
        ({"layer": [0.0, 1.0]}, "layer: must hold whole numbers"),
        ({"value": [math.inf, 0.5]}, r"value: must be finite or NaN \(got inf\)"),
        ({"value": "high"}, "value: must hold numbers"),
        ({"p_corrected": [1.5, 0.5]}, "p_corrected: less_than_or_equal_to"),
        ({"metric": "Prefix Matching"}, r"metric: str_matches.* \(got Prefix Matching\)"),
        ({"n": [-1, 0]}, "n: greater_than_or_equal_to"),
    ],
)
def test_a_table_of_heads_that_breaks_the_contract_is_not_saved(
    tmp_path: Path, change: dict[str, Any], reason: str
) -> None:
    with pytest.raises(ValueError, match=f"toy: the table heads breaks its schema: .*{reason}"):
        save(Result("toy", {"heads": heads().assign(**change)}), tmp_path)
    assert RunFolder(tmp_path).analyses() == []


@pytest.mark.parametrize("column", ["site", "layer", "head", "metric", "data", "value", "ci_low", "chance", "n"])
def test_every_column_of_heads_is_needed(column: str) -> None:
    with pytest.raises(ValueError, match=rf"column_in_dataframe \(got {column}\)"):
        check_tables("toy", {"heads": heads().drop(columns=column)})


def test_an_analysis_checks_tables_of_its_own(tmp_path: Path) -> None:
    schemas = {"extra": pa.DataFrameSchema({"x": pa.Column(float, pa.Check.lt(0.6))})}
    with RunFolder.claim(tmp_path, MODEL) as run:
        run.save(result(0.5), schemas=schemas)
        with pytest.raises(ValueError, match="toy: the table extra breaks its schema"):
            run.save(result(0.7), schemas=schemas)
        with pytest.raises(ValueError, match="no table absent, which its SCHEMAS describe"):
            run.save(result(0.5), schemas={"absent": schemas["extra"]})
        with pytest.raises(ValueError, match="breaks its schema"):  # its own schema for heads does not replace ours
            check_tables("toy", {"heads": heads().drop(columns="n")}, {"heads": pa.DataFrameSchema({})})
    assert load(tmp_path, "toy").tables["extra"]["x"].item() == 0.5


@pytest.mark.parametrize("name", ["", "../up", ".hidden", "a/b", "-flag", "a b"])
def test_names_that_are_no_file_names_are_refused(tmp_path: Path, name: str) -> None:
    for bad in (Result(name, {}), Result("toy", {name: heads()})):
        with pytest.raises(ValueError, match=r"the name of an? (analysis|table) is letters"):
            save(bad, tmp_path)
    with pytest.raises(ValueError, match="the name of a step is letters"):
        Workspace().step(name, dict)


def test_a_named_index_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"table t: tables have no named index; got \['layer'\]: use reset_index"):
        save(Result("toy", {"t": heads().set_index("layer")}), tmp_path)


def test_a_column_of_mixed_kinds_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="table t: a column mixes kinds"):
        save(Result("toy", {"t": pd.DataFrame({"x": [1, "one"]})}), tmp_path)


# --- workspace


def table_of(value: str, computed: list[str]) -> Callable[[], dict[str, pd.DataFrame]]:
    def compute() -> dict[str, pd.DataFrame]:
        computed.append(value)
        return {"t": pd.DataFrame({"x": [value]})}

    return compute


def test_a_step_is_taken_from_the_interrupted_run_with_what_it_left_out(tmp_path: Path) -> None:
    def scores(work: Workspace) -> dict[str, pd.DataFrame]:
        work.skip("copying", "no direct path")
        work.note("weights are quantised")
        return {"heads": heads()}

    with RunFolder.claim(tmp_path, MODEL) as run:
        work = run.workspace("toy", PRINT)
        work.skip("before", "outside of any step")
        assert_frame_equal(work.step("scores", lambda: scores(work))["heads"], heads())
        assert run.interrupted() == ["toy"]
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
        assert run.interrupted() == []
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


# --- provenance and fingerprint


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


# --- JSON


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
