"""What a forward pass is given: tokens checked, padded and told apart from padding, positions supplied."""

from __future__ import annotations

import contextlib
import inspect
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from jaxtyping import Bool, Int
from torch import Tensor, nn

from interp.errors import UserError

if TYPE_CHECKING:
    from interp.models.hooked import HookedModel

__all__ = ["Batch", "TransformersInputs", "context_length", "random_state", "seeded", "together"]

Tokens = Int[Tensor, "batch position"] | Sequence[Sequence[int]] | None
Valid = Bool[Tensor, "batch position"] | None

#: Arguments of a forward pass that tell positions to a padded batch, made from which tokens are valid.
Positions = Callable[[Bool[Tensor, "batch position"]], dict[str, Tensor]]


@dataclass(frozen=True, eq=False)
class Batch:
    """Arguments of one forward pass, and which tokens of each stack are not padding."""

    arguments: dict[str, Any]
    query_valid: Mapping[str, Tensor]


class TransformersInputs:
    """How a transformers model takes its input. Other kinds of model bring a class of their own with these methods."""

    def __init__(self) -> None:
        self._positions: dict[str, Positions | None] = {}

    def batch(
        self, model: HookedModel, tokens: Tokens, valid: Valid, decoder_tokens: Tokens, decoder_valid: Valid,
        inputs: Mapping[str, Any],
    ) -> Batch:  # fmt: skip
        """Check the tokens against the model and make the arguments of its forward.

        Raises:
            UserError: token ids outside the vocabulary, an input longer than the context, a mask of another shape,
                padding between tokens, padding on the left of a model that cannot be told positions, or no input.
        """
        rest = {k: v.to(model.device) if isinstance(v, Tensor) else v for k, v in inputs.items()}
        tokens, valid = _under_one_name(tokens, valid, rest, "input_ids", "attention_mask")
        decoder_tokens, decoder_valid = _under_one_name(
            decoder_tokens, decoder_valid, rest, "decoder_input_ids", "decoder_attention_mask"
        )
        if tokens is None and not rest:
            raise UserError("run() needs tokens, or the model's own inputs such as pixel_values")
        query_valid: dict[str, Tensor] = {}
        both = model.is_encoder_decoder
        self._add(model, rest, query_valid, tokens, valid, "encoder" if both else "", "")
        self._add(model, rest, query_valid, decoder_tokens, decoder_valid, "decoder", "decoder_")
        if both and not rest.keys() & {"decoder_input_ids", "decoder_inputs_embeds", "labels"}:
            raise UserError("an encoder–decoder needs decoder_tokens beside tokens")
        if "use_cache" in _parameters(model.module):
            rest.setdefault("use_cache", False)
        return Batch(rest, query_valid)

    def example(self, model: HookedModel) -> dict[str, Any]:
        """A small input of the kind that the model takes, as keyword arguments of :meth:`HookedModel.run`.

        Raises:
            UserError: it takes neither tokens nor images.
        """
        name = getattr(model.module, "main_input_name", "input_ids")
        if name == "pixel_values":
            return {"pixel_values": _example_images(model)}
        if name != "input_ids" or model.d_vocab is None:
            raise UserError(
                f"{type(model.module).__name__} reads {name}: only models of tokens and of images are hooked so far"
            )
        tokens = example_tokens(model, min(24, model.n_ctx or 24))
        return {"tokens": tokens} | (
            {"decoder_tokens": tokens[:, : max(2, tokens.shape[1] // 2)]} if model.is_encoder_decoder else {}
        )

    def _add(
        self, model: HookedModel, arguments: dict[str, Any], query_valid: dict[str, Tensor], tokens: Tokens,
        valid: Valid, stack: str, prefix: str,
    ) -> None:  # fmt: skip
        """Put the tokens of one stack, checked, among the arguments."""
        if tokens is not None:
            tokens, valid = together(tokens, valid, f"{prefix}tokens")
            _check_tokens(model, tokens, f"{prefix}tokens")
            arguments[f"{prefix}input_ids"] = tokens.to(model.device)
        if valid is None or bool(valid.all()):
            return
        _check_padding(valid, f"{prefix}valid")
        valid = query_valid[stack] = valid.to(model.device)
        arguments[f"{prefix}attention_mask"] = valid.long()
        if not bool(valid[:, 0].all()) and f"{prefix}position_ids" not in arguments:
            arguments |= self._positions_of(model, prefix)(valid)

    def _positions_of(self, model: HookedModel, prefix: str) -> Positions:
        """How a model is told positions when padding stands on the left: found out by trying.

        Raises:
            UserError: in no way does it compute what it computes without the padding.
        """
        if prefix not in self._positions:
            self._positions[prefix] = next((p for p in _candidates(model, prefix) if _works(model, prefix, p)), None)
        found = self._positions[prefix]
        if found is None:
            raise UserError(
                f"{type(model.module).__name__} cannot be told positions, so padding on the left would shift them; "
                "pad on the right"
            )
        return found


def together(tokens: Any, valid: Valid, name: str) -> tuple[Int[Tensor, "batch position"], Valid]:
    """Token ids as one tensor, padded on the right where they are lists of different lengths, and which are valid.

    Raises:
        UserError: they are no token ids, or ``valid`` has another shape.
    """
    if isinstance(tokens, str | Mapping) or (isinstance(tokens, Sequence) and any(isinstance(r, str) for r in tokens)):
        how = "run(**given)" if isinstance(tokens, Mapping) else "run(**model.tokenizer(text, return_tensors='pt'))"
        raise UserError(f"{name} must be token ids; got {tokens!r:.60}: model.{how}")
    if not isinstance(tokens, Tensor):
        rows = [torch.as_tensor(row) for row in tokens]
        if not rows or any(row.ndim != 1 or len(row) == 0 for row in rows):
            raise UserError(f"{name} must be sequences of at least one token id each")
        longest = max(map(len, rows))
        if valid is None and any(len(row) < longest for row in rows):
            valid = torch.stack([torch.arange(longest) < len(row) for row in rows])
        tokens = nn.utils.rnn.pad_sequence(rows, batch_first=True)
    if tokens.ndim != 2 or tokens.numel() == 0 or tokens.dtype not in (torch.long, torch.int):
        raise UserError(
            f"{name} must be token ids [batch, position], at least one, of dtype int64 or int32; got {tokens.dtype} "
            f"{list(tokens.shape)}"
        )
    if valid is not None and (valid.shape != tokens.shape or valid.dtype is not torch.bool):
        raise UserError(f"valid must be boolean {list(tokens.shape)} as {name}; got {valid.dtype} {list(valid.shape)}")
    return tokens, valid


@contextlib.contextmanager
def seeded(seed: int | None, device: torch.device) -> Iterator[None]:
    """Torch's random numbers from a seed, and as they were afterwards; None leaves them alone."""
    if seed is None:
        yield
        return
    with torch.random.fork_rng([device] if device.type == "cuda" else []):
        torch.manual_seed(seed)
        yield


def random_state(device: torch.device) -> Tensor:
    """Of torch's random numbers on a device: another one once some were drawn."""
    return torch.cuda.get_rng_state(device) if device.type == "cuda" else torch.get_rng_state()


def context_length(module: nn.Module) -> int | None:
    """Longest input in tokens, as the config says; None where it names no limit (relative positions)."""
    config: Any = getattr(module, "config", None)
    text = config.get_text_config() if hasattr(config, "get_text_config") else config
    limits = [getattr(text, name, None) for name in ("max_position_embeddings", "max_seq_len")]
    for name, table in module.named_modules():
        # RoBERTa counts positions from the padding's own row on
        if name.endswith("position_embeddings") and isinstance(table, nn.Embedding) and table.padding_idx is not None:
            limits.append(table.num_embeddings - table.padding_idx - 1)
    return min((limit for limit in limits if isinstance(limit, int) and limit > 0), default=None)


def example_tokens(model: HookedModel, length: int, batch: int = 2, seed: int = 0) -> Int[Tensor, "batch position"]:
    """Random token ids from the upper nine tenths of the vocabulary, where special tokens are rare; none that the
    config names."""
    d_vocab = model.d_vocab or 2
    configs = [model.config, model.config.get_text_config()] if hasattr(model.config, "get_text_config") else []
    special = [
        value for config in configs for name, value in vars(config).items()
        if name.endswith(("token_id", "token_index")) and isinstance(value, int)
    ]  # fmt: skip
    ids = torch.arange(min(d_vocab // 10, d_vocab - 1), d_vocab)
    ids = ids[~torch.isin(ids, torch.tensor(special, dtype=torch.long))]
    generator = torch.Generator().manual_seed(seed)
    return ids[torch.randint(len(ids), (batch, length), generator=generator)]


def _example_images(model: HookedModel) -> Tensor:
    size = model.config.image_size
    height, width = (size, size) if isinstance(size, int) else size
    generator = torch.Generator().manual_seed(0)
    pixels = torch.randn(2, getattr(model.config, "num_channels", 3), height, width, generator=generator)
    return pixels.to(model.dtype)


def _under_one_name(
    tokens: Tokens, valid: Valid, inputs: dict[str, Any], tokens_name: str, mask_name: str
) -> tuple[Tokens, Valid]:
    """Tokens and validity, also when they were given under transformers' names; these are taken out of ``inputs``."""
    if tokens_name in inputs:
        if tokens is not None:
            raise UserError(f"the tokens were given twice, once as {tokens_name}")
        tokens = inputs.pop(tokens_name)
    if isinstance(mask := inputs.get(mask_name), Tensor) and mask.ndim == 2:
        if valid is not None:
            raise UserError(f"which tokens are valid was said twice, once as {mask_name}")
        valid = inputs.pop(mask_name).bool()
    return tokens, valid


def _check_tokens(model: HookedModel, tokens: Tensor, name: str) -> None:
    d_vocab, n_ctx = model.d_vocab, model.n_ctx
    if d_vocab is not None and (int(tokens.min()) < 0 or int(tokens.max()) >= d_vocab):
        raise UserError(
            f"{name} must lie in the vocabulary, 0 … {d_vocab - 1}; got {int(tokens.min())} … {int(tokens.max())}"
        )
    if n_ctx is not None and tokens.shape[1] > n_ctx:
        raise UserError(
            f"{name}: {tokens.shape[1]} tokens are more than the model's context of {n_ctx}; use shorter windows"
        )


def _check_padding(valid: Bool[Tensor, "batch position"], name: str) -> None:
    if not bool(valid.any(1).all()):
        raise UserError(f"{name} leaves sequence {int((~valid.any(1)).nonzero()[0])} without a token; leave it out")
    begins = valid[:, 0].int() + (valid[:, 1:] & ~valid[:, :-1]).sum(1)
    if bool((begins > 1).any()):
        raise UserError(
            f"{name}: in sequence {int((begins > 1).nonzero()[0])} padding stands between tokens; it may stand before "
            "and after them"
        )


# Positions ----------------------------------------------------------------------------------------------------------


def _candidates(model: HookedModel, prefix: str) -> Iterator[Positions]:
    """Ways of telling positions: counted along the valid tokens from 0, or from where RoBERTa begins; or none, for
    models with relative positions and those that count along the attention mask themselves."""
    name, pad = f"{prefix}position_ids", getattr(model.config, "pad_token_id", None)
    if name in _parameters(model.module):
        yield lambda valid: {name: (valid.long().cumsum(1) - 1).clamp_min(0)}
        if isinstance(pad, int):
            yield lambda valid: {name: (valid.long().cumsum(1) - 1).clamp_min(0) + pad + 1}
    yield lambda valid: {}


def _works(model: HookedModel, prefix: str, positions: Positions) -> bool:
    """Whether a small input padded on the left gives what it gives without padding."""
    n_padding, example = 3, example_tokens(model, min(24, model.n_ctx or 24), seed=1)
    tokens = example[:, n_padding:]
    valid = (torch.arange(example.shape[1]) >= n_padding).expand(example.shape).to(model.device)
    others = {"input_ids": tokens, "decoder_input_ids": tokens} if model.is_encoder_decoder else {}
    with model.seam.aside(), torch.no_grad():
        plain = _first_output(model, {**others, f"{prefix}input_ids": tokens})
        padded = {f"{prefix}input_ids": example, f"{prefix}attention_mask": valid.long(), **positions(valid)}
        shifted = _first_output(model, {**others, **padded})[:, -plain.shape[1] :]
    # far above rounding, where two experts may change places, and far below what other positions do
    tolerance = 1e-3 if model.dtype in (torch.float32, torch.float64) else 0.05
    return bool((shifted - plain).abs().mean() <= tolerance * plain.abs().mean())


def _first_output(model: HookedModel, arguments: dict[str, Tensor]) -> Tensor:
    return model.module(**{name: value.to(model.device) for name, value in arguments.items()})[0].float()


def _parameters(module: nn.Module) -> Mapping[str, inspect.Parameter]:
    return inspect.signature(module.forward).parameters
