"""The fused engine on a GPU, checked, tuned and timed in one call: ``python -m benchmarks.gpu``.

1. checks: outputs and statistics against the row-block engine in float32, by head dimension and dtype;
2. tuning: the fastest tile of each head dimension and dtype, of those that fit on the chip;
3. time: fused with the basic probes against PyTorch's own fused attention and against row blocks, as ratios of medians
   over rounds in which all of them take turns; and the share of the device's matrix rate, measured in the same run;
4. memory: one layer at 131,072 tokens, beyond its inputs;
5. a whole model, plain and read.

Writes ``gpu.json`` and ``gpu.md`` with the card's name and versions. ``--quick`` takes small sizes: on a CPU it goes
through all of it in Triton's interpreter (``TRITON_INTERPRET=1``), whose times say nothing.
"""

from __future__ import annotations

import itertools
import statistics
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import tyro
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention

from interp.attention import Mask, attend, launch, probes
from interp.results.storage import to_json, write_file

ROOT = Path(__file__).parents[1]
TILES = [(64, 32), (64, 64), (128, 32), (128, 64), (128, 128)]
LAUNCHES = [(4, 2), (4, 3), (8, 2), (8, 3)]


@dataclass(frozen=True)
class Config:
    """Check, tune and time the fused engine."""

    lengths: tuple[int, ...] = (4096, 8192, 16384, 32768)
    """Tokens of the timed calls."""
    widths: tuple[int, ...] = (64, 128)
    """Head dimensions."""
    longest: int = 131_072
    """Tokens of the one layer whose memory is measured; 0 leaves it out."""
    model: str | None = "smollm2-135m"
    """A model to read whole; None leaves it out."""
    rounds: int = 7
    """How often each call is timed."""
    quick: bool = False
    """Small sizes."""
    out: Path = ROOT / "benchmarks" / "results"
    """Folder of the results."""


def main() -> int:
    """Everything in order; 1 where a check failed."""
    given = tyro.cli(Config)
    config = Config((64, 128), (16,), 256, None, 2, True, given.out) if given.quick else given
    device = "cuda" if torch.cuda.is_available() else "cpu"
    found: dict[str, Any] = {"device": _device(device), "torch": torch.__version__}
    found["checks"] = list(checks(config, device))
    found["tiles"] = {} if config.quick else tune(config, device)
    found["rates"] = rates(config, device)
    with _tiles(found["tiles"]):
        found["times"] = list(times(config, device, found["rates"]))
        found["memory"] = memory(config, device)
        found["model"] = whole_model(config, device)
    text = table(found)
    write_file(config.out / "gpu.json", to_json(found))
    write_file(config.out / "gpu.md", text)
    print(text)
    return 0 if all(row["ok"] for row in found["checks"]) else 1


def checks(config: Config, device: str) -> Iterator[dict[str, Any]]:
    """Largest differences between the engines; statistics are compared in float32 whatever the dtype."""
    for d, dtype in itertools.product((16, *config.widths, 80), (torch.float32, torch.float16, torch.bfloat16)):
        query, key, value = _inputs(1, 6, 2, 64 if config.quick else 700, d, dtype, device)
        ours, found = attend(query, key, value, Mask(causal=True), probes=probes.basic(), engine="fused")
        theirs, expected = attend(
            query.float(), key.float(), value.float(), Mask(causal=True), probes=probes.basic(), engine="blocked"
        )
        off = float((ours.float() - theirs).abs().max())
        statistics_off = max(
            float(((a.values - b.values).abs() / b.values.abs().clamp_min(1)).nan_to_num().max())
            for a, b in zip(found, expected, strict=True)
        )
        bound = {torch.float32: 2e-5, torch.float16: 4e-3, torch.bfloat16: 3e-2}[dtype]
        yield {
            "d_head": d, "dtype": _name(dtype), "output": off, "statistics": statistics_off,
            "ok": off < bound and statistics_off < 1e-4,
        }  # fmt: skip


