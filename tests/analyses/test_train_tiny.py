"""The toys that come along have what they are there for, and the script that made them makes them again."""

from itertools import pairwise
from pathlib import Path

import pandas as pd
import pytest
import torch

import interp
from analyses.train_tiny import TOYS, Config, formation, main, strongest, train_toy
from interp.errors import UserError
from interp.models.bundled import BUNDLED
from interp.models.training import checkpoint_folders

METRICS = ("prefix_matching", "previous_token")


@pytest.fixture(scope="module")
def found() -> dict[str, pd.DataFrame]:
    return {name: formation(BUNDLED[name].place()) for name in TOYS}


def of_model(found: pd.DataFrame, metric: str) -> dict[int, float]:
    """A metric of the model by step."""
    rows = found.query("metric == @metric")
    return dict(zip(rows["step"].tolist(), rows["value"].tolist(), strict=True))


def of_strongest(found: pd.DataFrame, metric: str) -> dict[int, float]:
    """A metric of its strongest head by step."""
    rows = strongest(found, metric)
    return dict(zip(rows["step"].tolist(), rows["value"].tolist(), strict=True))


def steepest(values: dict[int, float]) -> int:
    """The step at whose end a metric has changed most since the checkpoint before."""
    steps = list(values)
    return max(pairwise(steps), key=lambda pair: abs(values[pair[1]] - values[pair[0]]))[1]


def test_the_toy_has_an_induction_head_and_a_previous_token_head(found: dict[str, pd.DataFrame]) -> None:
    for metric in METRICS:
        assert of_strongest(found["tiny-2l"], metric)[5000] > 0.6
    assert strongest(found["tiny-2l"], "prefix_matching")["name"].iloc[0].startswith("L1")
    assert strongest(found["tiny-2l"], "previous_token")["name"].iloc[0].startswith("L0")


def test_its_checkpoints_show_both_heads_forming_together_with_in_context_learning(
    found: dict[str, pd.DataFrame],
) -> None:
    toy = found["tiny-2l"]
    heads = {metric: of_strongest(toy, metric) for metric in METRICS}
    for values in heads.values():
        assert len(values) == 21
        assert max(value for step, value in values.items() if step <= 600) < 0.25
    learning = of_model(toy, "in_context_learning")
    assert abs(learning[0]) < 0.1
    assert learning[5000] < -1.2
    assert sum(0.2 < value < 0.8 for value in heads["prefix_matching"].values()) >= 3  # checkpoints amid the change
    moments = [steepest(values) for values in (*heads.values(), learning)]
    assert max(moments) - min(moments) <= 200


def test_one_layer_forms_neither(found: dict[str, pd.DataFrame]) -> None:
    control = found["tiny-1l"].query("layer >= 0")
    assert max(control["value"].tolist()) < 0.3
    assert min(of_model(found["tiny-1l"], "copy_loss").values()) > 3.5
    assert min(of_model(found["tiny-2l"], "copy_loss").values()) < 1.0
    assert set(found["tiny-1l"]["step"]) <= set(found["tiny-2l"]["step"])


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
    assert sum("heads above 0.6: none" in line for line in told) == 2
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
    for name, formed in (("tiny-2l", True), ("tiny-1l", False)):
        made = formation(train_toy(name, Config(out=tmp_path, seed=seed)))
        for metric in METRICS:
            head = of_strongest(made, metric)
            assert (head[5000] > 0.6) is formed
            assert head[0] < 0.2
