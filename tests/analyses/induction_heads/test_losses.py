"""Loss by position, the worth of copying and the in-context-learning score, from losses that are made up."""

from typing import Any

import numpy as np
import pandas as pd
import pytest

import interp
from analyses.induction_heads import Config, losses
from analyses.induction_heads.inputs import Inputs
from interp import HookedModel
from interp.data import Sequences, Vocabulary, repeated_tokens, unrepeated_tokens
from interp.results import Workspace
from tests.families import make

VOCABULARY = Vocabulary.of_size(97, [0, 1, 2])
PERIOD, REPEATS, N = 5, 3, 4


@pytest.fixture(scope="module")
def model() -> HookedModel:
    return interp.load(make("llama"), verify=False)


def made_up(data: str, wide: np.ndarray) -> Any:
    n, width = wide.shape
    return pd.DataFrame(
        {"data": data, "sequence": np.repeat(range(n), width), "position": np.tile(range(1, width + 1), n),
         "loss": wide.ravel()}
    )  # fmt: skip


def given(prefix: tuple[int, ...] = (), text: Sequences | None = None) -> Inputs:
    both = [make_(VOCABULARY, PERIOD, REPEATS, N, prefix=prefix) for make_ in (repeated_tokens, unrepeated_tokens)]
    return Inputs(VOCABULARY, both[0], both[1], text)


def tables(
    model: HookedModel,
    inputs: Inputs,
    repeated: np.ndarray,
    text: np.ndarray | None = None,
    config: Config | None = None,
) -> dict[str, Any]:
    parts = [made_up("repeated", repeated), made_up("unrepeated", repeated)]
    parts += [] if text is None else [made_up("text", text)]
    return losses.tables(model, pd.concat(parts), inputs, config or Config(period=PERIOD), Workspace())


def test_later_copies_count_from_the_first_token_that_could_be_told(model: HookedModel) -> None:
    """The second copy's first token comes before anything has been seen twice, so no head could know it."""
    position = np.arange(1, PERIOD * REPEATS)
    could_be_told = position >= PERIOD + 1
    loss = np.where(could_be_told, 1.0, 10.0)[None] + np.arange(N)[:, None]
    behaviour = tables(model, given(), loss)["behaviour"].set_index("metric")
    assert behaviour.loc["loss_later_copies", "value"] == pytest.approx(1.0 + np.arange(N).mean())
    assert behaviour.loc["loss_first_copy", "value"] == pytest.approx(10.0 + np.arange(N).mean())
    gain = behaviour.loc["copying_gain"]
    assert (gain["value"], gain["ci_low"], gain["ci_high"]) == (9.0, 9.0, 9.0)  # paired: no spread left
    assert gain["n"] == N


def test_the_first_token_of_all_is_in_no_mean(model: HookedModel) -> None:
    """After a special token it could be anything: its loss says nothing of copies."""
    loss = np.ones((N, PERIOD * REPEATS))
    loss[:, 0] = 50.0  # position 1, the first copy's first token, behind a prefix of one
    behaviour = tables(model, given((1,)), loss)["behaviour"].set_index("metric")["value"]
    assert behaviour["loss_first_copy"] == behaviour["loss_later_copies"] == 1.0


@pytest.mark.parametrize("prefix", [(), (1,)])
def test_copies_are_counted_from_where_they_begin(model: HookedModel, prefix: tuple[int, ...]) -> None:
    loss = np.random.default_rng(0).uniform(1, 5, (N, PERIOD * REPEATS - 1 + len(prefix)))
    table = tables(model, given(prefix), loss)["loss_by_position"]
    of = table[table["data"] == "repeated"].set_index("position")
    np.testing.assert_allclose(of["loss"], loss.mean(0))
    start = len(prefix)
    assert of["copy"].to_dict() == {p: (p - start) // PERIOD for p in range(1, PERIOD * REPEATS + start)}
    assert (of["n"] == N).all()


def in_context(model: HookedModel, length: int, config: Config) -> Any:
    """The score where the loss of position p is −p in every sequence, and documents differ by a constant."""
    text = Sequences.padded([[3] * length] * N, document=[0, 0, 0, 1], source="a text")
    loss = -np.arange(1.0, length)[None] + np.array([0.0, 1.0, 2.0, 100.0])[:, None]
    repeated = np.ones((N, PERIOD * REPEATS - 1))
    behaviour = tables(model, given(text=text), repeated, loss, config)["behaviour"]
    return behaviour.set_index("metric").loc["in_context_learning"]


def test_in_context_learning_is_late_minus_early_over_documents(model: HookedModel) -> None:
    row = in_context(model, 120, Config(early=20, late=100, around=3))
    assert row["value"] == pytest.approx(-80.0)
    assert (row["n"], row["data"], row["note"]) == (2, "text", "")


def test_positions_that_do_not_fit_are_moved_and_said(model: HookedModel) -> None:
    row = in_context(model, 120, Config())
    assert row["value"] == pytest.approx(-(109 - 10))
    assert row["note"] == "positions 10 and 109 instead of 50 and 500: windows have 120 tokens"


def test_windows_too_short_have_no_score(model: HookedModel) -> None:
    row = in_context(model, 12, Config())
    assert np.isnan(row["value"])
    assert "too short" in row["note"]


def test_a_model_without_a_loss_has_rows_that_say_so() -> None:
    work = Workspace()
    bert = interp.load(make("bert"), verify=False)
    made: dict[str, Any] = losses.tables(bert, pd.DataFrame(), given(), Config(period=PERIOD), work)
    assert made["behaviour"]["value"].isna().all()
    assert made["behaviour"]["note"].str.contains("not applicable").all()
    assert made["loss_by_position"].empty
    assert [part["part"] for part in work.left_out] == ["everything that needs a loss"]
