"""The model under examination: its inputs taken apart into sequences and positions, and what a run of it shows."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

import torch
from torch import Tensor, nn

from interp import HookedModel
from interp.attention.edits import Edit
from interp.attention.probes import Probe, Reading
from interp.attention.probes.base import Measured
from interp.attention.rows import Rows, SiteShape
from interp.models.inputs import example_tokens

__all__ = ["Arguments", "Seen", "Subject", "change", "first_tensor", "subject_of", "tolerance"]

Arguments = Mapping[str, Any]
"""What a run is given, by name."""

_TOLERANCE = {torch.float64: 1e-9, torch.float32: 1e-4, torch.float16: 1e-2, torch.bfloat16: 6e-2}
SHORT = 24
"""Positions of the inputs that leaks are looked for in."""


def tolerance(dtype: torch.dtype) -> float:
    """The relative change that rounding alone may make in a whole forward pass: about 1,000 rounding units in float32,
    8 to 10 in half precision, where products are rounded and sums are not."""
    return _TOLERANCE.get(dtype, 1e-4)


@dataclass(frozen=True, eq=False)
class RowDigest(Probe):
    """One number a pattern row: Σ_k p_k cos(2.3 k²). Rows differ where their digests do. Never T × T."""

    def axes(self) -> tuple[tuple[str, Sequence[object]], ...]:
        """Rows."""
        return (("query", ()),)

    def start(self, shape: SiteShape) -> tuple[Tensor, Tensor]:
        """Nothing seen yet, and what keys are multiplied with."""
        key = torch.arange(1, shape.n_keys + 1, device=shape.device, dtype=torch.float64)
        weights = torch.cos(2.3 * key.square())  # the same for a key however many keys there are
        digests = torch.zeros(shape.batch, shape.n_heads, shape.n_queries, dtype=torch.float64, device=shape.device)
        return digests, weights

    def update(self, state: tuple[Tensor, Tensor], rows: Rows) -> None:
        """The digests of a block of rows."""
        digests, weights = state
        digests[:, :, rows.start : rows.stop] = rows.pattern.double() @ weights[rows.low : rows.high]

    def finish(self, state: tuple[Tensor, Tensor]) -> Measured:
        """All of them."""
        return Measured(state[0], torch.ones_like(state[0]))


@dataclass(frozen=True, eq=False)
class Seen:
    """Something that a run computed at every position: [batch, position, …] in float64.

    Attributes:
        name: in words. ``site``: the attention site, or "" for the output; ``layer``: its layer.
    """

    name: str
    site: str
    layer: int | None
    values: Tensor


@dataclass(frozen=True, eq=False)
class Subject:
    """A model and a small input, with its batch and position dimensions told apart.

    Attributes:
        arguments: of a run, by name (those of the module's own forward where ``wrapped``).
        primary: the argument that holds the sequence which is changed.
        batch_dim, position_dim: of the primary argument; position_dim is None where none is a position (images).
        valid: the argument that says which positions are not padding, and the value that means "not padding"; None
            where there is none.
    """

    model: HookedModel
    arguments: Arguments
    wrapped: bool
    primary: str
    batch_dim: int = 0
    position_dim: int | None = None
    valid: tuple[str, bool] | None = None
    edits: tuple[Edit, ...] = field(default=())

    # What it is ---------------------------------------------------------------------------------------------------

    @property
    def input(self) -> Tensor:
        """The primary argument."""
        return self.arguments[self.primary]

    @property
    def inner(self) -> nn.Module:
        """The module that paths of sites are relative to: without what its owner wrapped around it."""
        module = self.model.module
        return module.module if self.wrapped and type(module).__name__ == "_Called" else module  # type: ignore[return-value]

    @property
    def reads_tokens(self) -> bool:
        """Whether the primary argument holds token ids."""
        return not self.input.is_floating_point()

    @property
    def batch(self) -> int:
        """Sequences."""
        return self.input.shape[self.batch_dim]

    @property
    def length(self) -> int:
        """Positions; 0 where the input has none."""
        return 0 if self.position_dim is None else self.input.shape[self.position_dim]

    @property
    def tolerance(self) -> float:
        """The relative change that rounding may make."""
        return tolerance(self.model.dtype)

    @property
    def no_positions(self) -> str:
        """Why checks of positions say nothing; "" where they do."""
        if self.position_dim is None or self.length < 3:
            return "the input has no dimension of positions that attention's queries stand at, or fewer than three"
        return ""

    @cached_property
    def dense(self) -> bool:
        """Whether some site computes its own attention, so that queries, keys and z stay out of sight."""
        return any(site.source == "softmax" for site in self.model.sites)

    # Running ------------------------------------------------------------------------------------------------------

    def run(self, arguments: Arguments | None = None, **options: Any) -> Any:
        """A run of the hooked model, without gradients unless asked for."""
        given = dict(self.arguments if arguments is None else arguments)
        edits = [*self.edits, *options.pop("edits", ())]
        if self.wrapped:
            return self.model.run(inputs=given, edits=edits, **options)
        return self.model.run(**given, edits=edits, **options)

    def plain(self, arguments: Arguments | None = None) -> Any:
        """The module's own output, nothing read."""
        return self.model.module(**self.forward_arguments(arguments))

    def forward_arguments(self, arguments: Arguments | None = None) -> dict[str, Any]:
        """What the module's forward is called with."""
        given = dict(self.arguments if arguments is None else arguments)
        parts = [None] * 4
        if not self.wrapped:
            parts = [given.pop(name, None) for name in ("tokens", "valid", "decoder_tokens", "decoder_valid")]
        return self.model.inputs.batch(self.model, *parts, given).arguments

    def observe(self, arguments: Arguments | None = None) -> list[Seen]:
        """What :meth:`_observed` finds; that of the subject's own arguments is kept."""
        return self._own if arguments is None else self._observed(arguments)

    @cached_property
    def _own(self) -> list[Seen]:
        return self._observed(self.arguments)

    def _observed(self, arguments: Arguments) -> list[Seen]:
        """Pattern rows (as digests), per-head outputs where they are in sight, and the output; in order of execution,
        and only what has one row for each position of the input (all of it where the input has no positions)."""
        probe = RowDigest()
        with torch.no_grad():
            run = self.run(arguments, probes=[probe], keep=() if self.dense else ("z",))
        seen, readings = [], run.readings(probe)
        for site in run.sites:
            digests = readings[site.name].values
            if self.position_dim is not None and digests.shape[2] != self.length:
                continue
            seen.append(self._at(site, "attention pattern", digests.transpose(1, 2)))
            if site.name in run.z:
                seen.append(self._at(site, "attention output", run.z[site.name].transpose(1, 2).flatten(2).double()))
        output = first_tensor(run.output)
        if output is not None:
            seen.append(Seen("output", "", None, self.lined_up(output)))
        return [each for each in seen if each.values.numel()]

    def _at(self, site: Any, name: str, values: Tensor) -> Seen:
        """A site's [batch, position, …], in sequences of the input (a site's batch may be a multiple of it)."""
        if values.shape[0] != self.batch and values.shape[0] % self.batch == 0:
            values = values.unflatten(0, (self.batch, -1)).transpose(1, 2).flatten(2)
        return Seen(name, site.name, site.layer, values)

    def lined_up(self, output: Tensor) -> Tensor:
        """An output as [batch, position, …]; with one position where it has none."""
        output = output.detach().double()
        if output.ndim <= self.batch_dim or output.shape[self.batch_dim] != self.batch:
            return output.new_zeros(0)
        here = self.position_dim
        if here is not None and output.ndim > here and output.shape[here] == self.length:
            return output.movedim((self.batch_dim, here), (0, 1)).flatten(2) if output.ndim > 2 else output[..., None]
        return output.movedim(self.batch_dim, 0).flatten(1)[:, None]

    # Changing the input -------------------------------------------------------------------------------------------

    def having(self, value: Tensor, **others: Any) -> dict[str, Any]:
        """The arguments with another primary one."""
        return {**self.arguments, self.primary: value, **others}

    def other_values(self, seed: int = 1) -> Tensor:
        """Input of the same kind that differs at every position: other tokens of those that occur, other vectors."""
        generator = torch.Generator().manual_seed(seed)
        given = self.input.cpu()
        if given.is_floating_point():
            noise = torch.randn(given.shape, generator=generator, dtype=torch.float32).to(given.dtype)
            return (given.std() * noise - given).to(self.input)
        known = given.unique()
        if len(known) < 2:
            return (given + 1).remainder(self.model.d_vocab or 2).to(self.input)
        step = torch.randint(1, len(known), given.shape, generator=generator)
        return known[(torch.searchsorted(known, given) + step) % len(known)].to(self.input)

    def changed_at(self, position: int) -> dict[str, Any]:
        """The arguments with another input at one position of every sequence."""
        assert self.position_dim is not None
        changed = self.input.clone()
        index = torch.tensor([position], device=changed.device)
        changed.index_copy_(self.position_dim, index, self.other_values().index_select(self.position_dim, index))
        return self.having(changed)

    def sequences(self, index: Sequence[int], arguments: Arguments | None = None) -> dict[str, Any]:
        """The arguments of some of the sequences, in this order."""
        return self._taken(index, self.batch_dim, self.batch, arguments)

    def positions(self, index: Sequence[int]) -> dict[str, Any]:
        """The arguments with positions in another order; everything that has such positions is ordered alike."""
        assert self.position_dim is not None
        return self._taken(index, self.position_dim, self.length, None)

    def _taken(self, index: Sequence[int], dim: int, size: int, arguments: Arguments | None) -> dict[str, Any]:
        given = self.arguments if arguments is None else arguments
        found: dict[str, Any] = {}
        for name, value in given.items():
            at = dim if isinstance(value, Tensor) and value.ndim > dim and value.shape[dim] == size else None
            if at is None and dim != self.position_dim and isinstance(value, Tensor) and value.shape[:1] == (size,):
                at = 0
            chosen = None if at is None else torch.tensor(list(index), device=value.device)
            found[name] = value if chosen is None else value.index_select(at, chosen)
        return found

    def gated(self, edits: Sequence[Edit]) -> Subject:
        """The same under edits."""
        return replace(self, edits=tuple(edits))


def subject_of(model: HookedModel, length: int = SHORT, batch: int = 4, seed: int = 0) -> Subject:
    """A small input of the kind that a model takes, and where its sequences and positions are.

    Models of tokens that the toolkit knows get ``batch`` random sequences; a module of someone's own gets the example
    that it was loaded with (twice, in another order, where that is a single sequence).
    """
    example = model.inputs.example(model)
    if "inputs" not in example:
        if "tokens" not in example:
            name = next(iter(example))
            return Subject(model, example, wrapped=False, primary=name)
        n = min(length, model.n_ctx or length)
        tokens = example_tokens(model, n, batch, seed)
        if model.is_encoder_decoder:
            others = example_tokens(model, max(3, n * 2 // 3), batch, seed + 1)
            given = {"tokens": tokens, "decoder_tokens": others}
            return Subject(model, given, wrapped=False, primary="decoder_tokens", position_dim=1)
        return Subject(model, {"tokens": tokens}, wrapped=False, primary="tokens", position_dim=1)
    return _of_module(model, dict(example["inputs"]))


def _of_module(model: HookedModel, given: dict[str, Any]) -> Subject:
    """Which argument of a module holds the sequence, and which of its dimensions is what."""
    primary = next((name for name, value in given.items() if isinstance(value, Tensor) and value.ndim > 0), None)
    if primary is None:
        return Subject(model, given, wrapped=True, primary=next(iter(given)))
    with torch.no_grad():
        masks = model.run(inputs=given).masks
    sizes = {(shape.batch, shape.n_queries) for _, shape in masks.values()}
    value: Tensor = given[primary]
    batch_dim, position_dim = _layout(value, sizes)
    if value.shape[batch_dim] == 1:
        given = {name: _doubled(each, batch_dim) for name, each in given.items()}
    found = Subject(model, given, wrapped=True, primary=primary, batch_dim=batch_dim, position_dim=position_dim)
    return replace(found, valid=_valid_argument(found))


def _layout(value: Tensor, sizes: set[tuple[int, int]]) -> tuple[int, int | None]:
    """The batch and position dimensions of an input, from the sizes of the attention calls that it led to."""
    dims = range(value.ndim) if value.ndim <= 2 else range(value.ndim - 1)
    for batch, queries in sorted(sizes):
        for position in sorted((d for d in dims if value.shape[d] == queries), key=lambda d: d == 0):
            rest = [d for d in dims if d != position]
            exact = [d for d in rest if value.shape[d] == batch]
            if exact or rest:
                return (exact or rest)[0], position
    return 0, None


def _doubled(value: Any, dim: int) -> Any:
    """Two sequences of a single one: itself, and its elements in another order."""
    if not isinstance(value, Tensor) or value.ndim <= dim or value.shape[dim] != 1 or value.dtype is torch.bool:
        return value.repeat_interleave(2, dim) if isinstance(value, Tensor) and value.shape[dim : dim + 1] else value
    order = torch.randperm(value.numel(), generator=torch.Generator().manual_seed(0))
    return torch.cat([value, value.flatten()[order.to(value.device)].view(value.shape)], dim)


def _valid_argument(subject: Subject) -> tuple[str, bool] | None:
    """A module's argument of booleans [batch, position]. What its first or last column holds throughout is what a
    position that is not padding holds: padding stands at one end."""
    for name, value in subject.arguments.items():
        if not isinstance(value, Tensor) or value.dtype is not torch.bool or subject.position_dim is None:
            continue
        if tuple(value.shape) != (subject.batch, subject.length):
            continue
        for column in (value[:, 0], value[:, -1]):
            if bool((column == column[0]).all()):
                return name, bool(column[0])
    return None


def change(before: Tensor, after: Tensor) -> Tensor:
    """|after − before| over the largest |before|, the largest at each [batch, position]; NaN counts as infinite."""
    scale = before.abs().max().clamp_min(torch.finfo(torch.float64).tiny)
    apart = ((after - before).abs() / scale).flatten(2).amax(-1)
    same = (before.isnan() & after.isnan()).flatten(2).any(-1)
    return torch.where(same, 0.0, apart).nan_to_num(nan=torch.inf)


def first_tensor(output: Any) -> Tensor | None:
    """The logits, last hidden state or first tensor of an output."""
    if isinstance(output, Tensor):
        return output
    for name in ("logits", "last_hidden_state"):
        if isinstance(getattr(output, name, None), Tensor):
            return getattr(output, name)
    values: Iterator[Any] = iter(output.values() if isinstance(output, Mapping) else output)
    return next((value for value in values if isinstance(value, Tensor) and value.is_floating_point()), None)


def heads_of(run: Any, reading: Mapping[str, Reading]) -> Iterator[tuple[Any, Tensor]]:
    """Sites with their readings [batch, head, …], in order of execution."""
    for site in run.sites:
        if site.name in reading:
            yield site, reading[site.name].values
