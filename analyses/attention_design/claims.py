"""What an experiment gives: a claim, numbers measured for it beside what was predicted, curves, and the verdict.

A verdict is computed, never written down: a claim *holds* when every number agrees with theory and with what is
commonly said; it is *imprecise* when theory agrees and the common saying does not; it *fails* when a number disagrees
with theory.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

import numpy as np
import pandas as pd
from numpy.typing import ArrayLike

from interp.statistics import mean_interval

__all__ = [
    "Claim",
    "Curve",
    "Number",
    "Panel",
    "Relation",
    "at_most",
    "curve_over_seeds",
    "dots_over_seeds",
    "exponent",
    "number",
    "over_seeds",
    "small",
    "tables",
]

Relation = Literal["about", "at most", "at least", "equal", "none"]
Verdict = Literal["holds", "imprecise", "fails"]


@dataclass(frozen=True)
class Number:
    """A measured quantity beside what it should be.

    Attributes:
        quantity: what was measured, in words. ``unit``: of the value, "" for a pure number.
        value, low, high: the measurement and its 95 % interval (NaN where it is exact or a single measurement).
        expected: what theory predicts, or what is said; NaN where nothing is.
        relation: how the value should stand to it. "about" is within ``within`` of it, "equal" exactly; "at most" and
            "at least" ask it of the end of the interval where there is one.
        source: "theory" (its failure refutes the claim) or "said" (its failure shows the saying imprecise).
        n: measurements behind the value.
    """

    quantity: str
    value: float
    low: float = math.nan
    high: float = math.nan
    expected: float = math.nan
    relation: Relation = "none"
    within: float = 0.0
    source: Literal["theory", "said"] = "theory"
    unit: str = ""
    n: int = 1

    @property
    def agrees(self) -> bool:
        """Whether the measurement is as expected; True where nothing is. NaN never agrees with anything expected."""
        if self.relation == "none":
            return True
        if self.relation == "equal":
            return self.value == self.expected
        if self.relation == "about":
            return abs(self.value - self.expected) <= self.within
        if self.relation == "at most":
            return (self.value if math.isnan(self.high) else self.high) <= self.expected
        return (self.value if math.isnan(self.low) else self.low) >= self.expected


@dataclass(frozen=True)
class Curve:
    """A line of a panel: x and y, and an interval of y where there is one."""

    name: str
    x: ArrayLike
    y: ArrayLike
    low: ArrayLike | None = None
    high: ArrayLike | None = None
    theory: bool = False


@dataclass(frozen=True)
class Panel:
    """One set of axes: curves over x (lines, or points), or one dot with its interval for each named thing (dots).

    Attributes:
        reference: a horizontal line (a vertical one for dots) with its name; NaN for none.
        bands: what the curves' ``low`` and ``high`` are.
    """

    title: str
    x_label: str
    y_label: str
    curves: tuple[Curve, ...]
    x_scale: Literal["linear", "log"] = "linear"
    y_scale: Literal["linear", "log"] = "linear"
    kind: Literal["lines", "points", "dots"] = "lines"
    reference: float = math.nan
    reference_name: str = ""
    bands: str = "95 % intervals"


@dataclass(frozen=True)
class Claim:
    """A claim and what became of it.

    Attributes:
        name: its slug, unique among all. ``topic``: the section it belongs to.
        statement: the claim, in a sentence that someone new can read.
        theory: what theory predicts, with the reason.
        measured: what was found, in a sentence with its numbers.
        said: what is commonly said where that is more, or less, than the theory; "" where it is the same.
        not_shown: what the experiment leaves open.
    """

    name: str
    topic: str
    statement: str
    theory: str
    measured: str
    numbers: tuple[Number, ...]
    panels: tuple[Panel, ...] = ()
    said: str = ""
    not_shown: str = ""
    data: str = field(default="synthetic")

    @property
    def verdict(self) -> Verdict:
        """Computed from the numbers."""
        if not all(each.agrees for each in self.numbers if each.source == "theory"):
            return "fails"
        return "holds" if all(each.agrees for each in self.numbers) else "imprecise"


def number(quantity: str, value: float, expected: float = math.nan, within: float = math.nan, **more: Any) -> Number:
    """A number that should be about ``expected``; a record without expectation where none is given."""
    relation: Relation = "none" if math.isnan(expected) else "equal" if math.isnan(within) else "about"
    return Number(quantity, float(value), expected=float(expected), relation=relation, within=within, **more)


def at_most(quantity: str, value: float, bound: float, **more: Any) -> Number:
    """A number that theory bounds from above."""
    return Number(quantity, float(value), expected=float(bound), relation="at most", **more)


def over_seeds(quantity: str, values: ArrayLike, relation: Relation, expected: float, **more: Any) -> Number:
    """The mean over seeds with its 95 % interval (Student's t for few), and how it should stand to ``expected``."""
    found = mean_interval(np.asarray(values, dtype=np.float64))
    return Number(
        quantity,
        float(found.value),
        float(found.low),
        float(found.high),
        float(expected),
        relation,
        n=int(found.n),
        **more,
    )


def dots_over_seeds(title: str, axis: str, found: Mapping[str, ArrayLike], chance: float) -> Panel:
    """A panel with a dot for each way, its mean over seeds with its 95 % interval, and a line at chance."""
    means = {name: over_seeds("", values, "none", math.nan) for name, values in found.items()}
    curves = tuple(Curve(name, [n.value], [i], [n.low], [n.high]) for i, (name, n) in enumerate(means.items()))
    return Panel(title, axis, "", curves, kind="dots", reference=chance, reference_name="chance")


def curve_over_seeds(name: str, x: ArrayLike, values: ArrayLike) -> Curve:
    """A curve of means with their intervals; ``values`` is [seed, x]."""
    found = mean_interval(np.asarray(values, dtype=np.float64))
    return Curve(name, x, found.value, found.low, found.high)


def small(value: float | np.floating) -> str:
    """A number that may be tiny, as people write it: 8.3 × 10⁻⁷."""
    if value == 0 or 0.01 <= abs(value) < 1000:
        return f"{value:.2g}"
    mantissa, power = f"{value:.1e}".split("e")
    return f"{mantissa} × 10{str(int(power)).translate(_RAISED)}"


def exponent(x: ArrayLike, y: ArrayLike) -> float:
    """The slope of log y over log x: y ∝ x^slope."""
    return float(np.polyfit(np.log(np.asarray(x, float)), np.log(np.asarray(y, float)), 1)[0])


_RAISED = str.maketrans("-0123456789", "⁻⁰¹²³⁴⁵⁶⁷⁸⁹")


def tables(claims: Iterable[Claim]) -> dict[str, pd.DataFrame]:
    """The four tables of some claims: ``claims``, ``measurements``, ``panels``, ``curves``."""
    claims = list(claims)
    said = [
        {
            "claim": c.name,
            "topic": c.topic,
            "statement": c.statement,
            "theory": c.theory,
            "said": c.said,
            "measured": c.measured,
            "verdict": c.verdict,
            "not_shown": c.not_shown,
            "data": c.data,
        }
        for c in claims
    ]
    numbers = [
        {
            "claim": c.name,
            "quantity": n.quantity,
            "value": n.value,
            "ci_low": n.low,
            "ci_high": n.high,
            "relation": n.relation,
            "expected": n.expected,
            "within": n.within,
            "source": n.source,
            "agrees": n.agrees,
            "unit": n.unit,
            "n": n.n,
        }
        for c in claims
        for n in c.numbers
    ]
    panels = [
        {
            "claim": c.name,
            "panel": i,
            "title": p.title,
            "x_label": p.x_label,
            "y_label": p.y_label,
            "x_scale": p.x_scale,
            "y_scale": p.y_scale,
            "kind": p.kind,
            "reference": p.reference,
            "reference_name": p.reference_name,
            "bands": p.bands,
        }
        for c in claims
        for i, p in enumerate(c.panels)
    ]
    curves = [row for c in claims for i, p in enumerate(c.panels) for curve in p.curves for row in _points(c, i, curve)]
    return {
        "claims": pd.DataFrame(said, columns=pd.Index(_CLAIMS)),
        "measurements": pd.DataFrame(numbers, columns=pd.Index(_MEASUREMENTS)),
        "panels": pd.DataFrame(panels, columns=pd.Index(_PANELS)),
        "curves": pd.DataFrame(curves, columns=pd.Index(_CURVES)),
    }


_CLAIMS = ["claim", "topic", "statement", "theory", "said", "measured", "verdict", "not_shown", "data"]
_MEASUREMENTS = [
    "claim",
    "quantity",
    "value",
    "ci_low",
    "ci_high",
    "relation",
    "expected",
    "within",
    "source",
    "agrees",
    "unit",
    "n",
]
_PANELS = [
    "claim",
    "panel",
    "title",
    "x_label",
    "y_label",
    "x_scale",
    "y_scale",
    "kind",
    "reference",
    "reference_name",
    "bands",
]
_CURVES = ["claim", "panel", "curve", "theory", "x", "y", "low", "high"]


def _points(claim: Claim, panel: int, curve: Curve) -> list[dict[str, object]]:
    x, y = np.asarray(curve.x, float), np.asarray(curve.y, float)
    nothing = np.full(y.shape, np.nan)
    low = nothing if curve.low is None else np.asarray(curve.low, float)
    high = nothing if curve.high is None else np.asarray(curve.high, float)
    return [
        {
            "claim": claim.name,
            "panel": panel,
            "curve": curve.name,
            "theory": curve.theory,
            "x": a,
            "y": b,
            "low": c,
            "high": d,
        }
        for a, b, c, d in zip(x, y, low, high, strict=True)
    ]
