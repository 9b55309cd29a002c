"""Word vectors that classifiers begin with."""

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

import interp
from interp.data import Vectors, WordIndex, completed_vectors, random_vectors, read_vectors, text_vectors
from interp.data.word_index import SPECIAL
from interp.errors import UserError

MODEL = "model:"
"""What begins the name of a model whose input embeddings are taken."""


def word_vectors(
    source: str, index: WordIndex, training: Sequence[Sequence[str]], random: tuple[int, float], seed: int
) -> tuple[Vectors, str]:
    """Word vectors to begin with, and what they are in words.

    Args:
        source: random; text, made from the training texts; ``model:NAME``, a model's input embeddings; or a file.
        index: the words.
        training: the words of each training text.
        random: how many numbers a random vector has, and their standard deviation; those made from texts have the same.
        seed: of what is drawn.

    Raises:
        UserError: a file that cannot be read; a model without a tokenizer or a table of input embeddings.
    """
    size, spread = random
    n = len(index) - len(SPECIAL)
    if source == "random":
        what = f"random, normal with standard deviation {spread:g}, {size} numbers for each of {n:,} words"
        return random_vectors(index, size, spread, seed), what
    if source == "text":
        made, what = text_vectors(training, index, size, spread, seed), "made from the training texts (PPMI and SVD)"
    elif source.startswith(MODEL):
        name = source.removeprefix(MODEL)
        made, what = completed_vectors(model_vectors(name, index.words), index, seed), f"input embeddings of {name}"
    else:
        made, what = read_vectors(source, index, seed), source
    return made, f"{what}, for {made.known:,} of {n:,} words, random for the rest"


def model_vectors(name: str, words: Sequence[str]) -> dict[int, NDArray[np.float32]]:
    """Of each word, by its place among ``words``: the mean of the input embeddings of its tokens.

    The mean of all embeddings is taken off: it is large in trained models, and the same for every word. A word with a
    token that the tokenizer does not know has none.

    Raises:
        UserError: a model without a tokenizer, or whose embeddings are not a table; one that knows none of the words.
    """
    model = interp.load(name)
    tokenizer, find = model.tokenizer, getattr(model.module, "get_input_embeddings", None)
    table = getattr(find() if find else None, "weight", None)
    if tokenizer is None or table is None:
        raise UserError(
            f"vectors are taken of a model with a tokenizer and a table of input embeddings; {name} has "
            f"{'no tokenizer' if tokenizer is None else 'no such table'}: name another model, or a file of vectors"
        )
    weights = table.detach().float().cpu().numpy()
    weights = weights - weights.mean(0)
    found: dict[int, NDArray[np.float32]] = {}
    for place, word in enumerate(words[len(SPECIAL) :], len(SPECIAL)):
        tokens = tokenizer(f" {word}", add_special_tokens=False)["input_ids"]  # as within a text
        if tokens and tokenizer.unk_token_id not in tokens:
            found[place] = weights[tokens].mean(0)
    if not found:
        raise UserError(f"the tokenizer of {name} knows none of the {len(words) - len(SPECIAL):,} words of the texts")
    return found
