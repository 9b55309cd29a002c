"""A chapter as its tests read it: its sentences, its verdicts, the numbers it links to, a result with other tables."""

import re
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pandas as pd

from interp.results import Result
from reports.chapters import Chapter, Sentence

NUMBER = re.compile(r"(?<![\w.])[+−]?\d+(?:\.\d+)?(?![\w.]*\d)")
NO_RUN: Any = None  # for a chapter that reads nothing of other analyses


def with_tables(result: Result, **tables: pd.DataFrame | None) -> Result:
    """The result with some tables exchanged, or gone where None is given."""
    kept = {name: table for name, table in {**result.tables, **tables}.items() if table is not None}
    return replace(result, tables=kept)


def in_two_stacks(result: Result) -> Result:
    """The result as of an encoder–decoder whose stacks are alike."""
    tables = {}
    for name, table in result.tables.items():
        if "site" in table:
            both = [
                table.assign(site=[f"{stack}_blocks.{layer}.{kind}" for layer in table["layer"]])
                for stack, kind in (("encoder", "attn"), ("decoder", "self_attn"))
            ]
            tables[name] = pd.concat(both, ignore_index=True)
    return with_tables(result, **tables)


def sentences(made: Chapter) -> list[Sentence]:
    """All sentences that link to rows: the lead, and every finding's verdict and support."""
    said = [made.lead] if made.lead else []
    return [*said, *(s for finding in made.findings for s in (finding.verdict, *finding.support))]


def linked_numbers(sentence: Sentence, result: Result) -> Iterator[float]:
    """Every number in the rows that a sentence links to; AssertionError where a link finds none."""
    for rows in sentence.rows:
        table = result.tables[rows.table]
        for column, value in rows.where.items():
            table = table.loc[table[column] == value]
        assert len(table), (sentence, rows)
        yield from table.select_dtypes("number").to_numpy().ravel()


def numbers_said(sentence: Sentence) -> list[str]:
    """The numbers in a sentence, as they are written; names of heads are none."""
    return NUMBER.findall(re.sub(r"L\d+H\d+", "", sentence.text))


def check_sources_are_cited(made: Chapter) -> None:
    """Every author and year that a method names is among the references."""
    keys = " ".join(re.findall(r"@\w+\{(\w+),", "\n".join(made.references)))
    for method in made.methods:
        for author, year in re.findall(r"(\w+)[^;]*? (\d{4})", method.source):
            assert f"{author.lower()}{year}" in keys, (author, year)


def verdicts(made: Chapter) -> str:
    """The findings' verdicts, a line each."""
    return "\n".join(finding.verdict.text for finding in made.findings)
