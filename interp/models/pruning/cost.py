"""What a model costs: parameters, cache, arithmetic, and time, pruned against unpruned and against masked."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from time import perf_counter, process_time
from typing import Any, Literal, cast

import numpy as np
import pandas as pd
import torch
from torch import Tensor, nn
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils.flop_counter import FlopCounterMode

from interp.errors import UserError
from interp.models.hooked import HookedModel
from interp.models.inputs import example_tokens
from interp.models.pruning.cutting import numbers_in_base
from interp.models.pruning.loading import check_base
from interp.statistics import mean_interval

__all__ = ["CLOCKS", "Clock", "Times", "measure_times", "ratios", "sizes", "without_core"]

VARIANTS = ("unpruned", "masked", "pruned")
"""The model as it was; with the outputs of the removed heads multiplied by zero; with these heads cut out."""

Clock = Literal["seconds", "cpu_seconds"]
CLOCKS: tuple[Clock, Clock] = ("seconds", "cpu_seconds")

_ORDERS = [[VARIANTS[i] for i in order] for order in ((0, 1, 2), (2, 1, 0), (1, 2, 0), (0, 2, 1), (1, 0, 2), (2, 0, 1))]

Watch = Callable[[Sequence[Any], str], Iterator[Any]]


def sizes(model: HookedModel, length: int = 512) -> dict[str, int | float]:
    """What a model holds and computes.

    Args:
        length: tokens of a sequence (of each side of an encoder–decoder) that the arithmetic is counted for.

    Returns:
        ``parameters`` (a weight under two names counts once); ``attention_parameters``, those of the attention modules'
        projections; ``cache_bytes_per_token``, keys and values that causal self-attention keeps of each token, in the
        dtype of the weights; ``cache_bytes_per_source_token``, those of cross-attention for each token of the encoder;
        ``flops_prompt``, of one forward pass over one sequence, all logits included; ``flops_per_token``, of that pass
        divided by its length. A multiplication and an addition are two FLOPs. They are counted as PyTorch executes them
        with SDPA's plain arithmetic, in which causal attention multiplies with every key.
    """
    counted = {id(p): p.numel() for p in model.module.parameters()}
    attention = {id(p): p.numel() for s in model.sites for m in s.projections.values() for p in m.parameters()}
    element = torch.empty((), dtype=model.dtype).element_size()
    kept = {"self": 0, "cross": 0}
    for site in model.sites:
        if site.kind == "cross" or _caches(model, site.stack):
            kept[site.kind] += 2 * site.n_kv_heads * site.d_head * element
    flops = _flops(model, length)
    return {
        "parameters": sum(counted.values()), "attention_parameters": sum(attention.values()),
        "cache_bytes_per_token": kept["self"], "cache_bytes_per_source_token": kept["cross"],
        "flops_prompt": flops, "flops_per_token": flops / length,
    }  # fmt: skip


@dataclass(frozen=True, eq=False)
class Times:
    """Measured times.

    Attributes:
        seconds: one row per measurement: ``phase`` (prompt, decoding), ``batch_size``, ``length``, ``round``,
            ``variant`` (`VARIANTS`), ``seconds`` (prompt: of the forward pass over all tokens; decoding: of one further
            token of every sequence), ``cpu_seconds`` (what the process's threads spent, the steadier of the two where
            other programs disturb; of no meaning for a model on a GPU).
        attention: what computed attention: "sdpa", PyTorch's fused kernel as one would use it without this project; or
            "interp" where a model has no SDPA.
    """

    seconds: pd.DataFrame
    attention: str


@torch.no_grad()
def measure_times(
    base: HookedModel,
    pruned: HookedModel,
    *,
    batch_sizes: Sequence[int] = (1, 8),
    lengths: Sequence[int] = (128, 512),
    new_tokens: int = 16,
    rounds: int = 7,
    seed: int = 0,
    watch: Watch | None = None,
) -> Times:
    """Time of the prompt and of decoding, unpruned, masked and pruned, in alternating runs.

    In each round the three variants run one after the other, every round in another order, so that what else the
    machine does weighs on all of them alike. Sequences are random tokens; ``new_tokens + 1`` are generated after them.
    The time of the prompt is that to the end of the first forward pass, the time of decoding that of the median pass
    of those that follow (from the end of one to the end of the next).

    Args:
        base: the model that ``pruned`` was cut from, which may have been pruned before. pruned: the smaller one.
        new_tokens: how many tokens decoding is measured on; 0 leaves decoding out.
        watch: shows progress: takes the settings that are gone through and what they are, and hands them on.

    Raises:
        UserError: ``pruned`` was not cut from ``base``; sizes below 1; sequences longer than the context.
    """
    _check(base, pruned, batch_sizes, lengths, new_tokens, rounds)
    settings = [(batch_size, length) for length in lengths for batch_size in batch_sizes]
    rows: list[dict[str, Any]] = []
    with without_core(base) as attention, without_core(pruned):
        for batch_size, length in settings if watch is None else watch(settings, "batch sizes and lengths"):
            tokens = example_tokens(base, length, batch_size, seed).to(base.device)
            for model in (base, pruned):  # builds kernels, touches memory
                _timed(model, tokens, min(new_tokens, 1))
            for number in range(rounds):
                for variant in _ORDERS[number % len(_ORDERS)]:
                    model = pruned if variant == "pruned" else base
                    with ExitStack() as stack:
                        if variant == "masked":
                            stack.enter_context(_masked(base, pruned))
                        found = _timed(model, tokens, new_tokens)
                    where = {"batch_size": batch_size, "length": length, "round": number, "variant": variant}
                    rows += [{"phase": phase, **where, **taken} for phase, taken in found.items()]
    return Times(pd.DataFrame(rows), attention)


def ratios(times: Times, clock: Clock = "seconds", level: float = 0.95) -> pd.DataFrame:
    """Time of the pruned and of the masked model over that of the unpruned one.

    Ratios are taken within a round, and averaged over rounds as logarithms (a geometric mean); the interval is that of
    Student's t or the bootstrap over rounds (`interp.statistics.mean_interval`).

    Returns:
        One row per phase, batch size, length and variant (masked, pruned): ``ratio, ci_low, ci_high, n`` (rounds),
        ``seconds`` (median of the variant, by the clock) and ``seconds_unpruned``.
    """
    keys = ["phase", "batch_size", "length"]
    rows = []
    for setting, part in times.seconds.groupby(keys, sort=False):
        where: dict[str, Any] = dict(zip(keys, cast(tuple, setting), strict=True))
        by_variant = part.pivot(index="round", columns="variant", values=clock)
        for variant in VARIANTS[1:]:
            logs = np.log((by_variant[variant] / by_variant[VARIANTS[0]]).to_numpy())
            found = mean_interval(logs, level=level)
            rows.append({
                **where, "variant": variant, "ratio": np.exp(found.value),
                "ci_low": np.exp(found.low), "ci_high": np.exp(found.high), "n": int(found.n),
                "seconds": by_variant[variant].median(), "seconds_unpruned": by_variant[VARIANTS[0]].median(),
            })  # fmt: skip
    return pd.DataFrame(rows).astype(dict.fromkeys(("ratio", "ci_low", "ci_high"), float))


@contextmanager
def without_core(model: HookedModel) -> Iterator[str]:
    """Run a hooked model for a while with PyTorch's fused attention, as it would run without this project; gives the
    name of what computes attention meanwhile.

    Where a model has no SDPA (a softcap, sinks, attention of its own), it goes on as it is, which is called "interp".
    """
    from transformers import PreTrainedModel

    from interp.models.huggingface import PRUNED_SDPA, implementation
    from interp.models.transformer import Transformer

    module: Any = model.module
    if isinstance(module, PreTrainedModel) and module._supports_sdpa and module._can_set_attn_implementation():
        with implementation(module, PRUNED_SDPA):
            yield "sdpa"
    elif isinstance(module, Transformer):
        module.set_attn_implementation("sdpa")
        try:
            yield "sdpa"
        finally:
            module.set_attn_implementation("interp")
    else:
        yield "interp"


# Parts ------------------------------------------------------------------------------------------------------------


def _check(
    base: HookedModel, pruned: HookedModel, batch_sizes: Sequence[int], lengths: Sequence[int], new_tokens: int,
    rounds: int,
) -> None:  # fmt: skip
    if "pruning" not in pruned.info:
        raise UserError(f"{pruned.info.get('name')} was not pruned, so there is nothing to compare it with")
    check_base(pruned.info["pruning"], base)
    for site in base.sites:
        if not {*pruned.info["pruning"]["sites"][site.name]["kept"]} <= {*numbers_in_base(base, site)}:
            raise UserError(f"{pruned.info.get('name')} keeps heads of {site.name} that the other model has lost")
    if min([*batch_sizes, *lengths, rounds, new_tokens + 1], default=0) < 1:
        raise UserError(
            f"batch sizes, lengths and rounds are at least 1, new tokens at least 0; got {list(batch_sizes)}, "
            f"{list(lengths)}, {rounds}, {new_tokens}"
        )
    longest = max(lengths) + (0 if base.is_encoder_decoder else new_tokens + 1)
    if base.n_ctx is not None and longest > base.n_ctx:
        raise UserError(f"{longest} tokens are more than the context of {base.n_ctx}: measure shorter lengths")


def _timed(model: HookedModel, tokens: Tensor, new_tokens: int) -> dict[str, dict[str, float]]:
    """Time by phase: to the end of the first forward pass, and of the median one of those that follow."""
    ends: list[tuple[float, float]] = []

    def stamp(*_: object) -> None:
        _wait(model)
        ends.append((perf_counter(), process_time()))

    with ExitStack() as stack:
        stack.callback(model.module.register_forward_hook(stamp).remove)
        _wait(model)
        start = perf_counter(), process_time()
        if _generates(model):
            _generate(model, tokens, new_tokens + 1)
        else:
            model.module(**_arguments(model, tokens))
    passes = np.diff([start, *ends], axis=0)
    phases = {"prompt": passes[:1], "decoding": passes[1:]}
    return {
        phase: dict(zip(CLOCKS, np.median(taken, axis=0).tolist(), strict=True))
        for phase, taken in phases.items()
        if len(taken)
    }


def _wait(model: HookedModel) -> None:
    if model.device.type == "cuda":
        torch.cuda.synchronize(model.device)


def _generates(model: HookedModel) -> bool:
    can: Any = getattr(model.module, "can_generate", None)
    return bool(can()) if can is not None else bool(hasattr(model.module, "generate") and model.config.causal)


def _generate(model: HookedModel, tokens: Tensor, number: int) -> Tensor:
    if not hasattr(model.module, "generation_config"):
        return model.generate(tokens, number)
    return model.generate(
        tokens, attention_mask=torch.ones_like(tokens), max_new_tokens=number, min_new_tokens=number, do_sample=False,
        use_cache=True, pad_token_id=0,
    )  # fmt: skip


def _arguments(model: HookedModel, tokens: Tensor) -> dict[str, Any]:
    return model.inputs.batch(model, tokens, None, tokens if model.is_encoder_decoder else None, None, {}).arguments


@torch.no_grad()
def _flops(model: HookedModel, length: int) -> int:
    if model.n_ctx is not None and length > model.n_ctx:
        raise UserError(f"{length} tokens are more than the context of {model.n_ctx}: count a shorter length")
    arguments = (
        model.inputs.batch(model, None, None, None, None, model.inputs.example(model)).arguments
        if model.d_vocab is None
        else _arguments(model, example_tokens(model, length, 1))
    )
    with without_core(model), sdpa_kernel(SDPBackend.MATH), FlopCounterMode(display=False) as counter:
        model.module(**arguments)
    return counter.get_total_flops()


def _caches(model: HookedModel, stack: str) -> bool:
    return stack != "encoder" and _generates(model) and getattr(model.config, "attention", "softmax") == "softmax"


@contextmanager
def _masked(base: HookedModel, pruned: HookedModel) -> Iterator[None]:
    """The removed heads' outputs multiplied by zero before W_O, as masks of heads do it."""
    with ExitStack() as stack:
        for site in base.sites:
            left = pruned.info["pruning"]["sites"][site.name]
            open_heads = [not left["silent"] and number in left["kept"] for number in numbers_in_base(base, site)]
            mask = torch.tensor(open_heads, dtype=base.dtype, device=base.device)
            stack.callback(_multiply(site.projections["output"], mask.repeat_interleave(site.d_head)).remove)
        yield


def _multiply(projection: nn.Module, mask: Tensor) -> Any:
    return projection.register_forward_pre_hook(lambda _, args: (args[0] * mask, *args[1:]))
