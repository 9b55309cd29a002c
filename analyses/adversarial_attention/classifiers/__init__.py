"""Classifiers with one layer of attention, and what is asked of it."""

# task.py         texts, sizes, word vectors
# training.py     the classifiers, and whether they learned
# tested.py       answers, attention, gradients, leaving words out
# agreement.py    rank agreement of attention, gradients and leaving words out (Jain & Wallace)
# permuting.py    attention dealt out at random (Jain & Wallace)
# search.py       the search for adversarial attention, in batches (Jain & Wallace)
# adversaries.py  what it found, checked on the untouched classifier
# consistent.py   uniform, seeds, guides, one adversarial classifier for all texts (Wiegreffe & Pinter)
# erasing.py      attention set to zero (Serrano & Smith)
# states.py       how alike hidden states are (Mohankumar et al.)
# facts.py        whether the fact that answers is found
# shown.py        texts as tables, for figures
# tables.py       means with intervals

from collections.abc import Callable
from functools import cache
from typing import Any

import numpy as np
import pandas as pd
import torch

from analyses.adversarial_attention.classifiers import (
    adversaries,
    agreement,
    consistent,
    erasing,
    facts,
    permuting,
    shown,
    states,
)
from analyses.adversarial_attention.classifiers.search import Search
from analyses.adversarial_attention.classifiers.tables import kind_of
from analyses.adversarial_attention.classifiers.task import Task, prepare
from analyses.adversarial_attention.classifiers.tested import Tested
from analyses.adversarial_attention.classifiers.training import Trained, subset, train
from analyses.adversarial_attention.config import Config
from interp.results import Workspace

__all__ = ["examined", "tables"]

Tables = dict[str, pd.DataFrame]
Kind = tuple[str, str, int]
_REPORT_INSTANCES = 200
_KEPT = 1000  # rows of `examples` of each classifier: enough for every figure


def tables(config: Config, work: Workspace, device: torch.device) -> tuple[Tables, dict[str, Any]]:
    """All tables of this part, and what the texts were.

    Raises:
        UserError: the texts or vectors cannot be read, or a folder of classifiers holds others.
    """
    task = prepare(config, work)
    _say_what_full_adds(config, work)

    @cache
    def of_kind(kind: Kind) -> Trained:
        return train(task, kind, work, device, keep=config.keep)

    made: list[Tables] = []
    for number, kind in enumerate(_kinds(config)):
        name = "-".join(map(str, kind))
        made.append(work.step(name, lambda kind=kind, first=number == 0: _of(task, kind, config, work, of_kind, first)))
    names = dict.fromkeys(name for part in made for name in part)
    joined = {
        name: pd.concat([part[name] for part in made if len(part.get(name, ()))] or [pd.DataFrame()], ignore_index=True)
        for name in names
    }
    return {name: table for name, table in joined.items() if len(table)}, described(task)


def described(task: Task) -> dict[str, Any]:
    """What the texts were, for the result's provenance."""
    texts = task.texts
    return {
        "what": texts.name, "labels": list(texts.labels), "asks": texts.asks, "vectors": task.what,
        "n": {split: len(texts.of(split)) for split in ("train", "dev", "test")}, "words": len(task.index) - 4,
        "epochs": task.sizes.epochs, "d_embed": task.sizes.d_embed, "d_hidden": task.sizes.d_hidden,
    }  # fmt: skip


def _kinds(config: Config) -> list[Kind]:
    encoders = config.encoders or (("lstm", "cnn", "average") if config.is_full else ("lstm", "average"))
    attentions = config.attentions or (("tanh", "dot") if config.is_full else ("tanh",))
    seeds = config.seeds or (3 if config.is_full else 1)
    return [
        (encoder, attention, config.seed + seed)
        for attention in attentions for encoder in encoders for seed in range(seeds)
    ]  # fmt: skip


def _of(
    task: Task, kind: Kind, config: Config, work: Workspace, of_kind: Callable[[Kind], Trained], is_first: bool
) -> Tables:
    """Everything about one classifier."""
    encoder, attention, seed = kind
    trained = of_kind(kind)
    quality = trained.quality
    is_tested = quality.learned or config.interpret_anyway
    row = {
        "accuracy": quality.accuracy, "auc": quality.auc, "f1": quality.f1, "chance": quality.chance,
        "best_epoch": trained.best_epoch, "epochs": trained.epochs, "n": len(task.texts.of("test")),
        "learned": quality.learned, "tested": is_tested, "note": quality.note,
    }  # fmt: skip
    made: dict[str, list[dict[str, object]]] = {"classifiers": [row]}
    if not is_tested:
        work.skip(
            f"tests of {encoder} with {attention} attention, seed {seed}",
            f"{quality.note}; --interpret-anyway tests it all the same",
        )
    else:
        made |= examined(task, trained, kind, config, work, of_kind if is_first else None)
    columns = kind_of(encoder, attention, seed)
    return {name: pd.DataFrame([{**columns, **one} for one in some]) for name, some in made.items() if some}


