import json
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from interp.data import documents as module
from interp.data import read_documents
from interp.errors import UserError


def texts(path, **settings):
    return [document.text for document in read_documents(path, **settings)]


def test_the_sample_text():
    documents = list(read_documents())
    assert len(documents) >= 16  # so that documents are enough units for a bootstrap
    assert sum(len(str(document.text).split()) for document in documents) >= 3500
    assert len({document.name for document in documents}) == len(documents)
    everything = "\n".join(str(document.text) for document in documents)
    for sign in '()[]"0123456789':
        assert sign in everything


def test_txt_documents_are_separated_by_two_empty_lines(tmp_path):
    path = tmp_path / "a.txt"
    path.write_text("\n\n\nfirst\n\nstill first\n\n\nsecond\n   \n\n\n\nthird, no end")
    documents = list(read_documents(path))
    assert [document.text for document in documents] == ["first\n\nstill first", "second", "third, no end"]
    assert [document.name for document in documents] == ["a.txt#1", "a.txt#2", "a.txt#3"]


def test_txt_of_windows_with_a_byte_order_mark(tmp_path):
    path = tmp_path / "a.TXT"
    path.write_bytes(b"\xef\xbb\xbfna\xc3\xafve\r\n\r\nmore\r\n\r\n\r\nnext\r\n")
    assert texts(path) == ["naïve\n\nmore", "next"]


@given(st.lists(st.text(st.sampled_from("aé漢\n"), min_size=1, max_size=40), max_size=6), st.integers(4, 50))
def test_pieces_of_long_documents_are_the_documents_again(tmp_path_factory, parts, piece):
    path = tmp_path_factory.mktemp("text") / "a.txt"
    path.write_text("\n\n\n".join([*parts, "end"]), encoding="utf-8", newline="")
    whole = {document.name: str(document.text) for document in read_documents(path)}
    pieces: dict[str, list[str]] = {}
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(module, "_PIECE", piece)
        for each in read_documents(path):
            assert each.is_continued == (each.name in pieces)
            pieces.setdefault(each.name, []).append(str(each.text))
    assert list(pieces) == list(whole)
    for name, text in whole.items():
        assert "".join("".join(pieces[name]).split()) == "".join(text.split())


def test_the_rest_of_a_long_line_is_no_empty_line(tmp_path, monkeypatch):
    monkeypatch.setattr(module, "_PIECE", 4)
    path = tmp_path / "a.txt"
    path.write_text("four\n\nnext")
    assert {document.name for document in read_documents(path)} == {"a.txt#1"}


def test_a_document_without_line_ends_is_cut(tmp_path, monkeypatch):
    monkeypatch.setattr(module, "_PIECE", 10)
    path = tmp_path / "a.txt"
    path.write_text("é" * 23, encoding="utf-8")
    documents = list(read_documents(path))
    assert "".join(str(document.text) for document in documents) == "é" * 23
    assert len(documents) > 1
    assert {document.name for document in documents} == {"a.txt#1"}


def test_jsonl(tmp_path):
    path = tmp_path / "a.jsonl"
    rows = [{"id": 1, "body": "one"}, {"id": 2, "body": " "}, {"id": 3, "body": "three\r\nlines"}]
    path.write_text("\n".join(map(json.dumps, rows)) + "\n\n")
    documents = list(read_documents(path, column="body"))
    assert [(document.name, document.text) for document in documents] == [
        ("a.jsonl#1", "one"),
        ("a.jsonl#3", "three\nlines"),
    ]


def test_npy(tmp_path):
    np.save(tmp_path / "one.npy", np.arange(5, dtype=np.uint16))
    np.save(tmp_path / "many.npy", np.arange(6).reshape(2, 3))
    (one,) = read_documents(tmp_path / "one.npy")
    assert one.tokens is not None
    assert one.tokens.tolist() == [0, 1, 2, 3, 4]
    many = list(read_documents(str(tmp_path / "many.npy")))
    assert [document.tokens.tolist() for document in many if document.tokens is not None] == [[0, 1, 2], [3, 4, 5]]
    assert [document.name for document in many] == ["many.npy#1", "many.npy#2"]


def test_long_npy_comes_in_pieces(tmp_path, monkeypatch):
    monkeypatch.setattr(module, "_PIECE", 4)
    np.save(tmp_path / "a.npy", np.arange(10))
    pieces = list(read_documents(tmp_path / "a.npy"))
    assert [(len(piece.tokens), piece.is_continued) for piece in pieces if piece.tokens is not None] == [
        (4, False),
        (4, True),
        (2, True),
    ]


