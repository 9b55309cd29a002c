"""Settings, and what the budgets run."""

from dataclasses import dataclass
from typing import Literal

from interp.settings import check_at_least


@dataclass(frozen=True)
class Config:
    """Find the heads that fetch something from far back, and what attention becomes over long inputs."""

    lengths: tuple[int, ...] | None = None
    """Lengths of the inputs in tokens. None: 128, 256, 512 and 1,024, within the context; with the full budget every
    power of two up to the context."""
    depths: int | None = None
    """Places of the needle, from the beginning of the input to its end. None: 3; with the full budget 10."""
    needles: int | None = None
    """Needles tried at each place. None: 3; with the full budget 10."""
    needle: str | None = None
    """A .jsonl file of needles of one's own, objects with needle, question and answer; the answer stands in the needle
    after the question's words. None: generated."""
    text: str | None = None
    """The text that needles are hidden in: a .txt, .jsonl or .npy file, or hub:NAME. None: the sample text."""
    threshold: float = 0.1
    """Retrieval score above which a head can be called a retrieval head (Wu et al. 2024)."""
    piece: int = 1024
    """Positions of a forward pass: lower needs less memory."""
    batch: int = 4
    """Sequences of a forward pass."""
    followed: int = 8
    """How many heads are followed over lengths and depths, the strongest."""
    seed: int = 0
    """Seed of the needles and of the text's order."""
    budget: Literal["report", "full"] = "report"
    """full: lengths up to the context, ten places, ten needles."""

    def __post_init__(self) -> None:
        check_at_least(self, depths=1, needles=2, piece=16, batch=1, followed=1, seed=0)
        if self.lengths is not None and (not self.lengths or min(self.lengths) < 48):
            raise ValueError(f"lengths must name at least one length, none below 48 tokens; got {self.lengths}")
        if not 0 < self.threshold < 1:
            raise ValueError(f"threshold must lie between 0 and 1; got {self.threshold}")

    @property
    def is_full(self) -> bool:
        """Whether everything is run."""
        return self.budget == "full"

    @property
    def n_depths(self) -> int:
        """Places of the needle."""
        return self.depths or (10 if self.is_full else 3)

    @property
    def n_needles(self) -> int:
        """Needles at each place."""
        return self.needles or (10 if self.is_full else 3)

    def lengths_within(self, context: int | None) -> list[int]:
        """The lengths, ascending, within a context."""
        if self.lengths is not None:
            return sorted(set(self.lengths))
        most = context or 1024
        wanted = [2**k for k in range(7, 18)] if self.is_full else [128, 256, 512, 1024]
        return [length for length in wanted if length <= most] or [most]
