"""`interp prune`, typed: what it makes, what it says, what it refuses, and how it goes on."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch

import interp
from interp.cli import main
from interp.models.pruning import kept_after, prune
from interp.models.pruning.recovery import TextData
from interp.models.transformer import Transformer, TransformerConfig, save_transformer
from interp.results import Result, RunFolder
from tests.families import make, tokens
from tests.interp.models.pruning.gated import assert_same, output


class Shell:
    """Types commands into a fresh folder, in this process."""

    def __init__(self, capture: pytest.CaptureFixture[str]) -> None:
        self.capture = capture
        self.out = self.err = ""

    def __call__(self, command: str) -> int:
        try:
            code = main(command.split())
        except SystemExit as left:  # tyro, after a wrong flag
            code = int(left.code or 0)
        self.out, self.err = self.capture.readouterr()
        return code


@pytest.fixture
def shell(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Shell:
    monkeypatch.chdir(tmp_path)
    generator = np.random.default_rng(0)
    text = generator.integers(3, 30, (4000,))
    text[1::2] = text[::2]
    np.save("text.npy", text)
    save_transformer(Transformer(TransformerConfig(d_vocab=97, n_ctx=64, n_layers=3, n_kv_heads=2)), "model")
    return Shell(capsys)


def described(folder: str) -> dict[str, Any]:
    return json.loads(Path(folder, "pruning.json").read_text())


TEXT = "--text text.npy --length 16 --sequences 8 --batch-size 4"


def test_a_share_by_importance(shell: Shell) -> None:
    assert shell(f"prune model --keep 0.5 --out small {TEXT}") == 0, shell.err
    lines = shell.out.splitlines()
    assert lines[0] == "heads: 6 of 12 stay (importance)"
    assert lines[1].startswith("parameters: ")
    assert [line.partition(":")[0] for line in lines if line.startswith("loss")] == ["loss, unpruned", "loss, pruned"]
    assert lines[-1] == "small"
    assert sorted(path.name for path in Path().iterdir()) == ["model", "small", "text.npy"]
    said = described("small")
    assert sum(len(site["kept"]) for site in said["sites"].values()) == 6
    assert said["base"]["name"] == "model"
    assert said["history"][0]["how"] == "importance"
    assert said["measured"]["sizes"]["after"]["parameters"] < said["measured"]["sizes"]["before"]["parameters"]
    small = interp.load("small")
    keep = {name: site["kept"] for name, site in said["sites"].items()}
    assert_same(output(small, tokens=tokens(2, 9)), output(prune(interp.load("model"), keep), tokens=tokens(2, 9)), 0)


def test_named_heads_and_pruning_again(shell: Shell) -> None:
    assert shell("prune model --heads L0H1,L2H0 --out once") == 0
    assert shell.out.startswith("heads: 10 of 12 stay (heads named)")
    assert shell("prune once --heads L0H1 --out twice") == 0
    assert described("twice")["sites"]["blocks.0.attn"]["kept"] == [0, 3]
    assert [step["how"] for step in described("twice")["history"]] == ["heads named"] * 2
    model = interp.load("model")
    wanted = prune(model, kept_after(model, [(0, 1), (0, 2), (2, 0)]))
    assert_same(output(interp.load("twice"), tokens=tokens(2, 9)), output(wanted, tokens=tokens(2, 9)), 0)


def test_heads_alone(shell: Shell) -> None:
    assert shell("prune model --per-layer 2 --by weight_norm --without-weights --out heads") == 0
    assert [path.name for path in Path("heads").iterdir()] == ["pruning.json"]
    assert {site.n_heads for site in interp.load("heads").sites} == {2}


def test_scores_of_ones_own(shell: Shell) -> None:
    rows = [(f"blocks.{layer}.attn", head, float(head == layer)) for layer in range(3) for head in range(4)]
    table = pd.DataFrame(rows, columns=pd.Index(["site", "head", "value"]))
    table.to_csv("scores.csv", index=False)
    assert shell("prune model --per-layer 1 --scores scores.csv --column value --out small") == 0, shell.err
    assert [site["kept"] for site in described("small")["sites"].values()] == [[0], [1], [2]]
    for flags, says in (
        ("--scores scores.csv", "lacks importance"),
        ("--scores no.csv", "no such file"),
        ("--scores text.npy", ".parquet or .csv"),
    ):
        assert shell(f"prune model --per-layer 1 {flags} --out other") == 1
        assert says in shell.err


def test_uniform(shell: Shell) -> None:
    module = make("llama", max_position_embeddings=64)
    module.save_pretrained("llama")
    assert shell("prune llama --keep 0.7 --by random --uniform --out plain") == 0, shell.err
    assert json.loads(Path("plain", "config.json").read_text())["num_attention_heads"] == 4
    assert {site.n_heads for site in interp.load("plain").sites} == {4}
    assert shell("prune llama --per-layer 5 --by random --uniform --out other") == 1
    assert "no plain checkpoint has 5 heads in each layer; possible are 1 (over 1 kv heads)" in shell.err
    assert shell("prune model --per-layer 2 --by random --uniform --out other") == 1
    assert "no model of transformers" in shell.err
    assert not Path("other").exists()


def test_recovery_and_times(shell: Shell) -> None:
    command = f"prune model --keep 0.4 --recover 20 --learning-rate 3e-3 --out small {TEXT}"
    assert shell(f"{command} --times --lengths 16 --batch-sizes 1 --rounds 2") == 0, shell.err
    losses = {row["model"]: row["loss"] for row in described("small")["measured"]["losses"]}
    assert losses["recovered"] < losses["pruned"] - 0.1
    assert "time, masked / unpruned, decoding, 1 × 16 tokens" in shell.out
    assert described("small")["history"][0]["how"] == "importance"
    assert described("small")["history"][1]["recovery"]["steps"] == 20
    assert not list(Path().glob(".small*"))


def test_an_interrupted_recovery_goes_on(shell: Shell, monkeypatch: pytest.MonkeyPatch) -> None:
    command = f"prune model --keep 0.5 --recover 20 --out small {TEXT}"
    assert shell(command.replace("small", "whole")) == 0
    step, calls = TextData.__call__, []

    def stopping(self: TextData, number: int) -> torch.Tensor:
        calls.append(number)
        if number == 13:
            raise KeyboardInterrupt
        return step(self, number)

    monkeypatch.setattr(TextData, "__call__", stopping)
    assert shell(command) == 130
    assert "--resume" in shell.err
    assert not Path("small").exists()
    assert shell(command) == 1
    assert "an interrupted pruning into small was found" in shell.err
    assert shell(f"{command} --seed 1 --resume") == 1
    assert "other settings or another model" in shell.err
    calls.clear()
    monkeypatch.setattr(TextData, "__call__", lambda self, number: calls.append(number) or step(self, number))
    monkeypatch.setattr("interp.prune_command.choose", None)  # what was decided is not decided again
    assert shell(f"{command} --resume") == 0, shell.err
    assert calls == [0, *range(12, 20)], "from the last state that was saved"
    assert described("small")["weights_sha256"] == described("whole")["weights_sha256"]
    assert not list(Path().glob(".small*"))


def test_force_forgets_what_was_interrupted_but_overwrites_nothing(shell: Shell) -> None:
    Path(".small.unfinished").mkdir()
    assert shell("prune model --keep 0.5 --by random --out small --force") == 0
    before = Path("small", "pruning.json").read_bytes()
    for flag in ("", "--force", "--resume"):
        assert shell(f"prune model --keep 0.4 --by random --out small {flag}") == 1
        assert "small is there already, and nothing is overwritten" in shell.err
    assert Path("small", "pruning.json").read_bytes() == before


@pytest.mark.parametrize(
    ("flags", "says"),
    [
        ("", "--per-layer N"),
        ("--keep 0.5 --per-layer 2", "--per-layer N"),
        ("--keep 1.5", "above 0 and at most 1"),
        ("--keep 0", "above 0 and at most 1"),
        ("--keep 0.5 --resume --force", "give one of them"),
        ("--keep 0.5 --recover 3 --without-weights", "not with --uniform"),
        ("--keep 0.5 --recover -1", "at least 0"),
        ("--keep 0.5 --sequences 0", "--sequences 0 is too small"),
    ],
)
def test_wrong_commands(flags: str, says: str, shell: Shell) -> None:
    assert shell(f"prune model --out small {flags}") == 2
    assert says in shell.err


@pytest.mark.parametrize(
    ("flags", "says"),
    [
        ("--heads L7H0", "no site 7"),
        ("--heads L0H4", "there is no head 4"),
        ("--heads L0", "names no head"),
        ("--per-layer 9 --by random", "can keep 1 … 4 heads"),
        ("--keep 0.5", "give token ids with --text FILE.npy, or choose without a text: --by weight_norm"),
        ("--keep 0.5 --by random --times", "more than the context of 64"),
    ],
)
def test_what_is_refused(flags: str, says: str, shell: Shell) -> None:
    assert shell(f"prune model --out small {flags}") == 1
    assert says in shell.err
    assert sorted(path.name for path in Path().iterdir()) == ["model", "text.npy"]


def test_models_without_a_loss(shell: Shell) -> None:
    make("bert").save_pretrained("bert")
    assert shell(f"prune bert --keep 0.5 --out small {TEXT}") == 1
    assert "Score heads with --by weight_norm or random" in shell.err
    assert shell(f"prune bert --keep 0.5 --by weight_norm --recover 2 --out small {TEXT}") == 1
    assert "does not predict the next token" in shell.err
    assert shell("prune bert --keep 0.5 --by weight_norm --out small --lengths 32") == 0, shell.err
    assert "loss" not in shell.out


# Gates of a finished run ----------------------------------------------------------------------------------------------


@pytest.fixture
def run(shell: Shell) -> None:
    """A run with gates at two penalties: head h of layer l is open at the higher one where h > l."""
    assert shell.capture is not None
    sha256 = interp.load("model").info["weights_sha256"]
    heads = [(f"blocks.{layer}.attn", layer, head) for layer in range(3) for head in range(4)]
    table = pd.DataFrame(
        [
            (penalty, *h, float(h[2] - h[1]), 0.5, 1.0 if penalty < 0.1 or h[2] > h[1] else 0.0)
            for penalty in (0.01, 0.1) for h in heads
        ],
        columns=pd.Index(["penalty", "site", "layer", "head", "log_alpha", "p_open", "gate"]),
    )  # fmt: skip
    result = Result("head-pruning", {"gates": table}, {"model": {"weights_sha256": sha256}})
    with RunFolder.claim(Path("run"), {"name": "model", "weights_sha256": sha256}) as folder:
        folder.save(result, fingerprint="0", schemas={})


def test_open_gates_stay(shell: Shell, run: None) -> None:
    assert shell("prune model --by gates --run run --out open") == 0, shell.err
    assert [site["kept"] for site in described("open")["sites"].values()] == [[1, 2, 3], [2, 3], [3]]
    assert described("open")["history"] == [{"how": "gates", "run": "run", "penalty": 0.1}]
    assert shell("prune model --by gates --run run --penalty 0.01 --out all") == 0
    assert shell.out.startswith("heads: 12 of 12 stay")
    assert shell("prune model --by gates --run run --per-layer 1 --out likely") == 0
    assert [site["kept"] for site in described("likely")["sites"].values()] == [[3], [3], [3]]


def test_gates_that_do_not_fit(shell: Shell, run: None) -> None:
    save_transformer(Transformer(TransformerConfig(d_vocab=97, n_layers=3, n_kv_heads=2), seed=1), "other")
    for command, code, says in (
        ("prune other --by gates --run run", 1, "of a model with other weights"),
        ("prune model --by gates --run run --penalty 0.5", 1, "gates at the penalties 0.01, 0.1"),
        ("prune model --by gates", 2, "--run RUN"),
        ("prune model --by gates --run run --heads L0H0", 2, "give one of them"),
        ("prune model --by random --keep 0.5 --run run", 2, "--by gates takes"),
    ):
        assert shell(f"{command} --out small") == code
        assert says in shell.err, shell.err
