"""What the figures of head specialization draw: numbers, places and names, not pixels."""

# matplotlib's annotations say of arrays and artists that they may be nearly anything
# pyright: reportAttributeAccessIssue=false, reportOptionalMemberAccess=false, reportOptionalSubscript=false
# pyright: reportIndexIssue=false, reportArgumentType=false, reportCallIssue=false

import numpy as np
import pandas as pd
import pytest
from matplotlib.colors import to_rgb
from numpy.testing import assert_allclose

from reports import glossary, style, words
from reports.figures import comparison, head_cards, kind_map
from reports.figures import head_specialization as draw
from tests.reports import specialized

TABLES = specialized.tables(specialized.ENCODER)


def texts(ax) -> list[str]:
    return [text.get_text() for text in ax.texts]


def kinds(*rows: tuple[int, int, str, float]) -> pd.DataFrame:
    names = ["layer", "head", "kind", "value"]
    return pd.DataFrame(rows, columns=names).assign(threshold=0.05, site="blocks.0.attn", called=True)


def test_every_kind_has_a_colour_a_letter_and_a_marker_of_its_own():
    for given in (style.KIND_COLOURS, style.KIND_LETTERS, style.KIND_MARKERS):
        assert list(given) == list(glossary.KINDS)
        assert len(set(given.values())) == len(given)
    assert set(specialized.THRESHOLDS) == set(glossary.KINDS)


def test_the_kind_map_has_each_head_in_its_kind_and_strength():
    called = kinds((0, 1, "sink", 0.4), (2, 0, "broad", 0.9), (2, 0, "induction", 0.6), (1, 2, "redundant", 0.01))
    with style.paper():
        figure = kind_map.kind_figure([kind_map.KindMap("", called, 3, 4)])
    (ax,) = figure.axes
    drawn = ax.images[0].get_array()
    expected = np.full((3, 4), -1)
    expected[0, 1], expected[2, 0] = kind_map.KINDS.index("sink"), kind_map.KINDS.index("induction")
    expected[1, 2] = kind_map.KINDS.index("redundant")
    assert (drawn.filled(-1) == expected).all()
    opacity = ax.images[0].get_alpha()
    assert opacity[0, 1] == pytest.approx(0.35 + 0.65 * 0.4)
    assert opacity[1, 2] == pytest.approx(0.35 + 0.65 * 0.8), "a fifth of the threshold apart"
    assert sorted(texts(ax)) == ["=", "I", "S", "W"]
    corners = [path.get_paths() for path in ax.collections if len(path.get_paths()) == 1]
    assert corners, "the second kind of L2H0"
    legend = [text.get_text() for text in figure.texts]
    assert [text for text in legend if len(text) > 1] == ["induction (1)", "sink (1)", "broad (1)", "redundant (1)"]


@pytest.mark.parametrize("model", [specialized.DECODER, specialized.ENCODER, specialized.SMALL, specialized.LARGE])
def test_kind_maps_fit_a_page_and_write_letters_where_they_can_be_read(model: specialized.Model):
    table = specialized.tables(model)["kinds"] if model is not specialized.LARGE else kinds((79, 63, "sink", 0.5))
    called = table.loc[table["called"]]
    with style.paper():
        figure = kind_map.kind_figure([kind_map.KindMap("", called, model.n_layers, model.n_heads)])
    assert figure.get_figwidth() < 7.6
    assert figure.get_figheight() < 7.6
    assert bool(texts(figure.axes[0])) == (model is not specialized.LARGE)
    assert figure.axes[0].images[0].get_array().shape == (model.n_layers, model.n_heads)


def test_a_map_without_called_heads_says_so():
    with style.paper():
        figure = kind_map.kind_figure([kind_map.KindMap("", kinds().head(0), 2, 4)])
    assert figure.axes[0].images[0].get_array().mask.all()
    assert "no head is called anything" in [text.get_text() for text in figure.texts]


