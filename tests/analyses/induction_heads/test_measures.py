"""What is read off the attention: eligible rows, targets, chance, batches, padding; against patterns written out."""

from dataclasses import replace
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
from torch import Tensor

import interp
from analyses.induction_heads import Config, measures
from analyses.induction_heads.inputs import Inputs
from interp import HookedModel
from interp.attention.edits import Edit
from interp.attention.probes import TargetMass
from interp.data import RepeatedTokens, Sequences, Vocabulary, repeated_tokens, unrepeated_tokens
from interp.model_data import pass_arguments
from interp.results import Workspace
from tests.analyses.induction_heads.planted import pattern, planted
from tests.families import make

VOCABULARY = Vocabulary.of_size(97, [0, 1, 2])


def read(model: HookedModel, batch: Sequences) -> Any:
    wanted = measures.measures(batch)
    run = model.run(**pass_arguments(model, batch), probes=list({id(m.probe): m.probe for m in wanted}.values()))
    return pd.concat(measures.scores_of(run, wanted), ignore_index=True)


def value(table: Any, metric: str, layer: int, head: int) -> np.ndarray:
    rows = table[(table["metric"] == metric) & (table["layer"] == layer) & (table["head"] == head)]
    return rows.sort_values("sequence")["value"].to_numpy()


class BosElsewhere(Edit):
    """Perfect induction in the second copy, all weight on the first position elsewhere; and a head all on the first."""

    stage: Any = "pattern"

    def __init__(self, tokens: list[int], period: int, start: int) -> None:
        rows = pattern("first", tokens)
        perfect = [row if i < start + period else [float(j == i - period + 1) for j in range(len(tokens))]
                   for i, row in enumerate(rows)]  # fmt: skip
        object.__setattr__(self, "heads", {0: 0, 1: 1})
        object.__setattr__(self, "rows", torch.tensor([perfect, rows]))

    def at(self, site: Any) -> Any:
        return self if site.name == "blocks.1.attn" else None

    def addresses(self) -> tuple[()]:
        return ()

    def parameters(self) -> dict[str, Tensor]:
        return {}

    def apply(self, x: Tensor, block: Any) -> Tensor:
        rows = self.rows[:, block.start : block.stop, block.low : block.high].to(x)  # type: ignore[attr-defined]
        return torch.cat([rows.expand(x.shape[0], -1, -1, -1), x[:, 2:]], 1)


def test_induction_is_the_key_after_the_earlier_one_and_a_duplicate_is_that_one() -> None:
    """8 distinct tokens twice: A[i, i−7] = 1 is induction, A[i, i−8] = 1 is not."""
    batch = repeated_tokens(VOCABULARY, period=8, n=3)
    with planted({(1, 0): "induction", (1, 1): "duplicate"}) as model:
        table = read(model, batch)
    assert value(table, "prefix_matching", 1, 0).tolist() == [1.0] * 3
    assert value(table, "prefix_matching", 1, 1).tolist() == [0.0] * 3
    assert value(table, "duplicate_token", 1, 1).tolist() == [1.0] * 3
    assert value(table, "duplicate_token", 1, 0).tolist() == [0.0] * 3


def test_scores_have_no_ceiling_below_one_and_are_never_nan() -> None:
    """BOS and 8 tokens twice: rows that cannot show induction are not averaged in (8/17 if they were)."""
    batch = repeated_tokens(VOCABULARY, period=8, n=1, prefix=[1])
    model = interp.load(make("llama"), verify=False)
    with model.edit(BosElsewhere(batch.tokens[0].tolist(), 8, 1)):
        table = read(model, batch)
    assert value(table, "prefix_matching", 1, 0).tolist() == [1.0]
    assert value(table, "prefix_matching", 1, 1).tolist() == [0.0]
    assert value(table, "duplicate_token", 1, 1).tolist() == [0.0]
    assert value(table, "first_position", 1, 1).tolist() == [1.0]
    assert table[table["metric"] != measures.NEXT]["value"].notna().all()


