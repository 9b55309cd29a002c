"""The heads that are called something, as the chapter's parts need them."""

import pandas as pd

from reports import glossary, words
from reports.chapters.reading import KEYS, Reading, Row, records


def called(reading: Reading, kind: str = "") -> pd.DataFrame:
    """Rows of ``kinds`` that are called, strongest first (of redundant heads, the least apart)."""
    rows = reading.table("kinds", called=True)
    if kind and len(rows):
        rows = rows.loc[rows["kind"] == kind]
    return rows.sort_values("value", ascending=kind == "redundant") if len(rows) else rows


def main_data(reading: Reading) -> str:
    """What the heads were called by: text, or the random tokens that take its place without a tokenizer."""
    heads = reading.heads
    return "text" if heads.empty or "text" in heads["data"].tolist() else "repeated"


def present(reading: Reading) -> list[str]:
    """The kinds that some head is called, the most telling first."""
    rows = called(reading)
    known = set(rows["kind"]) if len(rows) else set()
    return [kind for kind in glossary.KINDS if kind in known]


def n_called(rows: pd.DataFrame) -> int:
    """How many heads some rows speak of."""
    return len(rows.drop_duplicates(KEYS)) if len(rows) else 0


def head_kinds(reading: Reading, head: Row) -> list[Row]:
    """What one head is called, the most telling first."""
    rows = called(reading)
    if rows.empty:
        return []
    same = (rows["site"] == head["site"]) & (rows["layer"] == head["layer"]) & (rows["head"] == head["head"])
    order = list(glossary.KINDS)
    return sorted(records(rows.loc[same]), key=lambda row: order.index(row["kind"]) if row["kind"] in order else 99)


def kind_words(row: Row) -> str:
    """``positional head (offset −2)``: a kind with its detail."""
    name, detail = glossary.KINDS.get(str(row["kind"]), str(row["kind"])), words.visible(str(row.get("detail") or ""))
    if not detail:
        return name
    of = {"positional": "offset ", "redundant": "with "}.get(str(row["kind"]), "")
    return f"{name} ({of}{detail.replace('-', words.MINUS) if of == 'offset ' else detail})"
