"""Patterns of the strongest heads: as maps, and drawn on text."""

import pandas as pd
from matplotlib.figure import Figure

from reports import glossary, style, words
from reports.chapters import Plate, Rows, Shown
from reports.chapters.reading import KEYS, Reading, Row, first, records
from reports.figures import induction_heads as draw
from reports.figures.text import text_view

_PANELS = 4  # heads whose patterns are drawn
_WHOLE = 32  # tokens up to which a whole sequence is named
_STRETCH = 24  # queries of a long sequence whose tokens are named
_TEXT = 170  # tokens of a text view
_CLEAR = 0.5  # weight from which text is shown rather than random tokens


def shown_text(reading: Reading) -> Shown | None:
    """The strongest head's pattern on text: a query whose strongest key is what followed last time."""
    patterns, tokens = reading.table("patterns"), reading.table("tokens")
    if patterns.empty or tokens.empty:
        return None
    head = _heads(reading, patterns)[0]
    picked = _telling(_of(patterns, head), tokens)
    if picked is None:
        return None
    weights, text = (
        table.loc[(table["data"] == picked["data"]) & (table["sequence"] == picked["sequence"])]
        for table in (_of(patterns, head), tokens)
    )
    view = text_view(weights, _stretch(text, picked["query"], picked["key"]), picked["query"])
    said = {int(row["position"]): words.quoted(str(row["text"])) for row in records(text)}
    now, before, target = said[picked["query"]], said.get(picked["key"] - 1), said[picked["key"]]
    follows = f", which followed {before} before" if before == now and picked["key"] - 1 < picked["query"] else ""
    caption = (
        f"{reading.name(head)} reading {glossary.DATA.get(picked['data'], picked['data'])}: from the ringed token "
        f"{now}, {words.number(picked['weight'])} of its attention goes to {target}{follows}. The query is chosen "
        "because it shows the behaviour most clearly; the scores are means over all queries."
    )
    return Shown(view, caption)


def patterns(reading: Reading) -> Plate | None:
    """Patterns of up to four heads on the first sequence of repeated tokens."""
    found = _sequence(reading)
    if found is None:
        return None
    weights, tokens = found
    heads = _heads(reading, weights)[:_PANELS]

    def figure() -> Figure:
        figure, axes = style.canvas(style.WIDE, 2.25 if len(heads) > 2 else 3.2, panels=len(heads), share=True)
        for head, ax in zip(heads, axes, strict=True):
            draw.pattern(_of(weights, head), tokens, tokens, ax, _second_copy(tokens), named=False)
            ax.set(title=reading.name(head), xlabel="", ylabel="")
        figure.supxlabel("key position", fontsize=8.5)
        axes[0].set_ylabel("query position")
        return figure

    return Plate(
        "patterns",
        "Patterns of the strongest heads",
        f"Attention of {words.count(len(heads), 'head')} on one sequence of repeated random tokens "
        f"({words.count(len(tokens), 'token')}). Each row is a query. Dashed: where the second copy begins; below it "
        "an induction head draws a diagonal, one key later than the current token's earlier place. Weights under 0.005 "
        "are not saved.",
        figure,
        (Rows("patterns", {"data": "repeated"}),),
    )


def named_pattern(reading: Reading) -> Plate | None:
    """The strongest head's pattern with its tokens named; of a long sequence, the second copy over the first."""
    found = _sequence(reading)
    if found is None:
        return None
    weights, tokens = found
    head = _heads(reading, weights)[0]
    start = _second_copy(tokens)
    queries = keys = tokens
    if len(tokens) > _WHOLE:
        if start is None:
            return None
        begin = int(min(tokens["position"]))
        queries = tokens.loc[tokens["position"].between(start, start + _STRETCH - 1)]
        keys = tokens.loc[tokens["position"].between(begin, begin + _STRETCH)]

    def figure() -> Figure:
        side = 1.3 + 0.115 * max(len(queries), len(keys))
        figure, (ax,) = style.canvas(side + 0.5, side)
        draw.pattern(_of(weights, head), queries, keys, ax, start if queries is keys else None)
        style.side_bar(figure, [ax], ax.images[0], "attention weight")
        return figure

    part = f" The first {len(queries)} queries of the second copy, over the keys of the first."
    return Plate(
        "pattern-with-tokens",
        f"The pattern of {reading.name(head)}, token by token",
        f"As above, with the tokens named (␣ is a space).{'' if queries is keys else part} From each query, look along "
        "its row for the strongest key: an induction head's is the token that came after the query's the first time.",
        figure,
        (Rows("patterns", {"layer": int(head["layer"]), "head": int(head["head"]), "data": "repeated"}),),
    )


