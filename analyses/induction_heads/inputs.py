"""What the model is given: repeated tokens, their control, text; and how it is cut into forward passes."""

from dataclasses import dataclass
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from analyses.induction_heads.config import PERIOD, REPORT_REACH, Config
from interp import HookedModel
from interp.data import (
    RepeatedTokens,
    Sequences,
    Vocabulary,
    prefix_tokens,
    repeated_tokens,
    suffix_tokens,
    unrepeated_tokens,
)
from interp.model_data import pass_arguments, reads_text, require_tokens, text_windows, vocabulary_of, within_context
from interp.results import Workspace

Some = TypeVar("Some", bound=Sequences)


@dataclass(frozen=True, eq=False)
class Inputs:
    """Sequences of tokens.

    Attributes:
        vocabulary: what random tokens are drawn from.
        repeated: random tokens that repeat.
        unrepeated: their control, paired by sequence: the same first copy, then new tokens.
        text: windows of text; None where there is none that the model could read.
    """

    vocabulary: Vocabulary
    repeated: RepeatedTokens
    unrepeated: RepeatedTokens
    text: Sequences | None

    @property
    def by_name(self) -> dict[str, Sequences]:
        """The sequences by the names that tables have for them (the column ``data``)."""
        known = {"repeated": self.repeated, "unrepeated": self.unrepeated, "text": self.text}
        return {name: sequences for name, sequences in known.items() if sequences is not None}

    @property
    def described(self) -> dict[str, dict[str, Any]]:
        """What they are and the hash of their tokens, for the provenance; of repeated tokens also the period."""
        known = {name: each.provenance() for name, each in self.by_name.items()}
        return {**known, "repeated": {**known["repeated"], "period": self.repeated.period}}

    def units(self, data: str) -> NDArray[np.int64] | None:
        """Which sequences count as one observation: those of one document; None where each is its own."""
        return self.text.document.numpy() if data == "text" and self.text is not None else None


def make(model: HookedModel, config: Config, work: Workspace) -> Inputs:
    """The sequences that the settings ask for; the same for the same seed.

    Raises:
        UserError: the model reads no tokens, or period, repeats or text do not fit it.
    """
    require_tokens(model, "induction is looked for in sequences of tokens")
    vocabulary = vocabulary_of(model)
    around = around_sequences(model)
    size = {"period": _period(model, config, work), "repeats": config.repeats, "n": config.sequences}
    if model.tokenizer is None and around["prefix"]:
        work.note(
            f"Sequences of random tokens begin with token {around['prefix'][0]}, the beginning of a sequence by the "
            "model's config (bos_token_id); it came without a tokenizer."
        )
    repeated = repeated_tokens(vocabulary, **size, **around, seed=config.seed)
    unrepeated = unrepeated_tokens(vocabulary, **size, **around, seed=config.seed)
    if model.is_encoder_decoder:
        work.note("Encoder and decoder are given the same tokens.")
    return Inputs(vocabulary, repeated, unrepeated, _text(model, config, work))


def around_sequences(model: HookedModel) -> dict[str, Any]:
    """What `repeated_tokens` needs to know of the model: its special tokens around a text, and its context."""
    prefix = [token for token in prefix_tokens(model.tokenizer, model.config) if 0 <= token < (model.d_vocab or 0)]
    return {"prefix": prefix, "suffix": suffix_tokens(model.tokenizer), "context": model.n_ctx}


def room(model: HookedModel) -> int | None:
    """Positions of the context that special tokens leave; None where it has no end."""
    around = around_sequences(model)
    return None if model.n_ctx is None else model.n_ctx - len(around["prefix"]) - len(around["suffix"])


def even_batches(sequences: Some, config: Config) -> list[Some]:
    """Sequences in batches of one forward pass, as equal as they can be."""
    most = max(1, config.tokens_per_pass // sequences.n_positions)
    n_batches = -(-len(sequences) // most)
    return list(sequences.batches(-(-len(sequences) // n_batches)))


def passes(model: HookedModel, sequences: Sequences, config: Config) -> list[dict[str, Any]]:
    """Arguments of `HookedModel.run`, a forward pass each."""
    return [pass_arguments(model, batch) for batch in even_batches(sequences, config)]


def say_what_full_adds(model: HookedModel, config: Config, work: Workspace, *, ablates: bool) -> None:
    """Record what the report's budget leaves out of this run; of ablations only where the model's heads are ablated."""
    beyond = f"periods beyond {REPORT_REACH}"
    end = None if model.n_ctx is None else model.n_ctx // config.repeats
    if config.reach is None and end is None:
        work.skip(beyond, "the model's input has no longest length, so --reach has to say how far to go")
    elif config.reach is None and not config.is_full and end is not None and end > REPORT_REACH:
        work.skip(beyond, f"budget is report; --reach follows them, and full does to {end}, the end of the context")
    if config.is_full or not ablates:
        return
    full = Config(budget="full")
    more = ", ".join(str(size) for size in full.ablated_sizes if size not in config.ablated_sizes)
    if config.ablated is None and more:
        work.skip(f"ablation of {more} heads together", "budget is report")
    if config.ablated_on is None and config.sequences > 2 * (config.ablated_sequences or 0):
        work.skip(
            f"ablations on more than {config.ablated_sequences} sequences",
            f"budget is report; full takes the {config.sequences // 2} that did not select the heads",
        )
    if config.draws is None:
        work.skip(f"{full.random_draws - config.random_draws} further random draws a set", "budget is report")


def _period(model: HookedModel, config: Config, work: Workspace) -> int:
    """The period that was asked for, or the usual one, shorter where the context has no room for it."""
    if config.period is not None:
        return config.period
    longest = room(model)
    fits = PERIOD if longest is None else longest // config.repeats
    if fits >= PERIOD:
        return PERIOD
    work.note(
        f"The period is {fits} tokens, not {PERIOD}: {config.repeats} copies have to fit the model's context of "
        f"{model.n_ctx} positions."
    )
    return fits


def _text(model: HookedModel, config: Config, work: Workspace) -> Sequences | None:
    if not reads_text(model, config.text):
        work.skip("everything on text", "the model came without a tokenizer; --text takes token ids (.npy)")
        return None
    text = text_windows(model, config.text, within_context(model, config.window), n=config.windows, seed=config.seed)
    for note in text.notes:
        work.note(f"Text: {note}")
    return text
