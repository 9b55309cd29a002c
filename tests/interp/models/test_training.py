"""The training loop against closed forms, torch's own optimiser, and itself interrupted."""

import math
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from torch import Tensor, nn
from torch.testing import assert_close

from interp.errors import UserError
from interp.models.training import DivergedError, TrainingConfig, checkpoint_folders, loss_of, train
from interp.models.transformer import Transformer, TransformerOutput, load_transformer
from interp.models.transformer.mlp import balance_loss
from tests.interp.models.transformer.small import D_VOCAB, config, small


def batch(step: int) -> Tensor:
    """Random tokens, each of which is followed by the one after it in the vocabulary."""
    first = torch.randint(D_VOCAB, (8, 1), generator=torch.Generator().manual_seed(step))
    return (first + torch.arange(10)) % D_VOCAB


def model(kind: str = "rotary", **changed: Any) -> Transformer:
    made = Transformer(config(kind, **changed))
    made.set_attn_implementation("sdpa")
    return made


class Dropping(nn.Module):
    """A model that draws random numbers while it is trained."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.layers = nn.Sequential(nn.Embedding(D_VOCAB, 8), nn.Dropout(0.5), nn.Linear(8, D_VOCAB))

    def forward(self, tokens: Tensor) -> TransformerOutput:
        return TransformerOutput(self.layers(tokens))


def test_a_task_is_learned() -> None:
    history = train(model(), batch, TrainingConfig(steps=150, learning_rate=1e-2, warmup=10))
    assert history["loss"].iloc[0] > 2.5
    assert history["loss"].iloc[-1] < 0.05
    assert history["step"].tolist() == list(range(1, 151))


def test_the_learning_rate_rises_linearly_and_falls_along_a_cosine() -> None:
    settings = TrainingConfig(steps=50, horizon=110, warmup=10, learning_rate=0.5, final_share=0.2)
    assert [settings.rate(step) for step in range(10)] == pytest.approx([0.05 * (step + 1) for step in range(10)])
    assert settings.rate(10) == pytest.approx(0.5)
    assert settings.rate(60) == pytest.approx(0.5 * 0.6)
    assert settings.rate(110) == settings.rate(999) == pytest.approx(0.1)
    history = train(model(), batch, TrainingConfig(steps=5, warmup=3, learning_rate=1e-3))
    assert history["learning_rate"].tolist() == pytest.approx([1e-3 / 3, 2e-3 / 3, 1e-3, 1e-3, 1e-3 * (0.1 + 0.9 / 2)])


def test_steps_are_those_of_adamw_on_clipped_gradients_without_decay_of_gains() -> None:
    mine, other = model(), model()
    settings = TrainingConfig(steps=4, warmup=0, final_share=1.0, clip=0.05, weight_decay=0.3, learning_rate=0.01)
    history = train(mine, batch, settings)
    norms = []
    gains = [p for p in other.parameters() if p.ndim < 2]
    rest = [p for p in other.parameters() if p.ndim > 1]
    groups = [(rest, 0.3), (gains, 0.0)]
    optimizers = [torch.optim.AdamW(group, 0.01, (0.9, 0.98), weight_decay=decay) for group, decay in groups]
    for step in range(4):
        tokens = batch(step)
        loss = nn.functional.cross_entropy(other(tokens).logits[:, :-1].transpose(1, 2), tokens[:, 1:])
        other.zero_grad()
        loss.backward()
        norm = torch.stack([p.grad.norm() for p in other.parameters() if p.grad is not None]).norm()
        for parameter in other.parameters():
            assert parameter.grad is not None
            parameter.grad *= min(1.0, 0.05 / float(norm))
        norms.append(float(norm))
        for optimizer in optimizers:
            optimizer.step()
    assert history["gradient_norm"].tolist() == pytest.approx(norms, rel=1e-4)
    for name, weight in mine.state_dict().items():
        assert_close(weight, other.state_dict()[name], rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("made", [model, Dropping])
def test_a_resumed_run_is_the_uninterrupted_one_to_the_bit(made: Any, tmp_path: Path) -> None:
    settings = TrainingConfig(steps=12, warmup=3, horizon=30, save_every=5)
    whole = made()
    expected = train(whole, batch, TrainingConfig(steps=12, warmup=3, horizon=30))
    train(made(), batch, TrainingConfig(steps=7, warmup=3, horizon=30, save_every=5), tmp_path)
    torch.manual_seed(99)
    resumed = made()
    with torch.no_grad():
        for parameter in resumed.parameters():
            parameter.add_(1.0)
    history = train(resumed, batch, settings, tmp_path, resume=True)
    assert history.equals(expected)
    for name, weight in whole.state_dict().items():
        assert torch.equal(resumed.state_dict()[name], weight)
    torch.manual_seed(99)
    assert not torch.equal(Dropping()(batch(0)).logits, Dropping().eval()(batch(0)).logits)


def test_an_interrupted_run_goes_on_from_its_last_state(tmp_path: Path) -> None:
    settings = TrainingConfig(steps=12, warmup=3, save_every=5)

    def interrupted(step: int) -> Tensor:
        if step == 8:
            raise KeyboardInterrupt
        return batch(step)

    with pytest.raises(KeyboardInterrupt):
        train(model(), interrupted, settings, tmp_path)
    asked = []

    def watched(step: int) -> Tensor:
        asked.append(step)
        return batch(step)

    resumed, whole = model(), model()
    assert train(resumed, watched, settings, tmp_path, resume=True).equals(
        train(whole, batch, TrainingConfig(steps=12, warmup=3))
    )
    assert asked == list(range(5, 12))
    assert torch.equal(resumed.embed.weight, whole.embed.weight)


def test_to_resume_without_a_state_is_to_begin(tmp_path: Path) -> None:
    settings = TrainingConfig(steps=2, checkpoints=(0, 2))
    train(model(), batch, settings, tmp_path, resume=True)
    assert list(checkpoint_folders(tmp_path)) == [0, 2]


def test_a_state_of_another_run_is_refused(tmp_path: Path) -> None:
    train(model(), batch, TrainingConfig(steps=3), tmp_path)
    with pytest.raises(UserError, match=r"other settings \(learning_rate, clip\)"):
        train(model(), batch, TrainingConfig(steps=3, clip=2.0, learning_rate=0.1), tmp_path, resume=True)
    with pytest.raises(UserError, match=r"other settings \(horizon\)"):
        train(model(), batch, TrainingConfig(steps=6), tmp_path, resume=True)
    with pytest.raises(UserError, match="of another model"):
        train(model("learned"), batch, TrainingConfig(steps=3), tmp_path, resume=True)
    (tmp_path / "resume.pt").write_bytes(b"nothing")
    with pytest.raises(UserError, match=r"resume\.pt cannot be read"):
        train(model(), batch, TrainingConfig(steps=3), tmp_path, resume=True)


def test_checkpoints_hold_the_weights_of_their_step(tmp_path: Path) -> None:
    weights: dict[int, Tensor] = {}

    def watch(step: int, seen: nn.Module) -> None:
        assert not seen.training
        weights[step] = next(seen.parameters()).detach().clone()

    settings = TrainingConfig(steps=6, checkpoints=(0, 2, 6), stored="float16")
    made = model()
    start = made.embed.weight.detach().clone()
    train(made, batch, settings, tmp_path, watch=watch)
    assert not made.training
    found = checkpoint_folders(tmp_path)
    assert list(found) == list(weights) == [0, 2, 6]
    assert torch.equal(weights[0], start)
    for step, folder in found.items():
        assert load_file(folder / "model.safetensors")["embed.weight"].dtype is torch.float16
        loaded = load_transformer(folder)
        assert loaded.embed.weight.dtype is torch.float32
        assert torch.equal(loaded.embed.weight, weights[step].half().float())


def test_any_module_can_be_trained_and_saved(tmp_path: Path) -> None:
    made = Dropping()
    train(made, batch, TrainingConfig(steps=2, checkpoints=(2,)), tmp_path)
    saved = load_file(tmp_path / "checkpoints" / "step-000002" / "model.safetensors")
    assert torch.equal(saved["layers.0.weight"], made.state_dict()["layers.0.weight"])


def test_targets_can_be_given_and_left_out() -> None:
    tokens, targets = batch(0), torch.full((8, 10), -100)
    targets[:, 3] = 7
    made = small("plain_bidirectional")
    _, loss = loss_of(made, (tokens, targets))
    assert_close(loss.double(), -made(tokens).logits[:, 3].log_softmax(-1)[:, 7].mean(), rtol=1e-5, atol=1e-6)


def test_the_balance_of_experts_is_a_part_of_what_is_minimised() -> None:
    made = small("experts")
    total, loss = loss_of(made, batch(0), balance=0.5)
    _, cache = made.run_with_cache(batch(0))
    balance = torch.stack([balance_loss(cache[f"blocks.{i}.mlp.hook_router"], 2) for i in range(2)]).mean()
    assert float(total.detach() - loss) == pytest.approx(float(balance.detach()) / 2, rel=1e-5)
    even = model("experts", top_k=1)
    train(even, batch, TrainingConfig(steps=40, balance=5.0, learning_rate=1e-2))
    found = even(batch(0)).balance
    assert found is not None
    assert float(found.detach()) < 1.2


def test_a_loss_that_is_not_finite_stops_the_run_and_keeps_its_history() -> None:
    made = model()

    def break_it(step: int) -> Tensor:
        if step == 3:
            made.embed.weight.data.fill_(math.nan)
        return batch(step)

    with pytest.raises(DivergedError, match="loss of step 4 is nan") as raised:
        train(made, break_it, TrainingConfig(steps=9))
    assert len(raised.value.history) == 3


def test_the_same_seed_gives_the_same_run() -> None:
    runs = [train(Dropping(), batch, TrainingConfig(steps=4, seed=seed)) for seed in (1, 1, 2)]
    assert runs[0].equals(runs[1])
    assert not runs[0].equals(runs[2])


def test_checkpoint_folders_are_found_by_their_step(tmp_path: Path) -> None:
    for name in ("checkpoint-500", "step_20", "step1000", "notes", "checkpoint-final"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "config.json").write_text("{}")
    (tmp_path / "checkpoint-700").mkdir()  # empty: that it is broken shows when it is loaded
    (tmp_path / "step-900").write_text("no folder")
    assert {step: place.name for step, place in checkpoint_folders(tmp_path).items()} == {
        20: "step_20", 500: "checkpoint-500", 700: "checkpoint-700", 1000: "step1000",
    }  # fmt: skip
    (tmp_path / "checkpoints" / "step-000020").mkdir(parents=True)
    (tmp_path / "checkpoints" / "step-000020" / "config.json").write_text("{}")
    with pytest.raises(UserError, match="two checkpoints of step 20"):
        checkpoint_folders(tmp_path)
    with pytest.raises(UserError, match="holds no checkpoints"):
        checkpoint_folders(tmp_path / "notes")


@pytest.mark.parametrize(("fields", "words"), [
    ({"steps": 0}, "at least 1"), ({"warmup": -1}, "at least 0"), ({"learning_rate": 0.0}, "above 0"),
    ({"clip": 0.0}, "above 0"), ({"final_share": 1.5}, "between 0 and 1"), ({"checkpoints": (5, 99)}, r"got \[99\]"),
    ({"stored": "int8"}, "float16 or bfloat16"), ({"save_every": 0}, "save_every"),
])  # fmt: skip
def test_settings_that_make_no_sense_are_refused(fields: dict[str, Any], words: str) -> None:
    with pytest.raises(UserError, match=words):
        TrainingConfig(**{"steps": 10, **fields})


def test_checkpoints_and_states_need_a_folder() -> None:
    for settings in (TrainingConfig(checkpoints=(0,)), TrainingConfig(save_every=10)):
        with pytest.raises(UserError, match="need a folder"):
            train(model(), batch, settings)
    with pytest.raises(UserError, match="need a folder"):
        train(model(), batch, TrainingConfig(steps=1), resume=True)
