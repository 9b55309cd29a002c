"""Tables inside the page: compact enough for 5,120 heads with many scores each, and for a browser without a server.

A table is a JSON array of columns, numbers with six significant digits and text as levels and codes, compressed with
zlib and written as base64. Base64 has no ``<``, so no token or model name can end the script element it is in.
"""

import base64
import json
import math
import zlib
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd

from reports.chapters import TableNote
from reports.columns import COLUMNS

ROOM = 6_500_000  # characters of base64 in one page; what does not fit stays in its Parquet file
DIGITS = 6


@dataclass(frozen=True)
class Embedded:
    """A table as the page holds it.

    Attributes:
        id: ``analysis/table``.
        name: of the table.
        note: what it holds and how it is first sorted.
        rows: how many.
        columns: each with ``name``, ``kind`` (``number``, ``text`` or ``yes``), ``help``, and whether it is of whole
            numbers (``whole``).
        view: how the card of a head shows its rows.
        blob: the content; '' where there was no room.
    """

    id: str
    name: str
    note: TableNote
    rows: int
    columns: list[dict[str, str | bool]]
    view: str
    blob: str

    @property
    def about(self) -> dict[str, object]:
        """What the page's script has to know."""
        return {"id": self.id, "name": self.name, "rows": self.rows, "columns": self.columns, "view": self.view,
                "sort": self.note.sort, "filter": self.note.filter, "here": bool(self.blob)}  # fmt: skip


def embed(
    analysis: str, tables: Mapping[str, pd.DataFrame], notes: Mapping[str, TableNote], room: int
) -> list[Embedded]:
    """All tables of a result, in the order of their notes; the smallest are let in first until ``room`` is used.

    A table without rows is left out unless there is a note for it: it then has something to say by being empty.
    """
    others = (name for name in tables if name not in notes and len(tables[name]))
    order = [*(name for name in notes if name in tables), *others]
    blobs = {name: encode(tables[name]) for name in order}
    inside: set[str] = set()
    for name in sorted(order, key=lambda name: len(blobs[name])):
        if room >= len(blobs[name]):
            room -= len(blobs[name])
            inside.add(name)
    return [
        Embedded(
            f"{analysis}/{name}", name, notes.get(name, TableNote("")), len(tables[name]),
            _columns(analysis, tables[name]), _view(set(tables[name].columns)), blobs[name] if name in inside else "",
        )
        for name in order
    ]  # fmt: skip


def encode(table: pd.DataFrame) -> str:
    """A table as base64 text of compressed JSON."""
    columns = [_column(table[name]) for name in table.columns]
    text = json.dumps(columns, ensure_ascii=True, allow_nan=False, separators=(",", ":"))
    return base64.b64encode(zlib.compress(text.encode(), 9)).decode()


def decode(blob: str) -> list[list]:
    """The columns of an encoded table, as the page's script reads them."""
    columns = json.loads(zlib.decompress(base64.b64decode(blob)))
    return [
        [column["levels"][code] if code is not None else None for code in column["codes"]]
        if isinstance(column, dict)
        else column
        for column in columns
    ]


def _kind(column: Any) -> str:
    if pd.api.types.is_bool_dtype(column):
        return "yes"
    return "number" if pd.api.types.is_numeric_dtype(column) else "text"


def _column(column: Any) -> list | dict[str, list]:
    kind = _kind(column)
    if kind == "yes":
        return [None if pd.isna(value) else int(value) for value in column]
    if kind == "number":
        return [_number(value) for value in column.to_numpy(dtype=float, na_value=np.nan)]
    codes, levels = pd.factorize(column.astype("string"))
    return {"levels": [str(level) for level in levels], "codes": [None if code < 0 else int(code) for code in codes]}


def _number(value: float) -> int | float | str | None:
    if math.isnan(value):
        return None
    if math.isinf(value):
        return "∞" if value > 0 else "−∞"
    if value.is_integer() and abs(value) < 1e15:
        return int(value)
    return float(f"{value:.{DIGITS}g}")


def _columns(analysis: str, table: pd.DataFrame) -> list[dict[str, str | bool]]:
    return [
        {
            "name": str(name),
            "kind": _kind(table[name]),
            "help": COLUMNS.get(f"{analysis}:{name}", COLUMNS.get(str(name), "")),
            "whole": _whole(pd.Series(table[name])),
        }
        for name in table.columns
    ]


def _whole(column: pd.Series) -> bool:
    """Whether a column is one of whole numbers, which are written without decimals: by its type, or large counts."""
    if pd.api.types.is_integer_dtype(column):
        return True
    values = column.dropna() if pd.api.types.is_float_dtype(column) else column.iloc[:0]
    return bool(len(values) and (values % 1 == 0).all() and values.abs().max() >= 1000)


def _view(columns: set[str]) -> str:
    """How a head's card shows a table, from its columns."""
    for view, needed in (
        ("pattern", {"layer", "head", "query", "key", "weight"}),
        ("tokens", {"data", "sequence", "position", "text"}),
        ("edges", {"source_layer", "source_head", "target_layer", "target_head"}),
        ("steps", {"layer", "head", "step"}),  # of checkpoints, which a card of the model's head does not show
        ("line", {"layer", "head", "period", "value"}),
        ("distances", {"layer", "head", "low", "high", "mass"}),
        ("offsets", {"layer", "head", "offset", "share", "mass"}),
        ("relations", {"layer", "head", "relation", "accuracy", "baseline"}),
        ("pairs", {"layer_a", "head_a", "layer_b", "head_b", "jsd"}),
        ("kinds", {"layer", "head", "kind", "called"}),
        ("scores", {"layer", "head", "metric", "value"}),
        ("rows", {"layer", "head"}),
        ("sets", {"heads"}),
    ):
        if needed <= columns:
            return view
    return ""
