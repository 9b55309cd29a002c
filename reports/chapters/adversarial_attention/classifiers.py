"""What the tests say of the classifiers' attention, in words: numbers are read from the tables, never worked out here."""

import pandas as pd

from reports import words
from reports.chapters import Finding, Rows, Sentence
from reports.chapters.reading import Reading, Row, first, records
from reports.figures.adversarial_attention import ENCODERS, RANKINGS

_NEEDED, _FREE = 0.1, 1 / 3  # borders of the verdict: change under shuffling (TVD), share of the largest divergence
SAYS = {
    "agreement": (
        "that attention is wrong where it disagrees. Jain & Wallace: what does not rank the words as gradients and "
        "leave-one-out do is no measure of what the answer rests on, and a reader takes it for one. Wiegreffe & "
        "Pinter: "
        "gradients and leave-one-out agree no better with each other in recurrent models, so neither is a ground truth."
    ),
    "permutation": (
        "that the model does not use attention where the answer stays: if hidden states are alike, any weights give "
        "the "
        "same mean (Mohankumar et al. 2020). Jain & Wallace: an explanation that can be shuffled without effect "
        "explains "
        "nothing. Wiegreffe & Pinter: the weights were learned together with the states, and detaching them is no "
        "model "
        "anyone would train."
    ),
    "adversaries": (
        "that another explanation exists: each distribution is found for one text, with the states held fixed. Jain & "
        "Wallace: if very different weights give the same answer, the weights are not the reason for it. Wiegreffe & "
        "Pinter: an explanation need not be the only one, and no model would produce such weights on all texts. "
        "The search gives a lower bound: what it does not find may exist."
    ),
    "consistent": (
        "what attention means in the base model. Wiegreffe & Pinter: if uniform weights do as well, the task needs no "
        "attention and cannot test it; if one adversarial classifier cannot answer alike and attend elsewhere, the "
        "weights are tied to the answers. Jain & Wallace's side: a path that reaches far at little change shows the "
        "opposite, and training that stops short shows only where it stopped."
    ),
    "erasure": (
        "what a text without the word would be answered: erasure leaves the hidden states, which have read the word. "
        "Serrano & Smith: weights predict such effects noisily, gradients better, so attention ranks words poorly. "
        "The other side: where the most attended word decides and a random one does not, attention is doing what it "
        "claims, for the layer that it is in."
    ),
    "supporting_facts": (
        "that attention must find the fact: a recurrent state may hold it at a word of another fact. For attention: "
        "here the truth is known, and a ranking that hits it is faithful to the task. Against it: a hit says that "
        "the weights point there, not that no other weights would have given the same answer."
    ),
}  # fmt: skip


def findings(reading: Reading) -> tuple[Finding, ...]:
    """All that can be said of the classifiers, the verdict first."""
    if not reading.has("classifiers"):
        return ()
    made = (
        verdict(reading), supporting(reading), agreement(reading), permutation(reading), adversaries(reading),
        consistent(reading), erasure(reading), not_tested(reading),
    )  # fmt: skip
    return tuple(finding for finding in made if finding is not None)


def data_name(reading: Reading) -> str:
    """What the texts were, as the run's provenance says."""
    about = reading.provenance.get("data")
    return words.visible(str(about.get("what"))) if isinstance(about, dict) else "the texts"


def kind_name(row: Row) -> str:
    """``the BiLSTM with tanh attention``; its seed where there are several."""
    return f"the {ENCODERS.get(str(row['encoder']), row['encoder'])} with {row['attention']} attention"


def main_kind(reading: Reading) -> Row | None:
    """The classifier that findings speak of first: the most accurate one whose attention was tested."""
    tested = reading.table("classifiers", tested=True)
    return None if tested.empty else first(tested.sort_values("accuracy", ascending=False, kind="stable"))


def of_kind(reading: Reading, name: str, row: Row, **where: str | int | float | bool) -> pd.DataFrame:
    """The rows of a table about one classifier."""
    return reading.table(
        name, encoder=str(row["encoder"]), attention=str(row["attention"]), seed=int(row["seed"]), **where
    )


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
        (_link("adversaries", row),),
    )


def last_search(reading: Reading, row: Row) -> Row | None:
    """The row of ``adversaries`` of all texts, at the last step, with the first ε; None where nothing was found."""
    rows = of_kind(reading, "adversaries", row, **{"class": "all"}).dropna(subset="value")
    if rows.empty:
        return None
    rows = rows.loc[rows["steps"] == max(rows["steps"])]
    return first(rows)


