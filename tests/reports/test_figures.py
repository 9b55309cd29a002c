"""What is drawn: arrays, places and names, not pixels."""

# matplotlib's annotations say of arrays and artists that they may be nearly anything
# pyright: reportAttributeAccessIssue=false, reportOptionalMemberAccess=false, reportOptionalSubscript=false
# pyright: reportIndexIssue=false, reportArgumentType=false, reportCallIssue=false

from itertools import pairwise

import numpy as np
import pandas as pd
import pytest
from matplotlib.colors import to_rgb
from matplotlib.text import Text
from numpy.testing import assert_allclose

from reports import style, words
from reports.figures import heads, induction_heads
from reports.figures.labels import label_points
from reports.figures.text import text_view
from tests.reports import synthetic

PLANTED = synthetic.Planted()
TABLES = synthetic.tables(PLANTED)
SCORES = TABLES["heads"]


def texts(ax) -> list[str]:
    return [text.get_text() for text in ax.texts]


def scores_of(table: pd.DataFrame, metric: str, data: str = "repeated") -> pd.DataFrame:
    return table.loc[(table["metric"] == metric) & (table["data"] == data)]


@pytest.mark.parametrize("planted", [synthetic.SMALL, PLANTED, synthetic.LARGE])
def test_a_head_map_draws_every_head_where_it_is(planted: synthetic.Planted):
    table = scores_of(synthetic.tables(planted)["heads"], "prefix_matching").sample(frac=1, random_state=0)
    called = list(planted.induction)[:2]
    with style.paper():
        figure, ax = heads.map_figure(planted.n_layers, planted.n_heads)
        assert heads.head_map(table, ax, called, "prefix_matching") is ax
        heads.name_heads(ax, called)
    drawn = ax.images[0].get_array()
    assert drawn.shape == (planted.n_layers, planted.n_heads)
    for (layer, head), value in planted.induction.items():
        assert drawn[layer, head] == value
    outlines = {(p.get_y() + 0.5, p.get_x() + 0.5) for p in ax.patches if not p.get_fill() and not p.get_hatch()}
    assert outlines == set(called)
    assert {words.head_name(*head) for head in called} <= set(texts(ax))
    low, high = ax.images[0].get_clim()
    assert (low, high) == (0, 1)
    assert figure.get_figwidth() < 7.5
    assert figure.get_figheight() < 7.5


def test_values_are_printed_only_where_they_fit():
    def cells(planted: synthetic.Planted) -> list[str]:
        with style.paper():
            _, ax = heads.map_figure(planted.n_layers, planted.n_heads)
            heads.head_map(scores_of(synthetic.tables(planted)["heads"], "prefix_matching"), ax)
        return texts(ax)

    assert ".90" in cells(PLANTED)
    assert cells(synthetic.LARGE) == []


@pytest.mark.parametrize(
    ("value", "shown"), [(0.904, ".90"), (1.0, "1.0"), (-0.12, "−.12"), (0.004, "0"), (-0.001, "0"), (12.5, "12.5")]
)
def test_a_cell_shows_two_decimals_without_the_zero(value: float, shown: str):
    assert heads.cell_text(value) == shown


def test_missing_scores_are_masked_and_hatched():
    table = scores_of(SCORES, "prefix_matching").copy()
    table.loc[table["layer"] == 3, "value"] = np.nan
    with style.paper():
        _, ax = heads.map_figure(30, 9)
        heads.head_map(table, ax, (), "prefix_matching")
    assert ax.images[0].get_array().mask[3].all()
    assert any(patch.get_hatch() for patch in ax.patches)


def test_a_second_score_is_a_square_in_the_middle_of_its_cell():
    rows = [(0, 0, 0.2), (0, 1, 0.4), (1, 0, 0.1), (1, 1, 0.3)]
    table = pd.DataFrame(rows, columns=["layer", "head", "value"])
    with style.paper():
        _, (ax,) = style.canvas(3, 2)
        heads.head_map(table, ax, (), "prefix_matching", large=False)
        heads.inner_squares(table.assign(value=[0.2, 0.9, np.nan, 0.3]).iloc[[0, 1, 2]], ax)
    cells, squares = ax.images
    assert cells.get_array().shape == (2, 2), "what answers the pointer"
    assert squares.get_extent() == cells.get_extent()
    drawn = np.ma.filled(squares.get_array(), np.nan)
    inner = [[drawn[4 * y + 1 : 4 * y + 3, 4 * x + 1 : 4 * x + 3] for x in (0, 1)] for y in (0, 1)]
    assert_allclose(inner[0], [np.full((2, 2), 0.2), np.full((2, 2), 0.9)])
    assert np.isnan(inner[1]).all(), "not defined, and not there"
    assert np.isfinite(drawn).sum() == 8, "the rim shows the first score"
    assert cells.norm is squares.norm
    assert cells.norm.vmax == 0.9, "one scale for both"


