"""Labelled texts from tables (.csv, .tsv, .jsonl, the hub), treebank folders and bAbI files."""

import csv
import io
import re
import warnings
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

import pandas as pd

from interp.data.documents import json_row, near_names, utf8_lines
from interp.data.labelled import SPLIT_NAMES, LabelledText, LabelledTexts, Split, check_column, from_rows, labelled
from interp.data.word_index import words_of
from interp.errors import UserError

TABLES = (".csv", ".tsv", ".jsonl", ".ndjson")
_HUB = "hub:"
_SPLIT_COLUMNS = ("split", "exp_split")
_BABI_LINE = re.compile(r"\d+ ")
_BABI_BREAK = r"[\t|]"  # between question, answer and supporting facts: a tab, in some copies a bar
_TREE_LABEL, _LEAF = re.compile(r"^\((\d)"), re.compile(r" ([^()\s]+)\)")


@dataclass(frozen=True)
class Columns:
    """Which columns of a table hold what; None: there is none (for a split: split or exp_split, if there is one)."""

    text: str = "text"
    label: str = "label"
    question: str | None = None
    split: str | None = None


def read_labelled(
    source: str | Path,
    columns: Columns | None = None,
    *,
    shortest: int = 1,
    longest: int | None = None,
    seed: int = 0,
) -> LabelledTexts:
    """Labelled texts, whatever they are kept in.

    Args:
        source: one of

            - a ``.csv``, ``.tsv`` or ``.jsonl`` file in UTF-8, with a column that says the split or without;
            - a folder with such files named train, dev (valid, validation) and test, or with one such file;
            - a folder with ``train.txt``, ``dev.txt``, ``test.txt`` of trees as the Stanford Sentiment Treebank has
              them: labels 0 and 1 are negative, 3 and 4 positive, and neutral ones are left out;
            - a bAbI file ``…_train.txt``, with the ``…_test.txt`` beside it;
            - ``hub:NAME`` or ``hub:OWNER/NAME/CONFIGURATION``, a data set of the Hugging Face hub.
        columns: of tables.
        shortest, longest, seed: see `labelled`.

    Raises:
        UserError: there is no such file, column or data set; not UTF-8; lines that are no rows; see also `labelled`.
    """
    columns = columns or Columns()
    if str(source).startswith(_HUB):
        name, texts = str(source), _hub(str(source), columns)
    else:
        path = Path(source)
        name = path.name
        if path.is_dir():
            texts = _folder(path, columns)
        elif not path.is_file():
            beside = [entry.name for entry in path.parent.iterdir()] if path.parent.is_dir() else []
            raise UserError(f"there is no file or folder {str(path)!r}{near_names(path.name, beside)}")
        else:
            texts = _file(path, columns)
    return labelled(name, texts, shortest=shortest, longest=longest, seed=seed)


def _file(path: Path, columns: Columns, split: Split | None = None) -> list[LabelledText]:
    kind = path.suffix.lower()
    if kind in TABLES:
        return _table(path, columns, split)
    if kind == ".txt" and (first := next(iter(utf8_lines(path)), "")):
        if _BABI_LINE.match(first):
            return _babi_pair(path)
        if _TREE_LABEL.match(first):
            return _trees(path, split)
    raise UserError(
        f"labelled texts are read from {', '.join(TABLES)} files, folders of them, treebank or bAbI .txt files, "
        f"or {_HUB}NAME; got {str(path)!r}"
    )


def _folder(folder: Path, columns: Columns) -> list[LabelledText]:
    files = sorted(entry for entry in folder.iterdir() if entry.suffix.lower() in (*TABLES, ".txt"))
    named = [file for file in files if file.stem.lower() in SPLIT_NAMES]
    if named:
        return [text for file in named for text in _file(file, columns, SPLIT_NAMES[file.stem.lower()])]
    tables = [file for file in files if file.suffix.lower() in TABLES]
    if len(tables) == 1:
        return _file(tables[0], columns)
    found = ", ".join(file.name for file in files[:8]) or "none"
    raise UserError(
        f"the folder {str(folder)!r} must hold files named train, dev and test ({', '.join((*TABLES, '.txt'))}), or "
        f"one table; got {found}: name the file itself"
    )


def _table(path: Path, columns: Columns, split: Split | None) -> list[LabelledText]:
    if path.suffix.lower() in (".jsonl", ".ndjson"):
        rows: Iterable[dict[str, Any]] = list(_json_rows(path))
        names = list(dict.fromkeys(name for row in rows for name in row))
    else:
        table = _separated(path)
        rows = table.to_dict("records")  # pyright: ignore[reportAssignmentType]: text
        names = [str(name) for name in table.columns]
    return _of_rows(rows, names, columns, split, str(path))


def _of_rows(
    rows: Iterable[dict[str, Any]], names: Sequence[str], columns: Columns, split: Split | None, where: str
) -> list[LabelledText]:
    for name in (columns.text, columns.label, columns.question, columns.split):
        if name is not None:
            check_column(name, names, where)
    said = columns.split or next((name for name in _SPLIT_COLUMNS if name in names and split is None), None)
    made = (
        (
            _told(row.get(columns.text)),
            _told(row.get(columns.label)),
            None if columns.question is None else _told(row.get(columns.question)),
            split if said is None else _told(row.get(said)),
        )
        for row in rows
    )
    return from_rows(made, f"{where}: the column {said!r}")