def test_a_batch_is_its_sequences_one_by_one() -> None:
    batch = repeated_tokens(VOCABULARY, period=7, repeats=3, n=4)
    model = interp.load(make("gpt2"), verify=False)
    together = read(model, batch).sort_values(["metric", "site", "head", "sequence"])["value"].to_numpy()
    apart = pd.concat([read(model, batch.select([i])).assign(sequence=i) for i in range(4)])
    apart = apart.sort_values(["metric", "site", "head", "sequence"])["value"].to_numpy()
    np.testing.assert_allclose(together, apart, rtol=0, atol=1e-5)


def test_reading_changes_nothing() -> None:
    batch = repeated_tokens(VOCABULARY, period=7, n=2)
    model = interp.load(make("llama"), verify=False)
    before: Any = model.run(batch.tokens).logits
    first, second = read(model, batch), read(model, batch)
    pd.testing.assert_frame_equal(first, second, check_exact=True)
    after: Any = model.run(batch.tokens).logits
    assert torch.equal(after, before)


@pytest.mark.parametrize("n_pads", [1, 2, 3, 8])
def test_left_padding_changes_no_score_and_no_loss(n_pads: int) -> None:
    batch = repeated_tokens(VOCABULARY, period=7, n=3)
    model = interp.load(make("gpt2"), verify=False)
    pad = torch.zeros(3, n_pads, dtype=torch.long)
    tokens = torch.cat([pad, batch.tokens], 1)
    valid = torch.arange(tokens.shape[1]).expand(3, -1) >= n_pads
    targets = torch.nn.functional.pad(batch.induction_targets + n_pads * (batch.induction_targets >= 0),
                                      (0, 0, n_pads, 0), value=-1)  # fmt: skip
    plain, padded = TargetMass(targets=batch.induction_targets), TargetMass(targets=targets)
    expected = model.run(batch.tokens, probes=[plain]).values(plain)
    found = model.run(tokens, valid, probes=[padded]).values(padded)
    torch.testing.assert_close(found, expected, rtol=0, atol=1e-5)
    losses = model.token_loss(tokens, valid)[:, n_pads:]
    torch.testing.assert_close(losses, model.token_loss(batch.tokens), rtol=0, atol=5e-6)


