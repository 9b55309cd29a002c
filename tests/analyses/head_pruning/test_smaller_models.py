"""What pruned models cost against closed forms, and small models from scratch against what they must be."""

import re
from dataclasses import replace
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch

import interp
from analyses.head_pruning import Config, cost, curves, from_scratch, metrics, train_few_heads
from analyses.head_pruning.inputs import make as make_inputs
from analyses.head_pruning.schemas import SCHEMAS
from interp.errors import UserError
from interp.models.planted import plant, twins
from interp.results import Workspace
from interp.results.schemas import check_tables
from tests.families import make

FULL = Config(budget="full", scratch_seeds=2, scratch_steps=8, length=12)


def order_of(model: interp.HookedModel) -> pd.DataFrame:
    """All heads, in the order of execution."""
    rows = [(site.name, site.layer, head) for site in model.sites for head in range(site.n_heads)]
    table = pd.DataFrame(rows, columns=pd.Index(["site", "layer", "head"]))
    return table.assign(site_kind="self", order="importance", draw=0, rank=range(len(table)))


def test_counts_are_those_of_the_weights() -> None:
    model = interp.load(make("llama"), verify=False)
    order = order_of(model)  # the last layer goes first: the first one's cache must keep a head
    table = cost.table(model, order.assign(rank=order["rank"].to_numpy()[::-1]), Config(), Workspace())
    check_tables("head-pruning", {"cost": table}, {"cost": SCHEMAS["cost"]})
    site = model.sites[0]
    d_model = model.config.hidden_size
    whole = sum(p.numel() for p in model.module.parameters())
    groups = site.n_heads // site.n_kv_heads
    mine: Any = table.pivot(index="n_pruned", columns="quantity", values="value")
    for n_pruned, row in mine.iterrows():
        kv_gone = sum(
            min(max(int(n_pruned) - i * site.n_heads, 0), site.n_heads) // groups for i in range(len(model.sites))
        )
        assert row["parameters"] == whole - 2 * d_model * site.d_head * (int(n_pruned) + kv_gone)
        kv_heads = sum(site.n_kv_heads for site in model.sites) - kv_gone
        assert row["KV cache"] == 2 * 4 * site.d_head * kv_heads
    assert (np.diff(mine["FLOPs"]) < 0).all()
    assert set(table.loc[table["n_pruned"] == 0, "ratio"]) == {1.0}


def test_time_is_measured_in_full_only() -> None:
    model = plant(*twins(), gain=8.0).model
    work = Workspace()
    report = cost.table(model, order_of(model), Config(), work)
    assert "seconds" not in set(report["unit"])
    assert [part["part"] for part in work.left_out] == ["time of pruned models"]
    full = cost.table(model, order_of(model), replace(FULL), Workspace())
    timed = full.loc[full["unit"] == "seconds"]
    assert {"prompt", "prompt, masked"} <= set(timed["quantity"])
    assert set(timed["n"]) == {cost.ROUNDS}
    for row in timed.to_dict("records"):
        assert row["ci_low"] <= row["ratio"] <= row["ci_high"]


def test_a_model_that_cannot_be_cut_is_said_to_be(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: Any) -> Any:
        raise UserError("no such projections")

    monkeypatch.setattr(cost, "prune", refuse)
    model, work = plant(*twins(), gain=8.0).model, Workspace()
    table = cost.table(model, order_of(model), Config(), work)
    assert set(table["n_pruned"]) == {0}
    assert {part["reason"] for part in work.left_out} == {"no such projections", "budget is report"}


# Curves ---------------------------------------------------------------------------------------------------------------


