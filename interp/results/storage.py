"""A folder of tables that appears whole or not at all, whenever the process is killed.

Everything is written into a temporary folder beside its place, flushed to the disk, and renamed. ``meta.json`` holds
the SHA-256 of every table, so that a file that was changed, lost or added later is refused instead of misread.
"""

import dataclasses
import hashlib
import io
import json
import math
import os
import re
import secrets
import shutil
from collections.abc import Mapping
from datetime import date
from enum import Enum
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa

from interp.errors import RunFolderError

FORMAT = 1
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]*")
_ASIDE = re.compile(r"\.old-(?P<name>.+)-[0-9a-f]{8}")
_TEMPORARY = ".tmp-"


def check_name(name: str, what: str) -> str:
    """``name``, if it can be the name of a file: letters, digits, ``_``, ``.`` and ``-``, not starting with a sign."""
    if not _NAME.fullmatch(name):
        rule = "is letters, digits, '_', '.' and '-', and starts with one of the first two"
        raise ValueError(f"the name of {what} {rule}; got {name!r}")
    return name


def plain(value: Any) -> Any:
    """``value`` in what JSON can say: NaN becomes null, infinities text; a type that is not known raises TypeError."""
    match value:
        case Enum():
            return plain(value.value)
        case None | bool() | int() | str():
            return value
        case float() if math.isnan(value):
            return None
        case float():
            return value if math.isfinite(value) else str(value)
        case np.generic():
            return plain(value.item())
        case np.ndarray():
            return plain(value.tolist())
        case Mapping():
            return {str(key): plain(item) for key, item in value.items()}
        case list() | tuple():
            return [plain(item) for item in value]
        case set() | frozenset():
            return sorted(plain(item) for item in value)
        case os.PathLike():
            return os.fspath(value)
        case date():
            return value.isoformat()
        case _ if dataclasses.is_dataclass(value) and not isinstance(value, type):
            return {field.name: plain(getattr(value, field.name)) for field in dataclasses.fields(value)}
    raise TypeError(f"cannot be saved as JSON: {value!r} of type {type(value).__name__}; turn it into numbers and text")


def to_json(value: Any) -> str:
    """JSON text that any reader accepts (no bare NaN)."""
    return json.dumps(plain(value), allow_nan=False, ensure_ascii=False, indent=2) + "\n"


def write_file(path: Path, content: bytes | str) -> None:
    """Write a file so that a reader sees all of it or what was there before."""
    temporary = path.parent / f"{_TEMPORARY}{path.name}-{secrets.token_hex(4)}"
    try:
        _write(temporary, content.encode() if isinstance(content, str) else content)
        temporary.replace(path)
        _flush_folder(path.parent)
    finally:
        temporary.unlink(missing_ok=True)


def write_folder(place: Path, tables: Mapping[str, pd.DataFrame], meta: Mapping[str, Any]) -> dict[str, Any]:
    """Save tables and ``meta`` as the folder ``place``, in the stead of what was there; returns its ``meta.json``."""
    content = {check_name(name, "a table"): _parquet(name, table) for name, table in tables.items()}
    hashes = {name: hashlib.sha256(data).hexdigest() for name, data in content.items()}
    meta = {"format": FORMAT, **meta, "tables": hashes}
    text = to_json(meta)
    temporary = place.parent / f"{_TEMPORARY}{place.name}-{secrets.token_hex(4)}"
    try:
        (temporary / "tables").mkdir(parents=True)
        for name, data in content.items():
            _write(temporary / "tables" / f"{name}.parquet", data)
        _write(temporary / "meta.json", text.encode())
        _flush_folder(temporary / "tables")
        _flush_folder(temporary)
        _put_in_place(temporary, place)
    finally:
        shutil.rmtree(temporary, ignore_errors=True)
    return meta


