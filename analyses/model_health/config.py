"""Settings, and the limits of every check, each with its reason."""

from dataclasses import dataclass
from typing import Literal

from analyses.model_health.checks import Check
from interp.settings import check_at_least

SATURATED = 0.99
"""Weight above which a row counts as saturated."""
UNSCALED = 0.25
"""Exponent α of the scale d_head^−α in use below which scores count as not scaled: nearer to none than to a half."""


@dataclass(frozen=True)
class Config:
    """Check a model for what goes wrong silently in attention."""

    context: int | None = None
    """Positions that costs are worked out for. None: the model's longest input, or 4,096 where it has none."""
    requests: int = 1
    """Sequences that are served at once, for the memory of keys and values."""
    memory: float | None = None
    """Memory in GiB that weights, keys and values must fit into. None: no limit."""
    causal: Literal["auto", "yes", "no"] = "auto"
    """Whether no token may see a later one. auto: what the model's kind, config and masks claim."""
    text: str | None = None
    """A text for the statistics of attention: a .txt, .jsonl or .npy file, or hub:NAME. None: the sample text."""
    length: int = 128
    """Tokens of the sequences that attention's statistics are taken on; fewer where the model reads fewer."""
    sequences: int | None = None
    """How many such sequences. None: 4; with the full budget 16."""
    seed: int = 0
    """Seed of tokens and bootstraps."""
    budget: Literal["report", "full"] = "report"
    """full: four times as many sequences for attention's statistics."""

    def __post_init__(self) -> None:
        check_at_least(self, context=1, requests=1, length=8, sequences=2, seed=0)
        if self.memory is not None and not self.memory > 0:
            raise ValueError(f"memory must be above 0 GiB; got {self.memory:g}")

    @property
    def is_causal(self) -> bool | None:
        """What the owner says of causality; None: nothing."""
        return {"auto": None, "yes": True, "no": False}[self.causal]

    @property
    def n_sequences(self) -> int:
        """Sequences that attention's statistics are taken on."""
        return self.sequences or (16 if self.budget == "full" else 4)


_LEAKS = (
    Check(
        "future_leak", "leaks", "Does a token change anything before it?", "relative change",
        "Look at the mask of the site named: it must forbid key j > query i before the softmax (tril with diagonal 0). "
        "Where the output leaks but no site does, something else crosses positions, such as a norm over the sequence.",
    ),
    Check(
        "padding_leak_right", "leaks", "Does what stands in padding after a sequence change anything?",
        "relative change", "Pass the padding mask to the attention of the site named, before the softmax.",
    ),
    Check(
        "padding_leak_left", "leaks", "Does what stands in padding before a sequence change anything?",
        "relative change", "Pass the padding mask to the attention of the site named, before the softmax.",
    ),
    Check(
        "padding_changes", "leaks", "Is a sequence the same alone and padded in a batch?", "relative change",
        "Count positions along tokens that are not padding, and mask padding as keys.",
    ),
    Check(
        "batch_size", "leaks", "Is a sequence the same alone and in a batch?", "relative change",
        "Something is taken over the batch: look for a norm or a mean over dimension 0, or a reshape that mixes batch "
        "and heads.",
    ),
    Check(
        "batch_order", "leaks", "Is a sequence the same wherever in a batch it stands?", "relative change",
        "Something belongs to a place in the batch: look for indices into the batch, or a reshape that mixes it.",
    ),
    Check(
        "repeats", "mode", "Do two passes in evaluation mode agree?", "relative change",
        "Something is random in evaluation mode: give dropout `training=self.training`, or use nn.Dropout.",
    ),
    Check(
        "training_mode", "mode", "Does training mode without dropout compute the same?", "relative change",
        "A part depends on the mode beside dropout (batch statistics, usually): results in training are not those of "
        "evaluation.",
    ),
    Check(
        "order_blindness", "order", "Does a bidirectional model notice the order of its input?", "relative change",
        "Give it positions: nothing in it tells the first token from the last.", worse="below",
    ),
    Check(
        "told_by_position", "order", "How far does position alone move attention from uniform?", "total variation",
        "",
    ),
)  # fmt: skip

_SOFTMAX = (
    # A head may be sharp; half of all rows of a model, no trained language model at hand comes near.
    Check(
        "saturated_rows", "softmax", "How many rows put more than 0.99 on one key?", "share of rows",
        "Most rows are hard choices, through which hardly a gradient comes: check the scale 1/√d_head, or normalise "
        "queries and keys.", warn_at=0.5, fail_at=0.9,
    ),
    # limits are worked out for the number of keys (scores.py): √(2 ln n) for a site without scale, 3 √(2 ln n) for
    # others, and twice as much
    Check(
        "score_deviation", "softmax", "Are scores so wide that a softmax freezes?", "standard deviation",
        "Scores should begin with a standard deviation of about 1: check the scale 1/√d_head and the size of W_Q, W_K.",
    ),
    Check(
        "effective_exponent", "softmax", "By which power of d_head are scores in effect divided?", "exponent", "",
    ),
    # float32's rounding unit is 1.2e-7: a gradient made so small is below the rounding of what it is added to. Not the
    # norm of a typical head (0.1 and more) but where learning ends: heads that rest on a first token for whole
    # sequences come down to 1e-5 there (SmolLM2's L18H8) and are well
    Check(
        "softmax_jacobian", "softmax", "How much gradient does a head's softmax let through?", "‖diag(σ)−σσᵀ‖_F",
        "This head's rows are fixed choices that no gradient can change: its scores have grown too large.",
        warn_at=1e-6, fail_at=1.2e-7, worse="below",
    ),
    Check(
        "entropy_collapse", "softmax", "Has the entropy of a layer's attention collapsed?", "share of ln n",
        "All heads of the site attend to single tokens: lower the learning rate, normalise queries and keys, or "
        "reparametrise their weights (σReparam).", warn_at=0.05, fail_at=0.01, worse="below",
    ),
    Check(
        "largest_score", "softmax", "Do scores stay within half precision?", "|q · k|",
        "Scale queries before the product, compute scores in float32, or use bfloat16.", warn_at=65504.0,
    ),
)  # fmt: skip

