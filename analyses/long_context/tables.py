"""Tables from what was found at every length and depth."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from analyses.long_context.config import Config
from analyses.long_context.needles import Hidden
from analyses.long_context.retrieval import STATISTICS, Found
from interp import HookedModel
from interp.statistics import called, mean_interval

Measured = Sequence[tuple[Hidden, Found]]
SHARE = (0.0, 1.0)


def heads_of(model: HookedModel) -> pd.DataFrame:
    """Site, layer and head of every head, in order of execution."""
    rows = [(site.name, site.layer, head) for site in model.sites for head in range(site.n_heads)]
    return pd.DataFrame(rows, columns=pd.Index(["site", "layer", "head"]))


def heads(model: HookedModel, measured: Measured) -> pd.DataFrame:
    """Retrieval over all inputs, and the statistics of attention at the shortest and longest length, per head."""
    chance = float(np.mean([1 / h.length for h, _ in measured]))
    parts = [
        _long(model, "retrieval", "needle", _flat([f.score for _, f in measured]), _units(measured), chance, SHARE),
        _long(
            model,
            "looks_at_needle",
            "needle",
            _flat([f.attended for _, f in measured]),
            _units(measured),
            chance,
            SHARE,
        ),
    ]
    lengths = sorted({h.length for h, _ in measured})
    for name in STATISTICS:
        for data, length in (("short_input", lengths[0]), ("long_input", lengths[-1])):
            here = [(h, f) for h, f in measured if h.length == length]
            values = _flat([f.statistics[name] for _, f in here])
            parts.append(
                _long(model, name, data, values, _units(here), math.nan, SHARE if name == "first_position" else None)
            )
    return pd.concat(parts, ignore_index=True)


def kinds(model: HookedModel, measured: Measured, config: Config) -> pd.DataFrame:
    """Which heads are called retrieval heads, and why."""
    values = _flat([f.score for _, f in measured])
    calls = called(values, None, config.threshold, units=_units(measured), bounds=SHARE, events=True, seed=config.seed)
    return heads_of(model).assign(
        kind="retrieval", metric="retrieval", value=calls.value, simultaneous_low=calls.low, threshold=config.threshold,
        chance=math.nan, control=math.nan, p_corrected=math.nan, called=calls.called, reason=calls.reason,
    )  # fmt: skip


def retrieval(model: HookedModel, measured: Measured) -> pd.DataFrame:
    """Each head's score at each length and depth, with its interval over needles."""
    parts = []
    for hidden, found in measured:
        interval = mean_interval(
            found.score.reshape(len(found.score), -1), hidden.needles.numpy(), bounds=SHARE, events=True
        )
        parts.append(
            heads_of(model).assign(
                length=hidden.length,
                depth=hidden.depth,
                value=interval.value,
                ci_low=interval.low,
                ci_high=interval.high,
                n=interval.n,
            )
        )
    return pd.concat(parts, ignore_index=True)


def copied(measured: Measured) -> pd.DataFrame:
    """Whether the model itself finds the needle, by length and depth."""
    rows = []
    for hidden, found in measured:
        share, loss = (
            mean_interval(x, hidden.needles.numpy(), events=events)
            for x, events in ((found.copied, True), (found.loss, False))
        )
        rows.append({
            "length": hidden.length, "depth": hidden.depth, "copied": float(share.value), "ci_low": float(share.low),
            "ci_high": float(share.high), "loss": float(loss.value), "n": int(share.n),
        })  # fmt: skip
    return pd.DataFrame(rows)


def by_length(model: HookedModel, measured: Measured) -> pd.DataFrame:
    """Statistics of attention over the haystack by length, per head; retrieval as well, over all depths."""
    parts = []
    for length in sorted({h.length for h, _ in measured}):
        here = [(h, f) for h, f in measured if h.length == length]
        values = {"retrieval": _flat([f.score for _, f in here])}
        values |= {name: _flat([f.statistics[name] for _, f in here]) for name in STATISTICS}
        for metric, of_heads in values.items():
            interval = mean_interval(
                of_heads,
                _units(here),
                bounds=SHARE if metric in ("retrieval", "first_position") else None,
                events=metric == "retrieval",
            )
            parts.append(
                heads_of(model).assign(
                    length=length,
                    metric=metric,
                    value=interval.value,
                    ci_low=interval.low,
                    ci_high=interval.high,
                    n=interval.n,
                )
            )
    return pd.concat(parts, ignore_index=True)


def _units(measured: Measured) -> NDArray[np.int64]:
    """The needle of each input: inputs that share one are no separate evidence."""
    return np.concatenate([hidden.needles.numpy() for hidden, _ in measured])


def _flat(values: Sequence[NDArray[np.float64]]) -> NDArray[np.float64]:
    """[sequence, site, head] of several inputs, as [sequence, head of any site]."""
    joined = np.concatenate(values)
    return joined.reshape(len(joined), -1)


def _long(
    model: HookedModel, metric: str, data: str, values: NDArray[np.float64], units: NDArray[np.int64], chance: float,
    bounds: tuple[float, float] | None,
) -> pd.DataFrame:  # fmt: skip
    found = mean_interval(values, units, bounds=bounds, events=data == "needle")
    return heads_of(model).assign(
        metric=metric, data=data, value=found.value, ci_low=found.low, ci_high=found.high, chance=chance,
        p_corrected=math.nan, n=found.n, note=np.where(np.isnan(found.value), "no row to measure it on", ""),
    )  # fmt: skip