def read_meta(place: Path) -> dict[str, Any] | None:
    """``meta.json`` of a saved folder; None where there is none.

    Raises:
        RunFolderError: it is not what `write_folder` wrote, or comes from a later version.
    """
    path = place / "meta.json"
    try:
        meta = json.loads(path.read_bytes())
    except (FileNotFoundError, NotADirectoryError):
        return None
    except ValueError as error:
        raise RunFolderError(f"{path} is damaged: it is not JSON ({error}); remove {place} and run again") from error
    if not isinstance(meta, dict) or not isinstance(meta.get("tables"), dict):
        raise RunFolderError(f"{path} was not written by interp: it names no tables")
    if meta.get("format") != FORMAT:
        raise RunFolderError(f"{path} has format {meta.get('format')}; this version of interp reads format {FORMAT}")
    return meta


def read_tables(place: Path, meta: Mapping[str, Any]) -> dict[str, pd.DataFrame]:
    """The tables that ``meta`` names, each checked against its SHA-256.

    Raises:
        RunFolderError: a table is missing, is not the one that was saved, or is not named in ``meta.json``.
    """
    folder = place / "tables"
    strangers = {path.stem for path in folder.glob("*.parquet")} - set(meta["tables"])
    if strangers:
        names = ", ".join(sorted(strangers))
        raise RunFolderError(f"{folder} holds tables that meta.json does not name: {names}; move them elsewhere")
    return {name: _read_table(folder / f"{name}.parquet", sha256) for name, sha256 in meta["tables"].items()}


def tidy_up(folder: Path) -> None:
    """Remove what killed processes left half-written; put back what one had only moved aside."""
    for path in list(folder.glob(f"{_TEMPORARY}*")):
        _remove(path)
    for path in list(folder.glob(".old-*")):
        match = _ASIDE.fullmatch(path.name)
        place = folder / match["name"] if match else None
        if place is not None and not place.exists():
            path.rename(place)
        else:
            _remove(path)


def is_half_written(path: Path) -> bool:
    """Whether a killed process left this entry; readers pass over it."""
    return path.name.startswith(_TEMPORARY) or _ASIDE.fullmatch(path.name) is not None


def _read_table(path: Path, sha256: str) -> pd.DataFrame:
    try:
        data = path.read_bytes()
    except FileNotFoundError as error:
        raise RunFolderError(
            f"{path} is missing, though meta.json names it; run the analysis again with --force"
        ) from error
    if hashlib.sha256(data).hexdigest() != sha256:
        raise RunFolderError(
            f"{path} is not the table that was saved: its SHA-256 is not the one in meta.json; "
            "bring back the file or run the analysis again with --force"
        )
    return pd.read_parquet(io.BytesIO(data))


def _parquet(name: str, table: pd.DataFrame) -> bytes:
    if table.index.names != [None]:
        index = list(table.index.names)
        raise ValueError(f"table {name}: tables have no named index; got {index}: use reset_index()")
    buffer = io.BytesIO()
    try:
        table.to_parquet(buffer, index=False)
    except (pa.ArrowInvalid, pa.ArrowTypeError) as error:
        raise ValueError(f"table {name}: a column mixes kinds of values ({error})") from error
    return buffer.getvalue()


def _put_in_place(temporary: Path, place: Path) -> None:
    """Rename; a folder that is in the way steps aside first and is brought back by `tidy_up` if we die between."""
    aside = place.parent / f".old-{place.name}-{secrets.token_hex(4)}"
    if place.exists():
        place.rename(aside)
    temporary.rename(place)
    _flush_folder(place.parent)
    if aside.exists():
        shutil.rmtree(aside)


def _write(path: Path, data: bytes) -> None:
    with path.open("xb") as file:
        file.write(data)
        file.flush()
        os.fsync(file.fileno())


def _flush_folder(path: Path) -> None:
    """Make renames and new names in a folder last; Windows has no such call."""
    if os.name != "posix":
        return
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def _remove(path: Path) -> None:
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path)
    else:
        path.unlink()
