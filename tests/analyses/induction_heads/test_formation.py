"""Losses and heads over training: a run whose checkpoints are planted, the toys, broken files, revisions."""

import json
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
import torch.nn.functional as F  # noqa: N812

import interp
from analyses.induction_heads import SCHEMAS, Config, formation, inputs, run
from interp import HookedModel
from interp.errors import UserError
from interp.flags import parse, run_flags
from interp.models.bundled import BUNDLED
from interp.models.planted import induction, plant, previous_token, uniform
from interp.models.training import checkpoint_folders
from interp.models.transformer import load_transformer, save_transformer
from interp.plugins import Analysis
from interp.results import Workspace, check_tables
from interp.statistics import mean_interval
from tests.families import make

SMALL: dict[str, Any] = {"d_vocab": 30, "n_ctx": 24}
CONFIG = Config(period=11, sequences=16, checkpoint_sequences=16)
BEFORE = plant([previous_token(writes="previous")], [uniform()], **SMALL)
AFTER = plant([previous_token(writes="previous")], [induction()], **SMALL)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A run in which the previous-token head is there at step 20 and the induction head at step 300."""
    moments = {0: plant([uniform()], [uniform()], **SMALL), 20: BEFORE, 300: AFTER}
    for step, planted in moments.items():
        save_transformer(planted.model.module, tmp_path / "mine" / "checkpoints" / f"step-{step}")  # type: ignore[arg-type]
    return tmp_path / "mine"


def control(folder: Path) -> Path:
    for step in (0, 300):
        save_transformer(plant([uniform()], **SMALL).model.module, folder.parent / "one" / f"checkpoint-{step}")  # type: ignore[arg-type]
    return folder.parent / "one"


def measured(
    model: HookedModel, work: Workspace | None = None, base: Config = CONFIG, **settings: Any
) -> tuple[pd.DataFrame, pd.DataFrame]:
    """Both tables, by name of their metrics."""
    config, work = Config(**{**vars(base), **settings}), work or Workspace()
    given = inputs.make(model, config, work)
    made = formation.tables(model, formation.trainings(model, config), given, config, work)
    for name, table in made.items():
        check_tables("induction-heads", {name: table}, {name: SCHEMAS[name]})
    return made["formation"], made["formation_heads"]


def by_step(table: pd.DataFrame, **where: Any) -> dict[int, float]:
    for column, value in where.items():
        table = table.loc[table[column] == value]
    return dict(zip(table["step"].tolist(), table["value"].tolist(), strict=True))


def test_planted_heads_are_there_from_the_step_at_which_they_were_planted(folder: Path) -> None:
    whole, heads = measured(AFTER.model, checkpoints=(str(folder), str(control(folder))))
    mine = heads.loc[~heads["is_control"]]
    prefix = by_step(mine, layer=1, head=0, metric="prefix_matching")
    chance = float(mine.loc[mine["metric"] == "prefix_matching", "chance"].iloc[0])
    assert list(prefix) == [0, 20, 300]
    assert prefix[300] == pytest.approx(1, abs=1e-3)
    assert [prefix[0], prefix[20]] == pytest.approx([chance, chance], abs=1e-3)
    previous = by_step(mine, layer=0, head=0, metric="previous_token")
    assert [previous[20], previous[300]] == pytest.approx([1, 1], abs=1e-3)
    assert previous[0] < 0.3
    other = heads.loc[heads["is_control"]]
    assert set(other["run"]) == {"one"}
    assert set(other["step"]) == {0, 300}
    assert max(other["value"]) < 0.3
    gain = by_step(whole, metric="copying_gain", run="mine")
    assert gain[300] > 3 > 0.1 > abs(gain[0])
    assert set(whole["data"]) == {"copied_segments", "repeated"}
    assert set(whole["n"]) == {16}


def test_losses_are_those_of_the_plain_model_on_the_same_tokens(folder: Path) -> None:
    """Against torch's own attention and loss, and positions counted by hand."""
    config = Config(**{**vars(CONFIG), "checkpoints": (str(folder),)})
    given = inputs.make(AFTER.model, config, Workspace())
    shown = formation._inputs(AFTER.model, given, config)
    whole, _ = measured(AFTER.model, checkpoints=(str(folder),))
    assert shown.text is not None
    for step, place in checkpoint_folders(folder).items():
        plain = load_transformer(place)
        plain.set_attn_implementation("sdpa")
        tokens = shown.text.tokens
        with torch.no_grad():
            loss = F.cross_entropy(plain(tokens).logits[:, :-1].transpose(1, 2), tokens[:, 1:], reduction="none")
        expected = mean_interval(loss.double().mean(1).numpy(), seed=config.seed)
        row = whole.loc[(whole["step"] == step) & (whole["metric"] == "loss")].iloc[0]
        assert [row["value"], row["ci_low"], row["ci_high"]] == pytest.approx(
            [float(end) for end in (expected.value, expected.low, expected.high)], abs=1e-5
        )
        # 24 tokens: late is 13, 10 before the end, and early is 1, with nothing around it
        late_minus_early = (loss[:, 12] - loss[:, 0]).double().mean()
        assert by_step(whole, metric="in_context_learning")[step] == pytest.approx(float(late_minus_early), abs=1e-5)


