"""Three sets of sequences: those that choose heads, those whose rows are changed, and other text."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from analyses.adversarial_attention.config import Config
from interp import HookedModel
from interp.data import Sequences, Vocabulary, repeated_tokens
from interp.errors import UserError
from interp.model_data import reads_text, require_tokens, text_windows, within_context
from interp.results import Workspace

__all__ = ["Inputs", "Place", "make"]


@dataclass(frozen=True)
class Place:
    """A sequence, and queries in it: one for each range of numbers of keys.

    Attributes:
        sequence: its number. document: which it comes from.
        queries: whose null space is asked for. searched: the one of them whose freedom at ε is.
    """

    sequence: int
    document: int
    queries: tuple[int, ...]
    searched: int


@dataclass(frozen=True, eq=False)
class Inputs:
    """Sequences of one length, no two sets of which share one.

    Attributes:
        data: what they are: text, or repeated (random tokens that repeat, where the model came without a tokenizer).
        choosing: for importance and mean patterns. changed: whose rows are changed. other: for the mean pattern's
            effect.
        places: where in ``changed``.
    """

    data: str
    choosing: Sequences
    changed: Sequences
    other: Sequences
    places: tuple[Place, ...]

    @property
    def described(self) -> dict[str, dict[str, str]]:
        """What they are and the hash of their tokens, for the provenance."""
        named = {"choosing": self.choosing, "changed": self.changed, "other": self.other}
        return {name: each.provenance() for name, each in named.items()}


def make(model: HookedModel, config: Config, work: Workspace) -> Inputs:
    """The sequences that the settings ask for; the same for the same seed.

    Raises:
        UserError: the model reads no tokens, or too few for a row of so many keys.
    """
    require_tokens(model, "rows of attention are changed on sequences of tokens")
    length = within_context(model, config.length)
    if length < config.least_keys + config.horizon:
        raise UserError(
            f"rows of at least {config.least_keys} keys, followed over {config.horizon} positions, need sequences of "
            f"{config.least_keys + config.horizon}; got {length}: raise --length, or lower --least-keys or --horizon"
        )
    n_changed, n_aside = config.n_places, config.n_aside
    data, whole = _sequences(model, length, n_changed + 2 * n_aside, config, work)
    if len(whole) < 3:
        raise UserError(f"three sequences of {length} tokens are needed at least; got {len(whole)}: give a longer text")
    n_aside = min(n_aside, (len(whole) - 1) // 2)
    order = np.random.default_rng([config.seed, 1]).permutation(len(whole))
    parts = np.split(order, [n_aside, 2 * n_aside])
    choosing, other, changed = (whole.select(np.sort(part)) for part in parts)
    return Inputs(data, choosing, changed, other, _places(model, changed, config))


def _sequences(model: HookedModel, length: int, n: int, config: Config, work: Workspace) -> tuple[str, Sequences]:
    if reads_text(model, config.text):
        text = text_windows(model, config.text, length, n=n, seed=config.seed)
        for note in text.notes:
            work.note(f"Text: {note}")
        return "text", text
    special = _special(model)
    vocabulary = Vocabulary.of_size(int(model.d_vocab or 0), special)
    return "repeated", repeated_tokens(vocabulary, length // 2, 2, n, seed=config.seed, context=model.n_ctx)


def _special(model: HookedModel) -> set[int]:
    names = ("bos_token_id", "eos_token_id", "pad_token_id")
    found = (getattr(model.config, name, None) for name in names)
    ids = {token for each in found for token in (each if isinstance(each, list) else [each]) if isinstance(token, int)}
    return {token for token in ids if 0 <= token < int(model.d_vocab or 0)}


def _places(model: HookedModel, changed: Sequences, config: Config) -> tuple[Place, ...]:
    """A query of each sequence for every doubling of the number of keys; the searched ones are spread over these.

    Without a causal mask a row reads all keys, whichever it is: then one query each.
    """
    rng = np.random.default_rng([config.seed, 2])
    last = changed.n_positions - (config.horizon if model.is_causal else 0)
    places = []
    for number in range(len(changed)):
        if not model.is_causal:
            queries = [int(rng.integers(0, changed.n_positions))]
        else:
            edges = [config.least_keys - 1]
            while edges[-1] * 2 + 1 < last:
                edges.append(edges[-1] * 2 + 1)
            queries = [int(rng.integers(low, high)) for low, high in zip(edges, [*edges[1:], last], strict=True)]
        searched = queries[_turn(number, len(changed), len(queries))]
        places.append(Place(number, int(changed.document[number]), tuple(queries), searched))
    return tuple(places)


def _turn(number: int, places: int, ranges: int) -> int:
    """Which range of numbers of keys a sequence's searched row is of: all in turn, or as far apart as can be."""
    return number % ranges if places >= ranges else round(number * (ranges - 1) / max(places - 1, 1))
