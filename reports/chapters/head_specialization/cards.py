"""A card for each notable head, and the pattern on text that the page opens with."""

import pandas as pd
from matplotlib.figure import Figure

from reports import glossary, words
from reports.chapters import Plate, Shown
from reports.chapters.head_specialization.called import called, head_kinds, kind_words, main_data, present
from reports.chapters.reading import KEYS, Reading, Row, head_rows, records
from reports.figures.head_cards import Sentence, card
from reports.figures.text import text_view

_CARDS = 6
_SENTENCES = 3
_CLEAR = 0.4  # weight from which an edge shows what a head does
_FACTS = (
    ("entropy", ""), ("expected_distance", ""), ("first_position", ""), ("first_position_norm", ""),
    ("copying_eigenvalues", "weights"),
)  # fmt: skip
_PLAIN = ("sink", "broad", "redundant")  # kinds whose pattern tells little


def notable(reading: Reading) -> list[Row]:
    """Heads that have a saved pattern: the strongest of each kind, then the others that are called something."""
    patterns = reading.table("patterns")
    if patterns.empty:
        return []
    saved = {tuple(row[key] for key in KEYS): row for row in records(patterns.filter(KEYS).drop_duplicates())}
    kinds = [kind for kind in present(reading) if kind not in _PLAIN] + [k for k in _PLAIN if k in present(reading)]
    order: list[tuple[object, ...]] = []
    for kind in kinds:
        known = [tuple(row[key] for key in KEYS) for row in records(called(reading, kind))]
        order += [head for head in known if head in saved and head not in order][:1]
    rest = [tuple(row[key] for key in KEYS) for row in records(called(reading))]
    order += [head for head in dict.fromkeys(rest) if head in saved and head not in order]
    return [saved[head] for head in order] or list(saved.values())


def plates(reading: Reading) -> tuple[Plate, ...]:
    """A card for up to six heads, one of each kind first."""
    return tuple(_card(reading, head) for head in notable(reading)[:_CARDS] if len(_sentences(reading, head)))


def shown_text(reading: Reading) -> Shown | None:
    """A notable head on one sentence: the query whose edge between two words is the strongest.

    The first head that has a clear edge; where none has, the strongest edge of all.
    """
    best: tuple[float, Row, Sentence, Row] | None = None
    for head in notable(reading):
        edges = [(sentence, edge) for sentence in _sentences(reading, head) if (edge := _telling(sentence)) is not None]
        for sentence, edge in sorted(edges, key=lambda pair: -pair[1]["weight"])[:1]:
            if best is None or edge["weight"] > best[0]:
                best = float(edge["weight"]), head, sentence, edge
        if best is not None and best[0] >= _CLEAR:
            break
    return None if best is None else _shown(reading, *best[1:])


def _shown(reading: Reading, head: Row, sentence: Sentence, edge: Row) -> Shown:
    view = text_view(sentence.weights, sentence.tokens, int(edge["query"]))
    said = {int(row["position"]): words.quoted(str(row["text"])) for row in records(sentence.tokens)}
    kinds = words.join([kind_words(row) for row in head_kinds(reading, head)]) or "called nothing"
    caption = (
        f"{reading.name(head)}, {kinds}: from the ringed token {said[int(edge['query'])]}, "
        f"{words.number(edge['weight'])} of its attention goes to {said[int(edge['key'])]}. The query is chosen "
        "because its edge is the strongest of the sentence; the scores are means over all queries."
    )
    return Shown(view, caption)


def _telling(sentence: Sentence) -> Row | None:
    """The strongest edge from a word to another one, the first position left out; None where there is none."""
    spoken = {int(row["position"]): str(row["text"]) for row in records(sentence.tokens)}
    first = min(spoken)
    edges = sentence.weights.loc[
        (sentence.weights["key"] != sentence.weights["query"]) & (sentence.weights["key"] != first)
    ].sort_values("weight", ascending=False, kind="stable")
    for row in records(edges):
        ends = [spoken.get(int(row[end]), "") for end in ("query", "key")]
        if all(any(char.isalpha() for char in end) and not end.startswith(("[", "<")) for end in ends):
            return row
    return None


def _card(reading: Reading, head: Row) -> Plate:
    kinds = head_kinds(reading, head)
    name = reading.name(head)
    distances = reading.table("distances")
    of = _of(distances, head) if len(distances) else distances
    sentences = _sentences(reading, head)

    def figure() -> Figure:
        kind = str(kinds[0]["kind"]) if kinds else ""
        return card(name, kind, _facts(reading, head, kinds), of, sentences)

    listed = words.join([kind_words(row) for row in kinds]) or "called nothing"
    stack = words.stack_name(str(head["site"])) if len(reading.stacks) > 1 else ""
    return Plate(
        words.slug(f"card {stack} {words.head_name(head['layer'], head['head'])}"),
        f"{name}: {listed}",
        "Left: its scores, and its attention by distance. Right: its strongest edges on "
        f"{words.count(len(sentences), 'sentence')}, from each query (left) to its keys (right); the thicker, the more "
        "weight. Grey: to the first position. Weights under 0.08 are not drawn.",
        figure,
        (head_rows("kinds", head, called=True), head_rows("patterns", head)),
    )


def _facts(reading: Reading, head: Row, kinds: list[Row]) -> list[tuple[str, str]]:
    """Scores with their names: of each kind, then what is told of every head."""
    told = []
    for row in kinds[:4]:
        chance = "" if pd.isna(row["chance"]) else f"; chance {words.number(row['chance'])}"
        told.append(
            (kind_words(row), f"{words.number(row['value'])} (threshold {words.number(row['threshold'])}{chance})")
        )
    for metric, data in _FACTS:
        score = reading.score(metric, data or main_data(reading), head)
        if score is None:
            continue
        unit = glossary.UNITS.get(metric, "")
        size = words.measured(score["value"], score["ci_low"], score["ci_high"])
        value = f"{size} {unit}" if unit in ("nats", "tokens") else size
        told.append((glossary.short_metric(metric), value))
    return told


def _sentences(reading: Reading, head: Row) -> list[Sentence]:
    patterns, tokens = reading.table("patterns"), reading.table("tokens")
    if patterns.empty or tokens.empty:
        return []
    mine = _of(patterns, head)
    found = []
    for (data, sequence), text in tokens.groupby(["data", "sequence"], sort=False):  # pyright: ignore[reportGeneralTypeIssues]: two keys
        weights = mine.loc[(mine["data"] == data) & (mine["sequence"] == sequence)]
        if len(weights):
            found.append(Sentence(text, weights))
    return found[:_SENTENCES]


def _of(table: pd.DataFrame, head: Row) -> pd.DataFrame:
    same = (table["site"] == head["site"]) & (table["layer"] == head["layer"]) & (table["head"] == head["head"])
    return table.loc[same]
