"""Retrieval scores (Wu et al. 2024), and what attention is like along the way.

While the model predicts token t of the answer, a head *retrieves* it when its strongest key lies in the needle and
holds that very token. A head's score on an input is the share of the answer's tokens that it retrieves and that the
model ranks first: what nobody would have emitted is not counted as retrieved.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from analyses.long_context.needles import Hidden
from interp import HookedModel
from interp.attention.probes import Entropy, ExpectedDistance, PositionMass, Probe, SelectedRows
from interp.streaming import StreamedMeans, stream

__all__ = ["Found", "measure"]

STATISTICS = ("entropy", "first_position", "expected_distance")


@dataclass(frozen=True, eq=False)
class Found:
    """What was found on inputs of one length and depth.

    Attributes:
        score, attended: [sequence, site, head]; the second counts tokens that the model did not rank first as well.
        copied: [sequence], share of the answer's tokens that the model ranks first.
        loss: [sequence], mean over the answer's tokens, nats.
        statistics: [sequence, site, head] of each of :data:`STATISTICS`, over the rows of the haystack.
    """

    score: NDArray[np.float64]
    attended: NDArray[np.float64]
    copied: NDArray[np.float64]
    loss: NDArray[np.float64]
    statistics: dict[str, NDArray[np.float64]]


def measure(model: HookedModel, hidden: Hidden, piece: int) -> Found:
    """One pass over the inputs, piece by piece; the answer's rows are read whole in the piece that has them."""
    first = hidden.first_row
    means, matched, logits = StreamedMeans(), [], []
    basic: list[Probe] = [Entropy(first_position=1), PositionMass((0,), first_position=1), ExpectedDistance()]

    def probes(start: int, stop: int) -> list[Probe]:
        wanted = list(range(max(first, start) - start, stop - start))
        return [*basic, SelectedRows(wanted)] if stop > first else basic

    for part in stream(model, hidden.tokens, probes, piece=piece, keep_logits=lambda start, stop: stop > first):
        run = part.run
        means.add(run, len(basic))
        if part.stop > first:
            begin = max(first, part.start)
            strongest = torch.stack([r.values.argmax(-1) for r in run.readings(len(basic)).values()])
            matched.append(_matches(strongest, hidden, begin, part.stop))
            assert run.logits is not None
            logits.append(run.logits[:, begin - part.start :].float())
    return _scored(hidden, torch.cat(matched, -1), torch.cat(logits, 1), first, means, [s.name for s in model.sites])


def _matches(strongest: Tensor, hidden: Hidden, begin: int, stop: int) -> Tensor:
    """Whether the strongest key of rows ``begin`` to ``stop`` is in the needle and holds the token to come:
    [site, sequence, head, row]."""
    n = len(hidden.tokens)
    sequence = torch.arange(n)[None, :, None, None]
    wanted = torch.full((n, stop - begin), -2, dtype=torch.long)
    for k in range(hidden.rows.shape[1]):
        here = (hidden.rows[:, k] >= begin) & (hidden.rows[:, k] < stop)
        wanted[here, hidden.rows[here, k] - begin] = hidden.answers[here, k]
    key = strongest.cpu()
    return hidden.in_needle[sequence, key] & (hidden.tokens[sequence, key] == wanted[None, :, None])


def _scored(
    hidden: Hidden, matched: Tensor, logits: Tensor, first: int, means: StreamedMeans, sites: list[str]
) -> Found:
    asked = hidden.rows >= 0
    place = (hidden.rows - first).clamp_min(0)
    answers = hidden.answers.clamp_min(0)
    own = logits.cpu().gather(1, place[..., None].expand(-1, -1, logits.shape[-1]))
    right = (own.argmax(-1) == answers) & asked
    loss = torch.nn.functional.cross_entropy(own.transpose(1, 2), answers, reduction="none")
    n = asked.sum(-1).double()
    of_rows = matched.gather(-1, place[None, :, None].expand(*matched.shape[:3], -1)) & asked[None, :, None]
    emitted = (of_rows & right[None, :, None]).sum(-1) / n[None, :, None]

    def by_sequence(values: Tensor) -> NDArray[np.float64]:
        return values.transpose(0, 1).double().cpu().numpy()

    statistics = {
        name: by_sequence(torch.stack([_flat(means.values(i, site)) for site in sites]))
        for i, name in enumerate(STATISTICS)
    }
    return Found(
        by_sequence(emitted), by_sequence(of_rows.sum(-1) / n[None, :, None]), (right.sum(-1) / n).numpy(),
        ((loss * asked).sum(-1) / n).numpy(), statistics,
    )  # fmt: skip


def _flat(values: Tensor) -> Tensor:
    return values.reshape(*values.shape[:2], -1)[..., 0]
