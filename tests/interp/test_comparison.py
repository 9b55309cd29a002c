"""Two runs compared: planted changes are found with intervals that hold, and runs that do not match are refused."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from scipy import stats

from interp.cli import main
from interp.comparison import compare, difference_interval, kind_changes, score_differences, two_sided
from interp.errors import UserError
from interp.results import Result, RunFolder, save
from interp.statistics import benjamini_hochberg, mean_interval

HEADS = [(f"blocks.{layer}.attn", layer, head) for layer in range(3) for head in range(4)]


def result(
    moved: dict[tuple[int, int], float] | None = None, called: dict[tuple[int, int], str] | None = None,
    half: float = 0.05,
    model: str = "first", **provenance: Any,
) -> Result:  # fmt: skip
    """A result in which every head scores 0.3, but for those that are moved."""
    site, layer, head = (list(column) for column in zip(*HEADS, strict=True))
    value = np.array([0.3 + (moved or {}).get((one, other), 0.0) for _, one, other in HEADS])
    heads = pd.DataFrame(
        {"site": site, "layer": layer, "head": head, "metric": "previous_token", "data": "text", "value": value,
         "ci_low": value - half, "ci_high": value + half, "chance": 0.1, "p_corrected": 0.01, "n": 20}
    )  # fmt: skip
    weights = heads.assign(metric="copying", data="weights", ci_low=np.nan, ci_high=np.nan)
    kinds = pd.DataFrame(
        {"site": site, "layer": layer, "head": head, "kind": "previous_token", "detail": "", "value": value,
         "threshold": 0.5, "called": [(called or {}).get((one, other)) == "previous_token" for _, one, other in HEADS]}
    )  # fmt: skip
    told = {"model": {"name": model, "weights_sha256": model}, "config": {"seed": 0}, **provenance}
    return Result("close-attention", {"heads": pd.concat([heads, weights]), "kinds": kinds}, told)


@pytest.fixture
def runs(tmp_path: Path) -> tuple[Path, Path]:
    """Two runs: L1H2 has become a previous-token head, L0H0 is none any more, L2H3 stays one."""
    was = {(0, 0): "previous_token", (2, 3): "previous_token"}
    is_now = {(1, 2): "previous_token", (2, 3): "previous_token"}
    save(result({(0, 0): 0.4, (2, 3): 0.5}, was), tmp_path / "first")
    save(result({(1, 2): 0.4, (2, 3): 0.5}, is_now, model="second"), tmp_path / "second")
    return tmp_path / "first", tmp_path / "second"


def test_heads_that_changed_kind_and_scores_that_moved_are_found(runs: tuple[Path, Path]) -> None:
    found = compare(RunFolder(runs[0]), RunFolder(runs[1]))
    changes: Any = found.kinds.set_index(["layer", "head"])["change"]
    assert changes.to_dict() == {(0, 0): "lost", (1, 2): "gained", (2, 3): "kept"}
    table: Any = found.differences.loc[found.differences["data"] == "text"]
    changed = table.loc[table["changed"]]
    assert set(zip(changed["layer"], changed["head"], strict=True)) == {(0, 0), (1, 2)}
    assert changed["difference"].tolist() == pytest.approx([-0.4, 0.4])
    width = 0.05 * np.sqrt(2)
    assert (changed["ci_high"] - changed["difference"]).tolist() == pytest.approx([width, width])
    assert found.models == ("first", "second")


def test_scores_without_intervals_have_a_difference_and_no_verdict(runs: tuple[Path, Path]) -> None:
    found = compare(RunFolder(runs[0]), RunFolder(runs[1]))
    weights: Any = found.differences.loc[found.differences["data"] == "weights"]
    assert len(weights) == len(HEADS)
    assert weights[["ci_low", "ci_high", "p_corrected"]].isna().all(axis=None)
    assert not weights["changed"].any()


def test_intervals_of_independent_means_hold_the_true_difference() -> None:
    """2,000 pairs of means, skewed, from samples of their own: 95 % of intervals hold; a false interval would not."""
    random = np.random.default_rng(0)
    ends = []
    for scale in (1.0, 2.0):
        sample = scale * random.beta(2, 5, (2000, 40))
        mean, half = sample.mean(1), stats.t.ppf(0.975, 39) * stats.sem(sample, axis=1)
        ends.append((mean, mean - half, mean + half))
    low, high = difference_interval(*ends[1], *ends[0])
    true = 1.0 * 2 / 7
    assert 0.935 < np.mean((low <= true) & (true <= high)) < 0.965


def test_unequal_sides_of_an_interval_are_kept() -> None:
    low, high = difference_interval(*np.array([[0.5], [0.4], [0.8], [0.2], [0.19], [0.5]]))
    assert low == pytest.approx(0.3 - np.hypot(0.1, 0.3))
    assert high == pytest.approx(0.3 + np.hypot(0.3, 0.01))


def test_noise_alone_changes_nothing(tmp_path: Path) -> None:
    random = np.random.default_rng(1)
    jitter = [{(layer, head): random.normal(0, 0.02) for _, layer, head in HEADS} for _ in range(2)]
    old, new = (result(each, half=0.04) for each in jitter)
    table: Any = score_differences(old, new)
    assert not table["changed"].any()


def test_one_small_difference_among_many_heads_is_no_change() -> None:
    """By itself p would be 0.03; twelve heads were looked at."""
    shift = float(stats.t.isf(0.015, 19)) * 0.05 * np.sqrt(2) / stats.t.ppf(0.975, 19)
    table: Any = score_differences(result(), result({(0, 0): shift}))
    row = table.loc[(table["layer"] == 0) & (table["head"] == 0) & (table["data"] == "text")].iloc[0]
    assert row["ci_low"] > 0
    assert row["p_corrected"] == pytest.approx(12 * 0.03)
    assert not row["changed"]


@pytest.mark.parametrize(("n", "other_n"), [(4, 4), (8, 8), (16, 36)])
def test_of_many_heads_that_differ_by_chance_few_runs_call_one_changed(n: int, other_n: int) -> None:
    """Normal tails: 23 %, 15 % and 15 % of the runs, where 5 % are bargained for."""
    random, false = np.random.default_rng(0), 0
    for seed in range(100):
        one, other = (mean_interval(random.normal(size=(k, 270)), n_resamples=500, seed=seed) for k in (n, other_n))
        difference = one.value - other.value
        low, high = difference_interval(one.value, one.low, one.high, other.value, other.low, other.high)
        false += (benjamini_hochberg(two_sided(difference, low, high, one.n, other.n)) <= 0.05).any()
    assert false <= 7


def test_p_of_two_samples_is_students() -> None:
    """Of two samples alike in size and spread, with the degrees of freedom of one of them."""
    x, y = np.array([[0.0, 1, 2, 3, 5], [2.0, 3, 4, 5, 7]])
    one, other = mean_interval(y), mean_interval(x)
    low, high = difference_interval(*one[:3], *other[:3])
    t = (y.mean() - x.mean()) / np.sqrt(y.var(ddof=1) / len(y) + x.var(ddof=1) / len(x))
    assert two_sided(one.value - other.value, low, high, one.n, other.n) == pytest.approx(2 * stats.t.sf(t, 4))


def test_units_that_are_all_alike_are_no_certainty() -> None:
    """Three units at 0 against three at 1: one of 20 ways to deal them out, and its mirror image."""
    zero, one, three = np.zeros(1), np.ones(1), np.full(1, 3)
    assert two_sided(one, one, one, three, three) == pytest.approx(0.1)
    assert two_sided(zero, zero, zero, three, three) == 1.0
    assert two_sided(one, one, one, np.full(1, np.nan), three) == 0.0


def test_a_kind_with_several_details_is_one_verdict() -> None:
    old, new = result(), result()
    rows = [
        {"site": "blocks.0.attn", "layer": 0, "head": 1, "kind": "syntactic", "detail": detail, "value": value,
         "threshold": 0.4, "called": True}
        for detail, value in (("obj dependent→head", 0.7), ("det dependent→head", 0.6))
    ]  # fmt: skip
    new = replace(new, tables={**new.tables, "kinds": pd.DataFrame(rows)})
    found = kind_changes(old, new)
    assert found.to_dict("records") == [
        {"site": "blocks.0.attn", "layer": 0, "head": 1, "kind": "syntactic", "change": "gained", "detail_before": "",
         "detail_after": "det dependent→head; obj dependent→head", "value_before": pytest.approx(np.nan, nan_ok=True),
         "value_after": 0.7, "threshold": 0.4}
    ]  # fmt: skip


def test_what_a_reader_has_to_know_is_said(tmp_path: Path) -> None:
    inputs = {"text": {"what": "a text", "sha256": "aa"}}
    one = result(inputs=inputs, config={"seed": 0, "checkpoints": None, "training": True, "lengths": [64, 128]})
    other = result(
        inputs=inputs, model="second", config={"seed": 1, "checkpoints": [], "training": False, "lengths": [64]}
    )
    heads = other.tables["heads"]
    assert isinstance(heads, pd.DataFrame)
    other = replace(other, tables={**other.tables, "heads": heads.loc[heads["data"] == "text"]})
    save(one, tmp_path / "one")
    save(other, tmp_path / "other")
    notes = "\n".join(compare(RunFolder(tmp_path / "one"), RunFolder(tmp_path / "other")).notes)
    assert "independent samples" in notes
    assert "Both runs read the same tokens (text)" in notes
    assert (
        "settings differ: seed 0 before, 1 after; checkpoints not given before, given without a value after; "
        "training on before, off after; lengths 64 128 before, 64 after." in notes
    )
    assert "12 scores have a value in the first run alone and are left out: copying (weights)" in notes


def test_verdicts_that_changed_without_the_score_are_told(tmp_path: Path) -> None:
    """L0H0 scores 0.8 in both runs and is called in one alone; L1H1's kind has no score in the second."""
    one = result({(0, 0): 0.5}, {(0, 0): "previous_token", (1, 1): "previous_token"})
    other = result({(0, 0): 0.5}, model="second")
    kinds: Any = other.tables["kinds"]
    kinds = kinds.loc[~((kinds["layer"] == 1) & (kinds["head"] == 1))]
    save(one, tmp_path / "one")
    save(replace(other, tables={**other.tables, "kinds": kinds}), tmp_path / "other")
    notes = "\n".join(compare(RunFolder(tmp_path / "one"), RunFolder(tmp_path / "other")).notes)
    assert "of the kinds gained or lost, 1 (previous token) say little, since their score is on the same side" in notes
    assert "of the kinds gained or lost, 1 (previous token) say little, since one run has no score" in notes


