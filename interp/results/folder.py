"""Run folders: one model, the analyses that were made of it, one page."""

import errno
import json
import os
import shutil
from collections.abc import Mapping
from datetime import UTC, datetime
from pathlib import Path
from types import TracebackType
from typing import IO, Any, Self

import pandera.pandas as pa

from interp.errors import RunFolderError
from interp.results import storage
from interp.results.result import Result
from interp.results.schemas import check_tables
from interp.results.storage import plain
from interp.results.workspace import Workspace

try:
    import fcntl
except ImportError:  # Windows
    fcntl = None

_ABOUT = "run.json"
_LOCK = ".lock"
_PARTIAL = ".partial"
_IDENTITY = ("weights_sha256", "quantisation", "dtype", "architecture")


class RunFolder:
    """A run folder, to read or, inside ``with RunFolder.claim(...)``, to write.

    Reading needs no lock: a finished analysis appears by one rename.

    Raises:
        RunFolderError: ``path`` is no run folder.
    """

    def __init__(self, path: Path | str) -> None:
        self.path = Path(path)
        self._lock: IO[bytes] | None = None
        self.about = self._read_about()

    @classmethod
    def claim(cls, path: Path | str, model_info: Mapping[str, Any], *, force: bool = False) -> Self:
        """The folder for writing, made where it does not exist; only one process at a time holds it.

        What killed processes left half-written is removed. With ``force``, a run of another model makes way.

        Raises:
            RunFolderError: it cannot be written, is in use, holds something else or a run of another model.
        """
        path = Path(path)
        check_usable(path)
        path.mkdir(parents=True, exist_ok=True)
        lock = _take_lock(path)
        try:
            storage.tidy_up(path)
            about = _about(path)
            if about is not None and identity(about["model"]) != identity(model_info):
                if not force:
                    raise RunFolderError(_holds_another(path, about["model"], model_info))
                _clear(path)
                about = None
            if about is None:
                _write_about(path, model_info)
            folder = cls(path)
        except BaseException:
            _release(lock)
            raise
        folder._lock = lock
        return folder

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Let other processes write here; the system does the same when this process dies."""
        _release(self._lock)
        self._lock = None

    @property
    def model(self) -> Mapping[str, Any]:
        """What is known of the model that this run is about: `HookedModel.info`."""
        return self.about["model"]

    @property
    def page(self) -> Path:
        """Where the page is, or will be."""
        return self.path / "index.html"

    def analyses(self) -> list[str]:
        """Names of the finished analyses, in alphabetical order; anything else in the folder is passed over."""
        return [place.name for place in sorted(self.path.iterdir()) if self._is_finished(place)]

    def fingerprint(self, analysis: str) -> str | None:
        """The fingerprint of a finished analysis's inputs; None where it is not finished."""
        meta = storage.read_meta(self.path / analysis)
        return None if meta is None else meta.get("fingerprint")

    def load(self, analysis: str) -> Result:
        """A finished analysis.

        Raises:
            RunFolderError: it is not finished, or a table is not the one that was saved.
        """
        place = self.path / storage.check_name(analysis, "an analysis")
        meta = storage.read_meta(place)
        if meta is None:
            there = ", ".join(self.analyses()) or "none"
            raise RunFolderError(f"{self.path} has no finished {analysis}; finished are: {there}")
        if meta.get("analysis") != analysis:
            raise RunFolderError(f"{place} holds {meta['analysis']!r}, not {analysis!r}: it was renamed or copied")
        return Result(analysis, storage.read_tables(place, meta), meta["provenance"])

    def save(
        self, result: Result, *, fingerprint: str | None = None, schemas: Mapping[str, pa.DataFrameSchema] | None = None
    ) -> Path:
        """Save a result whole, in the stead of an earlier one of the same analysis, and return its folder.

        The steps that `Workspace` had kept for it are removed, once it is safely there.

        Raises:
            ValueError: a table breaks its schema.
            RunFolderError: something else stands in its place.
            OSError: the disk is full or gone; what was saved before is untouched.
        """
        name = storage.check_name(result.analysis, "an analysis")
        check_tables(name, result.tables, schemas)
        place = self.path / name
        if place.exists() and not self._is_finished(place):
            raise RunFolderError(f"{place} exists and is no saved analysis; move it or choose another run folder")
        meta = {"analysis": name, "fingerprint": fingerprint, "provenance": result.provenance}
        storage.write_folder(place, result.tables, meta)
        self.forget_steps(name)
        return place

    def figures(self, analysis: str) -> Path:
        """The folder for the figures of a finished analysis, made where it does not exist."""
        place = self.path / analysis
        if not self._is_finished(place):
            raise RunFolderError(f"{self.path} has no finished {analysis} to draw")
        (place / "figures").mkdir(exist_ok=True)
        return place / "figures"

    def workspace(self, analysis: str, fingerprint: str, uses: tuple[str, ...] = ()) -> Workspace:
        """A `Workspace` whose finished steps outlive an interruption, for this analysis on these inputs."""
        steps = self.path / _PARTIAL / f"{storage.check_name(analysis, 'an analysis')}@{fingerprint[:16]}"
        earlier = {name: self.load(name) for name in uses if name in self.analyses()}
        return Workspace(steps, uses=uses, earlier=earlier)

    def has_steps(self, analysis: str, fingerprint: str) -> bool:
        """Whether an interrupted run on these inputs left finished steps."""
        return any((self.path / _PARTIAL / f"{analysis}@{fingerprint[:16]}").glob("*/meta.json"))

    def forget_steps(self, analysis: str) -> None:
        """Remove what interrupted runs of an analysis left."""
        for path in (self.path / _PARTIAL).glob(f"{analysis}@*"):
            shutil.rmtree(path)
        if (self.path / _PARTIAL).exists() and not any((self.path / _PARTIAL).iterdir()):
            (self.path / _PARTIAL).rmdir()

    def _is_finished(self, place: Path) -> bool:
        if storage.is_half_written(place) or not place.is_dir():
            return False
        meta = storage.read_meta(place)
        return meta is not None and meta.get("analysis") == place.name

    def _read_about(self) -> dict[str, Any]:
        about = _about(self.path)
        if about is None:
            what = "is no run folder (it has no run.json)" if self.path.exists() else "does not exist"
            raise RunFolderError(f"{self.path} {what}; `interp report MODEL --out FOLDER` makes one")
        return about


