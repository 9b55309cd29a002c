"""Plain text as HTML: everything escaped, heads as links, code as code."""

import re
from collections.abc import Callable

from markupsafe import Markup, escape

_HEAD = re.compile(r"\bL(\d+)H(\d+)\b")
_CODE = re.compile(r"`([^`]+)`")


_SUBSCRIPT = re.compile(r"(?<=[A-Za-zλΣ])_(?:\{([^}]+)\}|([A-Za-z0-9]+))")


def formula(text: str) -> Markup:
    """Text in which ``W_O`` and ``Σ_{r ≥ 1}`` have subscripts; everything else is escaped."""
    return Markup(_SUBSCRIPT.sub(lambda match: f"<sub>{match[1] or match[2]}</sub>", str(escape(text))))


def prose(known: Callable[[int, int], bool]) -> Callable[[str], Markup]:
    """A filter that makes text HTML; ``known(layer, head)`` says which heads there are to link to."""

    def linked(match: re.Match[str]) -> str:
        if not known(int(match[1]), int(match[2])):
            return match[0]
        return f'<a class="head" href="#{match[0]}">{match[0]}</a>'

    def convert(text: str) -> Markup:
        return Markup(_CODE.sub(r"<code>\1</code>", _HEAD.sub(linked, str(escape(text)))))

    return convert
