"""How the numbers of the heads' half come about: formulas, sources, a paragraph to copy, BibTeX."""

from reports.chapters import Method
from reports.chapters.reading import Reading
from reports.references import cited

METHODS = (
    Method(
        "Freedom of a row",
        "One row of one head is replaced in the model, through the core's own edit, and everything after it computed "
        "again. Its freedom is the largest Jensen–Shannon divergence from the model's row at which the output moves by "
        "at most ε in total variation, at any of the watched positions; as a share of the largest divergence that any "
        "row could have. Rows below 8 keys are left out.",
        "max_x JSD(α, x) subject to max_t TVD(y_t(x), y_t(α)) ≤ ε;   share = JSD / max_j JSD(α, δ_j),   JSD(α, δ_j) = "
        "ln 2 + ½ α_j ln α_j − ½ (1 + α_j) ln(1 + α_j)",
        "After Jain & Wallace 2019; the closed form holds since the divergence is convex in x",
    ),
    Method(
        "Search",
        "A row acts through z = Σ α_j v_j alone, so as many runs as values have dimensions tell the output's linear "
        "response to all rows. Within bounds on that response the divergence, which is convex, is climbed by linear "
        "programs from several starts; vertices, the null space and bisected rays are tried besides. Every row that "
        "counts was run. A row is called pinned only where all of this, and every vertex, found nothing.",
        "x ← argmax ∇JSD(α, x) · y over y ≥ 0, Σ y = 1, cuts of TVD_lin(y) ≤ level · ε",
        "Kelley 1960; Mangasarian 1996",
    ),
    Method(
        "Null space",
        "The farthest row with exactly the same head output; beside it the same for values drawn at random with the "
        "same singular values about their mean.",
        "max_x JSD(α, x) subject to x ≥ 0, Σ x = 1, Vᵀ x = Vᵀ α",
        "Brunner et al. 2020",
    ),
    Method(
        "Substitutes",
        "The row's mean over other sequences at the same query, uniform weights, its own weights shuffled, all weight "
        "on the first key.",
        "",
        "Hassid et al. 2022",
    ),
    Method(
        "Agreement with the output",
        "Kendall's τ of a row's weights with the gradient of the summed log probabilities of the likeliest tokens, and "
        "with the change when single keys, drawn at random, are knocked out and their weight is shared out.",
        "|g_j − Σ_k α_k g_k|;   TVD(y(α without j), y(α))",
        "After Jain & Wallace 2019",
    ),
    Method(
        "Worth",
        "Spearman's correlation over heads of freedom with the change that a head's mean pattern, in all rows, makes "
        "to the output of other text; ranks of importance, and of the layer, partialled out. The interval resamples "
        "sequences and is for what as many others would give; p permutes freedom over heads.",
        "importance = E |∂L/∂ξ|",
        "Michel et al. 2019; Hassid et al. 2022",
    ),
)

REFERENCES = cited(
    "jain2019attention",
    "kelley1960cutting",
    "mangasarian1996machine",
    "brunner2020identifiability",
    "hassid2022attention",
    "michel2019sixteen",
)


def paragraph(reading: Reading) -> str:
    """Methods to copy into a paper."""
    config = reading.config
    if not reading.has("freedom_rows"):
        return ""
    return (
        f"For each of {reading.n_heads} heads of {reading.model_name}, single rows of attention with at least "
        f"{config.get('least_keys')} keys were replaced by the farthest rows, in Jensen–Shannon divergence, that moved "
        f"the model's output by at most {config.get('head_epsilon')} in total variation at each of "
        f"{config.get('horizon')} positions from the row's own on. Rows were found by linear programs within cuts of "
        "the output's linear response and checked by running the model; they are reported as shares of "
        "max_j JSD(α, δ_j), beside the farthest rows with identical head output and the same for random values of "
        "matched spectrum."
    )
