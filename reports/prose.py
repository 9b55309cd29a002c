"""Plain text as HTML: everything escaped, heads as links, code as code."""

import re
from collections.abc import Callable, Sequence
from urllib.parse import quote

from markupsafe import Markup, escape

_HEAD = r"\bL(\d+)H(\d+)\b"
_CODE = re.compile(r"`([^`]+)`")
_SUBSCRIPT = re.compile(r"(?<=[A-Za-zÀ-žΑ-ωΣ∂‖*)])_(?:\{([^}]+)\}|([A-Za-z0-9]+))")


def formula(text: str) -> Markup:
    """Text in which ``W_O`` and ``Σ_{r ≥ 1}`` have subscripts; everything else is escaped."""
    return Markup(_SUBSCRIPT.sub(lambda match: f"<sub>{match[1] or match[2]}</sub>", str(escape(text))))


def prose(known: Callable[[int, int], bool], stacks: Sequence[str] = ()) -> Callable[[str], Markup]:
    """A filter that makes text HTML; ``known(layer, head)`` says which heads there are to link to.

    A head after the name of one of ``stacks`` (``decoder cross L0H1``) is linked to as a head of that stack.
    """
    named = "|".join(re.escape(stack) for stack in sorted(stacks, key=len, reverse=True) if stack)
    heads = re.compile(rf"(?:\b({named}) )?{_HEAD}" if named else rf"(){_HEAD}")

    def linked(match: re.Match[str]) -> str:
        stack, layer, head = match[1] or "", int(match[2]), int(match[3])
        if not known(layer, head):
            return match[0]
        name = f"L{match[2]}H{match[3]}"
        before, address = (f"{stack} ", f"{quote(stack, safe='')}/{name}") if stack else ("", name)
        return f'{before}<a class="head" href="#{address}">{name}</a>'

    def convert(text: str) -> Markup:
        return Markup(_CODE.sub(r"<code>\1</code>", heads.sub(linked, str(escape(text)))))

    return convert
