"""The chapter on long inputs: retrieval heads, and what attention becomes as inputs grow."""

import numpy as np
import pandas as pd

from interp.results import Result, RunFolder
from reports import style, words
from reports.chapters import Chapter, Finding, Method, Plate, Rows, Sentence, TableNote
from reports.chapters.maps import map_plate
from reports.chapters.reading import Reading, first, head_rows, records
from reports.figures import long_context as draw
from reports.references import cited

TABLES = {
    "kinds": TableNote("Which heads are called retrieval heads, and what speaks for and against it.", "-value"),
    "retrieval": TableNote("Every head's score by length and depth of the needle.", "-value"),
    "copied": TableNote("Whether the model itself finds the needle, by length and depth."),
    "by_length": TableNote("Every head's retrieval and statistics of attention by length.", "", "metric=retrieval"),
    "heads": TableNote(
        "Scores over all inputs, and statistics at the shortest and the longest.", "-value", "metric=retrieval"
    ),
}
METHODS = (
    Method(
        "Retrieval score",
        "A needle is hidden in text and asked for at the end; its answer is forced. At each of the answer's tokens a "
        "head "
        "retrieves it if its strongest key lies in the needle and holds that token, and if the model ranks the token "
        "first. "
        "The score is the share of the answer's tokens that are retrieved.",
        "Σ_t 1[argmax_j A_tj ∈ needle, x_j = y_t, ŷ_t = y_t] / |answer|",
        "Wu et al. 2024, with the answer forced instead of generated; intervals over needles and places",
    ),
    Method(
        "Statistics of the haystack",
        "Entropy, attention to the first position and expected distance are means over all rows but the first.",
    ),
    Method(
        "Reading in pieces",
        "Inputs are read a piece at a time with a key-value cache. Rows do not depend on how they are cut; memory "
        "grows with "
        "the length and not with its square.",
    ),
)  # fmt: skip
REFERENCES = cited(
    "wu2024retrieval",
)


def chapter(result: Result, run: RunFolder) -> Chapter:
    """The chapter of one finished result."""
    reading = Reading(result)
    return Chapter(
        title="Long inputs",
        place=50,
        question="Which heads fetch something from far back, how far do they reach, and what becomes of attention?",
        lead=_lead(reading),
        opening=_map(reading),
        findings=tuple(finding for finding in (_retrieval(reading), _reach(reading), _dilution(reading)) if finding),
        plates=tuple(plate for plate in (_depths(reading), _followed(reading), _spread(reading)) if plate),
        tables=TABLES,
        methods=METHODS,
        paragraph=_paragraph(reading),
        references=REFERENCES,
        full=reading.full_adds("goes to the end of the context, with ten places and ten needles at each"),
    )


def _called(reading: Reading) -> pd.DataFrame:
    kinds = reading.measured("kinds", "value", called=True)
    return kinds.sort_values("value", ascending=False) if len(kinds) else kinds


def _above(reading: Reading) -> pd.DataFrame:
    """Heads whose score is above the threshold, called or not."""
    kinds = reading.table("kinds")
    return kinds.loc[kinds["value"] > kinds["threshold"]]


def _strongest(reading: Reading) -> list[tuple[int, int]]:
    kinds = reading.measured("kinds", "value").sort_values("value", ascending=False)
    most = int(reading.config.get("followed") or 8)
    rows = kinds.loc[kinds["value"] > 0].head(most)
    return [(int(row["layer"]), int(row["head"])) for row in records(rows)]


def _lead(reading: Reading) -> Sentence | None:
    if not reading.has("kinds"):
        return None
    called, longest = _called(reading), max(int(row["length"]) for row in records(reading.table("copied")))
    inputs = f"inputs of up to {longest:,} tokens"
    if called.empty:
        n = len(_above(reading))
        text = f"No head of {reading.model_name} is seen for sure to fetch a needle's words from {inputs}"
        some = f": {words.count(n, 'head')} {words.agree(n, 'scores', 'score')} above the threshold, but not surely"
        return Sentence(f"{text}{some if n else ''}.", (Rows("kinds"),))
    text = (
        f"{words.sentence_case(words.count(len(called), 'head'))} of {reading.model_name}, {reading.named(called, 3)}, "
        f"{words.agree(len(called), 'fetches', 'fetch')} a needle's words from {inputs}."
    )
    return Sentence(text, (Rows("kinds", {"called": True}),))


def _retrieval(reading: Reading) -> Finding | None:
    if not reading.has("kinds"):
        return None
    called, copied = _called(reading), reading.table("copied")
    share = float(np.mean(copied["copied"].to_numpy()))
    threshold = float(first(reading.table("kinds"))["threshold"])
    n = reading.n_heads
    above = _above(reading)
    if len(called):
        are = words.agree(len(called), "is called a retrieval head", "are called retrieval heads")
        verdict = f"{words.sentence_case(words.count(len(called), 'head'))} of {n} {are}: {reading.named(called, 6)}."
    else:
        verdict = f"No head of {n} is called a retrieval head."
    support = (
        Sentence(
            f"{words.count(len(above), 'head')} ({len(above) / n:.1%}) score above {threshold:g}, the published "
            "threshold; those "
            "called do so with an interval that holds for all heads at once.",
            (Rows("kinds"),),
        ),
        Sentence(f"The model itself ranks {share:.0%} of the answers' tokens first.", (Rows("copied"),)),
    )
    return Finding(
        Sentence(verdict, (Rows("kinds", {"called": True}),)), support,
        "That the answer came through these heads: ablating them would (`interp.ablation`). A needle that repeats its "
        "question's words can be found by induction; heads that fetch by meaning need other needles (`--needle`).",
    )  # fmt: skip


