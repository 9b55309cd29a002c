"""The chapter on attention's design: marks, lines, figures, and what is not written where nothing was measured."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from analyses.attention_design.claims import Claim, Curve, Number, Panel, number, tables
from interp.results import Result, RunFolder, save
from reports import page, style
from reports.chapters.attention_design import chapter
from reports.figures import attention_design as draw
from tests.reports import synthetic

LINES = Panel(
    "Grows", "tokens", "bytes", (Curve("eager", [512, 1024], [1e-7, 4e2], [1e-8, 3e2], [1e-6, 5e2]),
                                 Curve("T²", [512, 1024], [1, 4], theory=True)),
    "log", "log", reference=1.0, reference_name="one",
)  # fmt: skip
DOTS = Panel("Two tasks", "accuracy", "", (Curve("one <b>", [0.9], [0], [0.8], [1.0]),), kind="dots", reference=0.5)
CLAIMS = [
    Claim("first", "formula", "It is so.", "By a theorem.", "Found 1.00.", (number("x", 1.0, 1.0),), (LINES, LINES)),
    Claim("second", "formula", "It is <i>nearly</i> so.", "By another.", "Found 2e-5.",
          (number("thing, said to be 1", 2e-5, 1.0, 0.1, source="said"),), (DOTS,), said="It is 1.", not_shown="Much."),
    Claim("third", "cost", "It is not so.", "No.", "Found 3.", (Number("y", 3.0, expected=1.0, relation="at most"),),
          said="Nothing that was measured."),
]  # fmt: skip


@pytest.fixture
def run(tmp_path: Path) -> RunFolder:
    save(Result("attention-design", tables(CLAIMS), synthetic.result(synthetic.SMALL).provenance), tmp_path / "run")
    return RunFolder(tmp_path / "run")


def test_every_claim_has_its_line_mark_and_figure(run: RunFolder) -> None:
    made = chapter(run.load("attention-design"), run)
    assert [finding.mark for finding in made.findings] == ["holds", "imprecise", "fails", ""]
    assert [finding.section for finding in made.findings] == ["The formula", "", "Cost", "Is attention an explanation?"]
    assert [finding.plate for finding in made.findings] == ["claim-first", "claim-second", "", ""]
    assert made.lead is not None
    assert "3 claims" in made.lead.text
    assert "1 does not hold" in made.lead.text
    said = {support.label: support.text for support in made.findings[1].support}
    assert said["Commonly said"] == "It is 1. It is not so: thing, said to be 1: 2.0e−5."
    third = {support.label: support.text for support in made.findings[2].support}
    assert third["Commonly said"] == "Nothing that was measured."


def test_figures_stand_with_their_claims_and_everything_is_escaped(run: RunFolder) -> None:
    html = page.write(run.path).read_text(encoding="utf-8")
    assert html.index('class="mark holds"') < html.index('id="figure-attention-design-claim-first"')
    assert html.index('id="figure-attention-design-claim-first"') < html.index('class="mark imprecise"')
    assert html.count('id="figure-attention-design-claim-first"') == 1
    assert "<i>nearly</i>" not in html
    assert "one <b>" not in html


def test_ticks_are_written_out() -> None:
    made = tables(CLAIMS[:1])
    with style.paper():
        figure = draw.panels(made["panels"], made["curves"])
        svg, _ = style.render(figure)
    assert b"mathdefault" not in svg
    assert [label.get_text() for label in figure.axes[0].get_xticklabels()] == ["512", "1k"]
    assert "10⁻".encode() in svg
    assert len(figure.axes) == 2


def test_ticks_of_values_that_lie_close_do_not_cover_one_another() -> None:
    curve = Curve("heads", [1.79652, 3.70652, 6.52706, 6.58, 64], [3.0, 4.0, 9.0, 12.0, 20.0])
    made = tables([replace(CLAIMS[0], panels=(Panel("Scores", "deviation", "size", (curve,), "log", "log"),))])
    with style.paper():
        figure = draw.panels(made["panels"], made["curves"])
        style.render(figure)
    (ax,) = figure.axes
    assert [label.get_text() for label in ax.get_xticklabels()] == ["1.8", "3.71", "6.53", "64"]
    low, high = ax.get_ylim()
    assert [tick for tick in ax.get_yticks() if low <= tick <= high] == [5, 10, 20]


def test_dots_carry_their_intervals() -> None:
    made = tables(CLAIMS[1:2])
    with style.paper():
        figure = draw.panels(made["panels"], made["curves"])
    (ax,) = figure.axes
    (bar,) = ax.collections
    assert np.asarray(bar.get_segments())[0][:, 0] == pytest.approx([0.8, 1.0])  # pyright: ignore[reportAttributeAccessIssue]
