"""Retrieval heads: planted ones are found, and no others; inputs hold what they say; the analysis as a command."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from analyses import long_context
from analyses.long_context import Config
from analyses.long_context.needles import Needle, hide, make_needles
from analyses.long_context.retrieval import measure
from interp import HookedModel, load
from interp.errors import UserError
from interp.models.planted import duplicate_token, first_position, induction, plant, previous_token
from interp.results import Workspace, check_tables

NEEDLE = Needle(0, (10, 11, 12, 13, 14), (10, 11), (12, 13, 14))


def test_needles_lie_where_they_should() -> None:
    hay = list(range(20, 60))
    for depth, place in ((0.0, 1), (0.5, 1 + 9), (1.0, 1 + 18)):
        hidden = hide([NEEDLE, NEEDLE], hay, [1], 28, depth)
        assert hidden.tokens.shape == (2, 28)
        assert hidden.tokens[0, 0] == 1
        assert hidden.tokens[0, place : place + 5].tolist() == list(NEEDLE.sentence)
        assert hidden.in_needle[0].nonzero().flatten().tolist() == list(range(place, place + 5))
        assert hidden.tokens[0, -4:].tolist() == [10, 11, 12, 13]
        assert hidden.rows[0].tolist() == [25, 26, 27]
        assert not torch.equal(hidden.tokens[0], hidden.tokens[1])  # each in a stretch of its own


def test_a_needle_that_does_not_fit_is_refused() -> None:
    with pytest.raises(UserError, match="a needle of 9 tokens does not fit into 12 tokens"):
        hide([NEEDLE], [20, 21], [1], 12, 0.5)


@pytest.fixture(scope="module")
def planted() -> HookedModel:
    return plant(
        [previous_token(writes="previous"), first_position()], [induction(), duplicate_token()], d_vocab=64, n_ctx=64
    ).model


def test_the_planted_induction_head_retrieves_and_no_other_does(planted: HookedModel) -> None:
    result = long_context.run(planted, Config(lengths=(48, 64), depths=3, needles=4), Workspace())
    check_tables(result.analysis, result.tables, long_context.SCHEMAS)
    kinds = {(row["layer"], row["head"]): row for row in result.tables["kinds"].to_dict("records")}
    assert [head for head, row in kinds.items() if row["called"]] == [(1, 0)]
    assert {head: row["value"] for head, row in kinds.items()} == {
        head: pytest.approx(float(head == (1, 0))) for head in kinds
    }
    assert result.tables["copied"]["copied"].to_numpy() == pytest.approx(1.0)


def test_scores_are_those_of_whole_patterns(planted: HookedModel) -> None:
    """Against argmax over patterns that are read whole, at another size of pieces."""
    from interp.attention.probes import SelectedRows

    needles = make_needles(planted, 3, seed=2)
    hidden = hide(needles, np.random.default_rng(0).integers(1, 64, 200).tolist(), [], 50, 0.3)
    found = measure(planted, hidden, piece=16)
    rows = hidden.rows[0].tolist()
    run = planted.run(hidden.tokens, probes=[SelectedRows(rows)])
    assert run.logits is not None
    for s, (site, reading) in enumerate(run.readings(0).items()):
        strongest = reading.values.argmax(-1)  # [sequence, head, row]
        for i in range(3):
            for head in range(strongest.shape[1]):
                keys = strongest[i, head].tolist()
                hits = [bool(hidden.in_needle[i, k]) and int(hidden.tokens[i, k]) == int(hidden.answers[i, t])
                        for t, k in enumerate(keys)]  # fmt: skip
                right = [int(run.logits[i, row].argmax()) == int(hidden.answers[i, t]) for t, row in enumerate(rows)]
                assert found.attended[i, s, head] == pytest.approx(np.mean(hits)), site
                assert found.score[i, s, head] == pytest.approx(
                    np.mean([h and r for h, r in zip(hits, right, strict=True)])
                )


def test_what_the_model_does_not_emit_is_not_retrieved(planted: HookedModel) -> None:
    needle = Needle(0, (10, 11, 12, 13, 14), (10, 11), (12, 13, 15))  # the forced answer ends otherwise than the needle
    found = measure(planted, hide([needle, needle], list(range(20, 60)), [], 40, 0.5), piece=64)
    assert found.copied == pytest.approx([2 / 3, 2 / 3])
    assert found.score.max() == pytest.approx(2 / 3)


def test_the_same_seed_gives_the_same_tables() -> None:
    model = load("tiny-2l")
    first, second = (long_context.run(model, Config(lengths=(48,), depths=1), Workspace()).tables for _ in range(2))
    for name, table in first.items():
        assert table.equals(second[name]), name


def test_needles_of_ones_own(tmp_path: Path, smollm2: HookedModel) -> None:
    file = tmp_path / "needles.jsonl"
    lines = [
        {"needle": " The best thing to do in Oslo is to eat a waffle.", "question": " The best thing to do in Oslo is",
         "answer": " to eat a waffle"},
        {"needle": " Mara keeps her bees in the old mill.", "question": " Mara keeps her bees in",
         "answer": " the old mill"},
    ]  # fmt: skip
    file.write_text("\n".join(map(json.dumps, lines)))
    needles = make_needles(smollm2, 5, 0, str(file))
    assert [needle.number for needle in needles] == [0, 1, 0, 1, 0]
    hidden = hide(needles[:2], list(range(1000, 1200)), [], 80, 0.5)
    assert (hidden.rows[1] >= 0).sum() == len(needles[1].answer)
    result = long_context.run(smollm2, Config(lengths=(64,), depths=1, needles=4, needle=str(file)), Workspace())
    assert result.tables["copied"]["n"].tolist() == [2]  # two needles, each used twice, are two observations

    file.write_text(json.dumps({"needle": " A.", "question": " B", "answer": " C"}))
    with pytest.raises(UserError, match="line 1: the answer's tokens do not stand in the needle"):
        make_needles(smollm2, 2, 0, str(file))
    file.write_text('{"needle": 1')
    with pytest.raises(UserError, match="line 1: an object with needle, question and answer"):
        make_needles(smollm2, 2, 0, str(file))


def test_lengths_follow_the_context_and_the_budget() -> None:
    assert Config().lengths_within(8192) == [128, 256, 512, 1024]
    assert Config().lengths_within(64) == [64]
    assert Config(budget="full").lengths_within(2048) == [128, 256, 512, 1024, 2048]
    with pytest.raises(UserError, match="beyond the model's context of 64"):
        long_context.run(load("tiny-2l"), Config(lengths=(128,)), Workspace())
    refused: list[dict[str, Any]] = [{"lengths": (20,)}, {"needles": 1}, {"threshold": 1.0}]
    for wrong in refused:
        with pytest.raises(ValueError, match=r"lengths|needles|threshold"):
            Config(**wrong)


def test_models_that_continue_no_text_are_refused() -> None:
    from tests.families import load as hooked
    from tests.families import make

    with pytest.raises(UserError, match="does not predict the next token"):
        long_context.run(hooked(make("bert")), Config(), Workspace())
