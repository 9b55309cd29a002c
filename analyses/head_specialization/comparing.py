"""How far every pair of heads is apart, sequence by sequence: Jensen–Shannon divergence between their rows."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import Any

import numpy as np
import torch
from jaxtyping import Bool, Int
from numpy.typing import NDArray
from torch import Tensor

from analyses.head_specialization.inputs import special_ids
from interp import HookedModel
from interp.attention import head_divergences
from interp.models.sites import AttentionSite
from interp.results import Workspace


@dataclass(frozen=True, eq=False)
class Compared:
    """All pairs of heads of one stack.

    Attributes:
        stack: "" where a model has one; else "encoder", "decoder" or "decoder cross".
        heads: (site, layer, head) of each head, in the order of execution.
        pairs: [2, pair] numbers of the heads of each pair, the first below the second.
        whole: [sequence, pair] mean JSD over rows in nats; NaN where no row of a sequence counts.
        without_sink: the same without the first position and special tokens, what is left scaled to sum to 1.
    """

    stack: str
    heads: tuple[tuple[str, int, int], ...]
    pairs: NDArray[np.intp]
    whole: NDArray[np.float32]
    without_sink: NDArray[np.float32]

    def square(self, values: NDArray[np.float64]) -> NDArray[np.float64]:
        """Values by pair as a symmetric matrix [head, head] with a diagonal of zeros."""
        matrix = np.zeros((len(self.heads), len(self.heads)))
        first, second = self.pairs
        matrix[first, second] = matrix[second, first] = values
        return matrix


def compare(
    model: HookedModel, passes: Sequence[Mapping[str, Any]], rows: int | None, seed: int, work: Workspace
) -> list[Compared]:
    """Compare the heads of every stack on some sequences. Heads of different stacks read different rows.

    Args:
        model: its sites must give their queries and keys; others are left out, and it is said.
        passes: arguments of `HookedModel.run`, a forward pass each.
        rows: how many rows of each sequence, drawn at random; None: all of them.
        seed: of the draw.
        work: shows progress and records what is left out.
    """
    stacks = _stacks(model, work)
    found: dict[str, list[tuple[NDArray[np.float32], NDArray[np.float32]]]] = {stack: [] for stack in stacks}
    generator = torch.Generator().manual_seed(seed)
    for arguments in work.progress(passes, "forward passes to compare heads") if stacks else ():
        with torch.no_grad():
            traces = model.run(**arguments, keep="qk", sites=[site.name for s in stacks.values() for site in s]).traces
        for stack, sites in stacks.items():
            names = [site.name for site in sites]
            drawn = _drawn(traces[names[0]].query.shape[2], rows, generator)
            sinks = taken_out(model, *_keys(arguments, sites[0])).to(traces[names[0]].key.device)
            both = (head_divergences(traces, names, rows=drawn, without=taken) for taken in (None, sinks))
            whole, without = (_by_pair(divergences.values) for divergences in both)
            found[stack].append((whole, without))
    return [
        Compared(stack, heads, _pairs(len(heads)), *(np.concatenate(part) for part in zip(*found[stack], strict=True)))
        for stack, sites in stacks.items()
        if (heads := tuple((site.name, site.layer, head) for site in sites for head in range(site.n_heads)))
        and len(heads) > 1
    ]


def taken_out(
    model: HookedModel, tokens: Int[Tensor, "batch position"], valid: Bool[Tensor, "batch position"] | None
) -> Bool[Tensor, "batch position"]:
    """Keys that count as sinks: the first position of each sequence, and special tokens."""
    valid = torch.ones_like(tokens, dtype=torch.bool) if valid is None else valid
    first = valid & (valid.long().cumsum(-1) == 1)
    special = torch.tensor(special_ids(model), dtype=tokens.dtype, device=tokens.device)
    return first | (valid & torch.isin(tokens, special))


def _stacks(model: HookedModel, work: Workspace) -> dict[str, list[AttentionSite]]:
    """The sites of each stack that the heads can be compared at."""
    hidden = [site.name for site in model.sites if site.source == "softmax"]
    if hidden:
        work.skip(
            f"comparison of heads at {hidden[0]}" + (f" and {len(hidden) - 1} further sites" if hidden[1:] else ""),
            "the model computes its own attention there, so its queries and keys are not in reach",
        )
    known = [site for site in model.sites if site.name not in hidden]
    kinds = sorted(known, key=_stack)
    found = {stack: list(sites) for stack, sites in groupby(kinds, key=_stack)}
    order = list(dict.fromkeys(map(_stack, known)))
    return {stack: found[stack] for stack in order}


def _stack(site: AttentionSite) -> str:
    return f"{site.stack} {site.kind if site.kind == 'cross' else ''}".strip()


def _keys(arguments: Mapping[str, Any], site: AttentionSite) -> tuple[Tensor, Tensor | None]:
    """The tokens that a site's keys stand at, and which are real."""
    of_decoder = site.stack == "decoder" and site.kind == "self" and "decoder_tokens" in arguments
    tokens = arguments["decoder_tokens" if of_decoder else "tokens"]
    return tokens, arguments.get("decoder_valid" if of_decoder else "valid")


def _drawn(n_queries: int, rows: int | None, generator: torch.Generator) -> Int[Tensor, " row"] | None:
    """Some rows at random, without replacement, so that their mean is an unbiased estimate of the mean over all."""
    if rows is None or rows >= n_queries:
        return None
    return torch.randperm(n_queries, generator=generator)[:rows].sort().values


def _pairs(n_heads: int) -> NDArray[np.intp]:
    return np.stack(np.triu_indices(n_heads, 1))


def _by_pair(values: Tensor) -> NDArray[np.float32]:
    first, second = _pairs(values.shape[1])
    return values[:, first, second].cpu().numpy().astype(np.float32)
