"""Whatever dies when, a run folder holds the old or the new, whole."""

import errno
import os
import shutil
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from pandas.testing import assert_frame_equal

from interp.results import RunFolder, load, save, storage
from tests.interp.results.toy import MODEL, PRINT, heads, result, table_of


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
            assert not run.has_steps("toy", PRINT)
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
