"""The words of the head-specialization chapter, against tables whose answer is planted; and that all of it is drawn."""

import re
from dataclasses import replace

import pandas as pd
import pytest

from analyses.head_specialization.schemas import SCHEMAS
from interp.results import Result
from reports import style, words
from reports.chapters import Chapter, Finding
from reports.chapters.head_specialization import cards, chapter
from reports.chapters.reading import Reading
from tests.reports import specialized
from tests.reports.chapter_parts import (
    NO_RUN,
    check_sources_are_cited,
    linked_numbers,
    numbers_said,
    sentences,
    verdicts,
    with_tables,
)


@pytest.fixture(scope="module")
def result() -> Result:
    return specialized.result(specialized.DECODER)


@pytest.fixture(scope="module")
def made(result: Result) -> Chapter:
    return chapter(result, NO_RUN)


def test_made_up_tables_are_such_as_the_analysis_saves(result: Result):
    for name, schema in SCHEMAS.items():
        schema.validate(result.tables[name])


def test_the_page_opens_with_how_many_heads_are_called_what(made: Chapter, result: Result):
    assert made.lead is not None
    called = result.tables["kinds"].loc[result.tables["kinds"]["called"]]
    n = len(called.drop_duplicates(["site", "layer", "head"]))
    sinks = len(called.loc[called["kind"] == "sink"])
    assert f"Of the 270 attention heads of tiny-lantern, {n} are called something: {sinks} sink heads" in made.lead.text


def test_where_all_heads_are_called_something_the_page_says_all():
    result = specialized.result(specialized.SMALL)
    made = chapter(with_tables(result, kinds=result.tables["kinds"].assign(called=True)), NO_RUN)
    assert made.lead is not None
    assert made.lead.text.startswith("All of the 8 attention heads of tiny-lantern are called something: 8 ")


def test_every_number_in_words_is_in_the_rows_that_its_sentence_links_to(made: Chapter, result: Result):
    """Whole numbers (counts) apart, a number that is said is one of a linked row."""
    for sentence in sentences(made):
        values = list(linked_numbers(sentence, result))
        linked = {write(value) for value in values for write in (words.number, words.signed)}
        for number in numbers_said(sentence):
            assert number.strip("+−").isdigit() or number in linked, (number, sentence.text)


def test_every_sentence_has_its_rows_and_every_finding_its_limits(made: Chapter):
    assert len(made.findings) == 8
    assert all(sentence.rows for sentence in sentences(made))
    assert all(finding.not_shown for finding in made.findings)


def test_the_best_relation_and_those_worse_than_the_offset_are_told(made: Chapter, result: Result):
    table = result.tables["relations"]
    best = table.loc[table["best"]].sort_values("difference", ascending=False)
    row = best.iloc[0]
    told = made.findings[1].verdict.text
    assert f"most on `{row['relation']}`" in told
    assert words.head_name(row["layer"], row["head"]) in told
    weak = best.loc[best["difference_high"] < 0]
    assert len(weak) == sum("worse than the offset" in s.text for s in made.findings[1].support) == 0


def test_a_head_of_several_relations_is_named_once(result: Result):
    kinds = result.tables["kinds"]
    row = kinds.loc[(kinds["kind"] == "syntactic") & kinds["called"]].head(1)
    twice = pd.concat([kinds, row.assign(detail="obj dependent→head", value=0.99)], ignore_index=True)
    made = chapter(with_tables(result, kinds=twice), NO_RUN)
    told = next(s.text for s in made.findings[0].support if "syntactic" in s.text)
    name = words.head_name(row["layer"].iloc[0], row["head"].iloc[0])
    assert told.count(f"{name} (") == 1
    assert f"{name} (0.99)" in told


def test_kinds_that_were_looked_for_and_not_found_are_named(result: Result):
    kinds = result.tables["kinds"].copy()
    kinds.loc[kinds["kind"] == "induction", "called"] = False
    made = chapter(with_tables(result, kinds=kinds), NO_RUN)
    assert any(s.text == "No head is called an induction head." for s in made.findings[0].support)


def test_heads_that_are_not_surely_alike_are_not_said_to_be(result: Result):
    kinds = result.tables["kinds"].copy()
    kinds.loc[kinds["kind"] == "redundant", "called"] = False
    text = verdicts(chapter(with_tables(result, kinds=kinds), NO_RUN))
    assert "No two heads are surely less than 0.050 nats apart" in text


