"""Other classifiers beside the base, and words erased, in words."""

from itertools import pairwise

import pandas as pd

from reports import words
from reports.chapters import Finding, Rows, Sentence
from reports.chapters.adversarial_attention.sides import SAYS
from reports.chapters.adversarial_attention.told import interval, kind_name, link, main_kind, of_kind, percent
from reports.chapters.reading import Reading, Row, first, records
from reports.figures.adversarial_attention import LN2

_LEAP = LN2 / 3  # of JSD from one λ to the next


def consistent(reading: Reading) -> Finding | None:
    """Uniform attention, seeds, and one adversarial classifier for all texts."""
    table = reading.table("consistent")
    if table.empty:
        return None
    rows = {kind: table.loc[table["kind"] == kind] for kind in set(table["kind"])}
    base, uniform = (first(rows[kind]) for kind in ("base", "uniform"))
    text = (
        f"with uniform attention, trained around it, accuracy is {words.number(uniform['accuracy'])} against "
        f"{words.number(base['accuracy'])}: "
        + ("the task needs attention." if base["accuracy"] - uniform["accuracy"] > 0.05 else
           "the task hardly needs attention, and cannot tell whether it explains.")
    )  # fmt: skip
    support = []
    for row in records(rows["seed"]) if "seed" in rows else []:
        support.append(_path_sentence("Another seed attends", row, "and answers"))
    for row in records(rows.get("consistent", table.head(0)).sort_values("weight")):
        accuracy = words.number(row["accuracy"])
        start = f"One adversarial classifier for all texts (λ = {row['weight']:g}, accuracy {accuracy})"
        support.append(_path_sentence(f"{start} attends", row, "and answers"))
    support += _border(rows.get("consistent", table.head(0)))
    for row in records(rows["per_instance"]) if "per_instance" in rows else []:
        if pd.notna(row["jsd"]):
            support.append(
                _path_sentence("Adversaries found for each text alone attend", row, "and change the answer by")
            )
    support += _guides(rows)
    return Finding(
        Sentence(words.sentence_case(text), (Rows("consistent", {"kind": "uniform"}),)), tuple(support),
        SAYS["consistent"],
    )  # fmt: skip


def _border(path: pd.DataFrame) -> list[Sentence]:
    """Where along λ attention leaves the base's at once: no run there says much."""
    known = records(path.dropna(subset=["jsd"]).sort_values("weight"))
    pairs = list(pairwise(known))
    if not pairs:
        return []
    near, far = max(pairs, key=lambda pair: pair[1]["jsd"] - pair[0]["jsd"])
    if far["jsd"] - near["jsd"] < _LEAP:
        return []
    text = (
        f"Between λ = {near['weight']:g} and {far['weight']:g} its attention leaves the base's, from "
        f"{words.number(near['jsd'])} to {words.number(far['jsd'])} nats, and accuracy goes from "
        f"{words.number(near['accuracy'])} to {words.number(far['accuracy'])}. For a λ in between, where training ends "
        "may depend on the order of the texts and on rounding: one run there says little."
    )
    return [Sentence(text, (Rows("consistent", {"kind": "consistent"}),))]


def _path_sentence(start: str, row: Row, verb: str) -> Sentence:
    by = "" if verb.endswith("by") else " with a change of"
    return Sentence(
        f"{start} {words.measured(row['jsd'], row['jsd_low'], row['jsd_high'])} nats away {verb}{by} "
        f"{words.measured(row['tvd'], row['tvd_low'], row['tvd_high'])} (TVD).",
        (Rows("consistent", {"kind": str(row["kind"])}),),
    )


def _guides(rows: dict[str, pd.DataFrame]) -> list[Sentence]:
    names = {"guide_uniform": "uniform weights", "guide_own": "its own", "guide_base": "the base's",
             "guide_adversary": "an adversary's"}  # fmt: skip
    told = [f"{name} {words.number(first(rows[kind])['accuracy'])}" for kind, name in names.items() if kind in rows]
    text = f"A classifier that reads each word by itself reaches, guided by {words.join(told)} (accuracy)."
    return [Sentence(text, (Rows("consistent", {}),))] if told else []


def erasure(reading: Reading) -> Finding | None:
    """What erasing words by attention does to the decision."""
    row = main_kind(reading)
    if row is None or (table := of_kind(reading, "flips", row)).empty:
        return None
    shares = {(str(each["most_attended"]), str(each["random"])): each for each in records(table)}
    alone, other, both = (shares[key] for key in (("flips", "stays"), ("stays", "flips"), ("flips", "flips")))
    text = (
        f"without the most attended word alone the decision of {kind_name(row)} flips in {percent(alone['value'])} "
        f"{interval(alone)} of the texts, without a random word alone in {percent(other['value'])}, without either "
        f"in "
        f"{percent(both['value'])}."
    )
    orders = records(of_kind(reading, "removal", row))
    told = [f"{percent(each['value'])} by {str(each['order']).replace('_', ' × ')}" for each in orders]
    support = [
        Sentence(
            f"Until the decision flips, these shares of the words must go: {words.join(told)}.",
            (link("removal", row),),
        )
    ]
    return Finding(Sentence(words.sentence_case(text), (link("flips", row),)), tuple(support), SAYS["erasure"])
