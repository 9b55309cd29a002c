"""The whole analysis on a circuit wired by hand: what copies, what breaks, what feeds what."""

from typing import Any

import pytest

from analyses.induction_heads import SCHEMAS, Config, run
from interp import HookedModel
from interp.results import Workspace, check_tables
from tests.analyses.induction_heads.planted import circuit

CONFIG = Config(period=10, sequences=16, reach=24, shown_tokens=20, ablated=(1,), ablated_on=8, draws=3)


@pytest.fixture(scope="module")
def model() -> HookedModel:
    return circuit()


@pytest.fixture(scope="module")
def tables(model: HookedModel) -> dict[str, Any]:
    found = dict(run(model, CONFIG, Workspace()).tables)
    check_tables("induction-heads", found, SCHEMAS)
    return found


def test_heads_are_called_what_they_do(tables: dict[str, Any]) -> None:
    called = tables["kinds"][tables["kinds"]["called"]]
    found = set(zip(called["kind"], called["layer"], called["head"], strict=True))
    assert found == {
        ("induction", 1, 0), ("previous_token", 0, 0), ("previous_token", 0, 1), ("duplicate_token", 1, 2)
    }  # fmt: skip


def test_the_model_copies(tables: dict[str, Any]) -> None:
    behaviour = tables["behaviour"].set_index("metric")["value"]
    assert behaviour["loss_later_copies"] < 0.01
    assert behaviour["copying_gain"] > 3
    by_position = tables["loss_by_position"].set_index(["data", "position"])["loss"]
    assert (by_position["repeated"][11:] < 0.01).all()
    assert by_position["repeated", 10] > 1  # the second copy's first token cannot be known
    assert (by_position["unrepeated"] > 1).all()


def test_it_breaks_without_the_induction_head_and_with_no_other(tables: dict[str, Any]) -> None:
    ablation = tables["ablation"]
    top, drawn = (ablation[ablation["chosen"] == chosen] for chosen in ("top", "random"))
    assert set(top["heads"]) == {"L1H0"}
    assert set(top["ablation"]) == {"resample", "mean", "zero", "pattern_preserving"}
    assert (top["ci_low"] > 1).all()
    assert set(drawn["heads"]) == {"L1H1", "L1H2", "L1H3"}
    assert (drawn["loss_change"].abs() < 1e-6).all()


def test_the_head_that_writes_feeds_and_the_one_that_does_not_does_not(tables: dict[str, Any]) -> None:
    composition = tables["composition"].set_index(["source_head", "target_head", "path"])
    assert set(composition.index) == {(s, 0, path) for s in (0, 1) for path in ("key_input", "total")}
    for path in ("key_input", "total"):
        feeds = composition.loc[(0, 0, path)]
        assert feeds["change"] < -0.85
        assert feeds["prefix_matching"] == pytest.approx(1 + feeds["change"], abs=0.01)
        assert feeds["ci_high"] < 0
        assert abs(composition.loc[(1, 0, path)]["change"]) < 1e-6  # it attends like the other, and writes nothing
    assert (composition["n"] == 8).all()


def test_its_weights_copy(tables: dict[str, Any]) -> None:
    heads = tables["heads"]
    copying = heads[heads["data"] == "weights"].set_index(["metric", "layer", "head"])
    assert copying.loc[("copying_eigenvalues", 1, 0)]["value"] == pytest.approx(1.0, abs=0.05)
    assert copying.loc[("copying", 1, 0)]["chance"] == pytest.approx(2 / 25 - 1)
    assert copying.loc[("copying", 1, 0)]["ci_low"] > copying.loc[("copying", 1, 0)]["chance"] + 0.5
    silent = copying.loc[("copying", 1, 2)]
    assert "writes nothing" in silent["note"]
    assert silent[["value", "ci_low", "p_corrected"]].isna().all()


def test_it_reaches_as_far_as_the_context(tables: dict[str, Any]) -> None:
    reach = tables["reach"]
    head = reach[(reach["layer"] == 1) & (reach["head"] == 0)]
    assert list(head["period"]) == [16, 24]
    assert (head["value"] > 0.95).all()
