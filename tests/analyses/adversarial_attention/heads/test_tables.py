"""The whole half on toys: tables that fit their schemas, planted heads on the map, worth that is known."""

from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
from hypothesis import example, given, settings
from hypothesis import strategies as st
from scipy.stats import rankdata, spearmanr
from transformers import BertConfig, BertForSequenceClassification

import analyses.adversarial_attention as analysis
import interp
from analyses.adversarial_attention import Config, run
from analyses.adversarial_attention.heads.choosing import aside, chosen, together
from analyses.adversarial_attention.heads.continuations import distributions
from analyses.adversarial_attention.heads.inputs import make as make_inputs
from analyses.adversarial_attention.heads.worth import mean_pattern_effects, partial_rank, partial_ranks, worth
from interp.attention.edits import ReplaceRows
from interp.errors import UserError
from interp.models.planted import induction, plant, previous_token, uniform
from interp.replacements import mean_patterns
from interp.results import Workspace
from interp.results.schemas import check_tables
from tests.families import load, make

SMALL = {"part": "heads", "places": 2, "length": 40, "head_starts": 1, "head_epsilon": 0.05}


@pytest.fixture(scope="module")
def planted_tables() -> dict[str, Any]:
    truth = plant([previous_token(writes="previous"), uniform()], [induction(), uniform()], n_ctx=48, logit_gain=4.0)
    work = Workspace()
    found = run(truth.model, Config(**SMALL, heads="all"), work)  # type: ignore[arg-type]
    check_tables("adversarial-attention", found.tables, analysis.SCHEMAS)
    return dict(found.tables)


def of(tables: dict[str, Any], metric: str) -> dict[tuple[int, int], float]:
    heads = tables["heads"]
    rows = heads.loc[heads["metric"] == metric]
    return {(int(r["layer"]), int(r["head"])): float(r["value"]) for _, r in rows.iterrows()}


def test_idle_heads_are_free_and_need_no_search(planted_tables: dict[str, Any]) -> None:
    freedom = of(planted_tables, "freedom_share")
    assert freedom[0, 1] > 0.9
    assert freedom[1, 1] > 0.9
    assert of(planted_tables, "derivative")[1, 1] == pytest.approx(0, abs=1e-9)
    assert of(planted_tables, "first_position_tvd")[1, 1] == 0


def test_rows_keep_what_they_promise(planted_tables: dict[str, Any]) -> None:
    rows = planted_tables["freedom_rows"]
    searched = rows.loc[rows["searched"]]
    assert (rows["n_keys"] >= 8).all()
    assert len(searched) == 2 * 4
    assert (searched["tvd"] <= 0.05).all()
    assert (searched["jsd"] <= searched["ceiling"] + 1e-9).all()
    assert (searched["jsd"] >= searched["nullspace_jsd"] - 1e-6).all()  # the null space's point is one of those tried
    assert (rows["ceiling"] <= np.log(2) + 1e-9).all()


def test_what_is_drawn_twice_is_a_distribution(planted_tables: dict[str, Any]) -> None:
    patterns, tokens = planted_tables["patterns"], planted_tables["tokens"]
    sums = patterns.groupby(["site", "head", "sequence", "query", "which"])["weight"].sum()
    assert np.allclose(sums, 1)
    assert (patterns["key"] <= patterns["query"]).all()
    assert set(patterns["sequence"]) <= set(tokens["sequence"])


@pytest.mark.parametrize("name", ["bert", "gpt_oss", "bloom"])
def test_other_architectures(name: str) -> None:
    """Without a causal mask, with sinks, with a softmax of its own."""
    work = Workspace()
    found = run(load(make(name)), Config(**SMALL, heads="L0"), work)  # type: ignore[arg-type]
    check_tables("adversarial-attention", found.tables, analysis.SCHEMAS)
    rows: Any = found.tables["freedom_rows"]
    assert (rows.loc[rows["searched"]]["tvd"] <= 0.05).all()
    known = rows["nullspace_share"].notna().all()
    assert known == (name != "bloom")
    assert ("null spaces" in {part["part"] for part in work.left_out}) == (not known)


