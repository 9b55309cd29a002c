"""How numbers, heads and tokens are written: one way for prose, figures and tables."""

import math
import re
import unicodedata
from collections.abc import Iterable, Sequence

import pandas as pd

MINUS = "\N{MINUS SIGN}"
_SHOWN = {"\n": "↵", "\r": "␍", "\t": "⇥", "\x00": "␀", "\xa0": "⍽", "\xad": "[U+00AD]"}
_HIDDEN = {"Cc", "Cf", "Co", "Cs", "Cn", "Zl", "Zp"}  # control, format (bidi, zero width), private, unassigned

METRICS = {
    "prefix_matching": "prefix matching",
    "duplicate_token": "attention to the duplicate token",
    "previous_token": "attention to the previous token",
    "current_token": "attention to the current token",
    "first_position": "attention to the first position",
    "entropy": "entropy",
    "max_weight": "largest weight",
    "expected_distance": "expected distance",
    "copying": "copying",
    "copying_eigenvalues": "copying (eigenvalues)",
}
SHORT = {
    "duplicate_token": "duplicate token",
    "previous_token": "previous token",
    "current_token": "current token",
    "first_position": "first position",
    "copying_eigenvalues": "copying, eigenvalues",
}
UNITS = {"entropy": "nats", "expected_distance": "tokens", "copying": "−1 to 1", "copying_eigenvalues": "−1 to 1"}
DATA = {
    "repeated": "repeated random tokens",
    "unrepeated": "unrepeated random tokens",
    "text": "text",
    "weights": "the weights alone",
}
KINDS = {
    "induction": "induction head",
    "previous_token": "previous-token head",
    "duplicate_token": "duplicate-token head",
}


def head_name(layer: int, head: int) -> str:
    """``L18H6``: zero-based layer and query head."""
    return f"L{int(layer)}H{int(head)}"


def stack_name(site: str) -> str:
    """The stack of a site: '' for ``blocks.3.attn``, 'decoder cross' for ``decoder_blocks.3.cross_attn``."""
    parts = [
        part.removesuffix("blocks").removesuffix("attn").strip("_") for part in site.split(".") if not part.isdigit()
    ]
    return " ".join(part.replace("_", " ") for part in parts if part not in {"", "self"})


def metric_name(metric: str) -> str:
    """A metric in words; an unknown one with its underscores opened."""
    return METRICS.get(metric, str(metric).replace("_", " "))


def metric_axis(metric: str) -> str:
    """A metric with its unit, for an axis or a colour bar."""
    return f"{metric_name(metric)} ({UNITS.get(metric, 'share of attention')})"


def number(value: float, digits: int = 2) -> str:
    """Two decimals, or two significant digits below 0.1; 'n/a' for NaN."""
    if value is None or pd.isna(value):
        return "n/a"
    if math.isinf(value):
        return f"{MINUS if value < 0 else ''}∞"
    size = abs(value)
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


COLUMNS = {
    "site": "the attention module",
    "layer": "zero-based",
    "head": "query head, zero-based",
    "metric": "what is measured",
    "data": "on which tokens",
    "value": "the score, mean over sequences",
    "ci_low": "lower end of the 95 % interval",
    "ci_high": "upper end of the 95 % interval",
    "chance": "the same statistic under uniform attention with the same mask",
    "p_corrected": "one-sided, paired with the control, corrected over heads",
    "null_low": "lower end of what 95 % of random rotations give",
    "null_high": "upper end of what 95 % of random rotations give",
    "n": "sequences (or documents)",
    "control": "the same statistic where the behaviour cannot be: on unrepeated tokens, or one token further back",
    "note": "why a value is missing, or a remark",
    "kind": "what a head may be called",
    "simultaneous_low": "lower end of an interval that holds for all heads at once",
    "threshold": "what the lower end has to exceed",
    "called": "whether the head is called this",
    "reason": "why, or why not",
    "copy": "which repeat, zero-based",
    "position": "place in the sequence, zero-based",
    "loss": "nats per token",
    "loss_change": "nats per token, against the untouched model",
    "ablation": "what heads' outputs are replaced by",
    "heads": "which heads",
    "n_heads": "how many heads",
    "chosen": "top by score, or random of the same layers",
    "draw": "which random draw",
    "path": "what the source's output is taken out of",
    "prefix_matching": "of the target, with the source removed",
    "change": "against the untouched model",
    "period": "tokens between copies",
    "sequence": "which of the saved sequences",
    "query": "position that attends",
    "key": "position that is attended to",
    "weight": "attention, in [0, 1]",
    "token": "id in the vocabulary",
    "encoder": "what reads the text: BiLSTM, convolutions, each word by itself",
    "class": "the predicted label; all texts together",
    "pair": "the two rankings that are compared",
    "sd": "standard deviation over texts",
    "significant": "share of texts with p ≤ 0.05",
    "undefined": "texts in which τ is not defined",
    "epsilon": "largest change of the output (TVD) that counts",
    "steps": "of the search; 0 is the random start",
    "above_half": "share of texts above 0.5 nats",
    "share": "of the largest divergence that there can be",
    "found": "share of texts with an adversary within epsilon",
    "failed": "texts in which the search gave no number",
    "among": "mean divergence of the adversaries from each other",
    "tvd": "change of the output, ½ Σ|p − q|",
    "jsd": "divergence from the own attention, nats",
    "median": "over texts",
    "order": "in which words are erased",
    "never": "share of texts whose decision never flips",
    "ranking": "by what facts are ranked",
    "max_attention": "the largest weight of the text",
    "text": "the token's text",
}
