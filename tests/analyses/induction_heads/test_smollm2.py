"""SmolLM2's known heads, on its real weights."""

from typing import Any

import pytest

from analyses.induction_heads import Config, inputs, kinds, measures, scores
from analyses.induction_heads.inputs import Inputs
from interp import HookedModel
from interp.results import Workspace

KNOWN = {(18, 6): 0.90, (17, 3): 0.78, (17, 4): 0.71}
CONFIG = Config(period=64, sequences=8)


@pytest.fixture(scope="module")
def found(smollm2: HookedModel) -> scores.Scores:
    given = inputs.make(smollm2, CONFIG, Workspace())
    assert given.repeated.tokens.shape == (8, 128)  # the model's own convention: no token before a text
    tokens = Inputs(given.vocabulary, given.repeated, given.unrepeated, None)
    return scores.Scores.of(smollm2, measures.measure(smollm2, tokens, CONFIG, Workspace())["scores"], tokens)


@pytest.fixture(scope="module")
def heads(found: scores.Scores) -> Any:
    return scores.heads_table(found, CONFIG, Workspace()).set_index(["metric", "data", "layer", "head"]).sort_index()


@pytest.mark.parametrize("head", KNOWN)
def test_known_induction_heads(heads: Any, head: tuple[int, int]) -> None:
    assert heads.loc[("prefix_matching", "repeated", *head)]["value"] == pytest.approx(KNOWN[head], abs=0.05)


def test_the_three_known_heads_are_the_strongest(heads: Any) -> None:
    strongest = heads.loc[("prefix_matching", "repeated")]["value"].nlargest(3)
    assert set(strongest.index) == set(KNOWN)


def test_no_head_does_it_where_nothing_repeats(heads: Any) -> None:
    control = heads.loc[("prefix_matching", "unrepeated")]
    assert len(control) == 270
    assert (control["value"] <= 2 * control["chance"]).all()


def test_eight_sequences_are_too_few_to_call_a_head(found: scores.Scores) -> None:
    calls: Any = kinds.table(found, CONFIG)
    strong = calls[(calls["kind"] == "induction") & (calls["simultaneous_low"] > calls["threshold"])]
    assert {(18, 6)} <= set(zip(strong["layer"], strong["head"], strict=True))
    assert strong["reason"].str.contains(r"at least 13|its control is").all()
