"""Windows of text to score heads on, to report losses on, and to train on."""

from __future__ import annotations

import dataclasses

import numpy as np
from torch import Tensor

from interp.data import Sequences
from interp.errors import UserError
from interp.flags import Prune
from interp.model_data import text_windows, within_context
from interp.models.hooked import HookedModel

__all__ = ["Texts", "batches"]


@dataclasses.dataclass(frozen=True, eq=False)
class Texts:
    """Windows of text for three uses; no document serves two of them, unless there are too few documents.

    Attributes:
        scored: heads are scored on them. held_out: losses are reported on them. trained: a recovery sees them.
    """

    scored: Sequences
    held_out: Sequences
    trained: Sequences

    @classmethod
    def read(cls, model: HookedModel, flags: Prune) -> Texts:
        """Cut the text into windows and divide them.

        Raises:
            UserError: no tokenizer, or a text that is too short.
        """
        length = within_context(model, flags.length)
        wanted = 2 * flags.sequences + (flags.recover * flags.batch_size)
        if model.tokenizer is None and flags.text is None:
            raise UserError(
                "the model came without a tokenizer, so that the sample text cannot be read: give token ids with "
                "--text FILE.npy, or choose without a text: --by weight_norm, --by random or --heads"
            )
        found = text_windows(model, flags.text, length, n=max(wanted, 3), seed=flags.seed)
        if len(found) < 3:
            raise UserError(f"the text gives {len(found)} windows of {length} tokens, at least 3 are needed: --length")
        parts = _divided(found, flags)
        return cls(*(found.select(np.array(part, dtype=np.int64)) for part in parts))


def _divided(found: Sequences, flags: Prune) -> list[list[int]]:
    """Numbers of the windows to score on, to report on, and to train on."""
    rng = np.random.default_rng(flags.seed)
    documents = found.document.numpy()
    labels = documents if len(set(documents.tolist())) >= 6 else np.arange(len(found))
    most = min(flags.sequences, max(1, len(found) // (4 if flags.recover else 2)))
    parts: list[list[int]] = [[], [], []]
    for label in rng.permutation(np.unique(labels)):
        mine = np.flatnonzero(labels == label).tolist()
        which = next((i for i in (0, 1) if len(parts[i]) < most), 2)
        parts[which] += mine
    parts[:2] = [sorted(part)[:most] for part in parts[:2]]
    return [sorted(part) for part in parts]


def batches(sequences: Sequences, flags: Prune) -> list[Tensor]:
    """Tokens of some windows, a pass each."""
    return [batch.tokens for batch in sequences.batches(flags.batch_size)]
