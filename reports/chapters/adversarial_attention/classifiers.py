"""What the tests say of the classifiers' attention, in words. Numbers are read from the tables alone."""

import pandas as pd

from reports import words
from reports.chapters import Finding, Rows, Sentence
from reports.chapters.adversarial_attention.rivals import consistent, erasure
from reports.chapters.adversarial_attention.sides import SAYS
from reports.chapters.adversarial_attention.told import (
    data_name,
    interval,
    kind_name,
    last_search,
    link,
    main_kind,
    measured,
    of_kind,
    percent,
    whole_row,
)
from reports.chapters.reading import Reading, Row, first, records
from reports.figures.adversarial_attention import RANKINGS

_NEEDED, _FREE = 0.1, 1 / 3  # borders of the verdict: change under shuffling (TVD), share of the largest divergence


def findings(reading: Reading) -> tuple[Finding, ...]:
    """All that can be said of the classifiers, the verdict first."""
    if not reading.has("classifiers"):
        return ()
    made = (
        verdict(reading), supporting(reading), agreement(reading), permutation(reading), adversaries(reading),
        consistent(reading), erasure(reading), not_tested(reading),
    )  # fmt: skip
    return tuple(finding for finding in made if finding is not None)


def lead(reading: Reading) -> Sentence | None:
    """The sentence that the page opens with where this part alone was run."""
    row = main_kind(reading)
    found = None if row is None else last_search(reading, row)
    if row is None or found is None:
        return None
    return Sentence(
        f"On {data_name(reading)}, attention of {kind_name(row)} (accuracy {words.number(row['accuracy'])}) can be "
        f"moved "
        f"by {words.measured(found['value'], found['ci_low'], found['ci_high'])} nats of at most 0.69 while the answer "
        f"changes by no more than {found['epsilon']:g}.",
        (link("adversaries", row),),
    )


def verdict(reading: Reading) -> Finding | None:
    """What the tests together say of this model on these data."""
    row = main_kind(reading)
    found = None if row is None else last_search(reading, row)
    if row is None or found is None:
        return None
    whole = whole_row(of_kind(reading, "permutation", row, **{"class": "all"}))
    if whole is None:
        return None
    needed = float(whole["value"]) > _NEEDED
    fixed = float(found["share"]) < _FREE
    if needed and fixed:
        text = "attention is needed for the answer and largely fixed by it: here it may be read as an explanation"
    elif needed:
        text = (
            "the answer needs attention, but not these weights: as where the model looks they inform, as the reason "
            "for "
            "an answer they are one of many"
        )
    elif fixed:
        text = "shuffled attention changes little although the weights cannot move far: the tests disagree"
    else:
        text = "the answer hardly depends on attention: here it should not be read as an explanation"
    support = (
        Sentence(
            "Shuffling the weights within a text changes the answer by "
            f"{measured(whole)} (TVD, mean of medians); " + ("much" if needed else "little")
            + f", where {_NEEDED:g} is taken as the border.",
            (link("permutation", row),),
        ),
        Sentence(
            f"The farthest weights with the same answer (within {found['epsilon']:g}) are at "
            f"{words.number(100 * float(found['share']), 0)} % of the largest divergence that a text allows; above a "
            f"third "
            "counts as free.",
            (link("adversaries", row),),
        ),
    )  # fmt: skip
    return Finding(
        Sentence(f"For {kind_name(row)} on {data_name(reading)}: {text}.", (link("classifiers", row),)), support,
        "anything of other data or models: in the papers the same tests come out both ways, and the two borders are "
        "conventions of this page.",
    )  # fmt: skip


