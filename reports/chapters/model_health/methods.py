"""How the numbers of `model-health` come about: formulas, sources, a paragraph to copy, BibTeX."""

from reports.chapters import Method
from reports.chapters.reading import Reading
from reports.references import cited

METHODS = (
    Method(
        "Leaks",
        "The input is changed where it must make no difference: a token, and everything before it is compared; what "
        "stands in padding; the other sequences of the batch, and their order. Compared are a digest of every pattern "
        "row, each head's output where it is in sight, and the model's output, in order of execution; the first that "
        "changes by more than rounding is named.",
        "relative change = max |after − before| / max |before|;  digest of a row = Σ_k p_k cos(2.3 k²)",
    ),
    Method(
        "Order",
        "The input of a bidirectional model is permuted. If its output is the same, permuted, nothing tells it the "
        "order. Told by position is how far attention moves from uniform where all tokens are the same.",
        "½ Σ_k |p_k − 1/n|",
    ),
    Method(
        "Saturation and width of scores",
        "A row is saturated with more than 0.99 on one key. Scores are read off the pattern, up to a constant of each "
        "row. Over n independent Gaussian scores a softmax freezes, its mass on a few keys whatever they hold, when "
        "their standard deviation is above √(2 ln n). Sites that are seen not to scale q·k by d_head are held to that; "
        "others, whose scores training has given structure, to three times as much.",
        "deviation = std_k(ln p_k);  effective exponent α: deviation = d_head^(½ − α)",
        "Derrida 1981; Vaswani et al. 2017",
    ),
    Method(
        "Jacobian of the softmax",
        "The Frobenius norm of the derivative of a row's weights with respect to its scores, from sums over the keys; "
        "a head's is the mean over its rows.",
        "‖diag(σ) − σσᵀ‖_F = √(Σ_i σ_i²(1 − σ_i)² + Σ_{i≠j} σ_i²σ_j²)",
    ),
    Method(
        "Entropy collapse",
        "A row's entropy as a share of the largest it could have, averaged over the heads of a site.",
        "−Σ p ln p / ln n",
        "Zhai et al. 2023",
    ),
    Method(
        "Gradients",
        "Of four random projections of the output, with respect to what each layer reads, to queries, keys and values, "
        "and to a gate on every head. Layers that only rescale do not change the relative gradient. A head whose gate "
        "nothing feels is negligible.",
        "relative gradient = median over positions of ‖∂L/∂x‖ ‖x‖;  queries and keys: "
        "(‖∂q‖‖q‖ + ‖∂k‖‖k‖) / (2 ‖∂v‖‖v‖);  gate: |∂L/∂g_h| at g = 1",
        "Michel et al. 2019 (gates)",
    ),
    Method(
        "Norms over the wrong axis",
        "With every head's output set to 0, nothing may carry from one position to another, nor from one sequence to "
        "another. The first module whose output does is named.",
    ),
    Method(
        "Heads there twice",
        "Jensen–Shannon divergence between the rows of two heads of a site, as a share of how far the less certain of "
        "the two is from uniform attention: two heads that are both nearly uniform are not alike for that.",
        "JSD(h, g) / min(1 − H_h / ln n, 1 − H_g / ln n)",
    ),
    Method(
        "Cost",
        "Operations outside attention are counted by PyTorch in a small pass and grow with the tokens; attention takes "
        "4 · heads · d_head · T² a site, over all pairs. Keys and values are 2 · kv_heads · d_head numbers a site and "
        "token, within its window.",
    ),
)
REFERENCES = cited(
    "derrida1981random",
    "zhai2023stabilizing",
    "michel2019sixteen",
    "vaswani2017attention",
)


def paragraph(reading: Reading) -> str:
    """Methods as a paragraph to copy."""
    if not reading.has("checks"):
        return ""
    n = len(reading.table("checks"))
    return (
        f"The attention of {reading.model_name} was checked with {n} checks (leaks of later tokens, of padding and "
        "between sequences, order, saturation, gradients, numerical range, axes of norms, redundancy, cost), each a "
        "measured value against limits fixed beforehand. Leaks were measured by changing the input where it must not "
        "matter; gradients are those of random projections of the output."
    )
