"""The words and figures of the head-pruning chapter, against tables whose answer is planted."""

import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

from interp.results import Result, RunFolder, save
from reports import style
from reports.chapters import Chapter, Plate
from reports.chapters.head_pruning import chapter
from reports.figures import head_pruning as draw
from reports.figures import labels
from tests.reports import pruning_tables
from tests.reports.chapter_parts import NO_RUN, linked_numbers, sentences, verdicts


@pytest.fixture(scope="module")
def made() -> Chapter:
    return chapter(pruning_tables.result(), NO_RUN)


def told(made: Chapter) -> str:
    return "\n".join(sentence.text for sentence in sentences(made))


def test_the_lead_says_how_many_heads_can_go(made: Chapter) -> None:
    assert made.lead is not None
    for part in ("24 attention heads", "tiny-lantern", "Q4_1", "25 % [22, 28]", "random orders 4 % to 9 %"):
        assert part in made.lead.text


def test_findings_name_what_is_planted(made: Chapter) -> None:
    text = told(made)
    assert "one is needed, one does harm" in text
    assert "L2H1 (+0.61)" in text
    assert "L4H3 (−0.13): these heads help when they are removed" in text
    assert "does better than both random orders" in text
    assert "smaller by 1.40 [1.20, 1.60] at least" in text
    assert "first-order estimate (resample) is nearest to what ablating heads shows: Spearman's ρ is 0.71" in text
    assert "r = 0.68 [0.60, 0.74]" in text
    assert "Learned gates keep 20 of 24 heads without a sure rise of the loss" in text
    assert "the loss does not surely rise in three of 6 layers" in text


def test_every_number_comes_from_a_row_that_is_there(made: Chapter) -> None:
    result = pruning_tables.result()
    for sentence in sentences(made):
        list(linked_numbers(sentence, result))


@pytest.mark.parametrize(
    "missing", ["gates_path", "effects", "free", "agreement", "areas", "curve", "best_head", "heads"]
)
def test_a_run_without_a_table_says_less(missing: str) -> None:
    result = pruning_tables.result()
    less = replace(result, tables={name: t for name, t in result.tables.items() if name != missing})
    made = chapter(less, NO_RUN)
    for plate in made.plates:
        with style.paper():
            plate.draw()
    assert len(made.findings) >= 4


def test_an_importance_that_loses_to_chance_is_said_to(made: Chapter) -> None:
    areas: Any = pruning_tables.result().tables["areas"].copy()
    areas.loc[areas["order"] == "random", ["margin", "ci_low", "ci_high"]] = [[-0.3, -0.5, -0.1], [0.5, 0.3, 0.7]]
    text = verdicts(chapter(pruning_tables.result(areas=areas), NO_RUN))
    assert "clearly better than one of 2 random orders: the smallest margin is −0.30" in text


def test_full_says_nothing_of_full() -> None:
    assert chapter(pruning_tables.result(), NO_RUN).full.startswith("`--budget full` also measures the time")
    best = pruning_tables.result().tables["best_head"].head(0)
    assert chapter(pruning_tables.result(best_head=best), NO_RUN).full.startswith("`--budget full` ablates every head")
    assert chapter(pruning_tables.result("full"), NO_RUN).full == ""


def test_kinds_of_another_analysis_are_read_when_the_page_is_drawn(tmp_path: Path) -> None:
    kinds = pd.DataFrame([
        {"site": "blocks.2.attn", "layer": 2, "head": 1, "kind": "induction", "called": True},
        {"site": "blocks.0.attn", "layer": 0, "head": 0, "kind": "previous_token", "called": True},
        {"site": "blocks.0.attn", "layer": 0, "head": 1, "kind": "induction", "called": False},
    ])  # fmt: skip

    class Run:
        def analyses(self) -> list[str]:
            return ["induction-heads", "head-pruning"]

        def load(self, name: str) -> Result:
            return Result(name, {"kinds": kinds} if name == "induction-heads" else {}, {})

    run: Any = Run()
    made = chapter(pruning_tables.result(), run)
    assert "1 induction head (100 %)" in verdicts(made)
    assert "22 heads of no kind" in verdicts(made)
    assert any(plate.name == "kinds-first" for plate in made.plates)


def test_what_cutting_saves_is_told_and_drawn(made: Chapter) -> None:
    text = told(made)
    assert "With 50 % of the heads cut out, the model has 92 % of the parameters, 88 % of the KV cache and 87 %" in text
    assert "A prompt takes" not in text
    full = chapter(pruning_tables.result("full", cost=pruning_tables.cost(timed=True)), NO_RUN)
    assert "A prompt takes 0.84 [0.80, 0.88] of the unpruned model's time; with the same heads masked, 1.03" in told(
        full
    )
    for each in (made, full):
        assert any(plate.name == "cost" for plate in each.plates)


