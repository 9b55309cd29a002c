"""The card of one head: what it is called, how far it looks, and its strongest edges drawn on sentences."""

from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np
import pandas as pd
import seaborn as sns
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from reports import style, words

_LINE = 0.135  # inches of a token
_FACT = 0.34  # inches of a number with its name
_LEAST_EDGE = 0.08  # weight from which an edge is drawn
_SIDE, _SENTENCE = 2.4, 1.6  # inches: the column of numbers, a sentence


class Sentence(NamedTuple):
    """One sentence of a card: rows of ``tokens``, and rows of ``patterns`` of the head on it."""

    tokens: pd.DataFrame
    weights: pd.DataFrame


def card(
    title: str, kind: str, facts: Sequence[tuple[str, str]], distances: pd.DataFrame, sentences: Sequence[Sentence]
) -> Figure:
    """A whole card.

    Args:
        title: the head's name and kinds. kind: decides the colour.
        facts: numbers, each with its name.
        distances: rows of ``distances`` of the head; empty where distances mean nothing.
        sentences: up to three.
    """
    # the greys of sinks are kept for edges to the first position
    colour = style.ACCENT if kind in ("sink", "separator") else style.KIND_COLOURS.get(kind, style.ACCENT)
    tallest = max((len(each.tokens) for each in sentences), default=0)
    height = max(0.62 + _LINE * tallest, 0.55 + _FACT * len(facts) + (1.25 if len(distances) else 0.0))
    width = _SIDE + _SENTENCE * max(len(sentences), 1)
    figure = style.blank(width, height)
    figure.text(0.06 / width, 1 - 0.07 / height, title, va="top", fontsize=9.5, fontweight="bold", color=colour)
    for index, (name, value) in enumerate(facts):
        y = 1 - (0.36 + _FACT * index) / height
        figure.text(0.06 / width, y, name, va="top", fontsize=style.SMALL, color=style.MUTED)
        figure.text(0.06 / width, y - 0.125 / height, value, va="top", fontsize=style.SMALL + 1)
    if len(distances):
        top = height - 0.36 - _FACT * len(facts) - 0.22
        tall = min(0.8, top - 0.45)
        ax = figure.add_axes((0.42 / width, (top - tall) / height, 1.25 / width, tall / height))
        distance_profile(distances, ax, colour)
    for index, each in enumerate(sentences):
        tall = _LINE * len(each.tokens)
        left = (_SIDE + _SENTENCE * index + 0.04) / width
        ax = figure.add_axes((left, (height - 0.42 - tall) / height, (_SENTENCE - 0.12) / width, tall / height))
        edges(each, ax, colour)
    return figure


def distance_profile(distances: pd.DataFrame, ax: Axes, colour: str = style.ACCENT) -> Axes:
    """Share of attention by how far back the key is; bins that double, backwards to the left, forwards to the right."""
    rows = distances.sort_values("low", ascending=False).loc[lambda table: table["mass"].notna()]
    used = rows.loc[rows["mass"] >= 0.002]
    inside = rows if used.empty else rows.loc[rows["low"].between(min(used["low"]), max(used["low"]))]
    places = np.arange(len(inside))
    ax.bar(places, inside["mass"], color=colour, width=0.84, linewidth=0)
    labels = [distance_label(int(row["low"]), int(row["high"])) for row in inside.to_dict("records")]
    ax.set_xticks(places, labels, fontsize=style.SMALL - 0.5, rotation=90 if len(labels) > 5 else 0)
    ax.tick_params(axis="x", length=0, pad=1)
    ax.tick_params(axis="y", labelsize=style.SMALL - 0.5)
    top = max([*inside["mass"], 0.05])
    ax.set_ylim(0, 1.08 * top)
    ax.locator_params(axis="y", nbins=3)
    ax.set_title("distance (tokens back)", fontsize=style.SMALL, fontweight="normal", color=style.MUTED, pad=3)
    sns.despine(ax=ax)
    return ax


def distance_label(low: int, high: int) -> str:
    """``1``, ``2–3``; what lies ahead with a plus: ``+2–3``."""
    near, far = sorted((abs(low), abs(high)))
    text = str(near) if near == far else f"{near}–{far}"
    return f"+{text}" if min(low, high) < 0 else text


def edges(sentence: Sentence, ax: Axes, colour: str = style.ACCENT) -> Axes:
    """A sentence twice, top to bottom: queries on the left, keys on the right, an edge for each strong weight.

    Clark et al. 2019 draw patterns so. The first token's edges are grey: it is where heads rest.
    """
    tokens = sentence.tokens.sort_values("position").reset_index(drop=True)
    place: Mapping[int, int] = {int(position): row for row, position in enumerate(tokens["position"])}
    strong = sentence.weights.loc[sentence.weights["weight"] >= _LEAST_EDGE]
    for row in strong.sort_values("weight").to_dict("records"):
        query, key, weight = int(row["query"]), int(row["key"]), float(row["weight"])
        if query not in place or key not in place:
            continue
        rests = place[key] == 0
        ax.plot([0, 1], [place[query], place[key]], color=style.MUTED if rests else colour, solid_capstyle="round",
                alpha=float(np.clip(weight, 0.12, 1)) * (0.4 if rests else 0.9),
                linewidth=0.4 + 1.7 * weight, zorder=1 if rests else 2)  # fmt: skip
    busy = {
        place[int(key)] for key in strong["key"] if int(key) in place and int(key) != int(tokens["position"].iloc[0])
    }
    shown = [style.drawable(words.visible(text).strip() or words.token_label(text)) for text in tokens["text"]]
    for row, text in enumerate(shown):
        label = text if len(text) <= 9 else text[:8] + "…"  # two columns of names between two sentences
        ax.text(-0.04, row, label, ha="right", va="center", fontsize=style.SMALL - 0.3)
        colour_of_key = style.INK if row in busy else style.MUTED
        ax.text(1.04, row, label, ha="left", va="center", fontsize=style.SMALL - 0.3, color=colour_of_key)
    ax.set(xlim=(-1.15, 2.15), ylim=(len(tokens) - 0.5, -0.5))
    ax.set_axis_off()
    return ax
