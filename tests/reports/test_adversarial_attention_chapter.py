"""Words and figures of the classifiers' half of adversarial attention, on made-up tables whose answer is planted."""

# pyright: reportAttributeAccessIssue=false, reportIndexIssue=false, reportArgumentType=false, reportCallIssue=false

from dataclasses import replace
from typing import Any

import numpy as np
import pandas as pd
import pytest

from interp.results import Result
from reports import style
from reports.chapters.adversarial_attention import chapter
from reports.chapters.adversarial_attention.sides import SAYS
from reports.figures import adversarial_attention as draw
from reports.figures import attended_text
from tests.reports.chapter_parts import linked_numbers, sentences

TEXT = "a rather long sentence that needs a second line $x$ 中"
KINDS = ({"encoder": "lstm", "attention": "tanh", "seed": 0}, {"encoder": "average", "attention": "tanh", "seed": 0})


def ends(value: float, n: int = 60) -> dict[str, Any]:
    return {"value": value, "ci_low": value - 0.05, "ci_high": value + 0.05, "n": n}


def made_up(change: float = 0.4, share: float = 0.8) -> Result:
    """A BiLSTM whose shuffled attention changes the answer so much, with adversaries at such a share of the largest."""
    rng = np.random.default_rng(0)
    tables: dict[str, list[dict[str, Any]]] = {}

    def add(name: str, *rows: dict[str, Any]) -> None:
        tables.setdefault(name, []).extend(rows)

    for number, kind in enumerate(KINDS):
        add("classifiers", {**kind, "accuracy": 0.9 - 0.3 * number, "learned": True, "tested": True, "note": ""})
        for name in ("all", "dull", "fine"):
            of = {**kind, "class": name}
            for pair, value in (("attention_gradient", 0.31), ("attention_leave_one_out", 0.22),
                                ("gradient_leave_one_out", 0.66)):  # fmt: skip
                add("agreement", {**of, "pair": pair, **ends(value), "sd": 0.1, "significant": 0.47, "undefined": 2})
            for low, high in ((0.0, 1.0), *draw.BINS):
                row = {**of, "max_attention_low": low, "max_attention_high": high, **ends(change), "median": change}
                add("permutation", row)
            for step, value in ((0, 0.21), (250, 0.35), (500, 0.43)):
                for epsilon in (0.01, 0.05):
                    add("adversaries", {**of, "epsilon": epsilon, "steps": step, **ends(value), "median": value,
                                        "above_half": 0.25, "share": share, "among": 0.3, "tvd": 0.007,
                                        "found": 0.2 + step / 1000, "failed": 0})  # fmt: skip
            add("conicity", {**of, **ends(0.88), "chance": 0.25})
        for ranking, value in (("attention", 0.93), ("gradient", 0.71), ("leave_one_out", 0.64)):
            add("supporting_facts", {**kind, "ranking": ranking, **ends(value), "chance": 0.3})
        for number_of, value in enumerate((0.01, 0.05, 0.2)):
            add("erasure", {**kind, "alpha_low": number_of / 5, "alpha_high": (number_of + 1) / 5, **ends(value),
                            "negative": 0.1})  # fmt: skip
        for top in ("flips", "stays"):
            for random in ("flips", "stays"):
                add("flips", {**kind, "most_attended": top, "random": random, **ends(0.25)})
        for order in draw.ORDERS:
            add("removal", {**kind, "order": order, **ends(0.4), "never": 0.1})
        for i in range(60):
            add("examples", {**kind, "class": ("dull", "fine")[i % 2], "instance": i, "n_words": 8,
                             "max_attention": rng.uniform(0.1, 1), "output": 0.9, "tau_gradient": rng.uniform(-1, 1),
                             "tau_leave_one_out": rng.uniform(-1, 1), "tau_gradient_leave_one_out": rng.uniform(0, 1),
                             "permutation_tvd": rng.uniform(0, 1), "jsd": rng.uniform(0.1, 0.69), "share": 0.5,
                             "adversary_tvd": 0.005, "conicity": 0.5, "start_jsd": rng.uniform(0, 0.4)})  # fmt: skip
    jsd = {"jsd_low": 0.3, "jsd_high": 0.4, "tvd_low": 0.0, "tvd_high": 0.2, "n": 60, "note": ""}
    for kind, weight, accuracy, away, moved in (
        ("base", np.nan, 0.9, np.nan, np.nan), ("uniform", np.nan, 0.6, 0.35, 0.3), ("seed", np.nan, 0.89, 0.05, 0.04),
        ("per_instance", np.nan, np.nan, 0.43, 0.007), ("consistent", 0.1, 0.9, 0.1, 0.01),
        ("consistent", 0.3, 0.8, 0.6, 0.15), ("guide_uniform", np.nan, 0.5, np.nan, np.nan),
        ("guide_base", np.nan, 0.87, np.nan, np.nan),
    ):  # fmt: skip
        add("consistent", {**KINDS[0], "kind": kind, "weight": weight, "accuracy": accuracy, "f1": accuracy,
                           "jsd": away, "tvd": moved, **jsd})  # fmt: skip
    for instance in range(2):
        for which in ("original", "adversarial"):
            for position, word in enumerate(
                f"a rather long sentence number {instance} that needs two lines $x$ 中".split()
            ):
                add("instances", {**KINDS[0], "instance": instance, "which": which, "position": position, "text": word,
                                  "weight": 0.08, "output": 0.91, "label": "fine", "question": "where is anna",
                                  "jsd": 0.6, "tvd": 0.004})  # fmt: skip
    provenance = {
        "model": {"name": "tiny-2l"},
        "config": {"budget": "report", "permutations": 100, "adversaries": 5, "steps": 500, "penalty": 500.0},
        "data": {"what": "reviews.csv", "n": {"train": 1000, "test": 60}},
    }  # fmt: skip
    return Result("adversarial-attention", {name: pd.DataFrame(rows) for name, rows in tables.items()}, provenance)


