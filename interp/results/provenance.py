"""What made a result, and the fingerprint that says whether it has been made already. Does not import torch."""

import hashlib
import inspect
import os
import platform
import shlex
import sys
from collections.abc import Mapping, Sequence
from dataclasses import fields, is_dataclass
from datetime import UTC, datetime
from importlib import metadata
from pathlib import Path
from types import ModuleType
from typing import Any

import interp
from interp.results.storage import plain, to_json

#: Distributions whose version a reader of a result may need.
PACKAGES = (
    "interp-attention",
    "torch",
    "transformers",
    "transformer-lens",
    "numpy",
    "scipy",
    "pandas",
    "pyarrow",
)
#: What of ``model.info`` changes numbers. The name does not, where the weights' hash is known.
_MODEL_INPUTS = ("weights_sha256", "revision", "quantisation", "architecture", "dtype", "device")
#: Of these versions a number depends in its last digits.
_VERSION_INPUTS = ("torch", "transformers")
#: Files of `interp` in which nothing is computed.
_WITHOUT_NUMBERS = ("cli.py", "flags.py", "plugins.py", "running.py", "errors.py")


def provenance(
    model_info: Mapping[str, Any],
    config: Any,
    *,
    started: datetime,
    command: str | Sequence[str],
    seed: int | None = None,
    seconds_before: float = 0.0,
    left_out: Sequence[Mapping[str, str]] = (),
    notes: Sequence[str] = (),
) -> dict[str, Any]:
    """Everything that a reader needs to judge or repeat a result.

    Args:
        model_info: `HookedModel.info`.
        config: the analysis's Config, or a mapping.
        started: when this process began the analysis; with a time zone.
        command: what was typed, as text or as arguments.
        seed: the seed; taken from ``config.seed`` when not given.
        seconds_before: time that an interrupted run had already spent on the steps that were taken over from it.
        left_out: what was not computed and why, as ``{"part": …, "reason": …}``.
        notes: remarks for the reader.

    Returns:
        ``model, config, seed, device, dtype, command, started, wall_seconds, peak_memory_bytes,
        peak_gpu_memory_bytes, versions, platform, python, cpus, threads, left_out, notes``. Peak memory is that of
        the whole process so far (the model's loading included), in bytes; null where the system does not tell.
    """
    seed = getattr(config, "seed", None) if seed is None else seed
    return {
        "model": plain(model_info),
        "config": plain(config),
        "seed": seed,
        "device": plain(model_info.get("device")),
        "dtype": plain(model_info.get("dtype")),
        "command": command if isinstance(command, str) else shlex.join(command),
        "started": started.isoformat(timespec="seconds"),
        "wall_seconds": (datetime.now(UTC) - started).total_seconds() + seconds_before,
        "peak_memory_bytes": peak_memory_bytes(),
        "peak_gpu_memory_bytes": _peak_gpu_memory_bytes(),
        "versions": versions(),
        "platform": platform.platform(),
        "python": platform.python_version(),
        "cpus": os.cpu_count(),
        "threads": _threads(),
        "left_out": [dict(part) for part in left_out],
        "notes": list(notes),
    }


def fingerprint(
    analysis: str,
    config: Any,
    model_info: Mapping[str, Any],
    code: str,
    *,
    version: str = "",
    used: Mapping[str, str | None] | None = None,
) -> str:
    """A hash of all that an analysis's numbers depend on; equal fingerprints mean the same numbers.

    Args:
        analysis: the analysis's name.
        config: its Config; a file that a field names enters with the hash of its content, a folder with the names,
            sizes and times of what lies in it, three levels deep.
        model_info: `HookedModel.info`.
        code: `code_sha256` of the analysis.
        version: the analysis's own version, where it has one.
        used: of each other analysis whose findings this one reads, that one's fingerprint; None where it is absent.
    """
    model = {key: model_info[key] for key in _MODEL_INPUTS if model_info.get(key) is not None}
    if "weights_sha256" not in model:
        model["name"] = model_info.get("name")
    inputs = {
        "analysis": [analysis, version, code],
        "config": plain(config),
        "files": _files_sha256(config),
        "model": model,
        "used": dict(used or {}),
        "versions": {name: version for name, version in versions().items() if name in _VERSION_INPUTS},
    }
    return hashlib.sha256(to_json(inputs).encode()).hexdigest()


def code_sha256(module: ModuleType) -> str:
    """Hash of what computes an analysis's numbers: its module (or package), the library and the library's texts."""
    library = Path(inspect.getfile(interp)).parent
    files = [path for path in library.rglob("*") if path.suffix in (".py", ".txt")]
    shared = [path for path in files if path.relative_to(library).as_posix() not in _WITHOUT_NUMBERS]
    file = Path(inspect.getfile(module))
    own = list(file.parent.rglob("*.py")) if hasattr(module, "__path__") else [file]
    digest = hashlib.sha256()
    for path in [*sorted(shared), *sorted(own)]:
        digest.update(path.name.encode() + b"\0" + path.read_bytes() + b"\0")
    return digest.hexdigest()


def file_sha256(path: Path) -> str:
    """SHA-256 of a file's content, read a piece at a time."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def versions() -> dict[str, str]:
    """Versions of the packages in `PACKAGES` that are installed."""
    found = {}
    for name in PACKAGES:
        try:
            found[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            continue
    return found


def peak_memory_bytes() -> int | None:
    """The most memory that this process has held at once (resident, in bytes); None where the system has no count."""
    status = Path("/proc/self/status")
    if status.exists():
        line = next((line for line in status.read_text().splitlines() if line.startswith("VmHWM:")), None)
        if line is not None:
            return int(line.split()[1]) * 1024
    if os.name != "posix":
        return None
    import resource  # not on Windows

    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak if sys.platform == "darwin" else peak * 1024  # macOS counts bytes, others KiB


def _peak_gpu_memory_bytes() -> int | None:
    torch = sys.modules.get("torch")  # asked, not imported: results are read without torch
    if torch is None or not torch.cuda.is_initialized():
        return None
    return sum(torch.cuda.max_memory_allocated(device) for device in range(torch.cuda.device_count()))


def _threads() -> int | None:
    torch = sys.modules.get("torch")
    return None if torch is None else torch.get_num_threads()


def _files_sha256(config: Any) -> dict[str, str]:
    """Hash of the content of every file that a field of the Config names."""
    if not is_dataclass(config):
        return {}
    values = {field.name: getattr(config, field.name) for field in fields(config)}
    named = {
        f"{name}.{place}" if isinstance(value, tuple) else name: path
        for name, value in values.items()
        for place, path in enumerate(value if isinstance(value, tuple) else (value,))
        if isinstance(path, (str, os.PathLike))
    }
    # os.path says no, where Path raises, to what cannot be a path at all (a text, say)
    return {
        **{name: file_sha256(Path(path)) for name, path in named.items() if os.path.isfile(path)},  # noqa: PTH113
        **{name: _listing_sha256(Path(path)) for name, path in named.items() if os.path.isdir(path)},  # noqa: PTH112
    }


def _listing_sha256(folder: Path) -> str:
    """Hash of the names, sizes and times of a folder's files; their content may be terabytes of checkpoints."""
    files = sorted(path for pattern in ("*", "*/*", "*/*/*") for path in folder.glob(pattern) if path.is_file())
    known = [(path.relative_to(folder).as_posix(), path.stat().st_size, path.stat().st_mtime_ns) for path in files]
    return hashlib.sha256(repr(known).encode()).hexdigest()
