"""A sequence run again and again with one row of attention changed: what the change does to the output.

A row of head h at query i enters the model as z = Σ α_j v_j and touches nothing before query i, nor any layer before
its own. So one untouched run is kept, and every changed one computes only what comes after: later layers, and where the
model is causal and can keep keys and values, positions from i on. Changed rows are copies of the sequence in one batch.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar, Self

import numpy as np
import torch
from jaxtyping import Float, Int
from numpy.typing import NDArray
from torch import Tensor, nn

from analyses.adversarial_attention.heads.rows import ReadRow, Row, rows_of
from interp import HookedModel
from interp.attention.edits import Edit
from interp.attention.edits.base import Stage
from interp.attention.rows import Block
from interp.errors import UserError
from interp.models.replaying import blocks_before, outputs_of, replayed

__all__ = ["Continuation", "Watched", "distributions", "prefix_works"]

Head = tuple[str, int]

_SAME = 1e-4  # total variation distance up to which two ways of running a model are one


@dataclass(frozen=True)
class Watched:
    """Where the output is watched.

    Attributes:
        horizon: positions from the row's own on, of a causal model; others are watched everywhere.
        position: one of them alone, 0 the row's own; None: the change is the largest over all.
    """

    horizon: int = 8
    position: int | None = None


class Continuation:
    """One sequence, one query row, and the output from there on.

    Attributes:
        output: distributions of the untouched run [position, outcome].
        rows: by site, the rows of all heads at the query.
    """

    def __init__(
        self,
        model: HookedModel,
        tokens: Int[Tensor, "1 position"],
        query: int,
        sites: Sequence[str],
        watched: Watched,
        *,
        copies: int = 32,
        prefix: bool = False,
    ) -> None:
        """Run the sequence untouched.

        Args:
            sites: whose rows may be changed.
            copies: changed rows that are run together.
            prefix: keep keys and values of what comes before the query (`prefix_works` says whether that works).
        """
        self.model, self.watched, self.copies = model, watched, copies
        self.tokens = tokens[:, : query + watched.horizon] if model.is_causal else tokens
        self._cached = _keys_and_values(model, self.tokens[:, :query]) if prefix and query else None
        self._given = self.tokens[:, query:] if self._cached else self.tokens
        self._query = 0 if self._cached else query
        self._before = {site: blocks_before(model, [(site, 0)]) for site in sites}
        self._run(sites)

    def _run(self, sites: Sequence[str]) -> None:
        own = any(self.model.site(site).source == "softmax" for site in sites)
        probe = ReadRow(query=self._query, values=not own)
        last = {blocks[-1] for blocks in self._before.values() if blocks}
        with outputs_of(last) as self._outputs:
            run = self.model.run(self._given, probes=[probe], sites=list(sites), **self._arguments(1))
        self.output = self._watch(distributions(run.logits))[0]
        self.rows = {site: rows_of(reading.values[0], site) for site, reading in run.readings(probe).items()}

    def changes(
        self, rows: Sequence[Row], points: Sequence[NDArray[np.float64]]
    ) -> Float[NDArray[np.float64], " point"]:
        """Total variation distance of the output from the untouched one, with each row replaced by its point.

        Args:
            rows: of any of the sites; each is replaced alone. The nearer their layers, the less is computed twice.
            points: distributions on the rows' outcomes.
        """
        parts = []
        for at in range(0, len(rows), self.copies):
            some = slice(at, at + self.copies)
            parts.append(self.size(self._output(rows[some], points[some]) - self.output))
        return np.concatenate(parts) if parts else np.zeros(0)

    @staticmethod
    def size(changed: Any) -> Float[NDArray[np.float64], " point"]:
        """Total variation distance from the change of the output's probabilities [point, position, outcome], the
        largest over positions."""
        return torch.as_tensor(changed).abs().sum(-1).amax(-1).div(2).double().cpu().numpy()

    def outputs(self, row: Row, point: NDArray[np.float64]) -> Float[Tensor, "position outcome"]:
        """The output's distributions with a row replaced."""
        return self._output([row], [point])[0]

    def answers(
        self, rows: Sequence[Row], points: Sequence[NDArray[np.float64]]
    ) -> Iterator[tuple[Float[NDArray[np.float32], "position outcome"], float]]:
        """Change of the output's probabilities with each row replaced by its point, one after the other, and its total
        variation distance: as many as are run together are in memory at a time."""
        for at in range(0, len(rows), self.copies):
            some = slice(at, at + self.copies)
            changed = self._output(rows[some], points[some]) - self.output
            yield from zip(changed.float().cpu().numpy(), self.size(changed).tolist(), strict=True)

    def slopes(
        self, rows: Sequence[Row], of: Callable[[Tensor], Tensor]
    ) -> list[Float[NDArray[np.float64], " outcome"]]:
        """Derivative of a function of the output's distributions [copy, position, outcome] by each row's own weights.

        Args:
            of: gives one number per copy.
        """
        weights = self._weights(rows, [row.pattern for row in rows], learned=True)
        total = of(self._watch(distributions(self._replaced(weights, len(rows), grad=True)))).sum()
        slopes = [np.zeros(len(row.pattern)) for row in rows]  # a sink adds nothing, whatever its weight
        found = torch.autograd.grad(total, [given for _, given in weights.values()])
        for (copies, _), of_head in zip(weights.values(), found, strict=True):
            for copy, slope in zip(copies.tolist(), of_head.double().cpu().numpy(), strict=True):
                slopes[copy][: len(rows[copy].keys)] = slope[rows[copy].keys]
        return slopes

    # One batch of copies ------------------------------------------------------------------------------------------

    def _output(self, rows: Sequence[Row], points: Sequence[Any]) -> Float[Tensor, "copy position outcome"]:
        return self._watch(distributions(self._replaced(self._weights(rows, points), len(rows))))

    def _weights(self, rows: Sequence[Row], points: Sequence[Any], learned: bool = False) -> _Weights:
        """By head, the copies that change it, and its row there."""
        given: dict[Head, dict[int, NDArray[np.float64]]] = {}
        for copy, (row, point) in enumerate(zip(rows, points, strict=True)):
            given.setdefault(row.address, {})[copy] = row.on_all_keys(point)
        device, dtype = self.model.device, torch.float64 if self.model.dtype is torch.float64 else torch.float32
        return {
            head: (
                torch.tensor(list(of_head), device=device),
                torch.tensor(np.stack(list(of_head.values())), dtype=dtype, device=device).requires_grad_(learned),
            )
            for head, of_head in given.items()
        }

    def _replaced(self, weights: _Weights, copies: int, grad: bool = False) -> Tensor | None:
        edit = _RowInCopies(weights, self._query)
        blocks = min((self._before[site] for site, _ in weights), key=len)
        with replayed([blocks] if blocks else [], self._outputs, times=copies):
            tokens = self._given.expand(copies, -1)
            return self.model.run(tokens, edits=[edit], grad=grad, **self._arguments(copies)).logits

    def _watch(self, output: Float[Tensor, "copy position outcome"]) -> Float[Tensor, "copy position outcome"]:
        """The positions at which the output is watched."""
        if output.shape[1] == 1:  # a classifier's one answer, or the last token of a text
            return output
        if self.model.is_causal:
            output = output[:, self._query :]
        if (position := self.watched.position) is None:
            return output
        at = position if self.model.is_causal else self._query + position
        return output[:, min(at, output.shape[1] - 1)][:, None]

    def _arguments(self, copies: int) -> dict[str, Any]:
        return {} if self._cached is None else _with_cache(self.model, self._cached, copies)


