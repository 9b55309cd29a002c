"""attend(): attention with probes and edits, whatever engine computes it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal, overload

import torch
from jaxtyping import Float
from torch import Tensor

from .block import Call
from .blocked import blocked
from .edits import Edit
from .fused import fused, why_not
from .mask import Mask
from .probes import Probe, Reading
from .rows import Site

__all__ = ["Engine", "NonFiniteError", "attend"]

Engine = Literal["auto", "blocked", "fused"]


class NonFiniteError(ValueError):
    """NaN or infinity in an attention call: names the site and the tensor."""


@overload
def attend(
    query: Tensor, key: Tensor, value: Tensor, mask: Mask = ..., scale: float | None = ...,
    softcap: float | None = ..., *, probes: tuple[()] = ..., edits: Sequence[Edit] = ..., engine: Engine = ...,
    site: Site | str | None = ..., block_rows: int | None = ...,
) -> Tensor: ...  # fmt: skip
@overload
def attend(
    query: Tensor, key: Tensor, value: Tensor, mask: Mask = ..., scale: float | None = ...,
    softcap: float | None = ..., *, probes: Sequence[Probe], edits: Sequence[Edit] = ..., engine: Engine = ...,
    site: Site | str | None = ..., block_rows: int | None = ...,
) -> tuple[Tensor, list[Reading]]: ...  # fmt: skip


def attend(
    query: Float[Tensor, "batch head query d_head"],
    key: Float[Tensor, "batch kv_head key d_head"],
    value: Float[Tensor, "batch kv_head key d_value"],
    mask: Mask = Mask(),  # noqa: B008 (immutable)
    scale: float | None = None,
    softcap: float | None = None,
    *,
    probes: Sequence[Probe] = (),
    edits: Sequence[Edit] = (),
    engine: Engine = "auto",
    site: Site | str | None = None,
    block_rows: int | None = None,
) -> Tensor | tuple[Tensor, list[Reading]]:
    """softmax(scale · q kᵀ + bias) v under a mask, read by probes and changed by edits while it is computed.

    Scores, softmax and statistics are computed in float32 (float64 for float64 input), whatever the input's dtype.
    A query row without a permitted key gives zeros and enters no statistic. Memory is O(T · d): no query × key tensor
    is made. Differentiable once in query, key, value, bias, sinks and the tensors of edits.

    Args:
        query, key, value: on one device, in one dtype. Query head h reads kv head ``h // (n_heads // n_kv_heads)``.
        mask: who may read whom; bidirectional by default.
        scale: factor on q · k; d_head^−½ by default.
        softcap: ``softcap · tanh(scores / softcap)`` before bias and mask (Gemma-2).
        probes: what to read. edits: what to change; see :mod:`interp.attention.edits` for their order.
        engine: "fused" (a Triton kernel; ValueError with the reason where it cannot do what is asked), "blocked" (row
            blocks in PyTorch, for everything), or "auto": fused on CUDA where it can do all that is asked.
        site: name for errors, addresses and seeds; a :class:`Site` also carries layer and weights.
        block_rows: rows per block; by default chosen from the sizes.

    Returns:
        The output [batch, head, query, d_value] in the input's dtype; with probes, also one :class:`Reading` each.

    Raises:
        ValueError: shapes, dtypes, devices or mask do not fit. NonFiniteError: NaN or infinity came out.
        IndexError: an edit names a head that does not exist.
    """
    site = Site(site) if isinstance(site, str) else site
    where = f"{site.name}: " if site is not None else ""
    _check_tensors(query, key, value, where)
    if engine not in ("auto", "blocked", "fused"):
        raise ValueError(f"engine must be 'auto', 'blocked' or 'fused'; got {engine!r}")
    if block_rows is not None and block_rows < 1:
        raise ValueError(f"block_rows must be at least 1; got {block_rows}")
    here = [edit.at(site) for edit in edits]
    mine = tuple(edit for edit in here if edit is not None)
    for edit in mine:
        edit.check(query.shape[1], site)
    for probe in probes:
        if probe.aligned and mask.cross:
            raise ValueError(
                f"{where}{type(probe).__name__} reads distances between queries and keys, which cross-attention "
                "does not have; leave it out at this site"
            )
    if softcap is not None and not softcap > 0:
        raise ValueError(f"{where}softcap must be above 0, or None for none; got {softcap}")
    factor = float(query.shape[-1] ** -0.5 if scale is None else scale)
    call = Call(mask, factor, softcap, mine, site, block_rows)
    reason = None if engine == "blocked" else why_not(call, query, value, probes)
    if engine == "fused" and reason is not None:
        raise ValueError(f"{where}the fused engine cannot compute this call ({reason}); use engine='auto' or 'blocked'")
    on_kernel = engine == "fused" or (engine == "auto" and query.is_cuda and reason is None and block_rows is None)
    output, readings = (fused if on_kernel else blocked)(call, query, key, value, probes)
    for reading in readings:
        reading.engine = "fused" if on_kernel else "blocked"
    # One pass where all is well: a sum is finite only if what it sums is
    if not torch.isfinite(output.detach().sum()) and not torch.isfinite(output).all():
        raise NonFiniteError(where + _what_is_not_finite(query, key, value))
    return (output, readings) if probes else output


def _check_tensors(query: Tensor, key: Tensor, value: Tensor, where: str) -> None:
    for name, tensor in (("query", query), ("key", key), ("value", value)):
        if tensor.ndim != 4:
            raise ValueError(f"{where}{name} must be [batch, head, position, d_head]; got {list(tensor.shape)}")
        if tensor.dtype not in (torch.float32, torch.float64, torch.float16, torch.bfloat16):
            raise ValueError(f"{where}{name} must be float32, float64, float16 or bfloat16; got {tensor.dtype}")
    if not query.device == key.device == value.device or not query.dtype == key.dtype == value.dtype:
        raise ValueError(
            f"{where}query, key and value must share device and dtype; got {query.device} {query.dtype}, "
            f"{key.device} {key.dtype}, {value.device} {value.dtype}"
        )
    if key.shape[:3] != value.shape[:3] or query.shape[0] != key.shape[0] or query.shape[3] != key.shape[3]:
        raise ValueError(
            f"{where}key and value must agree in batch, heads and length, query and key in batch and d_head; got "
            f"query {list(query.shape)}, key {list(key.shape)}, value {list(value.shape)}"
        )
    if key.shape[1] == 0 or query.shape[1] == 0 or query.shape[1] % key.shape[1]:
        raise ValueError(
            f"{where}the number of query heads must be a multiple of the number of kv heads; got {query.shape[1]} and "
            f"{key.shape[1]}"
        )
    if query.shape[3] == 0:
        raise ValueError(f"{where}d_head must be at least 1; got query {list(query.shape)}")


def _what_is_not_finite(query: Tensor, key: Tensor, value: Tensor) -> str:
    bad = [
        name for name, tensor in (("query", query), ("key", key), ("value", value)) if not torch.isfinite(tensor).all()
    ]
    if bad:
        return f"attention met NaN or infinity in {' and '.join(bad)}: look for it in what computes them"
    largest = float(query.detach().abs().max()), float(key.detach().abs().max())
    return (
        "attention gave NaN or infinity from finite inputs: scores overflow "
        f"(largest |query| {largest[0]:.3g}, |key| {largest[1]:.3g}), or the mask, bias or an edit holds NaN"
    )
