"""Fine-tuning after pruning."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import interp
from interp.errors import UserError
from interp.models.pruning import prune, save_pruned
from interp.models.pruning.recovery import TextData, losses_table, mean_losses, recover, recovery_config
from interp.models.transformer import Transformer, TransformerConfig
from tests.families import load, make, tokens
from tests.interp.models.pruning.gated import assert_same, output

DATA = torch.randint(3, 30, (40, 12), generator=torch.Generator().manual_seed(0))
DATA[:, 1::2] = DATA[:, ::2]  # every second token can be known


def pruned_model(family: str = "llama") -> Any:
    own = Transformer(TransformerConfig(d_vocab=97, n_layers=2))
    return prune(load(own if family == "own" else make(family), verify=False), {0: (), 1: (0, 1, 3)})


@pytest.mark.parametrize("family", ["llama", "gpt2", "gemma2", "own"])
def test_the_loss_falls_and_silent_heads_stay_silent(family: str, tmp_path: Path) -> None:
    model = pruned_model(family)
    held_out = [DATA[:8], DATA[8:16]]
    before = mean_losses(model, held_out)
    old_hash = model.info["weights_sha256"]
    history = recover(model, TextData(DATA[16:], 8), recovery_config(30, learning_rate=3e-3))
    after = mean_losses(model, held_out)
    table = losses_table({"pruned": before, "recovered": after}).set_index("model")
    assert table.loc["recovered", "change_high"] < -0.1  # type: ignore[operator]
    assert len(history) == 30
    assert model.info["weights_sha256"] != old_hash
    assert model.info["pruning"]["history"] == [{"recovery": {"steps": 30, "learning_rate": 3e-3, "seed": 0}}]
    silent = [site for site in model.sites if model.info["pruning"]["sites"][site.name]["silent"]]
    assert bool(silent) == (family != "own")
    assert all(not bool(site.projections["output"].weight.any()) for site in silent)
    assert all(parameter.requires_grad and parameter.grad is None for parameter in model.module.parameters())
    assert not model.module.training
    save_pruned(model, tmp_path / "recovered")
    again = interp.load(str(tmp_path / "recovered"))
    assert_same(output(again, tokens=tokens(2, 9)), output(model, tokens=tokens(2, 9)), 0)


def test_an_interrupted_recovery_goes_on_to_the_same_weights(tmp_path: Path) -> None:
    whole, parts = pruned_model(), pruned_model()
    config = recovery_config(12, save_every=4)
    recover(whole, TextData(DATA, 8), recovery_config(12))

    def stopping(step: int) -> torch.Tensor:
        if step == 9:
            raise KeyboardInterrupt
        return TextData(DATA, 8)(step)

    with pytest.raises(KeyboardInterrupt):
        recover(parts, stopping, config, out=tmp_path)
    assert "recovery" not in str(parts.info["pruning"]["history"])
    fresh = pruned_model()
    recover(fresh, TextData(DATA, 8), config, out=tmp_path, resume=True)
    assert fresh.info["weights_sha256"] == whole.info["weights_sha256"]


def test_targets_for_models_that_do_not_predict_the_next_token() -> None:
    model = prune(load(make("bert"), verify=False), {0: (1, 2)})
    with pytest.raises(UserError, match="does not predict the next token"):
        recover(model, TextData(DATA), recovery_config(2))
    history = recover(model, lambda step: (DATA[:8], DATA[:8]), recovery_config(15, learning_rate=3e-3))
    assert history["loss"].iloc[-1] < history["loss"].iloc[0] - 0.1


def test_unpruned_models_and_weightless_saves_are_refused(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="was not pruned"):
        recover(load(make("llama"), verify=False), TextData(DATA), recovery_config(2))
    model = pruned_model()
    recover(model, TextData(DATA), recovery_config(1))
    model.info["pruning"]["base"]["source"] = "folder somewhere"
    with pytest.raises(UserError, match="trained after pruning"):
        save_pruned(model, tmp_path / "heads", weights=False)


def test_batches_depend_on_the_step_alone_and_cover_each_epoch() -> None:
    data = TextData(torch.arange(24).view(12, 2), 4, seed=1)
    epoch = torch.cat([data(step) for step in range(3)])
    assert sorted(epoch[:, 0].tolist()) == list(range(0, 24, 2))
    assert torch.equal(data(1), data(1))
    assert not torch.equal(epoch, torch.cat([data(step) for step in range(3, 6)]))


def test_differences_are_paired() -> None:
    generator = np.random.default_rng(0)
    hard = generator.normal(3, 1, 30)
    table = losses_table({"unpruned": hard, "pruned": hard + 0.5 + generator.normal(size=30) / 100})
    assert table["change"].iloc[0] == 0
    assert 0.49 < table["change_low"].iloc[1] < table["change_high"].iloc[1] < 0.51
    assert table["ci_high"].iloc[1] - table["ci_low"].iloc[1] > 0.4