def tune(config: Config, device: str) -> dict[str, list[int]]:
    """The fastest tile and launch by head dimension and dtype; those that do not fit on the chip are left out."""
    best: dict[str, list[int]] = {}
    for d, dtype in itertools.product(config.widths, (torch.bfloat16, torch.float32)):
        query, key, value = _inputs(1, 16, 16, 4096, d, dtype, device)
        seconds: dict[tuple[int, int, int, int], float] = {}
        for (rows, columns), (warps, stages) in itertools.product(TILES, LAUNCHES):
            tile = (rows, columns, warps, stages)
            try:
                with _tiles({f"{d} {_name(dtype)}": list(tile)}):
                    seconds[tile] = statistics.median(_timed(_read(query, key, value), device, 3))
            except Exception as error:
                if "OutOfResources" not in type(error).__name__:
                    raise
        best[f"{d} {_name(dtype)}"] = list(min(seconds, key=seconds.__getitem__))
    return best


def rates(config: Config, device: str) -> dict[str, float]:
    """What the device reaches on a large matrix product in bfloat16 (operations a second), and in copying (bytes)."""
    n = 256 if config.quick else 8192
    a, b = (torch.randn(n, n, device=device, dtype=torch.bfloat16) for _ in range(2))
    product = min(_timed(lambda: a @ b, device, config.rounds))
    source = torch.empty(n * n * 4, device=device)
    copy = min(_timed(lambda: source.clone(), device, config.rounds))
    return {"operations": 2 * n**3 / product, "bytes": 2 * source.nbytes / copy}


def times(config: Config, device: str, rate: dict[str, float]) -> Iterator[dict[str, Any]]:
    """Medians of seconds, in turns."""
    for d, length in itertools.product(config.widths, config.lengths):
        heads = 2 if config.quick else 16
        query, key, value = _inputs(1, heads, heads, length, d, torch.bfloat16, device)
        ways: dict[str, Callable[[], object]] = {
            "sdpa": lambda q=query, k=key, v=value: scaled_dot_product_attention(q, k, v, is_causal=True),
            "fused": lambda q=query, k=key, v=value: attend(q, k, v, Mask(causal=True), engine="fused"),
            "fused, basic probes": _read(query, key, value),
            "row blocks, basic probes": lambda q=query, k=key, v=value: attend(
                q, k, v, Mask(causal=True), probes=probes.basic(), engine="blocked"
            ),
        }
        seconds: dict[str, list[float]] = {name: [] for name in ways}
        for way in ways.values():
            way()
        for _ in range(config.rounds):
            for name, way in ways.items():
                seconds[name] += _timed(way, device, 1)
        median = {name: statistics.median(of) for name, of in seconds.items()}
        work = 2 * heads * length**2 * d  # both products of the causal half
        yield {
            "d_head": d, "length": length, "seconds": median,
            "over_sdpa": {name: value / median["sdpa"] for name, value in median.items()},
            "share_of_matrix_rate": work / median["fused, basic probes"] / rate["operations"],
        }  # fmt: skip


def memory(config: Config, device: str) -> dict[str, Any]:
    """The most that one layer takes beyond its inputs."""
    if not config.longest or device != "cuda":
        return {}
    query, key, value = _inputs(1, 16, 16, config.longest, 64, torch.bfloat16, device)
    torch.cuda.reset_peak_memory_stats()
    before = torch.cuda.memory_allocated()
    _read(query, key, value)()
    return {"length": config.longest, "bytes": torch.cuda.max_memory_allocated() - before}


def whole_model(config: Config, device: str) -> dict[str, Any]:
    """A forward pass of a model, plain (its own SDPA) and read with the basic probes."""
    if config.model is None:
        return {}
    import interp
    from interp.models.huggingface import implementation

    model = interp.load(config.model, device=device, dtype="bfloat16", verify=False)
    tokens = torch.randint(100, model.d_vocab or 1000, (1, 4096), device=device)

    def plain() -> object:
        with implementation(model.module, "sdpa"), torch.no_grad():  # type: ignore[arg-type]
            return model.module(tokens, logits_to_keep=1)

    def read() -> object:
        return model.run(tokens, probes=probes.basic(), logits_to_keep=1)

    plain()
    read()
    seconds: dict[str, list[float]] = {"plain": [], "read": []}
    for _ in range(config.rounds):
        seconds["plain"] += _timed(plain, device, 1)
        seconds["read"] += _timed(read, device, 1)
    median = {name: statistics.median(of) for name, of in seconds.items()}
    return {"name": config.model, "length": 4096, "seconds": median, "overhead": median["read"] / median["plain"] - 1,
            "engines": sorted(model.seam.engines)}  # fmt: skip