def test_signs_are_coloured_around_zero_and_shares_are_not():
    with style.paper():
        _, ax = heads.map_figure(30, 9)
        heads.head_map(scores_of(SCORES, "copying_eigenvalues", "weights"), ax, (), "copying_eigenvalues")
    assert ax.images[0].get_clim() == (-1, 1)
    assert ax.images[0].cmap(0.5)[:3] == pytest.approx(to_rgb("#faf5f4"), abs=0.03)  # near white in the middle


def test_the_map_of_shares_gets_darker_evenly():
    red, green, blue = np.array([style.SHARES(i / 20)[:3] for i in range(21)]).T
    linear = [np.where(c <= 0.04045, c / 12.92, ((c + 0.055) / 1.055) ** 2.4) for c in (red, green, blue)]
    luminance = 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]
    lightness = 116 * np.cbrt(luminance) - 16  # CIE L*
    steps = -np.diff(lightness)
    assert (steps > 0).all()
    assert steps.max() < 2 * steps.min()


def test_points_are_heads_and_only_called_ones_are_named():
    kinds = dict.fromkeys(list(PLANTED.induction)[:3], "induction")
    with style.paper():
        _, (ax,) = style.canvas(5, 3.5)
        induction_heads.prefix_against_copying(SCORES.loc[SCORES["data"].isin(["repeated", "weights"])], ax, kinds)
    points = ax.collections[0].get_offsets()
    assert len(points) == 270 - 3
    assert {text for text in texts(ax) if text.startswith("L")} == {"L18H6", "L17H3", "L17H4"}
    assert any(line.get_xdata()[0] == pytest.approx(1.4 / PLANTED.period) for line in ax.lines)  # chance
    assert ax.get_xlabel() == "prefix matching (share of attention)"


def test_names_of_points_do_not_cover_each_other():
    points = [(0.8 + 0.002 * i, 0.8) for i in range(6)]
    with style.paper():
        figure, (ax,) = style.canvas(5, 3.5)
        ax.set(xlim=(0, 1), ylim=(0, 1))
        label_points(ax, points, [f"L{i}H{i}" for i in range(6)])
        figure.draw_without_rendering()
        boxes = [Text.get_window_extent(text) for text in ax.texts]  # without the line to the point
    for i, one in enumerate(boxes):
        assert not any(one.overlaps(other) for other in boxes[i + 1 :])


def test_loss_marks_where_the_copies_begin():
    table = TABLES["loss_by_position"]
    repeated, control = (table.loc[table["data"] == data] for data in ("repeated", "unrepeated"))
    with style.paper():
        _, (ax,) = style.canvas(7, 2.6)
        induction_heads.loss_by_position(repeated, ax, control)
    control_line, first, second, boundary = (line for line in (ax.lines[0], ax.lines[1], ax.lines[2], ax.lines[3]))
    assert_allclose(control_line.get_ydata(), control["loss"])
    assert_allclose(first.get_ydata(), repeated.loc[repeated["copy"] == 0, "loss"])
    assert_allclose(second.get_ydata(), repeated.loc[repeated["copy"] == 1, "loss"])
    assert boundary.get_xdata()[0] == PLANTED.period - 0.5
    assert "nats" in ax.get_ylabel()


def test_reach_names_its_curves_at_their_ends():
    with style.paper():
        _, (ax,) = style.canvas(5, 3)
        induction_heads.reach(TABLES["reach"], ax, [(18, 6), (17, 3)])
    assert ax.get_xscale() == "log"
    assert [int(tick) for tick in ax.get_xticks()] == [16, 32, 64, 128, 256]
    assert {"L18H6", "L17H3", "chance"} == set(texts(ax))
    assert len(ax.lines) == 3  # two heads and chance
    row = TABLES["reach"]
    assert_allclose(ax.lines[0].get_ydata(), row.loc[(row["layer"] == 18) & (row["head"] == 6), "value"])


def test_ablation_draws_every_set_with_its_interval():
    table = TABLES["ablation"]
    five = table.loc[table["n_heads"] == 5]
    with style.paper():
        _, (ax,) = style.canvas(5, 3)
        induction_heads.ablation(five, ax)
    drawn = sorted(x for container in ax.containers for x in container[0].get_xdata())
    assert_allclose(drawn, sorted(five["loss_change"]))
    assert [tick.get_text() for tick in ax.get_yticklabels()] == list(induction_heads.ABLATIONS.values())


