"""What the model is given: windows of text with their labels, and how it is cut into forward passes."""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import torch
from jaxtyping import Bool, Int
from numpy.typing import NDArray
from torch import Tensor

from analyses.head_specialization.config import Config
from interp import HookedModel
from interp.data import (
    Document,
    Sequences,
    TokenLabels,
    copied_segments,
    prefix_tokens,
    read_treebank,
    suffix_tokens,
    token_labels,
)
from interp.errors import UserError
from interp.model_data import (
    named_special_ids,
    reads_text,
    require_tokens,
    text_windows,
    vocabulary_of,
    within_context,
)
from interp.results import Workspace

_SEGMENT = 31  # longest copied segment of random tokens


@dataclass(frozen=True, eq=False)
class Text:
    """Windows of a text.

    Attributes:
        data: its name in tables.
        sequences: the windows.
        labels: what each token is; None where there is no tokenizer to tell.
        sink: the first position, and special tokens: what "without the sink" leaves out, and what counts as no word.
    """

    data: str
    sequences: Sequences
    labels: TokenLabels | None
    sink: Bool[Tensor, "sequence position"]

    @property
    def words(self) -> Bool[Tensor, "sequence position"]:
        """Tokens of the text itself."""
        return self.sequences.valid & ~self.sink

    @property
    def units(self) -> NDArray[np.int64]:
        """Which windows count as one observation: those of one document."""
        return self.sequences.document.numpy()

    @property
    def others(self) -> Int[Tensor, " sequence"]:
        """For each window one of another document, whose labels know nothing of this one's tokens: a control."""
        n = len(self.sequences)
        return (torch.arange(n) + n // 2) % n

    def select(self, rows: slice) -> tuple[Sequences, Bool[Tensor, "sequence position"]]:
        """Some windows, and their sinks."""
        return self.sequences.select(rows), self.sink[rows]


@dataclass(frozen=True, eq=False)
class Inputs:
    """Everything that is read but the treebank.

    Attributes:
        texts: by their names; the first is what heads are called by.
        prefix, suffix: tokens around a text, the beginning token included.
        special: ids that are no words.
    """

    texts: dict[str, Text]
    prefix: list[int]
    suffix: list[int]

    @property
    def main(self) -> Text:
        """The text that heads are called by."""
        return next(iter(self.texts.values()))

    @property
    def described(self) -> dict[str, dict[str, str]]:
        """What they are and the hash of their tokens, for the provenance."""
        return {name: text.sequences.provenance() for name, text in self.texts.items()}


def make(model: HookedModel, config: Config, work: Workspace) -> Inputs:
    """The texts that the settings ask for; the same for the same seed.

    Raises:
        UserError: the model reads no tokens, or a text does not fit it.
    """
    require_tokens(model, "heads are described by what they attend to in sequences of tokens")
    if model.is_encoder_decoder:
        work.note("Encoder and decoder are given the same tokens.")
    if not reads_text(model, config.text):
        work.skip(
            "everything that needs to know what a token is (punctuation, numbers, sentences, …)",
            "the model came without a tokenizer; random tokens, of which some come again, take the place of a text",
        )
        return Inputs({"repeated": _random(model, config)}, [], [])
    prefix, suffix = prefix_tokens(model.tokenizer), suffix_tokens(model.tokenizer)
    beginning = _beginning(model, prefix, config, work)
    texts = {"text": _text(model, "text", config.text, beginning, config, work)}
    if config.other_text is not None:
        texts["other_text"] = _text(model, "other_text", config.other_text, beginning, config, work)
    elif config.treebank is not None and model.tokenizer is not None:
        try:
            texts["other_text"] = _text(model, "other_text", _of_treebank(config), beginning, config, work)
        except UserError as reason:
            work.skip("the treebank as a text of another kind", str(reason))
    return Inputs(texts, [*beginning, *prefix], suffix)


def even_batches(n: int, n_positions: int, config: Config) -> list[slice]:
    """Sequences in batches of one forward pass, as equal as they can be."""
    most = max(1, config.tokens_per_pass // n_positions)
    size = -(-n // -(-n // most))
    return [slice(start, min(start + size, n)) for start in range(0, n, size)]


def special_ids(model: HookedModel) -> list[int]:
    """Ids of special tokens: the tokenizer's, or those that the config names."""
    if model.tokenizer is not None:
        return sorted(model.tokenizer.all_special_ids)
    return sorted(named_special_ids(model))


def _beginning(model: HookedModel, prefix: list[int], config: Config, work: Workspace) -> list[int]:
    """A beginning token where the tokenizer puts nothing before a text, and what is said about it."""
    if prefix:
        return []
    tokenizer = model.tokenizer
    names = ("bos_token_id", "cls_token_id")
    known = [getattr(tokenizer, name, None) for name in names] if tokenizer is not None else []
    token = next((each for each in known if each is not None and each < (model.d_vocab or 0)), None)
    if config.beginning == "token" and token is not None and tokenizer is not None:
        spelled = tokenizer.convert_ids_to_tokens(token)
        work.note(
            f"The tokenizer puts nothing before a text. {spelled} is put there, so that no word stands where the sink "
            "is (--beginning left_out leaves the first word out instead)."
        )
        return [token]
    why = "no beginning token is known" if config.beginning == "token" else "--beginning left_out"
    work.note(f"The first token of each window is a sink and a word at once, and is counted as a sink alone ({why}).")
    return []


def _of_treebank(config: Config) -> list[Document]:
    """The treebank's documents as texts."""
    assert config.treebank is not None
    texts: dict[str, list[str]] = {}
    for sentence in read_treebank(config.treebank):
        texts.setdefault(sentence.document, []).append(sentence.text)
    source = f"the treebank {Path(config.treebank).name}"
    return [Document(name, source, " ".join(sentences)) for name, sentences in texts.items()]


def _text(
    model: HookedModel, data: str, source: str | Iterable[Document] | None, beginning: list[int], config: Config,
    work: Workspace,
) -> Text:  # fmt: skip
    length = within_context(model, config.window_length) - len(beginning)
    sequences = text_windows(model, source, length, n=config.n_windows, seed=config.seed)
    for note in sequences.notes:
        work.note(f"{'Text' if data == 'text' else 'Other text'}: {note}")
    sequences = begun(sequences, beginning)
    labels = None if model.tokenizer is None else token_labels(sequences, model.tokenizer)
    return Text(data, sequences, labels, sinks(model, sequences))


def begun(sequences: Sequences, beginning: list[int]) -> Sequences:
    """The sequences with some tokens before each."""
    n, more = len(sequences), len(beginning)
    if not more:
        return sequences
    tokens = torch.tensor(beginning).expand(n, more)
    nowhere = None if sequences.offsets is None else sequences.offsets.new_zeros(n, more, 2)
    return replace(
        sequences,
        tokens=torch.cat([tokens, sequences.tokens], 1),
        valid=torch.cat([torch.ones(n, more, dtype=torch.bool), sequences.valid], 1),
        offsets=None if nowhere is None or sequences.offsets is None else torch.cat([nowhere, sequences.offsets], 1),
    )


def sinks(model: HookedModel, sequences: Sequences) -> Bool[Tensor, "sequence position"]:
    """The first position of each sequence, and its special tokens."""
    first = sequences.valid & (sequences.valid.cumsum(1) == 1)
    return first | (torch.isin(sequences.tokens, torch.tensor(special_ids(model), dtype=torch.int64)) & sequences.valid)


def _random(model: HookedModel, config: Config) -> Text:
    length = within_context(model, config.window_length)
    longest = min(_SEGMENT, length // 2)
    sequences = copied_segments(
        vocabulary_of(model), length, config.n_windows, shortest=min(8, longest), longest=longest, seed=config.seed
    )
    plain = Sequences(sequences.tokens, sequences.valid, sequences.document, sequences.source)
    return Text("repeated", plain, None, sinks(model, plain))


def batches(text: Text, config: Config) -> Iterator[slice]:
    """The windows of a text, a forward pass at a time."""
    yield from even_batches(len(text.sequences), text.sequences.n_positions, config)
