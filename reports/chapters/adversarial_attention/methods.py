"""How the numbers of the classifiers' half come about: formulas, sources, a paragraph to copy, BibTeX."""

from reports.chapters import Method
from reports.chapters.adversarial_attention.told import data_name
from reports.chapters.reading import Reading
from reports.references import cited

METHODS = (
    Method(
        "Classifiers",
        "An encoder (BiLSTM; convolutions 1, 3, 5, 7; or each word by itself), one layer of attention over its words "
        "(additive, or scaled dot product), and an answer from the weighted mean. Adam with AMSGrad, the best epoch on "
        "development data. The tokens before and after a text are read but get no attention.",
        "y = W Σ_t α_t h_t + b,   α = softmax_t(w · tanh(V h_t)) or softmax_t(w · h_t / √d)",
        "Jain & Wallace 2019",
    ),
    Method(
        "Rank agreement",
        "Kendall's τ-b within each text of attention with gradients (attention held fixed, no gradient through it) and "
        "with the change when a word is left out of the text. Undefined below two words, or where all are tied.",
        "g_t = |∂p / ∂e_t · e_t|,   LOO_t = TVD(y(x without t), y(x))",
        "Jain & Wallace 2019",
    ),
    Method(
        "Permutation",
        "The weights of a text are dealt out to its words at random, 100 times; the median of the answer's change.",
        "TVD(p, q) = ½ Σ |p − q|; for one sigmoid output |Δσ|",
        "Jain & Wallace 2019",
    ),
    Method(
        "Adversarial attention",
        "K distributions of each text are driven away from the model's own and from each other, and penalised where "
        "the "
        "answer moves beyond a margin; AMSGrad from random logits. ε-max JSD is the largest divergence among those "
        "that "
        "move the answer by at most ε, measured by running the untouched model with them. A text in which none is "
        "found "
        "has no value. The share is of the largest divergence that any weights on the text's words can have.",
        "min −Σ_k JSD(α_k, α) − mean_{k,k'} JSD(α_k, α_k') + λ Σ_k max(0, Δ_k − margin);   share = JSD / max_j JSD(α, "
        "δ_j)",
        "Jain & Wallace 2019",
    ),
    Method(
        "Other classifiers",
        "The same classifier with uniform attention, trained; with another seed; and one that is trained, from the "
        "base's "
        "weights, to answer as the base does and to attend elsewhere. Guides: a classifier that reads each word by "
        "itself, under weights given to it.",
        "min mean TVD(y_base, y) − λ KL(α_base ‖ α)",
        "Wiegreffe & Pinter 2019",
    ),
    Method(
        "Erasure",
        "Weights are set to zero and the others renormalised; the hidden states stay. One word: the most attended "
        "against a random other one. Many: in falling order of attention, gradient, their product, or at random.",
        "ΔJS = JS(p, p without i*) − JS(p, p without r),   Δα = α_{i*} − α_r",
        "Serrano & Smith 2019",
    ),
    Method(
        "Conicity",
        "How alike a text's hidden states are; 1 where they all point one way, 1/√n for n independent directions.",
        "mean_t cos(h_t, mean h)",
        "Mohankumar et al. 2020",
    ),
    Method(
        "Supporting fact",
        "Where it is known which fact answers: whether the fact with the most weight on its words is that one. Ties "
        "count in part. Only texts answered correctly. Intervals of shares are exact (Clopper & Pearson).",
        "hit = [argmax_f Σ_{t in f} weight_t is the supporting fact]",
    ),
)
REFERENCES = cited(
    "jain2019attention",
    "wiegreffe2019attention",
    "serrano2019attention",
    "mohankumar2020towards",
)


def paragraph(reading: Reading) -> str:
    """Methods to copy into a paper."""
    if not reading.has("classifiers"):
        return ""
    config, about = reading.config, reading.provenance.get("data")
    size = f" ({about['n']['train']:,} training, {about['n']['test']:,} test texts)" if isinstance(about, dict) else ""
    return (
        f"We trained attention classifiers (Jain & Wallace 2019) on {data_name(reading)}{size} and tested whether "
        "their attention explains their answers: rank agreement with gradients and leave-one-out (Kendall's τ-b), "
        f"permuted attention ({config.get('permutations')} permutations a text), adversarial attention "
        f"(K = {config.get('adversaries')}, {config.get('steps')} steps, λ = {float(config.get('penalty', 'nan')):g}), "
        "retrained, guided and model-consistent adversarial attention (Wiegreffe & Pinter 2019), and erasure (Serrano "
        "& Smith 2019). Intervals are 95 % over test texts."
    )