def test_a_classifier() -> None:
    torch.manual_seed(0)
    options: Any = {"num_labels": 3}
    config = BertConfig(
        vocab_size=97, hidden_size=48, intermediate_size=64, num_hidden_layers=2, num_attention_heads=4,
        max_position_embeddings=128, **options,
    )  # fmt: skip
    model = interp.load(BertForSequenceClassification(config).eval())
    found = run(model, Config(**SMALL, heads="L1"), Workspace())  # type: ignore[arg-type]
    rows: Any = found.tables["freedom_rows"]
    assert (rows["n_keys"] == 40).all()
    assert (rows.loc[rows["searched"]]["tvd"] <= 0.05).all()


def test_what_cannot_be_asked() -> None:
    model = load(make("t5"))
    with pytest.raises(UserError, match="one stack"):
        run(model, Config(**SMALL), Workspace())  # type: ignore[arg-type]
    short = interp.load("tiny-2l")
    with pytest.raises(UserError, match="need sequences of"):
        run(short, Config(part="heads", length=10), Workspace())


@pytest.mark.parametrize(
    ("wrong", "says"),
    [({"head_epsilon": 0.0}, "above 0"), ({"pinned": 1.0}, "between 0 and 1"), ({"position": 4}, "below the horizon"),
     ({"heads": " "}, "nothing"), ({"places": 0}, "at least 1")],
)  # fmt: skip
def test_settings_that_are_refused(wrong: dict[str, object], says: str) -> None:
    with pytest.raises(ValueError, match=says):
        Config(**wrong)  # type: ignore[arg-type]


def test_heads_by_name() -> None:
    model = interp.load("tiny-2l")
    importance = pd.DataFrame({
        "site": [s.name for s in model.sites for _ in range(4)], "head": [0, 1, 2, 3] * 2, "importance": range(8),
    })  # fmt: skip
    first, second = (site.name for site in model.sites)
    assert chosen(model, importance, Config(heads="L0H1, L1")) == [(first, 1), *((second, h) for h in range(4))]
    assert chosen(model, importance, Config(top=3)) == [(second, 1), (second, 2), (second, 3)]
    assert len(chosen(model, importance, Config(heads="all"))) == 8
    for wrong in ("L2", "L0H4", "five"):
        with pytest.raises(UserError):
            chosen(model, importance, Config(heads=wrong))


@settings(max_examples=30, deadline=None)
@given(n=st.integers(6, 40), seed=st.integers(0, 10_000))
@example(n=6, seed=494)
def test_partial_rank_correlation(n: int, seed: int) -> None:
    """Against the formula with three correlations, and Spearman's where there is no control."""
    x, y, z = np.random.default_rng(seed).standard_normal((3, n))
    assert partial_rank(x, y, []) == pytest.approx(spearmanr(x, y)[0], abs=1e-9)
    xy, xz, yz = (float(np.corrcoef(rankdata(a), rankdata(b))[0, 1]) for a, b in ((x, y), (x, z), (y, z)))
    if max(abs(xz), abs(yz)) > 1 - 1e-9:
        assert np.isnan(partial_rank(x, y, [z]))  # the control leaves nothing
    else:
        expected = (xy - xz * yz) / np.sqrt((1 - xz**2) * (1 - yz**2))
        assert partial_rank(x, y, [z]) == pytest.approx(expected, abs=1e-8)


def _measured(values: np.ndarray, column: str, noise: float, seed: int) -> Any:
    rng = np.random.default_rng(seed)
    return pd.concat([
        pd.DataFrame({"site": "s", "layer": range(len(values)), "head": range(len(values)), "sequence": i,
                      column: values + noise * rng.standard_normal(len(values))}) for i in range(6)
    ])  # fmt: skip


def test_worth_is_found_where_it_is_and_not_where_importance_explains_it() -> None:
    rng = np.random.default_rng(0)
    importance, own = rng.standard_normal((2, 30))
    effects = _measured(importance + own, "effect", 0.1, 1)
    tables = [_measured(importance, "importance", 0.1, 2), effects]
    useful = worth(_measured(own, "share", 0.1, 3), *tables, seed=0).set_index(["predictor", "controls"])
    assert useful.loc[("freedom", "importance"), "value"] > 0.8
    assert useful.loc[("freedom", "importance"), "p"] < 0.01
    assert useful.loc[("freedom", "importance"), "ci_low"] > 0.5
    copied = worth(_measured(importance, "share", 0.1, 4), *tables, seed=0).set_index(["predictor", "controls"])
    assert copied.loc[("freedom", "none"), "value"] > 0.4
    assert abs(copied.loc[("freedom", "importance"), "value"]) < 0.4
    few: Any = worth(_measured(own[:3], "share", 0.1, 5), *tables, seed=0)
    assert few["value"].isna().all()
    assert few["note"].str.contains("too few").all()