def verdict(reading: Reading) -> Finding | None:
    """What the tests together say of this model on these data."""
    row = main_kind(reading)
    found = None if row is None else last_search(reading, row)
    if row is None or found is None:
        return None
    whole = _whole(of_kind(reading, "permutation", row, **{"class": "all"}))
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
            f"{_measured(whole)} (TVD, mean of medians); " + ("much" if needed else "little")
            + f", where {_NEEDED:g} is taken as the border.",
            (_link("permutation", row),),
        ),
        Sentence(
            f"The farthest weights with the same answer (within {found['epsilon']:g}) are at "
            f"{words.number(100 * float(found['share']), 0)} % of the largest divergence that a text allows; above a "
            f"third "
            "counts as free.",
            (_link("adversaries", row),),
        ),
    )  # fmt: skip
    return Finding(
        Sentence(f"For {kind_name(row)} on {data_name(reading)}: {text}.", (_link("classifiers", row),)), support,
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
        f"{RANKINGS[name]} in {_percent(hit['value'])} {_interval(hit)}" for name, hit in hits.items()
        if pd.notna(hit["value"])
    ]  # fmt: skip
    if not told:
        return None
    chance = first(of_kind(reading, "supporting_facts", row))["chance"]
    n = int(first(of_kind(reading, "supporting_facts", row))["n"])
    text = (
        f"the fact that answers gets the most weight from {words.join(told)} of {words.count(n, 'text')} answered "
        f"correctly, where a random fact would in {_percent(chance)}."
    )
    others = [
        Sentence(
            f"For {kind_name(other)} (accuracy {words.number(other['accuracy'])}), attention does in "
            f"{_percent(hit['value'])} {_interval(hit)}.",
            (_link("supporting_facts", other),),
        )
        for other in records(reading.table("classifiers", tested=True))
        if (other["encoder"], other["attention"], other["seed"]) != (row["encoder"], row["attention"], row["seed"])
        for hit in records(of_kind(reading, "supporting_facts", other, ranking="attention").dropna(subset="value"))
    ][:4]  # fmt: skip
    sentence = Sentence(f"In {kind_name(row)}, {text}", (_link("supporting_facts", row),))
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
        f"{kind_name(row)} ranks words as gradients do with τ = {_measured(one)}, as leave-one-out does with "
        f"{_measured(two)}; these two agree with each other at {_measured(three)}."
    )
    significant = (
        f"τ with gradients is significant at 0.05 in {_percent(one['significant'])} of {int(one['n']):,} texts, with "
        f"leave-one-out in {_percent(two['significant'])}"
    )
    undefined = max(int(each["undefined"]) for each in tau.values())
    told = f"; it is undefined in {undefined:,}, which are left out" if undefined else ""
    support = [Sentence(f"{significant}{told}.", (_link("agreement", row),)), *_by_class(reading, row)]
    support += _others(reading, row, "agreement", "τ with gradients is", pair="attention_gradient")
    return Finding(Sentence(words.sentence_case(text), (_link("agreement", row),)), tuple(support), SAYS["agreement"])


def permutation(reading: Reading) -> Finding | None:
    """What shuffling the weights does, and whether alike hidden states explain a flat result."""
    row = main_kind(reading)
    if row is None or (table := of_kind(reading, "permutation", row, **{"class": "all"})).empty:
        return None
    whole = _whole(table)
    binned = table.loc[(table["max_attention_low"] > 0) | (table["max_attention_high"] < 1)]
    parts = [
        f"{words.number(each['value'])} where the largest weight is {each['max_attention_low']:g}–"
        f"{each['max_attention_high']:g} ({int(each['n']):,} texts)"
        for each in records(binned)
    ]
    if whole is None:
        return None
    text = (
        f"shuffled attention changes the answer of {kind_name(row)} by {_measured(whole)} (TVD, mean over texts of the "
        "median over permutations)."
    )
    support = [Sentence(f"It is {words.join(parts)}.", (_link("permutation", row),))]
    for each in records(of_kind(reading, "conicity", row, **{"class": "all"}).dropna(subset="value")):
        told = "so alike that any weights would give nearly the same mean" if each["value"] > 0.8 else (
            "not so alike that this alone would make shuffling harmless"
        )  # fmt: skip
        support.append(
            Sentence(
                f"Its hidden states have a conicity of {_measured(each)} (independent directions: "
                f"{words.number(each['chance'])}): {told}.",
                (_link("conicity", row),),
            )
        )
    return Finding(
        Sentence(words.sentence_case(text), (_link("permutation", row),)), tuple(support), SAYS["permutation"]
    )


