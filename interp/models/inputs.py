"""What a forward pass is given: tokens checked, padded and told apart from padding, positions supplied."""

from __future__ import annotations

import inspect
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from jaxtyping import Bool, Int
from torch import Tensor

from interp.errors import UserError

if TYPE_CHECKING:
    from interp.models.hooked import HookedModel

__all__ = ["Batch", "TransformersInputs"]

Tokens = Int[Tensor, "batch position"] | Sequence[Sequence[int]] | None


@dataclass(frozen=True, eq=False)
class Batch:
    """Arguments of one forward pass, and which tokens of each stack are not padding."""

    arguments: dict[str, Any]
    query_valid: Mapping[str, Tensor]


class TransformersInputs:
    """How a transformers model takes its input. Other kinds of model bring a class of their own with these methods."""

    def batch(
        self, model: HookedModel, tokens: Tokens, valid: Tensor | None, decoder_tokens: Tokens,
        decoder_valid: Tensor | None, inputs: Mapping[str, Any],
    ) -> Batch:  # fmt: skip
        """Check the tokens against the model and make the arguments of its forward.

        Raises:
            UserError: token ids outside the vocabulary, an input longer than the context, a mask of another shape,
                padding on the left of a model that cannot be told positions, or no input at all.
        """
        arguments: dict[str, Any] = {
            k: v.to(model.device) if isinstance(v, Tensor) else v for k, v in inputs.items()
        }  # fmt: skip
        query_valid: dict[str, Tensor] = {}
        if tokens is None and not arguments:
            raise UserError("run() needs tokens, or the model's own inputs such as pixel_values")
        if tokens is not None:
            tokens, valid = _padded(tokens, valid, model, "tokens")
            arguments["input_ids"] = tokens
            if valid is not None:
                arguments["attention_mask"] = valid.long()
                query_valid["encoder" if model.is_encoder_decoder else ""] = valid
                arguments |= _positions(model, valid)
        if decoder_tokens is not None:
            decoder_tokens, decoder_valid = _padded(decoder_tokens, decoder_valid, model, "decoder_tokens")
            arguments["decoder_input_ids"] = decoder_tokens
            if decoder_valid is not None:
                arguments["decoder_attention_mask"] = decoder_valid.long()
                query_valid["decoder"] = decoder_valid
        elif model.is_encoder_decoder and "decoder_input_ids" not in arguments and "labels" not in arguments:
            raise UserError("an encoder–decoder needs decoder_tokens beside tokens")
        if "use_cache" in _parameters(model):
            arguments.setdefault("use_cache", False)
        return Batch(arguments, query_valid)

    def example(self, model: HookedModel) -> dict[str, Any]:
        """A small input of the kind that the model takes, as keyword arguments of :meth:`HookedModel.run`."""
        config = model.config
        if getattr(model.module, "main_input_name", "input_ids") == "pixel_values":
            size = config.image_size
            height, width = (size, size) if isinstance(size, int) else size
            generator = torch.Generator().manual_seed(0)
            pixels = torch.randn(2, getattr(config, "num_channels", 3), height, width, generator=generator)
            return {"pixel_values": pixels.to(model.dtype)}
        length = min(24, model.n_ctx or 24)
        tokens = example_tokens(model.d_vocab or 2, length)
        return {"tokens": tokens, "decoder_tokens": tokens[:, : max(2, length // 2)]} if model.is_encoder_decoder else {
            "tokens": tokens
        }  # fmt: skip


def example_tokens(d_vocab: int, length: int, batch: int = 2, seed: int = 0) -> Int[Tensor, "batch position"]:
    """Random token ids from the upper nine tenths of the vocabulary, where special tokens are rare."""
    generator = torch.Generator().manual_seed(seed)
    return torch.randint(min(d_vocab // 10, d_vocab - 1), d_vocab, (batch, length), generator=generator)


def _padded(
    tokens: Any, valid: Tensor | None, model: HookedModel, name: str
) -> tuple[Int[Tensor, "batch position"], Bool[Tensor, "batch position"] | None]:
    """Token ids as one tensor on the model's device, and which are valid (None when all are)."""
    if not isinstance(tokens, Tensor):
        rows = [torch.as_tensor(row, dtype=torch.long) for row in tokens]
        if not rows or any(row.ndim != 1 or len(row) == 0 for row in rows):
            raise UserError(f"{name} must be sequences of at least one token id each")
        if valid is None and len({len(row) for row in rows}) > 1:
            longest = max(map(len, rows))
            valid = torch.stack([torch.arange(longest) < len(row) for row in rows])
        tokens = torch.nn.utils.rnn.pad_sequence(rows, batch_first=True)
    if tokens.ndim != 2 or tokens.numel() == 0 or tokens.is_floating_point():
        raise UserError(
            f"{name} must be token ids [batch, position], at least one; got {tokens.dtype} {list(tokens.shape)}"
        )
    d_vocab, n_ctx = model.d_vocab, model.n_ctx
    if d_vocab is not None and (int(tokens.min()) < 0 or int(tokens.max()) >= d_vocab):
        raise UserError(
            f"{name} must lie in the vocabulary, 0 … {d_vocab - 1}; got {int(tokens.min())} … {int(tokens.max())}"
        )
    if n_ctx is not None and tokens.shape[1] > n_ctx:
        raise UserError(
            f"{name}: {tokens.shape[1]} tokens are more than the model's context of {n_ctx}; use shorter windows"
        )
    if valid is not None:
        if valid.shape != tokens.shape or valid.dtype is not torch.bool:
            raise UserError(
                f"valid must be boolean {list(tokens.shape)} as {name}; got {valid.dtype} {list(valid.shape)}"
            )
        if not bool(valid.any(1).all()):
            raise UserError(f"valid leaves sequence {int((~valid.any(1)).nonzero()[0])} without a token; leave it out")
        valid = None if bool(valid.all()) else valid.to(model.device)
    return tokens.to(model.device), valid


def _positions(model: HookedModel, valid: Tensor) -> dict[str, Tensor]:
    """Position ids that count only valid tokens, where padding stands before or between them."""
    if bool(valid[:, 0].all()) and bool((valid.int().diff(dim=1) <= 0).all()):
        return {}  # padding on the right only: positions count from 0 anyway
    if "position_ids" in _parameters(model):
        return {"position_ids": (valid.long().cumsum(1) - 1).clamp_min(0)}
    if _positions_from_mask(model):
        return {}
    raise UserError(
        f"{type(model.module).__name__} cannot be told positions, so padding on the left would shift them; "
        "pad on the right"
    )


def _positions_from_mask(model: HookedModel) -> bool:
    """Models without absolute positions, and those that count them along the attention mask themselves."""
    return model.n_ctx is None or getattr(model.config, "model_type", "") in {"opt", "bloom", "mpt", "t5", "falcon"}


def _parameters(model: HookedModel) -> Mapping[str, inspect.Parameter]:
    return inspect.signature(model.module.forward).parameters
