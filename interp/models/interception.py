"""Attention caught as it is called, in any module: what was asked for, in the core's terms.

Three ways in which people compute attention are recognised:

- ``F.scaled_dot_product_attention``, also inside ``nn.MultiheadAttention`` and ``nn.TransformerEncoder/DecoderLayer``;
- ``flex_attention`` with its ``score_mod`` and block mask;
- a softmax over scores that a matrix product of two activations made: the pattern then exists already.
"""

from __future__ import annotations

import inspect
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any, Literal, Protocol

import torch
import torch.nn.functional as F  # noqa: N812 (the name everyone knows)
from torch import Tensor, nn
from torch.nn.attention import flex_attention as flex
from torch.overrides import TorchFunctionMode

from interp.attention import Mask
from interp.attention.edits import Edit
from interp.attention.rows import Block
from interp.errors import UserError

__all__ = ["Answer", "AttentionCall", "Interceptor", "SoftmaxCall", "patched_flex"]

How = Literal["scaled_dot_product_attention", "MultiheadAttention", "flex_attention", "softmax"]


_NAMES = threading.RLock()
"""Held while functions of PyTorch's go under other names, which all threads see: one thread at a time replaces them,
and what the others call meanwhile is answered as if nothing were replaced."""


@dataclass(frozen=True, eq=False)
class AttentionCall:
    """One call of an attention function, in the core's terms.

    Attributes:
        query, key, value: [batch, head, position, d_head].
        restore: brings an output of the core into the layout of the call.
        score_mod: ``flex_attention``'s function of the scores, as an edit; None without one.
        dropout: probability of attention dropout that the call asks for.
        folded: heads lay in one dimension with the sequences, taken to be [sequence · head].
    """

    how: How
    query: Tensor
    key: Tensor
    value: Tensor
    mask: Mask
    scale: float | None
    restore: Callable[[Tensor], Tensor]
    score_mod: Edit | None = None
    dropout: float = 0.0
    folded: bool = False


@dataclass(frozen=True, eq=False)
class SoftmaxCall:
    """A softmax over scores [..., query, key] that the model has computed by hand.

    Attributes:
        scores, pattern: [batch, head, query, key]. ``restore``: brings such a tensor into the layout of the call.
        folded: heads lay in one dimension with the sequences, taken to be [sequence · head].
    """

    how: How
    scores: Tensor
    pattern: Tensor
    restore: Callable[[Tensor], Tensor]
    folded: bool = False


class Answer(Protocol):
    """What is done about a caught call; None lets the model's own result stand."""

    def attention(self, call: AttentionCall) -> Tensor | None:
        """The output, in the layout of the call."""
        ...

    def softmax(self, call: SoftmaxCall) -> Tensor | None:
        """The pattern, in the layout of the call."""
        ...

    @property
    def batch(self) -> int | None:
        """Number of sequences in the input, where known: tells heads from batch in three dimensions."""
        ...


