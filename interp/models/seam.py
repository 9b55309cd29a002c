"""The seam that every site's attention comes through, and what is in force there: edits, hooks, a recording."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from jaxtyping import Float
from torch import Tensor, nn

from interp.attention import Mask, Trace, attend
from interp.attention.core import Engine
from interp.attention.dense import mask_of_scores, read_pattern
from interp.attention.edits import Edit
from interp.errors import UserError
from interp.models.groups import for_query_heads
from interp.models.recomputation import is_recomputed_here
from interp.models.recording import Recording, site_mask
from interp.models.sites import AttentionSite

if TYPE_CHECKING:
    from interp.models.hooks import Hooks

__all__ = ["Seam", "Watch"]


@dataclass(eq=False)
class Watch:
    """Forward passes that a context has seen, and the sites that they reached."""

    passes: int = 0
    reached: set[str] = field(default_factory=set)

    @property
    def saw_something(self) -> bool:
        """Whether there was a forward pass, of the model or of a bridge on it."""
        return bool(self.passes or self.reached)


class Seam:
    """What is in force in one model.

    Attributes:
        edits: groups of edits, in the order in which they act. ``hooks``: groups of hook functions.
        watches: who wants to know which sites are reached. ``recording``: what the pass under way is to read.
        engine: what is to compute attention, as :func:`interp.attention.attend` takes it.
        engines: what has computed the statistics that were read so far: "blocked", "fused", "dense".
    """

    def __init__(self, module: nn.Module) -> None:
        self.module = module
        self.edits: list[Sequence[Edit]] = []
        self.hooks: list[Hooks] = []
        self.watches: list[Watch] = []
        self.recording: Recording | None = None
        self.engine: Engine = "auto"
        self.engines: set[str] = set()

    def __getstate__(self) -> dict[str, Any]:
        return {"module": self.module, "engine": self.engine}

    def __setstate__(self, state: dict[str, Any]) -> None:
        """Nothing is in force in a copy: what is, belongs to contexts that know the original."""
        self.__init__(state["module"])
        self.engine = state["engine"]

    @property
    def active(self) -> bool:
        """Whether anything is in force."""
        return bool(self.recording or self.edits or self.hooks or self.watches)

    # Attention ---------------------------------------------------------------------------------------------------

    def attend(
        self,
        site: AttentionSite,
        query: Float[Tensor, "batch head query d_head"],
        key: Float[Tensor, "batch kv_head key d_head"],
        value: Float[Tensor, "batch kv_head key d_head"],
        mask: Mask,
        scale: float | None = None,
        softcap: float | None = None,
        first_edits: Sequence[Edit] = (),
    ) -> Float[Tensor, "batch head query d_head"]:
        """Attention of one site by the core, with the probes, edits and hooks in force.

        ``first_edits`` are part of the model itself (``flex_attention``'s ``score_mod``) and act before all others.
        """
        edits, recording = self._enter(site)
        edits = [*first_edits, *edits]
        mask = site_mask(mask, site, self.recording, query.device)
        for hooks in self.hooks:
            query, key, value = hooks.on_inputs(site, query, key, value)
        key, value = for_query_heads(site.module, key, value)
        where = site.core_site
        if recording is None:
            output = attend(query, key, value, mask, scale, softcap, edits=edits, engine=self.engine, site=where)
        else:
            mask = recording.shared(mask)
            numbers, probes = recording.probes_at(site, mask.cross)
            result: Any = attend(
                query, key, value, mask, scale, softcap, probes=probes, edits=edits, engine=self.engine, site=where
            )
            output, readings = result if probes else (result, [])
            sizes = (*query.shape[:2], key.shape[1], query.shape[2], key.shape[2])
            self.engines |= {reading.engine for reading in readings}
            recording.take(site, numbers, readings, mask, sizes, query.device)
            if "qk" in recording.keep:
                factor = query.shape[-1] ** -0.5 if scale is None else scale
                recording.traces[site.name] = Trace(query.detach(), key.detach(), mask, factor, softcap, where)
        for hooks in self.hooks:
            output = hooks.on_z(site, output)
        if recording is not None and "z" in recording.keep:
            recording.z[site.name] = output.detach()
        return output

    def read_dense(
        self,
        site: AttentionSite,
        scores: Float[Tensor, "batch head query key"],
        pattern: Float[Tensor, "batch head query key"],
    ) -> Float[Tensor, "batch head query key"]:
        """A pattern that the model has built itself, after the edits in force; read by the probes in force."""
        edits, recording = self._enter(site)
        if recording is None and not edits:
            return pattern
        valid = None if self.recording is None else self.recording.query_valid.get(site.stack)
        mask = mask_of_scores(scores, valid, cross=site.kind == "cross")
        if recording is None:
            return read_pattern(scores, pattern, mask, (), edits, site.core_site)[0]
        if recording.keep:
            raise UserError(f"{site.name} computes its own attention, so queries, keys and z cannot be kept there")
        mask = recording.shared(mask)
        numbers, probes = recording.probes_at(site, mask.cross)
        pattern, readings = read_pattern(scores, pattern, mask, probes, edits, site.core_site)
        self.engines |= {reading.engine for reading in readings}
        sizes = (*pattern.shape[:2], site.n_kv_heads, *pattern.shape[2:])
        recording.take(site, numbers, readings, mask, sizes, pattern.device)
        return pattern

    def _enter(self, site: AttentionSite) -> tuple[list[Edit], Recording | None]:
        """The edits in force at a site that a pass has come to, and the recording if it wants this site."""
        for watch in self.watches:
            watch.reached.add(site.name)
        if self.recording is not None:
            self.recording.recomputed |= is_recomputed_here()
        edits = [edit for group in self.edits for edit in group]
        edits += [edit for hooks in self.hooks for edit in hooks.pattern_edits(site)]
        wanted = self.recording is not None and self.recording.wants(site)
        return edits, self.recording if wanted else None

    # Contexts ----------------------------------------------------------------------------------------------------

    @contextlib.contextmanager
    def editing(self, edits: Sequence[Edit]) -> Iterator[None]:
        """Keep a group of edits in force."""
        with _among(self.edits, edits):
            yield

    @contextlib.contextmanager
    def hooking(self, hooks: Hooks) -> Iterator[None]:
        """Keep hook functions in force."""
        with _among(self.hooks, hooks), hooks.on_modules():
            yield

    @contextlib.contextmanager
    def watched(self) -> Iterator[Watch]:
        """Count the forward passes of a context and the sites that they reach."""
        watch = Watch()

        def count(*_: Any) -> None:
            watch.passes += any(watch is one for one in self.watches)

        handle = self.module.register_forward_pre_hook(count)
        try:
            with _among(self.watches, watch):
                yield watch
        finally:
            handle.remove()

    @contextlib.contextmanager
    def recorded(self, recording: Recording) -> Iterator[None]:
        """Let one forward pass be read.

        Raises:
            RuntimeError: another is being read.
        """
        if self.recording is not None:
            raise RuntimeError("this model is in the middle of a run already; a hook or probe cannot run it again")
        self.recording = recording
        try:
            yield
        finally:
            self.recording = None

    @contextlib.contextmanager
    def aside(self) -> Iterator[None]:
        """For trial runs of the model's own: nothing is in force."""
        before = self.edits, self.hooks, self.watches, self.recording
        self.edits, self.hooks, self.watches, self.recording = [], [], [], None
        try:
            yield
        finally:
            self.edits, self.hooks, self.watches, self.recording = before


@contextlib.contextmanager
def _among(active: list[Any], mine: object) -> Iterator[None]:
    """One more entry of a list for a while. It is taken off by identity: contexts may be left in any order."""
    active.append(mine)
    try:
        yield
    finally:
        del active[next(i for i in reversed(range(len(active))) if active[i] is mine)]