def test_letters_are_readable_on_their_colours():
    """A contrast of 3 (WCAG 2, large text) for every kind, from the faintest to the full colour."""

    def luminance(colour) -> float:
        linear = [c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in to_rgb(colour)]
        return float(np.dot([0.2126, 0.7152, 0.0722], linear))

    for colour in style.KIND_COLOURS.values():
        for opacity in (0.35, 0.7, 1.0):
            face = opacity * np.array(to_rgb(colour)) + 1 - opacity
            dark, light = sorted((luminance(face), luminance(style.text_colour(face.tolist()))))
            assert (light + 0.05) / (dark + 0.05) >= 3, (colour, opacity)


def test_layers_have_their_heads_and_their_means():
    heads = TABLES["heads"]
    rows = heads.loc[heads["metric"] == "entropy"]
    with style.paper():
        _, (ax,) = style.canvas(5, 3)
        draw.by_layer({"": rows}, ax, "entropy")
    assert_allclose(np.sort(ax.collections[0].get_offsets()[:, 1]), np.sort(rows["value"]))
    assert_allclose(ax.lines[0].get_ydata(), rows.groupby("layer")["value"].mean())
    assert ax.lines[1].get_ydata()[0] == 3.9
    assert ax.get_ylabel() == "entropy\n(nats)"


def test_relations_are_paired_with_their_baselines():
    table = TABLES["relations"]
    rows = table.loc[table["best"]].sort_values("difference", ascending=False)
    with style.paper():
        _, (ax,) = style.canvas(6, 5)
        draw.relations(rows, ax)
    dots = sorted(x for container in ax.containers for x in container[0].get_xdata())
    assert_allclose(dots, sorted(rows["accuracy"]))
    ticks = next(each for each in ax.collections if each.get_label() == "best fixed offset")
    assert_allclose(ticks.get_offsets()[:, 0], rows["baseline"])
    labels = [label.get_text() for label in ax.get_yticklabels()]
    assert labels[0].split() == [rows["relation"].iloc[0], *draw.arrow(rows["direction"].iloc[0]).split()]
    assert words.head_name(rows["layer"].iloc[0], rows["head"].iloc[0]) in texts(ax)
    assert "visible" not in texts(ax), "an encoder sees every pair"


def test_what_a_causal_head_can_see_is_said():
    rows = specialized.tables(specialized.SMALL)["relations"].head(3)
    with style.paper():
        _, (ax,) = style.canvas(6, 3)
        draw.relations(rows, ax)
    assert "visible" in texts(ax)
    assert f"{rows['possible'].iloc[0]:.0%}" in texts(ax)


def test_the_embedding_draws_each_head_once_by_kind_group_and_layer():
    groups = TABLES["groups"]
    called = {head: kind[0] for head, kind in specialized.planted(specialized.ENCODER).items()}
    with style.paper():
        _, axes = style.canvas(7, 3, panels=3)
        draw.embedding_by_kind(groups, axes[0], called)
        draw.embedding_by_group(groups, axes[1])
        draw.embedding_by_layer(groups, axes[2])
    for ax in axes:
        places = np.concatenate([each.get_offsets() for each in ax.collections])
        assert len(places) == len(groups)
        assert_allclose(np.sort(places[:, 0]), np.sort(groups["x"]))
        assert ax.get_aspect() == 1
    named = draw.outermost(groups)
    assert {text for text in texts(axes[0]) if text.startswith("L")} == {
        words.head_name(*head) for head in named[["layer", "head"]].itertuples(index=False)
    }
    assert {text for text in texts(axes[1]) if text.startswith("L")} == {
        words.head_name(*head) for head in groups.loc[groups["medoid"], ["layer", "head"]].itertuples(index=False)
    }
    by_layer = axes[2].collections[0]
    assert_allclose(by_layer.get_array(), groups["layer"])


def test_the_outermost_heads_are_named_each_on_another_side():
    angle = np.linspace(0, 2 * np.pi, 5)[:4]
    corners = np.stack([np.cos(angle), np.sin(angle)], axis=1) * [[4.0], [3.9], [3.8], [3.7]]
    inside = np.random.default_rng(0).uniform(-0.5, 0.5, (40, 2))
    near = 0.97 * corners[:1]  # farther out than the others, but beside the outermost
    groups = pd.DataFrame(np.concatenate([inside, corners, near]), columns=["x", "y"])
    assert sorted(draw.outermost(groups, most=4).index) == [40, 41, 42, 43]
    assert len(draw.outermost(groups.head(5), most=8)) == 5, "a small model has all of its heads named"


