"""Patterns and tokens that are kept, and periods that are followed."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import interp
from analyses.induction_heads import Config, inputs, measures, patterns, reaching, scores
from interp import HookedModel
from interp.data import repeated_tokens
from interp.results import Workspace
from tests.analyses.induction_heads.planted import planted
from tests.families import make


def prepared(model: HookedModel, config: Config) -> tuple[inputs.Inputs, scores.Scores]:
    given = inputs.make(model, config, Workspace())
    return given, scores.Scores.of(model, measures.measure(model, given, config, Workspace())["scores"], given)


@pytest.mark.parametrize(
    ("shortest", "longest", "periods"),
    [(16, 512, [16, 32, 64, 128, 256, 512]), (16, 60, [16, 32, 60]), (16, 16, [16]), (16, 15, [])],
)
def test_periods_double_up_to_the_longest(shortest: int, longest: int, periods: list[int]) -> None:
    assert reaching.doubled(shortest, longest) == periods


def test_kept_weights_are_the_models_own() -> None:
    model = interp.load(make("llama"), verify=False)
    config = Config(period=8, sequences=4, shown=2, shown_tokens=20)
    given, found = prepared(model, config)
    kept: dict[str, Any] = patterns.tables(model, given, found, config)
    tokens = torch.tensor([kept["tokens"]["token"].tolist()])
    assert tokens.shape == (
        1,
        17,
    )  # two copies and what comes before: less than what could be shown
    plain = make("llama")
    plain.set_attn_implementation("eager")
    with torch.no_grad():
        every = plain(input_ids=tokens, output_attentions=True).attentions
    for (layer, head), rows in kept["patterns"].groupby(["layer", "head"]):
        grid = np.zeros((17, 17))
        grid[rows["query"], rows["key"]] = rows["weight"]
        expected = every[int(str(layer))][0, int(str(head))].double().numpy()
        np.testing.assert_allclose(grid, np.where(expected >= 0.005, expected, 0.0), rtol=0, atol=1e-5)
    assert (kept["patterns"]["weight"] >= 0.005).all()
    assert kept["patterns"].groupby(["layer", "head"]).ngroups == 2


def test_the_stretch_of_text_is_one_in_which_pairs_come_again(tmp_path: Path) -> None:
    ids = np.arange(3, 97).repeat(1)[:90]
    ids[40:44] = ids[50:54] = [7, 8, 9, 10]
    file = tmp_path / "ids.npy"
    np.save(file, ids[None])
    config = Config(period=8, sequences=4, window=90, text=str(file), shown=1, shown_tokens=24)
    model = interp.load(make("llama"), verify=False)
    given, found = prepared(model, config)
    kept: dict[str, Any] = patterns.tables(model, given, found, config)
    text = kept["tokens"][kept["tokens"]["data"] == "text"]["token"].tolist()
    assert len(text) == 24
    assert [text.count(token) for token in (7, 8, 9, 10)] == [2, 2, 2, 2]
    assert set(kept["patterns"]["data"]) == {"repeated", "text"}


def test_reach_follows_an_ideal_head_on_tokens_that_did_not_pick_it(monkeypatch: pytest.MonkeyPatch) -> None:
    seeds = []

    def spy(*given: Any, seed: int, **named: Any) -> Any:
        seeds.append(seed)
        return repeated_tokens(*given, seed=seed, **named)

    monkeypatch.setattr(reaching, "repeated_tokens", spy)
    with planted({(1, 2): "induction", (2, 3): "duplicate"}) as model:
        config = Config(period=8, sequences=4, reach=40, followed=2, reach_sequences=3)
        given, found = prepared(model, config)
        table: Any = reaching.table(model, given, found, config, Workspace())
    assert sorted(table["period"].unique()) == [16, 32, 40]
    ideal = table[(table["layer"] == 1) & (table["head"] == 2)]
    assert (ideal["value"] == 1.0).all()
    assert (table["n"] == 3).all()
    chance = table.groupby("period")["chance"].first()
    for period, found_chance in chance.items():
        rows = 1 + np.arange(int(str(period)), 2 * int(str(period)))  # behind the beginning of a sequence
        assert found_chance == pytest.approx((1 / (rows + 1)).mean())
    assert len(seeds) == 3
    assert config.seed not in seeds


def test_heads_whose_window_ends_before_the_period_have_no_value_there() -> None:
    model = interp.load(make("mistral"), verify=False)  # windows of 7 tokens
    config = Config(period=5, sequences=4, reach=16, followed=2)
    given, found = prepared(model, config)
    table: Any = reaching.table(model, given, found, config, Workspace())
    assert table["value"].isna().all()
    assert table["note"].str.startswith("not applicable").all()


def test_a_context_too_short_for_any_period_is_said() -> None:
    model, work = interp.load(make("llama"), verify=False), Workspace()
    config = Config(period=8, sequences=4, repeats=9)
    given, found = prepared(model, config)
    assert reaching.table(model, given, found, config, work).empty
    assert "does not fit the context" in work.left_out[0]["reason"]
