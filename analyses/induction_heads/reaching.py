"""How far back the strongest heads find what followed: prefix matching at longer periods."""

import numpy as np
import pandas as pd

from analyses.induction_heads.config import Config
from analyses.induction_heads.inputs import Inputs, around_sequences, even_batches, room
from analyses.induction_heads.kinds import KINDS, Head, ranked
from analyses.induction_heads.measures import Measure, scores_of
from analyses.induction_heads.scores import NO_ROW, SHARE, Scores, by_sequence
from interp import HookedModel
from interp.ablation import without_logits
from interp.attention.probes import TargetMass
from interp.data import repeated_tokens
from interp.model_data import pass_arguments
from interp.results import Workspace
from interp.results.tables import empty_table
from interp.statistics import mean_interval

_SHORTEST = 16
_COLUMNS = {
    "site": str, "layer": int, "head": int, "period": int, "value": float, "ci_low": float, "ci_high": float,
    "chance": float, "n": int, "note": str,
}  # fmt: skip
_SEED = 1  # beside the user's: tokens that no head was picked on


def table(model: HookedModel, given: Inputs, found: Scores, config: Config, work: Workspace) -> pd.DataFrame:
    """The table ``reach``: prefix matching of the strongest heads at periods of 16, 32, … tokens.

    The heads are picked on the sequences of the table ``heads``; those here are others. With the period the number of
    copies stays what it is.
    """
    periods = doubled(_SHORTEST, config.longest_period(room(model)))
    heads = list(ranked(found.names, found.values[KINDS["induction"], "repeated"]))[: config.followed]
    if not periods or not heads:
        work.skip("reach", "no head has a score" if periods else f"a period of {_SHORTEST} does not fit the context")
        return empty_table(_COLUMNS)
    parts = []
    for period in work.progress(periods, "periods"):
        made = work.step(f"reach-{period}", lambda period=period: {"reach": _at(model, given, period, heads, config)})
        parts.append(made["reach"])
    return pd.concat(parts, ignore_index=True)


def doubled(shortest: int, longest: int) -> list[int]:
    """Periods that double, and the longest."""
    periods = []
    while shortest < longest:
        periods.append(shortest)
        shortest *= 2
    return [*periods, longest] if longest >= _SHORTEST else []


def _at(model: HookedModel, given: Inputs, period: int, heads: list[Head], config: Config) -> pd.DataFrame:
    """Prefix matching of some heads at one period."""
    around = around_sequences(model)
    seed = config.seed + _SEED
    sequences = repeated_tokens(given.vocabulary, period, config.repeats, config.reach_sequences, seed=seed, **around)
    parts, first = [], 0
    for batch in even_batches(sequences, config):
        wanted = Measure("prefix_matching", TargetMass(targets=batch.induction_targets))
        sites = {site for site, _ in heads}
        run = model.run(**pass_arguments(model, batch), probes=[wanted.probe], sites=sites, **without_logits(model))
        parts += scores_of(run, [wanted], first)
        first += len(batch)
    table = pd.concat(parts, ignore_index=True)
    interval = mean_interval(by_sequence(table, heads, "value"), bounds=SHARE, seed=config.seed)
    return pd.DataFrame(
        {
            "site": [site for site, _ in heads],
            "layer": [model.site(site).layer for site, _ in heads],
            "head": [head for _, head in heads],
            "period": period,
            "value": interval.value,
            "ci_low": interval.low,
            "ci_high": interval.high,
            "chance": by_sequence(table, heads, "chance").mean(0),
            "n": interval.n,
            "note": np.where(interval.n == 0, NO_ROW, ""),
        }
    )
