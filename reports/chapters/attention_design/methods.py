"""How the numbers of `attention-design` come about, and whose results they are."""

from reports.chapters import Method
from reports.chapters.reading import Reading
from reports.references import cited

METHODS = (
    Method(
        "Verdicts",
        "A claim holds when every number agrees with what theory predicts and with what is commonly said. It is "
        "imprecise when "
        "theory agrees and the saying does not, and fails when a number disagrees with theory. Where a number has an "
        "interval, "
        "the end that is harder for the claim decides. No verdict is written by hand.",
    ),
    Method(
        "Small models",
        "Transformers of this project with one design choice changed at a time, trained by AdamW on tasks whose "
        "answer is "
        "known. Each setting is trained from several seeds, which also draw its data; differences are paired by seed, "
        "and "
        "intervals are Student's t over seeds. Scores are on batches that training does not reach.",
    ),
    Method(
        "Rank collapse",
        "What is left of the differences between tokens after n layers without skip connections.",
        "r = ‖X − 1 x̄ᵀ‖ / ‖X‖, relative to the input's",
        "Dong et al. 2021",
    ),
    Method(
        "Largest of n scores",
        "The mean of the largest of n independent standard normal scores, by quadrature.",
        "∫ x n φ(x) Φ(x)^(n−1) dx",
        "",
    ),
    Method(
        "Random features",
        "Positive random features, independent or orthogonal in blocks.",
        "φ(x) = exp(w·x − ‖x‖²/2) / √m",
        "Choromanski et al. 2021",
    ),
    Method(
        "Memory",
        "The bytes of all tensors that live at one time while attention is computed, counted as they are "
        "made, beyond "
        "the inputs.",
    ),
    Method(
        "Overlap of subspaces",
        "The mean squared cosine of the principal angles between the column spaces of two "
        "heads' "
        "matrices; d_head / d_model for random ones.",
        "‖Q_aᵀ Q_b‖² / d_head (Frobenius)",
    ),
)

REFERENCES = cited(
    "vaswani2017attention",
    "dong2021attention",
    "katharopoulos2020transformers",
    "choromanski2021rethinking",
    "xiong2020layer",
    "haviv2022transformer",
)


def paragraph(reading: Reading) -> str:
    """The methods as a paragraph to copy."""
    claims = reading.table("claims")
    if claims.empty:
        return ""
    seeds = reading.config.get("seeds") or (10 if reading.config.get("budget") == "full" else 5)
    return (
        f"We measured {len(claims)} claims about the design of attention. Each was stated with what theory predicts "
        "and with what "
        "is commonly said, and judged by numbers that could refute it: closed forms and exact identities in float64, "
        "counts of "
        f"operations and bytes, and small transformers trained on tasks whose answer is known ({seeds} seeds a "
        "setting, differences "
        "paired by seed, Student's t intervals of 95 %)."
    )
