"""Settings, and what the budgets run."""

from dataclasses import dataclass
from typing import Literal

from interp.settings import check_at_least

REPORT_REACH = 512
PERIOD = 64


@dataclass(frozen=True)
class Config:
    """Score every head for induction, and find out what the model does with it."""

    period: int | None = None
    """Random tokens before they repeat. None: 64, or as many as the model's context has room for."""
    repeats: int = 2
    """How many copies of them a sequence holds."""
    sequences: int = 32
    """Sequences of repeated tokens, and as many of their control without repeats."""
    text: str | None = None
    """A text for what is measured on text: a .txt, .jsonl or .npy file, or hub:NAME. None: the sample text."""
    window: int = 512
    """Tokens of a window of text; the model's context where that is shorter."""
    windows: int = 32
    """How many windows of text, if there are so many."""
    early: int = 50
    """In-context learning: the early position."""
    late: int = 500
    """In-context learning: the late position."""
    around: int = 10
    """In-context learning: positions on either side of early and late whose losses are averaged."""
    induction_threshold: float = 0.4
    """Prefix matching above which a head can be called an induction head."""
    previous_token_threshold: float = 0.4
    """Attention to the previous token above which a head can be called a previous-token head."""
    duplicate_token_threshold: float = 0.4
    """Attention to earlier copies of the token above which a head can be called a duplicate-token head."""
    ablated: tuple[int, ...] | None = None
    """How many of the strongest heads are ablated together. None: 1, 5 and 20; with the full budget also 2, 10, 40."""
    ablated_on: int | None = None
    """Sequences that ablations are measured on. None: 8; with the full budget half of all, as many as were not used to
    select the heads."""
    draws: int | None = None
    """Random sets of heads beside each set of strongest heads. None: 3; with the full budget 10."""
    sources: int = 4
    """How many previous-token heads are tried as sources of the induction heads' keys, the strongest."""
    targets: int = 6
    """How many induction heads are tried as their targets, the strongest."""
    reach: int | None = None
    """The longest period that prefix matching is followed to. None: 512, or, with the full budget, the context."""
    reach_sequences: int = 8
    """Sequences of each period."""
    followed: int = 8
    """How many heads are followed to longer periods, the strongest."""
    shown: int = 6
    """How many induction heads' patterns are kept, the strongest; one of each other kind is kept beside them."""
    shown_tokens: int = 64
    """Tokens of the sequences that patterns are kept of."""
    checkpoints: tuple[str, ...] | None = None
    """Follow loss and heads over training: a folder of the model's checkpoints, and one of a control to be shown beside
    it. No folder: those that the model brings along."""
    revisions: str | None = None
    """Follow loss and heads over revisions of a hub model, with commas between: step0,step1000,step143000."""
    checkpoint_sequences: int = 32
    """Sequences that each checkpoint or revision is measured on, of every kind."""
    seed: int = 0
    """Seed of the tokens, the halves, the draws and the bootstraps."""
    tokens_per_pass: int = 1024
    """Tokens of a forward pass: lower needs less memory."""
    budget: Literal["report", "full"] = "report"
    """full: follow the reach to the end of the context, ablate more heads on more sequences, with more random draws."""

    def __post_init__(self) -> None:
        check_at_least(
            self, period=2, repeats=2, sequences=2, window=2, windows=1, early=1, around=0, draws=1, ablated_on=1,
            sources=1, targets=1, reach=2, reach_sequences=2, followed=1, shown=1, shown_tokens=8,
            checkpoint_sequences=2, seed=0, tokens_per_pass=1,
        )  # fmt: skip
        for name in ("induction_threshold", "previous_token_threshold", "duplicate_token_threshold"):
            if not 0 < (value := getattr(self, name)) < 1:
                raise ValueError(f"{name} must lie between 0 and 1, as a share of attention; got {value}")
        if self.late <= self.early + 2 * self.around:
            raise ValueError(
                f"late must lie beyond early, with {self.around} positions around each; got {self.early} and "
                f"{self.late}"
            )
        if self.ablated is not None and (not self.ablated or min(self.ablated) < 1):
            raise ValueError(f"ablated must name at least one number of heads, none below 1; got {self.ablated}")
        if self.checkpoints is not None and self.revisions is not None:
            raise ValueError("checkpoints are folders and revisions are a hub model's: give one of them")
        if self.revisions is not None and not self.revision_names:
            raise ValueError("revisions must name at least one revision, with commas between; got none")

    @property
    def revision_names(self) -> list[str]:
        """The revisions to follow, each once."""
        return list(dict.fromkeys(name.strip() for name in (self.revisions or "").split(",") if name.strip()))

    @property
    def is_full(self) -> bool:
        """Whether everything is run."""
        return self.budget == "full"

    @property
    def ablated_sizes(self) -> tuple[int, ...]:
        """How many of the strongest heads are ablated together, ascending."""
        sizes = self.ablated or ((1, 2, 5, 10, 20, 40) if self.is_full else (1, 5, 20))
        return tuple(sorted(set(sizes)))

    @property
    def random_draws(self) -> int:
        """Random sets of heads beside each set of strongest heads."""
        return self.draws or (10 if self.is_full else 3)

    @property
    def ablated_sequences(self) -> int | None:
        """Sequences that ablations are measured on; None: all that did not select the heads."""
        return self.ablated_on or (None if self.is_full else 8)

    def longest_period(self, context: int | None) -> int:
        """The longest period that prefix matching is followed to, within a context of so many positions."""
        longest = self.reach or (context if self.is_full and context is not None else REPORT_REACH)
        return longest if context is None else min(longest, context // self.repeats)