_Weights = Mapping[Head, tuple[Int[Tensor, " copy"], Float[Tensor, "copy key"]]]


@dataclass(frozen=True, eq=False)
class _RowInCopies(Edit):
    """Put another row in place of a head's in some sequences of a batch alone, so that in those which change a head of
    an earlier layer it attends as it then would.

    Args:
        heads: address → (sequences, weights on all keys). query: the row.
    """

    heads: Mapping[Any, tuple[Int[Tensor, " copy"], Float[Tensor, "copy key"]]]
    query: int
    stage: ClassVar[Stage] = "pattern"

    def parameters(self) -> dict[str, Tensor]:
        """The weights, which may be learned."""
        return {str(head): weights for head, (_, weights) in self.heads.items()}

    def with_parameters(self, values: dict[str, Tensor]) -> Self:
        """The same edit over other weights."""
        return replace(self, heads={h: (copies, values.get(str(h), w)) for h, (copies, w) in self.heads.items()})

    def apply(self, x: Tensor, block: Block) -> Tensor:
        """The pattern with the rows in place."""
        if not block.start <= self.query < block.stop:
            return x
        x = x.clone()
        for head in self.selected(x.shape[1]):
            copies, weights = self.heads[head]
            x[copies, head, self.query - block.start] = weights[:, block.low : block.high].to(x)
        return x


