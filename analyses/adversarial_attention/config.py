"""Settings, and what the budgets run."""

import math
from dataclasses import dataclass
from typing import Literal

from interp.settings import check_at_least

Encoder = Literal["lstm", "cnn", "average"]
Attention = Literal["tanh", "dot"]


@dataclass(frozen=True)
class Config:
    """Change attention as far as the output allows: in classifiers trained for it, and in the model's heads."""

    part: Literal["both", "classifiers", "heads"] = "both"
    """classifiers: the tests of Jain & Wallace and their critics; heads: those of the model's own heads."""

    # Classifiers: texts -------------------------------------------------------------------------------------------
    data: str | None = None
    """Labelled texts: a .csv, .tsv or .jsonl file, a folder of them (train, dev, test), a folder of trees (Stanford
    Sentiment Treebank), a bAbI file, or hub:NAME. None: facts about who is where, with questions, made up."""
    text_column: str = "text"
    """The column of the texts."""
    label_column: str = "label"
    """The column of the labels, or of the answers."""
    question_column: str | None = None
    """The column of the questions. None: there are none, so it is classification."""
    split_column: str | None = None
    """The column that says train, dev or test. None: split or exp_split where there is one, else splits are made."""
    longest: int = 400
    """Words of a text beyond which it is cut."""
    shortest: int = 1
    """Words of a text below which it is left out; Jain & Wallace keep those above 5 of the sentiment treebank."""
    vectors: str = "random"
    """Word vectors to begin with: random, text (made from the training texts), model:NAME (a model's input embeddings),
    or a file in text format."""

    # Classifiers: training ----------------------------------------------------------------------------------------
    encoders: tuple[Encoder, ...] | None = None
    """What reads the texts. None: lstm and average; with the full budget cnn too."""
    attentions: tuple[Attention, ...] | None = None
    """How attention is scored. None: tanh (additive); with the full budget dot too."""
    seeds: int | None = None
    """Classifiers of each kind, with seeds counted from --seed. None: 1; with the full budget 3."""
    epochs: int | None = None
    """Passes over the training texts. None: 8, as published, for classification; 100 for questions, 14 on the facts
    that are made up."""
    keep: str | None = None
    """A folder in which trained classifiers are kept, and taken up again."""
    interpret_anyway: bool = False
    """Test also classifiers that did not learn to answer above chance."""

    # Classifiers: tests -------------------------------------------------------------------------------------------
    instances: int | None = None
    """Test texts that attention is tested on. None: 200; with the full budget all."""
    permutations: int = 100
    """Random permutations of each text's attention."""
    adversaries: int = 5
    """Adversarial distributions of each text, searched for together."""
    steps: int = 500
    """Steps of their search; 0 leaves the random start."""
    penalty: float = 500.0
    """Weight of the output's change beyond the margin (λ)."""
    margin: float = 0.01
    """Change of the output that the search leaves free; the authors' code has 0.01 for every data set."""
    epsilon: float | None = None
    """Largest change of the output (TVD) of an adversary that counts. None: as in the paper, 0.01, for questions 0.05;
    the other of the two is reported beside it."""
    consistent_weights: tuple[float, ...] | None = None
    """Weights λ of the divergence in the model-consistent adversary. None: two; with the full budget seven."""
    variants: int | None = None
    """Further seeds of the base classifier for the seeds' own variance. None: 1; with the full budget 7."""
    instances_per_pass: int = 256
    """Texts that are computed together: lower needs less memory."""

    # Heads (docs/attention-freedom.md) ----------------------------------------------------------------------------
    heads: str = "top"
    """Which heads: top (by importance), all, whole layers (L5) or single heads (L5H1 L7H0)."""
    top: int | None = None
    """How many of the most important heads. None: 20; with the full budget all."""
    text: str | None = None
    """Text whose rows are changed: a file, a folder, token ids (.npy) or hub:NAME. None: the bundled sample."""
    length: int = 136
    """Tokens of a sequence."""
    places: int | None = None
    """Sequences in each of which one row of every head is searched. None: 3; with the full budget 6."""
    head_epsilon: float = 0.01
    """Largest change of the output (TVD) that a changed row may make, at any watched position."""
    horizon: int = 4
    """Positions, from the row's own on, at which a causal model's output is watched; other models' is watched whole."""
    position: int | None = None
    """Watch one position alone: 0 is the row's own, 1 the next. None: all, and the largest change counts."""
    least_keys: int = 8
    """Keys of a row below which it is left out."""
    pinned: float = 0.1
    """Share of the largest possible divergence below which a row counts as pinned."""
    head_starts: int | None = None
    """Starts of each search for a row. None: 2; with the full budget 4."""
    knocked: int = 6
    """Keys of a row, drawn at random, that are knocked out one by one."""
    copies: int = 64
    """Changed rows that are run together: lower needs less memory."""

    seed: int = 0
    """Seed of texts, weights, permutations and starts."""
    budget: Literal["report", "full"] = "report"
    """full: all encoders and both attentions, three seeds each, all test texts, more variants and weights."""

    def __post_init__(self) -> None:
        check_at_least(
            self, longest=2, shortest=0, seeds=1, epochs=1, instances=2, permutations=1, adversaries=1, steps=0,
            variants=0, instances_per_pass=1, seed=0, top=1, length=8, places=1, horizon=1, position=0, least_keys=2,
            head_starts=1, knocked=3, copies=1,
        )  # fmt: skip
        for name in ("penalty", "margin"):
            if not (math.isfinite(value := getattr(self, name)) and value >= 0):
                raise ValueError(f"{name} must be a finite number, at least 0; got {value}")
        if self.epsilon is not None and not 0 < self.epsilon <= 1:
            raise ValueError(
                f"epsilon, the largest change of the output (TVD), must be above 0 and at most 1; got {self.epsilon}"
            )
        self._check_heads()
        for name in ("encoders", "attentions"):
            if (value := getattr(self, name)) is not None and not value:
                raise ValueError(f"{name} must name at least one")
        if any(weight < 0 or not math.isfinite(weight) for weight in self.consistent_weights or ()):
            raise ValueError(f"consistent_weights must be finite and at least 0; got {self.consistent_weights}")

    def _check_heads(self) -> None:
        if not 0 < self.head_epsilon <= 1:
            raise ValueError(
                "head_epsilon, the largest change of the output in TVD, must lie above 0 and at most at 1; got "
                f"{self.head_epsilon}"
            )
        if not 0 < self.pinned < 1:
            raise ValueError(f"pinned, a share of the largest divergence, must lie between 0 and 1; got {self.pinned}")
        if self.position is not None and self.position >= self.horizon:
            raise ValueError(f"position must be below the horizon, {self.horizon}; got {self.position}")
        if not self.heads.strip():
            raise ValueError("heads must be top, all, or names such as L5H1 and L5; got nothing")

    @property
    def n_top(self) -> int | None:
        """How many of the most important heads; None: all."""
        return self.top or (None if self.is_full else 20)

    @property
    def n_places(self) -> int:
        """Sequences in which rows are changed."""
        return self.places or (6 if self.is_full else 3)

    @property
    def n_aside(self) -> int:
        """Sequences that heads are chosen on, and as many of other text."""
        return 8 if self.is_full else 3

    @property
    def n_starts(self) -> int:
        """Starts of each search for a row."""
        return self.head_starts or (4 if self.is_full else 2)

    @property
    def is_full(self) -> bool:
        """Whether everything is run."""
        return self.budget == "full"
