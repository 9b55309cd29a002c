"""The command ``interp`` with the toy's model and entry points and no others: ``python -m toy_interp report …``."""

import hashlib
import sys
from importlib import metadata
from types import SimpleNamespace
from typing import Any

import interp
from interp import plugins
from interp.cli import main
from interp.errors import UserError


def load(name: str, **given: Any) -> SimpleNamespace:
    """A model that is nothing but its name."""
    if name.startswith("unknown"):
        raise UserError(f"no model {name!r}")
    sha256 = hashlib.sha256(name.encode()).hexdigest()
    return SimpleNamespace(info={"name": name, "weights_sha256": sha256, "device": "cpu", "dtype": "float32", **given})


def entry_points(group: str) -> metadata.EntryPoints:
    """Those of the toy."""
    return metadata.distribution("toy-package").entry_points.select(group=group)


if __name__ == "__main__":
    interp.load = load
    plugins.metadata = SimpleNamespace(entry_points=entry_points)  # pyright: ignore[reportAttributeAccessIssue]
    sys.stderr.write("ready\n")
    sys.stderr.flush()
    sys.exit(main())