def supporting(reading: Reading) -> Finding | None:
    """How often attention finds the fact that answers."""
    table = reading.measured("supporting_facts", "value")
    row = main_kind(reading)
    if table.empty or row is None:
        return None
    hits = {str(hit["ranking"]): hit for hit in records(of_kind(reading, "supporting_facts", row))}
    told = [
        f"{RANKINGS[name]} in {percent(hit['value'])} {interval(hit)}" for name, hit in hits.items()
        if pd.notna(hit["value"])
    ]  # fmt: skip
    if not told:
        return None
    chance = first(of_kind(reading, "supporting_facts", row))["chance"]
    n = int(first(of_kind(reading, "supporting_facts", row))["n"])
    text = (
        f"the fact that answers gets the most weight from {words.join(told)} of {words.count(n, 'text')} answered "
        f"correctly, where a random fact would in {percent(chance)}."
    )
    others = [
        Sentence(
            f"For {kind_name(other)} (accuracy {words.number(other['accuracy'])}), attention does in "
            f"{percent(hit['value'])} {interval(hit)}.",
            (link("supporting_facts", other),),
        )
        for other in records(reading.table("classifiers", tested=True))
        if (other["encoder"], other["attention"], other["seed"]) != (row["encoder"], row["attention"], row["seed"])
        for hit in records(of_kind(reading, "supporting_facts", other, ranking="attention").dropna(subset="value"))
    ][:4]  # fmt: skip
    sentence = Sentence(f"In {kind_name(row)}, {text}", (link("supporting_facts", row),))
    return Finding(sentence, tuple(others), SAYS["supporting_facts"])


def agreement(reading: Reading) -> Finding | None:
    """Rank agreement of attention with gradients and leave-one-out, and of these with each other."""
    row = main_kind(reading)
    if row is None or (table := of_kind(reading, "agreement", row, **{"class": "all"})).empty:
        return None
    tau = {str(each["pair"]): each for each in records(table)}
    one, two, three = (
        tau[name] for name in ("attention_gradient", "attention_leave_one_out", "gradient_leave_one_out")
    )
    text = (
        f"{kind_name(row)} ranks words as gradients do with τ = {measured(one)}, as leave-one-out does with "
        f"{measured(two)}; these two agree with each other at {measured(three)}."
    )
    significant = (
        f"τ with gradients is significant at 0.05 in {percent(one['significant'])} of {int(one['n']):,} texts, with "
        f"leave-one-out in {percent(two['significant'])} (each text by itself; of texts without any agreement 5 % are)"
    )
    undefined = max(int(each["undefined"]) for each in tau.values())
    told = f"; it is undefined in {undefined:,}, which are left out" if undefined else ""
    support = [Sentence(f"{significant}{told}.", (link("agreement", row),)), *_by_class(reading, row)]
    support += _others(reading, row, "agreement", "τ with gradients is", pair="attention_gradient")
    return Finding(Sentence(words.sentence_case(text), (link("agreement", row),)), tuple(support), SAYS["agreement"])


def permutation(reading: Reading) -> Finding | None:
    """What shuffling the weights does, and whether alike hidden states explain a flat result."""
    row = main_kind(reading)
    if row is None or (table := of_kind(reading, "permutation", row, **{"class": "all"})).empty:
        return None
    whole = whole_row(table)
    binned = table.loc[(table["max_attention_low"] > 0) | (table["max_attention_high"] < 1)]
    parts = [
        f"{words.number(each['value'])} where the largest weight is {each['max_attention_low']:g}–"
        f"{each['max_attention_high']:g} ({int(each['n']):,} texts)"
        for each in records(binned)
    ]
    if whole is None:
        return None
    text = (
        f"shuffled attention changes the answer of {kind_name(row)} by {measured(whole)} (TVD, mean over texts of the "
        "median over permutations)."
    )
    support = [Sentence(f"It is {words.join(parts)}.", (link("permutation", row),))]
    for each in records(of_kind(reading, "conicity", row, **{"class": "all"}).dropna(subset="value")):
        told = "so alike that any weights would give nearly the same mean" if each["value"] > 0.8 else (
            "not so alike that this alone would make shuffling harmless"
        )  # fmt: skip
        support.append(
            Sentence(
                f"Its hidden states have a conicity of {measured(each)} (independent directions: "
                f"{words.number(each['chance'])}): {told}.",
                (link("conicity", row),),
            )
        )
    return Finding(
        Sentence(words.sentence_case(text), (link("permutation", row),)), tuple(support), SAYS["permutation"]
    )


