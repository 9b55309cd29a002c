"""Which heads are ablated, which random ones they are compared with, and that the loss is the right one."""

from collections import Counter

import numpy as np
import pytest
import torch

import interp
from analyses.induction_heads import Config, causes
from analyses.induction_heads.inputs import Inputs
from analyses.induction_heads.kinds import Selection
from interp.attention.edits import GateHeads
from interp.data import Vocabulary, repeated_tokens, unrepeated_tokens
from interp.model_data import pass_arguments
from interp.results import Workspace
from tests.families import make

VOCABULARY = Vocabulary.of_size(97, [0, 1, 2])
SITES = {f"blocks.{layer}.attn": 6 for layer in range(3)}


def selection(means: dict[tuple[str, int], float], threshold: float = 0.4) -> Selection:
    ordered = dict(sorted(means.items(), key=lambda item: -item[1]))
    kinds = ("induction", "previous_token", "duplicate_token")
    return Selection(np.arange(4), np.arange(4, 8), dict.fromkeys(kinds, ordered), dict.fromkeys(kinds, threshold))


def given(n: int = 8) -> Inputs:
    return Inputs(VOCABULARY, repeated_tokens(VOCABULARY, 6, n=n), unrepeated_tokens(VOCABULARY, 6, n=n), None)


def test_random_heads_are_of_the_same_layers_and_not_the_chosen_ones() -> None:
    chosen = [("blocks.1.attn", 0), ("blocks.1.attn", 3), ("blocks.2.attn", 5)]
    for seed in range(50):
        drawn = causes.random_like(chosen, SITES, [], 0, np.random.default_rng(seed))
        assert Counter(site for site, _ in drawn.heads) == Counter(site for site, _ in chosen)
        assert not set(drawn.heads) & set(chosen)
        assert drawn.note == ""


def test_strong_heads_are_drawn_last() -> None:
    chosen = [("blocks.1.attn", 0), ("blocks.1.attn", 1)]
    strong = [("blocks.1.attn", head) for head in (2, 3)]
    seen = [causes.random_like(chosen, SITES, strong, 0, np.random.default_rng(seed)).heads for seed in range(50)]
    assert {head for heads in seen for _, head in heads} == {4, 5}


def test_where_a_layer_runs_out_others_fill_in_and_it_is_said() -> None:
    chosen = [("blocks.1.attn", head) for head in range(4)]
    drawn = causes.random_like(chosen, SITES, [], 0, np.random.default_rng(0))
    assert len(drawn.heads) == len(set(drawn.heads)) == 4
    assert Counter(site for site, _ in drawn.heads)["blocks.1.attn"] == 2
    assert drawn.note.startswith("2 of the heads")


def test_random_sets_differ_and_those_that_do_not_exist_are_not_made_up() -> None:
    model = interp.load(make("llama"), verify=False)
    means = {(f"blocks.{layer}.attn", head): 0.9 - 0.01 * (6 * layer + head) for layer in range(3) for head in range(6)}
    work = Workspace()
    sets = causes.head_sets(model, selection(means), Config(ablated=(1, 12), draws=10), work)
    drawn = [each.heads for each in sets if each.chosen == "random"]
    assert len(drawn) == len(set(drawn)) == 5  # one head of the five others of its layer
    assert [part["part"] for part in work.left_out] == ["ablation of 12 heads together"]


def test_the_loss_is_that_of_tokens_that_could_be_copied() -> None:
    """Against the losses of all tokens, with and without heads, taken one by one."""
    model = interp.load(make("llama"), verify=False)
    inputs_ = given()
    means = {("blocks.2.attn", 1): 0.9, ("blocks.0.attn", 4): 0.8, ("blocks.1.attn", 2): 0.1}
    config = Config(period=6, sequences=8, ablated=(1, 2), draws=1, ablated_on=3)
    table = causes.table(model, inputs_, selection(means), config, Workspace())
    zero = table[(table["ablation"] == "zero") & (table["chosen"] == "top")].set_index("n_heads")
    assert zero.loc[1, "heads"] == "L2H1"
    assert zero.loc[2, "heads"] == "L2H1 L0H4"
    tokens = inputs_.repeated.tokens[4:7]
    untouched = model.token_loss(tokens)[:, 6:].mean(1)
    for n, heads in ((1, [(2, 1)]), (2, [(2, 1), (0, 4)])):
        loss = model.token_loss(tokens, edits=[GateHeads(dict.fromkeys(heads, 0.0))])[:, 6:].mean(1)
        assert zero.loc[n, "loss"] == pytest.approx(float(loss.mean()), abs=1e-5)
        assert zero.loc[n, "loss_change"] == pytest.approx(float((loss - untouched).mean()), abs=1e-5)
        assert zero.loc[n, "n"] == 3


@pytest.mark.parametrize("family", ["llama", "gpt2", "bloom"])
def test_later_loss_with_and_without_sparing_the_other_logits(family: str) -> None:
    model = interp.load(make(family), verify=False)
    batch = pass_arguments(model, given().repeated)
    rows = torch.tensor([6, 8, 9])
    expected = model.token_loss(batch["tokens"])[:, rows].mean(1)
    torch.testing.assert_close(causes.later_loss(rows)(model, batch), expected, rtol=0, atol=1e-5)


def test_a_model_that_computes_its_own_attention_is_zeroed_only() -> None:
    model, work = interp.load(make("bloom"), verify=False), Workspace()
    means = {("blocks.1.attn", 1): 0.9, ("blocks.0.attn", 3): 0.8}
    table = causes.table(model, given(), selection(means), Config(period=6, sequences=8, ablated=(1,)), work)
    assert set(table["ablation"]) == {"zero"}
    assert "computes its own attention" in work.left_out[0]["reason"]


def test_without_scores_or_loss_nothing_is_ablated() -> None:
    work = Workspace()
    model = interp.load(make("llama"), verify=False)
    assert causes.table(model, given(), selection({}), Config(period=6), work).empty
    assert work.left_out[0]["part"] == "ablation"
    bert = interp.load(make("bert"), verify=False)
    assert causes.table(bert, given(), selection({("blocks.0.attn", 0): 0.5}), Config(period=6), Workspace()).empty
