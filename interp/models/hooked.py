"""HookedModel: a model whose attention is read by probes and changed by edits, one forward pass at a time."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from functools import cached_property
from typing import TYPE_CHECKING, Any

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn

from interp.attention import Mask, SiteShape, Trace, attend
from interp.attention.dense import mask_of_scores, read_pattern
from interp.attention.edits import Edit
from interp.attention.probes import Probe
from interp.errors import UserError
from interp.models.hooks import HookFunction, Hooks
from interp.models.inputs import TransformersInputs
from interp.models.recording import Recording, Run, site_mask
from interp.models.sites import AttentionSite

if TYPE_CHECKING:
    from transformer_lens.model_bridge import TransformerBridge
    from transformers import PreTrainedTokenizerBase

__all__ = ["HookedModel", "NeverReachedError"]


class NeverReachedError(UserError):
    """A probe, edit or hook names something that the forward pass never reached."""


class HookedModel:
    """A model with the attention core inside.

    Made by :func:`interp.load`. The wrapped module is ``model.module``: calling it, or ``generate``, runs the same core,
    with whatever edits are active.

    Attributes:
        sites: its attention modules in order of execution.
        tokenizer: or None. ``info``: what the provenance of results says about it.
        n_ctx: longest input in tokens, None where positions are relative. ``d_vocab``: size of the vocabulary.
        output_head_loaded: the output head's weights were in the checkpoint, so that a loss means something.
    """

    def __init__(
        self,
        module: nn.Module,
        sites: Sequence[AttentionSite],
        *,
        tokenizer: PreTrainedTokenizerBase | None = None,
        info: Mapping[str, Any] | None = None,
        output_head_loaded: bool = True,
        inputs: TransformersInputs | None = None,
    ) -> None:
        self.module = module
        self.inputs = inputs or TransformersInputs()
        self.sites = tuple(sites)
        self.tokenizer = tokenizer
        self.info: dict[str, Any] = dict(info or {})
        self.output_head_loaded = output_head_loaded
        self._edits: list[Edit] = []
        self._hooks: list[Hooks] = []
        self._recording: Recording | None = None
        self._fired: set[str] = set()

    # What it is -------------------------------------------------------------------------------------------------

    @property
    def device(self) -> torch.device:
        return next(self.module.parameters()).device

    @property
    def dtype(self) -> torch.dtype:
        return next(self.module.parameters()).dtype

    @property
    def config(self) -> Any:
        return getattr(self.module, "config", None)

    @property
    def n_ctx(self) -> int | None:
        text = self.config.get_text_config() if hasattr(self.config, "get_text_config") else self.config
        return getattr(text, "max_position_embeddings", None)

    @property
    def d_vocab(self) -> int | None:
        text = self.config.get_text_config() if hasattr(self.config, "get_text_config") else self.config
        return getattr(text, "vocab_size", None)

    @property
    def is_encoder_decoder(self) -> bool:
        return bool(getattr(self.config, "is_encoder_decoder", False))

    def site(self, where: str | int) -> AttentionSite:
        """A site by name, or by layer where that names one."""
        found = [s for s in self.sites if where in (s.name, s.layer)]
        if len(found) == 1:
            return found[0]
        what = f"{len(found)} sites are meant by {where!r}" if found else f"there is no site {where!r}"
        raise UserError(f"{what}; the sites are {self._site_list()}")

    def head_weights(self, where: str | int) -> Any:
        """Per-head W_Q, W_K, W_V, W_O of a site: :class:`interp.models.projections.HeadWeights`."""
        return self.site(where).weights()

    def __repr__(self) -> str:
        heads = sorted({s.n_heads for s in self.sites})
        return (
            f"HookedModel({self.info.get('name', type(self.module).__name__)}: {len(self.sites)} attention sites, "
            f"{'/'.join(map(str, heads))} heads, {self.dtype}, {self.device})"
        )

    # Running ----------------------------------------------------------------------------------------------------

    def run(
        self,
        tokens: Int[Tensor, "batch position"] | Sequence[Sequence[int]] | None = None,
        valid: Bool[Tensor, "batch position"] | None = None,
        *,
        decoder_tokens: Int[Tensor, "batch position"] | Sequence[Sequence[int]] | None = None,
        decoder_valid: Bool[Tensor, "batch position"] | None = None,
        probes: Sequence[Probe] = (),
        edits: Sequence[Edit] = (),
        hooks: Mapping[str, HookFunction] | None = None,
        sites: Collection[str] | None = None,
        keep: str | Collection[str] = (),
        grad: bool = False,
        **inputs: Any,
    ) -> Run:
        """One forward pass, read by probes and changed by edits.

        Args:
            tokens: token ids; lists of different lengths are padded on the right.
            valid: False marks padding, on either side. Padding enters no statistic.
            decoder_tokens, decoder_valid: for encoder–decoders.
            probes: read at every site, or at those in ``sites``.
            edits: for this run, after those of :meth:`edit`.
            hooks: functions ``(tensor, hook) -> tensor or None`` by hook point, as TransformerLens names them.
            keep: "qk" keeps queries, keys and masks (:class:`~interp.attention.Traces`), "z" per-head outputs.
            grad: let gradients flow (to ``run.logits``, and from there back).
            inputs: further arguments of the model's forward, such as ``pixel_values``.

        Raises:
            NeverReachedError: a probe, edit or hook was never reached. UserError: tokens do not fit the model.
        """
        batch = self.inputs.batch(self, tokens, valid, decoder_tokens, decoder_valid, inputs)
        keep = frozenset([keep] if isinstance(keep, str) else keep)
        if unknown := keep - {"qk", "z"}:
            raise UserError(f"keep takes 'qk' and 'z'; got {sorted(unknown)}")
        chosen = None if sites is None else frozenset(self.site(name).name for name in sites)
        recording = Recording(tuple(probes), chosen, keep, batch.query_valid)
        if self._recording is not None:
            raise RuntimeError("this model is in the middle of a run already; a hook or probe cannot run it again")
        self._recording = recording
        try:
            with self.edit(*edits), self.hooks(hooks or {}), torch.set_grad_enabled(grad):
                output = self.module(**batch.arguments)
        finally:
            self._recording = None
        for probe in probes:
            if not any(found for found in recording.readings.values()) and not recording.not_applicable:
                raise NeverReachedError(f"{type(probe).__name__} read nothing; the sites are {self._site_list()}")
        fired = tuple(site for site in self.sites if site.name in recording.masks)
        return Run(output, fired, recording)

    def token_loss(
        self, tokens: Int[Tensor, "batch position"], valid: Bool[Tensor, "batch position"] | None = None, **run: Any
    ) -> Float[Tensor, "batch position"]:
        """Loss of each next token in nats: ``[:, i]`` is that of predicting token i + 1; NaN where either is padding.

        Raises:
            UserError: the model predicts no next token, or its output head was not in its checkpoint.
        """
        self.require_loss()
        result = self.run(tokens, valid, **run)
        return next_token_loss(result.logits, torch.as_tensor(tokens), valid)

    def require_loss(self) -> None:
        """Raise UserError where a next-token loss would mean nothing."""
        name = self.info.get("name", "this model")
        if not self.output_head_loaded:
            raise UserError(
                f"{name} has no trained output head in its checkpoint, so its logits would come from random weights; "
                "load the checkpoint that has one, or leave the parts that need a loss out"
            )
        if self.is_encoder_decoder or not self.is_causal:
            raise UserError(f"{name} does not predict the next token of a text, so it has no next-token loss")

    @cached_property
    def is_causal(self) -> bool:
        """Whether every self-attention site sees only what came before. Found out by a run."""
        own = [s for s in self.sites if s.kind == "self"]
        return bool(own) and all(s.module is not None and self._causal.get(s.name, False) for s in own)

    @cached_property
    def _causal(self) -> dict[str, bool]:
        run = self.run(**self.inputs.example(self))
        masks = run._recording.masks
        return {name: mask.causal or _looks_causal(mask, shape) for name, (mask, shape) in masks.items()}

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """The wrapped module's own forward, under the active edits."""
        return self.module(*args, **kwargs)

    def generate(self, *args: Any, **kwargs: Any) -> Any:
        """The wrapped module's own ``generate``, under the active edits."""
        return self.module.generate(*args, **kwargs)  # type: ignore[operator]

    @contextlib.contextmanager
    def edit(self, *edits: Edit) -> Iterator[HookedModel]:
        """Keep edits active; they come after those already active.

        Raises:
            UserError: an edit names a head that does not exist. NeverReachedError: forward passes were made, and a
                head that an edit names was in none of them.
        """
        for edit in edits:
            self._check_addresses(edit)
        before, fired = len(self._edits), self._fired
        self._edits.extend(edits)
        self._fired = set()
        try:
            yield self
            if self._fired:
                self._check_fired(edits)
        finally:
            del self._edits[before:]
            self._fired |= fired

    @contextlib.contextmanager
    def hooks(self, functions: Mapping[str, HookFunction]) -> Iterator[HookedModel]:
        """Keep hook functions active at named hook points (:meth:`hook_points` lists them)."""
        hooks = Hooks(self, functions)
        self._hooks.append(hooks)
        try:
            with hooks.on_modules():
                yield self
            hooks.check_fired()
        finally:
            self._hooks.remove(hooks)

    def hook_points(self) -> list[str]:
        """Names of all hook points."""
        return Hooks.points(self)

    # The seam: every site's attention comes through here ---------------------------------------------------------

    def attend(
        self,
        site: AttentionSite,
        query: Float[Tensor, "batch head query d_head"],
        key: Float[Tensor, "batch kv_head key d_head"],
        value: Float[Tensor, "batch kv_head key d_head"],
        mask: Mask,
        scale: float | None = None,
        softcap: float | None = None,
    ) -> Float[Tensor, "batch head query d_head"]:
        """Attention of one site, with the active probes, edits and hooks."""
        recording = self._recording
        self._fired.add(site.name)
        mask = site_mask(mask, site, recording)
        for hooks in self._hooks:
            query, key, value = hooks.on_inputs(site, query, key, value)
        edits = [*self._edits, *(edit for hooks in self._hooks for edit in hooks.pattern_edits(site))]
        where = site.core_site
        if recording is None or not recording.wants(site):
            output = attend(query, key, value, mask, scale, softcap, edits=edits, site=where)
        else:
            numbers, probes = recording.probes_at(site, mask.cross)
            result = attend(query, key, value, mask, scale, softcap, probes=probes, edits=edits, site=where)
            output, readings = result if probes else (result, [])
            recording.take(site, numbers, readings)
            self._remember(recording, site, query, key, mask, scale, softcap)
        for hooks in self._hooks:
            output = hooks.on_z(site, output)
        if recording is not None and recording.wants(site) and "z" in recording.keep:
            recording.z[site.name] = output.detach()
        return output

    def read_dense(
        self,
        site: AttentionSite,
        scores: Float[Tensor, "batch head query key"],
        pattern: Float[Tensor, "batch head query key"],
    ) -> Float[Tensor, "batch head query key"]:
        """A pattern that the model has built itself, after the active edits; read by the active probes."""
        recording = self._recording
        self._fired.add(site.name)
        valid = None if recording is None else recording.query_valid.get(site.stack)
        mask = mask_of_scores(scores, valid, cross=site.kind == "cross")
        edits = [*self._edits, *(edit for hooks in self._hooks for edit in hooks.pattern_edits(site))]
        reading = recording is not None and recording.wants(site)
        numbers, probes = recording.probes_at(site, mask.cross) if recording is not None and reading else ((), ())
        pattern, readings = read_pattern(scores, pattern, mask, probes, edits, site.core_site)
        if recording is not None and reading:
            if recording.keep:
                raise UserError(f"{site.name} computes its own attention, so queries, keys and z cannot be kept there")
            recording.take(site, numbers, readings)
            bound = mask.bind(*pattern.shape, pattern.device)
            shape = SiteShape(*pattern.shape[:2], site.n_kv_heads, *pattern.shape[2:], pattern.device, bound)
            recording.masks[site.name] = (mask, shape)
        return pattern

    def _remember(
        self, recording: Recording, site: AttentionSite, query: Tensor, key: Tensor, mask: Mask,
        scale: float | None, softcap: float | None,
    ) -> None:  # fmt: skip
        bound = mask.bind(*query.shape[:3], key.shape[2], query.device)
        shape = SiteShape(*query.shape[:2], key.shape[1], query.shape[2], key.shape[2], query.device, bound)
        recording.masks[site.name] = (mask, shape)
        if "qk" in recording.keep:
            scale = query.shape[-1] ** -0.5 if scale is None else scale
            recording.traces[site.name] = Trace(query.detach(), key.detach(), mask, scale, softcap, site.core_site)

    # Checks -----------------------------------------------------------------------------------------------------

    def _check_addresses(self, edit: Edit) -> None:
        for address in edit.addresses():
            if isinstance(address, int):
                raise UserError(
                    f"{type(edit).__name__}: head {address} of which layer? Address heads as (layer, head) or "
                    f"(site, head); the sites are {self._site_list()}"
                )
            where, head = address
            found = [s for s in self.sites if where in (s.name, s.layer)]
            if not found:
                raise UserError(f"{type(edit).__name__}: no site is {where!r}; the sites are {self._site_list()}")
            if isinstance(where, int) and len(found) > 1:
                names = ", ".join(s.name for s in found)
                raise UserError(f"{type(edit).__name__}: layer {where} is ambiguous here ({names}); use a site's name")
            if not 0 <= head < found[0].n_heads:
                raise UserError(
                    f"{type(edit).__name__}: {found[0].name} has heads 0 … {found[0].n_heads - 1}; there is no {head}"
                )

    def _check_fired(self, edits: Sequence[Edit]) -> None:
        for edit in edits:
            for where, head in (a for a in edit.addresses() if not isinstance(a, int)):
                site = self.site(where)
                if site.name not in self._fired:
                    raise NeverReachedError(
                        f"{type(edit).__name__} at {where!r}, head {head} was never reached: this forward pass went "
                        f"through {', '.join(sorted(self._fired))}"
                    )

    def _site_list(self) -> str:
        names = [s.name for s in self.sites]
        return ", ".join(names) if len(names) <= 8 else f"{', '.join(names[:3])} … {names[-1]} ({len(names)} in all)"

    # TransformerLens --------------------------------------------------------------------------------------------

    @cached_property
    def bridge(self) -> TransformerBridge:
        """A TransformerBridge on the same weights, with all of TransformerLens's hook points and tools."""
        from interp.models.bridge import make_bridge

        return make_bridge(self)

    def verify(self) -> dict[str, Any]:
        """Compare the logits with the untouched model's; see :func:`interp.models.verification.verify`."""
        from interp.models.verification import verify

        return verify(self)