_GRADIENTS = (
    Check(
        "gradient_to_queries_and_keys", "gradients", "Does a gradient reach queries and keys?", "share of the values'",
        "The softmax of this site lets next to nothing through, so queries and keys do not learn: its scores are too "
        "large, or its rows have one key.", warn_at=1e-4, fail_at=1e-7, worse="below",
    ),
    Check(
        "vanishing_gradient", "gradients", "Does a gradient reach the first layers?", "relative to the last layer",
        "Add residual connections, normalise before each sublayer, or initialise larger.", warn_at=1e-2, fail_at=1e-4,
        worse="below",
    ),
    Check(
        "exploding_gradient", "gradients", "Do gradients grow towards the first layers?", "relative to the last layer",
        "Normalise before each sublayer, or initialise smaller.", warn_at=1e3, fail_at=1e6,
    ),
    Check(
        "activation_growth", "gradients", "Do activations go on growing with depth?", "factor a layer",
        "Normalise before each sublayer, and scale what sublayers write by 1/√depth.", warn_at=2.0, fail_at=4.0,
    ),
)  # fmt: skip

_NUMBERS = (
    Check(
        "agrees_under_the_core", "numbers", "Does reading the model leave what it computes?", "largest difference",
        "What this project says of the model's attention would be said of another model. Is it random in evaluation?",
    ),
    Check(
        "finite", "numbers", "Is every number finite?", "share of the output",
        "Look at the module named: an empty row of a softmax, a division by zero or an overflow.", fail_at=0.0,
    ),
    Check(
        "finite_float16", "numbers", "Would it be in float16?", "share of the output",
        "Activations leave float16's range (65,504) there: use bfloat16, or keep that module in float32.", warn_at=0.0,
    ),
    Check(
        "finite_bfloat16", "numbers", "Would it be in bfloat16?", "share of the output",
        "Keep the module named in float32.", warn_at=0.0,
    ),
    Check(
        "row_sums", "numbers", "Do the weights that meet the values add up to 1?", "|Σ − 1|",
        "A query's weights do not add up to 1: the softmax must run over the keys (dim=-1), and the mask be added to "
        "the scores before it (−inf), not after.",
        fail_at=1e-3,
    ),
    Check(
        "empty_rows", "numbers", "Does every row have a key to read?", "share of rows",
        "A softmax over nothing is NaN or uniform, depending on how it is masked: let each token read itself.",
        warn_at=0.0,
    ),
)  # fmt: skip

_NORMS = (
    Check(
        "mixing_of_positions", "norms", "Without attention, do positions stay apart?", "relative change",
        "Something besides attention carries from one position to others: a norm over the sequence instead of the "
        "features, a mean over positions, a convolution.",
    ),
    Check(
        "mixing_of_sequences", "norms", "Without attention, do sequences stay apart?", "relative change",
        "Something carries from one sequence of a batch to others: normalise over the features.",
    ),
)  # fmt: skip

_HEADS = (
    Check(
        "identical_heads", "heads", "Do two heads of a site have the same pattern?", "divergence, relative",
        "One of the two can go, or they were initialised or copied alike.", warn_at=1e-4, worse="below",
    ),
    Check(
        "negligible_heads", "heads", "Is there a head whose output nothing feels?", "share of the median head's",
        "The head's values or its rows of W_O are next to zero: it can be pruned, or never learned.", warn_at=1e-4,
        worse="below",
    ),
)  # fmt: skip

_COST = (
    Check("flops", "cost", "What does a forward pass compute?", "FLOP", ""),
    Check("pattern_memory_eager", "cost", "What would eager attention hold?", "bytes", ""),
    Check("pattern_memory_here", "cost", "What does this project hold?", "bytes", ""),
    Check("kv_cache_per_token", "cost", "What does a token add to the cache?", "bytes", ""),
    Check(
        "kv_cache", "cost", "Do keys and values fit into memory?", "bytes",
        "Serve fewer or shorter requests, use fewer kv heads, or a cache in 8 bits.",
    ),
    Check("grouped_keys", "cost", "What would fewer kv heads save?", "share of the cache", ""),
)  # fmt: skip

CHECKS = {check.name: check for check in (*_LEAKS, *_SOFTMAX, *_GRADIENTS, *_NUMBERS, *_NORMS, *_HEADS, *_COST)}
"""Every check, by name, in the order of the page."""
