"""The chapter on adversarial attention: what classifiers and heads leave to it, in words and figures."""

from interp.results import Result, RunFolder
from reports.chapters import Chapter, TableNote
from reports.chapters.adversarial_attention import classifiers, freedom_methods, freedom_plates, heads, methods, plates
from reports.chapters.reading import Reading

QUESTION = "Is attention an explanation: how far can it be changed before the output notices?"
TABLES = {
    "classifiers": TableNote(
        "The classifiers: how good they are, and whether their attention was tested.", "-accuracy"
    ),
    "supporting_facts": TableNote("How often the fact that answers gets the most weight.", "", "ranking=attention"),
    "agreement": TableNote("Kendall's τ of two rankings of a text's words, by predicted class.", "", "class=all"),
    "permutation": TableNote("Change of the answer under shuffled attention, by the largest weight.", "", "class=all"),
    "adversaries": TableNote("ε-max JSD by steps of the search and by ε, by predicted class.", "-steps", "class=all"),
    "consistent": TableNote("Other classifiers, and how far their attention and answers are from the base's."),
    "erasure": TableNote("ΔJS of the most attended word against a random one, by their difference in weight."),
    "flips": TableNote("Whether the decision flips without the most attended word, and without a random one."),
    "removal": TableNote("The share of words erased until the decision flips, by order."),
    "conicity": TableNote("How alike the hidden states of a text are.", "", "class=all"),
    "examples": TableNote("Every tested text (the first thousand of a classifier) with what was measured of it."),
    "instances": TableNote("A few texts under their own and under adversarial attention, word by word."),
}


def chapter(result: Result, run: RunFolder) -> Chapter:
    """The chapter of one finished result."""
    reading = Reading(result)
    has_classifiers, has_heads = reading.has("classifiers"), reading.has("freedom_rows")
    return Chapter(
        title="Adversarial attention",
        place=40,
        question=QUESTION,
        lead=classifiers.lead(reading) or heads.lead(reading),
        findings=(*classifiers.findings(reading), *heads.findings(reading)),
        plates=(*plates.plates(reading), *freedom_plates.plates(reading, heads.kinds(run))),
        tables={name: note for name, note in {**TABLES, **heads.TABLES}.items() if reading.has(name)},
        methods=(methods.METHODS if has_classifiers else ()) + (freedom_methods.METHODS if has_heads else ()),
        paragraph=" ".join(filter(None, (methods.paragraph(reading), freedom_methods.paragraph(reading)))),
        references=tuple(
            dict.fromkeys(
                (methods.REFERENCES if has_classifiers else ()) + (freedom_methods.REFERENCES if has_heads else ())
            )
        ),
        full=_full_adds(reading),
    )


def _full_adds(reading: Reading) -> str:
    part = reading.config.get("part", "both")
    heads_too = "looks at all heads of the model, at six rows of each"
    classifiers_too = (
        "trains all three encoders with both attentions and three seeds each, tests all test texts, and adds seven "
        "seeds and seven weights to the tests of Wiegreffe and Pinter"
    )
    wanted = (heads_too if part != "classifiers" else "", classifiers_too if part != "heads" else "")
    return reading.full_adds(" and ".join(filter(None, wanted)))