@pytest.fixture(scope="module")
def result() -> Result:
    return made_up()


def test_every_number_links_to_rows_that_are_there(result: Result) -> None:
    for sentence in sentences(chapter(result, None)):
        list(linked_numbers(sentence, result))


def test_the_planted_numbers_are_told(result: Result) -> None:
    text = "\n".join(sentence.text for sentence in sentences(chapter(result, None)))
    for part in (
        "τ = 0.31 [0.26, 0.36]", "at 0.66 [0.61, 0.71]", "47 % of 60 texts", "undefined in 2",
        "by 0.40 [0.35, 0.45] (TVD", "conicity of 0.88", "so alike that any weights",
        "0.43 [0.38, 0.48] nats", "80 % of the largest divergence", "in 20 % of the texts, at 0.21 nats",
        "After 250 of 500 steps", "accuracy is 0.60 against 0.90: the task needs attention", "λ = 0.3, accuracy 0.80",
        "attention in 93 % [88 %, 98 %]", "where a random fact would in 30 %", "Until the decision flips",
    ):  # fmt: skip
        assert part in text, part


@pytest.mark.parametrize(
    ("change", "share", "words"),
    [
        (0.4, 0.2, "it may be read as an explanation"),
        (0.4, 0.8, "not these weights"),
        (0.02, 0.8, "should not be read as an explanation"),
        (0.02, 0.2, "the tests disagree"),
    ],
)
def test_the_verdict_follows_the_tests(change: float, share: float, words: str) -> None:
    assert words in chapter(made_up(change, share), None).findings[0].verdict.text


def test_both_sides_are_heard_on_every_test(result: Result) -> None:
    limits = {finding.not_shown for finding in chapter(result, None).findings}
    assert set(SAYS.values()) <= limits


def test_a_classifier_that_was_not_tested_is_named_with_its_reason(result: Result) -> None:
    table = pd.DataFrame([{**KINDS[0], "accuracy": 0.5, "tested": False, "note": "did not learn: 0.500"}])
    made = chapter(replace(result, tables={"classifiers": table}), None)
    (finding,) = made.findings
    assert "did not learn: 0.500" in finding.verdict.text
    assert not made.plates


def test_without_classifiers_nothing_is_said(result: Result) -> None:
    made = chapter(replace(result, tables={}), None)
    assert (made.findings, made.plates, made.lead, made.methods) == ((), (), None, ())
    assert made.tables == {}


