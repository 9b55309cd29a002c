"""Long inputs in pieces give what one pass gives, however they are cut."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.testing import assert_close

import interp
from interp import HookedModel
from interp.attention.probes import DistanceHistogram, Entropy, PositionMass, Probe, SelectedRows
from interp.errors import UserError
from interp.models.transformer import Transformer, TransformerConfig, hook_transformer
from interp.streaming import StreamedMeans, stream
from tests.families import load, make

READ: list[Probe] = [Entropy(), PositionMass((0, 3), first_position=1), DistanceHistogram(5)]


def small(**choices: object) -> HookedModel:
    config = TransformerConfig(d_vocab=20, d_model=32, n_layers=2, n_heads=4, **choices)  # type: ignore[arg-type]
    return hook_transformer(Transformer(config, seed=1))


@settings(max_examples=15, deadline=None)
@given(st.integers(1, 40), st.sampled_from(["rotary", "alibi", "sinusoidal"]), st.sampled_from([None, 6]))
def test_pieces_of_any_size(piece: int, positions: str, window: int | None) -> None:
    model = small(positions=positions, window=window)
    compare(model, torch.randint(20, (2, 37), generator=torch.Generator().manual_seed(0)), piece)


@pytest.mark.parametrize("family", ["llama", "gpt2"])
def test_transformers_models(family: str) -> None:
    model = load(make(family))
    compare(model, torch.randint(5, 50, (2, 23), generator=torch.Generator().manual_seed(0)), 7)


def compare(model: HookedModel, tokens: torch.Tensor, piece: int) -> None:
    whole = model.run(tokens, probes=READ)
    means, logits = StreamedMeans(), []
    for part in stream(model, tokens, READ, piece=piece):
        means.add(part.run)
        assert part.run.logits is not None
        logits.append(part.run.logits)
    assert whole.logits is not None
    assert_close(torch.cat(logits, 1), whole.logits, rtol=1e-4, atol=1e-4)
    for number in range(len(READ)):
        for site, reading in whole.readings(number).items():
            assert_close(means.values(number, site), reading.values, rtol=1e-5, atol=1e-5, equal_nan=True)


def test_rows_are_asked_for_by_piece() -> None:
    model = small()
    tokens = torch.randint(20, (1, 20), generator=torch.Generator().manual_seed(0))
    whole = model.run(tokens, probes=[SelectedRows([13])]).readings(0)
    parts = stream(
        model, tokens, lambda start, stop: [SelectedRows([13 - start])] if start <= 13 < stop else [], piece=8
    )
    found = [part.run.readings(0) for part in parts if part.run.probes]
    assert len(found) == 1
    for site, reading in found[0].items():
        seen = reading.values[..., :16]
        assert_close(seen, whole[site].values[..., :16], rtol=1e-5, atol=1e-6)


def test_logits_that_nobody_reads_are_spared(smollm2: HookedModel) -> None:
    tokens = torch.randint(100, 4000, (1, 30), generator=torch.Generator().manual_seed(0))
    sizes = [
        part.run.logits.shape[1]
        for part in stream(smollm2, tokens, piece=10, keep_logits=lambda start, stop: stop == 30)
        if part.run.logits is not None
    ]
    assert sizes == [1, 1, 10]


@pytest.mark.parametrize(
    ("model", "words"),
    [("bert", "is no causal decoder"), ("t5", "is no causal decoder"), ("long", "more than the model's context of 16")],
)
def test_what_cannot_be_read_in_pieces_says_why(model: str, words: str) -> None:
    made = small(n_ctx=16) if model == "long" else load(make(model))
    with pytest.raises(UserError, match=words):
        list(stream(made, torch.ones(1, 20, dtype=torch.long)))


def test_a_module_without_a_known_cache_is_refused() -> None:
    from tests.zoo import SmallLm

    tokens = torch.randint(5, (1, 8))
    with pytest.raises(UserError, match="keeps no cache"):
        list(stream(interp.load(SmallLm().eval(), tokens), tokens))
