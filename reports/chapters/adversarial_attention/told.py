"""Reading the classifiers' tables for prose: which classifier, its rows, numbers in words."""

import pandas as pd

from reports import words
from reports.chapters import Rows
from reports.chapters.reading import Reading, Row, first
from reports.figures.adversarial_attention import ENCODERS


def data_name(reading: Reading) -> str:
    """What the texts were, as the run's provenance says."""
    about = reading.provenance.get("data")
    return words.visible(str(about.get("what"))) if isinstance(about, dict) else "the texts"


def kind_name(row: Row) -> str:
    """``the BiLSTM with tanh attention``; its seed where there are several."""
    return f"the {ENCODERS.get(str(row['encoder']), row['encoder'])} with {row['attention']} attention"


def main_kind(reading: Reading) -> Row | None:
    """The classifier that findings speak of first: the most accurate one whose attention was tested."""
    tested = reading.table("classifiers", tested=True)
    return None if tested.empty else first(tested.sort_values("accuracy", ascending=False, kind="stable"))


def of_kind(reading: Reading, name: str, row: Row, **where: str | int | float | bool) -> pd.DataFrame:
    """The rows of a table about one classifier."""
    return reading.table(
        name, encoder=str(row["encoder"]), attention=str(row["attention"]), seed=int(row["seed"]), **where
    )


def last_search(reading: Reading, row: Row) -> Row | None:
    """The row of ``adversaries`` of all texts, at the last step, with the first ε; None where nothing was found."""
    rows = of_kind(reading, "adversaries", row, **{"class": "all"}).dropna(subset="value")
    if rows.empty:
        return None
    rows = rows.loc[rows["steps"] == max(rows["steps"])]
    return first(rows)


def whole_row(permuted: pd.DataFrame) -> Row | None:
    """The row of all weights together."""
    rows = permuted.loc[(permuted["max_attention_low"] == 0) & (permuted["max_attention_high"] == 1)]
    return None if rows.empty else first(rows)


def link(table: str, row: Row) -> Rows:
    """A link to one classifier's rows of a table."""
    return Rows(table, {"encoder": str(row["encoder"]), "attention": str(row["attention"]), "seed": int(row["seed"])})


def measured(row: Row) -> str:
    """A mean with its interval."""
    return words.measured(row["value"], row["ci_low"], row["ci_high"])


def percent(value: float) -> str:
    """A share in percent."""
    return "n/a" if pd.isna(value) else f"{100 * value:.0f} %"


def interval(row: Row) -> str:
    """An interval of shares."""
    return f"[{percent(row['ci_low'])}, {percent(row['ci_high'])}]"
