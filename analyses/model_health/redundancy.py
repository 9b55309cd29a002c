"""Heads that are there twice, and heads that nothing would miss."""

from __future__ import annotations

import numpy as np
import torch

from analyses.model_health.checks import Row
from analyses.model_health.config import CHECKS
from analyses.model_health.gradients import Depth
from analyses.model_health.scores import METRICS, Measurements, known_mean
from analyses.model_health.subject import Subject, heads_of
from interp.attention.probes import HeadDivergence

__all__ = ["rows"]


def rows(subject: Subject, measured: Measurements, depth: Depth) -> list[Row]:
    """The checks of heads against each other."""
    return [_identical(subject, measured), _negligible(subject, depth)]


def _identical(subject: Subject, measured: Measurements) -> Row:
    """The two heads of one site whose patterns are nearest, as a share of how far both are from uniform attention."""
    check = CHECKS["identical_heads"]
    probe = HeadDivergence()
    with torch.no_grad():
        run = subject.run(probes=[probe])
    relative = {site.site: known_mean(site.values[..., METRICS.index("relative_entropy")]) for site in measured}
    nearest: tuple[float, str, int, tuple[int, int]] | None = None
    n_pairs = n_near = 0
    for site, values in heads_of(run, run.readings(probe)):
        n_heads = values.shape[1]
        if n_heads < 2 or site.name not in relative:
            continue
        apart = values.mean(0).cpu().numpy()
        # 1 − H / ln n of each head, in nats of a typical row: how far it is from uniform
        certain = np.maximum(1 - relative[site.name], 1e-12)
        for a in range(n_heads):
            for b in range(a + 1, n_heads):
                share = float(apart[a, b] / min(certain[a], certain[b]))
                n_pairs, n_near = n_pairs + 1, n_near + (share < (check.warn_at or 0))
                if nearest is None or share < nearest[0]:
                    nearest = (share, site.name, site.layer, (a, b))
    if nearest is None:
        return check.not_applicable("no site has two heads whose rows may read more than one key")
    value, name, layer, (a, b) = nearest
    note = f"heads {a} and {b}, the nearest of {n_pairs:,} pairs; nearer than the limit: {n_near}"
    return check.judge(value, (name, layer, b), note)


def _negligible(subject: Subject, depth: Depth) -> Row:
    """The head whose gate changes the output least, as a share of the median head of its site."""
    check = CHECKS["negligible_heads"]
    if depth.reason:
        return check.not_applicable(depth.reason)
    shares = []
    for site in subject.model.sites:
        felt = depth.heads.get(site.name)
        if felt is None or len(felt) < 2:
            continue
        typical = np.median(felt[felt > 0]) if felt.max() > 0 else 1.0
        shares += [(float(v), site.name, site.layer, h) for h, v in enumerate(felt / typical)]
    if not shares:
        return check.not_applicable("no site has two heads")
    value, name, layer, head = min(shares)
    low = sum(share < (check.warn_at or 0) for share, *_ in shares)
    return check.judge(value, (name, layer, head), f"the least of {len(shares)} heads; below the limit: {low}")
