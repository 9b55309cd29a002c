"""How sure a number is: intervals over sequences, paired p-values with a correction, divergences between distributions.

NumPy and SciPy only. Arrays are ``[sequence, ...]`` with whatever is scored (layer, head, …) on the trailing axes;
``units`` says which sequences belong together (windows of one document) and are therefore no separate evidence.

    units.py         what counts as one observation; two halves of them
    resampling.py    the studentised bootstrap that the intervals share
    intervals.py     the mean's interval; lower ends that hold for all heads at once
    significance.py  paired sign-flip p-values, their correction, when there are too few sequences for them
    calling.py       which heads are called something, and why
    correlation.py   rank correlation with its interval
    divergences.py   Kullback–Leibler, Jensen–Shannon, total variation

Formulas, choices and measured coverage: docs/statistics.md.
"""

from interp.statistics.calling import Calls, called
from interp.statistics.correlation import RankCorrelation, ends_over_sequences, spearman_interval
from interp.statistics.divergences import bernoulli, jensen_shannon, kl_divergence, total_variation
from interp.statistics.intervals import MeanInterval, mean_interval, simultaneous_lower
from interp.statistics.significance import benjamini_hochberg, paired_p, too_few
from interp.statistics.units import halves, unit_means

__all__ = [
    "Calls",
    "MeanInterval",
    "RankCorrelation",
    "benjamini_hochberg",
    "bernoulli",
    "called",
    "ends_over_sequences",
    "halves",
    "jensen_shannon",
    "kl_divergence",
    "mean_interval",
    "paired_p",
    "simultaneous_lower",
    "spearman_interval",
    "too_few",
    "total_variation",
    "unit_means",
]
