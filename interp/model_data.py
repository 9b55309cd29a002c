"""Data for a model: text within its context, tokens within its vocabulary, the arguments of a pass.

`interp.data` knows no model and `interp.models` no data; here they meet.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from interp.data import SAMPLE, Document, Sequences, Vocabulary, read_documents, windows
from interp.errors import UserError
from interp.models.hooked import HookedModel

__all__ = [
    "named_special_ids", "pass_arguments", "reads_text", "reads_tokens", "require_tokens", "text_windows",
    "vocabulary_of", "within_context",
]  # fmt: skip


def reads_tokens(model: HookedModel) -> bool:
    """Whether a model reads token ids of a vocabulary whose size is known."""
    return model.d_vocab is not None and getattr(model.module, "main_input_name", "input_ids") == "input_ids"


def require_tokens(model: HookedModel, purpose: str) -> None:
    """Refuse a model that reads no tokens.

    Args:
        purpose: what is done with tokens, as the beginning of a sentence.

    Raises:
        UserError: it reads none, or does not say how many there are.
    """
    if not reads_tokens(model):
        raise UserError(
            f"{purpose}, but {model.info.get('name', 'this model')} reads none, or its config does not say how many "
            "there are (vocab_size)"
        )


def reads_text(model: HookedModel, source: str | None) -> bool:
    """Whether a model can read a text (None: the sample): with a tokenizer any, without one token ids (``.npy``)."""
    return model.tokenizer is not None or (source or SAMPLE).endswith(".npy")


def within_context(model: HookedModel, length: int) -> int:
    """A length in tokens, or the model's longest if that is less."""
    return length if model.n_ctx is None else min(length, model.n_ctx)


def text_windows(
    model: HookedModel, source: str | Iterable[Document] | None, length: int, *, n: int, seed: int
) -> Sequences:
    """`interp.data.windows` of a text with the model's tokenizer, checked against its vocabulary and context.

    Args:
        source: what `read_documents` takes, or documents. None: the sample text.
        length: positions of a window. n: how many windows at most. seed: of the draw.

    Raises:
        UserError: as `read_documents` and `windows`.
    """
    documents = read_documents(source or SAMPLE) if source is None or isinstance(source, str) else source
    return windows(documents, model.tokenizer, length, n=n, seed=seed, vocab_size=model.d_vocab, context=model.n_ctx)


def named_special_ids(model: HookedModel) -> set[int]:
    """Special tokens that the config names, within the vocabulary."""
    names = ("bos_token_id", "eos_token_id", "pad_token_id", "decoder_start_token_id")
    found = (getattr(model.config, name, None) for name in names)
    named = {token for ids in found for token in (ids if isinstance(ids, list) else [ids]) if isinstance(token, int)}
    return {token for token in named if 0 <= token < (model.d_vocab or 0)}


def vocabulary_of(model: HookedModel) -> Vocabulary:
    """What random tokens are drawn from: no special tokens, by the tokenizer or, without one, by the config."""
    if model.tokenizer is not None:
        return Vocabulary.from_tokenizer(model.tokenizer, model.d_vocab)
    assert model.d_vocab is not None  # it reads tokens
    return Vocabulary.of_size(model.d_vocab, named_special_ids(model))


def pass_arguments(model: HookedModel, sequences: Sequences) -> dict[str, Any]:
    """Arguments of `HookedModel.run` for some sequences; a decoder beside an encoder reads the same as it."""
    valid = None if bool(sequences.valid.all()) else sequences.valid
    given = {"tokens": sequences.tokens, "valid": valid}
    if model.is_encoder_decoder:
        given |= {"decoder_tokens": sequences.tokens, "decoder_valid": valid}
    return given
