"""Published numbers of head pruning beside those measured on a classifier, in words."""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from analyses.head_pruning import published
from analyses.head_pruning.agreement import correlation
from analyses.head_pruning.classified import Measured
from analyses.head_pruning.config import SHARES
from interp.statistics import benjamini_hochberg, mean_interval, paired_p

Row = dict[str, str]
ALPHA = 0.05


def row(paper: str, quantity: str, known: str, measured: str = "") -> Row:
    """A row of the table; ``needs`` is empty, because the number is measured."""
    return {"paper": paper, "quantity": quantity, "published": known, "measured": measured, "needs": ""}


def rows(found: Measured) -> list[Row]:
    """All numbers that a classifier can be compared with; changes of accuracy are in percentage points."""
    return [
        row("", "accuracy of the whole model, %", "", _mean(100 * (1 - found.errors))),
        *_single(found),
        *_pruned(found),
        *_alone(found),
        *_speed(found),
        *_gated(found),
    ]


def _single(found: Measured) -> list[Row]:
    sure, better = sure_heads(found.singles["reported"])
    n = len(found.heads)
    said = f"{sure} of {n}, {better} of them better without (loss of the label, {ALPHA:.0%} corrected)"
    both = (found.singles["scored"].T, found.singles["reported"].T)
    x, y = ((values, np.arange(len(values)), _plain) for values in both)
    r = _spanned("{:.2f}", *correlation(x, y, "pearson", 0))
    known = f"{published.R_BETWEEN_DATA} (accuracy, MNLI matched and mismatched)"
    return [
        row("Michel", "single heads without which it surely changes", published.SURE_HEADS, said),
        row("Michel", "r of single heads' effects between the two files (loss of the label)", known, r),
    ]


def _pruned(found: Measured) -> list[Row]:
    change = mean_interval(found.curves["importance"].T)
    fallen = np.flatnonzero(np.asarray(change.low) > 0)
    free = SHARES[int(fallen[0])] if len(fallen) else 1.0
    known = ", ".join(f"{share:g} {task}" for task, share in published.PRUNABLE.items())
    made = [row("Michel", "share of heads that goes without a sure fall of accuracy", known, f"{free:g}")]
    for share, of_share in zip(SHARES[1:], found.curves["importance"], strict=True):
        made.append(row("Michel", f"accuracy, {share:.0%} pruned by importance", "", _mean(-100 * of_share, sign=True)))
    areas: dict[str, Any] = {
        name: np.trapezoid(np.vstack([0 * curve[0], curve]), SHARES, axis=0) for name, curve in found.curves.items()
    }
    margin = _mean(100 * (areas["exact"] - areas["importance"]), sign=True)
    what = "accuracy by which importance's curve lies above that of single ablations, mean over shares"
    return [*made, row("Michel", what, published.BEATS_ABLATION, margin)]


def _alone(found: Measured) -> list[Row]:
    known = published.BEST_HEAD_ALONE
    alike = len(known) == len(found.alone)
    made = []
    if not alike and found.alone:
        theirs = "; ".join(f"{value:+.2f}" for value in known).replace("-", "−")
        what = "accuracy with its best head alone, layers 1 to 12"
        made.append(row("Michel", what, theirs, f"{len(found.alone)} layers:"))
    for number, change in enumerate(found.alone.values()):
        beside = f"{known[number]:+.2f}".replace("-", "−") if alike else ""
        made.append(row("Michel", f"accuracy, layer {number + 1} with its best head alone", beside,
                        _mean(-100 * change, sign=True)))  # fmt: skip
    return made


def _speed(found: Measured) -> list[Row]:
    made = []
    for of in found.times.to_dict("records"):
        if of["variant"] != "pruned":
            continue
        faster = [100 * (1 / of[name] - 1) for name in ("ratio", "ci_high", "ci_low")]
        known = published.SPEED_UP.get(int(of["batch_size"]))
        said = f"{_spanned('{:+.1f}', *faster)} ({int(of['length'])} tokens, CPU time, {int(of['n'])} rounds)"
        what = f"faster with half of the heads cut out, batches of {int(of['batch_size'])}, %"
        made.append(row("Michel", what, "" if known is None else f"{100 * known:+.1f}", said))
    return made


def _gated(found: Measured) -> list[Row]:
    n = len(found.heads)
    made = []
    for number, penalty in enumerate(sorted(found.gates["penalty"].unique())):
        gate: Any = found.gates.loc[found.gates["penalty"] == penalty, "gate"]
        said = f"{int((gate > 0).sum())} of {n}: {_mean(-100 * found.gated[number], sign=True)}"
        known = published.GATES if number == 0 else ""
        made.append(
            row("Voita", f"heads left by learned gates, weights frozen, λ = {penalty:g}: accuracy", known, said)
        )
    return made


def sure_heads(change: NDArray[np.float64]) -> tuple[int, int]:
    """How many sets surely change a loss, and how many of them for the better: sign flips, corrected over heads and
    both directions together.

    Args:
        change: [set, text].
    """
    p = np.stack([paired_p(sign * change.T, np.zeros_like(change.T)) for sign in (1, -1)])
    below = benjamini_hochberg(p.ravel()).reshape(p.shape) < ALPHA
    return int(below.any(0).sum()), int(below[1].sum())


def _mean(values: NDArray[np.float64], sign: bool = False) -> str:
    found = mean_interval(values)
    return _spanned("{:+.1f}" if sign else "{:.1f}", float(found.value), float(found.low), float(found.high))


def _spanned(form: str, value: float, low: float, high: float) -> str:
    if np.isnan(value):
        return "not defined"
    said = f"{form.format(value)} [{form.format(low)}, {form.format(high)}]"
    return said.replace("-", "−")


def _plain(values: NDArray[np.float64]) -> NDArray[np.float64]:
    return values
