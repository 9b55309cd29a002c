"""SmolLM2 on text: what the order of importance is worth, and what a head's score says of it."""

import pytest

from analyses.head_pruning import Config, run
from interp import HookedModel
from interp.results import Result, Workspace

pytestmark = pytest.mark.long


@pytest.fixture(scope="module")
def result(smollm2: HookedModel) -> Result:
    return run(smollm2, Config(), Workspace())


def test_importance_loses_to_no_random_order(result: Result) -> None:
    areas = result.tables["areas"]
    random = areas[areas["order"] == "random"]
    assert len(random) == 3
    assert (random["ci_low"] > 0).all()


def test_some_heads_are_free_and_the_share_has_an_interval(result: Result) -> None:
    free = result.tables["free"]
    (row,) = free[(free["order"] == "importance") & (free["leaves"] == "interval")].to_dict("records")
    assert 0 < row["ci_low"] <= row["share"] <= row["ci_high"] < 0.5


def test_most_important_first_is_worse_than_any_random_order(result: Result) -> None:
    areas = result.tables["areas"].set_index("order")["area"]
    assert areas["worst_first"] > areas["random"].max()
