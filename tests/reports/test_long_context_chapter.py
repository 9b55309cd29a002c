"""The chapter on long inputs, from a run on the bundled toy and from a made-up one."""

from collections.abc import Mapping
from pathlib import Path

import pandas as pd
import pytest

from analyses import long_context
from interp import load
from interp.results import Result, RunFolder, Workspace, save
from reports import page, style
from reports.chapters.long_context import chapter
from tests.reports import synthetic


@pytest.fixture(scope="module")
def tables() -> Mapping[str, pd.DataFrame]:
    config = long_context.Config(lengths=(48, 64), depths=2, needles=3)
    return long_context.run(load("tiny-2l"), config, Workspace()).tables


def saved(tables: Mapping[str, pd.DataFrame], folder: Path) -> RunFolder:
    provenance = synthetic.result(synthetic.SMALL).provenance
    save(Result("long-context", tables, provenance), folder / "run")
    return RunFolder(folder / "run")


def test_the_page_shows_every_figure(tables: Mapping[str, pd.DataFrame], tmp_path: Path) -> None:
    run = saved(tables, tmp_path)
    made = chapter(run.load("long-context"), run)
    assert made.lead is not None
    assert "inputs of up to 64 tokens" in made.lead.text
    names = [plate.name for plate in made.plates]
    assert names == ["by-length-and-depth", "retrieval-by-length", "statistics-by-length"]
    html = page.write(run.path).read_text(encoding="utf-8")
    for name in (*names, "retrieval"):
        assert f'id="figure-long-context-{name}"' in html


def test_nothing_retrieved_is_said_plainly(tables: Mapping[str, pd.DataFrame], tmp_path: Path) -> None:
    silent = {name: table.copy() for name, table in tables.items()}
    for name in ("kinds", "retrieval"):
        silent[name]["value"] = 0.0
    silent["kinds"] = silent["kinds"].assign(called=False)
    run = saved(silent, tmp_path)
    made = chapter(run.load("long-context"), run)
    assert made.findings[0].verdict.text.startswith("No head of 8 is called a retrieval head.")
    assert made.lead is not None
    assert "No head of" in made.lead.text
    assert "score" not in made.lead.text
    assert [plate.name for plate in made.plates] == ["statistics-by-length"]


def test_heads_above_the_threshold_that_are_not_called_are_counted_in_the_lead(
    tables: Mapping[str, pd.DataFrame], tmp_path: Path
) -> None:
    unsure = dict(tables) | {"kinds": tables["kinds"].assign(called=False)}
    n = len(unsure["kinds"].query("value > threshold"))
    run = saved(unsure, tmp_path)
    lead = chapter(run.load("long-context"), run).lead
    assert lead is not None
    assert n > 1
    assert f"64 tokens: {n} heads score above the threshold, but not surely." in lead.text


def test_depths_are_drawn_with_their_values(tables: Mapping[str, pd.DataFrame], tmp_path: Path) -> None:
    run = saved(tables, tmp_path)
    (plate,) = [p for p in chapter(run.load("long-context"), run).plates if p.name == "by-length-and-depth"]
    with style.paper():
        figure = plate.draw()
    assert figure.axes[0].get_ylabel() == "depth"
    assert len(figure.axes[0].texts) == 4
