"""What is measured of which model, and what is refused."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch

import interp
from analyses.head_pruning import Config, inputs, metrics, run
from analyses.head_pruning.schemas import SCHEMAS
from interp.errors import UserError
from interp.results import Workspace
from interp.results.schemas import check_tables
from tests.families import make

SMALL = Config(length=12, sequences=6, second_sequences=2, ablated=4, gate_steps=2, gate_penalties=(0.1,), steps=1)


def own_metric(model: Any, batch: Any) -> torch.Tensor:
    return model.run(**batch).logits.logsumexp(-1).mean(1)


def rough_metric(model: Any, batch: Any) -> torch.Tensor:
    return (model.run(**batch).logits.argmax(-1) % 2).float().mean(1)


@pytest.mark.parametrize(
    ("family", "kinds", "words"),
    [
        ("t5", {"encoder", "decoder", "cross"}, "loss of the decoder's next token"),
        ("bert", {"self"}, "loss of finding a passage's continuation"),
        ("gpt_neox", {"self"}, "loss of tokens seen before"),
        ("bloom", {"self"}, "loss of tokens seen before"),
    ],
)
def test_every_kind_of_model_has_a_metric(family: str, kinds: set[str], words: str) -> None:
    work = Workspace()
    result = run(interp.load(make(family), verify=False), SMALL, work)
    check_tables("head-pruning", result.tables, SCHEMAS)
    assert set(result.tables["order"]["site_kind"]) == kinds
    assert result.provenance["inputs"]["repeated"]["metric"] == words
    left_out = " ".join(part["part"] for part in work.left_out)
    assert ("direct effects" in left_out) == (family in ("t5", "bert", "bloom"))
    assert ("ablations but zero" in left_out) == (family == "bloom")
    assert len(result.tables["effects"].drop_duplicates(["site", "layer", "head"])) == 4


def test_parts_share_no_document_and_batches_hold_every_sequence_once() -> None:
    data = inputs.make(interp.load(make("llama"), verify=False), replace(SMALL, sequences=9), Workspace()).first
    assert set(data.scored_on) | set(data.reported_on) == set(range(9))
    assert not set(data.scored_on) & set(data.reported_on)
    model = interp.load(make("llama"), verify=False)
    batches = data.batches(model, data.reported_on, replace(SMALL, tokens_per_pass=25))
    assert [len(b["tokens"]) for b in batches] == [2, 2, 2]
    torch.testing.assert_close(
        torch.cat([b["tokens"] for b in batches]), data.sequences.tokens[torch.from_numpy(data.reported_on)]
    )


def test_a_third_of_the_documents_is_scored_on() -> None:
    scored, reported = inputs.split(np.array([4, 4, 7, 7, 1, 1, 0, 2, 3]), seed=0)
    units = np.array([4, 4, 7, 7, 1, 1, 0, 2, 3])
    assert not set(units[scored]) & set(units[reported])
    assert (len(set(units[scored])), len(set(units[reported]))) == (2, 4)
    with pytest.raises(ValueError, match="at least 3"):
        inputs.split(np.array([0, 0, 1]), seed=0)


def test_a_metric_of_ones_own_is_used_and_a_rough_one_is_scored_by_the_loss() -> None:
    model = interp.load(make("llama"), verify=False)
    work = Workspace()
    name = f"{__name__}:"
    data = inputs.make(model, replace(SMALL, metric=f"{name}own_metric"), work).first
    assert data.measure.metric is data.measure.scored
    assert work.notes == []
    data = inputs.make(model, replace(SMALL, metric=f"{name}rough_metric"), work).first
    assert data.measure.metric is not data.measure.scored
    assert "has no derivative" in work.notes[0]
    accuracy = inputs.make(model, replace(SMALL, metric="accuracy"), Workspace()).first
    batch = accuracy.batches(model, accuracy.scored_on, SMALL)[0]
    logits: Any = model.run(**batch).logits
    right = (logits[:, :-1].argmax(-1) == batch["tokens"][:, 1:]).float().mean(1)
    torch.testing.assert_close(accuracy.measure.metric(model, batch), 1 - right)


@pytest.mark.parametrize("metric", ["no_such_package:f", f"{__name__}:nothing", f"{__name__}:SMALL"])
def test_metrics_that_do_not_exist_are_refused(metric: str) -> None:
    with pytest.raises(UserError, match="--metric"):
        inputs.make(interp.load(make("llama"), verify=False), replace(SMALL, metric=metric), Workspace())


@pytest.mark.parametrize(
    ("changed", "told"),
    [
        ({"length": 4}, "length must be at least 8"),
        ({"metric": "f1"}, "metric is loss, accuracy or package.module:function"),
        ({"gate_penalties": ()}, "gate_penalties"),
        ({"gate_penalties": (-1.0,)}, "gate_penalties"),
        ({"gate_rate": 0.0}, "gate_rate must be above 0"),
        ({"random_orders": 0}, "random_orders must be at least 1"),
    ],
)
def test_settings_that_make_no_sense_are_refused(changed: dict[str, Any], told: str) -> None:
    with pytest.raises(ValueError, match=told):
        Config(**changed)


def test_masked_tokens_are_found_again() -> None:
    tokens = torch.arange(60).view(3, 20) + 5
    given, loss = metrics.masked_loss(tokens, mask=2, special=[5], seed=0)
    hidden = given == 2
    assert hidden.sum(1).tolist() == [3, 3, 3]
    assert not hidden[0, 0]  # a special token is not hidden
    torch.testing.assert_close(given[~hidden], tokens[~hidden])

    class Sure:
        """Gives every token its own logit, as if nothing were hidden."""

        def run(self, tokens: torch.Tensor) -> Any:
            rows = [int((given == row).all(1).nonzero()) for row in tokens]
            logits = 50.0 * torch.nn.functional.one_hot(torch.arange(60).view(3, 20)[rows] + 5, 70).float()
            return type("Run", (), {"logits": logits})

    model: Any = Sure()
    np.testing.assert_allclose(loss(model, {"tokens": given[[2, 0, 2]]}), 0.0, atol=1e-6)


def test_counts_of_pruned_heads_come_once() -> None:
    assert Config.counts(8) == [0, 1, 2, 3, 4, 5, 6, 7, 8]
    assert Config.counts(270) == [0, 27, 54, 81, 108, 135, 162, 189, 216, 243, 270]
    assert Config.counts(1) == [0, 1]
