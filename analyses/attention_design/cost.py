"""Cost: what a pattern takes, what the cache takes, and what windows and experts save."""

from __future__ import annotations

import math
import weakref
from collections.abc import Callable

import numpy as np
import torch
import torch.nn.functional as F  # noqa: N812 (the name everyone knows)
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.flop_counter import FlopCounterMode

from analyses.attention_design.claims import Claim, Curve, Panel, at_most, exponent, number, small
from analyses.attention_design.config import Config
from interp.attention import Mask, attend
from interp.attention.probes import basic
from interp.models.transformer import Transformer, TransformerConfig

TOPIC = "cost"
LENGTHS = (512, 1024, 2048, 4096)
GIB = 2**30

#: layers, query heads, KV heads, features a head: published configurations
SHAPES = {
    "Llama-2 7B (MHA)": (32, 32, 32, 128),
    "Llama-3 8B (GQA, 8)": (32, 32, 8, 128),
    "Falcon 7B (MQA)": (32, 71, 1, 64),
    "SmolLM2 135M (GQA, 3)": (30, 9, 3, 64),
}


def claims(config: Config) -> list[Claim]:
    """All claims of this section."""
    return [pattern(), engines(config.seed), cache(), window(config.seed), experts()]


def pattern() -> Claim:
    """Bytes of a pattern; doubling the length quadruples them."""
    lengths = (4096, 8192, 32768)
    held = {n: torch.empty(n, n, device="meta", dtype=torch.float32).nbytes for n in lengths}
    return Claim(
        "pattern-bytes",
        TOPIC,
        "The pattern grows with the square of the length.",
        "T² numbers of 4 bytes for each head: 64 MiB at 4,096 tokens, 4 GiB at 32,768.",
        "One head's pattern in float32 takes "
        + ", ".join(f"{held[n] / GIB:.3g} GiB at {n:,}" for n in lengths)
        + " tokens.",
        (
            number("GiB at 32,768 tokens, one head", held[32768] / GIB, 4.0),
            number("8,192 over 4,096 tokens", held[8192] / held[4096], 4.0),
        ),
        said="32,768² in float32 is 4 GiB per head.",
    )


def engines(seed: int) -> Claim:
    """Memory of eager attention, of torch's fused one and of row blocks; and that the last two are exact."""
    ways: dict[str, Callable[[Tensor, Tensor, Tensor], object]] = {
        "eager": _eager,
        "torch's fused": lambda q, k, v: F.scaled_dot_product_attention(q, k, v, is_causal=True),
        "row blocks, with the basic probes": lambda q, k, v: attend(q, k, v, Mask(causal=True), probes=basic()),
    }
    peaks: dict[str, list[float]] = {name: [] for name in ways}
    for length in LENGTHS:
        q, k, v = _normal(seed, length)
        for name, way in ways.items():
            with _Held() as held:
                way(q, k, v)
            peaks[name].append(float(held.peak))
    slopes = {name: exponent(LENGTHS[-3:], found[-3:]) for name, found in peaks.items()}
    q, k, v = _normal(seed, 512)
    exact = _eager(q.double(), k.double(), v.double())
    off = {
        "torch's fused": float((ways["torch's fused"](q, k, v) - exact).abs().max()),  # type: ignore[operator]
        "row blocks": float((attend(q, k, v, Mask(causal=True)) - exact).abs().max()),
        "eager": float((_eager(q, k, v) - exact).abs().max()),
    }
    last = {name: found[-1] / 2**20 for name, found in peaks.items()}
    return Claim(
        "memory",
        TOPIC,
        "The pattern need not be held: attention can be computed, and read, a block of rows at a time.",
        "Eager attention holds T² weights. An online softmax, or whole rows in blocks of a fixed size, holds what "
        "grows with T; "
        "the result is the same, not an approximation.",
        f"At {LENGTHS[-1]:,} tokens, one head of 64, the most that is held beyond the inputs is "
        + ", ".join(f"{size:.0f} MiB ({name})" for name, size in last.items())
        + "; it grows as "
        + ", ".join(f"T^{slope:.2f} ({name})" for name, slope in slopes.items())
        + ". Against float64 they are off by "
        + ", ".join(f"{small(o)} ({name})" for name, o in off.items())
        + ".",
        (
            number("exponent of memory in T, eager", slopes["eager"], 2.0, 0.1),
            at_most("exponent of memory in T, torch's fused", slopes["torch's fused"], 1.1),
            at_most(
                "exponent of memory in T, row blocks with probes", slopes["row blocks, with the basic probes"], 1.1
            ),
            at_most(
                "largest difference of torch's fused attention from float64, over eager's",
                off["torch's fused"] / off["eager"],
                4.0,
            ),
            at_most(
                "largest difference of row blocks from float64, over eager's", off["row blocks"] / off["eager"], 4.0
            ),
        ),
        (
            Panel(
                "Memory of one head",
                "tokens T",
                "most held beyond the inputs (MiB)",
                tuple(Curve(name, LENGTHS, np.array(found) / 2**20) for name, found in peaks.items()),
                "log",
                "log",
            ),
        ),
        not_shown="Time, which depends on the machine: `make bench` measures it against what else there is.",
    )


