"""Does freedom say something that importance does not: does it predict what a head's mean pattern does on other text?

Hassid et al. 2022 put a head's mean pattern in place of its pattern. What this does to the output of sequences that
had no part in freedom, in importance or in the mean pattern is predicted over heads by rank correlation, with
importance (and depth) partialled out.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
import pandas as pd
from numpy.typing import NDArray
from scipy.stats import rankdata

from analyses.adversarial_attention.heads.choosing import aside, together
from analyses.adversarial_attention.heads.continuations import distributions
from analyses.adversarial_attention.heads.inputs import Inputs
from interp import HookedModel
from interp.models.replaying import blocks_before, outputs_of, replayed
from interp.replacements import Places, mean_patterns
from interp.results import Workspace
from interp.statistics import ends_over_sequences

__all__ = ["mean_pattern_effects", "partial_rank", "worth"]

Head = tuple[str, int]
Values = NDArray[np.float64]

_RESAMPLES = 1000
_COPIES = 8  # of a sequence, each with another head's mean pattern, that are run together
_LEAST = 8  # heads, below which a partial rank correlation says nothing


def mean_pattern_effects(model: HookedModel, given: Inputs, heads: Sequence[Head], work: Workspace) -> pd.DataFrame:
    """Total variation distance of the output with a head's mean pattern, averaged over positions.

    Returns:
        ``site, layer, head, sequence, document, effect``.
    """
    sites = list(dict.fromkeys(site for site, _ in heads))
    others = [{"tokens": aside(sequence[None])} for sequence in given.choosing.tokens]
    tokens = aside(given.other.tokens)
    patterns = mean_patterns(model, {"tokens": tokens[:1]}, others, sites)
    groups = [(group, blocks_before(model, group)) for group in together(model, heads, _COPIES)]
    effects = []
    for number in work.progress(range(len(tokens)), "sequences of other text"):
        here = tokens[number][None]
        with outputs_of({before[-1] for _, before in groups if before}) as outputs:
            untouched = distributions(model.run(here).logits)
        for group, before in groups:
            edits = Places(patterns=patterns).edits("mean_pattern", [[head] for head in group], 1)
            with replayed([before] if before else [], outputs, times=len(group)):
                changed = distributions(model.run(here.expand(len(group), -1), edits=edits).logits)
            for (site, head), change in zip(group, changed.sub_(untouched).abs_().sum(-1).mean(-1) / 2, strict=True):
                effects.append({
                    "site": site, "layer": model.site(site).layer, "head": head, "sequence": number,
                    "document": int(given.other.document[number]), "effect": float(change),
                })  # fmt: skip
    return pd.DataFrame(effects)


def worth(freedom: pd.DataFrame, importance: pd.DataFrame, effects: pd.DataFrame, seed: int = 0) -> pd.DataFrame:
    """The table ``freedom_worth``: rank correlations over heads with the mean pattern's effect.

    The interval draws the sequences of all three measurements anew, independently: how sure the correlation over
    *these* heads is with as many sequences (`interp.statistics.ends_over_sequences`). ``p`` is another question,
    whether the order of heads by the predictor has anything to do with the effect: its values are permuted over heads
    (Draper & Stoneman 1966).

    Args:
        freedom: ``site, head, sequence, share`` of searched rows. importance: with ``importance``. effects: with
            ``layer, effect``.
    """
    tables = [
        _matrix(freedom.dropna(subset=["share"]), "share"),
        _matrix(importance, "importance"),
        _matrix(effects, "effect"),
    ]
    heads = tables[0].columns.intersection(tables[1].columns).intersection(tables[2].columns)
    x, control, y = (table[heads].to_numpy() for table in tables)
    layer = np.array([effects.loc[effects["site"] == site, "layer"].iloc[0] for site, _ in heads], dtype=float)
    rng = np.random.default_rng(seed)
    kinds: dict[str, Callable[[Values, Values, Values], Values]] = {
        "none": lambda a, b, c: partial_ranks(a, c, []),
        "importance": lambda a, b, c: partial_ranks(a, c, [b]),
        "importance and layer": lambda a, b, c: partial_ranks(a, c, [b, layer]),
        "importance alone": lambda a, b, c: partial_ranks(b, c, []),
    }
    rows = []
    for name, correlate in kinds.items():
        whole = _mean(x), _mean(control), _mean(y)
        value = float(correlate(*whole)) if len(heads) >= _LEAST else float("nan")
        low, high = np.nan, np.nan
        if np.isfinite(value):
            resampled = (
                _mean(table[rng.integers(len(table), size=(_RESAMPLES, len(table)))]) for table in (x, control, y)
            )
            low, high = ends_over_sequences(value, correlate(*resampled), min(len(x), len(control), len(y)))
        rows.append({
            "predictor": "importance" if name == "importance alone" else "freedom",
            "controls": "none" if name == "importance alone" else name, "value": value, "ci_low": low, "ci_high": high,
            "p": _permuted_p(correlate, *whole, value, name == "importance alone", rng),
            "n_heads": len(heads), "n": min(len(x), len(control), len(y)),
            "note": "" if np.isfinite(value) else _why_not(len(heads)),
        })  # fmt: skip
    return pd.DataFrame(rows)


def partial_ranks(x: Values, y: Values, controls: Sequence[Values]) -> Values:
    """`partial_rank` of each draw: arrays [draw, head], or [head] for one that all draws have; [draw], or a number."""
    given = np.broadcast_arrays(x, y, *controls)
    flat = [array.reshape(-1, array.shape[-1]) for array in given]
    some = np.isfinite(flat).all(0).any(0)  # heads that are known in any draw at all
    x, y, *controls = (array[:, some] for array in flat)
    whole = np.isfinite([x, y, *controls]).all((0, 2)) & (x.shape[1] >= len(controls) + 3)
    found = np.full(len(x), np.nan)
    for draw in np.flatnonzero(~whole):
        found[draw] = partial_rank(x[draw], y[draw], [control[draw] for control in controls])
    if whole.any():
        ranks = [rankdata(array[whole], axis=1) for array in (x, y, *controls)]
        design = np.stack([np.ones_like(ranks[0]), *ranks[2:]], -1)
        fitted = design @ (np.linalg.pinv(design) @ np.stack(ranks[:2], -1))
        a, b = (rank - fitted[..., i] for i, rank in enumerate(ranks[:2]))
        size = np.sqrt((a**2).sum(1) * (b**2).sum(1))
        known = size > 1e-9 * a.shape[1] ** 3
        found[whole] = np.where(known, (a * b).sum(1) / np.where(known, size, 1.0), np.nan)
    return found.reshape(given[0].shape[:-1])


def partial_rank(x: Values, y: Values, controls: Sequence[Values]) -> float:
    """Spearman's partial correlation: Pearson's of what the controls' ranks leave of the ranks of x and y.

    NaN where nothing varies, or where controls leave nothing.
    """
    kept = np.isfinite(x) & np.isfinite(y) & np.all([np.isfinite(c) for c in controls], axis=0)
    if kept.sum() < len(controls) + 3:
        return float("nan")
    left = [rankdata(x[kept]), rankdata(y[kept])]
    design = np.column_stack([np.ones(kept.sum()), *(rankdata(c[kept]) for c in controls)])
    left = [ranks - design @ np.linalg.lstsq(design, ranks, rcond=None)[0] for ranks in left]
    size = np.sqrt((left[0] ** 2).sum() * (left[1] ** 2).sum())
    return float(left[0] @ left[1] / size) if size > 1e-9 * kept.sum() ** 3 else float("nan")


def _matrix(table: pd.DataFrame, column: str) -> pd.DataFrame:
    """[sequence, head] with the heads as columns (site, head)."""
    return table.pivot_table(index="sequence", columns=["site", "head"], values=column, aggfunc="mean", observed=True)


def _mean(values: Values) -> Values:
    """Over sequences [..., sequence, head], of those that are known."""
    known = np.isfinite(values)
    n = known.sum(-2)
    return np.where(n > 0, np.where(known, values, 0).sum(-2) / np.maximum(n, 1), np.nan)


def _permuted_p(
    correlate: Callable[[Values, Values, Values], Values], x: Values, control: Values, y: Values, value: float,
    of_control: bool, rng: np.random.Generator,
) -> float:  # fmt: skip
    """Two-sided: how often a random order of heads has as strong a correlation."""
    if not np.isfinite(value):
        return float("nan")
    orders = rng.permuted(np.tile(np.arange(len(x)), (_RESAMPLES, 1)), axis=1)
    drawn = correlate(x, control[orders], y) if of_control else correlate(x[orders], control, y)
    return float((np.sum(np.abs(drawn) >= abs(value) - 1e-12) + 1) / (_RESAMPLES + 1))


def _why_not(n_heads: int) -> str:
    if n_heads < _LEAST:
        return f"{n_heads} heads are too few to correlate anything over; {_LEAST} are the least"
    return "one of the measurements does not vary over heads"
