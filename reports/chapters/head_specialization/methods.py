"""How the numbers of `head-specialization` come about: formulas, sources, a paragraph to copy, BibTeX."""

from reports import words
from reports.chapters import Method
from reports.chapters.reading import Reading
from reports.references import cited

METHODS = (
    Method(
        "Shape of attention",
        "Entropy of each row in nats, also as a share of the most that the row's keys allow; the largest weight; the "
        "mean distance in tokens. Statistics are taken within a window of text over its rows, then over windows of a "
        "document, then over documents. *Without the sink*: the first position and special tokens are taken out of "
        "every row and what is left is scaled to sum to 1.".replace("*", ""),
        "H_i = −Σ_j A[i, j] ln A[i, j],   relative: H_i / ln(permitted keys of i)",
        "Clark et al. 2019; Voita et al. 2019",
    ),
    Method(
        "Where attention goes",
        "The share of a row's attention on a set of keys: the first position, special tokens, separators, punctuation, "
        "the token itself, the one before, earlier copies of it, the rarest word of its sentence, the matching bracket "
        "or quote, sentence beginnings. Only rows count that have such a key within reach. A first word is no sink and "
        "word at once: either a beginning token stands before the text, or the first word counts as a sink alone; the "
        "settings say which.",
        "mean over eligible rows i of Σ_{j ∈ S(i)} A[i, j]",
        "Clark et al. 2019; Voita et al. 2019; Kovaleva et al. 2019",
    ),
    Method(
        "Sink",
        "A head has a sink where the mean weight on the first position, over the first 64 rows, is above ε = 0.3.",
        "α = (1 / (T − 1)) Σ_i A[i, 0] > ε",
        "Gu et al. 2025",
    ),
    Method(
        "Norm-weighted attention",
        "What a key adds to the output is its weight times the size of its transformed value. Each row is scaled to "
        "sum to 1, and the same shares are read of it: a sink with small values does little.",
        "A'[i, j] = ‖A[i, j] f(x_j)‖ / Σ_k ‖A[i, k] f(x_k)‖,   f(x) = (x W_V + b_V) W_O",
        "Kobayashi et al. 2020",
    ),
    Method(
        "Relations between words",
        "Attention between tokens becomes attention between words: summed over the tokens of the word that is attended "
        "to, averaged over those of the word that attends. A head is right about a word where its most attended other "
        "word is the one that the relation leads to. The baseline is the best fixed offset, in words, on the same "
        "pairs. Pairs that a causal head cannot see do not count, for the head or for the baseline. The best head of a "
        "relation is chosen on one half of the sentences and reported on the other.",
        "accuracy = share of pairs with argmax_{w ≠ v} A[v, w] = target(v)",
        "Clark et al. 2019; Voita et al. 2019",
    ),
    Method(
        "Coreference",
        "Of the mentions before the current one, the most attended has to be of the same entity. Baselines take the "
        "nearest mention, or the nearest one with the same head word.",
        "",
        "Clark et al. 2019",
    ),
    Method(
        "What a head is called",
        "A head is called a kind where the lower end of its interval, simultaneous over all heads (max-t), is above "
        "the kind's threshold, and the difference from the kind's control is significant at 0.05 after correction over "
        "heads. A control is the same statistic where the behaviour cannot be: labels moved to where they do not "
        "belong, another document's tokens, shifted offsets. Thresholds are the papers', or conventions where these "
        "name none; the settings say whose.",
        "",
        "Romano & Wolf 2005; Benjamini & Hochberg 1995; Efron & Tibshirani 1993",
    ),
    Method(
        "Distance between heads",
        "The Jensen–Shannon divergence between two heads' rows, averaged over rows, for every pair of heads. It lies "
        "between 0 and ln 2 = 0.69. Two heads are redundant where it is below the threshold with and without the sink; "
        "a head's partner is found on one half of the documents and judged on the other.",
        "JSD(p, q) = ln 2 + ½ Σ_j (p_j ln p_j + q_j ln q_j − (p_j + q_j) ln(p_j + q_j))",
        "Lin 1991; Clark et al. 2019",
    ),
    Method(
        "Groups",
        "Ward's clusters of heads by the root of that divergence, which is a Euclidean distance. Their number is the "
        "one with the highest mean silhouette. Documents are drawn again with replacement 100 times: the adjusted Rand "
        "index says how alike the clusters then are, the Jaccard similarity how well each one is found again. The map "
        "is metric multidimensional scaling of the divergence.",
        "s = (b − a) / max(a, b), a: mean distance within the own cluster, b: to the next one",
        "Ward 1963; Rousseeuw 1987; Hennig 2007; Hubert & Arabie 1985; Clark et al. 2019",
    ),
    Method(
        "Composition",
        "How much of what an earlier head can write a later one can read, by its queries, keys or values, from the "
        "weights; beside it, what random matrices of the same sizes give. With rotary positions the product of queries "
        "and keys depends on the distance between the tokens.",
        "‖W_QK W_OV‖_F / (‖W_QK‖_F ‖W_OV‖_F), and so on",
        "Elhage et al. 2021",
    ),
    Method(
        "Stability",
        "Spearman's rank correlation of the heads' scores between two halves of the text, and between two kinds of "
        "text.",
    ),
)

REFERENCES = cited(
    "clark2019bert",
    "voita2019analyzing",
    "kovaleva2019revealing",
    "kobayashi2020attention",
    "gu2025when",
    "elhage2021mathematical",
    "lin1991divergence",
    "ward1963hierarchical",
    "rousseeuw1987silhouettes",
    "hennig2007cluster",
    "hubert1985comparing",
    "romano2005exact",
    "benjamini1995controlling",
    "efron1993introduction",
)


def paragraph(reading: Reading) -> str:
    """Methods as a paragraph to copy into a paper, from this run's settings."""
    return (
        f"{reading.who}{reading.numerics}. {_texts(reading)}For each head we took "
        "the share of its attention on sets of tokens, plain and weighted by the norms of the transformed values "
        "(Kobayashi et al., 2020), its entropy and its distances; statistics were taken within a window of text, then "
        "averaged over documents, with studentised bootstrap intervals over documents (95 %). Attention between words "
        "follows Clark et al. (2019), with the best fixed offset on the same pairs as baseline; pairs that a causal "
        "head cannot see were left out. Heads and relations were chosen on one half of the text and reported on the "
        "other. Heads were called a kind when the lower end of an interval simultaneous over heads (max-t) was above "
        "the kind's threshold (Clark et al., 2019; Voita et al., 2019; Gu et al., 2025) and the paired difference from "
        "a control was significant (one-sided sign flips, Benjamini-Hochberg correction over heads, 0.05). Heads were "
        "compared by the mean Jensen-Shannon divergence between their rows and clustered by Ward's method on its root, "
        "the number of clusters by silhouette, stability by the adjusted Rand index under resampled documents."
    )


def _texts(reading: Reading) -> str:
    inputs = reading.provenance.get("inputs") or {}
    told = [
        words.visible(str(each.get("what"))) for each in inputs.values() if isinstance(each, dict) and each.get("what")
    ]
    return f"Inputs: {' '.join(told)} " if told else ""