def test_edges_lead_from_queries_to_keys_and_weak_ones_are_not_drawn():
    tokens = pd.DataFrame({"position": [4, 5, 6], "text": ["<s>", " lamp", " burns"]})
    weights = pd.DataFrame({"query": [6, 6, 5, 6], "key": [5, 4, 5, 6], "weight": [0.7, 0.2, 0.9, 0.05]})
    with style.paper():
        _, (ax,) = style.canvas(3, 3)
        head_cards.edges(head_cards.Sentence(tokens, weights), ax, "#d55e00")
    drawn = {tuple(map(float, line.get_ydata())): line for line in ax.lines}
    assert set(drawn) == {(2, 1), (2, 0), (1, 1)}
    assert drawn[2, 1].get_linewidth() > drawn[2, 0].get_linewidth()
    assert drawn[2, 0].get_color() == style.MUTED, "to the first position"
    assert texts(ax) == ["<s>", "<s>", "lamp", "lamp", "burns", "burns"]


@pytest.mark.parametrize(
    ("low", "high", "shown"), [(0, 0, "0"), (1, 1, "1"), (2, 3, "2–3"), (-1, -1, "+1"), (-7, -4, "+4–7")]
)
def test_distances_are_named_as_they_are_read(low: int, high: int, shown: str):
    assert head_cards.distance_label(low, high) == shown


def test_the_distance_profile_runs_from_far_back_to_far_ahead():
    table = TABLES["distances"]
    rows = table.loc[(table["layer"] == 0) & (table["head"] == 0)]
    with style.paper():
        _, (ax,) = style.canvas(3, 2)
        head_cards.distance_profile(rows, ax)
    heights = [bar.get_height() for bar in ax.patches]
    kept = rows.sort_values("low", ascending=False)["mass"].tolist()
    assert heights == [mass for mass in kept if mass in heights]
    labels = [label.get_text() for label in ax.get_xticklabels()]
    assert labels.index("2–3") < labels.index("1")


def test_the_card_of_a_head_without_distances_or_sentences_is_drawn():
    with style.paper():
        figure = head_cards.card("L0H1", "sink", [("sink head", "0.5")], pd.DataFrame(), [])
    assert "L0H1" in [text.get_text() for text in figure.texts]


def test_stability_draws_both_comparisons():
    table = TABLES["stability"]
    with style.paper():
        _, (ax,) = style.canvas(5, 4)
        draw.stability(table, ax)
    drawn = sorted(x for container in ax.containers for x in container[0].get_xdata())
    assert_allclose(drawn, sorted(table["spearman"]))


def test_coreference_draws_heads_and_both_baselines():
    rows = TABLES["coreference"].sort_values("accuracy", ascending=False).head(5)
    with style.paper():
        _, (ax,) = style.canvas(5, 3)
        draw.coreference(rows, ax)
    drawn = [container[0].get_xdata()[0] for container in ax.containers]
    assert_allclose(drawn, rows["accuracy"])
    assert {0.31, 0.52} <= {line.get_xdata()[0] for line in ax.lines}


def test_differences_go_from_the_first_run_to_the_second():
    table = pd.DataFrame({"before": [0.2, 0.8], "after": [0.6, 0.5], "ci_low": [0.3, -0.4], "ci_high": [0.5, -0.2]})
    table["difference"] = table["after"] - table["before"]
    with style.paper():
        _, (ax,) = style.canvas(5, 3)
        comparison.differences(table, ["L0H1  sink (text)", "L2H3  sink (text)"], ax)
    lines, intervals, before, up, down = ax.collections
    assert_allclose(before.get_offsets()[:, 0], [0.2, 0.8])
    assert up.get_offsets()[0].tolist() == [0.6, 0]
    assert down.get_offsets()[0].tolist() == [0.5, 1]
    assert_allclose(intervals.get_segments()[0][:, 0], [0.5, 0.7])
    assert_allclose(lines.get_segments()[1][:, 0], [0.8, 0.5])
