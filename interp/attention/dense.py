"""Probes and edits on a pattern that a model has built itself: the same rows, taken from a tensor."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from .bias import FORBIDDEN
from .block import compute_dtype, edit_scores
from .blocked import row_blocks, show
from .bound import BoundMask
from .edits import Edit, GateHeads
from .mask import Mask
from .probes import Probe, Reading
from .rows import Block, Rows, Site, SiteShape

__all__ = ["mask_of_scores", "read_pattern"]


def mask_of_scores(
    scores: Float[Tensor, "batch head query key"], query_valid: Bool[Tensor, "batch query"] | None, cross: bool
) -> Mask:
    """Who may read whom, read off scores that were masked with -inf or the dtype's lowest number."""
    allowed = (scores > torch.finfo(scores.dtype).min / 2).any(1, keepdim=True)
    key_valid = allowed.any(2)[:, 0] if not cross and query_valid is not None else None
    return Mask(allowed=allowed, key_valid=key_valid, query_valid=query_valid, cross=cross)


def read_pattern(
    scores: Float[Tensor, "batch head query key"],
    pattern: Float[Tensor, "batch head query key"],
    mask: Mask,
    probes: Sequence[Probe] = (),
    edits: Sequence[Edit] = (),
    site: Site | None = None,
) -> tuple[Float[Tensor, "batch head query key"], list[Reading]]:
    """The pattern after the edits, and what the probes read of it.

    Edits of z are made on the pattern where that is the same thing (:class:`GateHeads`, since z is linear in it).

    Raises:
        ValueError: an edit or probe needs values or outputs, which are out of reach here.
    """
    batch, n_heads, n_queries, n_keys = pattern.shape
    bound = mask.bind(batch, n_heads, n_queries, n_keys, pattern.device)
    shape = SiteShape(batch, n_heads, n_heads, n_queries, n_keys, pattern.device, bound, site)
    for probe in probes:
        if probe.needs & {"value", "weights", "grad_pattern"}:
            raise ValueError(
                f"{type(probe).__name__} needs {', '.join(sorted(probe.needs))}, which a model that computes its own "
                f"attention keeps to itself{'' if site is None else f' at {site.name}'}; read it at the others alone: "
                "run(…, sites=[…])"
            )
    readings = [Reading(probe, shape) for probe in probes]
    mine = [e for e in (edit.at(site) for edit in edits) if e is not None]
    for edit in mine:
        edit.check(n_heads, site)
        if edit.stage == "scale" or (edit.stage == "z" and not isinstance(edit, GateHeads)):
            raise ValueError(f"{type(edit).__name__} cannot be made on a pattern that the model has built itself")
    edited = []
    for start, stop in row_blocks(bound, None, torch.float32):
        rows = _block(scores, pattern, bound, mine, site, start, stop)
        with torch.no_grad():
            seen = replace(rows, pattern=rows.pattern.detach().to(compute_dtype(pattern)))
            show(seen, readings)
        if mine:
            # a row of padding has nothing to edit: what the model makes of it stays, in every head
            own, readable = pattern[:, :, start:stop].to(rows.pattern.dtype), rows.readable.any(-1, keepdim=True)
            edited.append(torch.where(readable, _gated(rows, mine), own))
    return (torch.cat(edited, 2).to(pattern.dtype) if mine else pattern), readings


def _block(
    scores: Tensor, pattern: Tensor, bound: BoundMask, edits: list[Edit], site: Site | None, start: int, stop: int
) -> Rows:
    block = Block(start=start, stop=stop, low=0, high=bound.n_keys, mask=bound, site=site)
    weights = pattern[:, :, start:stop]
    if any(edit.stage == "scores" for edit in edits):
        changed = edit_scores(edits, block, scores[:, :, start:stop].to(compute_dtype(scores)))
        forbidden = ~block.readable
        weights = torch.softmax(changed.masked_fill(forbidden, FORBIDDEN), -1).masked_fill(forbidden, 0.0)
    for edit in edits:
        if edit.stage == "pattern":
            weights = edit.apply(weights, block)
    valid = None if bound.query_valid is None else bound.query_valid[:, None, start:stop]
    empty = ~block.readable.any(-1)
    if bool(empty.any()):
        valid = ~empty if valid is None else valid & ~empty
        weights = weights.masked_fill(empty[..., None], 0.0)
    # Statistics are read off the weights themselves: scores that the model keeps may still be scaled or masked
    return Rows(**vars(block), pattern=weights, valid=valid, edited=True)


def _gated(rows: Rows, edits: list[Edit]) -> Tensor:
    pattern = rows.pattern
    for edit in edits:
        if isinstance(edit, GateHeads):
            pattern = edit.apply(pattern, rows)
    return pattern
