"""A treebank's sentences as the model's tokens, and which tokens make up which word."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from hashlib import sha256
from importlib.util import find_spec

import numpy as np
import torch
from jaxtyping import Int
from numpy.typing import NDArray
from torch import Tensor

from analyses.head_specialization.config import Config
from analyses.head_specialization.inputs import Inputs
from interp import HookedModel
from interp.data import SAMPLE, Sentence, Sequences, align, read_documents, read_treebank
from interp.data.spacy_parses import parsed_by_spacy
from interp.results import Workspace

_ENOUGH_DOCUMENTS = 32  # fewer, and sentences are the units


@dataclass(frozen=True, eq=False)
class Parsed:
    """Sentences with their trees.

    Attributes:
        source: where they come from, in words.
        sentences: in the order of the treebank.
        tokens: of each sentence, with those that the model has around a text.
        words: number of each token's word; −1 for tokens of no word.
        units: which sentences count as one observation.
        notes: what was left out.
    """

    source: str
    sentences: tuple[Sentence, ...]
    tokens: tuple[list[int], ...]
    words: tuple[list[int], ...]
    units: NDArray[np.int64]
    notes: tuple[str, ...] = ()

    def batches(self, config: Config) -> Iterator[tuple[list[int], Sequences, Int[Tensor, "sequence position"]]]:
        """Numbers of some sentences of about one length, their tokens, and the word of each token."""
        order = sorted(range(len(self.tokens)), key=lambda i: len(self.tokens[i]))
        while order:
            size = max(1, config.tokens_per_pass // len(self.tokens[order[-1]]))
            taken, order = order[-size:], order[:-size]
            yield taken, *batch(self.source, [self.tokens[i] for i in taken], [self.words[i] for i in taken])


def batch(
    source: str, tokens: Sequence[list[int]], words: Sequence[list[int]]
) -> tuple[Sequences, Int[Tensor, "sequence position"]]:
    """Rows of tokens and of their words, padded."""
    sequences = Sequences.padded(tokens, source=source)
    groups = torch.full_like(sequences.tokens, -1)
    for row, of_row in enumerate(words):
        groups[row, : len(of_row)] = torch.tensor(of_row)
    return sequences, groups


def read(model: HookedModel, given: Inputs, config: Config, work: Workspace) -> Parsed | None:
    """The sentences that the settings ask for; None, with the reason recorded, where there are none.

    Raises:
        UserError: no such treebank, or it breaks a rule of its format.
    """
    if model.tokenizer is None:
        work.skip("syntax and coreference", "the model came without a tokenizer, so no words can be given to it")
        return None
    if config.treebank is not None:
        whole, source = list(read_treebank(config.treebank)), f"the treebank {config.treebank.rsplit('/', 1)[-1]}"
    elif find_spec("spacy") is not None and (parses := parsed_by_spacy(_texts(config), config.spacy_model)):
        whole, source = parses, f"{given.main.sequences.source} as {config.spacy_model} of spaCy parses it"
        work.note(
            f"Syntax: no treebank was given; relations are what {config.spacy_model} of spaCy says, errors included."
        )
    else:
        work.skip(
            "syntax and coreference",
            f"no treebank was given (--treebank FILE.conllu), and spaCy with {config.spacy_model} is not installed",
        )
        return None
    parsed = as_tokens(model, given, _some(whole, config), source)
    for note in parsed.notes:
        work.note(f"Syntax: {note}")
    return parsed


def as_tokens(model: HookedModel, given: Inputs, sentences: Sequence[Sentence], source: str) -> Parsed:
    """Sentences as tokens, those left out that the model cannot read or that hold no pair of words."""
    kept, tokens, words = [], [], []
    unaligned = n_words = too_long = 0
    for sentence in sentences:
        found = align(model.tokenizer, sentence.text, sentence.spans)
        ids = [*given.prefix, *found.tokens, *given.suffix]
        if model.n_ctx is not None and len(ids) > model.n_ctx:
            too_long += 1
            continue
        n_words += len(sentence)
        unaligned += len(found.unaligned)
        groups = list(found.words)
        if not given.prefix:
            # the first word is where the sink is: it is none
            groups = [-1 if word == (groups[0] if groups else 0) else word for word in groups]
        if len({word for word in groups if word >= 0}) < 2:
            continue
        kept.append(sentence)
        tokens.append(ids)
        words.append([-1] * len(given.prefix) + groups + [-1] * len(given.suffix))
    notes = []
    if unaligned:
        notes.append(
            f"{unaligned:,} of {n_words:,} words have no token of their own (the tokenizer merges or drops them); "
            "pairs with them are left out."
        )
    if too_long:
        notes.append(f"{too_long:,} sentences are longer than the model's context and are left out.")
    if not given.prefix:
        notes.append("The first word of each sentence stands where the sink is, and is left out.")
    documents = [sentence.document for sentence in kept]
    by_document = len(set(documents)) >= _ENOUGH_DOCUMENTS
    if not by_document and len(set(documents)) < len(kept):
        notes.append(f"{len(set(documents))} documents are too few for intervals over them: they are over sentences.")
    labels = documents if by_document else [str(i) for i in range(len(kept))]
    units = np.unique(labels, return_inverse=True)[1] if labels else np.zeros(0, dtype=np.int64)
    return Parsed(source, tuple(kept), tuple(tokens), tuple(words), units, tuple(notes))


def described(parsed: Parsed | None) -> dict[str, dict[str, str]]:
    """What they are and the hash of their tokens, for the provenance."""
    if parsed is None:
        return {}
    what = f"{len(parsed.sentences):,} sentences, {sum(map(len, parsed.sentences)):,} words, of {parsed.source}"
    digest = sha256(repr((parsed.tokens, parsed.words)).encode()).hexdigest()
    return {"treebank": {"what": ". ".join([what, *parsed.notes]), "sha256": digest}}


def _some(whole: list[Sentence], config: Config) -> list[Sentence]:
    """As many sentences as are wanted, from documents at random, in the treebank's order."""
    if config.n_sentences is None or len(whole) <= config.n_sentences:
        return whole
    documents = list(dict.fromkeys(sentence.document for sentence in whole))
    turn = np.random.default_rng(config.seed).permutation(len(documents))
    rank = {document: int(turn[i]) for i, document in enumerate(documents)}
    order = sorted(range(len(whole)), key=lambda i: (rank[whole[i].document], i))[: config.n_sentences]
    return [whole[i] for i in sorted(order)]


def _texts(config: Config) -> list[tuple[str, str]]:
    return [(each.name, each.text) for each in read_documents(config.text or SAMPLE) if each.text is not None]
