"""The table ``heads`` and the calls: scores that are made up, models that read both ways, windows, cross-attention."""

from typing import Any

import numpy as np
import pandas as pd
import pytest

import interp
from analyses.induction_heads import Config, inputs, kinds, measures, scores, weights
from interp import HookedModel
from interp.circuits import Weights, copying_eigenvalues
from interp.results import Workspace
from interp.results.schemas import check_tables
from interp.statistics import mean_interval
from tests.families import make


def found(model: HookedModel, config: Config) -> scores.Scores:
    work = Workspace()
    given = inputs.make(model, config, work)
    return scores.Scores.of(model, measures.measure(model, given, config, work)["scores"], given)


def table(family: str, config: Config | None = None) -> Any:
    config = config or Config(period=8, sequences=4)
    heads = scores.heads_table(found(interp.load(make(family), verify=False), config), config, Workspace())
    check_tables("induction-heads", {"heads": heads})
    return heads


def test_every_head_has_every_score_once() -> None:
    heads = table("t5")
    model = interp.load(make("t5"), verify=False)
    n_heads = sum(site.n_heads for site in model.sites)
    assert len(heads) == n_heads * len(measures.METRICS) * 2
    assert not heads.duplicated(["site", "head", "metric", "data"]).any()


def test_means_and_intervals_are_over_sequences() -> None:
    config = Config(period=8, sequences=6)
    model = interp.load(make("llama"), verify=False)
    scored = found(model, config)
    heads = scores.heads_table(scored, config, Workspace())
    rows = heads[(heads["metric"] == "previous_token") & (heads["data"] == "repeated")]
    values = scored.values["previous_token", "repeated"]
    interval = mean_interval(values, bounds=(0, 1))
    np.testing.assert_allclose(rows["value"], values.mean(0))
    np.testing.assert_allclose(rows[["ci_low", "ci_high"]], np.stack([interval.low, interval.high], 1))
    np.testing.assert_allclose(rows["control"], scored.values[measures.SECOND_PREVIOUS, "repeated"].mean(0))


def test_no_p_value_where_nothing_destroys_the_behaviour() -> None:
    heads = table("llama")
    with_p = set(heads[heads["p_corrected"].notna()][["metric", "data"]].itertuples(index=False, name=None))
    assert with_p == {
        ("prefix_matching", "repeated"), ("duplicate_token", "repeated"), ("previous_token", "repeated"),
        ("previous_token", "unrepeated"),
    }  # fmt: skip


def test_cross_attention_has_a_first_position_and_nothing_else() -> None:
    heads = table("bart")
    cross = heads[heads["site"].str.contains("cross")]
    defined = cross[cross["value"].notna()]
    assert set(defined["metric"]) == {"first_position"}
    rest = cross[cross["value"].isna()]
    assert rest["note"].str.startswith("not applicable: cross-attention").all()
    own = heads[~heads["site"].str.contains("cross")]
    assert own["value"].notna().all()
    encoder = own[own["site"].str.contains("encoder_") & (own["metric"] == "prefix_matching")]
    assert encoder["note"].str.contains("reads both ways").all()
    decoder = own[own["site"].str.contains("decoder_") & (own["metric"] == "prefix_matching")]
    assert not decoder["note"].str.contains("reads both ways").any()


def test_a_window_shorter_than_the_period_has_no_score_and_says_so() -> None:
    heads = table("gemma2", Config(period=12, sequences=4))  # windows of 7 tokens in every other layer
    induction = heads[(heads["metric"] == "prefix_matching") & (heads["data"] == "repeated")]
    per_layer = induction.groupby("layer")["value"].apply(lambda values: values.notna().all())
    assert set(per_layer) == {True, False}
    missing = induction[induction["value"].isna()]
    assert (missing["note"] == "not applicable: the mask lets no row read its target").all()
    assert (missing["n"] == 0).all()


