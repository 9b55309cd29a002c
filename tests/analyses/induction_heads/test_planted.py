"""The whole analysis on models whose answer is planted."""

from collections.abc import Iterator
from typing import Any

import pandas as pd
import pytest

from analyses.induction_heads import SCHEMAS, Config, run
from interp.results import Result, Workspace, check_tables
from tests.analyses.induction_heads.planted import HEADS, planted

CONFIG = Config(period=9, sequences=16, reach=16, shown_tokens=19, ablated=(1, 2), draws=2)
KINDS = {"induction": "induction", "previous": "previous_token", "duplicate": "duplicate_token"}


@pytest.fixture(scope="module")
def work() -> Workspace:
    return Workspace()


@pytest.fixture(scope="module")
def result(work: Workspace) -> Iterator[Result]:
    with planted() as model:
        yield run(model, CONFIG, work)


def heads(table: Any) -> set[tuple[int, int]]:
    return set(zip(table["layer"], table["head"], strict=True))


def score(result: Result, metric: str, data: str, layer: int, head: int) -> Any:
    table: Any = result.tables["heads"]
    rows = table[
        (table["metric"] == metric) & (table["data"] == data) & (table["layer"] == layer) & (table["head"] == head)
    ]
    assert len(rows) == 1
    return rows.iloc[0]


def test_tables_keep_their_schemas(result: Result) -> None:
    check_tables("induction-heads", result.tables, SCHEMAS)


@pytest.mark.parametrize("behaviour", KINDS)
def test_exactly_the_planted_heads_are_called(result: Result, behaviour: str) -> None:
    kinds: Any = result.tables["kinds"]
    called = kinds[(kinds["kind"] == KINDS[behaviour]) & kinds["called"]]
    assert heads(called) == {head for head, planted_as in HEADS.items() if planted_as == behaviour}
    assert called["reason"].str.contains("its control is 0.000").all()


@pytest.mark.parametrize(
    ("metric", "behaviour"),
    [
        ("prefix_matching", "induction"),
        ("duplicate_token", "duplicate"),
        ("previous_token", "previous"),
        ("current_token", "current"),
        ("first_position", "first"),
    ],
)
def test_an_ideal_head_scores_one_in_its_own_metric_and_nothing_elsewhere(
    result: Result, metric: str, behaviour: str
) -> None:
    """1 and 0 exactly: no row that could not show a behaviour is averaged in, and no target is off by one."""
    for (layer, head), does in HEADS.items():
        row = score(result, metric, "repeated", layer, head)
        if does == behaviour:
            assert (row["value"], row["ci_low"], row["ci_high"]) == (1.0, 1.0, 1.0)
        elif {metric, does} <= {"prefix_matching", "duplicate_token", "induction", "duplicate"}:
            assert (row["value"], row["ci_low"], row["ci_high"]) == (0.0, 0.0, 0.0)


@pytest.mark.parametrize("metric", ["prefix_matching", "duplicate_token"])
def test_unrepeated_tokens_destroy_it(result: Result, metric: str) -> None:
    for layer, head in HEADS:
        control = score(result, metric, "unrepeated", layer, head)
        assert control["value"] == 0.0 or HEADS[layer, head] in ("previous", "current", "first")
        assert control["value"] == score(result, metric, "repeated", layer, head)["control"]


def test_p_values_are_those_of_an_exact_difference(result: Result) -> None:
    """Two heads of 18 that never fail: (b + 1) / (draws + 1) with no b, times 18 / 2."""
    p = score(result, "prefix_matching", "repeated", 1, 2)["p_corrected"]
    assert p == pytest.approx(18 / 2 / 10_001, rel=1e-9)


def test_patterns_show_the_planted_diagonal(result: Result) -> None:
    patterns: Any = result.tables["patterns"]
    tokens: Any = result.tables["tokens"]
    of = patterns[(patterns["layer"] == 1) & (patterns["head"] == 2) & (patterns["data"] == "repeated")]
    assert len(tokens) == 19  # the beginning of a sequence, and two copies
    assert list(of[of["query"] >= 10]["key"]) == list(range(2, 11))
    assert (of["weight"] == 1.0).all()
    assert tokens["token"].tolist()[1:10] == tokens["token"].tolist()[10:]
    assert {(0, 0), (0, 3)} <= heads(patterns)  # one head of each other kind is shown


def test_reach_of_an_ideal_head_has_no_end(result: Result) -> None:
    reach: Any = result.tables["reach"]
    ideal = reach[reach[["layer", "head"]].apply(tuple, axis=1).isin([(1, 2), (2, 5)])]
    assert (ideal["value"] == 1.0).all()
    assert set(ideal["period"]) == {16}


def test_strongest_heads_are_ablated(result: Result) -> None:
    ablation: Any = result.tables["ablation"]
    top = ablation[(ablation["chosen"] == "top") & (ablation["n_heads"] == 2)]
    assert set(top["heads"]) == {"L1H2 L2H5"}
    assert set(ablation["ablation"]) == {"resample", "mean", "zero", "pattern_preserving"}


def test_it_says_what_full_would_add_and_what_was_read(result: Result, work: Workspace) -> None:
    left_out = " ".join(part["part"] for part in work.left_out)
    assert "everything on text" in left_out
    assert "random draws" not in left_out  # they were asked for by number
    assert result.provenance["inputs"]["repeated"]["what"].startswith("16 sequences of 19 tokens")
    assert len(result.provenance["inputs"]["unrepeated"]["sha256"]) == 64


def test_it_repeats_exactly_and_the_seed_matters(result: Result) -> None:
    with planted() as model:
        again = run(model, CONFIG, Workspace())
    for name, table in result.tables.items():
        pd.testing.assert_frame_equal(table, again.tables[name], check_exact=True)
    with planted() as model:
        other = run(model, Config(**{**vars(CONFIG), "seed": 1}), Workspace())
    assert not other.tables["heads"]["value"].equals(result.tables["heads"]["value"])


def test_an_interrupted_run_goes_on_where_it_was(tmp_path: object) -> None:
    from pathlib import Path

    folder = Path(str(tmp_path)) / "steps"
    with planted() as model:
        whole = run(model, CONFIG, Workspace(folder))
        calls = []
        handle = model.module.register_forward_hook(lambda *_: calls.append(1))
        again = run(model, CONFIG, Workspace(folder))
        handle.remove()
    assert len(calls) <= 3  # none but those that look at the model itself
    for name, table in whole.tables.items():
        pd.testing.assert_frame_equal(table, again.tables[name], check_exact=True)


def test_a_model_without_such_heads_has_none_called() -> None:
    with planted({}) as model:
        kinds: Any = run(model, CONFIG, Workspace()).tables["kinds"]
    assert not kinds["called"].any()


def test_too_few_sequences_are_said() -> None:
    work = Workspace()
    with planted() as model:
        tables: Any = run(model, Config(**{**vars(CONFIG), "sequences": 4}), work).tables
    assert any("too few sequences" in note for note in work.notes)
    induction = tables["kinds"][tables["kinds"]["kind"] == "induction"]
    strong = induction[induction["value"] == 1.0]
    assert len(strong) == 2
    assert not strong["called"].any()
    assert strong["reason"].str.contains("use at least").all()
