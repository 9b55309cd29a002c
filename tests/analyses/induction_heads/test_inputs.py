"""Tokens that fit the model, its own special tokens around them, batches of one pass, and the text of every token."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import interp
from analyses.induction_heads import Config, inputs
from interp import HookedModel
from interp.errors import UserError
from interp.models.transformer import Transformer, TransformerConfig, hook_transformer
from interp.results import Workspace
from tests.families import make


def tiny(family: str = "llama") -> HookedModel:
    return interp.load(make(family), verify=False)


def test_special_tokens_are_not_drawn() -> None:
    given = inputs.make(tiny(), Config(period=40, sequences=6), Workspace())
    assert not set(given.repeated.tokens[:, 1:].unique().tolist()) & {0, 1, 2}
    assert torch.equal(given.repeated.tokens[:, :41], given.unrepeated.tokens[:, :41])


def test_the_beginning_of_a_sequence_stands_before_where_the_config_names_one() -> None:
    work = Workspace()
    given = inputs.make(tiny(), Config(period=40, sequences=6), work)
    assert given.repeated.tokens[:, 0].tolist() == [1] * 6
    assert any("begin with token 1, the beginning of a sequence" in note for note in work.notes)
    work = Workspace()
    assert inputs.make(hook_transformer(plain()), Config(period=9), work).repeated.start == 0
    assert not work.notes


def plain(**sizes: Any) -> Transformer:
    return Transformer(TransformerConfig(**{"d_vocab": 50, "n_ctx": 20, "n_layers": 1, **sizes}))


@pytest.mark.parametrize(
    ("n_ctx", "bos", "repeats", "period"), [(20, None, 2, 10), (20, 0, 2, 9), (21, 0, 3, 6), (500, 0, 2, 64)]
)
def test_the_usual_period_is_as_long_as_the_context_allows(
    n_ctx: int, bos: int | None, repeats: int, period: int
) -> None:
    model, work = hook_transformer(plain(n_ctx=n_ctx, bos_token_id=bos)), Workspace()
    given = inputs.make(model, Config(repeats=repeats, sequences=2), work)
    assert given.repeated.period == given.unrepeated.period == given.described["repeated"]["period"] == period
    assert any(f"The period is {period} tokens, not 64" in note for note in work.notes) == (period < 64)
    with pytest.raises(UserError, match="a period of at most"):
        inputs.make(model, Config(repeats=repeats, sequences=2, period=300), Workspace())


def test_a_context_without_room_for_two_copies_is_refused() -> None:
    with pytest.raises(UserError, match="period must be at least 2"):
        inputs.make(hook_transformer(plain(n_ctx=3)), Config(), Workspace())


@pytest.mark.parametrize(
    ("config", "told"),
    [
        (Config(period=100), "2 repeats of period 100 .* takes 128: a period of at most 63"),
        (Config(period=40, repeats=4), "4 repeats of period 40"),
    ],
)
def test_what_does_not_fit_the_context_is_refused(config: Config, told: str) -> None:
    with pytest.raises(UserError, match=told.replace("(", r"\(")):
        inputs.make(tiny(), config, Workspace())


def test_a_model_that_reads_no_tokens_is_refused() -> None:
    with pytest.raises(UserError, match="reads none"):
        inputs.make(tiny("vit"), Config(), Workspace())


def test_without_a_tokenizer_text_is_left_out_unless_it_comes_as_tokens(tmp_path: Path) -> None:
    work = Workspace()
    assert inputs.make(tiny(), Config(period=8), work).text is None
    assert work.left_out[0]["part"] == "everything on text"
    file = tmp_path / "ids.npy"
    np.save(file, np.random.default_rng(0).integers(3, 97, (3, 200)))
    given = inputs.make(tiny(), Config(period=8, text=str(file)), Workspace())
    assert given.text is not None
    assert given.text.n_positions == 128  # the context, which is shorter than a window
    assert given.units("text").tolist() == [0, 1, 2]  # type: ignore[union-attr]
    assert given.units("repeated") is None


def test_batches_hold_no_more_than_a_pass_and_lose_nothing() -> None:
    repeated = inputs.make(tiny(), Config(period=8, sequences=11), Workspace()).repeated
    batches = inputs.even_batches(repeated, Config(tokens_per_pass=17 * 4))
    assert [len(batch) for batch in batches] == [4, 4, 3]
    assert torch.equal(torch.cat([batch.tokens for batch in batches]), repeated.tokens)
    assert [len(batch) for batch in inputs.even_batches(repeated, Config(tokens_per_pass=1))] == [1] * 11


def test_encoder_and_decoder_read_the_same() -> None:
    model, work = tiny("t5"), Workspace()
    given = inputs.make(model, Config(period=8, sequences=3), work)
    assert torch.equal(inputs.passes(model, given.repeated, Config())[0]["decoder_tokens"], given.repeated.tokens)
    assert "Encoder and decoder are given the same tokens." in work.notes


def test_what_full_adds_is_said_only_where_the_budget_left_it_out() -> None:
    def parts(config: Config, ablates: bool = True, n_ctx: int | None = 128) -> str:
        work, model = Workspace(), tiny()
        vars(model)["n_ctx"] = n_ctx
        inputs.say_what_full_adds(model, config, work, ablates=ablates)
        return "; ".join(part["part"] for part in work.left_out)

    assert parts(Config(budget="full")) == ""
    assert "2, 10, 40 heads" in parts(Config())
    assert "more than 8 sequences" in parts(Config())
    assert "periods beyond" not in parts(Config())  # the context ends before
    assert parts(Config(ablated=(1,), ablated_on=4, draws=1)) == ""
    assert parts(Config(), ablates=False) == ""
    assert parts(Config(), ablates=False, n_ctx=4096) == "periods beyond 512"
    assert parts(Config(budget="full"), n_ctx=4096) == ""
    assert parts(Config(budget="full"), n_ctx=None) == "periods beyond 512"