def next_token_loss(
    logits: Tensor | None, tokens: Int[Tensor, "batch position"], valid: Bool[Tensor, "batch position"] | None
) -> Float[Tensor, "batch position"]:
    """Loss of each next token in nats, float32 or better; NaN where the token or its predecessor is padding.

    Taken over slices of the positions, so that no second copy of the logits is made.
    """
    if logits is None:
        raise UserError("the model's output has no logits, so there is no loss")
    target = tokens[:, 1:].to(logits.device)
    losses = []
    step = max(1, (64 << 20) // (logits.shape[0] * logits.shape[-1] * 4))
    for start in range(0, target.shape[1], step):
        part = logits[:, start : start + step][:, : target.shape[1] - start]
        part = part.double() if part.dtype is torch.float64 else part.float()
        losses.append(nn.functional.cross_entropy(
            part.transpose(1, 2), target[:, start : start + step], reduction="none"))  # fmt: skip
    loss = torch.cat(losses, 1) if losses else logits.new_zeros(logits.shape[0], 0)
    if valid is not None:
        both = (valid[:, 1:] & valid[:, :-1]).to(loss.device)
        loss = loss.masked_fill(~both, float("nan"))
    return loss


def _looks_causal(mask: Mask, shape: SiteShape) -> bool:
    """Whether a mask given as a tensor or function forbids every later key."""
    if mask.cross or (mask.allowed is None and mask.bias is None):
        return False
    bound = mask.bind(shape.batch, shape.n_heads, shape.n_queries, shape.n_keys, shape.device)
    allowed = bound.allowed(0, shape.n_queries, 0, shape.n_keys)
    return not bool(allowed.triu(1 + bound.offset).any())
