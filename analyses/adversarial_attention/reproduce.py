"""Jain & Wallace's numbers, made again: ``python -m analyses.adversarial_attention.reproduce --data DIR``.

Trains the published classifiers on the sentiment treebank (``DIR/sst``) and bAbI's tasks (``DIR/babi/en``), tests their
attention, and prints published, measured (mean over seeds, range) and difference. Each seed of each classifier is kept
in ``--out`` as it is finished, and taken up again. Seeds that did not learn are shown, and left out of the means.
"""

import itertools
import json
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, get_args

import torch
import tyro

from analyses.adversarial_attention.classifiers import adversaries, agreement, permuting
from analyses.adversarial_attention.classifiers.search import Search
from analyses.adversarial_attention.classifiers.task import Task, prepare, read, task_of
from analyses.adversarial_attention.classifiers.tested import Tested
from analyses.adversarial_attention.classifiers.training import train
from analyses.adversarial_attention.config import Config as Settings
from analyses.adversarial_attention.reproduce_table import CellName, Seeds, orderings, table, unpublished
from analyses.adversarial_attention.stories import with_made_stories
from interp.data import LabelledTexts
from interp.errors import UserError
from interp.models.classifiers.config import Attention, Encoder
from interp.results import Workspace
from interp.results.folder import check_writable
from interp.results.storage import write_file

_TASKS = {f"babi-{n}": f"qa{n}_" for n in (1, 2, 3)}
MADE, MADE_UP = "made", "babi-1"  # --babi's word for stories that are made up, and the task that they are of
_PARTS = (("sst", *_TASKS), get_args(Encoder), get_args(Attention))
"""What cells are named of."""
_CELLS: tuple[CellName, ...] = tuple(itertools.product(_PARTS[0], ("average", "cnn", "lstm"), ("tanh", "dot")))
"""All of them, of each data set the quick ones first."""


@dataclass(frozen=True)
class Config:
    """Train, test and compare with what was published."""

    data: Path
    """Folder with sst/ and babi/en/."""
    cells: tuple[str, ...] = ()
    """Which, as data-set:encoder:attention (sst:lstm:tanh). None: all."""
    seeds: int = 3
    """Seeds of each."""
    vectors: str = "random"
    """Word vectors to begin with, for SST: random, text, model:NAME or a file. The paper's are fastText's."""
    babi: str = "en"
    """Folder in babi/: en has 1,000 questions of each task to learn from, en-10k the 10,000 of the published runs. Or
    made: 10,000 made up in the manner of babi-1; the test questions are those of en."""
    epochs: int | None = None
    """Train for so many and keep the last. None: as published, the best on development texts of 8, of bAbI 100."""
    out: Path = Path("runs/jain-wallace")
    """Folder of what is finished."""
    table_only: bool = False
    """Print the table of what is finished, and compute nothing."""

    def __post_init__(self) -> None:
        if self.seeds < 1:
            raise UserError(f"--seeds is at least 1; got {self.seeds}")
        if self.epochs is not None and self.epochs < 1:
            raise UserError(f"--epochs is at least 1; got {self.epochs}")


def main(config: Config) -> None:
    """Compute what is missing and print the table."""
    wanted = list(_cells(config))
    check_writable(config.out)
    for data, encoder, attention in wanted if not config.table_only else []:
        task = None
        for seed in range(config.seeds):
            place = _place(config, (data, encoder, attention, seed))
            if not place.exists():
                task = task or read_task(config, data)
                found = measured(task, data, (encoder, attention, seed), config)
                place.parent.mkdir(parents=True, exist_ok=True)
                write_file(place, json.dumps(found, indent=1))
                _say(f"{place.stem}: accuracy {found['accuracy']['all']:.3f}, {found['seconds']:.0f} s")
    seeds = finished(config, wanted)
    if not any(seeds.values()):
        raise UserError(f"nothing is finished in {config.out}; leave out --table-only, or give --out its folder")
    tables = (table(seeds), unpublished(seeds), orderings(seeds))
    _say("\n\n".join("\n".join(lines) for lines in tables if lines))


def read_task(config: Config, data: str) -> Task:
    """The texts of one data set as published, and the sizes of its classifiers.

    Raises:
        UserError: the files are not there.
    """
    if data in _TASKS:
        begins = f"babi/{'en' if config.babi == MADE else config.babi}/{_TASKS[data]}"
        found = sorted(config.data.glob(f"{begins}*_train.txt"))
        if not found:
            raise UserError(f"{config.data} must hold {begins}…_train.txt; give --data the folder above babi")
        settings = Settings(data=str(found[0]), longest=10_000)
        texts = read(settings)
        return task_of(with_made_stories(texts) if config.babi == MADE else texts, settings, Workspace())
    place = config.data / "sst"
    if not place.is_dir():
        raise UserError(f"{config.data} must hold the folder sst; give --data the folder above it")
    settings = Settings(data=str(place), shortest=6, longest=10_000, vectors=config.vectors)
    task = prepare(settings, Workspace())
    return Task(without_longest(task.texts), task.index, task.sizes, task.vectors, task.what)


