"""Run folders of made-up results, drawn once for a whole session."""

from pathlib import Path

import pytest

from interp.results import save
from reports import page
from tests.reports import synthetic


@pytest.fixture(scope="session")
def drawn(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The page of a run of a 30-layer x 9-head model with three strong induction heads and weaker ones."""
    folder = tmp_path_factory.mktemp("run") / "lantern"
    save(synthetic.result(synthetic.Planted()), folder)
    return page.write(folder)
