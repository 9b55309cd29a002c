"""Settings, and what the budgets run."""

from dataclasses import dataclass
from typing import Annotated, Literal

from tyro.conf import arg

from interp.settings import check_at_least

TOPICS = (
    "formula", "scaling", "saturation", "floating-point", "kernels", "heads", "masks", "positions", "depth", "cost",
)  # fmt: skip
_NO_TRAINING = "Leave out the experiments that train small models; the rest takes seconds."  # of --no-training


@dataclass(frozen=True)
class Config:
    """Measure the claims that are made about why attention is as it is."""

    topics: tuple[str, ...] = TOPICS
    """Which sections to measure."""
    seeds: int | None = None
    """Models trained for each setting, each from its own seed. None: 5; with the full budget 10."""
    training: Annotated[bool, arg(help=_NO_TRAINING)] = True
    """Whether to run the experiments that train small models."""
    text: str | None = None
    """A text for what is measured on the model: a .txt, .jsonl or .npy file, or hub:NAME. None: the sample text."""
    tokens: int = 128
    """Tokens of a window of text."""
    windows: int = 4
    """Windows of text."""
    seed: int = 0
    """Seed of everything drawn at random."""
    budget: Literal["report", "full"] = "report"
    """full: ten seeds a setting, and depths up to 48."""

    def __post_init__(self) -> None:
        if unknown := [topic for topic in self.topics if topic not in TOPICS]:
            raise ValueError(f"topics are {', '.join(TOPICS)}; got {', '.join(unknown)}")
        if not self.topics:
            raise ValueError("topics must name at least one section")
        check_at_least(self, seeds=5, tokens=16, windows=1, seed=0)

    @property
    def is_full(self) -> bool:
        """Whether everything is run."""
        return self.budget == "full"

    @property
    def n_seeds(self) -> int:
        """Models trained for each setting."""
        return self.seeds or (10 if self.is_full else 5)
