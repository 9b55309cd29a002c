"""Planted heads do what they are said to do, and nothing else, as probes read them."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor
from torch.testing import assert_close

from interp.attention.edits import GateHeads
from interp.attention.probes import LabelMass, OffsetMass, PositionMass, Probe, SelectedRows, TargetMass
from interp.circuits import Weights, copying_eigenvalues
from interp.data import RepeatedTokens, Vocabulary, repeated_tokens, unrepeated_tokens
from interp.errors import UserError
from interp.models.planted import (
    Part,
    current_token,
    duplicate_token,
    first_position,
    fixed_offset,
    induction,
    induction_circuit,
    label,
    plant,
    previous_token,
    twins,
    uniform,
)

D_VOCAB, PERIOD, OFFSET, SEPARATORS = 90, 12, 5, (3, 4, 5)
PARTS = {
    "previous_token": lambda: previous_token(writes="previous"),
    "fixed_offset": lambda: fixed_offset(OFFSET),
    "first_position": first_position,
    "current_token": current_token,
    "duplicate_token": duplicate_token,
    "induction": induction,
    "label": lambda: label(SEPARATORS),
    "uniform": uniform,
}


def sequences(repeat: bool = True) -> RepeatedTokens:
    """Three copies of random tokens, of which the second in each is a separator."""
    made = (repeated_tokens if repeat else unrepeated_tokens)(Vocabulary.of_size(D_VOCAB, SEPARATORS), PERIOD, 3, 6)
    if repeat:
        made.tokens[:, 1::PERIOD] = 4
    return made


def probes(data: RepeatedTokens) -> dict[str, Probe]:
    """What tells each kind, on rows that can tell it."""
    is_separator = torch.isin(data.tokens, torch.tensor(SEPARATORS)).long() - 1
    return {
        "previous_token": OffsetMass(offsets=[1]),
        "fixed_offset": OffsetMass(offsets=[OFFSET]),
        "first_position": PositionMass(positions=[0], first_position=1),
        "current_token": OffsetMass(offsets=[0], first_position=1),
        "duplicate_token": TargetMass(targets=data.duplicate_targets),
        "induction": TargetMass(targets=data.induction_targets),
        "label": LabelMass(labels=is_separator),
    }


def scores(planted, data: RepeatedTokens) -> dict[tuple[int, int, str], float]:
    """(layer, head, kind) → the mean of what the kind's probe reads."""
    kinds = probes(data)
    run = planted.model.run(data.tokens, probes=list(kinds.values()))
    return {
        (site.layer, head, kind): float(value)
        for kind, probe in kinds.items()
        for site in run.sites
        for head, value in enumerate(run.readings(probe)[site.name].values.reshape(len(data), site.n_heads).nanmean(0))
    }


@pytest.fixture(scope="module")
def everything():
    first = [PARTS[kind]() for kind in ("previous_token", "fixed_offset", "first_position", "current_token")]
    second = [PARTS[kind]() for kind in ("induction", "duplicate_token", "label", "uniform")]
    return plant(first, second, d_vocab=D_VOCAB, n_ctx=40)


def test_every_kind_has_its_ideal_score(everything) -> None:
    found = scores(everything, sequences())
    for (layer, head), kind in everything.kinds.items():
        if kind != "uniform":
            assert found[layer, head, kind] == pytest.approx(1.0, abs=1e-3), kind
    assert set(everything.kinds.values()) == set(PARTS)


def test_no_head_has_another_kind_s_score(everything) -> None:
    for (layer, head, kind), value in scores(everything, sequences()).items():
        if everything.kinds[layer, head] != kind:
            # below every threshold that is used; rows near the start have few keys to share their weight
            assert value < 0.35, (layer, head, kind, value)


def test_the_uniform_head_is_at_chance(everything) -> None:
    data = sequences()
    run = everything.model.run(data.tokens, probes=[SelectedRows(queries=range(36))])
    (head,) = [head for (layer, head), kind in everything.kinds.items() if layer == 1 and kind == "uniform"]
    pattern = run.readings(0)["blocks.1.attn"].values[:, head]
    expected = torch.ones(36, 36, dtype=torch.float64).tril()
    assert_close(pattern, (expected / expected.sum(-1, keepdim=True)).expand(6, -1, -1), rtol=0, atol=1e-6)


def test_without_repeats_heads_that_look_for_them_attend_alike(everything) -> None:
    data = sequences(repeat=False)
    run = everything.model.run(data.tokens, probes=[TargetMass(targets=data.induction_targets)])
    for kind in ("induction", "duplicate_token"):
        ((layer, head),) = everything.of_kind(kind)
        value = run.readings(0)[f"blocks.{layer}.attn"].values[:, head]
        # each leaves out one key: the first token, and the token itself
        assert_close(value, run.chance(0)[f"blocks.{layer}.attn"][:, 0].expand_as(value), rtol=0.05, atol=0)