def test_checkpoints_are_measured_on_other_tokens_than_those_that_picked_the_heads(folder: Path) -> None:
    given = inputs.make(AFTER.model, CONFIG, Workspace())
    shown = formation._inputs(AFTER.model, given, CONFIG)
    rows = {tuple(row) for row in given.repeated.tokens.tolist()}
    assert not rows & {tuple(row) for row in shown.repeated.tokens.tolist()}
    assert torch.equal(shown.repeated.tokens[:, :11], shown.unrepeated.tokens[:, :11])


def cut_short(place: Path) -> None:
    file = place / "model.safetensors"
    file.write_bytes(file.read_bytes()[:1000])


def without_config(place: Path) -> None:
    (place / "config.json").unlink()


def with_nan(place: Path) -> None:
    model = load_transformer(place)
    with torch.no_grad():
        model.embed.weight[0, 0] = torch.nan
    save_transformer(model, place)


def with_another_vocabulary(place: Path) -> None:
    save_transformer(plant([uniform()], d_vocab=5, n_ctx=24).model.module, place)  # type: ignore[arg-type]


def garbled(place: Path) -> None:
    (place / "config.json").write_text("{")


@pytest.mark.parametrize(
    ("damage", "told"),
    [
        (cut_short, "model.safetensors"), (without_config, "config.json"), (with_nan, "NaN"), (garbled, "config.json"),
        (with_another_vocabulary, "vocabulary"),
    ],
)  # fmt: skip
def test_a_broken_checkpoint_is_named_and_the_others_are_used(
    folder: Path, damage: Callable[[Path], None], told: str
) -> None:
    damage(folder / "checkpoints" / "step-20")
    work = Workspace()
    whole, heads = measured(AFTER.model, work, checkpoints=(str(folder),))
    assert set(heads["step"]) == {0, 300}
    row = whole.loc[whole["step"] == 20]
    assert len(row) == 1
    assert row["checkpoint"].item() == "step-20"
    assert row["note"].item().startswith("not read: ")
    assert told in row["note"].item()
    assert any(part["part"] == "checkpoint step-20 of mine" and told in part["reason"] for part in work.left_out)


def test_where_all_are_broken_the_run_fails_and_says_why(folder: Path) -> None:
    for place in checkpoint_folders(folder).values():
        cut_short(place)
    with pytest.raises(
        UserError, match=r"none of the 3 checkpoints of mine can be read; the first, step-0: .*safetens"
    ):
        measured(AFTER.model, checkpoints=(str(folder),))