def without_longest(texts: LabelledTexts) -> LabelledTexts:
    """As the authors' filter leaves them: without the longest texts of each split, its bound being strict."""
    longest = {split: max(len(text.words) for text in texts.of(split)) for split in ("train", "dev", "test")}
    kept = tuple(text for text in texts.texts if text.split and len(text.words) < longest[text.split])
    return LabelledTexts(texts.name, kept, texts.labels, texts.remarks, texts.left_out, texts.given)


def measured(task: Task, data: str, kind: tuple[str, str, int], config: Config) -> dict[str, Any]:
    """Everything of one seed of one classifier, by predicted class."""
    started = time.monotonic()
    work, keep = Workspace(), str(config.out / "classifiers" / f"{data}-{_begun(config, data)}")
    select = config.epochs is None
    trained = train(task, kind, work, torch.device("cpu"), keep=keep, select=select, epochs=config.epochs)
    texts = task.texts.of("test")
    tested = Tested(trained.model, task.examples(texts), texts, task.texts.labels, 128 if task.texts.asks else 512)
    found: dict[str, Any] = {
        "accuracy": {"all": trained.quality.accuracy}, "auc": {"all": trained.quality.auc},
        "dev_accuracy": trained.quality.dev_accuracy, "chance": trained.quality.chance,
        "above_chance": trained.quality.learned, "best_epoch": trained.best_epoch, "n": len(texts),
    }  # fmt: skip
    agreements = agreement.agreements(tested)
    rows = agreement.rows(tested, agreements, kind[2])
    names = {"attention_gradient": "tau_gradient", "attention_leave_one_out": "tau_leave_one_out",
             "gradient_leave_one_out": "tau_both"}  # fmt: skip
    for row in rows:
        found.setdefault(names[str(row["pair"])], {})[str(row["class"])] = row["value"]
    levels, how = adversaries.epsilons(task.texts.asks, None), Search()
    by_step = adversaries.adversaries(tested, how, [0, 250], kind[2])
    found["adversaries"] = adversaries.rows(tested, by_step, levels, kind[2])
    for row in found["adversaries"]:
        if row["steps"] == how.steps and row["epsilon"] == 0.05:  # what the authors' plots count
            found.setdefault("jsd", {})[row["class"]] = row["median"]
            found.setdefault("above_half", {})[row["class"]] = row["above_half"]
    found["permutation"] = permuting.rows(tested, permuting.median_changes(tested, 100, kind[2]), kind[2])
    return {**found, "seconds": time.monotonic() - started}


def finished(config: Config, wanted: Sequence[CellName]) -> Seeds:
    """What is in ``--out`` of each classifier, a seed each."""
    places = {cell: [_place(config, (*cell, seed)) for seed in range(config.seeds)] for cell in wanted}
    return {cell: [json.loads(place.read_text()) for place in some if place.exists()] for cell, some in places.items()}


def _say(text: str) -> None:
    sys.stdout.write(f"{text}\n")
    sys.stdout.flush()


def _cells(config: Config) -> list[CellName]:
    others = set(_TASKS) - {MADE_UP} if config.babi == MADE else set()
    if not config.cells:
        return [cell for cell in _CELLS if cell[0] not in others]
    made = []
    for cell in config.cells:
        parts = tuple(cell.split(":"))
        if len(parts) != 3 or any(part not in known for part, known in zip(parts, _PARTS, strict=True)):
            known = ", ".join(" or ".join(some) for some in _PARTS)
            raise UserError(f"cells are data-set:encoder:attention, of {known}; got {cell!r}")
        if parts[0] in others:
            raise UserError(f"--babi {MADE} makes up stories of {MADE_UP} alone; got the cell {cell!r}")
        made.append((parts[0], parts[1], parts[2]))
    return made


def _place(config: Config, of: tuple[str, str, str, int]) -> Path:
    return config.out / f"{'-'.join(map(str, of))}-{_begun(config, of[0])}.json"


def _begun(config: Config, data: str) -> str:
    """What a classifier begins with and how long it learns, where settings change it."""
    begun = Path(config.vectors).stem.replace(":", "-") if data == "sst" else config.babi
    begun = "random" if begun == "en" else begun
    return begun if config.epochs is None else f"{begun}-{config.epochs}"


if __name__ == "__main__":
    try:
        main(tyro.cli(Config, prog="python -m analyses.adversarial_attention.reproduce"))
    except UserError as error:
        sys.exit(f"error: {error}")
