"""Michel et al. 2019 and Voita et al. 2019 on a text classifier: their numbers beside those measured here.

``python -m analyses.head_pruning.reproduce_michel --model MODEL --scored A.csv --reported B.csv`` takes an encoder with
a classification head (theirs: BERT-base, fine-tuned on MNLI or SST-2) and labelled texts (columns ``text``, ``label``,
and ``text_b`` for pairs). ``--fit C.csv`` fits the head of an encoder that has none, by logistic regression. What is
finished is kept in ``--out`` and taken up again by the same command. Numbers of translation models are printed with
what they need.
"""

import hashlib
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pandas as pd
import tyro
from transformers import AutoTokenizer

import interp
from analyses import head_pruning
from analyses.head_pruning import published
from analyses.head_pruning.beside import row, rows
from analyses.head_pruning.classified import measure
from analyses.head_pruning.labelled import Cut, Labelled, classifier, read
from interp import UserError
from interp.models.checkpoints import locate
from interp.results import code_sha256, fingerprint
from interp.results.folder import check_writable

__all__ = ["Config", "main", "reproduce"]


@dataclass(frozen=True)
class Config:
    """Prune a classifier, and print what Michel et al. and Voita et al. (2019) found beside what is found."""

    scored: Path
    """Labelled texts on which heads are scored, chosen and gated: .csv or .jsonl with text, label and, for pairs,
    text_b."""
    reported: Path
    """Labelled texts on which everything is reported (a file of its own)."""
    model: str = "bert-base-uncased"
    """A classifier: a folder, hub name or bundled name."""
    fit: Path | None = None
    """Labelled texts to fit the classification head on, where the checkpoint has none."""
    n: int = 256
    """At most so many texts of each file that is measured on, drawn at random; the table says how many."""
    fit_n: int = 1000
    """At most so many texts to fit the head on."""
    length: int = 128
    """Tokens that a text is cut to."""
    batch_size: int = 32
    """Texts of a pass; texts of a batch are about equally long."""
    gate_penalties: tuple[float, ...] = (0.001, 0.003, 0.01, 0.03)
    """λ of the learned gates, in nats per head: each goes on from the one before."""
    gate_steps: int = 40
    """Steps of training at each λ."""
    rounds: int = 5
    """Alternating runs that the speed of the pruned model is measured in; 0: it is not."""
    seed: int = 0
    """Seed of the draws and the gates."""
    out: Path = Path("runs/michel")
    """Folder of what is finished; the table is written there as michel.csv."""

    def __post_init__(self) -> None:
        if min(self.n, self.fit_n, self.batch_size, self.gate_steps) < 1 or self.length < 3 or self.rounds < 0:
            raise UserError(
                "--n, --fit-n, --batch-size and --gate-steps are at least 1, --length at least 3, --rounds at least 0"
            )
        if self.seed < 0:
            raise UserError(f"--seed is at least 0; got {self.seed}")
        if not self.gate_penalties or min(self.gate_penalties) < 0:
            raise UserError(f"--gate-penalties are numbers of at least 0; got {self.gate_penalties}")


def main(argv: Sequence[str] | None = None) -> int:
    """Measure, print and write down; the exit code."""
    try:
        config = tyro.cli(Config, args=argv, prog="python -m analyses.head_pruning.reproduce_michel")
        check_writable(config.out)
        found = reproduce(config)
    except UserError as error:
        sys.stderr.write(f"error: {error}\n")
        return 1
    config.out.mkdir(parents=True, exist_ok=True)
    found.to_csv(config.out / "michel.csv", index=False)
    sys.stdout.write("\n".join(markdown(found)) + "\n")
    return 0


def reproduce(config: Config) -> pd.DataFrame:
    """``paper, quantity, published, measured, needs``: one row a number of the papers or of what is found.

    ``needs``: the model and data that a number takes which is not measured.
    """
    checkpoint = locate(config.model)
    tokenizer = AutoTokenizer.from_pretrained(str(checkpoint.path))
    cut = Cut(config.length, config.batch_size)
    drawn = {name: read(getattr(config, name), config.n, config.seed) for name in ("scored", "reported")}
    fit = None if config.fit is None else read(config.fit, config.fit_n, config.seed)
    module = classifier(checkpoint, tokenizer, fit, cut)
    for name, table in drawn.items():
        if (most := max(table["label"].tolist())) >= module.config.num_labels:
            raise UserError(
                f"{getattr(config, name)} has the label {most}, and the classifier {module.config.num_labels} classes, "
                "counted from 0"
            )
    model = interp.load(module, tokenizer=tokenizer, verify=False)
    texts = {name: Labelled(table, tokenizer, cut) for name, table in drawn.items()}
    about = {"name": checkpoint.name, "weights_sha256": checkpoint.weights_sha256}
    settings = {name: value for name, value in vars(config).items() if name != "out"}
    settings["texts"] = [_sha256(table) for table in (*drawn.values(), fit) if table is not None]
    inputs = fingerprint("reproduce-michel", settings, about, code_sha256(head_pruning))
    found = measure(
        model, texts["scored"], texts["reported"], config.out / "steps" / inputs[:16],
        penalties=config.gate_penalties, gate_steps=config.gate_steps, rounds=config.rounds, seed=config.seed,
    )  # fmt: skip
    return pd.DataFrame([*_described(config, drawn, fit), *rows(found), *_elsewhere()])


def _described(config: Config, drawn: dict[str, pd.DataFrame], fit: pd.DataFrame | None) -> list[dict[str, str]]:
    """What is measured on."""
    head = (
        "its own head" if fit is None or config.fit is None else f"head fitted on {len(fit)} texts of {config.fit.name}"
    )
    theirs = {"scored": "MNLI, SST-2, CoLA, MRPC", "reported": "the same"}
    words = {"scored": "texts that heads are scored, chosen and gated on", "reported": "texts reported on"}
    return [
        row("", "classifier", "BERT-base, fine-tuned", f"{config.model}, {head}"),
        *(
            row("", words[name], theirs[name], f"{len(table)} of {getattr(config, name).name}")
            for name, table in drawn.items()
        ),
    ]


def _sha256(table: pd.DataFrame) -> str:
    return hashlib.sha256(table.to_csv(index=False).encode()).hexdigest()


def _elsewhere() -> list[dict[str, str]]:
    return [{**row(each.paper, each.quantity, each.value), "needs": each.needs} for each in published.ELSEWHERE]


def markdown(found: pd.DataFrame) -> list[str]:
    """The table as text: what is measured beside what is published, then what needs other models."""
    here: Any = found[found["needs"] == ""]
    lines = ["| quantity | published | measured |", "|---|---|---|"]
    lines += [f"| {row['quantity']} | {row['published']} | {row['measured']} |" for row in here.to_dict("records")]
    lines += ["", "Published numbers that need other models:", "", "| paper | quantity | published | needs |",
              "|---|---|---|---|"]  # fmt: skip
    elsewhere: Any = found[found["needs"] != ""]
    return lines + [
        f"| {row['paper']} | {row['quantity']} | {row['published']} | {row['needs']} |"
        for row in elsewhere.to_dict("records")
    ]


if __name__ == "__main__":
    raise SystemExit(main())
