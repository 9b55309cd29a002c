"""The figures and words of the heads' half, on tables made up."""

from typing import Any

import numpy as np
import pandas as pd
import pytest

from interp.results import Result
from reports import style
from reports.chapters.adversarial_attention import freedom_methods, freedom_plates, heads
from reports.chapters.reading import Reading
from reports.figures import attention_freedom as draw
from reports.figures.heads import head_map

_TVD = ("permuted_tvd", "uniform_tvd", "first_position_tvd", "mean_pattern_tvd")


@pytest.fixture
def reading() -> Reading:
    rng = np.random.default_rng(0)
    places = [(layer, head) for layer in (1, 4) for head in range(4)]
    metrics = ("freedom_share", "nullspace_share", "random_values_share", "tau_gradient", "tau_knockout", "derivative")
    scores = pd.DataFrame([
        {"site": f"blocks.{layer}.attn", "layer": layer, "head": head, "metric": metric, "data": "text",
         "value": value, "ci_low": 0.5 * value, "ci_high": min(1.0, 1.5 * value), "n": 3}
        for layer, head in places for metric in (*metrics, *_TVD) for value in [float(rng.uniform(0.02, 1.0))]
    ])  # fmt: skip
    rows = pd.DataFrame([
        {"site": f"blocks.{layer}.attn", "layer": layer, "head": head, "searched": True, "sequence": 0, "query": 9,
         "share": 0.8, "tvd": 0.0098, "nullspace_share": 0.1, "pinned": False} for layer, head in places
    ])  # fmt: skip
    by_keys = pd.DataFrame([
        {"low": low, "high": 2 * low - 1, "metric": metric, "value": 0.1 * i, "ci_low": 0.0, "ci_high": 0.2 * i, "n": 3,
         "rows": 8} for i, low in enumerate((8, 16, 32)) for metric in draw.SHARES
    ])  # fmt: skip
    worth = pd.DataFrame([
        {"predictor": "freedom", "controls": controls, "value": 0.2, "ci_low": -0.1, "ci_high": 0.5, "p": 0.3,
         "n_heads": 8, "n": 3, "note": ""} for controls in ("none", "importance", "importance and layer")
    ])  # fmt: skip
    patterns = pd.DataFrame([
        {"site": "blocks.1.attn", "layer": 1, "head": 2, "data": "text", "sequence": 0, "query": 9, "key": key,
         "which": which, "weight": float(key == (3 if which == "original" else 7)), "jsd": 0.69, "tvd": 0.004,
         "answer": " the", "probability": 0.25} for which in ("original", "adversarial") for key in range(10)
    ])  # fmt: skip
    tokens = pd.DataFrame({"data": "text", "sequence": 0, "position": range(12), "token": range(12),
                           "text": [*(f" w{i}" for i in range(10)), "\n", "  "][::-1]})  # fmt: skip
    tables = {"heads": scores, "freedom_rows": rows, "freedom_by_keys": by_keys, "freedom_worth": worth,
              "patterns": patterns, "tokens": tokens}  # fmt: skip
    about = {"model": {"name": "a model", "n_layers": 6, "n_heads": 5}, "config": {"head_epsilon": 0.01, "horizon": 4}}
    return Reading(Result("adversarial-attention", tables, about))


def test_every_plate_is_drawn(reading: Reading) -> None:
    with style.paper():
        plates = freedom_plates.plates(reading, {(1, 2): "induction"})
        assert [plate.name for plate in plates] == [
            "freedom-map", "freedom-against-importance", "freedom-by-keys", "attention-rows-drawn-twice",
            "attention-substitutes",
        ]  # fmt: skip
        for plate in plates:
            assert len(style.render(plate.draw())[1]) > 2000


