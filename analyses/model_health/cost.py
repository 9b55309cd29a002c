"""What a forward pass and a cache cost: operations, patterns, keys and values."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import pandas as pd
import torch
from torch.utils.flop_counter import FlopCounterMode

from analyses.model_health.checks import Row
from analyses.model_health.config import CHECKS, Config
from analyses.model_health.leaks import causal_claim
from analyses.model_health.subject import Subject
from interp.attention.blocked import BLOCK_BYTES
from interp.models.sites import AttentionSite

__all__ = ["Costs", "costs", "rows", "tables"]

_CONTEXT = 4096
_GIB = 2**30


@dataclass(frozen=True, eq=False)
class Costs:
    """What costs are made of.

    Attributes:
        linear: floating-point operations a token outside attention, measured.
        sites: attention sites with their windows (None: no window).
        itemsize: bytes of a number.
        cached: sites whose keys and values a generating model keeps.
        weights: bytes of the parameters.
        context: positions that are asked about.
    """

    linear: float
    sites: tuple[tuple[AttentionSite, int | None], ...]
    itemsize: int
    cached: tuple[tuple[AttentionSite, int | None], ...]
    weights: int
    context: int
    device: str

    def flops(self, context: int) -> float:
        """Floating-point operations of a forward pass over one sequence; 2 a multiplication and addition. Attention
        over all T² pairs, as an eager implementation computes them: 4 · heads · d_head · T² a site."""
        pairs = sum(4 * site.n_heads * site.d_head * context**2 for site, _ in self.sites)
        return self.linear * context + pairs

    def eager(self, context: int, every_layer: bool) -> int:
        """Bytes of the patterns that an eager implementation holds: of every layer where they are asked for
        (``output_attentions``), else of the layer under way."""
        each = [site.n_heads * context**2 * self.itemsize for site, _ in self.sites]
        return sum(each) if every_layer else max(each)

    def here(self, context: int) -> int:
        """Bytes of scores and pattern that the core holds: a block of rows; the whole pattern where a model builds its
        own."""
        block = BLOCK_BYTES.get(self.device, BLOCK_BYTES["cuda"])
        own = [s.n_heads * context**2 * self.itemsize for s, _ in self.sites if s.source == "softmax"]
        core = [min(2 * block, 8 * s.n_heads * context**2) for s, _ in self.sites if s.source == "core"]
        return max([*own, *core])

    def per_token(self, kv_heads: int | None = None) -> int:
        """Bytes of keys and values that each token adds; with another number of kv heads where given."""
        return sum(2 * (kv_heads or s.n_kv_heads) * s.d_head * self.itemsize for s, _ in self.cached)

    def cache(self, context: int) -> int:
        """Bytes of keys and values of one sequence; a window keeps no more than its own length."""
        return sum(
            2 * s.n_kv_heads * s.d_head * self.itemsize * min(context, window or context) for s, window in self.cached
        )


def costs(subject: Subject, config: Config) -> Costs:
    """Measure a small pass, and keep what the rest follows from."""
    model = subject.model
    with torch.no_grad(), FlopCounterMode(display=False) as counter:
        run: Any = subject.run()
    attention, windows, tokens = 0, {}, 0
    for site in run.sites:
        mask, shape = run.masks[site.name]
        windows[site.name] = mask.window
        if site.source == "core":
            attention += 4 * shape.batch * shape.n_heads * shape.n_queries * shape.n_keys * site.d_head
        tokens = max(tokens, shape.batch * shape.n_queries)
    linear = max(0, counter.get_total_flops() - attention) / max(tokens, 1)
    causal = bool(causal_claim(subject, config.is_causal))
    sites = tuple((site, windows.get(site.name)) for site in model.sites)
    last = "decoder" if model.is_encoder_decoder else None
    cached = tuple(
        (site, window) for site, window in sites if causal and site.d_head and (last is None or site.stack == last)
    )
    weights = sum(p.numel() * p.element_size() for p in model.module.parameters())
    context = config.context or model.n_ctx or _CONTEXT
    itemsize = torch.finfo(model.dtype).bits // 8
    return Costs(linear, sites, itemsize, cached, weights, context, model.device.type)


def rows(found: Costs, config: Config) -> list[Row]:
    """The checks of cost, at the context and number of requests that are asked about."""
    context, requests = found.context, config.requests
    at = f"one sequence of {context:,} tokens"
    eager_note = f"{at}, every layer's pattern kept; {size(found.eager(context, False))} for the layer under way"
    made = [
        CHECKS["flops"].judge(found.flops(context), note=f"{at}; outside attention {found.linear:.3g} a token"),
        CHECKS["pattern_memory_eager"].judge(found.eager(context, True), note=eager_note),
        CHECKS["pattern_memory_here"].judge(found.here(context), note=f"{at}; scores and weights of a block of rows"),
    ]
    per_token, cache, grouped = (CHECKS[name] for name in ("kv_cache_per_token", "kv_cache", "grouped_keys"))
    if not found.cached:
        reason = "only a causal model whose keys and values are seen keeps them for the tokens to come"
        return [*made, *(check.not_applicable(reason) for check in (per_token, cache, grouped))]
    total = found.cache(context) * requests
    limits: dict[str, float] = {}
    note = f"{context:,} tokens × {requests:,} requests"
    if config.memory is not None:
        room = config.memory * _GIB - found.weights
        limits = {"warn_at": 0.9 * room if room > 0 else -1.0, "fail_at": room}
        note += f"; {config.memory:g} GiB less {size(found.weights)} of weights"
    made += [
        per_token.judge(found.per_token(), note=f"{len(found.cached)} sites, keys and values"),
        cache.judge(total, note=note, **limits),
        _grouped(found, grouped),
    ]
    return made


def _grouped(found: Costs, check: Any) -> Row:
    """What fewer kv heads would save of the cache."""
    heads = {(site.n_heads, site.n_kv_heads) for site, _ in found.cached}
    if len(heads) > 1:
        return check.not_applicable("sites differ in their numbers of heads")
    n_heads, n_kv = next(iter(heads))
    if n_kv == 1:
        return check.not_applicable("one kv head a site already (multi-query)")
    fewer = fewer_kv_heads(n_heads, n_kv)
    told = ", ".join(f"{g} kv heads {1 - g / n_kv:.0%}" if g > 1 else f"1 (MQA) {1 - 1 / n_kv:.0%}" for g in fewer)
    return check.judge(1 - 1 / n_kv, note=f"of {n_kv} kv heads for {n_heads} heads; saved with {told}")


def fewer_kv_heads(n_heads: int, n_kv_heads: int) -> list[int]:
    """Numbers of kv heads below the present one that the heads divide into evenly, the largest first."""
    return [g for g in range(n_kv_heads - 1, 0, -1) if n_heads % g == 0]


def tables(found: Costs, config: Config) -> dict[str, pd.DataFrame]:
    """``cost``, what is asked about, and ``memory``, by context."""
    context, requests = found.context, config.requests
    cost: list[dict[str, Any]] = [
        {"quantity": "flops", "value": found.flops(context), "unit": "FLOP"},
        {"quantity": "weights", "value": found.weights, "unit": "bytes"},
        {"quantity": "patterns_eager_every_layer", "value": found.eager(context, True), "unit": "bytes"},
        {"quantity": "patterns_eager_one_layer", "value": found.eager(context, False), "unit": "bytes"},
        {"quantity": "patterns_here", "value": found.here(context), "unit": "bytes"},
    ]
    cost = [each | {"kv_heads": 0} for each in cost]
    if found.cached:
        site = found.cached[0][0]
        for kv_heads in (site.n_kv_heads, *fewer_kv_heads(site.n_heads, site.n_kv_heads)):
            share = kv_heads / site.n_kv_heads
            cost += [
                {"quantity": "kv_cache_per_token", "value": found.per_token(kv_heads), "unit": "bytes",
                 "kv_heads": kv_heads},
                {"quantity": "kv_cache", "value": found.cache(context) * requests * share, "unit": "bytes",
                 "kv_heads": kv_heads},
            ]  # fmt: skip
    frame = pd.DataFrame(cost).assign(context=context, requests=requests)
    lengths = sorted({2**e for e in range(7, 18) if 2**e <= max(4 * context, 8192)} | {context})
    memory = [
        {"context": length, "what": what, "bytes": float(value)}
        for length in lengths
        for what, value in (
            ("eager, every layer", found.eager(length, True)),
            ("eager, one layer", found.eager(length, False)),
            ("here", found.here(length)),
            ("kv cache", found.cache(length)),
        )
        if value
    ]
    return {"cost": frame.astype({"value": float}), "memory": pd.DataFrame(memory)}


def size(n: float) -> str:
    """Bytes as a person says them."""
    for unit in ("B", "KiB", "MiB", "GiB"):
        if n < 1024 or unit == "GiB":
            return f"{n:,.0f} {unit}" if unit == "B" or n >= 100 else f"{n:.1f} {unit}"
        n /= 1024
    raise AssertionError