def test_targets_of_all_earlier_copies_count() -> None:
    """Against sums over transformers' own eager pattern."""
    batch = repeated_tokens(VOCABULARY, period=5, repeats=3, n=2)
    table = read(interp.load(make("llama"), verify=False), batch)
    plain = make("llama")
    plain.set_attn_implementation("eager")
    with torch.no_grad():
        patterns = plain(input_ids=batch.tokens, output_attentions=True).attentions
    for layer, weights in enumerate(patterns):
        for head in range(weights.shape[1]):
            A = weights[:, head].double().numpy()
            induction = [[sum(a[i, i - 5 * r + 1] for r in range(1, i // 5 + 1)) for i in range(5, 15)] for a in A]
            duplicate = [[sum(a[i, i - 5 * r] for r in range(1, i // 5 + 1)) for i in range(5, 15)] for a in A]
            expected = {
                "prefix_matching": np.mean(induction, 1),
                "duplicate_token": np.mean(duplicate, 1),
                "previous_token": np.diagonal(A, -1, 1, 2).mean(1),
                measures.SECOND_PREVIOUS: np.diagonal(A, -2, 1, 2).mean(1),
                "current_token": np.diagonal(A, 0, 1, 2)[:, 1:].mean(1),
                "first_position": A[:, 1:, 0].mean(1),
            }
            for metric, numbers in expected.items():
                np.testing.assert_allclose(value(table, metric, layer, head), numbers, rtol=0, atol=1e-5)


def test_chance_is_uniform_attention_written_out() -> None:
    batch = repeated_tokens(VOCABULARY, period=5, repeats=3, n=2)
    table = read(interp.load(make("llama"), verify=False), batch)
    chance = table.groupby("metric")["chance"].first()
    rows = range(5, 15)
    assert chance["prefix_matching"] == pytest.approx(np.mean([(i // 5) / (i + 1) for i in rows]), rel=1e-12)
    assert chance["duplicate_token"] == pytest.approx(np.mean([(i // 5) / (i + 1) for i in rows]), rel=1e-12)
    assert chance["previous_token"] == pytest.approx(np.mean([1 / (i + 1) for i in range(1, 15)]), rel=1e-12)
    assert chance["first_position"] == chance["current_token"] == chance["previous_token"]


def text(ids: list[int], prefix: int = 0) -> Sequences:
    return Sequences.padded([ids], source="a text")


def test_in_a_text_every_earlier_occurrence_counts() -> None:
    """Against targets found by looking: keys after, or at, an earlier occurrence of the row's token."""
    ids = [5, 6, 7, 5, 8, 5, 6, 6, 9]
    table = read(interp.load(make("llama"), verify=False), text(ids))
    plain = make("llama")
    plain.set_attn_implementation("eager")
    with torch.no_grad():
        A = plain(input_ids=torch.tensor([ids]), output_attentions=True).attentions[2][0, 1].double().numpy()
    after, at = [], []
    for i, token in enumerate(ids):
        earlier = [j for j in range(i) if ids[j] == token]
        if earlier:
            after.append(A[i, [j + 1 for j in earlier]].sum())
            at.append(A[i, earlier].sum())
    np.testing.assert_allclose(value(table, "prefix_matching", 2, 1), np.mean(after), rtol=0, atol=1e-5)
    np.testing.assert_allclose(value(table, "duplicate_token", 2, 1), np.mean(at), rtol=0, atol=1e-5)


def given(model: HookedModel, **changed: Any) -> Inputs:
    repeated = repeated_tokens(VOCABULARY, period=6, n=4)
    return replace(Inputs(VOCABULARY, repeated, unrepeated_tokens(VOCABULARY, period=6, n=4), None), **changed)


def test_how_sequences_are_cut_into_passes_changes_nothing() -> None:
    model = interp.load(make("llama"), verify=False)
    whole, cut = (measures.measure(model, given(model), Config(tokens_per_pass=n), Workspace()) for n in (1024, 1))
    for name in ("scores", "losses"):
        keys = [c for c in whole[name].columns if c not in ("value", "chance", "loss")]
        a, b = (each[name].sort_values(keys).reset_index(drop=True) for each in (whole, cut))
        pd.testing.assert_frame_equal(a, b, check_exact=False, rtol=0, atol=1e-5)


def test_losses_are_the_models_own() -> None:
    model = interp.load(make("gpt2"), verify=False)
    inputs_ = given(model)
    losses = measures.measure(model, inputs_, Config(), Workspace())["losses"]
    wide = losses[losses["data"] == "repeated"].pivot(index="sequence", columns="position", values="loss")
    with torch.no_grad():
        logits = make("gpt2")(input_ids=inputs_.repeated.tokens).logits
    expected = torch.nn.functional.cross_entropy(
        logits[:, :-1].transpose(1, 2), inputs_.repeated.tokens[:, 1:], reduction="none"
    )
    np.testing.assert_allclose(wide.to_numpy(), expected.numpy(), rtol=0, atol=1e-5)
    assert list(wide.columns) == list(range(1, 12))


@pytest.mark.parametrize("family", ["bert", "t5"])
def test_models_that_read_both_ways_have_scores_but_no_loss(family: str) -> None:
    model = interp.load(make(family), verify=False)
    found = measures.measure(model, given(model), Config(), Workspace())
    scores = found["scores"]
    both_ways = set(scores[(scores["metric"] == measures.NEXT) & scores["value"].notna()]["site"])
    expected = {site.name for site in model.sites if site.kind == "self" and site.stack != "decoder"}
    assert both_ways == expected
    assert found["losses"].empty
    cross = scores[scores["site"].str.contains("cross")]
    assert set(cross["metric"]) <= {"first_position"}


def test_chance_of_a_model_that_reads_both_ways_counts_all_keys() -> None:
    model = interp.load(make("bert"), verify=False)
    table = read(model, repeated_tokens(VOCABULARY, period=5, n=2))
    chance = table[table["metric"] == "prefix_matching"]["chance"]
    np.testing.assert_allclose(chance, 1 / 10, rtol=1e-12)


def test_rows_of_later_copies_end_before_the_last_token() -> None:
    batch: RepeatedTokens = repeated_tokens(VOCABULARY, period=4, repeats=2, n=1, prefix=[1], suffix=[2])
    assert measures.later_rows(batch).tolist() == [5, 6, 7]