def cache() -> Claim:
    """KV cache of known shapes, and what fits into a memory."""
    rows = {name: 2 * layers * kv * d * 2 for name, (layers, _, kv, d) in SHAPES.items()}  # bytes a token, 16 bit
    budget = 24 * GIB
    fits = {name: budget // per for name, per in rows.items()}
    counted = _counted_cache()
    contexts = np.array([1024, 4096, 16384, 65536, 131072])
    return Claim(
        "kv-cache",
        TOPIC,
        "In decoding memory goes to keys and values, and grouped queries save it.",
        "2 · layers · KV heads · d · bytes for each token of each request: MQA divides it by the number of heads, GQA "
        "by the size "
        "of a group.",
        "Bytes a token in 16 bit: "
        + ", ".join(f"{per / 1024:.0f} KiB ({name})" for name, per in rows.items())
        + f". In {budget // GIB} GiB fit "
        + ", ".join(f"{n:,.0f} tokens ({name})" for name, n in fits.items())
        + ", of one request or shared by many.",
        (
            number("Llama-2 7B, KiB a token", rows["Llama-2 7B (MHA)"] / 1024, 512.0),
            number("GQA of 8 over MHA of 32", rows["Llama-3 8B (GQA, 8)"] / rows["Llama-2 7B (MHA)"], 0.25),
            number("cache of a small model, counted over the formula", counted, 1.0),
        ),
        (
            Panel(
                "KV cache of 8 requests, 16 bit",
                "context (tokens)",
                "GiB",
                tuple(Curve(name, contexts, 8 * per * contexts / GIB) for name, per in rows.items()),
                "log",
                "log",
                reference=24.0,
                reference_name="24 GiB",
            ),
        ),
        not_shown="Weights and activations, which share the memory.",
    )


def window(seed: int) -> Claim:
    """A sliding window with sinks: linear cost, and nothing from beyond it."""
    width, sinks, length = 64, 4, 512
    i, j = torch.arange(length)[:, None], torch.arange(length)
    seen = (j <= i) & ((i - j < width) | (j < sinks))
    pairs = {n: float(sum(min(t + 1, width) + min(max(t + 1 - width, 0), sinks) for t in range(n))) for n in LENGTHS}
    full = {n: n * (n + 1) / 2 for n in LENGTHS}
    _, k, _ = _normal(seed, length)
    lost = []
    distances = (1, 16, 32, 63, 64, 128, 256)
    for distance in distances:
        target = (torch.arange(length) - distance).clamp_min(sinks)
        queries = 8 * torch.nn.functional.normalize(k[:, :, target], dim=-1) * k.norm(dim=-1, keepdim=True).mean()
        rows = torch.arange(300, length)
        weights = [
            attend(queries, k, torch.eye(length)[None, None], Mask(causal=True, allowed=mask))[0, 0, rows, target[rows]]
            for mask in (torch.ones_like(seen), seen)
        ]
        lost.append((float(weights[0].mean()), float(weights[1].mean())))
    inside = min(w for d, (_, w) in zip(distances, lost, strict=True) if d < width)
    beyond = max(w for d, (_, w) in zip(distances, lost, strict=True) if d >= width)
    return Claim(
        "window",
        TOPIC,
        "A sliding window makes attention linear in the length, and blind to what lies beyond it.",
        "With a window of w and s sinks each query reads w + s keys: T·(w + s) pairs instead of T²/2. A layer gets "
        "nothing "
        "from further back, whatever its heads look for; only depth carries it, w tokens a layer.",
        f"From {LENGTHS[0]} to {LENGTHS[-1]} tokens pairs grow as "
        f"T^{exponent(LENGTHS[1:], list(pairs.values())[1:]):.2f} with a "
        f"window of {width} and {sinks} sinks, and as T^{exponent(LENGTHS, list(full.values())):.2f} without. A head "
        "made to find "
        f"a key puts {inside:.0%} of its weight there at distances within the window, and {beyond:.0%} beyond.",
        (
            number("exponent of pairs in T, window", exponent(LENGTHS[1:], list(pairs.values())[1:]), 1.0, 0.05),
            number("exponent of pairs in T, full", exponent(LENGTHS, list(full.values())), 2.0, 0.01),
            number("weight on a key beyond the window", beyond, 0.0),
            number(
                "pairs that the mask permits, counted over the formula",
                float(seen.sum()) / pairs_of(length, width, sinks),
                1.0,
            ),
        ),
        (
            Panel(
                "A head that looks for one key",
                "distance of the key (tokens)",
                "weight on it",
                (
                    Curve("all keys", distances, [a for a, _ in lost]),
                    Curve(f"window {width}, {sinks} sinks", distances, [b for _, b in lost]),
                ),
                "log",
            ),
        ),
    )


def experts() -> Claim:
    """A mixture of experts: parameters grow with the experts, work with those that are used."""
    counts, top_k, d = (1, 2, 4, 8, 16), 1, 64
    parameters, work = [], []
    for n in counts:
        model = Transformer(
            TransformerConfig(d_vocab=8, d_model=d, n_layers=1, n_heads=2, mlp="moe", n_experts=n, top_k=top_k)
        )
        block = model.blocks[0].mlp
        parameters.append(sum(p.numel() for p in block.parameters()))
        with FlopCounterMode(display=False) as counter, torch.no_grad():
            block(torch.randn(1, 128, d, generator=torch.Generator().manual_seed(0)))
        work.append(counter.get_total_flops())
    return Claim(
        "experts",
        TOPIC,
        "A mixture of experts has many parameters and uses few of them for each token.",
        "With n experts and the best k for each token, parameters grow with n, operations with k (and the router's "
        "n·d).",
        f"From 1 to {counts[-1]} experts, one used, parameters grow {parameters[-1] / parameters[0]:.1f} times and "
        "counted "
        f"operations {work[-1] / work[0]:.2f} times.",
        (
            number("parameters, 16 experts over 1", parameters[-1] / parameters[0], 16.0, 0.5),
            at_most("operations, 16 experts over 1", work[-1] / work[0], 1.2),
        ),
        (
            Panel(
                "One expert a token",
                "experts",
                "relative to one expert",
                (
                    Curve("parameters", counts, np.array(parameters) / parameters[0]),
                    Curve("operations", counts, np.array(work) / work[0]),
                ),
                "log",
                "log",
            ),
        ),
    )


def pairs_of(length: int, width: int, sinks: int) -> float:
    """Pairs of query and key under a causal window with sinks."""
    return float(sum(min(t + 1, width) + min(max(t + 1 - width, 0), sinks) for t in range(length)))


def _normal(seed: int, length: int) -> tuple[Tensor, Tensor, Tensor]:
    generator = torch.Generator().manual_seed(seed)
    q, k, v = (torch.randn(1, 1, length, 64, generator=generator) for _ in range(3))
    return q, k, v


def _eager(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    scores = q @ k.mT / math.sqrt(q.shape[-1])
    future = torch.ones(scores.shape[-2:], dtype=torch.bool).triu(1)
    return scores.masked_fill(future, -math.inf).softmax(-1) @ v


def _counted_cache() -> float:
    """Bytes of a small model's cache over the formula's."""
    from interp.models.transformer import Cache

    model = Transformer(TransformerConfig(d_vocab=8, d_model=64, n_layers=3, n_heads=4, n_kv_heads=2))
    kept = Cache()
    with torch.no_grad():
        model(torch.zeros(1, 10, dtype=torch.long), cache=kept)
    held = sum(t.nbytes for t in _tensors(kept))
    return held / (2 * 3 * 2 * 16 * 4 * 10)


def _tensors(kept: object) -> list[Tensor]:
    found: list[Tensor] = []
    todo: list[object] = [kept]
    while todo:
        each = todo.pop()
        if isinstance(each, Tensor):
            found.append(each)
        elif isinstance(each, dict):
            todo.extend(each.values())
        elif isinstance(each, list | tuple):
            todo.extend(each)
        elif hasattr(each, "__dict__"):
            todo.extend(vars(each).values())
    return found


class _Held(TorchDispatchMode):
    """Counts the bytes of tensors made while it is active, as long as they live. ``peak``: the most at one time."""

    def __init__(self) -> None:
        super().__init__()
        self.now = self.peak = 0
        self._seen: set[int] = set()

    def __torch_dispatch__(self, func: object, types: object, args: tuple = (), kwargs: dict | None = None) -> object:
        result = func(*args, **(kwargs or {}))  # type: ignore[operator]
        for tensor in result if isinstance(result, tuple | list) else (result,):
            if isinstance(tensor, Tensor):
                self._count(tensor)
        return result

    def _count(self, tensor: Tensor) -> None:
        storage = tensor.untyped_storage()
        key, size = storage._cdata, storage.nbytes()
        if key in self._seen or not size:
            return
        self._seen.add(key)
        self.now += size
        self.peak = max(self.peak, self.now)
        weakref.finalize(storage, self._gone, key, size)

    def _gone(self, key: int, size: int) -> None:
        self._seen.discard(key)
        self.now -= size
