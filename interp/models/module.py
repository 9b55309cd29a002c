"""Any PyTorch module as a hooked model: its attention is found by running it once.

While nothing is read or edited, the module computes exactly what it did before, with its own kernels. While something
is, its calls of attention functions go through the core, and a softmax that it computes by hand is read and edited as
it is.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from functools import partial, update_wrapper
from traceback import walk_tb
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from interp.errors import UserError
from interp.models import layouts, projections
from interp.models.examples import described
from interp.models.hooked import HookedModel
from interp.models.interception import AttentionCall, Interceptor, SoftmaxCall, patched_flex
from interp.models.modes import evaluating
from interp.models.module_inputs import IN_A_FACTORY, ModuleInputs, moved
from interp.models.owners import in_one_dtype, owner
from interp.models.sightings import Sighting, chosen, mask_words, site_of
from interp.models.sites import AttentionSite

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

__all__ = ["hook_module"]

_THREE_LINES = (
    "the smallest change that helps is to let it call the core: "
    "`from interp.attention import Mask, attend`, then `z = attend(q, k, v, Mask(causal=True))` in place of its "
    "attention, with q, k and v as [batch, head, position, d_head]"
)


def hook_module(
    module: nn.Module,
    example: Any,
    *,
    forward: Callable[..., Any] | None = None,
    sites: Mapping[str, str] | Collection[str] | None = None,
    declarations: Sequence[projections.Declaration] = (),
    tokenizer: PreTrainedTokenizerBase | None = None,
    info: Mapping[str, Any] | None = None,
    n_ctx: int | None = None,
) -> HookedModel:
    """Find a module's attention by running it once, and make it a hooked model.

    Args:
        module: any module; it is changed in nothing but a wrapper around its ``forward``.
        example: what it is run on: a tensor (its first argument), a tuple of arguments, or a dict of named ones. Take
            at least two sequences, so that batch and heads can be told apart.
        forward: ``forward(module, **inputs)`` for a module that needs more than its inputs.
        sites: keep only these sites, by name; a mapping also renames them. ``info["sites"]`` lists what was found and
            how, to be confirmed.
        declarations: which child is which projection, where head weights are wanted and the names are not known.
        n_ctx: longest input.

    Raises:
        UserError: no attention was seen (it says what was found instead and what to change), or the module needs other
            arguments.
    """
    _refuse_opaque(module)
    inputs = ModuleInputs(module, example, forward)
    seam = _Seam(module)
    called = module if forward is None else _Called(module, forward)
    seam.explore(called, inputs)
    found = chosen(seam.sightings, sites)
    model = HookedModel(called, (), tokenizer=tokenizer, info=dict(info or {}), inputs=inputs)
    calls = Counter(seen.path for seen in seam.sightings)
    inside = "" if forward is None else "module."  # of what stands between the module and its caller
    model.sites = tuple(
        site_of(i, name, seen, module, declarations, inside, calls[seen.path])
        for i, (name, seen) in enumerate(found.items())
    )
    seam.attach(model, {(s.path, s.call_number): site for s, site in zip(found.values(), model.sites, strict=True)})
    model.n_ctx = inputs.n_ctx = n_ctx
    model.d_vocab = inputs.d_vocab = seam.d_vocab
    model.info |= {
        "architecture": type(module).__name__,
        "device": str(model.device),
        "dtype": str(model.dtype).removeprefix("torch."),
        "n_sites": len(model.sites),
        "sites": [s.describe() | {"site": name} for name, s in found.items()],
        "model_built_patterns": [name for name, s in found.items() if s.is_dense],
    }
    return model


class _Called(nn.Module):
    """A module behind a function of its owner's."""

    def __init__(self, module: nn.Module, function: Callable[..., Any]) -> None:
        super().__init__()
        self.module, self.function = module, function

    def forward(self, **inputs: Any) -> Any:
        return self.function(self.module, **inputs)


class _Watched:
    """What stands in place of a module's own ``forward``. No function, so that a copy of the module (deep, or by
    pickle) runs the copy."""

    def __init__(self, seam: _Seam, forward: Callable[..., Any]) -> None:
        update_wrapper(self, forward)  # with its signature, so that the module can be loaded again
        self.seam, self.forward = seam, forward

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return self.seam.watch(self.forward, args, kwargs)


