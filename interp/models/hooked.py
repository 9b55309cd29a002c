"""HookedModel: a model whose attention is read by probes and changed by edits, one forward pass at a time."""

from __future__ import annotations

import contextlib
from collections.abc import Collection, Iterator, Mapping, Sequence
from functools import cached_property
from typing import TYPE_CHECKING, Any

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn

from interp.attention import products
from interp.attention.core import Engine
from interp.attention.edits import Edit
from interp.attention.probes import Probe
from interp.errors import UserError
from interp.models.hooks import HookFunction, Hooks
from interp.models.inputs import TransformersInputs, context_length, random_state, seeded, together
from interp.models.loss import looks_causal, next_token_loss
from interp.models.owners import own, owner
from interp.models.recomputation import was_recomputed
from interp.models.recording import Recording, Run
from interp.models.seam import Seam, Watch
from interp.models.sites import AttentionSite, NeverReachedError, check_addresses, check_reached, find_site, listed

if TYPE_CHECKING:
    from transformer_lens.model_bridge import TransformerBridge
    from transformers import PreTrainedTokenizerBase

__all__ = ["HookedModel", "NeverReachedError", "next_token_loss"]


class HookedModel:
    """A model with the attention core inside.

    Made by :func:`interp.load`. The wrapped module is ``model.module``: calling it, or ``generate``, runs the same
    core, with whatever edits are active. One pass at a time: a model is not to be run from several threads at once.

    Attributes:
        sites: its attention modules in order of execution.
        tokenizer: or None. ``info``: what the provenance of results says about it.
        output_head_loaded: the output head's weights were in the checkpoint, so that a loss means something.
        seam: what its attention comes through; edits and hooks in force.
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
        self.seam = Seam(module)

    def __getstate__(self) -> dict[str, Any]:
        return {name: value for name, value in self.__dict__.items() if name != "bridge"}

    def __setstate__(self, state: dict[str, Any]) -> None:
        """A copy (deep, or by pickle) owns its own modules."""
        self.__dict__.update(state)
        for site in self.sites:
            own(site.module, self, site)

    # What it is -------------------------------------------------------------------------------------------------

    @property
    def engine(self) -> Engine:
        """What computes attention, as `interp.attention.attend` takes it: "auto", "blocked" or "fused". To be set."""
        return self.seam.engine

    @engine.setter
    def engine(self, engine: Engine) -> None:
        self.seam.engine = engine

    @property
    def device(self) -> torch.device:
        """Where inputs go: of a model spread over several devices, where it begins."""
        spread = getattr(getattr(self.module, "_hf_hook", None), "execution_device", None)
        return next(self.module.parameters()).device if spread is None else torch.device(spread)

    @property
    def dtype(self) -> torch.dtype:
        """Of the weights."""
        return next(self.module.parameters()).dtype

    @property
    def config(self) -> Any:
        """The transformers config; None for other modules."""
        return getattr(self.module, "config", None)

    @cached_property
    def n_ctx(self) -> int | None:
        """Longest input in tokens; None where positions are relative."""
        return context_length(self.module)

    @cached_property
    def d_vocab(self) -> int | None:
        """Size of the vocabulary; None where the model reads no tokens."""
        text = self.config.get_text_config() if hasattr(self.config, "get_text_config") else self.config
        return getattr(text, "vocab_size", None)

    @property
    def is_encoder_decoder(self) -> bool:
        """Whether it reads two sequences of tokens."""
        return bool(getattr(self.config, "is_encoder_decoder", False))

    @cached_property
    def is_causal(self) -> bool:
        """Whether every self-attention site sees only what came before. Found out by a run."""
        with self.seam.aside():
            masks = self.run(**self.inputs.example(self)).masks
        own = [site.name for site in self.sites if site.kind == "self"]
        return bool(own) and all(name in masks and looks_causal(*masks[name]) for name in own)

    def site(self, where: str | int) -> AttentionSite:
        """A site by name, or by layer where that names one."""
        return find_site(self.sites, where)

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
        sites: str | int | Collection[str | int] | None = None,
        keep: str | Collection[str] = (),
        grad: bool = False,
        seed: int | None = None,
        inputs: Mapping[str, Any] | None = None,
        **named: Any,
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
            seed: of dropout's random numbers, without which a model in training mode that has dropout is refused.
            named: further arguments of the model's forward, such as ``pixel_values``; what a tokenizer gives
                (``input_ids``, ``attention_mask``) is understood too.
            inputs: such arguments as a mapping, where a name of theirs is one of those above.

        Raises:
            NeverReachedError: a probe, edit or hook was never reached. UserError: tokens do not fit the model, or it is
                in training mode with dropout and no seed.
        """
        if seed is None:
            self._check_mode()
        batch = self.inputs.batch(self, tokens, valid, decoder_tokens, decoder_valid, {**(inputs or {}), **named})
        keep = frozenset([keep] if isinstance(keep, str) else keep)
        if unknown := keep - {"qk", "z"}:
            raise UserError(f"keep takes 'qk' and 'z'; got {sorted(unknown)}")
        sites = [sites] if isinstance(sites, str | int) else sites
        chosen = None if sites is None else frozenset(self.site(where).name for where in sites)
        recording = Recording(tuple(probes), chosen, keep, batch.query_valid)
        with (
            self.seam.recorded(recording), self.edit(*edits), self.hooks(hooks or {}), torch.set_grad_enabled(grad),
            seeded(seed, self.device), self._products(grad),
        ):  # fmt: skip
            before = random_state(self.device) if seed is None and self.module.training else None
            output = self.module(**batch.arguments)
            if before is not None and not torch.equal(before, random_state(self.device)):
                self._refuse_dropout()
            if grad:
                self._check_recomputation(output, recording)
        missed = [site for site in self.sites if chosen and site.name in chosen and site.name not in recording.masks]
        if missed or (probes and not recording.masks):
            what = listed(missed) or "any site that was asked for"
            raise NeverReachedError(f"this forward pass did not come to {what}, so nothing was read there")
        return Run(output, tuple(site for site in self.sites if site.name in recording.masks), recording)

    def _products(self, grad: bool) -> contextlib.AbstractContextManager[None]:
        """The faster products of linear layers, where they are large enough to be worth the watching."""
        return products.linear_layers() if self._has_large_layers and not grad else contextlib.nullcontext()

    @cached_property
    def _has_large_layers(self) -> bool:
        return any(isinstance(m, nn.Linear) and m.weight.numel() >= 1 << 17 for m in self.module.modules())

    def token_loss(
        self,
        tokens: Int[Tensor, "batch position"] | Sequence[Sequence[int]],
        valid: Bool[Tensor, "batch position"] | None = None,
        **run: Any,
    ) -> Float[Tensor, "batch position"]:
        """Loss of each next token in nats: ``[:, i]`` is that of predicting token i + 1; NaN where either is padding.

        Raises:
            UserError: the model predicts no next token, or its output head was not in its checkpoint.
        """
        self.require_loss()
        tokens, valid = together(tokens, valid, "tokens")
        return next_token_loss(self.run(tokens, valid, **run).logits, tokens, valid)

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

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """The wrapped module's own forward, under the active edits."""
        return self.module(*args, **kwargs)

    def generate(self, *args: Any, **kwargs: Any) -> Any:
        """The wrapped module's own ``generate``, under the active edits.

        Never compiled, as transformers does with a static cache on a GPU: edits and hooks come and go.
        """
        if hasattr(self.module, "generation_config"):
            kwargs = {"disable_compile": True, **kwargs}
        return self.module.generate(*args, **kwargs)  # type: ignore[operator]

    @contextlib.contextmanager
    def edit(self, *edits: Edit) -> Iterator[HookedModel]:
        """Keep edits active; they come after those already active.

        Raises:
            UserError: an edit names a head that does not exist. NeverReachedError: forward passes were made, and a
                head that an edit names was in none of them.
        """
        for edit in edits:
            check_addresses(self.sites, edit)
        with self.seam.watched() as watch:
            with self.seam.editing(edits):
                yield self
            if watch.saw_something:
                self._check_core(watch)
                check_reached(self.sites, edits, watch.reached)

    @contextlib.contextmanager
    def hooks(self, functions: Mapping[str, HookFunction]) -> Iterator[HookedModel]:
        """Keep hook functions active at named hook points (:meth:`hook_points` lists them).

        Raises:
            UserError: there is no such hook point. NeverReachedError: forward passes were made, and none reached it.
        """
        hooks = Hooks(self, functions)
        with self.seam.watched() as watch:
            with self.seam.hooking(hooks):
                yield self
            if watch.saw_something:
                hooks.check_fired()

    def hook_points(self) -> list[str]:
        """Names of all hook points."""
        return Hooks.points(self)

    def attend(self, site: AttentionSite, *call: Any) -> Tensor:
        """Attention of one site: :meth:`interp.models.seam.Seam.attend`."""
        return self.seam.attend(site, *call)

    # Checks -----------------------------------------------------------------------------------------------------

    def _check_core(self, watch: Watch) -> None:
        """Refuse a forward pass that came to no site: whatever was to be read or changed was passed by."""
        if watch.reached:
            return
        found = owner(self.sites[0].module) if self.sites else None
        if found is not None and found[0] is not self:
            why = "the module was loaded again and belongs to another HookedModel now: use that one"
        else:
            why = "its attention implementation was changed after loading: load it again"
        raise NeverReachedError(f"a forward pass of {type(self.module).__name__} came to none of its sites: {why}")

    def _check_recomputation(self, output: Any, recording: Recording) -> None:
        """Refuse gradients of edits, hooks and probes that the backward pass would compute without them."""
        late = any("grad_pattern" in probe.needs for probe in recording.probes)
        in_force = late or any(self.seam.edits) or any(hooks.functions for hooks in self.seam.hooks)
        if in_force and (recording.recomputed or was_recomputed(output)):
            raise UserError(
                f"{type(self.module).__name__} runs parts of itself again in the backward pass (gradient "
                "checkpointing), where edits, hooks and probes of gradients are no longer in force, so that gradients "
                "would be those of another model: turn it off; attention needs no T × T memory without it"
            )

    def _check_mode(self) -> None:
        dropout = (m for m in self.module.modules() if isinstance(m, nn.modules.dropout._DropoutNd) and m.p > 0)
        if self.module.training and next((m for m in dropout if m.training), None) is not None:
            self._refuse_dropout()

    def _refuse_dropout(self) -> None:
        raise UserError(
            f"{type(self.module).__name__} is in training mode, where dropout makes every number random: call "
            "model.module.eval() first (gradients flow all the same; a factory returns module.eval()), or give "
            "run() a seed"
        )

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
