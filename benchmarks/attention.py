"""Attention alone, one causal sequence: ``python -m benchmarks.attention HEADS KV_HEADS LENGTH --ways NAME …``.

Ways to compute and read it take turns on the same tensors. Writes, as a line of JSON, the seconds of each round, how
far the answers are apart, and the memory that was held beyond the tensors (that of a way where it is the only one).
"""

from __future__ import annotations

import argparse
import gc
import json
import time
from collections.abc import Callable, Sequence
from functools import cache
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention

from benchmarks import machine, patterns
from interp.attention import Mask, attend, probes

D_HEAD = 64
WARM_UP = 512
"""Tokens of the calls that come first and are not measured."""


class Answer(NamedTuple):
    """Output [1, head, query, d_head], and what was read: means over the rows by head, by the names of
    :data:`benchmarks.patterns.NAMES`."""

    output: Tensor
    statistics: dict[str, Tensor]


Way = Callable[[Tensor, Tensor, Tensor], Answer]
"""A function of query, key and value."""


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.attention")
    parser.add_argument("n_heads", type=int)
    parser.add_argument("n_kv_heads", type=int)
    parser.add_argument("length", type=int)
    parser.add_argument("--ways", nargs="+", choices=WAYS, default=["sdpa", "attend", "basic"])
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--device", default="cpu")
    arguments = parser.parse_args()
    generator = torch.Generator().manual_seed(arguments.seed)
    dtype = torch.float32 if arguments.device == "cpu" else torch.bfloat16
    heads = (arguments.n_heads, arguments.n_kv_heads, arguments.n_kv_heads)
    query, key, value = (
        torch.randn(1, n, arguments.length, D_HEAD, generator=generator).to(arguments.device, dtype) for n in heads
    )
    with torch.no_grad():
        print(json.dumps(compare(query, key, value, arguments.rounds, arguments.ways)))


def compare(
    query: Tensor, key: Tensor, value: Tensor, rounds: int, names: Sequence[str] = ("sdpa", "attend", "basic")
) -> dict[str, Any]:
    """Seconds of each round by way of computing it; ways that this machine cannot go, with the reason.

    ``difference``: the largest one between outputs and the first way's; ``statistics_off``: by way, the largest one
    between statistics and those of row blocks, over max(1, value).
    """
    ways, left_out = warmed_up(query, key, value, names)
    load = machine.load()
    seconds: dict[str, list[float]] = {name: [] for name in ways}
    answers: dict[str, Answer] = {}
    gc.collect()
    with held(query.device) as memory:
        for _ in range(rounds):
            for name, way in ways.items():
                answers.pop(name, None)
                start = _now(query.device)
                answers[name] = way(query, key, value)
                seconds[name].append(_now(query.device) - start)
    outputs = [answer.output for answer in answers.values()]
    return {
        "seconds": seconds,
        "difference": max((float((output - outputs[0]).abs().max()) for output in outputs[1:]), default=0.0),
        "statistics_off": {name: _apart(of, answers.get("basic")) for name, of in answers.items() if of.statistics},
        "left_out": left_out,
        "held_bytes": memory.bytes,
        "load": load,
        "threads": torch.get_num_threads(),
    }


def warmed_up(query: Tensor, key: Tensor, value: Tensor, names: Sequence[str]) -> tuple[dict[str, Way], dict[str, str]]:
    """The ways that work here, each called once on a short sequence, and the others with the reason."""
    ways, left_out = {}, {}
    for name in names:
        way = WAYS[name]
        length = query.shape[2] if name == "flex" else WARM_UP  # what is compiled is so for a length
        try:
            way(*(tensor[:, :, :length] for tensor in (query, key, value)))
            ways[name] = way
        except (RuntimeError, ImportError, ValueError) as error:
            if name in ("sdpa", "attend", "basic"):
                raise
            lines = [line for line in str(error).splitlines() if line.strip()] or [type(error).__name__]
            left_out[name] = lines[0].rpartition("Error: ")[2].strip()
    return ways, left_out


class held:  # noqa: N801 (a context)
    """The most memory that was held within a context, beyond what was held before: of the device, or of the process."""

    def __init__(self, device: torch.device) -> None:
        self.device, self.bytes = device, 0

    def __enter__(self) -> held:
        if self.device.type == "cuda":
            torch.cuda.reset_peak_memory_stats()
            self.before = torch.cuda.memory_allocated()
        else:
            machine.reset_peak()
            self.before = machine.resident_bytes()
        return self

    def __exit__(self, *_: object) -> None:
        peak = torch.cuda.max_memory_allocated() if self.device.type == "cuda" else machine.peak_bytes()
        self.bytes = peak - self.before