def _telling(weights: pd.DataFrame, tokens: pd.DataFrame) -> Row | None:
    """The row of ``patterns`` that shows induction best: the largest weight on what followed the query's token before.

    Text goes before random tokens where a weight between words there reaches one half. Where no key follows an earlier
    occurrence, the largest weight on any key but the first.
    """
    at = {(row["data"], row["sequence"], row["position"]): row["token"] for row in records(tokens)}
    said = {(row["data"], row["sequence"], row["position"]): str(row["text"]) for row in records(tokens)}

    def between_words(row: Row) -> bool:
        ends = (said.get((row["data"], row["sequence"], row[end]), "") for end in ("query", "key"))
        return all(any(char.isalpha() for char in end) for end in ends)

    known = [row for row in records(weights.sort_values("weight", ascending=False, kind="stable")) if row["key"] > 0]
    follows = [
        row
        for row in known
        if row["key"] - 1 != row["query"]
        and at.get((row["data"], row["sequence"], row["key"] - 1))
        == at.get((row["data"], row["sequence"], row["query"]))
    ]
    on_text = [row for row in follows if row["data"] == "text" and row["weight"] >= _CLEAR and between_words(row)]
    return next(iter(on_text or [row for row in follows if row["data"] != "text"] or follows or known), None)


def _stretch(text: pd.DataFrame, query: int, key: int) -> pd.DataFrame:
    """At most `_TEXT` tokens, with the query and, where it is not too far, the key and a little before it."""
    begin = max(0, min(key, query) - 12, query + 13 - _TEXT) if query - key + 25 <= _TEXT else query + 1 - _TEXT
    begin = 0 if len(text) <= _TEXT else begin
    return text.loc[text["position"].between(begin, begin + _TEXT - 1)]


def _heads(reading: Reading, patterns: pd.DataFrame) -> list[Row]:
    """The heads with saved patterns, strongest by prefix matching first."""
    heads = patterns.filter(KEYS).drop_duplicates()
    scores = reading.table("heads", metric="prefix_matching", data="repeated")
    if len(scores):
        heads = heads.merge(scores.filter([*KEYS, "value"]), how="left")
        heads = heads.sort_values("value", ascending=False, kind="stable")
    return records(heads)


def _of(patterns: pd.DataFrame, head: Row) -> pd.DataFrame:
    same = (
        (patterns["site"] == head["site"]) & (patterns["layer"] == head["layer"]) & (patterns["head"] == head["head"])
    )
    return patterns.loc[same]


def _sequence(reading: Reading) -> tuple[pd.DataFrame, pd.DataFrame] | None:
    """Patterns and tokens of the first sequence of repeated tokens that has both."""
    weights, tokens = (reading.table(name, data="repeated") for name in ("patterns", "tokens"))
    if weights.empty or tokens.empty:
        return None
    both = sorted(set(weights["sequence"]) & set(tokens["sequence"]))
    if not both:
        return None
    return weights.loc[weights["sequence"] == both[0]], tokens.loc[tokens["sequence"] == both[0]]


def _second_copy(tokens: pd.DataFrame) -> int | None:
    """Where the second copy begins: the position of the first token that was seen before."""
    ordered = tokens.sort_values("position")
    again = ordered.loc[ordered["token"].duplicated()]
    return int(first(again)["position"]) if len(again) else None
