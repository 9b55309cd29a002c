"""The machine that a measurement ran on, and the memory of this process. Does not import torch."""

import os
import platform
from pathlib import Path
from typing import Any

from interp.errors import UserError
from interp.results.provenance import versions

__all__ = ["available_bytes", "describe", "load", "peak_bytes", "reset_peak", "resident_bytes"]

STATUS = Path("/proc/self/status")


def describe() -> dict[str, Any]:
    """Processor, cores, memory in bytes, system and versions of the packages that matter."""
    return {
        "cpu": _field(Path("/proc/cpuinfo"), "model name") or platform.processor() or "unknown",
        "cores": len(os.sched_getaffinity(0)),
        "memory_bytes": _memory("MemTotal"),
        "system": platform.platform(),
        "python": platform.python_version(),
        "versions": versions(),
    }


def load() -> float:
    """Load average of the last minute: how many processes wanted to run. What is not ours disturbs the times."""
    return os.getloadavg()[0]


def available_bytes() -> int:
    """Memory that a new process could take without swapping."""
    return _memory("MemAvailable")


def resident_bytes() -> int:
    """Memory that this process holds now."""
    return _status("VmRSS")


def peak_bytes() -> int:
    """The most memory that this process has held since it began, or since :func:`reset_peak`."""
    return _status("VmHWM")


def reset_peak() -> None:
    """Let :func:`peak_bytes` begin anew at what is held now, so that loading a model does not set the peak.

    Raises:
        OSError: the kernel does not let a process do so.
    """
    Path("/proc/self/clear_refs").write_text("5", encoding="ascii")


def _status(name: str) -> int:
    return _kibibytes(STATUS, name)


def _memory(name: str) -> int:
    return _kibibytes(Path("/proc/meminfo"), name)


def _kibibytes(file: Path, name: str) -> int:
    value = _field(file, name)
    if value is None:
        raise UserError(f"memory is read from {file}, which has no {name} here: this benchmark needs Linux")
    return int(value.split()[0]) * 1024


def _field(file: Path, name: str) -> str | None:
    """Value of the first line ``name : value`` of one of the kernel's text files."""
    if not file.exists():
        return None
    for line in file.read_text(encoding="utf-8").splitlines():
        key, _, value = line.partition(":")
        if key.strip() == name:
            return value.strip()
    return None