def adversaries(reading: Reading) -> Finding | None:
    """How far attention can go while the answer stays, with the control of no search at all."""
    row = main_kind(reading)
    found = None if row is None else last_search(reading, row)
    if row is None or found is None:
        return None
    rows = of_kind(reading, "adversaries", row, **{"class": "all"})
    text = (
        f"in {percent(found['found'])} of the texts weights were found that change the answer by at most "
        f"{found['epsilon']:g} (TVD): their divergence from the model's own is {measured(found)} nats on average, "
        f"median {words.number(found['median'])}, above 0.5 in {percent(found['above_half'])}."
    )
    support = [
        Sentence(
            f"That is {percent(found['share'])} of the largest divergence that the text allows; measured by running "
            f"the "
            f"untouched model with them, the answer changes by {words.number(found['tvd'])} on average.",
            (link("adversaries", row),),
        )
    ]
    for start in records(rows.loc[(rows["steps"] == 0) & (rows["epsilon"] == found["epsilon"])]):
        some = f"at {words.number(start['value'])} nats" if pd.notna(start["value"]) else "none at all"
        support.append(
            Sentence(
                f"Random weights without any search are within {found['epsilon']:g} in {percent(start['found'])} of "
                f"the "
                f"texts, {some}: what lies below that owes nothing to the search.",
                (link("adversaries", row),),
            )
        )
    support += _convergence(rows, found, row)
    for other in records(rows.loc[(rows["steps"] == found["steps"]) & (rows["epsilon"] != found["epsilon"])]):
        support.append(
            Sentence(
                f"With ε = {other['epsilon']:g} the mean is {measured(other)} and the share of texts "
                f"{percent(other['found'])}. (The paper's ε is 0.01 for classification and 0.05 for questions; the "
                "authors' plots have 0.05 for both.)",
                (link("adversaries", row),),
            )
        )
    if found["failed"]:
        support.append(Sentence(f"In {int(found['failed'])} texts the search broke down (not a number)."))
    return Finding(
        Sentence(words.sentence_case(text), (link("adversaries", row),)), tuple(support), SAYS["adversaries"]
    )


def _convergence(rows: pd.DataFrame, found: Row, row: Row) -> list[Sentence]:
    same = rows.loc[(rows["epsilon"] == found["epsilon"]) & (rows["steps"] < found["steps"])].dropna(subset="value")
    if same.empty:
        return []
    before = first(same.sort_values("steps", ascending=False))
    return [
        Sentence(
            f"After {int(before['steps'])} of {int(found['steps'])} steps the mean was "
            f"{words.number(before['value'])} in "
            f"{percent(before['found'])} of the texts: the difference says how far the search is from its end.",
            (link("adversaries", row),),
        )
    ]


def not_tested(reading: Reading) -> Finding | None:
    """Classifiers that did not learn."""
    rows = reading.table("classifiers", tested=False)
    if rows.empty:
        return None
    told = [f"{kind_name(row)}, seed {row['seed']} ({row['note']})" for row in records(rows)]
    text = f"not tested, since attention that taught nothing explains nothing: {words.join(told)}."
    return Finding(
        Sentence(words.sentence_case(text), (Rows("classifiers", {"tested": False}),)), (),
        "that these could not learn with other settings.",
    )  # fmt: skip


def _by_class(reading: Reading, row: Row) -> list[Sentence]:
    rows = of_kind(reading, "agreement", row, pair="attention_gradient")
    rows = rows.loc[rows["class"] != "all"]
    told = [f"{measured(each)} where the answer is {words.visible(str(each['class']))}" for each in records(rows)]
    return [Sentence(f"By class, τ with gradients is {words.join(told)}.", (link("agreement", row),))] if told else []


def _others(reading: Reading, row: Row, table: str, what: str, **where: str) -> list[Sentence]:
    made = []
    for other in records(reading.table("classifiers", tested=True)):
        if (other["encoder"], other["attention"]) == (row["encoder"], row["attention"]):
            continue
        for each in records(of_kind(reading, table, other, **{"class": "all"}, **where).dropna(subset="value")):
            made.append(Sentence(f"For {kind_name(other)}, {what} {measured(each)}.", (link(table, other),)))
    return made[:5]
