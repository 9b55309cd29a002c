"""How numbers, heads and tokens are written: one way for prose, figures and tables."""

import math
import re
import unicodedata
from collections.abc import Iterable, Sequence

import pandas as pd

MINUS = "\N{MINUS SIGN}"
_SHOWN = {"\n": "↵", "\r": "␍", "\t": "⇥", "\x00": "␀", "\xa0": "⍽", "\xad": "[U+00AD]"}
_HIDDEN = {"Cc", "Cf", "Co", "Cs", "Cn", "Zl", "Zp"}  # control, format (bidi, zero width), private, unassigned


def head_name(layer: int, head: int) -> str:
    """``L18H6``: zero-based layer and query head."""
    return f"L{int(layer)}H{int(head)}"


def stack_name(site: str) -> str:
    """The stack of a site: '' for ``blocks.3.attn``, 'decoder cross' for ``decoder_blocks.3.cross_attn``."""
    parts = [
        part.removesuffix("blocks").removesuffix("attn").strip("_") for part in site.split(".") if not part.isdigit()
    ]
    return " ".join(part.replace("_", " ") for part in parts if part not in {"", "self"})


def number(value: float, digits: int = 2) -> str:
    """Two decimals, or two significant digits below 0.1; 'n/a' for NaN."""
    if value is None or pd.isna(value):
        return "n/a"
    if math.isinf(value):
        return f"{MINUS if value < 0 else ''}∞"
    size = abs(value)
    if 0 < size < 5e-7:  # six decimals would show zeros
        return small(value)
    places = digits if size >= 0.0995 or size == 0 else min(digits - 1 - math.floor(math.log10(size)), 6)
    text = f"{size:,.{places}f}"
    return (MINUS if value < 0 and float(text.replace(",", "")) else "") + text


def small(value: float | None) -> str:
    """A number that may be tiny, as a power of ten."""
    return "n/a" if value is None else f"{value:.1e}".replace("e-0", "e-").replace("-", MINUS)


def signed(value: float) -> str:
    """A change with its sign."""
    return ("+" if value > 0 else "") + number(value)


def interval(low: float, high: float) -> str:
    """``[0.87, 0.93]``, or '' where there is none."""
    return "" if pd.isna(low) or pd.isna(high) else f"[{number(low)}, {number(high)}]"


def count(n: int, noun: str, plural: str | None = None) -> str:
    """``1 head``, ``3 heads``, ``no heads``."""
    return f"{f'{n:,}' if n else 'no'} {noun if n == 1 else plural or noun + 's'}"


def join(items: Iterable[str], last: str = "and") -> str:
    """``a, b and c``."""
    listed = list(items)
    return f" {last} ".join([", ".join(listed[:-1]), listed[-1]]) if len(listed) > 1 else "".join(listed)


def some(items: Sequence[str], most: int = 5) -> str:
    """The first few of a list, and how many more there are."""
    rest = len(items) - most
    return join(items) if rest <= 0 else f"{', '.join(items[:most])} and {rest} more"


def sentence_case(text: str) -> str:
    """The first letter as a capital, the rest as it is."""
    return text[:1].upper() + text[1:]


def visible(text: str) -> str:
    """A token as it can be shown: line breaks as signs, invisible and direction-changing characters by their code."""
    return "".join(
        _SHOWN.get(char, f"[U+{ord(char):04X}]" if unicodedata.category(char) in _HIDDEN else char) for char in text
    )


def spaced(texts: Sequence[str]) -> list[str]:
    """Tokens with the spaces between words; some vocabularies write none, and mark what continues a word by ``##``."""
    if any(text.startswith(" ") for text in texts):
        return list(texts)
    return [text.removeprefix("##") if text.startswith("##") else f" {text}" for text in texts]


def token_label(text: str, most: int = 12) -> str:
    """A token as a label: a leading space as a low bar, cut where it is long."""
    shown = visible(text)
    shown = f"␣{shown[1:]}" if shown.startswith(" ") else shown
    return shown if len(shown) <= most else shown[: most - 1] + "…"


_NUMBER_WORDS = ("none", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine", "ten")


def number_word(n: int) -> str:
    """Whole numbers to ten as words, as prose has them."""
    return _NUMBER_WORDS[n] if 0 <= n < len(_NUMBER_WORDS) else f"{n:,}"


def few(n: int, noun: str) -> str:
    """``no heads``, ``one head``, ``three heads``: small numbers as words."""
    return f"{number_word(n) if n else 'no'} {noun if n == 1 else noun + 's'}"


def p_value(p: float) -> str:
    """``< 0.001`` or ``= 0.012``."""
    text = "< 0.001" if p < 0.001 else f"= {p:.3f}" if p < 0.1 else f"= {p:.2f}"
    return text.replace(" ", "\N{NO-BREAK SPACE}")


def part_of(n: int, total: int, noun: str) -> str:
    """``all five heads``, ``both heads``, ``the one head``, ``three of 8 heads``."""
    if n == total:
        return {1: f"the one {noun}", 2: f"both {noun}s"}.get(n, f"all {few(n, noun)}")
    return f"{number_word(n)} of {count(total, noun)}"


def agree(n: int, one: str, many: str) -> str:
    """The form that agrees with ``n``: none and one take the singular."""
    return one if n <= 1 else many


def signed_places(value: float) -> str:
    """A change with its sign and two decimals, or 0, for cells that are compared with each other."""
    return "0" if abs(value) < 0.005 else f"{value:+.2f}".replace("-", MINUS)


def measured(value: float, low: float, high: float, sign: bool = False) -> str:
    """A number and its interval: ``0.82 [0.79, 0.85]``, with a sign where it is a change."""
    return f"{signed(value) if sign else number(value)} {interval(low, high)}".rstrip()


def with_interval(low: float, high: float, n: float) -> str:
    """`` (95 % interval [0.84, 0.96], 32 sequences)``; '' where there is no interval."""
    spread = interval(low, high)
    units = f", {count(int(n), 'sequence')}" if pd.notna(n) and n > 0 else ""
    return f" (95 % interval {spread}{units})" if spread else ""


def quoted(token: str) -> str:
    """A token in quotation marks, with what is invisible shown."""
    return f"“{visible(token).strip() or token_label(token)}”"


def slug(text: str) -> str:
    """A file name: lower-case letters, digits and hyphens."""
    return re.sub(r"[^a-z0-9]+", "-", text.lower()).strip("-")