def made_up(values: np.ndarray, control: np.ndarray) -> scores.Scores:
    heads = pd.DataFrame({"site": "blocks.0.attn", "layer": 0, "head": range(values.shape[1])})
    named = {("prefix_matching", "repeated"): values, ("prefix_matching", "unrepeated"): control}
    for metric in ("duplicate_token", "previous_token", measures.SECOND_PREVIOUS):
        named |= {(metric, data): control for data in ("repeated", "unrepeated")}
    chance = {key: np.full_like(each, 0.01) for key, each in named.items()}
    return scores.Scores(heads, {}, named, chance, {"repeated": None, "unrepeated": None}, {})


def test_a_head_is_called_above_its_threshold_and_apart_from_its_control() -> None:
    rng = np.random.default_rng(0)
    noise = rng.uniform(-0.02, 0.02, (16, 4))
    values = np.array([0.9, 0.42, 0.9, 0.1]) + noise  # sure; near the threshold; as its control; weak
    values[:, 1] += rng.uniform(-0.2, 0.2, 16)
    control = np.array([0.01, 0.01, 0.9, 0.01]) + rng.uniform(-0.01, 0.01, (16, 4))
    calls: Any = kinds.table(made_up(values, control), Config(sequences=16))
    induction = calls[calls["kind"] == "induction"]
    assert induction["called"].tolist() == [True, False, False, False]
    assert "not above 0.4" in induction["reason"].iloc[1]
    assert "not told apart from its control" in induction["reason"].iloc[2]


def test_heads_are_picked_on_one_half_and_reported_on_the_other() -> None:
    """A head that is strong in the reported half alone is not picked."""
    config = Config(sequences=16)
    top = kinds.Selection.of(made_up(np.zeros((16, 2)), np.zeros((16, 2))), config)
    assert sorted([*top.selected_on, *top.reported_on]) == list(range(16))
    values = np.full((16, 2), 0.1)
    values[top.reported_on, 0], values[top.selected_on, 1] = 1.0, 0.5
    top = kinds.Selection.of(made_up(values, np.zeros((16, 2))), config)
    assert top.strongest("induction", 5) == [("blocks.0.attn", 1), ("blocks.0.attn", 0)]
    assert top.strongest("induction", 5, above_threshold=True) == [("blocks.0.attn", 1)]


@pytest.mark.parametrize(
    ("family", "loaded", "told"),
    [("bert", True, "not applicable"), ("llama", False, "was not in the checkpoint"), ("t5", True, "cross-attention")],
)
def test_without_a_direct_path_copying_is_not_applicable_rather_than_zero(family: str, loaded: bool, told: str) -> None:
    model = interp.load(make(family), verify=False)
    model.output_head_loaded = loaded
    config = Config(period=8, sequences=4)
    given = inputs.make(model, config, Workspace())
    copying: Any = weights.copying(model, given, config, Workspace())["copying"]
    missing = copying[copying["value"].isna()]
    assert missing["note"].str.contains(told).any()
    assert missing["note"].str.startswith("not applicable").all()
    assert len(copying) == 2 * sum(site.n_heads for site in model.sites)


def test_copying_has_intervals_over_sequences_and_a_null_over_rotations() -> None:
    model = interp.load(make("llama"), verify=False)
    config = Config(period=8, sequences=5)
    copying: Any = weights.copying(model, inputs.make(model, config, Workspace()), config, Workspace())["copying"]
    by_metric: dict[str, Any] = dict(list(copying.groupby("metric")))
    assert (by_metric["copying"]["n"] == 5).all()
    assert (by_metric["copying"]["ci_low"] <= by_metric["copying"]["value"]).all()
    eigenvalues = by_metric["copying_eigenvalues"]
    drawn = copying_eigenvalues(Weights.from_transformers(make("llama")), 32, config.seed)
    samples = np.concatenate([each.samples.numpy() for each in drawn], axis=1)
    np.testing.assert_allclose(eigenvalues["null_low"], np.quantile(samples, 0.025, axis=0), rtol=0, atol=1e-6)
    np.testing.assert_allclose(eigenvalues["null_high"], np.quantile(samples, 0.975, axis=0), rtol=0, atol=1e-6)
    assert (eigenvalues["null_low"] < eigenvalues["chance"]).all()
    assert eigenvalues["ci_low"].isna().all()
    assert (eigenvalues["null_high"] < 1).all()
    assert copying["p_corrected"].isna().all()
