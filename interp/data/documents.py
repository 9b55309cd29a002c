"""Documents from files, from the hub, or the sample text; read as streams."""

import codecs
import difflib
import json
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from interp.errors import UserError

#: The name of the text that comes with the project.
SAMPLE = "sample"

_SAMPLE_FILE = Path(__file__).parent / "sample_text.txt"
_LONE_SURROGATE = re.compile("[\ud800-\udfff]")
_HUB = "hub:"
_KINDS = (".txt", ".jsonl", ".ndjson", ".npy")
_PIECE = 2**18  # characters: a longer document is handed out in pieces, so that memory stays bounded


@dataclass(frozen=True, eq=False)
class Document:
    """A text, or the token ids of one; one piece of it where it is long.

    Attributes:
        name: its file and place in it. Pieces of one document share it.
        source: where it was read from.
        text: its text; None where it is given as tokens.
        tokens: its token ids [position]; None where it is given as text.
        is_continued: it is a later piece of the document before it.
    """

    name: str
    source: str
    text: str | None = None
    tokens: NDArray[np.integer] | None = None
    is_continued: bool = False


def read_documents(source: str | Path = SAMPLE, column: str = "text") -> Iterator[Document]:
    """Documents one after the other; nothing is read before they are asked for.

    Args:
        source: one of

            - ``sample``, the text that comes with the project;
            - a ``.txt`` file in UTF-8: documents are separated by two or more empty lines;
            - a ``.jsonl`` (``.ndjson``) file: each line an object, one document each;
            - a ``.npy`` file of token ids: a row is a document (2-D), or all is one (1-D);
            - ``hub:NAME[:SPLIT[:COLUMN]]``, a data set of the Hugging Face hub (``hub:OWNER/NAME/CONFIGURATION`` where
              it has several), split ``train`` unless given.
        column: the text's, of .jsonl files and of data sets that name none.

    A document of more than 2¹⁸ characters is handed out in pieces, cut at line ends where there are any.

    Raises:
        UserError: no such file, data set or column; not UTF-8, not JSON, no token ids; no text at all.
    """
    name = str(source)
    if name == SAMPLE:
        documents = _txt(_SAMPLE_FILE, "the sample text")
    elif name.startswith(_HUB):
        documents = _hub(name, column)
    else:
        documents = _file(Path(source), column)
    is_empty = True
    for document in documents:
        is_empty = False
        yield document
    if is_empty:
        raise UserError(f"{name} holds no text: give one that does")


def _file(path: Path, column: str) -> Iterator[Document]:
    kind = path.suffix.lower()
    if kind not in _KINDS:
        raise UserError(
            f"text is read from {', '.join(_KINDS)} files, {_HUB}NAME or {SAMPLE!r}; got {str(path)!r}"
            + (", a folder" if path.is_dir() else "")
        )
    if not path.is_file():
        beside = [entry.name for entry in path.parent.iterdir()] if path.parent.is_dir() else []
        raise UserError(f"there is no file {str(path)!r}{near_names(path.name, beside)}")
    try:
        if kind == ".txt":
            yield from _txt(path, path.name)
        elif kind == ".npy":
            yield from _npy(path)
        else:
            yield from _jsonl(path, column)
    except OSError as error:
        raise UserError(f"{path} cannot be read: {error.strerror or error}") from error


def _txt(path: Path, source: str) -> Iterator[Document]:
    held: list[str] = []
    number, piece, size, empty = 0, 0, 0, 2  # a file begins as if empty lines went before
    begins_line = True  # what is read may be the rest of a very long line
    for line in utf8_lines(path):
        is_empty = begins_line and not line.strip()
        begins_line = line.endswith("\n")
        if is_empty:
            empty += 1
            continue
        if held and (empty >= 2 or size >= _PIECE):
            yield Document(f"{path.name}#{number}", source, "".join(held).rstrip("\n"), is_continued=piece > 0)
            held, size, piece = [], 0, piece + 1
        if empty >= 2:
            number, piece, empty = number + 1, 0, 0
        held += ["\n"] * empty + [line]
        size, empty = size + len(line), 0
    if held:
        yield Document(f"{path.name}#{number}", source, "".join(held).rstrip("\n"), is_continued=piece > 0)