def test_composition_puts_sources_down_and_targets_across():
    table = TABLES["composition"]
    with style.paper():
        _, (ax,) = style.canvas(6, 3)
        induction_heads.composition(table.loc[table["path"] == "key_input"], ax, 0.9)
    assert [tick.get_text() for tick in ax.get_yticklabels()] == ["L3H0", "L9H4", "L16H2"]
    grid = ax.images[0].get_array()
    assert grid.shape == (3, 6)
    assert grid.mask[2, 0]  # L16H2 cannot feed L14H2
    assert ax.images[0].get_clim() == (-0.9, 0.9)


def test_a_pattern_is_drawn_by_position_and_names_tokens_where_they_can_be_read():
    tokens = TABLES["tokens"]
    tokens = tokens.loc[(tokens["data"] == "repeated") & (tokens["sequence"] == 0)]
    weights = TABLES["patterns"]
    weights = weights.loc[(weights["data"] == "repeated") & (weights["sequence"] == 0) & (weights["layer"] == 18)]
    queries, keys = tokens.loc[tokens["position"] >= 24], tokens.loc[tokens["position"] <= 24]
    with style.paper():
        _, (ax,) = style.canvas(6, 6)
        induction_heads.pattern(weights, queries, keys, ax)
        _, (narrow,) = style.canvas(1.5, 1.5)
        induction_heads.pattern(weights, tokens, tokens, narrow)
    drawn = ax.images[0].get_array()
    for row in weights.loc[(weights["query"] >= 24) & (weights["key"] <= 24)].to_dict("records"):
        assert drawn[row["query"] - 24, row["key"]] == pytest.approx(row["weight"])
    assert np.argmax(drawn[5]) == 6  # query 29 repeats token 5: its induction target is key 6
    assert ax.get_yticklabels()[0].get_text() == words.token_label(queries["text"].iloc[0])
    assert not any("␣" in tick.get_text() for tick in narrow.get_yticklabels())


def test_a_text_view_holds_one_query():
    tokens = pd.DataFrame({"position": [0, 1, 2, 3], "text": ["a", "\n", " b", "a"]})
    of = {"site": "blocks.1.attn", "layer": 1, "head": 2, "data": "text", "sequence": 0}
    weights = pd.DataFrame([{**of, "query": 3, "key": 1, "weight": 0.7}, {**of, "query": 2, "key": 0, "weight": 1.0}])
    view = text_view(weights, tokens, 3)
    assert view.name == "L1H2"
    assert [(token.text, token.weight) for token in view.tokens] == [("a", 0), ("↵", 0.7), (" b", 0), ("a", 0)]
    assert (view.tokens[2].space, view.tokens[2].word) == (" ", "b")
    with pytest.raises(ValueError, match="one head on one sequence"):
        text_view(pd.concat([weights, weights.assign(head=3)]), tokens, 3)


def test_tokens_may_hold_anything():
    tokens = pd.DataFrame({"position": range(4), "text": ["$x_{2$", "猫", "\u202e", "<script>"]})
    weights = pd.DataFrame({"query": [1], "key": [0], "weight": [1.0]})
    with style.paper():
        figure, (ax,) = style.canvas(3, 3)
        induction_heads.pattern(weights, tokens, tokens, ax)
        svg, _ = style.render(figure)
    assert b"<script>" not in svg
    assert [tick.get_text() for tick in ax.get_yticklabels()] == ["$x_{2$", "U+732B", "[U+202E]", "<script>"]


def test_the_same_figure_is_the_same_bytes():
    def drawn() -> tuple[bytes, bytes]:
        with style.paper():
            figure, ax = heads.map_figure(2, 4)
            heads.head_map(scores_of(synthetic.tables(synthetic.SMALL)["heads"], "prefix_matching"), ax)
            return style.render(figure)

    assert drawn() == drawn()


@pytest.mark.parametrize("wanted", [[1.0, 1.0, 1.0], [0.0, 0.1, 5.0], [3.0, 2.0, 2.1, 2.05]])
def test_spread_keeps_the_order_and_the_distance(wanted: list[float]):
    places = style.spread(wanted, 0.5)
    ordered = [place for _, place in sorted(zip(wanted, places, strict=True))]
    assert all(b - a >= 0.5 - 1e-9 for a, b in pairwise(ordered))
    assert np.mean(places) == pytest.approx(np.mean(wanted))
