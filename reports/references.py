"""The works that chapters cite: each stands once in `references.bib`, and a chapter names its own by their keys."""

import re
from functools import cache
from pathlib import Path

_FILE = Path(__file__).with_name("references.bib")
_ENTRY = re.compile(r"^@\w+\{(\S+),\n.*?^\}$", flags=re.DOTALL | re.MULTILINE)


def cited(*keys: str) -> tuple[str, ...]:
    """The BibTeX entries with these keys, in the order named.

    Raises:
        KeyError: a key that the file does not have.
    """
    return tuple(_entries()[key] for key in keys)


@cache
def _entries() -> dict[str, str]:
    return {found[1]: found[0] for found in _ENTRY.finditer(_FILE.read_text(encoding="utf-8"))}