def test_runs_with_other_heads_are_refused(runs: tuple[Path, Path], tmp_path: Path) -> None:
    other = result(model="third")
    tables = {name: table.loc[table["layer"] < 2] for name, table in other.tables.items()}
    save(replace(other, tables=tables), tmp_path / "third")
    with pytest.raises(
        UserError, match=r"the first has 12, the second 8: 4 only in the first, such as L2H0 of blocks.2"
    ):
        compare(RunFolder(runs[0]), RunFolder(tmp_path / "third"))


def test_runs_without_a_common_analysis_are_refused(runs: tuple[Path, Path], tmp_path: Path) -> None:
    save(replace(result(model="third"), analysis="another"), tmp_path / "third")
    with pytest.raises(
        UserError, match=r"finished in both runs: .*first has finished close-attention, .*third another"
    ):
        compare(RunFolder(runs[0]), RunFolder(tmp_path / "third"))
    with pytest.raises(UserError, match="first has no finished another; it has close-attention"):
        compare(RunFolder(runs[0]), RunFolder(runs[1]), ["another"])
    with pytest.raises(UserError, match="two different runs"):
        compare(RunFolder(runs[0]), RunFolder(runs[0]))


def test_the_command_prints_tables(runs: tuple[Path, Path], capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["compare", *map(str, runs)]) == 0
    out = capsys.readouterr().out
    assert "close-attention: what heads are called" in out
    line = next(line for line in out.splitlines() if "previous token " in line and "text" not in line)
    assert [cell.strip() for cell in line.split("│")[1:-1]] == ["previous token", "2", "2", "L1H2", "L0H0"]
    assert "2 of 12" in out
    assert "L0H0 -0.40 [-0.47, -0.33]" in out
    assert "no interval" in out
    assert "independent samples" in out


def test_the_command_prints_json(runs: tuple[Path, Path], capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["compare", *map(str, runs), "--json"]) == 0
    told = json.loads(capsys.readouterr().out)
    assert told["before"] == {"run": str(runs[0]), "model": "first"}
    assert {row["change"] for row in told["kind_changes"]} == {"gained", "lost", "kept"}
    weights = [row for row in told["differences"] if row["data"] == "weights"]
    assert all(row["ci_low"] is None for row in weights)


def test_the_command_saves_a_page(runs: tuple[Path, Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["compare", *map(str, runs), "--out", str(tmp_path / "both")]) == 0
    page = Path(capsys.readouterr().out.splitlines()[-1])
    text = page.read_text(encoding="utf-8")
    assert "two of 12 heads change what they are called" in text
    assert (tmp_path / "both" / "comparison" / "figures" / "kinds-before-and-after.svg").exists()
    assert (tmp_path / "both" / "comparison" / "figures" / "largest-differences.png").exists()
    assert main(["page", str(tmp_path / "both")]) == 0


def test_a_run_that_is_none_is_one_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["compare", str(tmp_path / "a"), str(tmp_path / "b")]) == 1
    assert capsys.readouterr().err.startswith("interp: error: ")