def test_cards_show_the_strongest_head_of_each_telling_kind_first(result: Result):
    heads = cards.notable(Reading(result))
    patterns = result.tables["patterns"]
    saved = set(zip(patterns["layer"], patterns["head"], strict=True))
    assert {(head["layer"], head["head"]) for head in heads} <= saved
    called = specialized.planted(specialized.DECODER)
    first = [called[head["site"], head["layer"], head["head"]] for head in heads[:3]]
    assert any("duplicate_token" in kinds or "previous_token" in kinds or "syntactic" in kinds for kinds in first)
    plates = cards.plates(Reading(result))
    assert len(plates) == 6
    assert all(plate.rows for plate in plates)


def test_the_text_shown_is_an_edge_between_words(made: Chapter):
    assert made.text is not None
    view = made.text.view
    assert view.strongest.position != view.query
    assert any(char.isalpha() for char in view.token(view.query).word)
    assert view.strongest.weight >= 0.4


def test_where_no_edge_is_clear_the_strongest_is_shown(result: Result):
    patterns = result.tables["patterns"]
    weak = patterns.assign(weight=patterns["weight"] * 0.3)
    shown = chapter(with_tables(result, patterns=weak), NO_RUN).text
    assert shown is not None
    tokens = result.tables["tokens"].set_index(["sequence", "position"])["text"]
    ends = zip(weak["sequence"], weak["query"], weak["key"], weak["weight"], strict=True)
    between = [
        weight for sequence, query, key, weight in ends
        if key not in (0, query) and all(any(map(str.isalpha, tokens[sequence, end])) for end in (query, key))
    ]  # fmt: skip
    row = weak.loc[(weak["layer"] == shown.view.layer) & (weak["head"] == shown.view.head)]
    assert max(between) in set(row["weight"])


@pytest.mark.parametrize("missing", specialized.tables(specialized.SMALL))
def test_any_table_may_be_missing_or_empty(missing: str):
    result = specialized.result(specialized.SMALL)
    for table in (None, result.tables[missing].head(0)):
        made = chapter(with_tables(result, **{missing: table}), NO_RUN)
        assert made.methods
        assert all(isinstance(finding, Finding) for finding in made.findings)


def test_without_called_heads_the_page_says_so():
    made = chapter(specialized.result(specialized.NOTHING), NO_RUN)
    assert made.lead is not None
    assert "none is called anything on this text" in made.lead.text
    assert made.opening is not None


@pytest.mark.parametrize("model", [specialized.SMALL, specialized.NOTHING])
def test_everything_is_drawn(model: specialized.Model):
    made = chapter(specialized.result(model), NO_RUN)
    with style.paper():
        for plate in [made.opening, *made.plates]:
            assert plate is not None
            figure = plate.draw()
            width, height = figure.get_size_inches()
            assert width <= 8.3, plate.name
            assert height <= 12.5, plate.name


def test_each_main_measure_is_one_map_with_the_other_text_inside_it():
    result = specialized.result(specialized.SMALL)
    heads = result.tables["heads"]
    other = heads.loc[heads["data"] == "text"].assign(data="other_text", value=lambda rows: 0.5 * rows["value"])
    made = chapter(with_tables(result, heads=pd.concat([heads, other], ignore_index=True)), NO_RUN)
    plate, alone = (
        next(plate for plate in each.plates if plate.name == "measures") for each in (made, chapter(result, NO_RUN))
    )
    with style.paper():
        figure, without = plate.draw(), alone.draw()
    maps = [ax for ax in figure.axes if (ax.get_gid() or "").startswith("head-map/")]
    assert [ax.get_title() for ax in maps] == [
        ax.get_title() for ax in without.axes if (ax.get_gid() or "").startswith("head-map/")
    ]
    assert {len(ax.images) for ax in maps if "/text/" in str(ax.get_gid())} == {2}
    assert {len(ax.images) for ax in maps if "/weights/" in str(ax.get_gid())} == {1}
    assert "other text" in plate.caption
    assert "other text" not in alone.caption


def test_a_model_of_several_stacks_has_a_panel_and_figures_for_each():
    made = chapter(specialized.result(replace(specialized.BOTH, n_layers=2, n_heads=4)), NO_RUN)
    names = {plate.name for plate in made.plates}
    assert {"entropy-by-layer-encoder", "groups-decoder-cross", "relations-decoder", "measures-encoder"} <= names
    assert made.opening is not None
    with style.paper():
        figure = made.opening.draw()
    assert [ax.get_title(loc="left") for ax in figure.axes] == ["encoder", "decoder", "decoder cross"]
    text = " ".join(s.text for s in sentences(made))
    assert re.search(r"encoder L\dH\d", text)


def test_the_paragraph_says_what_was_run(made: Chapter):
    for part in ("270 attention heads of tiny-lantern", "36 sequences of 128 tokens", "600 sentences", "float32"):
        assert part in made.paragraph


def test_references_are_the_ones_that_methods_name(made: Chapter):
    check_sources_are_cited(made)
