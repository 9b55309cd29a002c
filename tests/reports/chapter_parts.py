"""A chapter as its tests read it: its sentences, its verdicts, and a result with other tables."""

from dataclasses import replace

import pandas as pd

from interp.results import Result
from reports.chapters import Chapter, Sentence


def with_tables(result: Result, **tables: pd.DataFrame | None) -> Result:
    """The result with some tables exchanged, or gone where None is given."""
    kept = {name: table for name, table in {**result.tables, **tables}.items() if table is not None}
    return replace(result, tables=kept)


def sentences(made: Chapter) -> list[Sentence]:
    """All sentences that link to rows: the lead, and every finding's verdict and support."""
    said = [made.lead] if made.lead else []
    return [*said, *(s for finding in made.findings for s in (finding.verdict, *finding.support))]


def verdicts(made: Chapter) -> str:
    """The findings' verdicts, a line each."""
    return "\n".join(finding.verdict.text for finding in made.findings)
