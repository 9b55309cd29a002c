"""Probes and edits on a pattern that a model has built itself: the same rows, taken from a tensor."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from .blocked import row_blocks
from .edits import Edit, GateHeads, KnockOut
from .mask import BoundMask, Mask
from .probes import Probe, Reading
from .rows import FORBIDDEN, Rows, Site, SiteShape

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
    bound = mask.bind(*pattern.shape, pattern.device)
    shape = SiteShape(*pattern.shape[:2], pattern.shape[1], *pattern.shape[2:], pattern.device, bound, site)
    for probe in probes:
        if probe.needs & {"value", "weights", "grad_pattern"}:
            raise ValueError(
                f"{type(probe).__name__} needs {sorted(probe.needs)}, which a model that computes its own attention "
                f"keeps to itself{'' if site is None else f' at {site.name}'}"
            )
    readings = [Reading(probe, shape) for probe in probes]
    mine = [e for e in (edit.at(site) for edit in edits) if e is not None]
    for edit in mine:
        edit.check(pattern.shape[1], site)
        if edit.stage == "scale" or (edit.stage == "z" and not isinstance(edit, GateHeads)):
            raise ValueError(f"{type(edit).__name__} cannot be made on a pattern that the model has built itself")
    edited = []
    for start, stop in row_blocks(bound, None, torch.float32):
        rows = _block(scores, pattern, bound, mine, site, start, stop)
        with torch.no_grad():
            seen = replace(rows, pattern=rows.pattern.detach().float())
            for reading in readings:
                reading.update(seen)
        if mine:
            edited.append(_gated(rows, mine))
    return (torch.cat(edited, 2).to(pattern.dtype) if mine else pattern), readings


def _block(
    scores: Tensor, pattern: Tensor, bound: BoundMask, edits: list[Edit], site: Site | None, start: int, stop: int
) -> Rows:
    rows = Rows(
        start=start, stop=stop, low=0, high=bound.n_keys, mask=bound, site=site, pattern=pattern[:, :, start:stop]
    )  # fmt: skip
    rows.edited = True  # statistics are read off the weights themselves
    if any(edit.stage == "scores" for edit in edits):
        block = scores[:, :, start:stop].float()
        for edit in edits:
            if isinstance(edit, KnockOut):
                block = block.masked_fill(edit.forbidden(rows, block.shape[1]), FORBIDDEN)
            elif edit.stage == "scores":
                block = edit.apply(block, rows)
        block = block.masked_fill(~rows.allowed, FORBIDDEN)
        rows.pattern = torch.softmax(block, -1).masked_fill(block <= FORBIDDEN / 2, 0.0)
    for edit in edits:
        if edit.stage == "pattern":
            rows.pattern = edit.apply(rows.pattern, rows)
    valid = None if bound.query_valid is None else bound.query_valid[:, None, start:stop]
    empty = rows.n_allowed == 0
    if bool(empty.any()):
        valid = ~empty if valid is None else valid & ~empty
        rows.pattern = rows.pattern.masked_fill(empty[..., None], 0.0)
    rows.valid = valid
    return rows


def _gated(rows: Rows, edits: list[Edit]) -> Tensor:
    pattern = rows.pattern
    for edit in edits:
        if isinstance(edit, GateHeads):
            pattern = edit.apply(pattern, rows)
    return pattern