def test_the_same_seed_gives_the_same_rows_and_a_run_can_be_resumed(tmp_path: Path) -> None:
    """Also from the steps of an earlier run."""
    model = interp.load("tiny-2l")
    config = Config(**SMALL, heads="L1")  # type: ignore[arg-type]
    first, again, resumed = (
        run(model, config, work).tables["freedom_rows"]
        for work in (Workspace(), Workspace(tmp_path / "steps"), Workspace(tmp_path / "steps"))
    )
    pd.testing.assert_frame_equal(first, again)
    pd.testing.assert_frame_equal(first, resumed)


def test_a_row_does_not_depend_on_which_others_are_searched_with_it() -> None:
    model = interp.load("tiny-2l")
    alone: Any
    alone, beside = (
        run(model, Config(**SMALL, heads=heads), Workspace()).tables["freedom_rows"]  # type: ignore[arg-type]
        for heads in ("L1H2", "all")
    )
    where: Any = beside.loc[(beside["layer"] == 1) & (beside["head"] == 2)]
    columns = ["sequence", "query", "searched", "share", "nullspace_share", "tau_gradient", "permuted_tvd"]
    pd.testing.assert_frame_equal(
        alone[columns].reset_index(drop=True), where[columns].reset_index(drop=True), atol=1e-3, rtol=0
    )


def test_heads_of_near_layers_run_together() -> None:
    """At most so many, within a tenth of the layers, and every head in one group."""
    model = load(make("gpt2"))
    heads = [(site.name, head) for site in model.sites for head in range(site.n_heads)]
    groups = together(model, heads, 3)
    assert [head for group in groups for head in group] == heads
    assert max(map(len, groups)) <= 3
    assert all(len({site for site, _ in group}) == 1 for group in groups)  # two layers lie farther apart than 0.2


def test_mean_patterns_effects_against_one_head_at_a_time() -> None:
    """By the core's own edit, without replayed layers or copies."""
    model = interp.load("tiny-2l")
    given_inputs = make_inputs(model, Config(**SMALL), Workspace())  # type: ignore[arg-type]
    heads = [(site.name, head) for site in model.sites for head in range(site.n_heads)]
    table = mean_pattern_effects(model, given_inputs, heads, Workspace())
    tokens = aside(given_inputs.other.tokens)
    others = [{"tokens": aside(sequence[None])} for sequence in given_inputs.choosing.tokens]
    patterns = mean_patterns(model, {"tokens": tokens[:1]}, others, [site.name for site in model.sites])
    for number, (site, head) in ((0, heads[1]), (1, heads[6])):
        here = tokens[number][None]
        edit = ReplaceRows({(site, head): (list(range(tokens.shape[1])), patterns[site][head][None])})
        plain, changed = (distributions(model.run(here, edits=edits).logits) for edits in ((), (edit,)))
        expected = float((plain - changed).abs().sum(-1).mean() / 2)
        mine: Any = table.loc[(table["sequence"] == number) & (table["site"] == site) & (table["head"] == head)]
        assert mine["effect"].tolist() == pytest.approx([expected], abs=1e-5)
        assert expected > 1e-4


@settings(max_examples=30, deadline=None)
@given(n=st.integers(3, 20), n_controls=st.integers(0, 2), seed=st.integers(0, 10_000), holes=st.booleans())
def test_many_draws_at_once_against_one_at_a_time(n: int, n_controls: int, seed: int, holes: bool) -> None:
    """With ties, a control that does not vary, and heads that some draws do not know."""
    rng = np.random.default_rng(seed)
    x, y = np.round(rng.standard_normal((2, 5, n)), 1)
    controls = [np.round(rng.standard_normal((5, n)), 1), np.ones(n)][:n_controls]
    if holes:
        x[rng.integers(5), rng.integers(n)] = np.nan
    found = partial_ranks(x, y, controls)
    expected = [
        partial_rank(x[i], y[i], [control[i] if control.ndim == 2 else control for control in controls])
        for i in range(5)
    ]
    np.testing.assert_allclose(found, expected, atol=1e-7)