def distributions(logits: Tensor | None) -> Float[Tensor, "batch position outcome"]:
    """A model's output as distributions: over the vocabulary at each position, or over a classifier's classes.

    Raises:
        UserError: the model has no logits.
    """
    if logits is None:
        raise UserError(
            "this model gives no distribution over tokens or classes, so there is no output that attention could "
            "leave unchanged"
        )
    logits = logits.float() if logits.dtype is not torch.float64 else logits
    logits = logits[:, None] if logits.ndim == 2 else logits
    if logits.shape[-1] == 1:  # one logit of a sigmoid
        logits = torch.cat([logits, torch.zeros_like(logits)], -1)
    return logits.softmax(-1)


# Keys and values of what comes before -----------------------------------------------------------------------------

_Cached = list[tuple[Tensor, Tensor]]


def prefix_works(model: HookedModel, tokens: Int[Tensor, "1 position"], query: int) -> bool:
    """Whether a causal model gives the same output from a query on when it is told keys and values of what comes before
    as when it computes them."""
    if not model.is_causal or query < 1 or (kept := _keys_and_values(model, tokens[:, :query])) is None:
        return False
    whole = distributions(model.run(tokens).logits)[:, query:]
    try:
        continued = distributions(model.run(tokens[:, query:], **_with_cache(model, kept, 1)).logits)
    except (RuntimeError, ValueError, TypeError, AttributeError, IndexError):  # a cache of another make
        return False
    return continued.shape == whole.shape and float((continued - whole).abs().sum(-1).max()) / 2 < _SAME


def _keys_and_values(model: HookedModel, tokens: Tensor) -> _Cached | None:
    """Of every layer; None where the model keeps none in the way of transformers."""
    from transformers import DynamicCache, PreTrainedModel

    if not isinstance(model.module, PreTrainedModel) or (name := _cache_argument(model.module)) is None:
        return None
    cache: Any = DynamicCache()
    try:
        model.run(tokens, use_cache=True, **{name: cache})
        kept = [(layer.keys, layer.values) for layer in cache.layers]
    except (RuntimeError, ValueError, TypeError, AttributeError):  # a cache of another make
        return None
    known = bool(kept) and all(isinstance(tensor, Tensor) for pair in kept for tensor in pair)
    return kept if known else None  # type: ignore[return-value]


def _with_cache(model: HookedModel, kept: _Cached, copies: int) -> dict[str, Any]:
    from transformers import DynamicCache

    cache = DynamicCache()
    for layer, (keys, values) in enumerate(kept):
        cache.update(keys.expand(copies, -1, -1, -1), values.expand(copies, -1, -1, -1), layer)
    return {str(_cache_argument(model.module)): cache, "use_cache": True}


def _cache_argument(module: nn.Module) -> str | None:
    parameters = inspect.signature(module.forward).parameters
    return next((name for name in ("cache", "past_key_values") if name in parameters), None)