def test_the_circuit_predicts_the_repeats_and_needs_both_its_heads() -> None:
    planted, data = plant(*induction_circuit(), d_vocab=D_VOCAB, n_ctx=40), sequences()
    loss = planted.model.token_loss(data.tokens)
    assert float(loss[:, PERIOD:].max()) < 0.1
    assert float(loss[:, : PERIOD - 1].mean()) > 4
    assert planted.matter == {(0, 0), (1, 0)}
    for head in planted.matter:
        with planted.model.edit(GateHeads({head: 0.0})):
            assert float(planted.model.token_loss(data.tokens)[:, PERIOD:].mean()) > 4


def test_of_twins_with_one_pattern_one_matters() -> None:
    planted, data = plant(*twins(), d_vocab=D_VOCAB, n_ctx=40), sequences()
    run = planted.model.run(data.tokens, probes=[SelectedRows(queries=range(36))], keep="z")
    pattern, z = run.readings(0)["blocks.1.attn"].values, run.z["blocks.1.attn"]
    assert torch.equal(pattern[:, 0], pattern[:, 1])
    assert torch.equal(z[:, 0], z[:, 1])
    written = [z[:, head] @ planted.model.head_weights(1).W_O[head] for head in (0, 1)]
    assert_close(written[0].norm(dim=-1), written[1].norm(dim=-1))
    plain, changes = planted.model.run(data.tokens).logits, {}
    assert plain is not None
    for head in planted.kinds:
        with planted.model.edit(GateHeads({head: 0.0})):
            logits = planted.model.run(data.tokens).logits
            assert logits is not None
            changes[head] = not torch.equal(logits, plain)
    assert {head for head, changed in changes.items() if changed} == planted.matter == {(0, 0), (1, 0)}


KINDS = st.sampled_from(sorted(set(PARTS) - {"induction"}))


@settings(max_examples=10, deadline=None)
@given(st.lists(KINDS, max_size=3), st.lists(st.sampled_from(sorted(PARTS)), min_size=1, max_size=4), st.integers(0, 3))
def test_parts_combine_in_any_order(first: list[str], second: list[str], at: int) -> None:
    """Heads of any kinds beside a head that feeds the induction heads, wherever it stands."""
    feeding = previous_token(writes="previous")
    others: list[Part] = [PARTS[kind]() if kind != "previous_token" else previous_token() for kind in first]
    layer = [*others[:at], feeding, *others[at:]]
    last = [PARTS[kind]() for kind in second]
    planted, data = plant(layer, last, d_vocab=D_VOCAB, n_ctx=40), sequences()
    found = scores(planted, data)
    for (number, head), kind in planted.kinds.items():
        assert kind == "uniform" or found[number, head, kind] == pytest.approx(1.0, abs=1e-3)
    assert len(planted.kinds) == 2 * max(len(layer), len(last))


def test_copying_heads_copy_as_far_as_weights_tell(everything) -> None:
    for site in copying_eigenvalues(Weights.from_transformers(everything.model.module), draws=0):
        for head, value in enumerate(site.value):
            writes_output = everything.kinds[site.site.layer, head] == "induction"
            assert float(value) == pytest.approx(1.0) if writes_output else bool(value.isnan())


@pytest.mark.parametrize("pad", [0, 3])
def test_padding_on_the_left_changes_nothing(everything, pad: int) -> None:
    row = sequences().tokens[:1, :30]
    plain = everything.model.run(row).logits
    padded = torch.cat([torch.full((1, pad), 7), row], 1)
    valid = torch.arange(30 + pad)[None] >= pad
    assert plain is not None
    logits: Tensor | None = everything.model.run(padded, valid).logits
    assert logits is not None
    assert_close(logits[:, pad:], plain, rtol=0, atol=1e-4)


def test_without_the_causal_mask_heads_keep_their_kinds() -> None:
    planted = plant([previous_token(), current_token(), first_position()], d_vocab=D_VOCAB, n_ctx=40, causal=False)
    found = scores(planted, sequences())
    for (layer, head), kind in planted.kinds.items():
        assert found[layer, head, kind] == pytest.approx(1.0, abs=1e-3)
    assert not planted.model.is_causal


def test_the_gain_is_what_a_key_that_is_looked_for_scores() -> None:
    planted = plant([first_position()], d_vocab=D_VOCAB, n_ctx=40, gain=3.0)
    run = planted.model.run(sequences().tokens, probes=[SelectedRows(queries=[35])])
    weight = torch.tensor(3.0, dtype=torch.float64).exp()
    assert_close(run.values(0)[0, :, 0, 0, 0], (weight / (weight + 35)).expand(6), rtol=0, atol=1e-6)


def test_what_cannot_be_planted_is_refused() -> None:
    with pytest.raises(UserError, match="no head of an earlier layer writes"):
        plant([previous_token(writes="previous"), induction()])
    with pytest.raises(UserError, match="no head of an earlier layer writes"):
        plant([previous_token()], [induction()])
    with pytest.raises(UserError, match="got none"):
        plant()
    with pytest.raises(UserError, match="got offset -1"):
        fixed_offset(-1)
    with pytest.raises(UserError, match=r"vocabulary, 0 … 63; got \[64\]"):
        plant([label([3, 64])])
