"""Do attention, gradients and leaving words out rank the words of a text alike? Kendall's τ within each text."""

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray
from scipy import stats

from analyses.adversarial_attention.classifiers.tables import by_class, mean_row, share_of
from analyses.adversarial_attention.classifiers.tested import Rows, Tested

PAIRS = {
    "attention_gradient": ("attention", "gradient"),
    "attention_leave_one_out": ("attention", "leave_one_out"),
    "gradient_leave_one_out": ("gradient", "leave_one_out"),
}
LEVEL = 0.05


class Agreement(NamedTuple):
    """τ [text] and its two-sided p-value; NaN where τ is undefined: fewer than two words, or all of them tied."""

    tau: NDArray[np.float64]
    p: NDArray[np.float64]


def agreements(tested: Tested) -> dict[str, Agreement]:
    """The agreement of each pair of rankings."""
    return {pair: kendall(getattr(tested, one), getattr(tested, other)) for pair, (one, other) in PAIRS.items()}


def kendall(one: Rows, other: Rows) -> Agreement:
    """Kendall's τ-b (ties count as neither agreeing nor disagreeing) of two measurements of each text's words."""
    tau, p = np.full(len(one), np.nan), np.full(len(one), np.nan)
    for i, (x, y) in enumerate(zip(one, other, strict=True)):
        if len(x) >= 2 and np.ptp(x) > 0 and np.ptp(y) > 0:
            tau[i], p[i] = stats.kendalltau(x, y)
    return Agreement(tau, p)


def rows(tested: Tested, found: dict[str, Agreement], seed: int) -> list[dict[str, object]]:
    """The table ``agreement``: mean τ and the share of texts in which it is significant, of each predicted class."""
    made: list[dict[str, object]] = []
    for pair, (tau, p) in found.items():
        for name, chosen in by_class(tested.classes):
            of, level = tau[chosen], p[chosen]
            known = ~np.isnan(of)
            made.append(
                {"class": name, "pair": pair, **mean_row(of, (-1.0, 1.0), seed),
                 "sd": float(of[known].std()) if known.any() else np.nan,
                 "significant": share_of(level[known] <= LEVEL), "undefined": int((~known).sum())}
            )  # fmt: skip
    return made