def test_an_interrupted_curve_is_gone_on_with(tmp_path: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    model = plant(*twins(), gain=8.0).model
    config = Config(length=12, sequences=6)
    data = make_inputs(model, config, Workspace()).first
    order = pd.concat([order_of(model), order_of(model).assign(order="random", rank=[3, 1, 2, 0])])
    whole = curves.measured(model, data, order, config, Workspace())
    seen, own = [], metrics.values_under

    def stopped(*given: Any) -> Any:
        seen.append(given)
        if len(seen) > 6:
            raise KeyboardInterrupt
        return own(*given)

    monkeypatch.setattr(metrics, "values_under", stopped)
    with pytest.raises(KeyboardInterrupt):
        curves.measured(model, data, order, config, Workspace(tmp_path / "steps"))
    assert sorted(p.name for p in (tmp_path / "steps").iterdir()) == ["curve-ends", "curve-importance-0"]
    seen.clear()
    again = curves.measured(model, data, order, config, Workspace(tmp_path / "steps"))
    assert len(seen) == 3
    pd.testing.assert_frame_equal(again, whole, check_dtype=False)


# From scratch ---------------------------------------------------------------------------------------------------------


def test_all_models_are_there_and_differences_are_paired_by_seed() -> None:
    table = from_scratch.table(FULL, Workspace())
    check_tables("head-pruning", {"from_scratch": table}, {"from_scratch": SCHEMAS["from_scratch"]})
    assert len(table) == len(from_scratch.DROPOUTS) * (3 * len(from_scratch.FEWER) + 1)
    losses = pd.concat([from_scratch.of_seed(seed, FULL) for seed in (0, 1)])
    each: Any = losses.pivot(index="seed", columns=["model", "n_heads", "dropout"], values="loss")
    row = table[(table["model"] == "pruned") & (table["n_heads"] == 2) & (table["dropout"] == 0.2)].iloc[0]
    expected = (each["pruned", 2, 0.2] - each["scratch", 2, 0.2]).mean()
    assert row["change"] == pytest.approx(expected)
    assert row["n"] == 2


def test_tokens_can_be_told_from_the_period_and_the_held_out_ones_are_new() -> None:
    tokens = from_scratch._tokens(40, 3, 0)
    _, targets = from_scratch._with_targets(tokens)
    for row, wanted in zip(tokens, targets, strict=True):
        period = next(p for p in range(6, 17) if torch.equal(row[p:], row[:-p]))
        told = (wanted != -100).nonzero()[:, 0]
        assert told.tolist() == list(range(16, 31))
        assert torch.equal(wanted[told], row[told + 1 - period])
    assert not {tuple(r.tolist()) for r in tokens} & {tuple(r.tolist()) for r in from_scratch._tokens(40, 3, 3)}


def test_head_dropout_leaves_whole_heads_out_while_training_alone() -> None:
    model = from_scratch._new(4, seed=0)
    attention: Any = model.blocks[0].attn
    given: list[torch.Tensor] = []
    z = torch.ones(2000, 3, 4 * attention.d_head)
    with from_scratch.head_dropout(model, 0.25, seed=0):
        attention.o_proj.register_forward_pre_hook(lambda _, args: given.append(args[0]))
        model.train()
        attention.o_proj(z)
        model.eval()
        attention.o_proj(z)
    by_head = given[0].view(2000, 3, 4, -1)
    assert by_head.unique().tolist() == pytest.approx([0.0, 4 / 3])
    assert (by_head == by_head[:, :1, :, :1]).all()
    assert float((by_head[:, 0, :, 0] == 0).float().mean()) == pytest.approx(0.25, abs=0.02)
    assert torch.equal(given[1], z)


def test_the_command_keeps_each_seed_and_prints_the_table(tmp_path: Any, monkeypatch: Any, capsys: Any) -> None:
    config = train_few_heads.Config(seeds=2, steps=8, out=tmp_path)
    train_few_heads.main(config)
    said = capsys.readouterr()
    assert re.fullmatch(r"seed 0 is finished; 1 to come, about \d+ min\nseed 1 is finished; 0 to come, about 0 min\n",
                        said.err)  # fmt: skip
    expected = from_scratch.table(replace(FULL, scratch_steps=8), Workspace())
    pd.testing.assert_frame_equal(pd.read_csv(tmp_path / "from_scratch.csv"), expected, check_dtype=False)
    lines = said.out.splitlines()
    assert len(lines) == 2 + len(expected)
    row = expected[expected["model"] == "pruned"].iloc[0]
    assert f"{row['change']:+.3f}".replace("-", "−") in next(line for line in lines if "| pruned |" in line)

    def no_training(*_: Any) -> Any:
        raise AssertionError("it was there")

    monkeypatch.setattr(from_scratch, "of_seed", no_training)
    train_few_heads.main(config)
    again = capsys.readouterr()
    assert again.out == said.out
    assert again.err == ""
    with pytest.raises(UserError, match="--seeds must be at least 2"):
        train_few_heads.main(replace(config, seeds=1))
    (tmp_path / "taken").touch()
    with pytest.raises(UserError, match="taken is a file"):
        train_few_heads.main(replace(config, out=tmp_path / "taken"))


def test_the_report_says_that_nothing_was_trained() -> None:
    work = Workspace()
    assert from_scratch.table(Config(), work).empty
    assert len(work.left_out) == 1
