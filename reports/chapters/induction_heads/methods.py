"""How the numbers of `induction-heads` come about: formulas, sources, a paragraph to copy, BibTeX."""

from reports import words
from reports.chapters import Method
from reports.chapters.reading import Reading
from reports.references import cited

METHODS = (
    Method(
        "Prefix matching",
        "The share of a query's attention that goes to the token after an earlier occurrence of the query's token, on "
        "random tokens that repeat with period P. Only queries with an earlier copy count; with more than two copies "
        "the targets in all earlier ones are summed. On text, all earlier occurrences are. Attention to the earlier "
        "occurrence itself is the duplicate-token score, not this one.",
        "mean over sequences of the mean over i ≥ P of Σ_{r ≥ 1} A[i, i − rP + 1]",
        "Olsson et al. 2022; Wang et al. 2023, appendix H",
    ),
    Method(
        "Duplicate token, previous token, current token, first position",
        "The share of attention on earlier copies of the query's token, on the token before it, on the token itself "
        "and on the first position. The last two are taken from the second row on: the first row has no choice.",
        "Σ_{r ≥ 1} A[i, i − rP],   A[i, i − 1],   A[i, i],   A[i, 0]",
        "Wang et al. 2023, appendix H",
    ),
    Method(
        "Chance and control",
        "Chance is the same statistic under uniform attention over the keys that the mask permits, computed exactly. "
        "The control is the same statistic where the behaviour cannot be: on unrepeated tokens for prefix matching and "
        "duplicate tokens, on the token before the previous one for the previous-token score.",
        "chance = mean over i of (target keys of i) / (permitted keys of i)",
    ),
    Method(
        "How sure",
        "Intervals of 95 % are studentised bootstraps over sequences (documents, where windows of text share one); "
        "Student's t below 16. p-values flip the signs of the paired differences from the control, one-sided, and are "
        "corrected over the heads of a score for the false discovery rate. A head is called a kind when the lower end "
        "of an interval that holds for all heads at once (max-t) is above the threshold, and the difference from the "
        "control is significant at 0.05.",
        "p = share of sign patterns s with mean(s · d) ≥ mean(d),   d = score − control, by sequence",
        "Efron & Tibshirani 1993; Romano & Wolf 2005; Benjamini & Hochberg 1995",
    ),
    Method(
        "Copying (logits)",
        "Each of 25 random tokens is attended to in turn, its embedding alone in the stream. r[i, j] is by how much "
        "the head's output on token i raises the logit of token j over the mean of the vocabulary, cut off below zero; "
        "norms are folded into the weights. 1: only the attended token is raised; −1: it never is. Chance is exact: "
        "over all ways to pair attended with raised tokens the mean of the score is 2/n − 1 for n tokens, −0.92 for "
        "25, whatever r is.",
        "2 · Σ_i r[i, i] / Σ_{i, j} r[i, j] − 1",
        "Olsson et al. 2022",
    ),
    Method(
        "Copying (eigenvalues)",
        "The eigenvalues of a head's map from the token attended to, to the logits; found from a product of size "
        "d_head × d_head. 1: every direction of tokens raises its own logits; −1: lowers them. The null joins what the "
        "head reads to what it writes by random rotations.",
        "Σ_k λ_k / Σ_k |λ_k|,   λ_k the eigenvalues of W_E W_V W_O W_U",
        "Elhage et al. 2021",
    ),
    Method(
        "In-context-learning score",
        "Mean loss around a late position of a window of text minus mean loss around an early one; below zero, the "
        "model makes use of what it has read.",
        "loss(late) − loss(early)",
        "Olsson et al. 2022",
    ),
    Method(
        "Ablation",
        "The loss on later copies when heads' outputs, before W_O, are replaced: by those on other sequences, by their "
        "mean, by zero, or by zero while the attention patterns are those of the untouched model. The heads are the "
        "strongest on one half of the sequences; the loss is taken on the other. Beside them, as many random heads of "
        "the same layers, strong ones left out where there are others.",
        "change = loss with the heads replaced − loss of the untouched model, paired by sequence",
        "Olsson et al. 2022",
    ),
    Method(
        "Which head feeds which",
        "A previous-token head's output is taken out of what an induction head computes its keys from, and of nothing "
        "else; beside it, the output is removed everywhere. With grouped keys the change reaches all query heads that "
        "share the key head.",
        "change = prefix matching of the target with the source removed − without",
        "Elhage et al. 2021",
    ),
)

REFERENCES = cited(
    "olsson2022context",
    "elhage2021mathematical",
    "wang2023interpretability",
    "benjamini1995controlling",
    "romano2005exact",
    "efron1993introduction",
)


def paragraph(reading: Reading) -> str:
    """Methods as a paragraph to copy into a paper, from this run's settings."""
    return (
        f"{reading.who}{reading.numerics}. {_tokens(reading)}Prefix matching is the "
        "mean attention to the token after an earlier occurrence of the current one (Olsson et al., 2022), over "
        "queries that have one; statistics were taken within a sequence and averaged over sequences, with studentised "
        "bootstrap intervals over sequences (95 %). Chance is the same statistic under uniform attention with the same "
        "mask; the control is the same statistic on unrepeated tokens. Heads were called induction heads when the "
        f"lower end of an interval simultaneous over heads (max-t) was above {_threshold(reading)} and the paired "
        "difference from the control was significant (one-sided sign flips, Benjamini-Hochberg correction over heads, "
        "0.05). Copying scores follow Olsson et al. (2022) and Elhage et al. (2021). Heads to ablate were chosen on "
        "one half of the sequences and the loss was taken on the other."
    )


def _tokens(reading: Reading) -> str:
    parts = (("sequences", "{} sequences"), ("repeats", "of {} copies"), ("period", "of {} random tokens"))
    repeated = (reading.provenance.get("inputs") or {}).get("repeated") or {}
    known = {**reading.config, **({"period": repeated["period"]} if "period" in repeated else {})}
    told = [text.format(known[key]) for key, text in parts if known.get(key)]
    return f"Inputs were {' '.join(told)}. " if told else ""


def _threshold(reading: Reading) -> str:
    threshold = reading.config.get("induction_threshold")
    return words.number(threshold) if threshold is not None else "the threshold"
