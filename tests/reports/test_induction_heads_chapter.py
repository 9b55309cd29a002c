"""The words of the induction-heads chapter, against tables whose answer is planted."""

import re

import numpy as np
import pandas as pd
import pytest

from interp.results import Result
from reports import words
from reports.chapters import Chapter, Finding
from reports.chapters.induction_heads import causes, chapter
from tests.reports import synthetic
from tests.reports.chapter_parts import (
    NO_RUN,
    check_sources_are_cited,
    in_two_stacks,
    linked_numbers,
    numbers_said,
    sentences,
    verdicts,
    with_tables,
)


@pytest.fixture(scope="module")
def result() -> Result:
    return synthetic.result(synthetic.Planted())


@pytest.fixture(scope="module")
def made(result: Result) -> Chapter:
    return chapter(result, NO_RUN)


def test_the_page_opens_with_what_was_run_on_what_and_the_main_finding(made: Chapter):
    assert made.lead is not None
    for part in (
        "270 attention heads",
        "tiny-lantern",
        "weights quantised as Q4_1",
        "five are induction",
        "L18H6",
        "0.90",
    ):
        assert part in made.lead.text


def test_all_called_heads_are_named_strongest_first(made: Chapter):
    verdict = made.findings[0].verdict.text
    assert re.findall(r"L\d+H\d+", verdict) == ["L18H6", "L17H3", "L17H4", "L20H1", "L22H5"]


def test_a_head_above_the_threshold_that_is_not_called_is_told_with_the_reason(made: Chapter):
    told = [s.text for s in made.findings[0].support if "not called" in s.text]
    assert len(told) == 1
    assert "One other head scores above the threshold" in told[0]
    assert "L14H2 (0.410, but its lower end 0.350 is not above 0.4)" in told[0]


def test_heads_that_differ_from_the_control_but_are_weak_are_counted(made: Chapter, result: Result):
    kinds = result.tables["kinds"]
    weak = kinds.loc[(kinds["kind"] == "induction") & (kinds["p_corrected"] <= 0.05) & (kinds["value"] <= 0.4)]
    assert any(s.text.startswith(words.sentence_case(words.number_word(len(weak)))) for s in made.findings[0].support)


def test_every_number_in_words_is_in_the_rows_that_its_sentence_links_to(made: Chapter, result: Result):
    """Whole numbers (counts) and levels of significance apart, a number that is said is one of a linked row."""
    for sentence in sentences(made):
        linked: set[str] = set()
        for value in linked_numbers(sentence, result):
            linked |= {words.number(value), words.number(abs(value)), words.signed(value), f"{value:.3f}", f"{value:g}"}
        for number in numbers_said(sentence):
            if number in {"0.05", "0.001"} or number.strip("+−").isdigit():  # levels, counts
                continue
            assert number in linked or number.lstrip("+") in linked, (number, sentence.text)


def test_every_sentence_has_its_rows_and_every_finding_its_limits(made: Chapter):
    assert len(made.findings) == 7
    assert all(sentence.rows for sentence in sentences(made))
    assert all(finding.not_shown for finding in made.findings)


def test_without_called_heads_the_page_says_so():
    made = chapter(synthetic.result(synthetic.NOTHING), NO_RUN)
    assert made.lead is not None
    assert "none is called an induction head" in made.lead.text
    assert "does not measurably copy" in verdicts(made)
    assert "No previous-token heads and no duplicate-token heads are called." in verdicts(made)
    assert made.findings[0].support[0].text.startswith("The highest score is that of")
    assert made.opening is not None
    assert made.text is None


def test_scores_that_are_not_defined_are_said_to_be_so(result: Result):
    note = "not applicable: an encoder has no next token"
    heads = result.tables["heads"].copy()
    undefined = heads["metric"].isin(["prefix_matching", "copying", "copying_eigenvalues"])
    heads.loc[undefined, ["value", "ci_low", "ci_high"]] = np.nan
    heads.loc[undefined, "note"] = note
    kinds = result.tables["kinds"].copy()
    kinds.loc[kinds["kind"] == "induction", ["value", "simultaneous_low", "p_corrected"]] = np.nan
    kinds.loc[kinds["kind"] == "induction", "called"] = False
    behaviour = pd.DataFrame(
        [{"metric": "copying_gain", "data": "repeated", "value": np.nan, "ci_low": np.nan, "ci_high": np.nan, "n": 0,
          "note": "not applicable: the output head is random"}]
    )  # fmt: skip
    empty = {name: result.tables[name].head(0) for name in ("ablation", "composition", "reach", "loss_by_position")}
    made = chapter(with_tables(result, heads=heads, kinds=kinds, behaviour=behaviour, **empty), NO_RUN)
    assert made.lead is not None
    assert "prefix matching is not defined: an encoder has no next token" in made.lead.text
    assert "Copying is not defined for this model: an encoder has no next token." in verdicts(made)
    assert "The model's loss was not measured: the output head is random." in verdicts(made)
    assert "not applicable" not in verdicts(made)
    assert made.opening is None
    assert {plate.name for plate in made.plates} == {"patterns", "pattern-with-tokens", "score-maps"}


