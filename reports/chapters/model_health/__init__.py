"""The chapter on a model's health: verdicts in words, figures, methods."""

import pandas as pd

from interp.results import Result, RunFolder
from reports import words
from reports.chapters import Chapter, Finding, Rows, Sentence, TableNote
from reports.chapters.model_health import methods, plates
from reports.chapters.reading import Reading, Row, records
from reports.figures import model_health as draw

TABLES = {
    "checks": TableNote("Every check: what was measured, its limits, verdict and advice; one row a check."),
    "heads": TableNote("What every head's softmax gives.", "-value", "metric=saturated_rows"),
    "depth": TableNote("Activations and gradients, layer by layer."),
    "cost": TableNote("What a forward pass and the cache cost at the context asked about."),
    "memory": TableNote("Memory by context."),
}
QUESTION = "What goes wrong silently in this model's attention?"
_NOT_SHOWN = "how much it matters for what the model is used for: a limit is a convention with a reason, no proof."
_LIMITS = {
    "leaks": "that nothing leaks on other inputs: three positions of four short sequences were changed.",
    "mode": "that training is right: only what depends on the mode was compared.",
    "order": "that the model uses order well, only that it could.",
    "softmax": "what a sharp head is good for: a previous-token head is sharp by right.",
    "gradients": "how the model would train: gradients are of random directions of its output, at these weights.",
    "numbers": "that longer or other inputs stay within a type's range.",
    "norms": "which norm is the better one, only that what is there stays within a position and a sequence.",
    "heads": "that no head could go: heads may be redundant together, or matter on other tokens.",
    "cost": "what a run takes on a machine: operations and bytes are counted, not measured there.",
}
_FAMILIES = {
    "leaks": "Leaks of later tokens, padding and other sequences",
    "mode": "Randomness and mode",
    "order": "Order",
    "softmax": "Scores and softmax",
    "gradients": "Gradients and activations by depth",
    "numbers": "Numbers and rows",
    "norms": "Norms",
    "heads": "Heads there twice or for nothing",
    "cost": "Cost",
}


def chapter(result: Result, run: RunFolder) -> Chapter:
    """The chapter of one finished result."""
    reading = Reading(result)
    return Chapter(
        title="Model health",
        place=60,
        question=QUESTION,
        lead=lead(reading) if reading.has("checks") else None,
        opening=plates.opening(reading),
        findings=findings(reading),
        plates=plates.plates(reading),
        tables=TABLES,
        methods=methods.METHODS,
        paragraph=methods.paragraph(reading),
        references=methods.REFERENCES,
        full=reading.full_adds("takes the statistics of attention on four times as many sequences"),
    )


def lead(reading: Reading) -> Sentence:
    """What was checked, and how many checks have which verdict."""
    checks = reading.table("checks")
    made = checks.loc[checks["verdict"] != "not applicable"]
    bad = {verdict: checks.loc[checks["verdict"] == verdict] for verdict in ("fail", "warn")}
    told = [
        f"{words.few(len(rows), 'check')} {_verb(verdict, len(rows))}" for verdict, rows in bad.items() if len(rows)
    ]
    result = f"{words.join(told)}: {words.some([_named(row) for row in records(_worst(checks))])}" if told else (
        "none warns or fails"
    )  # fmt: skip
    rest = len(checks) - len(made)
    aside = f"; {words.number_word(rest)} {'does' if rest == 1 else 'do'} not apply" if rest else ""
    return Sentence(
        f"Of {words.count(len(made), 'check')} of {reading.model_name}, {result}{aside}.", (Rows("checks"),)
    )


def findings(reading: Reading) -> tuple[Finding, ...]:
    """One finding for each check that warns or fails, then what each family of the others found."""
    if not reading.has("checks"):
        return ()
    checks = reading.table("checks")
    bad = [_alarm(row) for row in records(_worst(checks))]
    families = [
        _family(family, rows)
        for family, rows in checks.loc[checks["verdict"].isin(["ok", "not applicable"])].groupby("family", sort=False)
    ]
    return (*bad, *families)


def _alarm(row: Row) -> Finding:
    where = f" at {words.visible(row['site'])}" if row["site"] else ""
    head = "" if pd.isna(row["head"]) else f", {_head(row)}"
    verdict = f"{words.sentence_case(_named(row))} {_verb(str(row['verdict']), 1)}{where}{head}."
    value = "no number" if pd.isna(row["value"]) else draw.measured(row)
    support = (
        Sentence(f"{row['question']} Measured: {value} ({row['unit']}), {plates.limits(row)}."),
        Sentence(f"{words.sentence_case(str(row['note']))}.") if row["note"] else None,
        Sentence(str(row["advice"])) if row["advice"] else None,
    )
    link = (Rows("checks", {"check": str(row["check"])}),)
    return Finding(Sentence(verdict, link), tuple(each for each in support if each), _NOT_SHOWN)


def _family(family: object, rows: pd.DataFrame) -> Finding:
    fine, not_made = rows.loc[rows["verdict"] == "ok"], rows.loc[rows["verdict"] == "not applicable"]
    name = _FAMILIES.get(str(family), str(family))
    verdict = (
        f"{name}: {words.few(len(fine), 'check')} {words.agree(len(fine), 'is', 'are')} well."
        if len(fine)
        else f"{name}: nothing to measure."
    )
    values = words.join([f"{_named(row)} {draw.measured(row)}" for row in records(fine)])
    told = [f"{words.sentence_case(values)}."] if values else []
    told += [f"{words.sentence_case(_named(row))} does not apply: {row['note']}." for row in records(not_made)]
    link = (Rows("checks", {"family": str(family)}),)
    return Finding(Sentence(verdict, link), tuple(map(Sentence, told)), _LIMITS.get(str(family), _NOT_SHOWN))


def _worst(checks: pd.DataFrame) -> pd.DataFrame:
    """The rows that warn or fail, failures first."""
    bad = checks.loc[checks["verdict"].isin(["fail", "warn"])]
    return bad.sort_values("verdict", kind="stable")  # fail before warn


def _named(row: Row) -> str:
    return str(row["check"]).replace("_", " ")


def _head(row: Row) -> str:
    return words.head_name(row["layer"], row["head"])


def _verb(verdict: str, n: int) -> str:
    return verdict + ("s" if n == 1 else "")
