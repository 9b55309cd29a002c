"""Time of ablating heads one by one, and of scoring all at once: ``python -m benchmarks.ablation`` (in ``make bench``).

Three ways to the same losses, timed in turn on the same heads: *naive*, a full forward pass of the untouched
transformers model (SDPA) for each head, its z replaced at the input of W_O by a hook; *suffix layers*,
`ablation_effects` with the layers before the head replayed; *sliced loss*, the same with the unembedding taken a slice
of the vocabulary at a time. And one call of `michel`, which scores all heads, against one forward pass of the untouched
model with its loss.
"""

import copy
import json
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np
import torch
import tyro
from rich.console import Console
from rich.table import Table
from torch import Tensor, nn

import interp
from benchmarks import machine
from interp import HookedModel
from interp.ablation import Batch, ablation_effects, mean_loss, single_heads
from interp.errors import UsageError, UserError
from interp.importance import michel
from interp.results.storage import to_json, write_file

ROOT = Path(__file__).parents[1]
NAMES = {
    "naive": "full forward pass for each head",
    "whole loss": "suffix layers",
    "sliced loss": "suffix, sliced loss",
}


@dataclass(frozen=True)
class Config:
    """Measure exact single-head ablation and importance of all heads against full forward passes."""

    model: str = "smollm2-135m"
    """A bundled name, folder, .gguf file or hub name: a decoder of the Llama kind, whose W_O is ``o_proj``."""
    sequences: int = 4
    """Sequences of the one batch."""
    length: int = 128
    """Tokens of a sequence."""
    heads: int = 30
    """How many heads are ablated, spread evenly over all of them."""
    at_once: int | None = None
    """Heads of one layer in a pass. None: 1 on a CPU, as many as a layer has on a GPU."""
    rounds: int = 3
    """How often each way is timed; the ways take turns."""
    device: str | None = None
    """cpu, cuda, … None: what there is."""
    check: bool = False
    """Leave with 1 where a target is missed: 1.5 × faster than naive, and importance within 4 forward passes."""
    out: Path = ROOT / "benchmarks" / "results"
    """Folder of the results: ablation.json."""

    def __post_init__(self) -> None:
        if min(self.sequences, self.heads, self.rounds, self.at_once or 1) < 1 or self.length < 2:
            raise UsageError("--sequences, --heads, --rounds and --at-once are at least 1, --length at least 2")


def main(argv: Sequence[str] | None = None) -> int:
    """Measure, show and save; the exit code."""
    try:
        config = tyro.cli(Config, args=argv, prog="python -m benchmarks.ablation")
        found = measure(config)
    except UserError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2 if isinstance(error, UsageError) else 1
    config.out.mkdir(parents=True, exist_ok=True)
    write_file(config.out / "ablation.json", to_json(found))
    show(found)
    return int(config.check and not (found["speed_up"]["sliced loss"] >= 1.5 and found["michel_in_forwards"] <= 4))