def save(result: Result, run_folder: Path | str, **options: Any) -> Path:
    """Save one result into a run folder, made where it does not exist; see `RunFolder.save`."""
    with RunFolder.claim(run_folder, result.provenance.get("model", {})) as run:
        return run.save(result, **options)


def load(run_folder: Path | str, analysis: str) -> Result:
    """One finished analysis of a run folder; see `RunFolder.load`."""
    return RunFolder(run_folder).load(analysis)


def identity(model_info: Mapping[str, Any]) -> dict[str, Any]:
    """What makes two models the same for a run folder: weights, quantisation, dtype; names only without a hash."""
    known = {key: model_info[key] for key in _IDENTITY if model_info.get(key) is not None}
    named = (
        {} if "weights_sha256" in known else {"name": model_info.get("name"), "revision": model_info.get("revision")}
    )
    return plain({**known, **named})


def check_writable(path: Path) -> Path:
    """The nearest folder that exists on the way to a folder of results, which has to be one that can be written.

    Raises:
        RunFolderError: it is a file, or cannot be written.
    """
    nearest = next(parent for parent in [path, *path.absolute().parents] if parent.exists())
    if not nearest.is_dir():
        raise RunFolderError(f"{nearest} is a file; the run folder needs a place of its own (--out)")
    if not os.access(nearest, os.W_OK | os.X_OK):
        raise RunFolderError(f"{nearest} cannot be written; choose another folder with --out")
    return nearest


def check_usable(path: Path) -> None:
    """Whether results could be written here, asked before a model is loaded.

    Raises:
        RunFolderError: it is a file, cannot be written, or holds something that is no run.
    """
    nearest = check_writable(path)
    if nearest != path or _about(path) is not None:
        return
    entries = [entry for entry in path.iterdir() if not storage.is_half_written(entry)]
    strangers = sorted(entry.name for entry in entries if entry.name != _LOCK)
    if strangers:
        raise RunFolderError(
            f"{path} is not empty and is no run folder (it holds {strangers[0]}); choose another with --out"
        )


def _about(path: Path) -> dict[str, Any] | None:
    """What ``run.json`` says; None where there is none."""
    file = path / _ABOUT
    try:
        about = json.loads(file.read_bytes())
    except (FileNotFoundError, NotADirectoryError):
        return None
    except ValueError as error:
        raise RunFolderError(f"{file} is damaged: it is not JSON ({error})") from error
    if not isinstance(about, dict) or about.get("format") != storage.FORMAT or not isinstance(about.get("model"), dict):
        raise RunFolderError(f"{file} was not written by this version of interp (format {storage.FORMAT})")
    return about


def _write_about(path: Path, model_info: Mapping[str, Any]) -> None:
    created = datetime.now(UTC).isoformat(timespec="seconds")
    about = {"format": storage.FORMAT, "created": created, "model": model_info}
    storage.write_file(path / _ABOUT, storage.to_json(about))


def _holds_another(path: Path, there: Mapping[str, Any], wanted: Mapping[str, Any]) -> str:
    def told(model: Mapping[str, Any]) -> str:
        return (
            f"{model.get('name')} ({', '.join(f'{key} {str(value)[:12]}' for key, value in identity(model).items())})"
        )

    return (
        f"{path} holds a run of {told(there)}, not of {told(wanted)}; "
        "choose another folder with --out, or --force to remove what is there"
    )


def _clear(path: Path) -> None:
    """Remove what `interp` wrote here, and nothing else."""
    ours = [meta.parent for meta in path.glob("*/meta.json") if storage.read_meta(meta.parent) is not None]
    for place in [*ours, *path.glob(_PARTIAL)]:
        shutil.rmtree(place)
    (path / "index.html").unlink(missing_ok=True)
    (path / _ABOUT).unlink()


def _take_lock(path: Path) -> IO[bytes] | None:
    """An exclusive lock that the system takes back when this process dies; None on file systems without locks."""
    if fcntl is None:
        return None
    file = (path / _LOCK).open("ab")
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError as error:
        file.close()
        raise RunFolderError(f"{path} is being written by another process; wait or choose another --out") from error
    except OSError as error:
        file.close()
        if error.errno not in (errno.ENOLCK, errno.ENOSYS, errno.EOPNOTSUPP):
            raise
        return None
    return file


def _release(lock: IO[bytes] | None) -> None:
    if lock is not None:
        lock.close()
