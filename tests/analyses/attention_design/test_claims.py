"""Verdicts are computed from numbers, and the tables hold what the claims do."""

import math

import numpy as np
import pytest
from scipy import stats

from analyses.attention_design.claims import Claim, Curve, Number, Panel, exponent, number, over_seeds, small, tables


def claim(*numbers: Number, panels: tuple[Panel, ...] = ()) -> Claim:
    return Claim("a-claim", "formula", "It is so.", "By a theorem.", "It was found.", numbers, panels)


RIGHT, WRONG = number("x", 1.0, 1.0, 0.1), number("x", 2.0, 1.0, 0.1)
SAID_WRONG = number("x", 2.0, 1.0, 0.1, source="said")


@pytest.mark.parametrize(
    ("numbers", "verdict"),
    [
        ((), "holds"),
        ((RIGHT,), "holds"),
        ((RIGHT, SAID_WRONG), "imprecise"),
        ((WRONG,), "fails"),
        ((WRONG, SAID_WRONG), "fails"),
        ((number("x", math.nan, 1.0, 0.1),), "fails"),
        ((number("x", 5.0),), "holds"),
    ],
)
def test_verdicts(numbers: tuple[Number, ...], verdict: str) -> None:
    assert claim(*numbers).verdict == verdict


@pytest.mark.parametrize(
    ("relation", "value", "low", "high", "agrees"),
    [
        ("at most", 1.0, math.nan, math.nan, True),
        ("at most", 1.0, 0.5, 1.5, False),  # the end that is harder for the claim decides
        ("at least", 1.2, 0.9, 1.5, False),
        ("at least", 1.2, 1.1, 1.5, True),
        ("at least", math.nan, math.nan, math.nan, False),
        ("equal", 1.0, math.nan, math.nan, True),
        ("equal", 1.0 + 1e-12, math.nan, math.nan, False),
        ("about", 1.05, math.nan, math.nan, True),
        ("about", 1.2, math.nan, math.nan, False),
        ("none", math.nan, math.nan, math.nan, True),
    ],
)
def test_relations(relation: str, value: float, low: float, high: float, agrees: bool) -> None:
    assert Number("x", value, low, high, 1.0, relation, 0.1).agrees is agrees  # type: ignore[arg-type]


def test_intervals_over_seeds_are_students() -> None:
    values = [1.0, 1.2, 0.9, 1.4, 1.1]
    found = over_seeds("x", values, "none", math.nan)
    half = stats.t.ppf(0.975, 4) * np.std(values, ddof=1) / math.sqrt(5)
    assert found.value == pytest.approx(np.mean(values))
    assert (found.low, found.high, found.n) == (pytest.approx(found.value - half), pytest.approx(found.value + half), 5)


def test_exponent_and_words() -> None:
    assert exponent([1, 2, 4, 8], [3, 12, 48, 192]) == pytest.approx(2)
    assert (small(8.3e-7), small(0), small(np.float64(2e10))) == ("8.3 × 10⁻⁷", "0", "2.0 × 10¹⁰")


def test_tables_hold_claims_numbers_and_points() -> None:
    panels = (Panel("T", "x", "y", (Curve("a", [1, 2], [3, 4], [2, 3], [4, 5]), Curve("b", [1], [1], theory=True))),)
    found = tables([claim(RIGHT, SAID_WRONG, panels=panels)])
    assert found["claims"].loc[0, "verdict"] == "imprecise"
    assert found["measurements"]["agrees"].tolist() == [True, False]
    assert found["panels"].loc[0, "kind"] == "lines"
    assert found["curves"][["curve", "x", "y", "low"]].fillna(-1).to_numpy().tolist() == [
        ["a", 1, 3, 2], ["a", 2, 4, 3], ["b", 1, 1, -1],
    ]  # fmt: skip