def utf8_lines(path: Path) -> Iterator[str]:
    """Lines of a UTF-8 file with their ends; very long ones in parts."""
    decoder = codecs.getincrementaldecoder("utf-8-sig")()
    number = 1
    with path.open("rb") as file:
        for raw in iter(lambda: file.readline(_PIECE), b""):
            try:
                line = decoder.decode(raw)
            except UnicodeDecodeError as error:
                raise UserError(
                    f"{path} must be UTF-8; line {number} holds the byte 0x{error.object[error.start]:02x}, which is "
                    f"not: convert it (iconv -f latin1 -t utf-8 {path.name})"
                ) from error
            yield line.replace("\r\n", "\n")
            number += raw.endswith(b"\n")
    if decoder.getstate()[0]:
        raise UserError(f"{path} must be UTF-8; it ends within a character: it may be truncated")


def _jsonl(path: Path, column: str) -> Iterator[Document]:
    with path.open("rb") as file:
        for number, raw in enumerate(file, 1):
            if not raw.strip():
                continue
            where = f"{path}, line {number}"
            try:
                line = raw.decode("utf-8-sig")
            except UnicodeDecodeError as error:
                raise UserError(f"{where} is not UTF-8 ({error.reason}): convert the file") from error
            yield from _of_row(json_row(line, where), column, where, f"{path.name}#{number}", path.name)


def json_row(line: str, where: str) -> dict[str, Any]:
    """A line of JSON as a row.

    Raises:
        UserError: it is no JSON object, or holds half of a character (a lone surrogate), which no file can hold.
    """
    try:
        row = json.loads(line)
    except (ValueError, RecursionError) as error:  # also numbers with thousands of digits
        raise UserError(f"{where} is no JSON object ({getattr(error, 'msg', error)}): each line must be one") from error
    if not isinstance(row, dict):
        raise UserError(f"{where} must be a JSON object; got {type(row).__name__}")
    if "\\u" in line and _LONE_SURROGATE.search(json.dumps(row, ensure_ascii=False)):
        raise UserError(f"{where} holds half of a surrogate pair (\\ud800 to \\udfff), which is no character: mend it")
    return row


def _of_row(row: dict[str, Any], column: str, where: str, name: str, source: str) -> Iterator[Document]:
    if column not in row:
        raise UserError(
            f"{where} has no column {column!r}{near_names(column, row)}; it has: {', '.join(map(str, row))}"
        )
    if not isinstance(row[column], str):
        raise UserError(f"{where}: the column {column!r} must hold text; got {type(row[column]).__name__}")
    text = row[column].replace("\r\n", "\n")
    if text.strip():
        for start in range(0, len(text), _PIECE):
            yield Document(name, source, text[start : start + _PIECE], is_continued=start > 0)


def _npy(path: Path) -> Iterator[Document]:
    try:
        ids = np.load(path, mmap_mode="r", allow_pickle=False)
    except (ValueError, EOFError) as error:
        # numpy takes whatever lacks its header for a pickle, and advises to load it unsafely
        why = "it has no header of NumPy's, or holds objects" if "allow_pickle" in str(error) else str(error)
        raise UserError(f"{path} is no array of token ids, or damaged: {why}") from error
    if not np.issubdtype(ids.dtype, np.integer) or ids.ndim not in (1, 2):
        raise UserError(
            f"{path} must hold whole numbers, [position] or [document, position]; got {ids.dtype} {list(ids.shape)}"
        )
    for number, row in enumerate(ids if ids.ndim == 2 else [ids], 1):
        for start in range(0, len(row), _PIECE):
            piece = row[start : start + _PIECE]
            yield Document(f"{path.name}#{number}", path.name, tokens=piece, is_continued=start > 0)


def _hub(name: str, column: str) -> Iterator[Document]:
    dataset, _, rest = name.removeprefix(_HUB).partition(":")
    split, _, named_column = rest.partition(":")
    column = named_column or column
    try:
        from datasets import load_dataset
    except ImportError as error:
        raise UserError(
            f"{name} needs the package datasets: pip install 'interp-attention[text]', or give a file"
        ) from error
    configuration = None
    if dataset.count("/") == 2 and not Path(dataset).exists():
        dataset, _, configuration = dataset.rpartition("/")
    try:
        rows = load_dataset(dataset, configuration, split=split or "train", streaming=True)
        for number, row in enumerate(rows):
            yield from _of_row(dict(row), column, f"{name}, row {number}", f"{dataset}#{number}", name)
    except (OSError, ValueError) as error:  # not found, gated, offline; an unknown configuration or split
        told = " ".join(str(error).split())
        raise UserError(f"{name} cannot be read as {_HUB}NAME[:SPLIT[:COLUMN]]: {told}") from error


def near_names(name: str, known: Iterable[Any]) -> str:
    """``; did you mean …?`` with what is spelt alike; '' where nothing is."""
    near = difflib.get_close_matches(name, [str(other) for other in known], n=3, cutoff=0.5)
    return f"; did you mean {' or '.join(near)}?" if near else ""