def test_all_figures_draw(result: Result) -> None:
    made = chapter(result, None)
    assert [plate.name for plate in made.plates] == [
        "texts-drawn-twice", "supporting-facts", "rank-agreement", "permutations", "eps-max-jsd",
        "eps-max-jsd-by-weight", "adversaries-by-steps", "consistent-path", "erasing",
    ]  # fmt: skip
    with style.paper():
        for plate in made.plates:
            vector, raster = style.render(plate.draw())
            assert vector.startswith(b"<?xml")
            assert raster[1:4] == b"PNG"


def test_a_histogram_holds_every_text_once(result: Result) -> None:
    rows = result.tables["examples"].query("encoder == 'lstm'")
    with style.paper():
        _, (ax,) = style.canvas(4, 3)
        draw.tau_histogram(rows, ax, "tau_gradient")
    for name, patches in zip(("dull", "fine"), ax.containers, strict=True):
        heights = [patch.get_height() for patch in patches]
        counts, _ = np.histogram(rows.loc[rows["class"] == name, "tau_gradient"], bins=30, range=(-1, 1))
        np.testing.assert_allclose(heights, counts / counts.sum())


def test_few_texts_are_points_and_many_a_violin(result: Result) -> None:
    rows = result.tables["examples"].query("encoder == 'lstm'").head(4).assign(max_attention=0.1)
    with style.paper():
        _, (ax,) = style.canvas(4, 3)
        draw.change_by_attention(rows, ax, "permutation_tvd", "change")
    assert sum(len(line.get_xdata()) for line in ax.lines) == 4
    assert not ax.collections


def test_the_facts_figure_draws_values_intervals_and_chance(result: Result) -> None:
    with style.paper():
        _, (ax,) = style.canvas(4, 3)
        draw.facts(result.tables["supporting_facts"], ax)
    drawn = sorted(float(container[0].get_ydata()[0]) for container in ax.containers)
    assert drawn == sorted([0.93, 0.71, 0.64] * 2)
    assert len(ax.collections) == 6 * 2  # the intervals, and chance below each


@pytest.mark.parametrize(("part", "heads", "seeds"), [("both", True, True), ("heads", True, False),
                                                      ("classifiers", False, True)])  # fmt: skip
def test_the_full_budget_is_told_of_the_part_that_was_run(result: Result, part: str, heads: bool, seeds: bool) -> None:
    config = {**result.provenance["config"], "budget": "report", "part": part}
    told = chapter(replace(result, provenance={**result.provenance, "config": config}), None).full
    assert ("six rows" in told, "three seeds" in told) == (heads, seeds)


def test_weights_that_lead_to_the_same_place_share_a_label() -> None:
    rows = pd.DataFrame({"kind": "consistent", "weight": [0.1, 0.3, 1.0], "jsd": [0.03, 0.04, 0.68],
                         "tvd": [0.01, 0.02, 0.09], "jsd_low": 0.0, "jsd_high": 0.69, "tvd_low": 0.0,
                         "tvd_high": 0.1})  # fmt: skip
    with style.paper():
        _, (ax,) = style.canvas(3, 3)
        draw.consistent(rows, ax)
    assert [text.get_text() for text in ax.texts] == ["λ 0.1, 0.3", "λ 1"]


def test_the_border_of_the_path_is_told_where_attention_leaves_at_once(result: Result) -> None:
    text = " ".join(sentence.text for sentence in sentences(chapter(result, None)))
    assert "Between λ = 0.1 and 0.3 its attention leaves the base's, from 0.10 to 0.60 nats" in text
    assert "accuracy goes from 0.90 to 0.80" in text
    table = result.tables["consistent"]
    flat = table.assign(jsd=table["jsd"].where(table["weight"] != 0.3, 0.2))
    text = " ".join(
        s.text for s in sentences(chapter(replace(result, tables={**result.tables, "consistent": flat}), None))
    )
    assert "leaves the base's" not in text


def test_words_stay_within_the_width() -> None:
    laid = attended_text.lay_out(["word"] * 40 + ["x" * 30], 2.0)
    assert max(line for _, line, _, _ in laid) >= 3
    for _, _, start, size in laid[:-1]:
        assert start + size <= 2.0
    by_line: dict[int, float] = {}
    for _, line, start, size in laid:
        assert start >= by_line.get(line, 0.0)
        by_line[line] = start + size
