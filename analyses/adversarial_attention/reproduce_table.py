"""Published and measured numbers side by side, as Markdown; and whether the published orderings hold."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from analyses.adversarial_attention.published import PERMUTATION, PUBLISHED, Cell

CellName = tuple[str, str, str]
"""Data set, encoder, attention."""
Seeds = Mapping[CellName, Sequence[dict[str, Any]]]
"""What was measured of each classifier, a seed each."""

LEARNED = 0.1  # a seed counts whose development accuracy is at most so far below the published accuracy
_METRICS = {
    "accuracy": "accuracy", "auc": "AUC", "tau_gradient": "τ attention, gradients",
    "tau_leave_one_out": "τ attention, leave-one-out", "tau_both": "τ gradients, leave-one-out",
    "jsd": "ε-max JSD, median (ε = 0.05)", "above_half": "share above 0.5",
}  # fmt: skip
_SHORT = ("tau_gradient", "tau_leave_one_out", "tau_both", "jsd", "above_half")  # of those without published numbers
_NAMES = {"sst": "SST", "babi-1": "bAbI-1", "babi-2": "bAbI-2", "babi-3": "bAbI-3", "cnn": "CNN", "lstm": "BiLSTM"}
_ORDERINGS: tuple[tuple[CellName, CellName], ...] = (
    (("sst", "average", "tanh"), ("sst", "lstm", "tanh")),
    (("sst", "average", "dot"), ("sst", "lstm", "dot")),
    (("sst", "lstm", "tanh"), ("sst", "lstm", "dot")),
    (("sst", "cnn", "tanh"), ("sst", "cnn", "dot")),
    (("sst", "average", "tanh"), ("sst", "average", "dot")),
    (("babi-1", "average", "tanh"), ("babi-1", "lstm", "tanh")),
    (("babi-1", "lstm", "dot"), ("babi-1", "lstm", "tanh")),
)


def table(seeds: Seeds) -> list[str]:
    """Of the classifiers with published numbers, a row a number, classes side by side; measured is the mean over the
    seeds that learned."""
    lines = ["| | published | measured | range over seeds | difference |", "|---|---|---|---|---|"]
    for cell, measured in seeds.items():
        published = PUBLISHED.get(cell)
        if published is None or not measured:
            continue
        learned = _learned(cell, measured)
        lines.append(f"| **{_named(cell)}**: {_told(measured, learned)} | | | | |")
        if not learned:
            lines.append(f"| accuracy | {published.accuracy:.3f} | — | — | — |")
            continue
        lines += list(_numbers(published, learned))
        if cell == ("sst", "lstm", "tanh"):
            lines += list(_permutations(learned))
        lines += list(_controls(learned))
    return lines if len(lines) > 2 else []


def unpublished(seeds: Seeds) -> list[str]:
    """Of the other classifiers, a row each: mean and range over the seeds that learned, those better than the commonest
    answer on the test texts (`training.Quality`)."""
    names = ("learned", "accuracy of all seeds; of the commonest answer", *(_METRICS[name] for name in _SHORT))
    lines = [f"| without published numbers | {' | '.join(names)} |", f"|---{'|---' * len(names)}|"]
    for cell, measured in seeds.items():
        if cell in PUBLISHED or not measured:
            continue
        learned = _learned(cell, measured)
        right = [seed["accuracy"]["all"] for seed in measured]
        told = f"{len(learned)} of {len(measured)}"
        values = [_minus(_spread([seed[name]["all"] for seed in learned])) for name in _SHORT]
        accuracy = f"{_spread(right)}; {measured[0]['chance']:.3f}"
        lines.append(f"| {_named(cell)} | {' | '.join((told, accuracy, *values))} |")
    return lines if len(lines) > 2 else []


def orderings(seeds: Seeds) -> list[str]:
    """Which of two classifiers has the higher mean τ of attention with gradients, for every pair of seeds that learned;
    nothing where a classifier has no such seed."""
    lines = ["| τ attention, gradients: all | published | measured | pairs of seeds in which it holds |",
             "|---|---|---|---|"]  # fmt: skip
    for pair in _ORDERINGS:
        high, low = ([seed["tau_gradient"]["all"] for seed in _learned(cell, seeds.get(cell, ()))] for cell in pair)
        if high and low:
            known = " > ".join(f"{PUBLISHED[cell].tau_gradient['all']:.3f}" for cell in pair)
            held = sum(one > other for one in high for other in low)
            lines.append(
                f"| {' > '.join(map(_named, pair))} | {known} | {np.mean(high):.3f}, {np.mean(low):.3f} "
                f"| {held} of {len(high) * len(low)} |"
            )
    return lines if len(lines) > 2 else []


def _named(cell: CellName) -> str:
    return ", ".join(_NAMES.get(part, part) for part in cell)


def _spread(values: Sequence[float]) -> str:
    """Mean, and the range in brackets."""
    some = [value for value in values if not np.isnan(value)]
    ends = f" ({min(some):.3f} to {max(some):.3f})" if len(some) > 1 else ""
    return f"{np.mean(some):.3f}{ends}" if some else "—"


def _learned(cell: CellName, measured: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    published = PUBLISHED.get(cell)
    if published is None:
        return [seed for seed in measured if seed["above_chance"]]
    return [seed for seed in measured if seed["dev_accuracy"] >= published.accuracy - LEARNED]


def _told(measured: Sequence[dict[str, Any]], learned: Sequence[dict[str, Any]]) -> str:
    told = f"{len(learned)} of {len(measured)} {'seed' if len(measured) == 1 else 'seeds'} learned"
    missed = sorted(seed["accuracy"]["all"] for seed in measured if seed not in learned)
    return f"{told} (accuracy of the others: {', '.join(f'{each:.3f}' for each in missed)})" if missed else told


def _numbers(published: Cell | None, seeds: Sequence[dict[str, Any]]) -> Iterator[str]:
    for metric, name in _METRICS.items():
        known = getattr(published, metric, None)
        by_class = known if isinstance(known, dict) else {"all": known}
        classes = [
            of for of in ("all", *sorted(by_class.keys() - {"all"}))
            if not np.isnan(seeds[0].get(metric, {}).get(of, np.nan))
        ]  # fmt: skip
        if classes:
            values = [[seed[metric].get(of, np.nan) for seed in seeds] for of in classes]
            label = name if classes == ["all"] else f"{name}: {', '.join(classes)}"
            yield _line(label, [by_class.get(of) for of in classes], values)


def _permutations(seeds: Sequence[dict[str, Any]]) -> Iterator[str]:
    for of, medians in PERMUTATION.items():
        ends = [(number / 4, (number + 1) / 4) for number in range(len(medians))]
        values = [
            [row["median"] for seed in seeds for row in seed["permutation"]
             if row["class"] == of and (row["max_attention_low"], row["max_attention_high"]) == bin_ends]
            for bin_ends in ends
        ]  # fmt: skip
        bins = ", ".join(f"{low:g} to {high:g}" for low, high in ends)
        yield _line(f"permutation median of {of}, largest weight {bins}", medians, values)


def _controls(seeds: Sequence[dict[str, Any]]) -> Iterator[str]:
    """What random logits give without a search, and what the paper's ε gives."""
    last = max(row["steps"] for row in seeds[0]["adversaries"])
    what = ((0, 0.05, "random start, 0 steps, median (ε = 0.05)"), (last // 2, 0.05, f"{last // 2} steps, median"),
            (last, 0.01, "ε = 0.01, median"))  # fmt: skip
    for step, epsilon, name in what:
        values = [
            row["median"] for seed in seeds for row in seed["adversaries"]
            if (row["class"], row["steps"], row["epsilon"]) == ("all", step, epsilon)
        ]  # fmt: skip
        yield _line(name, [None], [values])


def _line(name: str, known: Sequence[float | None], values: Sequence[Sequence[float]]) -> str:
    """A row; of several classes the numbers stand side by side in each of its fields."""
    fields: list[tuple[str, str, str, str]] = []
    for published, all_values in zip(known, values, strict=True):
        some = [value for value in all_values if not np.isnan(value)]
        mean = f"{np.mean(some):.3f}" if some else "—"
        spread = f"{min(some):.3f} to {max(some):.3f}" if len(some) > 1 else "—"
        apart = f"{np.mean(some) - published:+.3f}" if some and published is not None else "—"
        fields.append(("—" if published is None else f"{published:.3f}", mean, spread, apart))
    columns = [", ".join(column) for column in zip(*fields, strict=True)]
    return f"| {name} | {' | '.join(_minus(_dash(column)) for column in columns)} |"


def _dash(column: str) -> str:
    return "—" if set(column) <= set("—, ") else column


def _minus(column: str) -> str:
    return column.replace("-", "−")