class Interceptor(TorchFunctionMode):
    """Catches attention while it is active."""

    def __init__(self, answer: Answer) -> None:
        super().__init__()
        self.answer = answer

    def __torch_function__(
        self, func: Callable[..., Any], types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        kwargs = kwargs or {}
        if func is F.scaled_dot_product_attention:
            return self._scaled_dot_product(func, "scaled_dot_product_attention", args, kwargs)
        if func is F.multi_head_attention_forward:
            return self._multi_head(func, args, kwargs)
        result = func(*args, **kwargs)
        name = getattr(func, "__name__", "")
        if name in _SOFTMAX and _is_scores(_argument(args, kwargs, 0, "input")) and _over_last(args, kwargs, result):
            return self._softmax(args, kwargs, result)
        if isinstance(result, Tensor) and (_makes_scores(name, args, result) or _keeps_scores(name, args, result)):
            result._interp_scores = True  # type: ignore[attr-defined]
        return result

    def _scaled_dot_product(self, func: Any, how: How, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        answered = self.answer.attention(read_sdpa(how, *args, **kwargs, batch=self.answer.batch))
        return func(*args, **kwargs) if answered is None else answered

    def _softmax(self, args: tuple[Any, ...], kwargs: dict[str, Any], result: Tensor) -> Tensor:
        answered = self.answer.softmax(read_softmax(_argument(args, kwargs, 0, "input"), result, self.answer.batch))
        return result if answered is None else answered

    def _multi_head(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Look inside: the function calls its attention or softmax by name, which are replaced meanwhile."""
        given = inspect.signature(func).bind(*args, **kwargs).arguments
        cross = given["query"] is not given["key"]
        n_heads, thread = given["num_heads"], threading.get_ident()

        def attention(*inner: Any, **named: Any) -> Any:
            if threading.get_ident() != thread:
                return sdpa(*inner, **named)
            call = read_sdpa("MultiheadAttention", *inner, **named)
            call = _crossing(call) if cross else call
            answered = self.answer.attention(call)
            return sdpa(*inner, **named) if answered is None else answered

        def row_softmax(scores: Tensor, dim: int | None = None, **named: Any) -> Tensor:
            pattern = softmax(scores, dim=dim, **named)
            if threading.get_ident() != thread:
                return pattern
            answered = self.answer.softmax(_with_heads("MultiheadAttention", scores, pattern, n_heads))
            return pattern if answered is None else answered

        with _NAMES:
            sdpa, softmax = F.scaled_dot_product_attention, F.softmax
            F.scaled_dot_product_attention, F.softmax = attention, row_softmax
            try:
                return func(*args, **kwargs)
            finally:
                F.scaled_dot_product_attention, F.softmax = sdpa, softmax


# scaled_dot_product_attention ---------------------------------------------------------------------------------------


def read_sdpa(
    how: How,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attn_mask: Tensor | None = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    *,
    scale: float | None = None,
    enable_gqa: bool = False,
    batch: int | None = None,
) -> AttentionCall:
    """A call of ``F.scaled_dot_product_attention``, whatever number of dimensions it uses.

    Two dimensions are one head of one sequence; three are [batch, position, d], or [batch · head, position, d] where
    the first is a multiple of the input's ``batch``; four [batch, head, position, d]; of more, all before the last
    three count as batch.
    """
    apart = query.ndim != 3 or not len(query) == len(key) == len(value)
    folded = 0 if apart else _folded_heads(len(query), batch)
    if folded:
        query, key, value = (t.unflatten(0, (-1, folded)) for t in (query, key, value))
        if attn_mask is not None and attn_mask.ndim == 3 and len(attn_mask) > 1:
            attn_mask = attn_mask.unflatten(0, (-1, folded))
    dimensions = query.ndim
    lead = torch.broadcast_shapes(query.shape[:-3], key.shape[:-3], value.shape[:-3]) if dimensions > 3 else ()
    q, k, v = (_four(t, lead) for t in (query, key, value))
    mask = Mask(causal=is_causal, query_offset=0 if is_causal else None)
    if attn_mask is not None:
        mask = _mask_of(attn_mask, dimensions, lead, (q.shape[2], k.shape[2]))
    elif not is_causal and q.shape[2] != k.shape[2]:
        mask = Mask(cross=True)

    def restore(output: Tensor) -> Tensor:
        if dimensions == 2:
            return output[0, 0]
        if folded:
            return output.flatten(0, 1)
        return output[:, 0] if dimensions == 3 else output.reshape(*lead, *output.shape[1:])

    return AttentionCall(how, q, k, v, mask, scale, restore, dropout=dropout_p, folded=folded > 0)


def _folded_heads(first: int, batch: int | None) -> int:
    """How many heads of each of the input's sequences a first dimension holds; 0 where it is the sequences alone."""
    return first // batch if batch and first != batch and first % batch == 0 else 0


def _four(tensor: Tensor, lead: tuple[int, ...]) -> Tensor:
    """[batch, head, position, d] of a tensor of two or more dimensions."""
    if tensor.ndim == 2:
        return tensor[None, None]
    if tensor.ndim == 3:
        return tensor[:, None]
    return tensor.expand(*lead, *tensor.shape[-3:]).reshape(-1, *tensor.shape[-3:])


def _mask_of(given: Tensor, dimensions: int, lead: tuple[int, ...], sizes: tuple[int, int]) -> Mask:
    cross = sizes[0] != sizes[1]
    mask = given
    if mask.ndim == 1:
        mask = mask[None]
    if dimensions == 3 and mask.ndim == 3:
        mask = mask[:, None]
    elif mask.ndim == 3:
        mask = mask[None]
    elif mask.ndim > 4:
        mask = mask.expand(*lead, *mask.shape[-3:]).reshape(-1, *mask.shape[-3:])
    bias = None
    if mask.dtype is not torch.bool:
        allowed = mask > torch.finfo(mask.dtype).min / 2
        rest = mask.masked_fill(~allowed, 0.0)
        bias = rest if bool(rest.any()) or rest.requires_grad else None
        mask = allowed
    if mask.ndim == 4 and mask.shape[1:3] == (1, 1) and mask.shape[3] == sizes[1]:
        return Mask(key_valid=mask[:, 0, 0], bias=bias, cross=cross)  # padding, the same for every query
    return Mask(allowed=None if bool(mask.all()) else mask, bias=bias, cross=cross)


def _crossing(call: AttentionCall) -> AttentionCall:
    if call.mask.causal or call.mask.cross:
        return call
    return replace(call, mask=replace(call.mask, cross=True))


# flex_attention -----------------------------------------------------------------------------------------------------


class ScoreMod(Edit):
    """flex_attention's ``score_mod(score, batch, head, query, key)``, applied to a block of rows at a time."""

    stage = "scores"

    def __init__(self, function: Callable[..., Tensor]) -> None:
        object.__setattr__(self, "heads", None)
        object.__setattr__(self, "function", function)

    def apply(self, x: Tensor, block: Block) -> Tensor:
        device = x.device
        index = (
            torch.arange(x.shape[0], device=device)[:, None, None, None],
            torch.arange(x.shape[1], device=device)[None, :, None, None],
            block.query_index[None, None, :, None],
            block.key_index[None, None, None, :],
        )
        return _elementwise(self.function, x, *index)  # type: ignore[attr-defined]


def _elementwise(function: Callable[..., Tensor], *tensors: Tensor) -> Tensor:
    """A function of scalars, as flex_attention takes them, over broadcast tensors."""
    full = torch.broadcast_tensors(*tensors)
    return torch.vmap(function)(*(t.flatten() for t in full)).view(full[0].shape)


def read_flex(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    score_mod: Callable[..., Tensor] | None = None,
    block_mask: Any = None,
    scale: float | None = None,
    enable_gqa: bool = False,
    **_: Any,
) -> AttentionCall:
    """A call of ``flex_attention``."""
    mask = Mask(query_offset=0, cross=False)
    if block_mask is not None:
        mask_mod = block_mask.mask_mod
        mask = Mask(allowed=lambda b, h, q, k: _elementwise(mask_mod, b, h, q, k), query_offset=0)
    elif query.shape[2] != key.shape[2]:
        mask = Mask(cross=True)
    mod = None if score_mod is None else ScoreMod(score_mod)
    return AttentionCall("flex_attention", query, key, value, mask, scale, lambda output: output, mod)


@contextmanager
def patched_flex(answer: Answer, module: nn.Module) -> Iterator[None]:
    """Replace ``flex_attention`` wherever the code of a module's classes refers to it.

    It takes no part in PyTorch's function modes, so the name itself is replaced while this lasts.
    """
    thread = threading.get_ident()

    def attention(*args: Any, **kwargs: Any) -> Any:
        if threading.get_ident() != thread:
            return own(*args, **kwargs)
        answered = answer.attention(read_flex(*args, **kwargs))
        if answered is None:
            return own(*args, **kwargs)
        if kwargs.get("return_lse") or kwargs.get("return_aux") is not None:
            raise UserError("flex_attention with return_lse or return_aux cannot be edited or read: leave them off")
        return answered

    with _NAMES:
        own = flex.flex_attention
        places = [(namespace, name) for namespace in _namespaces(module) for name, v in namespace.items() if v is own]
        for namespace, name in places:
            namespace[name] = attention
        try:
            yield
        finally:
            for namespace, name in places:
                namespace[name] = own


def _namespaces(module: nn.Module) -> list[dict[str, Any]]:
    """Global names of the code that a module's classes and forward methods are written in."""
    found: dict[int, dict[str, Any]] = {id(flex.__dict__): flex.__dict__}
    for child in module.modules():
        for kind in type(child).__mro__:
            forward = vars(kind).get("forward")
            names = getattr(forward, "__globals__", None)
            if names is not None and not kind.__module__.startswith("torch."):
                found[id(names)] = names
    return list(found.values())


# A softmax by hand --------------------------------------------------------------------------------------------------

_SOFTMAX = {"softmax", "_softmax"}
_PRODUCTS = {"matmul", "__matmul__", "__rmatmul__", "bmm", "baddbmm", "einsum"}
_ELEMENTWISE = {
    "mul", "mul_", "__mul__", "__rmul__", "__imul__", "div", "div_", "__truediv__", "__itruediv__", "true_divide",
    "add", "add_", "__add__", "__radd__", "__iadd__", "sub", "__sub__", "__rsub__", "tanh", "tanh_", "clamp",
    "masked_fill", "masked_fill_", "where", "float", "half", "bfloat16", "double", "to", "type", "type_as",
    "contiguous", "clone", "detach", "view", "reshape", "unsqueeze", "squeeze", "unflatten", "flatten",
    "__getitem__", "permute", "transpose",
}  # fmt: skip


def _is_scores(tensor: Any) -> bool:
    return isinstance(tensor, Tensor) and getattr(tensor, "_interp_scores", False) and tensor.ndim >= 2


def _makes_scores(name: str, args: tuple[Any, ...], result: Tensor) -> bool:
    """Whether a function multiplied two activations (no parameter) into something like [..., query, key]."""
    if name not in _PRODUCTS or result.ndim < 2:
        return False
    flat = [a for arg in args for a in (arg if isinstance(arg, (list, tuple)) else [arg])]
    operands = [a for a in flat if isinstance(a, Tensor)]
    return len(operands) >= 2 and not any(isinstance(a, nn.Parameter) for a in operands)


def _keeps_scores(name: str, args: tuple[Any, ...], result: Tensor) -> bool:
    """Whether a function only rescales, masks, shifts or reshapes scores, keeping [query, key] last."""
    if name not in _ELEMENTWISE:
        return False
    scores = [a for a in args if _is_scores(a)]
    return bool(scores) and result.ndim >= 2 and result.shape[-2:] == scores[0].shape[-2:]


def _over_last(args: tuple[Any, ...], kwargs: dict[str, Any], result: Any) -> bool:
    dim = _argument(args, kwargs, 1, "dim")
    return isinstance(result, Tensor) and dim in (-1, result.ndim - 1)


def _argument(args: tuple[Any, ...], kwargs: dict[str, Any], place: int, name: str) -> Any:
    return args[place] if len(args) > place else kwargs.get(name)


def read_softmax(scores: Tensor, pattern: Tensor, batch: int | None) -> SoftmaxCall:
    """A softmax by hand, with heads and batch told apart by the layout.

    Four dimensions are [batch, head, query, key], two are one head of one sequence. Three are [batch, query, key] when
    the first is the batch of the input, and [batch · head, query, key] when it is a multiple of it.
    """
    if pattern.ndim == 3:
        folded = _folded_heads(len(pattern), batch)
        return replace(_with_heads("softmax", scores, pattern, folded or 1), folded=folded > 0)
    shape = pattern.shape
    lead = (1, 1) if pattern.ndim == 2 else (-1, shape[-3])
    scores, pattern = (t.reshape(*lead, *t.shape[-2:]) for t in (scores.expand(shape), pattern))
    return SoftmaxCall("softmax", scores, pattern, lambda output: output.reshape(shape))


def _with_heads(how: How, scores: Tensor, pattern: Tensor, n_heads: int) -> SoftmaxCall:
    shape = pattern.shape
    scores, pattern = (t.reshape(-1, n_heads, *t.shape[-2:]) for t in (scores, pattern))
    return SoftmaxCall(how, scores, pattern, lambda output: output.reshape(shape))
