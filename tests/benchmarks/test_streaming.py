"""The benchmark measures what it says: the same statistics, memory that loading does not set, ratios within rounds.

Nothing here asserts a time.
"""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from benchmarks import machine, measure, patterns, sizes, streaming, summary
from interp.attention import Mask, attend, probes
from interp.errors import UsageError

ROOT = Path(__file__).parents[2]


def test_patterns_read_what_the_probes_read() -> None:
    torch.manual_seed(0)
    query, key, value = torch.randn(1, 6, 31, 16), torch.randn(1, 2, 31, 16), torch.randn(1, 2, 31, 16)
    scores = query @ key.repeat_interleave(3, 1).mT / 4
    pattern = scores.masked_fill(~torch.ones(31, 31).tril().bool(), float("-inf")).softmax(-1)
    _, (entropy, largest, offsets, first, distance) = attend(
        query, key, value, Mask(causal=True), probes=probes.basic()
    )  # fmt: skip
    near = offsets.values[0]
    expected = [entropy.values[0], largest.values[0], near[:, 0], near[:, 1], first.values[0, :, 0], distance.values[0]]
    read = patterns.stacked([patterns.of_pattern(pattern)])
    for name, values in zip(patterns.NAMES, expected, strict=True):
        torch.testing.assert_close(read[name][0].double(), values, rtol=1e-5, atol=1e-6)


def test_peak_memory_is_that_of_what_runs_after_the_reset() -> None:
    """In a process of its own: an older one takes what it needs from memory that it has freed before."""
    code = """
import numpy as np
from benchmarks import machine
megabytes = 64 << 20
big = np.ones(4 * megabytes, dtype=np.uint8)
del big
machine.reset_peak()
before = machine.peak_bytes()
small = np.ones(megabytes, dtype=np.uint8)
print((machine.peak_bytes() - before) / megabytes)
"""
    told = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True).stdout
    assert 0.9 < float(told) < 1.5


def test_every_method_gives_the_same_answer_on_a_small_model(tmp_path: Path) -> None:
    from transformers import LlamaConfig, LlamaForCausalLM

    from benchmarks.methods import LOADERS

    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=90, hidden_size=32, intermediate_size=48, num_hidden_layers=2, num_attention_heads=4,
        num_key_value_heads=2, max_position_embeddings=64, tie_word_embeddings=True,
    )  # fmt: skip
    LlamaForCausalLM(config).save_pretrained(tmp_path)
    tokens = measure.random_tokens(90, 40, seed=0)
    answers: dict[tuple[int, str], Any] = {}
    for name in ("plain", "interp", "eager", "eager_hooks"):
        with torch.no_grad():
            found, answer = measure.measure(LOADERS[name](tmp_path), tokens, repeats=1)
        assert found["peak_bytes"] >= found["resting_bytes"] > 0
        measure.save(answer, tmp_path / f"{name}.npz")
        answers[40, name] = dict(np.load(tmp_path / f"{name}.npz"))
    rows = {row["method"]: row for row in summary.agreement(answers)}
    assert all(row["logits"] < 1e-4 for row in rows.values())
    for name in ("interp", "eager_hooks"):
        assert rows[name]["statistics_of"] == "eager"
        assert max(rows[name]["bounded"], rows[name]["relative"]) < 1e-5
    assert rows["eager"]["bounded"] is None, "the yardstick has nothing to be compared with"


def test_every_pair_of_heads_is_compared_beside_its_forward_pass() -> None:
    from benchmarks import divergences
    from tests import families

    found = divergences.compare(families.load(families.make("gpt2")), families.tokens(1, 40), rounds=2)
    assert found["n_heads"] == 18
    assert {way: len(seconds) for way, seconds in found["seconds"].items()} == dict.fromkeys(
        ("forward", "divergences", "without_first"), 2
    )


def record(method: str, number: int, seconds: float, peak: float, length: int = 2048) -> dict[str, Any]:
    numbers = {"seconds": seconds, "cpu_seconds": seconds, "peak_bytes": peak, "resting_bytes": 1e9}
    return {"method": method, "length": length, "round": number, **numbers}


def test_ratios_are_taken_within_rounds() -> None:
    """The machine slows down by a factor of ten in the second round; a ratio of medians would say 5.5 / 1."""
    forwards = [record("plain", 0, 1.0, 2e9), record("interp", 0, 1.2, 2e9)]
    forwards += [record("plain", 1, 10.0, 2e9), record("interp", 1, 12.0, 2e9), record("interp", 2, 99.0, 2e9)]
    interp = next(row for row in summary.forward_summary(forwards) if row["method"] == "interp")
    assert interp["time_to_plain"] == pytest.approx(1.2)
    assert interp["time_to_interp"] == 1
    assert interp["added_gb"] == pytest.approx(1)