def measure(config: Config) -> dict[str, Any]:
    """Seconds of each way and how far its losses are from the naive ones."""
    model = interp.load(config.model, device=config.device)
    tokens = torch.randint(
        (model.d_vocab or 2) // 10, model.d_vocab or 2, (config.sequences, config.length),
        generator=torch.Generator().manual_seed(0),
    )  # fmt: skip
    every = single_heads(model)
    chosen = [every[i] for i in np.linspace(0, len(every) - 1, min(config.heads, len(every))).round().astype(int)]
    batch: dict[str, Any] = {"tokens": tokens}
    others: dict[str, Any] = {"tokens": tokens.roll(1, 0).flip(1)}
    donor = model.run(**others, keep="z").z
    plain = untouched(model)
    at_once = config.at_once or (1 if model.device.type == "cpu" else max(site.n_heads for site in model.sites))

    def suffix(metric: Callable[[HookedModel, Batch], Tensor]) -> np.ndarray:
        return ablation_effects(
            model, [batch], metric, chosen, ["resample"], others=[others], replay=True, at_once=at_once
        ).ablated[0]  # fmt: skip

    ways: dict[str, Callable[[], Any]] = {
        "naive": lambda: naive(plain, model, chosen, tokens.to(model.device), donor),
        "whole loss": lambda: suffix(whole_loss),
        "sliced loss": lambda: suffix(mean_loss),
        "forward": lambda: plain_loss(plain, tokens.to(model.device)),
        "michel": lambda: michel(model, [batch], whole_loss),
    }
    for way in ("forward", "michel"):
        ways[way]()
    seconds: dict[str, list[float]] = {name: [] for name in ways}
    busy: dict[str, list[float]] = {name: [] for name in ways}
    losses: dict[str, Any] = {}
    for number in range(config.rounds):
        for name in list(ways)[:: 1 if number % 2 == 0 else -1]:
            of_wall, of_processor, losses[name] = _timed(ways[name], model.device)
            seconds[name].append(of_wall)
            busy[name].append(of_processor)
    # what others do on the processor meanwhile is in the time on the wall, and not in the processor's
    counted = busy if model.device.type == "cpu" else seconds
    middle = {name: float(np.median(each)) for name, each in counted.items()}
    return {
        "config": {**asdict(config), "out": str(config.out), "at_once": at_once},
        "started": datetime.now(UTC).isoformat(timespec="seconds"),
        "device": str(model.device),
        "threads": torch.get_num_threads(),
        "load": machine.load(),
        "heads": len(chosen),
        "seconds": seconds,
        "processor_seconds": busy,
        "seconds_per_head": {name: middle[name] / len(chosen) for name in NAMES},
        "speed_up": {name: middle["naive"] / middle[name] for name in NAMES},
        "largest_difference": {name: float(np.abs(losses[name] - losses["naive"]).max()) for name in NAMES},
        "michel_in_forwards": middle["michel"] / middle["forward"],
    }


def whole_loss(model: HookedModel, batch: Batch) -> Tensor:
    """Mean next-token loss of each sequence, from the logits of all positions."""
    return model.token_loss(**batch).mean(1)


def untouched(model: HookedModel) -> Any:
    """A copy of the transformers model with SDPA."""
    plain: Any = copy.deepcopy(model.module)
    plain.set_attn_implementation("sdpa")
    return plain


@torch.no_grad()
def naive(
    plain: Any, model: HookedModel, sets: Sequence[Sequence[tuple[str, int]]], tokens: Tensor, donor: dict[str, Tensor]
) -> np.ndarray:
    """One full forward pass for each head: [head, sequence] losses."""
    found = []
    for ((name, head),) in sets:
        site = model.site(name)
        part = slice(head * site.d_head, (head + 1) * site.d_head)

        def replace(_: nn.Module, given: Any, part: slice = part, name: str = name, head: int = head) -> Any:
            z = given[0].clone()
            z[..., part] = donor[name][:, head]
            return (z,)

        hook = plain.get_submodule(f"{site.path}.o_proj").register_forward_pre_hook(replace)
        found.append(plain_loss(plain, tokens))
        hook.remove()
    return torch.stack(found).double().cpu().numpy()


@torch.no_grad()
def plain_loss(plain: Any, tokens: Tensor) -> Tensor:
    """Mean next-token loss of each sequence by one forward pass of the untouched model."""
    logits = plain(input_ids=tokens, use_cache=False).logits[:, :-1]
    loss = nn.functional.cross_entropy(logits.flatten(0, 1).float(), tokens[:, 1:].flatten(), reduction="none")
    return loss.view(len(tokens), -1).mean(1)


def _timed(way: Callable[[], Any], device: torch.device) -> tuple[float, float, Any]:
    """Seconds on the wall, seconds of the processor, and what came out."""
    wall, processor = time.perf_counter(), time.process_time()
    found = way()
    if device.type == "cuda":
        torch.cuda.synchronize()
    return time.perf_counter() - wall, time.process_time() - processor, found


def show(found: dict[str, Any]) -> None:
    """The table on the terminal."""
    size = f"{found['config']['sequences']} × {found['config']['length']} tokens"
    table = Table("way", "ms a head", "speed-up", "largest difference of a loss", title=f"Ablation, {size}")
    for name, words in NAMES.items():
        table.add_row(
            words, f"{1000 * found['seconds_per_head'][name]:.1f}", f"{found['speed_up'][name]:.2f}",
            f"{found['largest_difference'][name]:.1e}",
        )  # fmt: skip
    Console().print(table)
    Console().print(f"importance of all heads: {found['michel_in_forwards']:.2f} forward passes with their loss")
    print(json.dumps(found["seconds"]), file=sys.stderr)


if __name__ == "__main__":
    raise SystemExit(main())
