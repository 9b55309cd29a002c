"""From single measurements to what is reported: medians over rounds, ratios within a round, agreement, targets.

Measurements are records. Of a forward pass: method, length, round, seconds, cpu_seconds, peak_bytes,
resting_bytes, load. Of attention alone: n_heads, n_kv_heads, length, round, way, seconds. The machine drifts, so a
ratio is taken within a round, where its two sides ran one after the other, and the median is over these ratios.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import median
from typing import Any, Literal

import numpy as np

from benchmarks.sizes import GIGA

__all__ = ["Record", "Target", "agreement", "attention_summary", "divergence_summary", "forward_summary", "targets"]

Record = dict[str, Any]

Answers = Mapping[tuple[int, str], Mapping[str, np.ndarray]]
"""By length and method: last logits, and the statistics of those that take them."""

ABSOLUTE = ("max_weight", "current_token", "previous_token", "first_position")
RELATIVE = ("entropy", "expected_distance")
QUANTITIES = {"time": "seconds", "cpu": "cpu_seconds", "memory": "peak_bytes", "added": "added_bytes"}


@dataclass(frozen=True)
class Target:
    """What is promised, and what was measured (None where the run did not come to it)."""

    what: str
    sense: Literal["at most", "at least", "under"]
    limit: float
    measured: float | None
    unit: str = "×"
    note: str = ""

    @property
    def met(self) -> bool | None:
        if self.measured is None:
            return None
        if self.sense == "under":
            return self.measured < self.limit
        return self.measured <= self.limit if self.sense == "at most" else self.measured >= self.limit


def forward_summary(forwards: Sequence[Record]) -> list[Record]:
    """One record per length and method.

    ``seconds``; ``cpu_seconds``, of all threads; ``peak_gb``, of the process, with the weights; ``added_gb``, what of
    it the forward pass added to the loaded model; each of these over that of another method, as ``time_to_plain``,
    ``cpu_to_plain``, ``memory_to_plain``, ``added_to_plain`` and the same with ``interp`` (None where the other was
    not measured).
    """
    found = []
    for length, method in dict.fromkeys((m["length"], m["method"]) for m in forwards):
        row: Record = {
            "length": length,
            "method": method,
            "seconds": median(_by_round(forwards, length, method, "seconds").values()),
            "cpu_seconds": median(_by_round(forwards, length, method, "cpu_seconds").values()),
            "peak_gb": median(_by_round(forwards, length, method, "peak_bytes").values()) / GIGA,
            "added_gb": median(_by_round(forwards, length, method, "added_bytes").values()) / GIGA,
        }
        for other in ("plain", "interp"):
            for name, what in QUANTITIES.items():
                row[f"{name}_to_{other}"] = _ratio(forwards, length, method, other, what)
        found.append(row)
    return found


def attention_summary(attention: Sequence[Record]) -> list[Record]:
    """One record per shape and length: median seconds by way, and ``attend`` and ``basic`` over ``sdpa``."""
    names = ("n_heads", "n_kv_heads", "length")
    found = []
    for shape in dict.fromkeys(tuple(m[name] for name in names) for m in attention):
        here = [m for m in attention if tuple(m[name] for name in names) == shape]
        seconds = {way: [m["seconds"] for m in here if m["way"] == way] for way in ("sdpa", "attend", "basic")}
        row: Record = dict(zip(names, shape, strict=True)) | {way: median(of) for way, of in seconds.items()}
        for way in ("attend", "basic"):
            row[f"{way}_to_sdpa"] = median(a / b for a, b in zip(seconds[way], seconds["sdpa"], strict=True))
        found.append(row)
    return found


def divergence_summary(divergences: Sequence[Record]) -> list[Record]:
    """One record per length: median seconds by way, and the comparisons over the forward pass of their round."""
    found = []
    for length in dict.fromkeys(m["length"] for m in divergences):
        here = [m for m in divergences if m["length"] == length]
        ways = ("forward", "divergences", "without_first")
        seconds = {way: [m["seconds"] for m in here if m["way"] == way] for way in ways}
        row: Record = {"length": length, "n_heads": here[0]["n_heads"]} | {way: median(seconds[way]) for way in ways}
        for way in ways[1:]:
            row[f"{way}_to_forward"] = median(a / b for a, b in zip(seconds[way], seconds["forward"], strict=True))
        found.append(row)
    return found


def agreement(answers: Answers) -> list[Record]:
    """How far each method's answer is from transformers': logits from plain's, statistics from eager's.

    ``bounded``: the largest difference of a weight or mass; ``relative``: of entropy or expected distance, over
    max(1, value); ``statistics_of``: whose statistics they are compared with. None where there is nothing to compare.
    """
    found = []
    for (length, method), answer in answers.items():
        by = next((name for name in ("eager", "eager_hooks") if (length, name) in answers and name != method), None)
        row: Record = {"length": length, "method": method, "logits": None, "bounded": None, "relative": None}
        if (length, "plain") in answers:
            row["logits"] = float(np.abs(answer["logits"] - answers[length, "plain"]["logits"]).max())
        if by is not None and method != "eager" and ABSOLUTE[0] in answer:
            eager = answers[length, by]
            apart = {name: np.abs(answer[name] - eager[name]) for name in (*ABSOLUTE, *RELATIVE)}
            row["bounded"] = max(float(apart[name].max()) for name in ABSOLUTE)
            row["relative"] = max(float((apart[name] / np.maximum(1, np.abs(eager[name]))).max()) for name in RELATIVE)
            row["statistics_of"] = by
        found.append(row)
    return found


def targets(
    forwards: Sequence[Record], attention: Sequence[Record], divergences: Sequence[Record] = ()
) -> list[Target]:
    """What the project promises, beside what was measured."""
    at = 2048
    peaks = _by_round(forwards, 8192, "interp", "peak_bytes").values()
    worst = [row["basic_to_sdpa"] for row in attention_summary(attention)]
    compared = divergence_summary(divergences)
    floor = _ratio(forwards, at, "bridge", "plain", "peak_bytes")
    added = _ratio(forwards, at, "bridge", "interp", "added_bytes")
    beside = ""
    if floor is not None and added is not None:
        beside = f"a plain forward pass reaches {floor:.2f} ×; of what is added to the loaded model: {added:.1f} ×"
    return [
        Target("time over a plain forward pass, 2,048 tokens", "at most", 1.25,
               _ratio(forwards, at, "interp", "plain", "seconds")),
        Target("peak memory over a plain forward pass, 2,048 tokens", "at most", 1.25,
               _ratio(forwards, at, "interp", "plain", "peak_bytes")),
        Target("TransformerBridge's time over ours, 2,048 tokens", "at least", 3.0,
               _ratio(forwards, at, "bridge", "interp", "seconds")),
        Target("TransformerBridge's peak memory over ours, 2,048 tokens", "at least", 6.0,
               _ratio(forwards, at, "bridge", "interp", "peak_bytes"), note=beside),
        Target("peak memory, 8,192 tokens", "under", 4.0, median(peaks) / GIGA if peaks else None, "GB"),
        Target("attention alone with the basic probes over fused SDPA, at its worst", "at most", 2.0,
               max(worst, default=None)),
        Target("comparing every pair of heads over a forward pass, 512 tokens", "at most", 10.0,
               next((row["divergences_to_forward"] for row in compared if row["length"] == 512), None)),
    ]  # fmt: skip


def _by_round(forwards: Sequence[Record], length: int, method: str, what: str) -> dict[int, float]:
    here = [m for m in forwards if m["length"] == length and m["method"] == method]
    return {m["round"]: m["peak_bytes"] - m["resting_bytes"] if what == "added_bytes" else m[what] for m in here}


def _ratio(forwards: Sequence[Record], length: int, method: str, other: str, what: str) -> float | None:
    """Median over the rounds of ``method`` over ``other``; None where they share no round."""
    mine, theirs = (_by_round(forwards, length, name, what) for name in (method, other))
    ratios = [mine[number] / theirs[number] for number in mine if number in theirs]
    return median(ratios) if ratios else None
