"""What the model is given, cut into passes and parts, and what is measured of it."""

from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from analyses.head_pruning import metrics
from analyses.head_pruning.config import CHEAP_PARAMETERS, Config
from analyses.head_pruning.metrics import Measure
from interp import HookedModel
from interp.data import (
    Sequences,
    Vocabulary,
    copied_segments,
    prefix_tokens,
    repeated_tokens,
    suffix_tokens,
)
from interp.errors import UserError
from interp.model_data import pass_arguments, reads_text, require_tokens, text_windows
from interp.models.sites import AttentionSite
from interp.results import Workspace
from interp.statistics.units import unit_index

_LATER = "loss of tokens seen before"


@dataclass(frozen=True, eq=False)
class Data:
    """Sequences, and what heads matter for on them.

    Attributes:
        name: in the column ``data``.
        sequences: all of one length, without padding.
        measure: the metric.
        scored_on: numbers of the sequences that heads are scored on; ``reported_on``: of the others.
    """

    name: str
    sequences: Sequences
    measure: Measure
    scored_on: NDArray[np.intp]
    reported_on: NDArray[np.intp]

    def batches(self, model: HookedModel, rows: NDArray[np.intp], config: Config) -> list[dict[str, Any]]:
        """Arguments of `HookedModel.run` for some of the sequences, a pass each."""
        most = max(1, config.tokens_per_pass // self.sequences.n_positions)
        parts = np.array_split(rows, -(-len(rows) // most))
        return [pass_arguments(model, self.sequences.select(part)) for part in parts]

    def units(self, rows: NDArray[np.intp]) -> NDArray[np.int64]:
        """Which of some sequences count as one observation."""
        return self.sequences.document.numpy()[rows]


@dataclass(frozen=True, eq=False)
class Inputs:
    """The first data, on which everything is measured, and the second, on which its order is tried; None: none."""

    first: Data
    second: Data | None

    @property
    def described(self) -> dict[str, dict[str, str]]:
        """What they are and the hash of their tokens, for the provenance."""
        return {
            each.name: {**each.sequences.provenance(), "metric": each.measure.name, "unit": each.measure.unit}
            for each in (self.first, self.second)
            if each is not None
        }


def is_cheap(model: HookedModel) -> bool:
    """Whether a model is so small that the report leaves nothing out."""
    return sum(p.numel() for p in model.module.parameters()) < CHEAP_PARAMETERS


def split(units: NDArray[np.int64], seed: int) -> tuple[NDArray[np.intp], NDArray[np.intp]]:
    """Indices of the sequences that heads are scored on, those of a third of the units at random, and of the others.

    The larger part is reported on: it decides how sure everything is that is said.

    Raises:
        ValueError: fewer than three units.
    """
    index, n = unit_index(units, len(units))
    if n < 3:
        raise ValueError(f"scoring heads and reporting on them takes at least 3 documents or sequences; got {n}")
    scored = np.isin(index, np.random.default_rng(seed).permutation(n)[: n // 3])
    return np.flatnonzero(scored), np.flatnonzero(~scored)


def site_kind(site: AttentionSite) -> str:
    """self, or, in an encoder–decoder, encoder, decoder or cross."""
    return "cross" if site.kind == "cross" else site.stack or "self"


def make(model: HookedModel, config: Config, work: Workspace) -> Inputs:
    """The sequences that the settings ask for; the same for the same seed.

    Raises:
        UserError: the model reads no tokens, or the text does not fit it.
    """
    require_tokens(model, "heads are pruned by what they do to sequences of tokens")
    room = None if model.n_ctx is None else model.n_ctx // (2 if _finds_continuations(model) else 1)
    length = config.length if room is None else min(config.length, room)
    if length < config.length:
        work.note(f"Sequences have {length} tokens, which is all that the model has room for.")
    if model.is_encoder_decoder:
        work.note("Encoder and decoder are given the same tokens.")
    n = config.n_sequences(is_cheap(model))
    of_text = reads_text(model, config.text)
    if of_text:
        first = _of_text(model, "text", config.text, length, n, config, work)
    else:
        first = _of_random(model, "repeated", length, n, config, work, is_second=False)
    second = _second(model, of_text, length, config, work)
    return Inputs(first, second)


def _second(model: HookedModel, of_text: bool, length: int, config: Config, work: Workspace) -> Data | None:
    if config.second_text is not None:
        if not reads_text(model, config.second_text):
            work.skip("the second text", "the model came without a tokenizer; --second-text takes token ids (.npy)")
            return None
        return _of_text(model, "second_text", config.second_text, length, config.second_sequences, config, work)
    if of_text and not model.is_causal:
        work.skip("a second text", "without --second-text there are random tokens that repeat, which tell a model "
                  "nothing that does not predict the next one")  # fmt: skip
        return None
    name = "repeated" if of_text else "segments"
    return _of_random(model, name, length, config.second_sequences, config, work, is_second=True)


def _of_text(
    model: HookedModel, name: str, source: str | None, length: int, n: int, config: Config, work: Workspace
) -> Data:
    span = length * (2 if _finds_continuations(model) else 1)
    sequences = text_windows(model, source, span, n=n, seed=config.seed)
    for note in sequences.notes:
        work.note(f"{'Second text' if name == 'second_text' else 'Text'}: {note}")
    return _measured(model, name, sequences, None, config, work, name == "second_text")


def _of_random(
    model: HookedModel, name: str, length: int, n: int, config: Config, work: Workspace, is_second: bool
) -> Data:
    vocabulary = _vocabulary(model)
    around: dict[str, Any] = {"prefix": prefix_tokens(model.tokenizer), "suffix": suffix_tokens(model.tokenizer)}
    room = length - len(around["prefix"]) - len(around["suffix"])
    span = room * (2 if _finds_continuations(model) else 1)
    if name == "repeated":
        found: Sequences = repeated_tokens(
            vocabulary, span // 2, n=n, seed=config.seed, context=model.n_ctx, **around
        )  # fmt: skip
        first = len(around["prefix"]) + span // 2
    else:
        longest, prefix = min(31, span // 2), around["prefix"]
        found = copied_segments(
            vocabulary,
            span + len(prefix),
            n,
            shortest=min(8, longest),
            longest=longest,
            seed=config.seed,
            prefix=prefix,
        )
        first = None
    return _measured(model, name, found, first, config, work, is_second)


def _measured(
    model: HookedModel,
    name: str,
    sequences: Sequences,
    first: int | None,
    config: Config,
    work: Workspace,
    is_second: bool,
) -> Data:
    """The data with its metric; ``first``: the position from which on tokens can be told from what came before."""
    kind, sequences, loss = _loss(model, sequences, first, config)
    measure = Measure(kind, "nats", loss, loss)
    scored_on, reported_on = np.arange(len(sequences)), np.arange(0)
    if not is_second:  # of the second data, importance is scored and nothing else
        try:
            scored_on, reported_on = split(sequences.document.numpy(), config.seed)
        except ValueError as error:
            raise UserError(f"{name}: {error}; give a longer text or shorter sequences (--length)") from None
    data = Data(name, sequences, measure, scored_on, reported_on)
    if config.metric == "accuracy":
        if loss not in (metrics.decoder_loss, metrics.mean_loss) and kind != _LATER:
            raise UserError(
                f"--metric accuracy is of next tokens, which {model.info.get('name', 'this model')} has not"
            )
        work.note("Importance is of the loss: accuracy has no derivative.")
        return replace(data, measure=Measure("share of next tokens that are wrong", "", metrics.token_errors, loss))
    if config.metric == "loss":
        return data
    own = metrics.own_metric(config.metric)
    differentiable = metrics.has_gradient(model, own, data.batches(model, scored_on[:1], config)[0])
    if not differentiable:
        work.note(f"Importance is of the loss: {config.metric} has no derivative.")
    return replace(data, measure=Measure(config.metric, "", own, own if differentiable else loss))


def _loss(
    model: HookedModel, sequences: Sequences, first: int | None, config: Config
) -> tuple[str, Sequences, metrics.Metric]:
    """The loss that a model is scored by, in words, and the sequences as it is given them."""
    if model.is_encoder_decoder and model.output_head_loaded:
        return "loss of the decoder's next token", sequences, metrics.decoder_loss
    if not _finds_continuations(model) and model.is_causal:
        model.require_loss()
        words = "loss of the next token" if first is None else _LATER
        return words, sequences, metrics.causal_loss(first)
    if not _finds_continuations(model):
        tokenizer: Any = model.tokenizer
        given, loss = metrics.masked_loss(
            sequences.tokens, tokenizer.mask_token_id, tokenizer.all_special_ids, config.seed
        )
        return "loss of masked tokens", replace(sequences, tokens=given), loss
    half = sequences.n_positions // 2
    begun, goes_on = sequences.tokens[:, :half], sequences.tokens[:, half : 2 * half]
    shorter = sequences.cut(half)
    return "loss of finding a passage's continuation", shorter, metrics.continuation_loss(model, begun, goes_on)


def _finds_continuations(model: HookedModel) -> bool:
    """Whether a model predicts no token at all, so that its embeddings are put to use."""
    if model.is_encoder_decoder or model.is_causal:
        return not model.output_head_loaded
    find = getattr(model.module, "get_output_embeddings", None)
    has_head = find is not None and find() is not None and model.output_head_loaded
    return not has_head or getattr(model.tokenizer, "mask_token_id", None) is None


def _vocabulary(model: HookedModel) -> Vocabulary:
    if model.tokenizer is not None:
        return Vocabulary.from_tokenizer(model.tokenizer, model.d_vocab)
    assert model.d_vocab is not None  # make() has looked
    names = ("bos_token_id", "eos_token_id", "pad_token_id", "decoder_start_token_id")
    found = [getattr(model.config, name, None) for name in names]
    special = {token for token in found if isinstance(token, int) and 0 <= token < model.d_vocab}
    return Vocabulary.of_size(model.d_vocab, special)
