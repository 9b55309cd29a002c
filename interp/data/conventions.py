"""The special tokens that a tokenizer puts around a text: the model's own beginning and end of a sequence."""

from typing import Any

from interp.errors import UserError

_PROBES = ("a", "the", "1", ".")


def prefix_tokens(tokenizer: Any, config: Any = None) -> list[int]:
    """Ids that the tokenizer prepends when it encodes a text: [CLS] for BERT, [] for SmolLM2 and GPT-2.

    Args:
        tokenizer: None where the model came without one; then the token that the config names as the beginning of a
            sequence stands in for it, ``[config.bos_token_id]``, and without such a name there is no prefix.
        config: of the model.

    Raises:
        UserError: the tokenizer changes a text's own tokens when it adds special ones.
    """
    if tokenizer is None:
        bos = getattr(config, "bos_token_id", None)
        return [bos] if isinstance(bos, int) else []
    return _around(tokenizer)[0]


def suffix_tokens(tokenizer: Any) -> list[int]:
    """Ids that the tokenizer appends when it encodes a text: [SEP] for BERT, </s> for T5, [] for most decoders.

    Args:
        tokenizer: None where the model came without one: no suffix.

    Raises:
        UserError: the tokenizer changes a text's own tokens when it adds special ones.
    """
    return [] if tokenizer is None else _around(tokenizer)[1]


def _around(tokenizer: Any) -> tuple[list[int], list[int]]:
    for text in _PROBES:
        body = list(tokenizer(text, add_special_tokens=False)["input_ids"])
        whole = list(tokenizer(text, add_special_tokens=True)["input_ids"])
        for start in range(len(whole) - len(body) + 1):
            if body and whole[start : start + len(body)] == body:
                return whole[:start], whole[start + len(body) :]
    raise UserError(
        f"cannot tell which special tokens {type(tokenizer).__name__} puts around a text: it encodes none of "
        f"{', '.join(map(repr, _PROBES))} as the same tokens with and without them; give the prefix yourself"
    )
