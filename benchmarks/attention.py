"""Attention alone, one causal sequence: ``python -m benchmarks.attention HEADS KV_HEADS LENGTH``.

PyTorch's fused attention against the core, without probes and with the basic ones, on the same tensors in turn.
Writes the times as a line of JSON.
"""

from __future__ import annotations

import argparse
import json
import time
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention

from benchmarks import machine
from interp.attention import Mask, attend, probes

D_HEAD = 64
WARM_UP = 512
"""Tokens of the calls that come first and are not measured."""


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.attention")
    parser.add_argument("n_heads", type=int)
    parser.add_argument("n_kv_heads", type=int)
    parser.add_argument("length", type=int)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--seed", type=int, default=0)
    arguments = parser.parse_args()
    torch.manual_seed(arguments.seed)
    query = torch.randn(1, arguments.n_heads, arguments.length, D_HEAD)
    key, value = (torch.randn(1, arguments.n_kv_heads, arguments.length, D_HEAD) for _ in range(2))
    with torch.no_grad():
        print(json.dumps(compare(query, key, value, arguments.rounds)))


def compare(query: Tensor, key: Tensor, value: Tensor, rounds: int) -> dict[str, Any]:
    """Seconds of each round by way of computing it, and the largest difference between the outputs."""
    ways = {"sdpa": fused, "attend": bare, "basic": read}
    for way in ways.values():
        way(*(tensor[:, :, :WARM_UP] for tensor in (query, key, value)))
    load = machine.load()
    seconds: dict[str, list[float]] = {name: [] for name in ways}
    outputs: dict[str, Tensor] = {}
    for _ in range(rounds):
        for name, way in ways.items():
            outputs.pop(name, None)
            start = time.perf_counter()
            outputs[name] = way(query, key, value)
            seconds[name].append(time.perf_counter() - start)
    difference = max(float((outputs[name] - outputs["sdpa"]).abs().max()) for name in ("attend", "basic"))
    return {"seconds": seconds, "difference": difference, "load": load, "threads": torch.get_num_threads()}


def fused(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
    return scaled_dot_product_attention(query, key, value, is_causal=True, enable_gqa=True)


def bare(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
    return attend(query, key, value, Mask(causal=True))


def read(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
    output, readings = attend(query, key, value, Mask(causal=True), probes=probes.basic())
    for reading in readings:
        _ = reading.values  # finished when first asked for
    return output


if __name__ == "__main__":
    main()