@pytest.mark.parametrize("missing", synthetic.tables(synthetic.SMALL))
def test_any_table_may_be_missing_or_empty(missing: str):
    result = synthetic.result(synthetic.SMALL)
    for table in (None, result.tables[missing].head(0)):
        made = chapter(with_tables(result, **{missing: table}), NO_RUN)
        assert made.methods
        assert all(isinstance(finding, Finding) for finding in made.findings)


def test_an_ablation_that_costs_no_more_than_random_ones_is_not_called_worse(result: Result):
    table = result.tables["ablation"].copy()
    top = table["chosen"] == "top"
    table.loc[top, ["loss_change", "ci_low", "ci_high"]] = [0.02, -0.05, 0.09]
    text = verdicts(chapter(with_tables(result, ablation=table), NO_RUN))
    assert "is not clearly worse than removing random ones" in text
    assert "copies worse" not in text


def test_a_feeding_head_needs_an_interval_below_zero(result: Result):
    table = result.tables["composition"].assign(change=-0.02, ci_low=-0.06, ci_high=0.02)
    assert "No previous-token head was found to feed" in verdicts(
        chapter(with_tables(result, composition=table), NO_RUN)
    )


def test_a_loss_that_rises_on_copies_is_told_as_such(result: Result):
    table = result.tables["behaviour"].copy()
    table.loc[table["metric"] == "copying_gain", ["value", "ci_low", "ci_high"]] = [-0.8, -1.2, -0.4]
    text = verdicts(chapter(with_tables(result, behaviour=table), NO_RUN))
    assert "The model does worse on what it has seen before: its loss is 0.80 nats per token higher" in text
    assert "[0.40, 1.20]" in text


def test_the_text_shown_is_a_query_whose_strongest_key_followed_its_token_before(made: Chapter, result: Result):
    assert made.text is not None
    view = made.text.view
    assert view.name == "L18H6"
    tokens = result.tables["tokens"]
    tokens = tokens.loc[(tokens["data"] == view.data) & (tokens["sequence"] == view.sequence)]
    token = tokens.set_index("position")["token"]
    assert token[view.strongest.position - 1] == token[view.query]
    assert view.strongest.position - 1 < view.query
    patterns, period = result.tables["patterns"], synthetic.Planted().period
    later = patterns.loc[(patterns["layer"] == 18) & (patterns["data"] == "repeated") & (patterns["query"] >= period)]
    assert view.strongest.weight == later.loc[later["key"] == later["query"] - period + 1, "weight"].max()


def test_text_is_shown_rather_than_random_tokens_where_it_is_clear(result: Result):
    of = {"site": "blocks.18.attn", "layer": 18, "head": 6, "data": "text", "sequence": 0}
    clear = pd.DataFrame([{**of, "query": 12, "key": 1, "weight": 0.6}])  # "Ada" at 12, "Quill" after "Ada" at 1
    tokens = result.tables["tokens"]
    ada = tokens.loc[(tokens["data"] == "text") & (tokens["text"] == " Ada")]
    clear = clear.assign(query=int(ada["position"].iloc[1]))
    patterns = result.tables["patterns"]
    random = patterns.loc[(patterns["data"] == "repeated") & (patterns["layer"] == 18)]
    repeating = tokens.copy()
    words_seen = {text: number for number, text in enumerate(dict.fromkeys(tokens["text"]))}
    repeating["token"] = [words_seen[text] for text in tokens["text"]]
    made = chapter(with_tables(result, patterns=pd.concat([random, clear]), tokens=repeating), NO_RUN)
    assert made.text is not None
    assert made.text.view.data == "text"
    assert made.text.view.strongest.word == "Quill"
    assert "which followed “Ada” before" in made.text.caption


def test_a_model_of_several_stacks_names_the_stack():
    made = chapter(in_two_stacks(synthetic.result(synthetic.SMALL)), NO_RUN)
    assert "encoder L1H1" in made.findings[0].verdict.text
    assert "decoder L1H1" in made.findings[0].verdict.text
    assert {"prefix-against-copying-encoder", "prefix-against-copying-decoder"} <= {p.name for p in made.plates}


def test_the_paragraph_says_what_was_run(made: Chapter):
    for part in ("270 attention heads of tiny-lantern", "Q4_1", "32 sequences of 2 copies of 24 random tokens", "0.40"):
        assert part in made.paragraph


def test_references_are_the_ones_that_methods_name(made: Chapter):
    check_sources_are_cited(made)


def test_one_ablated_head_is_spoken_of_as_one() -> None:
    how = "replaced by their outputs on other sequences"
    assert (
        causes._removed(["L1H1"], how) == "The head is L1H1; its output is replaced by its outputs on other sequences."
    )
    assert causes._removed(["L1H1", "L2H0"], how).startswith("The heads are L1H1, L2H0; their outputs are replaced by")