def _told(value: Any) -> str:
    return "" if value is None or value != value else str(value)


def _separated(path: Path) -> pd.DataFrame:
    text = "".join(utf8_lines(path))
    is_tab = path.suffix.lower() == ".tsv"
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("error", pd.errors.ParserWarning)  # rows longer than the header
            return pd.read_csv(
                io.StringIO(text), sep="\t" if is_tab else ",", dtype=str, na_filter=False,
                quoting=csv.QUOTE_NONE if is_tab else csv.QUOTE_MINIMAL,
                index_col=False,  # else fields beyond the header would shift all columns
            )  # fmt: skip
    except (pd.errors.ParserError, pd.errors.ParserWarning, pd.errors.EmptyDataError) as error:
        raise UserError(f"{path} is no table with {'tabs' if is_tab else 'commas'} between columns: {error}") from error


def _json_rows(path: Path) -> Iterator[dict[str, Any]]:
    for number, line in enumerate("".join(utf8_lines(path)).split("\n"), 1):
        if line.strip():
            yield json_row(line, f"{path}, line {number}")


def _trees(path: Path, split: Split | None) -> list[LabelledText]:
    """Sentences of a treebank file; neutral ones are none."""
    made = []
    for number, line in enumerate(utf8_lines(path), 1):
        if not line.strip():
            continue
        if (label := _TREE_LABEL.match(line)) is None or line.count("(") != line.count(")"):
            raise UserError(f"{path}, line {number} must be a tree such as (3 (2 a) (4 (2 good) (2 film)))")
        if label[1] != "2":
            told = "negative" if label[1] in "01" else "positive"
            made.append(LabelledText(words_of(" ".join(_LEAF.findall(line))), told, split))
    return made


def _babi_pair(path: Path) -> list[LabelledText]:
    """A bAbI file, and its partner of the other split where it lies beside it."""
    other = {"_train": "_test", "_test": "_train"}
    for ending, partner in other.items():
        if path.stem.endswith(ending):
            beside = path.with_name(f"{path.stem.removesuffix(ending)}{partner}{path.suffix}")
            files = [path, beside] if beside.is_file() else [path]
            return [text for file in files for text in _babi(file, SPLIT_NAMES[file.stem.rpartition("_")[2]])]
    return _babi(path, None)


def _babi(path: Path, split: Split | None) -> list[LabelledText]:
    """Facts so far and a question, for every question of a bAbI file; each fact ends in a full stop of its own."""
    made: list[LabelledText] = []
    facts: dict[int, tuple[str, ...]] = {}
    for number, line in enumerate(utf8_lines(path), 1):
        head, _, rest = line.strip().partition(" ")
        if not head:
            continue
        if not head.isdigit():
            raise UserError(f"{path}, line {number} must begin with its number in the story; got {line[:40]!r}")
        if int(head) == 1:
            facts = {}
        parts = [part.strip() for part in re.split(_BABI_BREAK, rest)]
        if len(parts) == 1:
            facts[int(head)] = (*words_of(rest), ".")
            continue
        supports = parts[2].split() if len(parts) > 2 else []
        if not all(support.isdigit() and int(support) in facts for support in supports):
            raise UserError(f"{path}, line {number}: the supporting facts {parts[2]!r} are no lines of this story")
        made.append(of_facts(list(facts.values()), words_of(parts[0]), parts[1].lower(), split,
                             [list(facts).index(int(support)) for support in supports]))  # fmt: skip
    return made


def of_facts(
    facts: Sequence[Sequence[str]], question: Sequence[str], answer: str, split: Split | None, supporting: Sequence[int]
) -> LabelledText:
    """Facts as one text that remembers where each begins and ends."""
    ends = [0]
    for fact in facts:
        ends.append(ends[-1] + len(fact))
    words = tuple(word for fact in facts for word in fact)
    spans = tuple(pairwise(ends))
    return LabelledText(words, answer, split, tuple(question), spans, tuple(supporting))


def _hub(name: str, columns: Columns) -> list[LabelledText]:
    try:
        from datasets import ClassLabel, load_dataset
    except ImportError as error:
        raise UserError(
            f"{name} needs the package datasets: pip install 'interp-attention[text]', or give a file"
        ) from error
    dataset, configuration = name.removeprefix(_HUB), None
    if dataset.count("/") == 2 and not Path(dataset).exists():
        dataset, _, configuration = dataset.rpartition("/")
    try:
        splits = load_dataset(dataset, configuration)
    except (OSError, ValueError) as error:  # not found, gated, offline; an unknown configuration
        raise UserError(f"{name} cannot be read: {' '.join(str(error).split())}") from error
    made: list[LabelledText] = []
    for split, rows in splits.items():
        if str(split) not in SPLIT_NAMES:
            continue
        feature = rows.features.get(columns.label)
        given: list[dict[str, Any]] = [dict(row) for row in rows]
        if isinstance(feature, ClassLabel):  # −1 is what the hub writes for a label that is kept secret
            for row in given:
                row[columns.label] = feature.int2str(row[columns.label]) if row[columns.label] != -1 else ""
        made += _of_rows(given, list(rows.features), columns, SPLIT_NAMES[str(split)], f"{name}, split {split}")
    return made