def test_what_is_no_run_is_refused_at_once(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="planted brings no checkpoints along: give --checkpoints the folder"):
        formation.trainings(AFTER.model, Config(checkpoints=()))
    with pytest.raises(UserError, match="holds no checkpoints"):
        formation.trainings(AFTER.model, Config(checkpoints=(str(tmp_path),)))
    with pytest.raises(UserError, match="tiny-2l is on this machine"):
        formation.trainings(interp.load("tiny-2l"), Config(revisions="step0"))
    with pytest.raises(ValueError, match="give one of them"):
        Config(checkpoints=(), revisions="a")
    with pytest.raises(ValueError, match="at least one revision"):
        Config(revisions=" , ")
    with pytest.raises(ValueError, match="checkpoint_sequences must be at least 2"):
        Config(checkpoint_sequences=1)


def test_without_the_flag_nothing_is_followed() -> None:
    assert formation.trainings(AFTER.model, Config()) == []
    whole, heads = measured(AFTER.model)
    assert len(whole) == len(heads) == 0


def test_a_folder_brings_its_own_checkpoints(folder: Path) -> None:
    save_transformer(AFTER.model.module, folder)  # type: ignore[arg-type]
    model = interp.load(str(folder))
    (training,) = formation.trainings(model, Config(checkpoints=()))
    assert (training.name, [moment.step for moment in training.moments]) == ("mine", [0, 20, 300])


def test_an_interrupted_run_goes_on_where_it_was(folder: Path, tmp_path: Path) -> None:
    cut_short(folder / "checkpoints" / "step-20")
    settings: dict[str, Any] = {"checkpoints": (str(folder),)}
    first = Workspace(tmp_path / "steps")
    whole, heads = measured(AFTER.model, first, **settings)
    for place in checkpoint_folders(folder).values():
        cut_short(place)
    again = Workspace(tmp_path / "steps")
    for before, after in zip((whole, heads), measured(AFTER.model, again, **settings), strict=True):
        pd.testing.assert_frame_equal(before, after)
    assert again.left_out == first.left_out