def adversaries(reading: Reading) -> Finding | None:
    """How far attention can go while the answer stays, with the control of no search at all."""
    row = main_kind(reading)
    found = None if row is None else last_search(reading, row)
    if row is None or found is None:
        return None
    rows = of_kind(reading, "adversaries", row, **{"class": "all"})
    text = (
        f"in {_percent(found['found'])} of the texts weights were found that change the answer by at most "
        f"{found['epsilon']:g} (TVD): their divergence from the model's own is {_measured(found)} nats on average, "
        f"median {words.number(found['median'])}, above 0.5 in {_percent(found['above_half'])}."
    )
    support = [
        Sentence(
            f"That is {_percent(found['share'])} of the largest divergence that the text allows; measured by running "
            f"the "
            f"untouched model with them, the answer changes by {words.number(found['tvd'])} on average.",
            (_link("adversaries", row),),
        )
    ]
    for start in records(rows.loc[(rows["steps"] == 0) & (rows["epsilon"] == found["epsilon"])]):
        some = f"at {words.number(start['value'])} nats" if pd.notna(start["value"]) else "none at all"
        support.append(
            Sentence(
                f"Random weights without any search are within {found['epsilon']:g} in {_percent(start['found'])} of "
                f"the "
                f"texts, {some}: what lies below that owes nothing to the search.",
                (_link("adversaries", row),),
            )
        )
    support += _convergence(rows, found, row)
    for other in records(rows.loc[(rows["steps"] == found["steps"]) & (rows["epsilon"] != found["epsilon"])]):
        support.append(
            Sentence(
                f"With ε = {other['epsilon']:g} the mean is {_measured(other)} and the share of texts "
                f"{_percent(other['found'])}. (The paper's ε is 0.01 for classification and 0.05 for questions; the "
                "authors' plots have 0.05 for both.)",
                (_link("adversaries", row),),
            )
        )
    if found["failed"]:
        support.append(Sentence(f"In {int(found['failed'])} texts the search broke down (not a number)."))
    return Finding(
        Sentence(words.sentence_case(text), (_link("adversaries", row),)), tuple(support), SAYS["adversaries"]
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
            f"{_percent(before['found'])} of the texts: the difference says how far the search is from its end.",
            (_link("adversaries", row),),
        )
    ]


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
        start = f"One adversarial classifier for all texts (λ = {row['weight']:g}, accuracy {words.number(row['accuracy'])})"
        support.append(_path_sentence(f"{start} attends", row, "and answers"))
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
        f"without the most attended word alone the decision of {kind_name(row)} flips in {_percent(alone['value'])} "
        f"{_interval(alone)} of the texts, without a random word alone in {_percent(other['value'])}, without either "
        f"in "
        f"{_percent(both['value'])}."
    )
    orders = records(of_kind(reading, "removal", row))
    told = [f"{_percent(each['value'])} by {str(each['order']).replace('_', ' × ')}" for each in orders]
    support = [
        Sentence(
            f"Until the decision flips, these shares of the words must go: {words.join(told)}.",
            (_link("removal", row),),
        )
    ]
    return Finding(Sentence(words.sentence_case(text), (_link("flips", row),)), tuple(support), SAYS["erasure"])


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


def _whole(permuted: pd.DataFrame) -> Row | None:
    """The row of all weights together."""
    rows = permuted.loc[(permuted["max_attention_low"] == 0) & (permuted["max_attention_high"] == 1)]
    return None if rows.empty else first(rows)


def _by_class(reading: Reading, row: Row) -> list[Sentence]:
    rows = of_kind(reading, "agreement", row, pair="attention_gradient")
    rows = rows.loc[rows["class"] != "all"]
    told = [f"{_measured(each)} where the answer is {words.visible(str(each['class']))}" for each in records(rows)]
    return [Sentence(f"By class, τ with gradients is {words.join(told)}.", (_link("agreement", row),))] if told else []


def _others(reading: Reading, row: Row, table: str, what: str, **where: str) -> list[Sentence]:
    made = []
    for other in records(reading.table("classifiers", tested=True)):
        if (other["encoder"], other["attention"]) == (row["encoder"], row["attention"]):
            continue
        for each in records(of_kind(reading, table, other, **{"class": "all"}, **where).dropna(subset="value")):
            made.append(Sentence(f"For {kind_name(other)}, {what} {_measured(each)}.", (_link(table, other),)))
    return made[:5]


def _link(table: str, row: Row) -> Rows:
    return Rows(table, {"encoder": str(row["encoder"]), "attention": str(row["attention"]), "seed": int(row["seed"])})


def _measured(row: Row) -> str:
    return words.measured(row["value"], row["ci_low"], row["ci_high"])


def _percent(value: float) -> str:
    return "n/a" if pd.isna(value) else f"{100 * value:.0f} %"


def _interval(row: Row) -> str:
    return f"[{_percent(row['ci_low'])}, {_percent(row['ci_high'])}]"
