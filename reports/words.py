"""How numbers, heads and tokens are written: one way for prose, figures and tables."""

import math
import re
import unicodedata
from collections.abc import Iterable, Mapping, Sequence

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
    "retrieval": "retrieval",
    "looks_at_needle": "looking at the needle's token",
    "copying_eigenvalues": "copying (eigenvalues)",
    "softmax_jacobian": "norm of the softmax's Jacobian",
    "told_by_position": "attention moved by position alone",
    "importance": "importance",
    "derivative": "derivative without normalisation",
    "first_order_zero": "first-order estimate (zero)",
    "first_order_resample": "first-order estimate (resample)",
    "integrated_zero": "integrated gradients",
    "weight_norm": "norm of W_V W_O",
    "freedom_share": "freedom of attention at the same output",
    "nullspace_share": "freedom of attention at the same head output",
    "random_values_share": "the same with values at random",
    "jsd_ceiling": "the largest divergence there is",
    "permuted_tvd": "change under shuffled attention",
    "uniform_tvd": "change under uniform attention",
    "first_position_tvd": "change under attention to the first key",
    "mean_pattern_tvd": "change under the mean pattern",
    "tau_gradient": "Kendall's τ with the gradient",
    "tau_knockout": "Kendall's τ with lost keys",
    "relative_entropy": "relative entropy",
    "confidence": "largest weight on a word",
    "sink": "sink (first position, 64 rows)",
    "sink_elsewhere": "sink elsewhere",
    "special": "attention to special tokens",
    "separator": "attention to separators",
    "punctuation": "attention to punctuation",
    "number": "attention to numbers",
    "sentence_start": "attention to sentence beginnings",
    "next_token": "attention to the next token",
    "rare_word": "attention to the sentence's rarest word",
    "bracket_match": "attention to the matching bracket",
    "quote_match": "attention to the matching quote",
    "ov_norm": "norm of W_OV",
}
SHORT = {
    "first_order_zero": "first order (zero)",
    "first_order_resample": "first order (res.)",
    "duplicate_token": "duplicate token",
    "previous_token": "previous token",
    "current_token": "current token",
    "first_position": "first position",
    "copying_eigenvalues": "copying, eigenvalues",
    "derivative": "derivative by the gate",
    "freedom_share": "freedom, same output",
    "nullspace_share": "freedom, same head output",
    "random_values_share": "freedom, random values",
    "jsd_ceiling": "largest divergence",
    "permuted_tvd": "change: shuffled",
    "uniform_tvd": "change: uniform",
    "first_position_tvd": "change: first key",
    "mean_pattern_tvd": "change: mean pattern",
    "tau_gradient": "τ with the gradient",
    "tau_knockout": "τ with lost keys",
    "softmax_jacobian": "softmax Jacobian",
    "told_by_position": "told by position",
    "confidence": "largest on a word",
    "sink": "sink",
    "special": "special tokens",
    "separator": "separators",
    "punctuation": "punctuation",
    "number": "numbers",
    "sentence_start": "sentence beginnings",
    "next_token": "next token",
    "rare_word": "rarest word",
    "bracket_match": "matching bracket",
    "quote_match": "matching quote",
}
UNITS = {
    "retrieval": "share of the answer",
    "looks_at_needle": "share of the answer",
    "entropy": "nats",
    "expected_distance": "tokens",
    "copying": "−1 to 1",
    "copying_eigenvalues": "−1 to 1",
    "saturated_rows": "share of rows",
    "relative_entropy": "share of the most possible",
    "score_deviation": "standard deviation",
    "softmax_jacobian": "Frobenius norm",
    "told_by_position": "total variation",
    "importance": "normalised by layer",
    "first_order_zero": "metric's unit",
    "first_order_resample": "metric's unit",
    "integrated_zero": "metric's unit",
    "weight_norm": "Frobenius norm",
    "ov_norm": "Frobenius norm",
    "entropy_norm": "nats",
    "entropy_without_sink": "nats",
    "expected_distance_without_sink": "tokens",
    "freedom_share": "share of the largest JSD",
    "nullspace_share": "share of the largest JSD",
    "random_values_share": "share of the largest JSD",
    "jsd_ceiling": "nats",
    "permuted_tvd": "TVD",
    "uniform_tvd": "TVD",
    "first_position_tvd": "TVD",
    "mean_pattern_tvd": "TVD",
    "tau_gradient": "τ",
    "tau_knockout": "τ",
}
_TWINS = {"_norm": "norm-weighted", "_without_sink": "without the sink"}  # suffixes of a metric's twins
DATA = {
    "repeated": "repeated random tokens",
    "unrepeated": "unrepeated random tokens",
    "text": "text",
    "weights": "the weights alone",
    "needle": "needles in text",
    "short_input": "the shortest inputs",
    "long_input": "the longest inputs",
    "copied_segments": "random tokens with a copied segment",
    "example": "the example input",
    "segments": "random tokens with a copied segment",
    "second_text": "the second text",
    "other_text": "another text",
    "treebank": "the treebank",
}
KINDS = {
    "induction": "induction head",
    "previous_token": "previous-token head",
    "duplicate_token": "duplicate-token head",
    "syntactic": "syntactic head",
    "coreference": "coreference head",
    "bracket_matching": "bracket-matching head",
    "rare_word": "rare-word head",
    "positional": "positional head",
    "current_token": "current-token head",
    "separator": "separator head",
    "sink": "sink head",
    "broad": "broad head",
    "redundant": "redundant head",
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
    return _named(METRICS, metric)


def short_metric(metric: str) -> str:
    """The same as briefly as a small figure needs it."""
    return _named({**METRICS, **SHORT}, metric)


def twin_of(metric: str) -> tuple[str, str]:
    """The metric that a metric is a twin of, and how it differs: ``("entropy", "norm-weighted")``; else '' for how."""
    for suffix, twin in _TWINS.items():
        if metric.endswith(suffix) and metric not in METRICS:
            return metric.removesuffix(suffix), twin
    return metric, ""


def _named(names: Mapping[str, str], metric: str) -> str:
    plain, twin = twin_of(metric)
    name = names.get(plain, str(plain).replace("_", " "))
    return f"{name}, {twin}" if twin else name


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
