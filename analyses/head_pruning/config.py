"""Settings, and what the budgets run."""

from dataclasses import dataclass
from typing import Literal

from interp.settings import check_at_least

SHARES = tuple(step / 10 for step in range(11))
"""Shares of the heads that curves prune, as nearly as whole heads allow: Michel et al.'s 10 % a step."""

CHEAP_PARAMETERS = 10_000_000
"""A model with fewer is ablated in all ways and trained with gates within the report's budget."""


@dataclass(frozen=True)
class Config:
    """Find out which heads matter, how many can go, and which."""

    text: str | None = None
    """The text: a .txt, .jsonl or .npy file, or hub:NAME. None: the sample text; random tokens that repeat where the
    model has no tokenizer."""
    second_text: str | None = None
    """A second text, on which the order of the first is tried. None: random tokens that repeat (or with a copied
    segment, where they are the first)."""
    metric: str = "loss"
    """What heads matter for: loss; accuracy (as the share of tokens that are not the likeliest one); or
    package.module:name of a function of a hooked model and a batch, that gives one number per sequence, lower for a
    better model."""
    length: int = 48
    """Tokens of a sequence."""
    sequences: int | None = None
    """How many sequences: heads are scored on a third of them, and what pruning does is measured on the others. None:
    18; with the full budget, or for a small model, 48."""
    second_sequences: int = 12
    """How many sequences of the second text."""
    ablated: int | None = None
    """How many heads are ablated one by one, half of them those of highest importance, half of lowest. None: 40; all
    with the full budget."""
    steps: int = 4
    """Points of the integral of integrated gradients; with the full budget four times as many."""
    random_orders: int = 3
    """Random orders of pruning, to compare with."""
    gate_penalties: tuple[float, ...] = (0.001, 0.003, 0.01, 0.03, 0.1, 0.3, 1.0)
    """λ of the learned gates, in nats per head: each goes on from the one before."""
    gate_steps: int = 60
    """Steps of training at each λ."""
    gate_rate: float = 0.1
    """Learning rate of the gates (Adam)."""
    weight_rate: float = 0.0
    """Learning rate of the model's weights beside the gates; 0: they stay frozen. They are put back afterwards."""
    scratch_seeds: int = 6
    """With the full budget: how many times small models are trained from scratch, and cut out of larger ones."""
    scratch_steps: int = 800
    """Steps of their training."""
    seed: int = 0
    """Seed of the text's draw, the parts, random orders, gates and bootstraps."""
    tokens_per_pass: int = 576
    """Tokens of a forward pass: lower needs less memory."""
    budget: Literal["report", "full"] = "report"
    """full: ablate all heads in all four ways, keep each layer's best head, score again at each step of pruning, train
    gates, time models from which heads were cut out, train small models with few heads from scratch."""

    def __post_init__(self) -> None:
        check_at_least(
            self, length=8, sequences=6, second_sequences=2, ablated=2, steps=1, random_orders=1, gate_steps=1,
            scratch_seeds=2, scratch_steps=2, seed=0, tokens_per_pass=1,
        )  # fmt: skip
        if self.metric not in ("loss", "accuracy") and ":" not in self.metric:
            raise ValueError(f"metric is loss, accuracy or package.module:function; got {self.metric!r}")
        if not self.gate_penalties or min(self.gate_penalties) < 0:
            raise ValueError(f"gate_penalties must be numbers of at least 0; got {self.gate_penalties}")
        if not self.gate_rate > 0 or self.weight_rate < 0:
            raise ValueError(
                f"gate_rate must be above 0 and weight_rate at least 0; got {self.gate_rate} and {self.weight_rate}"
            )

    @property
    def is_full(self) -> bool:
        """Whether everything is run."""
        return self.budget == "full"

    @property
    def integral_steps(self) -> int:
        """Points of the integral of integrated gradients."""
        return self.steps * (4 if self.is_full else 1)

    @staticmethod
    def counts(n_heads: int) -> list[int]:
        """Numbers of heads that curves prune, of so many: each once."""
        return sorted({round(share * n_heads) for share in SHARES})

    def n_sequences(self, cheap: bool) -> int:
        """How many sequences."""
        return self.sequences or (48 if self.is_full or cheap else 18)

    def n_ablated(self, n_heads: int) -> int:
        """How many heads of a model are ablated one by one."""
        return min(n_heads, self.ablated or (n_heads if self.is_full else 40))