def test_the_legend_of_many_kinds_stays_on_the_figure(reading: Reading) -> None:
    kinds = {(0, 0): "induction", (0, 1): "positional", (1, 2): "previous_token", (1, 3): "current_token"}
    with style.paper():
        plate = next(p for p in freedom_plates.plates(reading, kinds) if p.name == "freedom-against-importance")
        figure = plate.draw()
        figure.canvas.draw()
        (ax,) = figure.axes
        legend = ax.get_legend()
        assert legend is not None
        assert legend.get_window_extent().y1 <= figure.bbox.y1


def test_heads_that_were_not_looked_at_keep_their_places(reading: Reading) -> None:
    rows = reading.table("heads", metric="freedom_share")
    with style.paper():
        _, (ax,) = style.canvas(3, 3)
        drawn: Any = head_map(draw.on_grid(rows, 6, 5), ax, (), "freedom_share").images[0].get_array()
        grid = np.ma.getmaskarray(drawn)
        assert grid.shape == (6, 5)
        assert not grid[[1, 4], :4].any()
        assert grid[0].all()
        assert grid[:, 4].all()
        _, (other,) = style.canvas(3, 3)
        assert head_map(rows, other, (), "freedom_share").images[0].get_array().shape == (5, 4)  # type: ignore[union-attr]


def test_words(reading: Reading) -> None:
    lead = heads.lead(reading)
    assert lead is not None
    assert "Of 8 rows of attention of 8 heads of a model, none can" in lead.text
    verdicts = [finding.verdict.text for finding in heads.findings(reading)]
    assert len(verdicts) == 4
    assert "half reach at least 80 %" in verdicts[0]
    assert "none are pinned" in verdicts[0]
    assert "10 %" in verdicts[1]
    assert "80 %" in verdicts[1]
    assert "It is not shown" in verdicts[3]
    assert "0.20 [−0.10, 0.50]" in verdicts[3]
    assert "8 heads" in freedom_methods.paragraph(reading)


def test_whether_freedom_is_the_querys_or_the_heads(reading: Reading) -> None:
    tables: Any = reading.result.tables
    rows = pd.concat([reading.table("freedom_rows").assign(sequence=i, query=10 * i + 9) for i in range(3)])
    tables["freedom_rows"] = rows.assign(share=0.2 + 0.3 * rows["sequence"])
    said = heads.findings(reading)[0].support[1].text
    assert "more between queries than between heads: the query says 100 % of its variance (by chance 9 %)" in said
    assert "the head 0 % (by chance 30 %). Medians by query are 20 %, 50 % and 80 %." in said
    tables["freedom_rows"] = rows.assign(share=0.1 + 0.1 * rows["head"])
    assert "more between heads than between queries" in heads.findings(reading)[0].support[1].text


def test_the_lead_counts_rows_and_not_means_of_heads(reading: Reading) -> None:
    tables: Any = reading.result.tables
    rows = reading.table("freedom_rows")
    tables["freedom_rows"] = rows.assign(share=[0.95, *[0.3] * 6, 0.04], pinned=[*[False] * 7, True])
    lead = heads.lead(reading)
    assert lead is not None
    assert "none can" not in lead.text
    assert "1 can be replaced by nearly the farthest" in lead.text
    assert "1 is pinned to what it attends to" in lead.text


@pytest.mark.parametrize(("p", "p_with_layer", "said"), [
    (0.3, 0.01, "It is not shown"), (0.01, 0.3, "nothing is shown beyond"),
    (0.01, 0.01, "importance and the layer do not"),
])  # fmt: skip
def test_what_freedom_is_worth_is_said_with_the_layer_in_mind(
    reading: Reading, p: float, p_with_layer: float, said: str
) -> None:
    worth = reading.result.tables["freedom_worth"]
    worth.loc[worth["controls"] == "importance", "p"] = p
    worth.loc[worth["controls"] == "importance and layer", "p"] = p_with_layer
    assert said in heads.findings(reading)[3].verdict.text


def test_a_run_without_heads_says_nothing() -> None:
    empty = Reading(Result("adversarial-attention", {}, {}))
    assert heads.lead(empty) is None
    assert heads.findings(empty) == ()
    assert freedom_plates.plates(empty, {}) == ()
