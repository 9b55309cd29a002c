"""How heads formed, in words and as curves, from tables in which the moment is planted."""

import re
from dataclasses import replace
from typing import Any

import numpy as np
import pandas as pd
import pytest
from matplotlib.colors import to_hex
from matplotlib.patches import Rectangle

from interp.results import Result
from reports import style, words
from reports.chapters import Finding, Plate
from reports.chapters.induction_heads import chapter
from reports.chapters.induction_heads import formation as told
from reports.chapters.reading import Reading
from reports.embed import embed
from reports.figures import formation as draw
from tests.reports import synthetic
from tests.reports.chapter_parts import linked_numbers

STEPS = (0, 100, 200, 300, 400)
BROKEN = "not read: model.safetensors cannot be read: save the model again"


def rows_of(run: str, is_control: bool, strong: float) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    """A run whose L1H1 matches prefixes, and whose L0H2 looks back, from step 200 on."""
    model, heads = [], []
    for step in STEPS:
        formed = step >= 200
        known = {"run": run, "is_control": is_control, "step": step, "checkpoint": f"step-{step}", "note": ""}
        for metric, value in (("loss", 4.0 - strong * formed), ("in_context_learning", -0.1 - 2 * strong * formed)):
            model.append(
                {**known, "metric": metric, "data": "text", "value": value, "ci_low": value - 0.1,
                 "ci_high": value + 0.1, "n": 32}
            )  # fmt: skip
        for metric, best in (("prefix_matching", (1, 1)), ("previous_token", (0, 2))):
            for layer in range(2 - is_control):
                for head in range(4):
                    value = strong * 0.83 if formed and (layer, head) == best else 0.07 + 0.01 * head
                    heads.append(
                        {**known, "site": f"blocks.{layer}.attn", "layer": layer, "head": head, "metric": metric,
                         "data": "repeated", "value": value, "ci_low": value - 0.02, "ci_high": value + 0.02,
                         "chance": 0.05, "control": 0.01, "n": 32}
                    )  # fmt: skip
    return model, heads


def result(strong: float = 1.0, control: bool = True, broken: bool = True) -> Result:
    model, heads = rows_of("mine", False, strong)
    if control:
        more_model, more_heads = rows_of("one", True, 0.0)
        model, heads = model + more_model, heads + more_heads
    if broken:
        missing = dict.fromkeys(("value", "ci_low", "ci_high"), np.nan)
        model.append(
            {"run": "mine", "is_control": False, "step": 250, "checkpoint": "step-250", "metric": "loss",
             "data": "text", **missing, "n": 0, "note": BROKEN}
        )  # fmt: skip
    made = synthetic.result(synthetic.SMALL)
    tables = {**made.tables, "formation": pd.DataFrame(model), "formation_heads": pd.DataFrame(heads)}
    return replace(made, tables=tables)


def finding(of: Result) -> Finding:
    found = told.formation(Reading(of))
    assert found is not None
    return found


def plate(of: Result) -> Plate:
    found = told.plate(Reading(of))
    assert found is not None
    return found


def test_the_moment_is_named_with_what_was_before_it() -> None:
    found = finding(result())
    assert found.verdict.text == (
        "In training, L1H1 first scores above 0.40 in prefix matching at step 200: 0.83 [0.81, 0.85], after 0.080 at "
        "step 100."
    )
    support = " ".join(sentence.text for sentence in found.support)
    assert "L0H2 first gives the previous token more than 0.40: 0.83 [0.81, 0.85] at step 200." in support
    assert "−0.10 [−0.20, 0.00] nats at step 0 and −2.10 [−2.20, −2.00] nats at step 400" in support
    assert (
        "In the control, one, no head's prefix matching is ever above 0.10 [0.080, 0.12] (head 3 of layer 0 at step 0)."
        in support
    )
    assert "mine lacks step-250: model.safetensors cannot be read: save the model again." in support


def test_every_number_is_in_a_linked_row() -> None:
    of = result()
    for sentence in (finding(of).verdict, *finding(of).support):
        linked = {words.number(value) for value in linked_numbers(sentence, of)}
        said = re.sub(r"L\d+H\d+|step-\d+|step [\d,]+", "", sentence.text)
        for number in re.findall(r"−?\d+\.\d+", said):
            assert number in linked, (number, sentence.text)


def test_a_head_that_never_forms_is_said_not_to() -> None:
    found = finding(result(strong=0.2, control=False, broken=False))
    assert "passes 0.40 at none of 5 checkpoints: the highest is 0.17 [0.15, 0.19] at step 200" in found.verdict.text
    assert "No checkpoint has L0H2 above 0.40" in found.support[0].text
    assert not any("control" in sentence.text for sentence in found.support)
    assert "Grey" not in plate(result(strong=0.2)).caption


@pytest.mark.parametrize("tables", [("formation_heads",), ("formation", "formation_heads")])
def test_runs_that_followed_nothing_say_nothing(tables: tuple[str, ...]) -> None:
    of = result()
    for empty in (of.tables[tables[-1]].head(0), None):
        kept = {name: table for name, table in of.tables.items() if name not in tables}
        kept |= {} if empty is None else dict.fromkeys(tables, empty)
        reading = Reading(replace(of, tables=kept))
        assert told.formation(reading) is None
        assert told.plate(reading) is None


def test_the_figure_draws_what_the_tables_hold() -> None:
    of = result()
    with style.paper():
        figure = plate(of).draw()
        loss, learning, prefix, previous = figure.axes
    assert previous.get_xlabel() == "step of training"
    for ax, metric in ((loss, "loss"), (learning, "in_context_learning")):
        model = next(line for line in ax.lines if line.get_label() == "mine")
        table = of.tables["formation"]
        expected = table.loc[(table["metric"] == metric) & (table["run"] == "mine"), "value"].dropna()
        np.testing.assert_allclose(np.asarray(model.get_ydata(), float), expected)
        assert "one, the control" in [line.get_label() for line in ax.lines]
    for ax, kind, head in ((prefix, "induction", "L1H1"), (previous, "previous_token", "L0H2")):
        names = [text.get_text() for text in ax.texts]
        assert head in names
        strong = [line for line in ax.lines if to_hex(line.get_color()) == style.KIND_COLOURS[kind]]
        assert len(strong) == len(names)
        assert len(ax.lines) == 8 + 4 + 1  # every head of both, and chance
        band = ax.patches[0]
        assert isinstance(band, Rectangle)
        assert (band.get_x(), band.get_x() + band.get_width()) == (100, 200)


def test_steps_over_a_wide_range_are_on_a_log_scale() -> None:
    table = result().tables["formation"].dropna(subset="value").query("metric == 'loss'")
    with style.paper():
        _, (plain, wide) = style.canvas(6, 2, panels=2)
        draw.model_curve(table, plain, "loss")
        draw.model_curve(table.assign(step=table["step"].replace({100: 1, 400: 143_000})), wide, "loss")
    assert (plain.get_xscale(), wide.get_xscale()) == ("linear", "symlog")


def test_the_chapter_has_it_and_a_head_s_card_does_not() -> None:
    of = result()
    made = chapter(of, None)  # pyright: ignore[reportArgumentType]
    assert "formation" in {plate.name for plate in made.plates}
    assert any("In training" in finding.verdict.text for finding in made.findings)
    assert {"formation", "formation_heads"} <= set(made.tables)
    views = {table.name: table.view for table in embed("induction-heads", of.tables, made.tables, 10**6)}
    assert views["formation_heads"] == "steps"
    assert views["heads"] == "scores"