def test_targets_say_what_was_met_missed_and_not_measured() -> None:
    forwards = [record("plain", 0, 1.0, 2e9), record("interp", 0, 1.6, 2.2e9), record("bridge", 0, 5.0, 8e9)]
    verdicts = [target.met for target in summary.targets(forwards, [])]
    assert verdicts == [False, True, True, False, None, None, None]
    long = [record("interp", 0, 1.0, 4e9, length=8192)]
    alone = [
        {"n_heads": 9, "n_kv_heads": 3, "length": 1024, "round": 0, "way": way, "seconds": seconds}
        for way, seconds in (("sdpa", 1.0), ("attend", 1.5), ("basic", 2.0))
    ]
    compared = [
        {"n_heads": 4, "length": 512, "round": number, "way": way, "seconds": seconds}
        for number, slow in enumerate((1.0, 20.0))
        for way, seconds in (("forward", slow), ("divergences", 11 * slow), ("without_first", 12 * slow))
    ]
    verdicts = [target.met for target in summary.targets(long, alone, compared)]
    assert verdicts == [None, None, None, None, False, True, False]


def test_memory_is_worked_out_from_sizes() -> None:
    small = sizes.Sizes(n_layers=30, n_heads=9, d_vocab=49152, n_ctx=8192, weight_bytes=538_000_000)
    at = {name: sizes.predicted_bytes(name, small, 4096) / sizes.GIGA for name in sizes.METHODS}
    assert at["plain"] == at["interp"] < at["eager_hooks"] < 16 < at["eager"] == at["bridge"]
    patterns_alone = 30 * 9 * 4096**2 * 4 / sizes.GIGA
    assert at["eager"] > patterns_alone + at["plain"]


@pytest.fixture
def measured(monkeypatch: pytest.MonkeyPatch) -> list[list[str]]:
    """Measurements without processes: what would have been run."""
    ran: list[list[str]] = []

    def process(_threads: int | None, words: list[object]) -> dict[str, Any]:
        ran.append([str(word) for word in words])
        if words[0] == "attention":
            return {
                "seconds": {way: [1.0] for way in ("sdpa", "attend", "basic")},
                "difference": 0,
                "load": 0,
                "threads": 1,
            }
        if words[0] == "divergences":
            seconds = {way: [1.0] for way in ("forward", "divergences", "without_first")}
            return {"seconds": seconds, "n_heads": 4, "load": 0, "threads": 1}
        np.savez(Path(str(words[4])), logits=np.zeros((1, 2)))
        return {**record(str(words[1]), 0, 1.0, 2e9), "load": 0.0, "threads": 1}

    monkeypatch.setattr(streaming, "in_a_process", process)
    monkeypatch.setattr(streaming, "locate", lambda _: type("Found", (), {"path": Path("model")}))
    small = sizes.Sizes(n_layers=30, n_heads=9, d_vocab=49152, n_ctx=4096, weight_bytes=538_000_000)
    monkeypatch.setattr(streaming, "sizes_of", lambda _: small)
    monkeypatch.setattr(machine, "available_bytes", lambda: 64 << 30)
    return ran


def test_what_does_not_fit_is_reported_and_not_run(measured: list[list[str]], tmp_path: Path) -> None:
    flags = ["--methods", "plain", "bridge", "--lengths", "512", "4096", "8192", "--attention-lengths", "1024"]
    assert streaming.main([*flags, "--rounds", "2", "--out", str(tmp_path)]) == 0
    forwards = [(words[1], int(words[3])) for words in measured if words[0] == "measure"]
    assert forwards == [
        ("plain", 512), ("bridge", 512), ("bridge", 512), ("plain", 512), ("plain", 4096), ("plain", 4096),
    ]  # fmt: skip
    saved = json.loads((tmp_path / "streaming.json").read_text())
    reasons = {(part["method"], part["length"]): part["reason"] for part in saved["left_out"]}
    assert "would need about 21 GB" in reasons["bridge", 4096]
    assert "context of 4,096" in reasons["plain", 8192]
    page = (tmp_path / "streaming.md").read_text()
    assert "would need about 21 GB" in page
    assert "load average" in page
    assert "Every pair of heads" in page
    assert all((tmp_path / f"streaming{suffix}").stat().st_size > 1000 for suffix in (".png", ".svg"))


def test_check_leaves_with_1_where_a_target_is_missed(measured: list[list[str]], tmp_path: Path) -> None:
    flags = ["--methods", "plain", "interp", "bridge", "--lengths", "2048", "--attention-lengths", "1024"]
    assert streaming.main([*flags, "--out", str(tmp_path)]) == 0
    assert streaming.main([*flags, "--check", "--out", str(tmp_path)]) == 1, "the bridge was as fast here"


def test_check_refuses_where_it_checks_nothing(measured: list[list[str]], tmp_path: Path) -> None:
    flags = [
        "--methods",
        "plain",
        "--lengths",
        "512",
        "--attention-lengths",
        "--divergence-lengths",
        "--check",
        "--out",
    ]
    assert streaming.main([*flags, str(tmp_path)]) == 2


def test_settings_that_make_no_sense_are_refused() -> None:
    with pytest.raises(UsageError, match="at least 2 tokens"):
        streaming.Config(lengths=(1,))
    with pytest.raises(UsageError, match="rounds"):
        streaming.Config(rounds=0)


def test_a_process_that_fails_is_named(tmp_path: Path) -> None:
    found = streaming.in_a_process(None, ["measure", "plain", tmp_path / "none", 16, tmp_path / "answer.npz"])
    assert "none" in found["error"]
