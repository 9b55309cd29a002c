"""Works are written down once, and every one of them is cited."""

import re
from importlib import import_module
from pkgutil import walk_packages
from types import ModuleType

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


MODULES = [import_module(found.name) for found in walk_packages(chapters.__path__, "reports.chapters.")]
CITING = [module for module in MODULES if hasattr(module, "REFERENCES")]
SOURCE = re.compile(r"([A-Z][\w-]+)(?: et al\.| & [A-Z][\w-]+)? (\d{4})")  # Clark et al. 2019; Romano & Wolf 2005


@pytest.mark.parametrize("module", CITING, ids=lambda module: module.__name__.removeprefix("reports.chapters."))
def test_what_methods_name_as_their_source_is_among_the_references(module: ModuleType) -> None:
    keys = re.findall(r"^@\w+\{(\S+),$", "\n".join(module.REFERENCES), flags=re.MULTILINE)
    told = [(method.name, *found) for method in module.METHODS for found in SOURCE.findall(method.source)]
    assert told, "the pattern reads the sources"
    assert [
        (method, who, year) for method, who, year in told if not any(key.startswith(who.lower() + year) for key in keys)
    ] == []


def test_each_work_stands_there_once_and_is_cited() -> None:
    text = references._FILE.read_text(encoding="utf-8")
    keys = re.findall(r"^@\w+\{(\S+),$", text, flags=re.MULTILINE)
    titles = [re.sub(r"\W", "", title).lower() for title in re.findall(r"^  title +=(.*?)\},$", text, re.DOTALL | re.M)]
    assert len(set(keys)) == len(set(titles)) == len(keys) == len(titles)
    assert keys == sorted(keys)
    found = {entry for module in CITING for entry in module.REFERENCES}
    assert found == set(cited(*keys))
