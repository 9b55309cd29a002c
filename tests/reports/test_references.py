"""Works are written down once, and every one of them is cited."""

import re
from importlib import import_module
from pkgutil import walk_packages

import pytest

from reports import chapters, references
from reports.references import cited


def test_an_entry_comes_whole_by_its_key() -> None:
    first, second = cited("jain2019attention", "derrida1981random")
    assert first.startswith("@inproceedings{jain2019attention,\n")
    assert "Random-energy model" in second
    for entry in (first, second):
        assert entry.count("{") == entry.count("}")
    with pytest.raises(KeyError, match="nobody2000"):
        cited("nobody2000")


def test_each_work_stands_there_once_and_is_cited() -> None:
    text = references._FILE.read_text(encoding="utf-8")
    keys = re.findall(r"^@\w+\{(\S+),$", text, flags=re.MULTILINE)
    titles = [re.sub(r"\W", "", title).lower() for title in re.findall(r"^  title +=(.*?)\},$", text, re.DOTALL | re.M)]
    assert len(set(keys)) == len(set(titles)) == len(keys) == len(titles)
    assert keys == sorted(keys)
    modules = [import_module(found.name) for found in walk_packages(chapters.__path__, "reports.chapters.")]
    found = {entry for module in modules for entry in getattr(module, "REFERENCES", ())}
    assert found == set(cited(*keys))