@dataclass(eq=False)
class _Seam:
    """Stands between a module and its attention calls."""

    module: nn.Module
    sightings: list[Sighting] = field(default_factory=list)
    d_vocab: int | None = None
    first: Tensor | None = None
    embedded: int | None = None
    batch: int | None = None
    model: HookedModel | None = None
    places: dict[tuple[str, int], AttentionSite] = field(default_factory=dict)
    stack: list[tuple[str, nn.Module]] = field(default_factory=list)
    calls: Counter[str] = field(default_factory=Counter)
    exploring: bool = False
    comparing: bool = False

    # Watching -------------------------------------------------------------------------------------------------------

    def explore(self, called: nn.Module, inputs: ModuleInputs) -> None:
        """Run the module once and note every attention call."""
        example = moved(inputs.arguments, next(self.module.parameters(), torch.empty(0)).device)
        first = next((v for v in example.values() if isinstance(v, Tensor)), None)
        self.batch = None if first is None or first.ndim == 0 else first.shape[0]
        self.first = first
        self._wrap()
        self.exploring = True
        try:
            with evaluating(self.module), torch.no_grad():
                called(**example)
        except (UserError, MemoryError):
            raise
        except Exception as error:  # whatever a person's code raises is theirs to know
            if "memory" in str(error):  # that there is too little is said elsewhere
                raise
            raise UserError(
                f"{type(self.module).__name__} could not be run on the example ({described(example)}): it raised "
                f"{type(error).__name__}: {error}. Pass example= as it takes it, a dict of its arguments where it has "
                f"several, or forward=lambda module, **inputs: …. {IN_A_FACTORY}"
            ) from error
        finally:
            self.exploring = False
        self._check_folds(called, example)
        if not self.sightings:
            raise UserError(_nothing_seen(self.module))
        if first is not None and not first.is_floating_point():
            self.d_vocab = self.embedded or _vocabulary(self.module)

    def _check_folds(self, called: nn.Module, example: dict[str, Any]) -> None:
        """Where heads lie in one dimension with the sequences: whether they are told apart, by two equal sequences."""
        if not any(seen.folded for seen in self.sightings):
            return
        self.exploring = self.comparing = True
        try:
            with evaluating(self.module), torch.no_grad():
                called(**layouts.equal_sequences(example, self.batch))
        except (RuntimeError, ValueError, TypeError, LookupError, AssertionError):
            return  # it does not take two sequences
        finally:
            self.exploring = self.comparing = False

    def attach(self, model: HookedModel, places: dict[tuple[str, int], AttentionSite]) -> None:
        self.model, self.places = model, places

    def _wrap(self) -> None:
        """Watch the module's calls whenever it runs while something is read or edited."""
        self.module.forward = _Watched(self, self.module.forward)  # type: ignore[method-assign]

    def watch(self, forward: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Run the module's own forward, its attention caught while something is read or edited."""
        if not self.exploring and not self._active:
            return forward(*args, **kwargs)
        self.calls.clear()
        self._note_batch(args, kwargs)
        with ExitStack() as stack:
            self._track(stack)
            stack.enter_context(patched_flex(self, self.module))
            stack.enter_context(Interceptor(self))
            return forward(*args, **kwargs) if self.exploring else self._called(forward, args, kwargs)

    def _called(self, forward: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """The forward, with what it raises on inputs that do not fit said in words."""
        try:
            return forward(*args, **kwargs)
        except (IndexError, AssertionError, RuntimeError) as error:
            if "memory" in str(error):  # that there is too little is said elsewhere
                raise
            frames = (frame.f_globals.get("__name__", "") for frame, _ in walk_tb(error.__traceback__))
            if any(name.startswith("interp.attention") for name in frames):
                raise  # an edit or a probe, not the module, did not fit
            given = described({**{f"argument {place}": value for place, value in enumerate(args)}, **kwargs})
            raise UserError(
                f"{type(self.module).__name__} raised {type(error).__name__} on {given}: {error}. If its inputs may "
                "not be so long, say how long: interp.load(module, example, n_ctx=…), or --tokens with sequences of "
                "that length"
            ) from error

    def _track(self, stack: ExitStack) -> None:
        """Keep track of which module runs. Only while watching: hooks keep PyTorch from its fast paths."""
        self.stack = [("", self.module)]
        for path, child in self.module.named_modules():
            if path:
                stack.callback(child.register_forward_pre_hook(partial(self._enter, path)).remove)
                stack.callback(child.register_forward_hook(self._leave, always_call=True).remove)

    @property
    def _active(self) -> bool:
        return self.model is not None and self.model.seam.active

    def _note_batch(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        first = next((v for v in (*args, *kwargs.values()) if isinstance(v, Tensor) and v.ndim > 0), None)
        self.batch = None if first is None else first.shape[0]

    def _enter(self, path: str, module: nn.Module, args: Any) -> None:
        self.stack.append((path, module))
        if self.exploring and isinstance(module, nn.Embedding) and args and args[0] is self.first:
            self.embedded = module.num_embeddings

    def _leave(self, module: nn.Module, args: Any, output: Any) -> None:
        self.stack.pop()

    def _here(self) -> tuple[str, nn.Module, int]:
        path, module = self.stack[-1]
        number = self.calls[path]
        self.calls[path] += 1
        return path, module, number

    def _named(self, path: str) -> str:
        return path or type(self.module).__name__

    # Answering ------------------------------------------------------------------------------------------------------

    def attention(self, call: AttentionCall) -> Tensor | None:
        path, module, number = self._here()
        if self.comparing:
            return layouts.check_fold(self._named(path), call, call.query)
        if self.exploring:
            q, k, mask = call.query, call.key, call.mask
            shapes = f"query {list(q.shape)}, key {list(k.shape)}"
            heads = (q.shape[1], k.shape[1], q.shape[3])
            self.sightings.append(
                Sighting(path, number, module, call.how, *heads, shapes, mask_words(call), mask.cross, call.folded)
            )
            return None
        site = self.places.get((path, number))
        if site is None or self.model is None:
            return None
        layouts.check_heads(site, call.query.shape[1])
        if call.dropout:
            raise UserError(
                f"{site.name} asks for attention dropout {call.dropout}: call eval() on the module before reading or "
                "editing it"
            )
        mods = () if call.score_mod is None else (call.score_mod,)
        q, k, v = in_one_dtype(call.query, call.key, call.value)
        return call.restore(self.model.seam.attend(site, q, k, v, call.mask, call.scale, None, mods))

    def softmax(self, call: SoftmaxCall) -> Tensor | None:
        path, module, number = self._here()
        if self.comparing:
            return layouts.check_fold(self._named(path), call, call.pattern)
        if self.exploring:
            pattern = call.pattern
            layouts.check_pattern(self._named(path), pattern)
            cross = pattern.shape[2] != pattern.shape[3]
            shapes = f"pattern {list(pattern.shape)}"
            heads = (pattern.shape[1], pattern.shape[1], 0)
            self.sightings.append(
                Sighting(path, number, module, call.how, *heads, shapes, "as computed", cross, call.folded)
            )
            return None
        site = self.places.get((path, number))
        if site is None or self.model is None:
            return None
        layouts.check_heads(site, call.pattern.shape[1])
        return call.restore(self.model.seam.read_dense(site, call.scores, call.pattern))


def _vocabulary(module: nn.Module) -> int | None:
    """Size of the vocabulary where no embedding was seen to take the token ids as they are: rows of the first one."""
    return next((child.num_embeddings for child in module.modules() if isinstance(child, nn.Embedding)), None)


def _refuse_opaque(module: nn.Module) -> None:
    """Compiled and scripted modules hide what they call."""
    for path, child in module.named_modules():
        where = path or "the module"
        if isinstance(child, torch.jit.ScriptModule):
            raise UserError(
                f"{where} is a scripted module, which cannot be looked into; load the Python module it was made from"
            )
        if type(child).__name__ == "OptimizedModule":
            raise UserError(
                f"{where} is compiled, which hides its attention; load the module it was made from (`._orig_mod`), and "
                "compile a copy for speed"
            )
        if getattr(child, "_compiled_call_impl", None) is not None:
            raise UserError(
                f"{where} was compiled in place by .compile(), which hides its attention; load it before that"
            )


def _nothing_seen(module: nn.Module) -> str:
    if any(owner(child) is not None for child in module.modules()):
        return (
            f"{type(module).__name__} ran, but its attention belongs to a model that was hooked before: read and edit "
            "it through that HookedModel (a bridge made by model.bridge through model)"
        )
    named = [f"{p} ({type(m).__name__})" for p, m in module.named_modules() if "att" in type(m).__name__.lower()]
    about = f"modules named after attention: {', '.join(named[:6])}" if named else "no module is named after attention"
    return (
        f"{type(module).__name__} ran, but no attention was seen: no call of scaled_dot_product_attention, "
        f"MultiheadAttention or flex_attention, and no softmax over a product of two activations. {about}. If a "
        f"compiled function or a kernel of its own computes it, {_THREE_LINES}"
    )
