"""Weight files before they are loaded: where they are cached, whether they are whole, and their hash.

Works on bytes, with neither torch nor transformers.
"""

import contextlib
import hashlib
import json
import os
import struct
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from interp.errors import UserError

SAFETENSORS = "model.safetensors"
PICKLES = "pytorch_model.bin"
_MAX_HEADER = 100_000_000


def cache_folder(cache_dir: str | Path | None = None) -> Path:
    """For conversions and hashes: ``cache_dir``, else interp-attention in ``$XDG_CACHE_HOME`` or ``~/.cache``."""
    if cache_dir is not None:
        return Path(cache_dir).expanduser()
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "interp-attention"


def read_json(file: Path) -> dict[str, Any]:
    """A JSON file that must hold an object.

    Raises:
        UserError: it is not JSON, or holds something else.
    """
    try:
        content = json.loads(file.read_text(encoding="utf-8"))
    except (UnicodeDecodeError, json.JSONDecodeError) as error:
        raise UserError(f"{file} is not valid JSON ({error}): fetch the file again") from error
    if not isinstance(content, dict):
        raise UserError(f"{file} must hold a JSON object; it holds a {type(content).__name__}")
    return content


def weight_files(folder: Path) -> list[Path]:
    """The files that transformers will read the weights from, checked to be whole.

    safetensors are preferred. ``pytorch_model.bin`` (a pickle) is accepted only where there is nothing else; it is read
    by torch's ``weights_only`` loader, which runs no code from it.

    Raises:
        UserError: the folder holds no model, a shard is missing, or a file is cut short.
    """
    if not (folder / "config.json").is_file():
        raise UserError(f"{folder} is no model: config.json is missing. {_what_is_there(folder)}")
    for stem in (SAFETENSORS, PICKLES):
        files = _shards(folder, stem)
        if files:
            for file in files:
                if file.suffix == ".safetensors":
                    check_safetensors(file)
            return files
    raise UserError(f"{folder} is no model: {SAFETENSORS} (or its shards) is missing. {_what_is_there(folder)}")


def check_safetensors(file: Path) -> None:
    """Check that a safetensors file is as long as its header says, without reading the weights.

    Raises:
        UserError: it is cut short, too long, or not a safetensors file.
    """
    size = file.stat().st_size
    with file.open("rb") as stream:
        start = stream.read(8)
        length = struct.unpack("<Q", start)[0] if len(start) == 8 else 0
        if not 2 <= length <= min(_MAX_HEADER, size - 8):
            raise UserError(f"{file} is cut short or no safetensors file ({size:,} bytes): fetch it again")
        try:
            header = json.loads(stream.read(length))
            ends = [entry["data_offsets"][1] for name, entry in header.items() if name != "__metadata__"]
        except (UnicodeDecodeError, json.JSONDecodeError, AttributeError, TypeError, KeyError, IndexError) as error:
            raise UserError(f"{file} is no safetensors file: its header cannot be read ({error!r})") from error
    expected = 8 + length + max(ends, default=0)
    if size != expected:
        raise UserError(f"{file} is damaged: its header says {expected:,} bytes, it has {size:,}. Fetch it again")


def weights_sha256(files: Sequence[Path], cache: Path | None) -> str:
    """SHA-256 of the weights.

    One file: that file's own hash, as ``sha256sum`` prints it. Several shards: the hash of what ``sha256sum *`` prints
    for them (lines ``hash  name`` in order of name). ``cache`` None: computed anew.
    """
    hashes = {file.name: file_sha256(file, cache) if cache else _digest(file) for file in files}
    if len(hashes) == 1:
        return next(iter(hashes.values()))
    return hashlib.sha256("".join(f"{hashes[name]}  {name}\n" for name in sorted(hashes)).encode()).hexdigest()


def file_sha256(file: Path, cache: Path) -> str:
    """SHA-256 of a file, remembered in the cache until the file's size, time of change or place differ."""
    file = file.resolve()
    stat = file.stat()
    seen = {"file": str(file), "size": stat.st_size, "mtime_ns": stat.st_mtime_ns, "inode": stat.st_ino}
    entry = cache / "hashes" / f"{hashlib.sha256(str(file).encode()).hexdigest()[:32]}.json"
    # no entry, a cache that cannot be read, half an entry of a full disk: the hash is computed again
    with contextlib.suppress(OSError, ValueError, AttributeError):
        remembered = json.loads(entry.read_text(encoding="utf-8"))
        digest = remembered.pop("sha256", None)
        if digest and remembered == seen:
            return digest
    digest = _digest(file)
    # a cache that cannot be written costs time in the next run, and nothing else
    with contextlib.suppress(OSError):
        entry.parent.mkdir(parents=True, exist_ok=True)
        part = entry.with_suffix(f".{os.getpid()}.part")
        part.write_text(json.dumps(seen | {"sha256": digest}), encoding="utf-8")
        part.replace(entry)
    return digest


def _digest(file: Path) -> str:
    with file.open("rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()


def _shards(folder: Path, stem: str) -> list[Path]:
    """The weight files under one name: a single one, or those that its index lists; none is []."""
    if (folder / stem).is_file():
        return [folder / stem]
    index = folder / f"{stem}.index.json"
    if not index.is_file():
        return []
    names = sorted(set(read_json(index).get("weight_map", {}).values()))
    missing = [name for name in names if not (folder / name).is_file()]
    if missing or not names:
        raise UserError(f"{folder} is not whole: {index.name} lists {', '.join(missing) or 'no file'}; fetch it again")
    return [folder / name for name in names]


def _what_is_there(folder: Path) -> str:
    """What to do instead, from what the folder holds."""
    ggufs = sorted(folder.glob("*.gguf"))
    if ggufs:
        return f"It holds {ggufs[0].name}: give that file"
    if (folder / "adapter_config.json").is_file():
        return "It holds an adapter: merge it into its base model (peft: merge_and_unload) and save that"
    for name in ("tf_model.h5", "flax_model.msgpack"):
        if (folder / name).is_file():
            return f"It holds {name}: convert it to safetensors with a transformers version below 5"
    inside = sorted(file.parent for file in folder.glob("*/config.json"))
    if inside:
        return f"{inside[-1]} has one: give that folder"
    names = sorted(item.name for item in folder.iterdir())
    return f"It holds {', '.join(names[:5])}{', …' if len(names) > 5 else ''}" if names else "It is empty"
