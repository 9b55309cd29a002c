"""One forward pass in a process of its own: ``python -m benchmarks.measure METHOD FOLDER LENGTH ANSWER``.

Writes time and memory as a line of JSON, and statistics and the last logits into the file ANSWER (.npz).
"""

from __future__ import annotations

import argparse
import gc
import json
import time
from pathlib import Path
from typing import Any

import numpy as np
import torch

from benchmarks import machine
from benchmarks.methods import LOADERS, Answer, Forward

WARM_UP = 128
"""Tokens of the first forward pass, which is not measured: it builds kernels and touches every weight."""

LAST = 4
"""Positions whose logits are compared between methods."""


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.measure")
    parser.add_argument("method", choices=LOADERS)
    parser.add_argument("folder", type=Path)
    parser.add_argument("length", type=int)
    parser.add_argument("answer", type=Path)
    parser.add_argument("--repeats", type=int, default=1)
    parser.add_argument("--seed", type=int, default=0)
    arguments = parser.parse_args()
    forward = LOADERS[arguments.method](arguments.folder)
    config = json.loads((arguments.folder / "config.json").read_text(encoding="utf-8"))
    tokens = random_tokens(config["vocab_size"], arguments.length, arguments.seed)
    with torch.no_grad():
        found, answer = measure(forward, tokens, arguments.repeats)
    save(answer, arguments.answer)
    print(json.dumps(found))


def random_tokens(d_vocab: int, length: int, seed: int) -> torch.Tensor:
    """One sequence of token ids from the upper nine tenths of the vocabulary, where special tokens are rare."""
    generator = torch.Generator().manual_seed(seed)
    return torch.randint(d_vocab // 10, d_vocab, (1, length), generator=generator)


def measure(forward: Forward, tokens: torch.Tensor, repeats: int) -> tuple[dict[str, Any], Answer]:
    """Median time of ``repeats`` forward passes after a warm-up, and the peak memory of the process in them."""
    forward(tokens[:, :WARM_UP])
    gc.collect()
    loading = machine.peak_bytes()
    machine.reset_peak()
    resting = machine.resident_bytes()
    load = machine.load()
    seconds: list[float] = []
    cpu: list[float] = []
    answer: Answer | None = None
    for _ in range(repeats):
        del answer  # two answers at once would set the peak
        start, cpu_start = time.perf_counter(), time.process_time()
        answer = forward(tokens)
        seconds.append(time.perf_counter() - start)
        cpu.append(time.process_time() - cpu_start)
    assert answer is not None
    found = {
        "seconds": float(np.median(seconds)),
        "cpu_seconds": float(np.median(cpu)),
        "peak_bytes": machine.peak_bytes(),
        "resting_bytes": resting,
        "loading_peak_bytes": loading,
        "load": load,
        "threads": torch.get_num_threads(),
    }
    return found, answer


def save(answer: Answer, place: Path) -> None:
    """What is compared between methods."""
    arrays = {name: values.double().numpy() for name, values in (answer.statistics or {}).items()}
    arrays["logits"] = answer.logits[0, -LAST:].double().numpy()
    np.savez(place, allow_pickle=False, **arrays)


if __name__ == "__main__":
    main()