def examined(
    task: Task, trained: Trained, kind: Kind, config: Config, work: Workspace,
    of_kind: Callable[[Kind], Trained] | None = None,
) -> dict[str, list[dict[str, object]]]:  # fmt: skip
    """Rows of all tables about one classifier that learned; `consistent` and `instances` only where ``of_kind`` gives
    the classifiers that it is compared with."""
    seed = kind[2]
    texts = task.texts.of("test")
    wanted = config.instances or (None if config.is_full else _REPORT_INSTANCES)
    chosen = [texts[i] for i in subset(len(texts), wanted, config.seed)]
    tested = Tested(trained.model, task.examples(chosen), chosen, task.texts.labels, config.instances_per_pass)
    agreements = agreement.agreements(tested)
    changes = permuting.median_changes(tested, config.permutations, seed)
    how = Search(config.adversaries, config.steps, config.penalty, config.margin)
    at = sorted({0, config.steps // 10, config.steps // 5, config.steps // 2, config.steps})
    found = adversaries.adversaries(tested, how, at, seed)
    levels = adversaries.epsilons(task.texts.asks, config.epsilon)
    last, erased, alike = found[config.steps], erasing.erased(tested, seed), states.conicity(tested)
    _say_what_is_undefined(tested, last, work)
    made = {
        "agreement": agreement.rows(tested, agreements, seed),
        "permutation": permuting.rows(tested, changes, seed),
        "adversaries": adversaries.rows(tested, found, levels, seed),
        "erasure": erasing.erasure_rows(erased, seed),
        "flips": erasing.flip_rows(erased),
        "removal": erasing.removal_rows(erased, seed),
        "conicity": states.rows(tested, alike, seed),
        "examples": shown.example_rows(
            tested,
            {
                "tau_gradient": agreements["attention_gradient"].tau,
                "tau_leave_one_out": agreements["attention_leave_one_out"].tau,
                "tau_gradient_leave_one_out": agreements["gradient_leave_one_out"].tau,
                "permutation_tvd": changes, "jsd": last.farthest(levels[0]), "adversary_tvd": last.change(levels[0]),
                "share": last.farthest(levels[0]) / np.maximum(last.ceiling, 1e-12), "conicity": alike,
                "start_jsd": found[0].farthest(levels[0]),
            },
            _KEPT,
        ),
    }  # fmt: skip
    if task.texts.has_facts:
        made["supporting_facts"] = facts.rows(tested)
    if of_kind is not None:
        base = consistent.Base(kind, trained, tested, task, last, levels[0], of_kind)
        made["consistent"] = consistent.rows(base, config, work)
        made["instances"] = shown.instance_rows(tested, last, levels[0])
    return made


def _say_what_is_undefined(tested: Tested, last: adversaries.Found, work: Workspace) -> None:
    """Notes on texts that some test says nothing about."""
    n = len(tested)
    if single := int((tested.examples.n_words < 2).sum()):
        work.note(
            f"{single:,} of {n:,} test texts have one word: their attention can be no other, and no rank agreement is "
            "defined; they are left out"
        )
    if level := sum(len(row) >= 2 and float(np.ptp(row)) == 0 for row in tested.attention):
        work.note(
            f"{level:,} of {n:,} test texts have exactly uniform attention: it ranks no word, and its τ is undefined"
        )
    broken = int((~np.isfinite(last.jsd) | ~np.isfinite(last.tvd)).any(1).sum())
    if broken:
        work.note(f"the search for adversaries broke down (not a number) in {broken:,} of {len(tested):,} texts")


def _say_what_full_adds(config: Config, work: Workspace) -> None:
    if config.is_full:
        return
    left = [
        "the cnn encoder" if config.encoders is None else "", "dot attention" if config.attentions is None else "",
        "two of three seeds" if config.seeds is None else "",
        f"test texts beyond {_REPORT_INSTANCES}" if config.instances is None else "",
    ]  # fmt: skip
    if any(left):
        work.skip(", ".join(part for part in left if part), "budget is report")