def test_hub(tmp_path):
    """A folder stands for a hub data set: the library reads both the same way."""
    pytest.importorskip("datasets", reason="pip install 'interp-attention[text]'")
    for split in ("train", "test"):
        rows = [{"text": f"{split} {i}", "other": f"other {i}"} for i in range(2)]
        (tmp_path / f"{split}.jsonl").write_text("\n".join(map(json.dumps, rows)))
    assert texts(f"hub:{tmp_path}") == ["train 0", "train 1"]
    assert texts(f"hub:{tmp_path}:test:other") == ["other 0", "other 1"]
    with pytest.raises(UserError, match=r"no column 'txt'; did you mean text\?"):
        texts(f"hub:{tmp_path}:test:txt")
    with pytest.raises(UserError, match=r"cannot be read as hub:NAME\[:SPLIT\[:COLUMN\]\]"):
        texts(f"hub:{tmp_path}:validation")


def test_a_configuration_is_the_third_part_of_a_hub_name(monkeypatch):
    datasets = pytest.importorskip("datasets")
    asked = []

    def load_dataset(*args, **kwargs):
        asked.append((args, kwargs))
        return [{"text": "a"}]

    monkeypatch.setattr(datasets, "load_dataset", load_dataset)
    assert texts("hub:owner/name/english:validation") == ["a"]
    assert texts("hub:owner/name") == ["a"]
    assert [args for args, _ in asked] == [("owner/name", "english"), ("owner/name", None)]
    assert [kwargs["split"] for _, kwargs in asked] == ["validation", "train"]
    assert all(kwargs["streaming"] for _, kwargs in asked)


def test_hub_without_its_package(monkeypatch):
    monkeypatch.setitem(__import__("sys").modules, "datasets", None)
    with pytest.raises(UserError, match=r"needs the package datasets: pip install 'interp-attention\[text\]'"):
        texts("hub:name")


def write(folder: Path, name: str, content: bytes) -> Path:
    path = folder / name
    path.write_bytes(content)
    return path


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("a.txt", b"", "a.txt holds no text"),
        ("a.txt", b" \n\n\n \n", "a.txt holds no text"),
        ("a.txt", b"good\nbad \xe9\n", "line 2 holds the byte 0xe9.*iconv"),
        ("a.txt", b"cut short \xc3", "ends within a character"),
        ("a.jsonl", b'{"text": "a"}\n{"text": "b"', "line 2 is no JSON object"),
        ("a.jsonl", b'{"txt": "a", "id": 1}', r"line 1 has no column 'text'; did you mean txt\?; it has: txt, id"),
        ("a.jsonl", b"[1]", "line 1 must be a JSON object; got list"),
        ("a.jsonl", b'{"text": 3}', "the column 'text' must hold text; got int"),
        ("a.jsonl", b'{"text": "\xe9"}', "line 1 is not UTF-8"),
        ("a.jsonl", b'{"text": ""}', "holds no text"),
        ("a.npy", b"not an array", "no array of token ids, or damaged"),
        ("a.npy", b"", "no array of token ids, or damaged"),
        ("a.csv", b"a,b", r"from \.txt, \.jsonl, \.ndjson, \.npy files, hub:NAME or 'sample'; got"),
    ],
)
def test_bad_files_are_refused(tmp_path, name, content, message):
    with pytest.raises(UserError, match=message):
        texts(write(tmp_path, name, content))


def test_arrays_that_are_no_token_ids_are_refused(tmp_path):
    for array in (np.zeros(3), np.zeros((1, 1, 1), int), np.array([True])):
        np.save(tmp_path / "a.npy", array)
        with pytest.raises(UserError, match="must hold whole numbers"):
            texts(tmp_path / "a.npy")
    np.save(tmp_path / "a.npy", np.array([{}], dtype=object))
    with pytest.raises(UserError, match="no array of token ids"):
        texts(tmp_path / "a.npy")


def test_missing_files_have_near_matches(tmp_path):
    write(tmp_path, "stories.txt", b"a")
    with pytest.raises(UserError, match=r"no file .*storys\.txt'; did you mean stories\.txt\?"):
        texts(tmp_path / "storys.txt")
    with pytest.raises(UserError, match="there is no file"):
        texts(tmp_path / "nowhere" / "a.txt")
    with pytest.raises(UserError, match="a folder"):
        texts(tmp_path)
