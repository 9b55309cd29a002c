"""Queries and keys kept from a run, from which the same row block of any set of sites is computed again.

For what needs rows of several sites at once, rows chosen afterwards, or another run's rows: O(T · d) per site.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

import torch
from jaxtyping import Float
from torch import Tensor

from .block import Call, compute_dtype, compute_rows
from .blocked import row_blocks
from .bound import BoundMask
from .mask import Mask
from .rows import Rows, Site

__all__ = ["Trace", "Traces"]


@dataclass(frozen=True, eq=False)
class Trace:
    """Queries and keys of one attention call, after positions were applied, and the mask they met."""

    query: Float[Tensor, "batch head query d_head"]
    key: Float[Tensor, "batch kv_head key d_head"]
    mask: Mask
    scale: float
    softcap: float | None
    site: Site | None = None

    @cached_property
    def bound(self) -> BoundMask:
        """The mask at the sizes of the call."""
        batch, n_heads, n_queries, _ = self.query.shape
        return self.mask.bind(batch, n_heads, n_queries, self.key.shape[2], self.query.device)

    def rows(self, start: int, stop: int, keep_scores: bool = False) -> Rows:
        """Pattern rows ``[start, stop)`` as the run had them, without edits."""
        with torch.no_grad():
            call = Call(self.mask, self.scale, self.softcap, site=self.site)
            query = self.query[:, :, start:stop]
            return compute_rows(
                call, self.bound, query, self.key.to(compute_dtype(self.query)), start, stop, keep_scores
            )

    @property
    def nbytes(self) -> int:
        """Bytes that the queries and keys hold."""
        return self.query.nbytes + self.key.nbytes


class Traces(Mapping[str, Trace]):
    """The kept sites of a run, by name."""

    def __init__(self, traces: Mapping[str, Trace]) -> None:
        self._traces = dict(traces)

    def __getitem__(self, site: str) -> Trace:
        try:
            return self._traces[site]
        except KeyError:
            raise KeyError(f"no queries and keys were kept for site {site!r}; kept: {', '.join(self)}") from None

    def __iter__(self) -> Iterator[str]:
        return iter(self._traces)

    def __len__(self) -> int:
        return len(self._traces)

    def rows_of(self, site: Site | None, start: int, stop: int, key_range: tuple[int, int]) -> Rows:
        """Rows of one site, over the same keys as another run's block."""
        name = next(iter(self)) if site is None and len(self) == 1 else None if site is None else site.name
        if name is None:
            raise ValueError("this attention call has no site, so which of several kept sites to replay is unknown")
        rows = self[name].rows(start, stop)
        if (rows.low, rows.high) != key_range:
            raise ValueError(
                f"{name}: the kept run read keys {rows.low} … {rows.high}, this one reads {key_range[0]} … "
                f"{key_range[1]}; both runs need the same mask and lengths"
            )
        return rows

    def row_blocks(self, sites: Sequence[str] | None = None, keep_scores: bool = False) -> Iterator[dict[str, Rows]]:
        """The same row block of every site, block after block. The sites must have equal numbers of queries."""
        names = list(self) if sites is None else list(sites)
        if len({self[name].query.shape[2] for name in names}) > 1:
            raise ValueError("row_blocks needs sites with the same number of queries; choose them with sites=")
        if not names:
            return
        first = self[names[0]]
        for start, stop in row_blocks(first.bound, None, torch.float64):
            yield {name: self[name].rows(start, stop, keep_scores) for name in names}