# Ways -----------------------------------------------------------------------------------------------------------------


def sdpa(query: Tensor, key: Tensor, value: Tensor) -> Answer:
    return Answer(scaled_dot_product_attention(query, key, value, is_causal=True, enable_gqa=True), {})


def bare(query: Tensor, key: Tensor, value: Tensor) -> Answer:
    return Answer(attend(query, key, value, Mask(causal=True), engine="blocked"), {})


def row_blocks(query: Tensor, key: Tensor, value: Tensor) -> Answer:
    return _read(query, key, value, "blocked")


def fused(query: Tensor, key: Tensor, value: Tensor) -> Answer:
    if not query.is_cuda:
        raise ValueError("needs a CUDA device")
    return _read(query, key, value, "fused")


def two_calls(query: Tensor, key: Tensor, value: Tensor) -> Answer:
    """Entropy by fused attention alone: E[s] = scale · q · SDPA(q, k, k), entropy = log-sum-exp − E[s]."""
    key, value = _for_query_heads(query, key), _for_query_heads(query, value)
    output = scaled_dot_product_attention(query, key, value, is_causal=True)
    if query.is_cuda:
        mean_key, lse, *_ = torch.ops.aten._scaled_dot_product_flash_attention(query, key, key, 0.0, True, False)
    else:
        mean_key, lse = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu(query, key, key, 0.0, True)
    expected = (query.float() * mean_key.float()).sum(-1) * D_HEAD**-0.5
    return Answer(output, {"entropy": (lse - expected).double().mean(-1)[0]})


def flex(query: Tensor, key: Tensor, value: Tensor) -> Answer:
    """FlexAttention, compiled, with log-sum-exp and largest scores: the largest weight is exp of their difference."""
    from torch.nn.attention.flex_attention import AuxRequest

    wanted = AuxRequest(lse=True, max_scores=True)
    mask = _block_mask(query.shape[2], query.device)
    output, found = _flex()(query, key, value, block_mask=mask, enable_gqa=True, return_aux=wanted)
    return Answer(output, {"max_weight": (found.max_scores - found.lse).exp().double().mean(-1)[0]})


def eager(query: Tensor, key: Tensor, value: Tensor) -> Answer:
    """The whole pattern, as eager attention of transformers makes it, and its statistics."""
    key, value = _for_query_heads(query, key), _for_query_heads(query, value)
    scores = (query @ key.mT).mul_(D_HEAD**-0.5)
    n = query.shape[2]
    scores.masked_fill_(torch.ones(n, n, dtype=torch.bool, device=query.device).triu_(1), float("-inf"))
    pattern = scores.softmax(-1, dtype=torch.float32)
    del scores
    found = patterns.of_pattern(pattern)
    return Answer(pattern.to(value.dtype) @ value, dict(zip(patterns.NAMES, found, strict=True)))


WAYS: dict[str, Way] = {
    "sdpa": sdpa, "attend": bare, "basic": row_blocks, "fused": fused, "two_calls": two_calls, "flex": flex,
    "eager": eager,
}  # fmt: skip


def _read(query: Tensor, key: Tensor, value: Tensor, engine: Any) -> Answer:
    output, readings = attend(query, key, value, Mask(causal=True), probes=probes.basic(), engine=engine)
    entropy, largest, near, first, distance = (reading.values[0] for reading in readings)  # finished when asked for
    found = (entropy, largest, near[:, 0], near[:, 1], first[:, 0], distance)
    return Answer(output, dict(zip(patterns.NAMES, found, strict=True)))


def _for_query_heads(query: Tensor, tensor: Tensor) -> Tensor:
    return tensor.repeat_interleave(query.shape[1] // tensor.shape[1], 1)


@cache
def _flex() -> Any:
    from torch.nn.attention.flex_attention import flex_attention

    return torch.compile(flex_attention, dynamic=False)


@cache
def _block_mask(length: int, device: torch.device) -> Any:
    from torch.nn.attention.flex_attention import create_block_mask

    return create_block_mask(lambda _b, _h, query, key: query >= key, None, None, length, length, str(device))


def _apart(ours: Answer, theirs: Answer | None) -> float | None:
    if theirs is None:
        return None
    pairs = [(found.double(), theirs.statistics[name].double()) for name, found in ours.statistics.items()]
    return max(float(((a - b).abs() / b.abs().clamp_min(1)).max()) for a, b in pairs)


def _now(device: torch.device) -> float:
    if device.type == "cuda":
        torch.cuda.synchronize()
    return time.perf_counter()


if __name__ == "__main__":
    main()
