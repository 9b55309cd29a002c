"""Which heads stay, given a score of every head: a share of all, a number in every layer, or all layers alike."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from itertools import groupby
from typing import Any

import pandas as pd

from interp.errors import UserError
from interp.models.hooked import HookedModel
from interp.models.pruning.heads import Kept, kept_by_site
from interp.models.pruning.plain import Counts, possible_counts, possible_in_words, shares_position_bias
from interp.models.sites import AttentionSite, find_site

__all__ = ["Scores", "keep_in_each_layer", "keep_share", "keep_uniform", "scores_of"]

Scores = Mapping[Any, float]
"""What each head is worth, by (site name, head), or (layer, head) where layers have one site. The lowest go first."""


def scores_of(table: pd.DataFrame, column: str) -> dict[tuple[str, int], float]:
    """Scores from a table with the columns ``site``, ``head`` and one that says what a head is worth.

    Raises:
        UserError: a column is missing, or a head has several rows.
    """
    if missing := [name for name in ("site", "head", column) if name not in table]:
        raise UserError(f"a table of scores needs the columns site, head and {column}; it lacks {', '.join(missing)}")
    if table.duplicated(["site", "head"]).any():
        raise UserError(
            "a table of scores has one row for each head; here heads have several: leave those of one score"
        )
    return {
        (str(site), int(head)): float(value)
        for site, head, value in zip(table["site"], table["head"], table[column], strict=True)
    }


def keep_share(model: HookedModel, scores: Scores, share: float) -> Kept:
    """The best heads of the whole model: ``share`` of them, rounded, but at least one. Of equal scores the earlier
    head stays.

    Raises:
        UserError: a share outside 0 … 1, or scores that are missing, NaN, or of heads that do not exist.
    """
    _check_share(share)
    worth = _worth(model, scores)
    ranked = sorted(worth, key=lambda head: -worth[head])  # stable: earlier sites and heads first
    chosen = ranked[: max(1, round(share * len(ranked)))]
    return kept_by_site(model, {site.name: [h for name, h in chosen if name == site.name] for site in model.sites})


def keep_in_each_layer(model: HookedModel, scores: Scores, number: int) -> Kept:
    """The best ``number`` heads of every site; all of a site that has no more.

    Raises:
        UserError: a number below 1 or above what any site has, or scores that do not fit (`keep_share`).
    """
    most = max(site.n_heads for site in model.sites)
    if not 1 <= number <= most:
        raise UserError(f"a layer can keep 1 … {most} heads; got {number}")
    worth = _worth(model, scores)
    return kept_by_site(model, {site.name: _best(_of(site, worth), number) for site in model.sites})


def keep_uniform(model: HookedModel, scores: Scores, number: int) -> Kept:
    """The best ``number`` heads of every layer, with all layers and all groups alike, so that the pruned model is a
    plain checkpoint (`plain`).

    With grouped keys a number can be made up in several ways (6 heads as 2 groups of 3, or 3 of 2). The way is taken in
    which the heads that stay are worth most, summed over the model; of equal ones the one with fewer kv heads.

    Raises:
        UserError: the architecture has no plain checkpoint with fewer heads, or none with this number; it says with
            which. Or scores that do not fit (`keep_share`).
    """
    possible = possible_counts(model)
    ways = [counts for counts in possible if counts.n_heads == number]
    if not ways:
        raise UserError(f"no plain checkpoint has {number} heads in each layer; {possible_in_words(possible)}")
    worth = _worth(model, scores)
    if shares_position_bias(model):
        worth = _averaged_over_stacks(model, worth)
    chosen = [{site.name: _best_groups(site, _of(site, worth), counts) for site in model.sites} for counts in ways]
    sums = [math.fsum(worth[name, h] for name, heads in kept.items() for h in heads) for kept in chosen]
    return kept_by_site(model, chosen[sums.index(max(sums))])


# Parts ------------------------------------------------------------------------------------------------------------


def _check_share(share: float) -> None:
    if not 0 < share <= 1:
        raise UserError(f"the share of heads that stay lies above 0 and is at most 1; got {share}")


def _worth(model: HookedModel, scores: Scores) -> dict[tuple[str, int], float]:
    """A score for every head of the model.

    Raises:
        UserError: one is missing, NaN, given twice, or of a head that does not exist.
    """
    given: dict[tuple[str, int], float] = {}
    for (where, head), value in scores.items():
        site = find_site(model.sites, where)
        if not 0 <= head < site.n_heads:
            raise UserError(f"{site.name} has heads 0 … {site.n_heads - 1}; there is a score for head {head}")
        if (site.name, head) in given:
            raise UserError(f"head {head} of {site.name} has two scores")
        if math.isnan(value):
            raise UserError(f"the score of head {head} of {site.name} is NaN: heads cannot be ranked by it")
        given[site.name, head] = float(value)
    every = [(site.name, head) for site in model.sites for head in range(site.n_heads)]
    if missing := [address for address in every if address not in given]:
        name, head = missing[0]
        raise UserError(f"{len(missing)} of {len(every)} heads have no score, head {head} of {name} among them")
    return {address: given[address] for address in every}


def _of(site: AttentionSite, worth: Mapping[tuple[str, int], float]) -> list[float]:
    return [worth[site.name, head] for head in range(site.n_heads)]


def _best(values: Sequence[float], number: int) -> list[int]:
    return sorted(sorted(range(len(values)), key=lambda head: -values[head])[:number])


def _best_groups(site: AttentionSite, values: Sequence[float], counts: Counts) -> list[int]:
    """The best heads of the best groups."""
    size = counts.n_heads // counts.n_kv_heads
    groups = [list(heads) for _, heads in groupby(range(site.n_heads), site.kv_head_of)]
    best = [[group[i] for i in _best([values[head] for head in group], size)] for group in groups]
    chosen = _best([math.fsum(values[head] for head in group) for group in best], counts.n_kv_heads)
    return [head for i in chosen for head in best[i]]


def _averaged_over_stacks(model: HookedModel, worth: Mapping[tuple[str, int], float]) -> dict[tuple[str, int], float]:
    """Scores of self-attention heads as the mean over the stack's layers, which must keep the same heads."""
    found = dict(worth)
    for stack in {site.stack for site in model.sites}:
        sites = [site for site in model.sites if site.stack == stack and site.kind == "self"]
        for head in range(min((site.n_heads for site in sites), default=0)):
            mean = math.fsum(worth[site.name, head] for site in sites) / len(sites)
            found |= {(site.name, head): mean for site in sites}
    return found
