"""How the numbers of `head-pruning` come about: formulas, sources, a paragraph to copy, BibTeX."""

from reports import words
from reports.chapters import Method
from reports.chapters.reading import Reading
from reports.references import cited

METHODS = (
    Method(
        "Importance",
        "The derivative of the metric by a gate on the head's output before W_O: its absolute value in each sequence, "
        "then the mean over sequences, divided by the ℓ2 norm over the heads of the layer. Where a layer has fewer "
        "active positions than another of the same sequence, its derivative is scaled up by that ratio first.",
        "I_h = E |∂L/∂ξ_h| / ‖E |∂L/∂ξ|‖ over the layer's heads",
        "Michel et al. 2019",
    ),
    Method(
        "Estimates of ablation",
        "What an ablation would change if the metric were linear in the gates (first order), and the derivative "
        "averaged over the way on which the gates of all heads go from 1 to 0 together (integrated gradients), whose "
        "estimates add up to the change without any head. Gates blend in what the ablation would put in the head's "
        "place.",
        "−∂L/∂ξ at ξ = 1;   −∫ ∂L/∂ξ dα at ξ = α",
        "Michel et al. 2019; Sundararajan et al. 2017",
    ),
    Method(
        "Ablation",
        "The change of the metric when one head's output before W_O is replaced: by its output on another sequence at "
        "the same position (resample), its mean over other sequences, or zero; or when its pattern becomes its mean "
        "pattern (Hassid et al. 2022). Other sequences are those of the scoring part. p-values flip signs, paired by "
        "sequence, and are corrected over heads and both directions together. Needed: the metric rises; harmful: it "
        "falls.",
        "change = metric without the head − metric, paired by sequence",
        "Michel et al. 2019; Hassid et al. 2022; Benjamini & Hochberg 1995",
    ),
    Method(
        "Direct effect",
        "The change in what the head writes is added where the last layer's output enters the final norm, whose "
        "division by the stream's size is kept as it was. No other layer sees it.",
        "logits(x + Δ) with the norm of x,   Δ = (r − z) W_O",
        "Elhage et al. 2021; McGrath et al. 2023",
    ),
    Method(
        "Pruning curves",
        "Heads are gated to zero in the order of a score, lowest first, 10 % at a time; no training in between. "
        "Orders are made on a third of the sequences and measured on the other. The area is the mean of the metric "
        "along the curve (trapezoid rule), the margin its difference from that of importance, paired by sequence.",
        "area = ∫ metric(share) d share",
        "Michel et al. 2019",
    ),
    Method(
        "Free share",
        "Where the mean metric along the curve first exceeds the upper end of the unpruned model's interval, read "
        "linearly between steps; its interval is a bootstrap over sequences. Stricter is the last step before the "
        "paired change is above 0 for sure.",
        "min share with mean change > half the width of the unpruned model's interval",
    ),
    Method(
        "Rank agreement",
        "Spearman's ρ over the ablated heads, score from a third of the sequences, change from the other. The interval "
        "is for what other sequences, as many, would give; noise pulls that towards zero, and so the correlation "
        "itself. Drawing sequences anew pulls once more, so the resamples' spread is used and not where they lie; "
        "w widens it for few sequences. Importance on two kinds of data is compared likewise, by Pearson's r over all "
        "heads.",
        "tanh(z − w (z* − mean z*)),   z = artanh ρ,   w = √(n/(n − 1)) t₀.₉₇₅(n − 1) / 1.96",
        "Efron & Tibshirani 1993",
    ),
    Method(
        "Cost",
        "Heads are cut out of the weights, the first in the order of importance; a kv head goes with the last query "
        "head that reads it. A multiplication and an addition are two FLOPs, counted as PyTorch executes them. Times "
        "(full budget) are those of PyTorch's fused attention, unpruned, masked and pruned in alternating rounds; "
        "ratios are taken within a round and averaged as logarithms.",
        "ratio = pruned / unpruned",
    ),
    Method(
        "Few heads from the beginning",
        "Small models that learn to go on with repeated random tokens, from several seeds: with few heads from the "
        "beginning; with many, cut to as few by importance for the last quarter of the steps; each with and without "
        "head dropout until then. Losses are of held-out sequences, differences paired by seed (full budget).",
        "loss(many heads, cut, trained on) − loss(few heads from the beginning)",
        "Michel et al. 2019; Zhou et al. 2020",
    ),
    Method(
        "Learned gates",
        "Hard-concrete gates, one a head, trained from the converged model with a penalty on their probability of "
        "being open. At test time a gate is its stretched, clipped sigmoid without noise or temperature; a head is "
        "kept where it is above 0.",
        "L + λ Σ σ(log a − 0.33 log(0.1/1.1));   gate = clip(1.2 σ(log a) − 0.1, 0, 1)",
        "Voita et al. 2019; Louizos et al. 2018",
    ),
)

REFERENCES = cited(
    "michel2019sixteen",
    "voita2019analyzing",
    "hassid2022attention",
    "louizos2018learning",
    "zhou2020scheduled",
    "mcgrath2023hydra",
    "sundararajan2017axiomatic",
    "elhage2021mathematical",
    "benjamini1995controlling",
    "efron1993introduction",
)


def paragraph(reading: Reading) -> str:
    """Methods as a paragraph to copy into a paper, from this run's settings."""
    sequences = reading.config.get("sequences")
    of = f" of {words.count(int(sequences), 'sequence')}" if sequences else ""
    return (
        f"{reading.who} by the mean absolute derivative of the metric by a gate on "
        f"each head's output, normalised by layer (Michel et al., 2019), on a third{of}. On the others heads "
        "were ablated one by one (output replaced by that on another sequence at the same position) and pruned by "
        "gating in steps of 10 %, in the order of importance and in random orders. Changes are paired by sequence, "
        "with studentised bootstrap intervals over sequences (95 %); p-values are from sign flips with "
        "Benjamini-Hochberg correction over heads and directions (0.05). The free share is where the curve leaves the "
        "interval of the unpruned model."
    )
