"""What metrics, data and kinds of heads are called, and units of metrics: one name for prose, figures and tables."""

from collections.abc import Mapping

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
