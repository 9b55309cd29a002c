"""Every pair of heads compared on one sequence, beside its forward pass.

``python -m benchmarks.divergences FOLDER LENGTH``: plain forward pass, divergences of all rows, and the same without
the first position, in turn. Writes the times as a line of JSON.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

import interp
from benchmarks import machine
from benchmarks.measure import WARM_UP, random_tokens
from interp.attention import head_divergences


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.divergences")
    parser.add_argument("folder", type=Path)
    parser.add_argument("length", type=int)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--seed", type=int, default=0)
    arguments = parser.parse_args()
    model = interp.load(str(arguments.folder))
    assert model.d_vocab is not None
    tokens = random_tokens(model.d_vocab, arguments.length, arguments.seed)
    with torch.no_grad():
        print(json.dumps(compare(model, tokens, arguments.rounds)))


def compare(model: interp.HookedModel, tokens: Tensor, rounds: int) -> dict[str, Any]:
    """Seconds of each round by what was done, and how many heads were compared."""
    first = torch.zeros(1, tokens.shape[1], dtype=torch.bool)
    first[:, 0] = True
    model.module(tokens[:, :WARM_UP])
    load = machine.load()
    seconds: dict[str, list[float]] = {"forward": [], "divergences": [], "without_first": []}
    n_heads = 0
    for _ in range(rounds):
        seconds["forward"].append(_timed(lambda: model.module(tokens))[1])
        traces = model.run(tokens, keep="qk").traces
        found, spent = _timed(lambda traces=traces: head_divergences(traces))
        seconds["divergences"].append(spent)
        seconds["without_first"].append(_timed(lambda traces=traces: head_divergences(traces, without=first))[1])
        n_heads = found.values.shape[1]
    return {"seconds": seconds, "n_heads": n_heads, "load": load, "threads": torch.get_num_threads()}


def _timed(work: Callable[[], Any]) -> tuple[Any, float]:
    start = time.perf_counter()
    return work(), time.perf_counter() - start


if __name__ == "__main__":
    main()
