"""A page for the toy."""

import sys
from pathlib import Path

from interp.results import RunFolder


def write(run_folder: Path) -> Path:
    """Name the finished analyses."""
    run = RunFolder(run_folder)
    run.page.write_text(f"{' '.join(run.analyses())} torch={'torch' in sys.modules}")
    return run.page
