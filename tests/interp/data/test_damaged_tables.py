"""Tables and lines that would be read as something else are refused."""

from pathlib import Path

import numpy as np
import pytest

from interp.data.documents import read_documents
from interp.data.labelled_files import read_labelled
from interp.errors import UserError


def written(folder: Path, name: str, text: str) -> Path:
    (folder / name).write_text(text, encoding="utf-8")
    return folder / name


@pytest.mark.parametrize("every", [True, False])
def test_unquoted_commas_do_not_shift_columns(tmp_path: Path, every: bool) -> None:
    """With one field too many in each line, the first became the table's index: `a,b,pos` was read as text b."""
    rows = [f"well, film {i} was {'good,pos' if i % 2 else 'bad,neg'}" for i in range(40)]
    fine = [row.replace("well, ", "") for row in rows]
    table = written(tmp_path, "films.csv", "\n".join(["text,label", *(rows if every else [*fine, *rows])]))
    with pytest.raises(UserError, match="is no table with commas between columns"):
        read_labelled(table)
    assert len(read_labelled(written(tmp_path, "fine.csv", "\n".join(["text,label", *fine]))).texts) == 40


@pytest.mark.parametrize("line", ["[" * 100_000, '{"text": ' + "1" * 5000 + "}", "{", "[]", "3"])
@pytest.mark.parametrize("read", [read_labelled, lambda path: list(read_documents(path))])
def test_lines_that_are_no_objects(tmp_path: Path, line: str, read: object) -> None:
    with pytest.raises(UserError, match=r"line 2 (is no|must be a) JSON object"):
        read(written(tmp_path, "x.jsonl", '{"text": "a", "label": "b"}\n' + line))  # type: ignore[operator]


@pytest.mark.parametrize("read", [read_labelled, lambda path: list(read_documents(path))])
def test_half_of_a_character(tmp_path: Path, read: object) -> None:
    """Neither a tokenizer nor a file takes it; a whole pair is a character."""
    with pytest.raises(UserError, match="line 1 holds half of a surrogate pair"):
        read(written(tmp_path, "x.jsonl", r'{"text": "a \ud83d b", "label": "c"}'))  # type: ignore[operator]
    whole = written(tmp_path, "whole.jsonl", r'{"text": "a \ud83d\ude00 b", "label": "c"}')
    assert next(iter(read_documents(whole))).text == "a 😀 b"


def test_too_few_texts_to_split(tmp_path: Path) -> None:
    table = written(tmp_path, "few.csv", "text,label\n" + "good film,pos\nbad film,neg\n" * 30)
    with pytest.raises(UserError, match="has too few different texts to split them"):
        read_labelled(table)


def test_a_pickle_is_not_recommended_to_be_opened(tmp_path: Path) -> None:
    (tmp_path / "x.npy").write_bytes(b"\x80\x04K\x01.")
    with pytest.raises(UserError, match=r"has no header of NumPy's, or holds objects") as raised:
        list(read_documents(tmp_path / "x.npy"))
    assert "allow_pickle" not in str(raised.value)
    np.save(tmp_path / "y.npy", np.array([[1], [2, 3]], dtype=object), allow_pickle=True)
    with pytest.raises(UserError, match="is no array of token ids"):
        list(read_documents(tmp_path / "y.npy"))
