"""Reading tables for prose: a row asked for by its keys, and heads in words. Every chapter uses it."""

from collections.abc import Mapping
from typing import Any

import pandas as pd

from interp.results import Result
from reports import words
from reports.chapters import Cell, Rows

Row = Mapping[str, Any]
KEYS = ["site", "layer", "head"]


def records(table: pd.DataFrame) -> list[Row]:
    """The rows of a table as mappings from column to value."""
    return table.to_dict("records")  # pyright: ignore[reportReturnType]: columns are text


def first(table: pd.DataFrame) -> Row:
    """The first row of a table that has one."""
    return records(table.head(1))[0]


class Reading:
    """One result's tables; a table that the run does not have reads as an empty one."""

    def __init__(self, result: Result) -> None:
        self.result = result
        self.provenance = result.provenance
        self.model: Mapping[str, Any] = result.provenance.get("model") or {}
        self.config: Mapping[str, Any] = result.provenance.get("config") or {}

    def table(self, name: str, **where: Cell) -> pd.DataFrame:
        """The rows of a table in which every named column has the named value."""
        table = self.result.tables.get(name)
        if table is None:
            return pd.DataFrame()
        if not {*where} <= {*table.columns}:
            return table.head(0)
        for column, value in where.items():
            table = table.loc[table[column] == value]
        return table

    def measured(self, name: str, value: str, **where: Cell) -> pd.DataFrame:
        """The rows of a table, as `table` gives them, in which the column ``value`` is not missing."""
        rows = self.table(name, **where)
        return rows.dropna(subset=value) if len(rows) else rows

    def has(self, name: str) -> bool:
        """Whether the run has this table, with rows in it."""
        return not self.table(name).empty

    @property
    def heads(self) -> pd.DataFrame:
        """The table ``heads``."""
        return self.table("heads")

    @property
    def stacks(self) -> list[str]:
        """Names of the stacks of layers, in the table's order: [''] for a decoder-only model or an encoder."""
        sites = self.heads["site"].unique() if self.has("heads") else ("",)
        return list(dict.fromkeys(words.stack_name(str(site)) for site in sites))

    def stack(self, table: pd.DataFrame, stack: str) -> pd.DataFrame:
        """The rows of one stack."""
        return table.loc[[words.stack_name(str(site)) == stack for site in table["site"]]] if "site" in table else table

    @property
    def n_heads(self) -> int:
        """How many heads were scored."""
        return len(self.heads.drop_duplicates(KEYS)) if self.has("heads") else 0

    def name(self, row: Row) -> str:
        """A row's head: ``L18H6``; with the stack before it where the model has several."""
        stack = words.stack_name(str(row["site"])) if "site" in row and len(self.stacks) > 1 else ""
        return f"{stack} {words.head_name(row['layer'], row['head'])}".strip()

    def named(self, rows: pd.DataFrame, most: int = 5) -> str:
        """``L18H6 (0.90), L17H3 (0.78) and 3 more``: the heads of rows with their values, in the rows' order."""
        return words.some([f"{self.name(row)} ({words.number(row['value'])})" for row in records(rows)], most)

    def score(self, metric: str, data: str, head: Row) -> Row | None:
        """The row of ``heads`` that has one head's score; None where there is none or its value is missing."""
        where = {"site": str(head["site"]), "layer": int(head["layer"]), "head": int(head["head"])}
        rows = self.measured("heads", "value", metric=metric, data=data, **where)
        return None if rows.empty else first(rows)

    @property
    def model_name(self) -> str:
        """The model as the user named it."""
        return words.visible(str(self.model.get("name") or "the model"))

    @property
    def weights(self) -> str:
        """How the weights were stored: 'weights quantised as Q4_1', or ''."""
        quantisation = self.model.get("quantisation")
        return f"weights quantised as {words.visible(str(quantisation))}" if quantisation else ""

    @property
    def who(self) -> str:
        """How a methods paragraph begins: what was scored of which model, and with which version."""
        version = (self.provenance.get("versions") or {}).get("interp-attention")
        weights = f" ({self.weights})" if self.weights else ""
        return (
            f"We scored the {words.count(self.n_heads, 'attention head')} of {self.model_name}{weights} with "
            f"{f'interp {version}' if version else 'interp'}"
        )

    @property
    def numerics(self) -> str:
        """`` (in float32, seed 0)``: the run's dtype and seed; '' where neither is known."""
        known = [("in", self.provenance.get("dtype")), ("seed", self.provenance.get("seed"))]
        told = [f"{name} {words.visible(str(value))}" for name, value in known if value is not None]
        return f" ({', '.join(told)})" if told else ""

    def full_adds(self, what: str) -> str:
        """What ``--budget full`` would add to a run with the report's budget; '' for any other run."""
        return f"`--budget full` {what}." if self.config.get("budget") == "report" else ""


def head_rows(table: str, row: Row, **where: Cell) -> Rows:
    """A link to one head's rows of a table."""
    return Rows(table, {"layer": int(row["layer"]), "head": int(row["head"]), **where})


def because(note: object) -> str:
    """A note of a table as the end of a sentence; '' where there is none."""
    text = words.visible(note).strip() if isinstance(note, str) else ""
    return text.removeprefix("not applicable: ").rstrip(".")


def reasons(rows: pd.DataFrame, column: str = "reason") -> str:
    """Why, in the table's own words; where there are several reasons, the commonest first with how many rows each."""
    told = [because(reason) for reason in rows[column]]
    counts = pd.Series([reason for reason in told if reason], dtype=object).value_counts()
    if len(counts) == 1:
        return str(counts.index[0])
    return "; ".join(f"{n} × {reason}" for reason, n in counts.head(4).items())
