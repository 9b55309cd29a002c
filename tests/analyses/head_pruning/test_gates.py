"""Hard-concrete gates against their definition, by chance and by number."""

from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch

from analyses.head_pruning import Config, gates, inputs, scores
from interp.models.planted import plant, twins
from interp.results import Workspace


@pytest.mark.parametrize("log_alpha", [-3.0, -0.5, 0.0, 2.0])
def test_a_gate_is_open_as_often_as_it_says(log_alpha: float) -> None:
    drawn = gates.sampled(torch.full((40_000,), log_alpha), torch.Generator().manual_seed(0))
    assert float(drawn.min()) >= 0
    assert float(drawn.max()) <= 1
    expected = float(gates.p_open(torch.tensor(log_alpha)))
    assert float((drawn > 0).float().mean()) == pytest.approx(expected, abs=0.01)


def test_the_numbers_are_voitas() -> None:
    log_alpha = torch.tensor([-2.5, 0.0, 3.0])
    s = 1 / (1 + np.exp(-log_alpha.numpy()))
    np.testing.assert_allclose(gates.at_test(log_alpha), np.clip(1.2 * s - 0.1, 0, 1), rtol=1e-6)
    expected = 1 / (1 + np.exp(-(log_alpha.numpy() - 0.33 * np.log(0.1 / 1.1))))
    np.testing.assert_allclose(gates.p_open(log_alpha), expected, rtol=1e-6)


def test_gates_get_gradients_and_the_weights_stay() -> None:
    model = plant(*twins(), gain=8.0).model
    config = Config(length=16, sequences=6, gate_steps=3, weight_rate=0.01)
    data = inputs.make(model, config, Workspace()).first
    batches = data.batches(model, data.scored_on, config)
    heads = [(site.name, head) for site in model.sites for head in range(site.n_heads)]
    before = {name: p.detach().clone() for name, p in model.module.named_parameters()}
    log_alpha = torch.full((len(heads),), 2.0, requires_grad=True)
    with gates._weights_put_back(model, trained=True):
        gates.train(model, batches, data.measure.scored, heads, log_alpha, 0.1, config)
        moved = [name for name, p in model.module.named_parameters() if not torch.equal(p, before[name])]
    assert moved
    assert all(torch.equal(p, before[name]) for name, p in model.module.named_parameters())
    assert all(p.grad is None for p in model.module.parameters())
    assert (log_alpha != 2.0).all()


def test_frozen_weights_are_not_touched() -> None:
    model = plant(*twins(), gain=8.0).model
    config = Config(length=16, sequences=6, gate_steps=3)
    data = inputs.make(model, config, Workspace()).first
    batches = data.batches(model, data.scored_on, config)
    heads = [(site.name, head) for site in model.sites for head in range(site.n_heads)]
    before = {name: p.detach().clone() for name, p in model.module.named_parameters()}
    log_alpha = torch.full((len(heads),), 2.0, requires_grad=True)
    gates.train(model, batches, data.measure.scored, heads, log_alpha, 0.1, config)
    assert all(torch.equal(p, before[name]) and p.grad is None for name, p in model.module.named_parameters())


def test_an_interrupted_path_of_gates_is_gone_on_with(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    model = plant(*twins(), gain=8.0).model
    config = Config(length=16, sequences=6, gate_steps=4, gate_penalties=(0.01, 0.1, 1.0))
    given = inputs.make(model, config, Workspace())
    found = scores.score(model, given, config, Workspace())
    whole = gates.tables(model, given.first, found, config, Workspace())
    seen, own = [], gates.train

    def stopped(*args: Any) -> None:
        seen.append(args)
        if len(seen) > 2:
            raise KeyboardInterrupt
        own(*args)

    monkeypatch.setattr(gates, "train", stopped)
    with pytest.raises(KeyboardInterrupt):
        gates.tables(model, given.first, found, config, Workspace(tmp_path))
    seen.clear()
    again = gates.tables(model, given.first, found, config, Workspace(tmp_path))
    assert len(seen) == 1
    for name, table in whole.items():
        pd.testing.assert_frame_equal(again[name], table, check_dtype=False)
    assert set(whole["gates_path"]["penalty"]) == {0.01, 0.1, 1.0}
    last = whole["gates"].loc[whole["gates"]["penalty"] == 1.0, "log_alpha"]
    assert last.min() < 1.0  # each λ goes on from the one before: four steps alone reach 1.6