def table(found: dict[str, Any]) -> str:
    """What was found as Markdown."""
    lines = [f"# The fused engine on {found['device']} (torch {found['torch']})", "", "## Checks", "",
             "| d_head | dtype | output off by | statistics off by | |", "|---|---|---|---|---|"]  # fmt: skip
    for row in found["checks"]:
        verdict = "ok" if row["ok"] else "**too far**"
        lines.append(
            f"| {row['d_head']} | {row['dtype']} | {row['output']:.1e} | {row['statistics']:.1e} | {verdict} |"
        )
    names = list(found["times"][0]["seconds"]) if found["times"] else []
    lines += ["", "## Time, causal, bfloat16: over PyTorch's fused attention", "",
              "| d_head | tokens | " + " | ".join(names[1:]) + " | share of matrix rate |",
              "|---" * (len(names) + 2) + "|"]  # fmt: skip
    for row in found["times"]:
        ratios = " | ".join(f"{row['over_sdpa'][name]:.2f}" for name in names[1:])
        lines.append(f"| {row['d_head']} | {row['length']:,} | {ratios} | {row['share_of_matrix_rate']:.1%} |")
    if found["memory"]:
        lines += ["", f"One layer of 16 heads at {found['memory']['length']:,} tokens: "
            f"{found['memory']['bytes'] / 1e9:.2f} GB "
                  "beyond its inputs."]  # fmt: skip
    if found["model"]:
        lines += ["", f"{found['model']['name']} at {found['model']['length']:,} tokens: reading costs "
                  f"{found['model']['overhead']:+.1%} (engine: {', '.join(found['model']['engines'])})."]  # fmt: skip
    if found["tiles"]:
        lines += [
            "",
            "Tiles (rows, columns, warps, stages): " + ", ".join(f"{k}: {v}" for k, v in found["tiles"].items()),
        ]
    return "\n".join(lines) + "\n"


def _read(query: Tensor, key: Tensor, value: Tensor) -> Callable[[], object]:
    return lambda: attend(query, key, value, Mask(causal=True), probes=probes.basic(), engine="fused")


@contextmanager
def _tiles(tiles: dict[str, list[int]]) -> Iterator[None]:
    """Use other tiles for a while, by head dimension and dtype."""
    usual = launch.tile

    def chosen(d: int, dtype: torch.dtype, device: torch.device) -> tuple[int, int, dict[str, Any]]:
        tile = tiles.get(f"{d} {_name(dtype)}")
        if tile is None:
            return usual(d, dtype, device)
        rows, columns, warps, stages = tile
        return rows, columns, {"num_warps": warps, "num_stages": stages}

    launch.tile = chosen
    try:
        yield
    finally:
        launch.tile = usual


def _inputs(
    batch: int, heads: int, kv_heads: int, length: int, d: int, dtype: torch.dtype, device: str
) -> tuple[Tensor, Tensor, Tensor]:
    generator = torch.Generator().manual_seed(d + length)
    sizes = (heads, kv_heads, kv_heads)
    query, key, value = (torch.randn(batch, n, length, d, generator=generator).to(device, dtype) for n in sizes)
    return query, key, value


def _timed(call: Callable[[], object], device: str, rounds: int) -> list[float]:
    seconds = []
    for _ in range(rounds):
        if device == "cuda":
            torch.cuda.synchronize()
        start = time.perf_counter()
        call()
        if device == "cuda":
            torch.cuda.synchronize()
        seconds.append(time.perf_counter() - start)
    return seconds


def _device(device: str) -> str:
    return torch.cuda.get_device_name() if device == "cuda" else "a CPU, in Triton's interpreter"


def _name(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")


if __name__ == "__main__":
    sys.exit(main())
