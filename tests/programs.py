"""Programs that tests start, and what every analysis is as one."""

import os
import subprocess
import sys
import tomllib
from importlib import import_module
from pathlib import Path

from interp.plugins import Analysis

ROOT = Path(__file__).parents[1]


def python(*args: str, cwd: Path = ROOT) -> subprocess.CompletedProcess[str]:
    """Run Python with the project on its path and nothing downloaded; failing is for the caller to judge."""
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "HF_HUB_OFFLINE": "1"}
    return subprocess.run(
        [sys.executable, *args], cwd=cwd, env=environment, capture_output=True, text=True, check=False
    )


def declared(name: str) -> Analysis:
    """The analysis that the project's entry point of this name leads to; its settings are checked to be its own."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    analysis = Analysis(name, import_module(project["entry-points"]["interp.analyses"][name]))
    assert set(analysis.memory_settings) <= set(analysis.config_class.__dataclass_fields__)
    return analysis
