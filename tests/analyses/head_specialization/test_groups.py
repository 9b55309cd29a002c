"""Groups of heads: planted ones are found, with the number, the stability and the places that they were given."""

import math
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from scipy.spatial.distance import pdist, squareform
from sklearn.metrics import adjusted_rand_score, silhouette_score

from analyses.head_specialization import clustering, comparing, groups
from analyses.head_specialization.comparing import Compared
from analyses.head_specialization.config import Config
from analyses.head_specialization.schemas import SCHEMAS
from interp.attention import head_divergences
from interp.results import Workspace
from tests import families

SIZES = (9, 6, 4)
PLANTED = np.repeat([0, 1, 2], SIZES)


def compared(
    within: float = 0.05, between: float = 0.5, noise: float = 0.01, n: int = 20, without: float | None = None
) -> Compared:
    """Heads in three planted groups, in an order that is not theirs."""
    random = np.random.default_rng(0)
    n_heads = sum(SIZES)
    first, second = pairs = np.stack(np.triu_indices(n_heads, 1))
    same = PLANTED[first] == PLANTED[second]
    whole = np.where(same, within, between) + random.normal(0, noise, (n, len(first)))
    whole = np.clip(whole, 0, math.log(2)).astype(np.float32)
    other = whole if without is None else np.full_like(whole, without)
    heads = tuple((f"blocks.{i // 5}.attn", i // 5, i % 5) for i in range(n_heads))
    return Compared("", heads, pairs, whole, other)


def grouped(given: Compared, units: NDArray[np.int64] | None = None) -> dict[str, Any]:
    return groups.grouped(given, units, 0, Workspace())


def test_planted_groups_are_found() -> None:
    found = grouped(compared())
    table, cuts = found["groups"], found["clusterings"]
    assert adjusted_rand_score(PLANTED, table["cluster"]) == 1
    assert table["cluster"].value_counts().sort_index().tolist() == list(SIZES), "the largest comes first"
    assert (table["stability"] == 1).all()
    assert cuts.loc[cuts["chosen"], "clusters"].tolist() == [3]
    assert cuts["clusters"].tolist() == list(range(2, 13))
    chosen = cuts.loc[cuts["chosen"]].iloc[0]
    assert chosen["stability"] == 1
    assert chosen["silhouette"] == cuts["silhouette"].max() == pytest.approx(table["silhouette"].mean())
    assert table.groupby("cluster")["medoid"].sum().tolist() == [1, 1, 1]
    distance = np.sqrt(compared().square(compared().whole.astype(float).mean(0)))
    assert chosen["silhouette"] == pytest.approx(silhouette_score(distance, PLANTED, metric="precomputed"))


def test_groups_that_are_only_noise_are_said_to_be_unstable() -> None:
    random = np.random.default_rng(1)
    given = compared()
    noise = random.uniform(0.2, 0.4, given.whole.shape).astype(np.float32)
    cuts = grouped(replace(given, whole=noise))["clusterings"]
    assert cuts["stability"].max() < 0.5
    assert (cuts["ci_low"] <= cuts["stability"]).all()
    assert (cuts["stability"] <= cuts["ci_high"]).all()


def test_windows_of_one_document_are_one_unit() -> None:
    """One long document says something else than 19 short ones; each counts once."""
    given = compared(noise=0.0)
    odd = np.full((60, given.whole.shape[1]), 0.6, dtype=np.float32)
    many = replace(given, whole=np.concatenate([given.whole, odd]), without_sink=np.concatenate([given.whole, odd]))
    units = np.concatenate([np.arange(20), np.full(60, 99)])
    table: Any = groups.divergences(many, units, seed=0)
    assert (table["n"] == 21).all()
    first = table.iloc[0]
    assert first["jsd"] == pytest.approx((20 * 0.05 + 0.6) / 21, abs=1e-6)
    assert first["ci_low"] < first["jsd"] < first["ci_high"]
    assert adjusted_rand_score(PLANTED, grouped(many, units)["groups"]["cluster"]) == 1


def test_the_embedding_keeps_distances_that_fit_a_plane() -> None:
    places = np.random.default_rng(0).uniform(0, 0.2, (15, 2)) * [1.0, 0.4]
    apart = squareform(pdist(places))
    found, stress = clustering.embedding(apart, seed=0)
    assert stress < 1e-3
    np.testing.assert_allclose(squareform(pdist(found)), apart, atol=2e-4)
    assert found[:, 0].var() > found[:, 1].var()
    again, _ = clustering.embedding(apart, seed=1)
    np.testing.assert_array_equal(found, again)


@pytest.mark.parametrize("n_heads", [2, 3, 6])
def test_heads_at_one_place_make_one_group(n_heads: int) -> None:
    pairs = np.stack(np.triu_indices(n_heads, 1))
    nothing = np.zeros((4, pairs.shape[1]), dtype=np.float32)
    heads = tuple(("blocks.0.attn", 0, head) for head in range(n_heads))
    found = grouped(Compared("", heads, pairs, nothing, nothing))
    assert (found["groups"]["cluster"] == 0).all()
    assert (found["groups"][["x", "y"]] == 0).all(axis=None)
    assert found["clusterings"].empty


def test_a_head_without_rows_is_left_out_and_named() -> None:
    given = compared()
    whole = given.whole.copy()
    whole[:, (given.pairs == 4).any(0)] = np.nan
    work = Workspace()
    table = groups.grouped(replace(given, whole=whole), None, 0, work)["groups"]
    assert len(table) == sum(SIZES) - 1
    assert work.left_out == [
        {"part": "1 of 19 heads from the groups", "reason": "they have no row in common with the others"}
    ]  # fmt: skip


def test_redundant_heads_are_below_the_threshold_with_and_without_the_sink() -> None:
    config = Config(redundant_divergence=0.1)
    table: Any = groups.redundant(compared(), None, config)
    assert table["called"].all()
    assert len(table) == sum(SIZES)
    assert (table["value"] < 0.06).all()
    for row in table.to_dict("records"):
        partner = next(i for i, (_, layer, head) in enumerate(compared().heads) if f"L{layer}H{head}" == row["detail"])
        own = compared().heads.index((row["site"], row["layer"], row["head"]))
        assert PLANTED[partner] == PLANTED[own]
    apart: Any = groups.redundant(compared(without=0.4), None, config)
    assert not apart["called"].any(), "both on the sink, but different without it"
    assert apart["value"].tolist() == pytest.approx([0.4] * len(apart))
    near: Any = groups.redundant(compared(within=0.099, noise=0.05), None, config)
    assert not near["called"].any()


def test_a_partner_found_on_one_half_is_judged_on_the_other() -> None:
    """Every pair is noise: the smallest of many, where it was found, is smaller than it is."""
    random = np.random.default_rng(3)
    given = compared()
    noise = random.beta(2, 20, given.whole.shape).astype(np.float32)
    table: Any = groups.redundant(replace(given, whole=noise, without_sink=noise), None, Config())
    smallest = given.square(noise.mean(0).astype(float))
    np.fill_diagonal(smallest, np.inf)
    assert table["value"].mean() == pytest.approx(2 / 22, abs=0.01)
    assert smallest.min(1).mean() < 0.075


@pytest.mark.parametrize("family", ["gpt2", "bert", "t5"])
def test_comparing_a_model_gives_what_the_core_gives(family: str) -> None:
    model = families.load(families.make(family))
    passes = [families.example(family, 2, 13, seed) for seed in (1, 2)]
    work = Workspace()
    found = comparing.compare(model, passes, None, 0, work)
    stacks = {"t5": ["encoder", "decoder", "decoder cross"]}.get(family, [""])
    assert [each.stack for each in found] == stacks
    for each in found:
        assert each.whole.shape == (4, len(each.heads) * (len(each.heads) - 1) // 2)
        names = list(dict.fromkeys(site for site, _, _ in each.heads))
        traces = model.run(**passes[1], keep="qk").traces
        first = torch.zeros(1, traces[names[0]].key.shape[2], dtype=torch.bool)
        first[:, 0] = True
        for values, without in ((each.whole, None), (each.without_sink, first)):
            expected = head_divergences(traces, names, without=without).values[1].numpy()
            np.testing.assert_allclose(each.square(values[3].astype(float)), expected, atol=1e-6)


def test_two_heads_with_the_same_weights_are_redundant() -> None:
    module = families.make("gpt2")
    width = 8
    with torch.no_grad():
        for projection in (module.transformer.h[1].attn.c_attn,):
            for part in (0, 48):  # query, key
                projection.weight[:, part + 2 * width : part + 3 * width] = projection.weight[:, part : part + width]
                projection.bias[part + 2 * width : part + 3 * width] = projection.bias[part : part + width]
    model = families.load(module)
    passes = [{"tokens": families.tokens(4, 24, seed)} for seed in range(6)]
    made: dict[str, Any] = groups.tables(model, passes, None, Config(), Workspace())
    for name in ("divergences", "groups", "clusterings"):
        SCHEMAS[name].validate(made[name])
    calls = made["redundant"].loc[made["redundant"]["called"]]
    assert list(zip(calls["layer"], calls["head"], calls["detail"], strict=True)) == [(1, 0, "L1H2"), (1, 2, "L1H0")]
    table = made["divergences"]
    assert len(table) == 18 * 17 // 2
    pair = table.loc[
        (table["layer_a"] == 1) & (table["head_a"] == 0) & (table["layer_b"] == 1) & (table["head_b"] == 2)
    ]
    assert float(pair["jsd"].iloc[0]) < 1e-6
    assert (table["n"] == 24).all()


def test_rows_are_drawn_where_there_are_more_than_asked_for() -> None:
    model = families.load(families.make("gpt2"))
    passes = [{"tokens": families.tokens(2, 60, seed)} for seed in range(8)]
    whole, drawn = (comparing.compare(model, passes, rows, 0, Workspace())[0].whole for rows in (None, 15))
    again = comparing.compare(model, passes, 15, 0, Workspace())[0].whole
    np.testing.assert_array_equal(drawn, again)
    assert np.abs(whole - drawn).max() > 1e-3
    np.testing.assert_allclose(whole.mean(), drawn.mean(), atol=0.01)


def test_a_model_that_computes_its_own_attention_is_left_out_with_the_reason() -> None:
    model = families.load(families.make("bloom"))
    work = Workspace()
    made: dict[str, Any] = groups.tables(model, [families.example("bloom")], None, Config(), work)
    assert all(table.empty for table in made.values())
    for name in ("divergences", "groups", "clusterings"):
        SCHEMAS[name].validate(made[name])
    assert "its queries and keys are not in reach" in work.left_out[0]["reason"]
    assert set(made) == {"divergences", "groups", "clusterings", "redundant"}


def test_special_tokens_count_as_sinks(minilm: Any) -> None:
    batch = minilm.tokenizer(["A lamp.", "Two lamps burned."], padding=True, return_tensors="pt")
    taken = comparing.taken_out(minilm, batch["input_ids"], batch["attention_mask"].bool())
    texts = [
        minilm.tokenizer.convert_ids_to_tokens(ids[mask]) for ids, mask in zip(batch["input_ids"], taken, strict=True)
    ]
    assert texts == [["[CLS]", "[SEP]"], ["[CLS]", "[SEP]"]]


def test_a_cluster_that_falls_apart_in_resamples_is_less_well_recovered() -> None:
    labels, other = np.array([0, 0, 0, 1, 1]), np.array([5, 5, 5, 2, 7])
    recovered = clustering._recovered(labels, [labels, other])
    assert recovered.tolist() == [1, 1, 1, 0.75, 0.75], "of two heads one is left: a Jaccard similarity of a half"