def test_revisions_of_a_hub_model(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What the hub's cache would hold: a folder for each revision; one of them does not exist."""
    import httpx
    import huggingface_hub

    for seed, revision in enumerate(("step0", "step1000", "main")):
        make("llama", seed=seed).float().save_pretrained(tmp_path / revision)

    def snapshot(name: str, revision: str | None, **_: Any) -> str:
        if not (tmp_path / (revision or "main")).exists():
            response = httpx.Response(404, request=httpx.Request("GET", "https://huggingface.co"))
            raise huggingface_hub.errors.RevisionNotFoundError("refused", response=response)
        return str(tmp_path / (revision or "main"))

    monkeypatch.setattr(huggingface_hub, "snapshot_download", snapshot)
    model, work = interp.load("someone/llama"), Workspace()
    whole, heads = measured(model, work, revisions="step1000,step0,step512")
    assert whole.loc[whole["metric"] == "loss", ["step", "checkpoint"]].to_numpy().tolist() == [
        [0, "step0"], [512, "step512"], [1000, "step1000"],
    ]  # fmt: skip
    assert "no revision 'step512'" in whole.loc[whole["step"] == 512, "note"].item()
    assert [part["part"] for part in work.left_out][-1] == "checkpoint step512 of someone/llama"
    scores = {step: rows["value"].to_numpy() for step, rows in heads.groupby("step")}
    assert set(scores) == {0, 1000}
    assert np.abs(scores[0] - scores[1000]).max() > 0.01


@pytest.mark.parametrize(
    ("revisions", "steps"),
    [
        (["step0", "step1000"], [0, 1000]),
        (["early", "late"], [0, 1]),
        (["step7", "main"], [0, 1]),
        (["a1", "b1"], [0, 1]),
    ],
)
def test_steps_are_the_numbers_in_names_where_each_has_its_own(revisions: list[str], steps: list[int]) -> None:
    assert list(formation._steps(revisions).values()) == steps


@pytest.mark.parametrize(
    ("typed", "expected"),
    [
        ([], None),
        (["--checkpoints"], ()),
        (["--checkpoints", "a", "b"], ("a", "b")),
        (["--checkpoints", "--seed", "3"], ()),
    ],
)
def test_the_flag_takes_folders_or_none(typed: list[str], expected: tuple[str, ...] | None) -> None:
    from analyses import induction_heads

    flags: Any = parse(run_flags(Analysis("x", induction_heads), positional=True), ["tiny-2l", *typed], prog="interp")
    assert flags.config.checkpoints == expected


# The toys -------------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def toys() -> tuple[pd.DataFrame, pd.DataFrame]:
    return measured(interp.load("tiny-2l"), base=Config(), checkpoints=())


def strongest(heads: pd.DataFrame, metric: str) -> tuple[str, dict[int, float]]:
    """The head that is highest in the end, followed through all checkpoints."""
    rows = heads.loc[(heads["metric"] == metric) & ~heads["is_control"]]
    best = rows.loc[rows.loc[rows["step"] == max(rows["step"]), "value"].idxmax()]
    return f"L{best['layer']}", by_step(rows, layer=best["layer"], head=best["head"])


def steepest(values: dict[int, float]) -> int:
    """The step at whose end a metric has changed most since the checkpoint before."""
    return max(pairwise(values), key=lambda pair: abs(values[pair[1]] - values[pair[0]]))[1]


def test_the_toys_heads_form_together_with_in_context_learning(toys: tuple[pd.DataFrame, pd.DataFrame]) -> None:
    whole, heads = toys
    (layer_i, prefix), (layer_p, previous) = (strongest(heads, m) for m in ("prefix_matching", "previous_token"))
    assert (layer_i, layer_p) == ("L1", "L0")
    learning = by_step(whole, metric="in_context_learning", run="tiny-2l")
    for values in (prefix, previous):
        assert len(values) == 21
        assert values[5000] > 0.6
        assert max(value for step, value in values.items() if step <= 600) < 0.25
    assert abs(learning[0]) < 0.2
    assert learning[5000] < -1.2
    assert sum(0.2 < value < 0.8 for value in prefix.values()) >= 3  # checkpoints amid the change
    moments = [steepest(values) for values in (prefix, previous, learning)]
    assert max(moments) - min(moments) <= 200


def test_one_layer_forms_neither(toys: tuple[pd.DataFrame, pd.DataFrame]) -> None:
    whole, heads = toys
    flat = heads.loc[heads["is_control"]]
    assert set(flat["run"]) == {"tiny-1l"}
    assert max(flat["value"]) < 0.3
    assert min(by_step(whole, metric="in_context_learning", run="tiny-1l").values()) > -0.5
    later = {name: by_step(whole, metric="loss_later_copies", run=name) for name in ("tiny-2l", "tiny-1l")}
    assert min(later["tiny-2l"].values()) < 0.2 < 2.5 < min(later["tiny-1l"].values())
    assert set(later["tiny-1l"]) <= set(later["tiny-2l"])


def test_the_whole_analysis_follows_a_run(folder: Path) -> None:
    work = Workspace()
    config = Config(**{**vars(CONFIG), "checkpoints": (str(folder),), "ablated": (1,), "draws": 1, "reach": 16})
    result = run(AFTER.model, config, work)
    check_tables("induction-heads", result.tables, SCHEMAS)
    assert set(result.tables["formation"]["step"]) == {0, 20, 300}


@pytest.mark.parametrize("name", ["tiny-2l", "tiny-1l"])
def test_what_the_toys_were_trained_on_is_measured_on_nowhere(name: str) -> None:
    described = json.loads((BUNDLED[name].place() / "training.json").read_text())
    assert described["weights_seed"] < formation._SEED
