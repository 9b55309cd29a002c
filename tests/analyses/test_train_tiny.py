"""The toys that come along load and are small, and the script that made them makes them again."""

from pathlib import Path

import pandas as pd
import pytest
import torch

import interp
from analyses import induction_heads
from analyses.train_tiny import TOYS, Config, main, train_toy
from interp.errors import UserError
from interp.models.bundled import BUNDLED
from interp.models.training import checkpoint_folders
from interp.results import Workspace


@pytest.mark.parametrize("name", TOYS)
def test_the_toys_load_by_name_and_folder(name: str) -> None:
    model = interp.load(name)
    assert model.info["name"] == name
    assert model.info["verify"]["compared_with"] == "sdpa"
    assert (model.n_ctx, model.d_vocab, model.is_causal) == (64, 128, True)
    assert model.config == TOYS[name]
    assert model.dtype is torch.float32
    last = list(checkpoint_folders(BUNDLED[name].place()).values())[-1]
    again = interp.load(str(last))
    tokens = torch.arange(40)[None]
    # the last checkpoint holds the model's weights in 16 bit
    difference = (model.token_loss(tokens) - again.token_loss(tokens)).abs().max()
    assert 0 < float(difference) < 0.1
    assert model.info["weights_sha256"] != again.info["weights_sha256"]


def test_the_toys_are_small() -> None:
    folders = [BUNDLED[name].place() for name in TOYS]
    assert sum(file.stat().st_size for folder in folders for file in folder.rglob("*") if file.is_file()) < 4_000_000


def test_the_script_trains_saves_and_tells(tmp_path: Path) -> None:
    told: list[str] = []
    main(Config(out=tmp_path, steps=2), told.append)
    for name in TOYS:
        assert list(checkpoint_folders(tmp_path / name)) == [0, 2]
        assert interp.load(str(tmp_path / name)).config == TOYS[name]
        assert len(pd.read_csv(tmp_path / name / "training.csv")) == 2
        assert not (tmp_path / name / "resume.pt").exists()
    folders = [str(tmp_path / name) for name in ("tiny-2l", "tiny-1l")]
    assert told == [f"interp run induction-heads {folders[0]} --checkpoints {' '.join(folders)}"]
    config = induction_heads.Config(checkpoints=tuple(folders))
    followed = induction_heads.formation.trainings(interp.load(folders[0]), config)
    assert [(run.name, run.is_control, len(run.moments)) for run in followed] == [
        ("tiny-2l", False, 2), ("tiny-1l", True, 2),
    ]  # fmt: skip
    with pytest.raises(UserError, match="holds a model"):
        main(Config(out=tmp_path, steps=2), told.append)


def test_the_same_seed_makes_the_same_model_and_another_seed_another(tmp_path: Path) -> None:
    weights = []
    for number, seed in enumerate((5, 5, 6)):
        folder = train_toy("tiny-1l", Config(out=tmp_path / str(number), steps=3, seed=seed))
        weights.append((folder / "model.safetensors").read_bytes())
    assert weights[0] == weights[1] != weights[2]


def test_settings_that_make_no_sense_are_refused() -> None:
    with pytest.raises(ValueError, match="seed must lie in"):
        Config(seed=-1)
    with pytest.raises(ValueError, match="steps must be at least 1"):
        Config(steps=0)


@pytest.mark.long
@pytest.mark.parametrize("seed", [0, 2])
def test_another_seed_gives_the_same_verdicts(seed: int, tmp_path: Path) -> None:
    """Two layers: an induction head and a previous-token head, both above 0.6 and called. One layer: neither."""
    kinds = ("induction", "previous_token")
    for name, forms in (("tiny-2l", True), ("tiny-1l", False)):
        folder = train_toy(name, Config(out=tmp_path, seed=seed))
        config = induction_heads.Config(checkpoints=(str(folder),))
        result = induction_heads.run(interp.load(str(folder)), config, Workspace())
        verdicts = result.tables["kinds"]
        for kind in kinds:
            rows = verdicts.loc[verdicts["kind"] == kind]
            assert (max(rows["value"]) > 0.6) is forms
            assert bool(rows["called"].any()) is forms
        heads = result.tables["formation_heads"]
        first, last = (heads.loc[heads["step"] == step, ["metric", "value"]] for step in (0, 5000))
        assert max(first["value"]) < 0.2
        assert bool((last.groupby("metric")["value"].max() > 0.6).all()) is forms
