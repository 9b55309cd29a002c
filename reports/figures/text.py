"""A pattern drawn on text: one query's attention over the tokens. The page shades every key and rings the query."""

from dataclasses import dataclass

import pandas as pd

from reports import words


@dataclass(frozen=True)
class Token:
    """A token of a text view: its position, its text as it can be shown, and the weight it gets, in [0, 1]."""

    position: int
    text: str
    weight: float

    @property
    def space(self) -> str:
        """The spaces before the word, which are shown but not shaded; '' for a token that is all spaces."""
        return self.text[: len(self.text) - len(self.word)]

    @property
    def word(self) -> str:
        """The token without the spaces before it."""
        return self.text.lstrip(" ") or self.text


@dataclass(frozen=True)
class TextView:
    """The pattern row of one query, over a stretch of a sequence."""

    site: str
    layer: int
    head: int
    data: str
    sequence: int
    query: int
    tokens: tuple[Token, ...]

    @property
    def name(self) -> str:
        """``L18H6``."""
        return words.head_name(self.layer, self.head)

    @property
    def strongest(self) -> Token:
        """The token with the largest weight."""
        return max(self.tokens, key=lambda token: token.weight)

    def token(self, position: int) -> Token:
        """The token at a position; KeyError outside the stretch."""
        found = {token.position: token for token in self.tokens}
        return found[position]


def text_view(weights: pd.DataFrame, tokens: pd.DataFrame, query: int) -> TextView:
    """The pattern row of one query over tokens.

    Args:
        weights: rows of ``patterns`` of one head on one sequence; absent entries are below the saved minimum.
        tokens: rows of ``tokens`` of that sequence, or of a stretch of it.
        query: the query's position.

    Raises:
        ValueError: there are no weights, or they are of several heads or sequences.
    """
    of = weights[["site", "layer", "head", "data", "sequence"]].drop_duplicates()
    if len(of) != 1:
        raise ValueError(f"a text view needs the weights of one head on one sequence; got {len(of)} of them")
    site, layer, head, data, sequence = of.iloc[0]
    row = weights.loc[weights["query"] == query].set_index("key")["weight"].to_dict()
    ordered = tokens.sort_values("position")
    texts = words.spaced([str(text) for text in ordered["text"]])
    drawn = tuple(
        Token(int(position), words.visible(text), float(row.get(position, 0.0)))
        for position, text in zip(ordered["position"], texts, strict=True)
    )
    return TextView(str(site), int(layer), int(head), str(data), int(sequence), int(query), drawn)
