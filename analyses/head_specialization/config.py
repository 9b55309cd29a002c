"""Settings, and what the budgets run. Thresholds are the papers'; each says whose."""

from dataclasses import dataclass
from typing import Literal

from interp.settings import check_at_least


@dataclass(frozen=True)
class Config:
    """Say what each head attends to, and how sure that is."""

    text: str | None = None
    """A text to measure on: a .txt, .jsonl or .npy file, or hub:NAME. None: the sample text."""
    other_text: str | None = None
    """A second text, of another kind, to see which scores depend on the text. None: the treebank's, if one is given."""
    window: int | None = None
    """Tokens of a window of text; the model's context where that is shorter. None: 128; with the full budget 512."""
    windows: int | None = None
    """How many windows of text, if there are so many. None: 36; with the full budget 64."""
    beginning: Literal["token", "left_out"] = "token"
    """What keeps a first word from being a sink and a word at once. token: a beginning token is put before the text
    where the tokenizer puts none; left_out: the first word counts as a sink and never as a word."""
    treebank: str | None = None
    """Syntax: a treebank in CoNLL-U. None: the text's sentences as spaCy parses them, if it is installed."""
    spacy_model: str = "en_core_web_sm"
    """Syntax without a treebank: the spaCy model that parses the text."""
    sentences: int | None = None
    """Syntax: how many sentences. None: 600; with the full budget all."""
    least_pairs: int = 50
    """Syntax: word pairs that a relation needs in each half of the treebank."""
    farthest_offset: int = 8
    """Syntax: the best fixed offset is looked for among so many words to either side."""
    sink_epsilon: float = 0.3
    """sink: mean weight on the first position above which a head has a sink (Gu et al. 2025)."""
    sink_length: int = 64
    """sink: how many rows that mean is over (Gu et al. 2025)."""
    positional_share: float = 0.9
    """positional: share of rows whose strongest key is at one offset (Voita et al. 2019)."""
    position_mass: float = 0.5
    """previous_token, current_token: mean weight there (Clark et al. 2019)."""
    special_mass: float = 0.6
    """separator: mean weight on separators (Clark et al. 2019, of special tokens)."""
    broad_entropy: float = 0.78
    """broad: entropy relative to the most that a row's keys allow (Clark et al. 2019: 3.8 nats of ln 128)."""
    match_mass: float = 0.4
    """duplicate_token, induction, bracket_matching: mean weight on the matching tokens (a convention; the same as in
    induction-heads)."""
    rare_word_mass: float = 0.4
    """rare_word: mean weight on the rarest word of the sentence (a convention; Voita et al. 2019 name no threshold)."""
    syntactic_margin: float = 0.1
    """syntactic: accuracy above that of the best fixed offset (Voita et al. 2019)."""
    coreference_margin: float = 0.1
    """coreference: accuracy above that of the better of two baselines, nearest mention and same word (a convention)."""
    redundant_divergence: float = 0.05
    """redundant: Jensen–Shannon divergence from another head, in nats, below which two are one (a convention)."""
    divergence_rows: int | None = None
    """Rows of a window, drawn at random, on which pairs of heads are compared. None: 128; with the full budget all."""
    shown: int = 24
    """How many heads' strongest edges are kept, those that are called something first."""
    shown_sentences: int = 3
    """On how many sentences."""
    shown_tokens: int = 40
    """Most tokens of such a sentence."""
    seed: int = 0
    """Seed of the windows, the halves and the bootstraps."""
    tokens_per_pass: int = 1024
    """Tokens of a forward pass: lower needs less memory."""
    budget: Literal["report", "full"] = "report"
    """full: longer and more windows of text, and the whole treebank."""

    def __post_init__(self) -> None:
        check_at_least(
            self, window=8, windows=1, sentences=2, least_pairs=2, farthest_offset=1, sink_length=2, divergence_rows=1,
            shown=1, shown_sentences=1, shown_tokens=4, seed=0, tokens_per_pass=1,
        )  # fmt: skip
        shares = (
            "sink_epsilon", "positional_share", "position_mass", "special_mass", "broad_entropy", "match_mass",
            "rare_word_mass", "syntactic_margin", "coreference_margin", "redundant_divergence",
        )  # fmt: skip
        for name in shares:
            if not 0 < (value := getattr(self, name)) < 1:
                raise ValueError(f"{name} must lie between 0 and 1; got {value}")

    @property
    def is_full(self) -> bool:
        """Whether everything is run."""
        return self.budget == "full"

    @property
    def window_length(self) -> int:
        """Tokens of a window of text, where the model's context allows it."""
        return self.window or (512 if self.is_full else 128)

    @property
    def n_windows(self) -> int:
        """How many windows of text."""
        return self.windows or (64 if self.is_full else 36)

    @property
    def compared_rows(self) -> int | None:
        """Rows of a window on which every pair of heads is compared; None: all."""
        return self.divergence_rows or (None if self.is_full else 128)

    @property
    def n_sentences(self) -> int | None:
        """How many sentences of a treebank; None: all."""
        return self.sentences or (None if self.is_full else 600)
