"""What a check is: a question, a measured value, limits, a verdict, advice; and the table of them."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import pandas as pd

__all__ = ["VERDICTS", "Check", "Row", "overall", "table"]

Verdict = Literal["ok", "warn", "fail", "not applicable"]
VERDICTS: tuple[Verdict, ...] = ("fail", "warn", "ok", "not applicable")
"""The worst first."""

Place = tuple[str, int | None, int | None]
"""Site (or path of a module), layer, head; "" and None where a check is about the whole model."""


@dataclass(frozen=True)
class Row:
    """One row of the table ``checks``."""

    family: str
    check: str
    question: str
    site: str
    layer: int | None
    head: int | None
    value: float
    unit: str
    warn_at: float
    fail_at: float
    worse: str
    verdict: Verdict
    advice: str
    note: str


@dataclass(frozen=True)
class Check:
    """A question asked of a model, and what is made of the answer.

    Attributes:
        name: in words joined by underscores. ``family``: what it belongs to.
        question: what is asked, as a sentence.
        unit: of the value.
        advice: what to do when the verdict is warn or fail.
        warn_at, fail_at: limits beyond which the verdict is such; None: no such verdict.
        worse: on which side of the limits trouble lies.
    """

    name: str
    family: str
    question: str
    unit: str
    advice: str
    warn_at: float | None = None
    fail_at: float | None = None
    worse: Literal["above", "below"] = "above"

    def judge(
        self,
        value: float,
        place: Place = ("", None, None),
        note: str = "",
        *,
        warn_at: float | None = None,
        fail_at: float | None = None,
    ) -> Row:
        """The row for a measured value; limits given here go before the check's own. A value of NaN fails."""
        warn_at = self.warn_at if warn_at is None else warn_at
        fail_at = self.fail_at if fail_at is None else fail_at
        verdict: Verdict = "ok"
        if self._beyond(value, warn_at):
            verdict = "warn"
        if self._beyond(value, fail_at) or math.isnan(value):
            verdict = "fail"
        return self._row(value, place, verdict, note, warn_at, fail_at)

    def not_applicable(self, reason: str, value: float = math.nan) -> Row:
        """The row of a check that says nothing about this model, and why."""
        return self._row(value, ("", None, None), "not applicable", reason, None, None)

    def _beyond(self, value: float, limit: float | None) -> bool:
        if limit is None:
            return False
        return value > limit if self.worse == "above" else value < limit

    def _row(
        self, value: float, place: Place, verdict: Verdict, note: str, warn_at: float | None, fail_at: float | None
    ) -> Row:
        limits = [math.nan if limit is None else float(limit) for limit in (warn_at, fail_at)]
        advice = self.advice if verdict in ("warn", "fail") else ""
        return Row(
            self.family, self.name, self.question, *place, float(value), self.unit, *limits, self.worse, verdict,
            advice, note,
        )  # fmt: skip


def table(rows: Sequence[Row]) -> pd.DataFrame:
    """The table ``checks``, in the order in which checks were made. Infinite values are the largest float."""
    frame = pd.DataFrame([vars(row) for row in rows])
    for column in ("layer", "head"):
        frame[column] = frame[column].astype("Int64")
    largest = 1.7976931348623157e308  # a saved value is a finite number or NaN
    frame["value"] = frame["value"].clip(-largest, largest)
    return frame


def overall(checks: pd.DataFrame) -> Verdict:
    """The worst verdict of a table ``checks``: ok where nothing is worse than ok."""
    found = set(checks["verdict"])
    return next((verdict for verdict in VERDICTS[:2] if verdict in found), "ok")