def _reach(reading: Reading) -> Finding | None:
    table, heads = reading.measured("by_length", "value", metric="retrieval"), _strongest(reading)
    if table.empty or not heads:
        return None
    lengths = sorted(table["length"].unique())
    if len(lengths) < 2:
        return None
    told = []
    for layer, head in heads[:4]:
        rows = table.loc[(table["layer"] == layer) & (table["head"] == head)].set_index("length")["value"]
        told.append(
            f"{words.head_name(layer, head)} {words.number(rows[lengths[0]])} → {words.number(rows[lengths[-1]])}"
        )
    return Finding(
        Sentence(
            f"From {lengths[0]:,} to {lengths[-1]:,} tokens the strongest heads' scores go: {'; '.join(told)}.",
            (Rows("by_length", {"metric": "retrieval"}),),
        ),
        (), "What becomes of them beyond the lengths that were tried.",
    )  # fmt: skip


def _dilution(reading: Reading) -> Finding | None:
    table = reading.measured("by_length", "value")
    if table.empty:
        return None
    lengths = sorted(table["length"].unique())
    if len(lengths) < 2:
        return None

    def median(metric: str, length: int) -> float:
        return float(table.loc[(table["metric"] == metric) & (table["length"] == length), "value"].median())

    ends = {
        m: (median(m, lengths[0]), median(m, lengths[-1])) for m in ("entropy", "first_position", "expected_distance")
    }
    text = (
        f"From {lengths[0]:,} to {lengths[-1]:,} tokens the median head's entropy goes from "
        f"{words.number(ends['entropy'][0])} to "
        f"{words.number(ends['entropy'][1])} nats, its attention to the first position from "
        f"{words.number(ends['first_position'][0])} to {words.number(ends['first_position'][1])}, and its expected "
        "distance "
        f"from {words.number(ends['expected_distance'][0])} to {words.number(ends['expected_distance'][1])} tokens."
    )
    return Finding(
        Sentence(text, (Rows("by_length"),)), (),
        "Longer inputs have more keys: a head that spreads evenly gains ln of the ratio of lengths in entropy.",
    )  # fmt: skip


def _map(reading: Reading) -> Plate | None:
    if not reading.has("heads"):
        return None
    stack = reading.stacks[0]
    n = max(int(row["n"]) for row in records(reading.table("heads", metric="retrieval")))
    caption = (
        "The share of a needle's answer that each head retrieves, over all lengths and places: its strongest key is "
        "the token "
        f"to come, and the model ranks that token first. Outlined: called retrieval heads. Mean over {n} inputs."
    )
    return map_plate(reading, "retrieval", ("retrieval", "needle", stack), _called(reading), caption)


def _depths(reading: Reading) -> Plate | None:
    heads, copied = _strongest(reading)[:7], reading.table("copied")
    if not heads or copied.empty:
        return None
    table = reading.table("retrieval")
    return Plate(
        "by-length-and-depth", "Where the needle lies",
        "Retrieval score of the strongest heads by length of the input and depth of the needle (0 %: at the "
        "beginning), and "
        "last the share of the answers' tokens that the model ranks first.",
        lambda: draw.by_length_and_depth(table, heads, copied),
        tuple(head_rows("retrieval", {"layer": layer, "head": head}) for layer, head in heads[:3]),
    )  # fmt: skip


def _followed(reading: Reading) -> Plate | None:
    table, heads = reading.measured("by_length", "value", metric="retrieval"), _strongest(reading)
    if not heads or len(table["length"].unique()) < 2:
        return None

    def figure():
        figure, (ax,) = style.canvas(style.NARROW + 0.6, 3.0)
        draw.followed(table, heads, ax)
        return figure

    return Plate(
        "retrieval-by-length", "Heads that keep and heads that lose it",
        "Retrieval of the strongest heads by length, all places of the needle together. Bands: 95 % intervals over "
        "inputs.",
        figure, (Rows("by_length", {"metric": "retrieval"}),),
    )  # fmt: skip


def _spread(reading: Reading) -> Plate | None:
    table = reading.measured("by_length", "value")
    if table.empty or len(table["length"].unique()) < 2:
        return None

    def figure():
        figure, axes = style.canvas(style.WIDE, 2.5, 3)
        labels = {"entropy": "entropy (nats)", "first_position": "attention to the first position",
                  "expected_distance": "expected distance (tokens)"}  # fmt: skip
        for ax, (metric, label) in zip(axes, labels.items(), strict=True):
            draw.spread(table.loc[table["metric"] == metric], ax, label)
        axes[0].legend(loc="best")
        return figure

    return Plate(
        "statistics-by-length", "What attention becomes over long inputs",
        "Statistics of the haystack's rows by length: the median head, and the middle 80 % of the heads.",
        figure, (Rows("by_length", {"metric": "entropy"}),),
    )  # fmt: skip


def _paragraph(reading: Reading) -> str:
    copied = reading.table("copied")
    if copied.empty:
        return ""
    lengths, depths = sorted(copied["length"].unique()), len(copied["depth"].unique())
    return (
        f"Retrieval heads were looked for as by Wu et al. (2024): a needle was hidden in text of {lengths[0]} to "
        f"{lengths[-1]} tokens at {depths} depths ({max(copied['n'].to_list())} needles each), and asked for at the "
        "end with its answer forced. A head's score is the share of the answer's tokens at which its strongest key is "
        "that token in the needle and the model ranks it first. Heads are called where the lower end of their "
        "interval, simultaneous over all heads, is above 0.1."
    )
