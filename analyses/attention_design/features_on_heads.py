"""Random features of the softmax on the model's own queries and keys: which heads they lose."""

import math

import numpy as np
import torch
from torch import Tensor

from analyses.attention_design.claims import Claim, Curve, Number, Panel
from interp import HookedModel
from interp.attention import Trace, Traces
from interp.models.transformer.linear import performer_features, random_directions
from interp.results import Workspace
from interp.statistics import spearman_interval

TOPIC = "model"
FEATURES, ROWS = 256, 32


def features(
    model: HookedModel, traces: Traces, measured: dict[str, Tensor], seed: int, work: Workspace
) -> list[Claim]:
    """Performer's features on the model's own queries and keys: which heads are lost."""
    directions: dict[int, Tensor] = {}
    lost, sharp = [], []
    for i, trace in enumerate(traces.values()):
        if trace.mask.bias is not None or trace.softcap is not None or trace.mask.sinks is not None:
            continue
        d = trace.query.shape[-1]
        if d not in directions:
            directions[d] = random_directions(FEATURES, d, generator=torch.Generator().manual_seed(seed))
        lost.append(_misplaced(trace, directions[d]))
        sharp.append(measured["max"][i])
    if not lost:
        work.skip(
            "random features on the model's heads",
            "its scores have biases, softcaps or sinks, which features do not model",
        )
        return []
    misplaced, largest = torch.cat(lost).numpy(), torch.cat(sharp).numpy()
    kept = np.isfinite(misplaced) & np.isfinite(largest)
    misplaced, largest = misplaced[kept], largest[kept]
    relation = spearman_interval(largest, misplaced)
    flat, peaked = misplaced[largest <= np.median(largest)], misplaced[largest > np.median(largest)]
    return [
        Claim(
            "features-on-heads",
            TOPIC,
            "Linear attention approximates softmax attention.",
            f"Its error grows with exp(‖q + k‖²/2): on trained queries and keys {FEATURES} random features meet "
            "scores that are "
            "far apart.",
            f"With {FEATURES} orthogonal features, {np.median(misplaced):.0%} of a head's attention is misplaced in "
            "the median "
            f"(total variation), {np.median(flat):.0%} in the flatter half of the heads and {np.median(peaked):.0%} "
            "in the "
            f"sharper; rank correlation with the largest weight {float(relation.value):.2f}.",
            (
                Number(
                    "misplaced attention, median head, said to be small",
                    float(np.median(misplaced)),
                    expected=0.1,
                    relation="at most",
                    source="said",
                    n=len(misplaced),
                ),
                Number(
                    "rank correlation of misplaced attention and largest weight",
                    float(relation.value),
                    float(relation.low),
                    float(relation.high),
                    n=len(misplaced),
                ),
            ),
            (
                Panel(
                    f"Attention misplaced by {FEATURES} random features",
                    "largest weight (mean over rows)",
                    "misplaced (total variation)",
                    (Curve("heads", np.sort(largest), misplaced[np.argsort(largest)]),),
                    kind="points",
                ),
            ),
            said="It is a drop-in replacement.",
            not_shown="Models trained with linear attention, whose heads learn to live with it.",
            data=str(model.info.get("name", "the model")),
        )
    ]


def _misplaced(trace: Trace, directions: Tensor) -> Tensor:
    """Mean total variation, by head, between the last rows of a kept call and those of random features."""
    n = trace.query.shape[2]
    rows = trace.rows(max(0, n - ROWS), n)
    group = trace.query.shape[1] // trace.key.shape[1]
    factor = math.sqrt(abs(trace.scale))
    query = trace.query[:, :, -ROWS:].double() * factor
    key = trace.key[:, :, rows.low : rows.high].double().repeat_interleave(group, 1) * factor
    kernel = performer_features(query, directions, below=True) @ performer_features(key, directions).mT
    kernel = kernel.masked_fill(~rows.allowed.expand(kernel.shape), 0.0)
    kernel = kernel / kernel.sum(-1, keepdim=True).clamp_min(1e-300)
    return (kernel - rows.pattern.double()).abs().sum(-1).div(2).mean((0, 2))