def test_few_heads_from_the_beginning_are_compared(made: Chapter) -> None:
    assert "from-scratch" not in {plate.name for plate in made.plates}
    full = chapter(pruning_tables.result("full", from_scratch=pruning_tables.from_scratch()), NO_RUN)
    text = told(full)
    assert "surely better than those that had as few from the beginning in two of 4 comparisons" in text
    assert "surely worse in none" in text
    assert "With one head in the end and head dropout of 20 % the loss differs by −0.40 [−0.50, −0.30]" in text
    (plate,) = [plate for plate in full.plates if plate.name == "from-scratch"]
    with style.paper():
        figure = plate.draw()
    drawn = [np.asarray(bars[0].get_ydata()).tolist() for bars in figure.axes[0].containers]
    for losses, expected in zip(drawn, ([1, 1], [3, 2], [0.6, 1.05], [0.4]), strict=True):
        assert losses == pytest.approx(expected)


@pytest.mark.parametrize("gates", [True, False])
def test_every_figure_is_drawn(gates: bool) -> None:
    made = chapter(pruning_tables.result(gates=gates), NO_RUN)
    plates: list[Plate] = [*made.plates, *([made.opening] if made.opening else [])]
    names = {plate.name for plate in plates}
    assert {"importance", "pruning-curves", "ablation-effects", "importance-against-effect", "agreement",
            "left-by-layer"} <= names  # fmt: skip
    assert ("gates" in names) is gates
    with style.paper():
        for plate in plates:
            svg, png = style.render(plate.draw())
            assert svg
            assert png


def test_the_curve_shows_what_the_table_holds() -> None:
    table: Any = pruning_tables.result().tables["curve"]
    figure, (ax,) = style.canvas(5, 3)
    draw.curve(table, ax, {"share": 0.25, "ci_low": 0.2, "ci_high": 0.3})
    drawn = [line.get_ydata() for line in ax.lines if len(np.atleast_1d(line.get_ydata())) == 11]
    mine = table[table["order"] == "importance"]["value"].to_numpy()
    assert any(np.array_equal(mine, np.asarray(y)) for y in drawn)
    assert any("25% free" in text.get_text() for text in ax.texts)
    assert figure is ax.figure


def test_effects_are_sorted_and_named() -> None:
    table: Any = pruning_tables.result().tables["effects"]
    _, (ax,) = style.canvas(5, 5)
    draw.effects(table[table["ablation"] == "resample"], ax, most=10)
    names = [label.get_text() for label in ax.get_yticklabels()]
    assert len(names) == 10
    assert names[0] == "L2H1"
    assert names[-1] == "L4H3"
    assert all(re.fullmatch(r"L\dH\d", name) for name in names)


def test_a_mark_on_every_head_is_no_mark(made: Chapter) -> None:
    assert made.opening is not None
    assert "Outlined: the head needed most" in made.opening.caption  # one of 24
    effects: Any = pruning_tables.result().tables["effects"]
    alike = effects.assign(verdict="needed", change=0.3, ci_low=0.2, ci_high=0.4)
    opening = chapter(pruning_tables.result(effects=alike), NO_RUN).opening
    assert opening is not None
    assert "Outlined" not in opening.caption
    rising = alike.assign(change=0.3 + 0.1 * (effects.index % 24), ci_low=0.2 + 0.1 * (effects.index % 24))
    opening = chapter(pruning_tables.result(effects=rising), NO_RUN).opening
    assert opening is not None
    with style.paper():
        texts = {text.get_text() for ax in opening.draw().axes for text in ax.texts}
    named = {text for text in texts if re.fullmatch(r"L\dH\d", text)}
    assert named == {"L4H2", "L4H3", "L5H0", "L5H1", "L5H2", "L5H3"}  # a fourth of the heads, the most needed


def test_gates_are_named_once_where_they_are_close(made: Chapter) -> None:
    path = pd.DataFrame({"penalty": [0.001, 0.01, 0.1, 1.0], "share_pruned": [0.0, 0.0, 0.25, 0.25],
                         "loss": [2.0, 2.001, 2.1, 2.9], "ci_low": [-0.1, -0.1, 0.0, 0.8],
                         "ci_high": [0.1, 0.1, 0.2, 1.0]})  # fmt: skip
    curve = pd.DataFrame({"share": np.linspace(0, 1, 11), "value": np.linspace(2, 12, 11)})
    with style.paper():
        _, (ax,) = style.canvas(4, 3)
        draw.gates_path(path, ax, curve)
    assert [text.get_text() for text in ax.texts] == ["λ 0.001 to 0.01", "λ 0.1", "λ 1"]
    assert ax.get_xlim()[1] < 0.35  # no further than the gates go
    drawn = next(line for line in ax.lines if line.get_label() == "pruned by importance")
    assert np.asarray(drawn.get_xdata()).max() == pytest.approx(0.3)


def test_names_cover_no_point_that_has_none() -> None:
    points = [(x, y) for x in range(6) for y in range(4)]
    with style.paper():
        figure, (ax,) = style.canvas(5, 4)
        ax.scatter(*zip(*points, strict=True), s=9)
        labels.label_points(ax, [(2, 2)], ["L10H10"], points)
        figure.draw_without_rendering()
        box = ax.texts[0].get_window_extent()
    assert not any(box.contains(*ax.transData.transform(point)) for point in points if point != (2, 2))


def test_the_folder_of_a_real_run_is_read(tmp_path: Path) -> None:
    result = pruning_tables.result()
    folder = save(result, tmp_path / "run")
    run = RunFolder(tmp_path / "run")
    assert folder.is_dir()
    assert chapter(run.load("head-pruning"), run).lead == chapter(result, NO_RUN).lead
