"""What notable heads do on three sentences: their strongest edges, for the cards."""

from typing import Any

import numpy as np
import pandas as pd
import torch
from numpy.typing import NDArray

from analyses.head_specialization.config import Config
from analyses.head_specialization.inputs import Inputs
from interp import HookedModel
from interp.ablation import without_logits
from interp.attention.probes import SelectedRows
from interp.data import Sequences, token_texts
from interp.data.alignment import token_offsets
from interp.data.labels import sentence_spans
from interp.model_data import pass_arguments, within_context
from interp.results.tables import empty_table, joined

_LEAST = 0.05  # smaller weights are no strong edges
_SHORTEST = 8  # tokens: a shorter sentence shows little
_COLUMNS = {
    "site": str, "layer": int, "head": int, "data": str, "sequence": int, "query": int, "key": int, "weight": float,
}  # fmt: skip


def tables(model: HookedModel, given: Inputs, kinds: pd.DataFrame, config: Config) -> dict[str, pd.DataFrame]:
    """The tables ``patterns`` (weights of at least 0.05) and ``tokens``, on a few sentences of the text.

    Heads that are called something come first, then those that are nearest to being called.
    """
    rows = sentences(model, given, config)
    data, parts, tokens = given.main.data, [empty_table(_COLUMNS)], []
    for number, ids in enumerate(rows):
        named = {"data": data, "sequence": number, "position": range(len(ids)), "token": ids}
        tokens.append(pd.DataFrame({**named, "text": token_texts(model.tokenizer, ids)}))
    heads = notable(kinds, config.shown)
    if heads:
        parts += _patterns(model, rows, heads, data)
    patterns = joined(parts)
    return {"patterns": patterns.reindex(columns=list(_COLUMNS)), "tokens": pd.concat(tokens, ignore_index=True)}


def notable(kinds: pd.DataFrame, most: int) -> list[tuple[str, int]]:
    """Heads to be shown: called ones first, the farthest above its threshold of each kind in turn.

    Broad heads show nothing, and redundant ones what others show.
    """
    telling: Any = kinds[~kinds["kind"].isin(["broad", "redundant"])]
    above = (telling["value"] - telling["threshold"]).fillna(-np.inf)
    turn = above.groupby([telling["called"], telling["kind"]]).rank(ascending=False, method="first")
    order = telling.assign(above=-above, turn=turn, called=~telling["called"].astype(bool))
    order = order.sort_values(["called", "turn", "above"], kind="stable")
    return list(dict.fromkeys(zip(order["site"], order["head"].tolist(), strict=True)))[:most]


def sentences(model: HookedModel, given: Inputs, config: Config) -> list[list[int]]:
    """Token ids of a few sentences, with the tokens around a text: from documents far apart, of telling lengths."""
    main, room = given.main, within_context(model, config.shown_tokens)
    body = room - len(given.prefix) - len(given.suffix)
    found = _spelled(model, main.sequences, body) if main.sequences.text is not None else []
    if not found:
        bodies = [row[main.words[i]][:body].tolist() for i, row in enumerate(main.sequences.tokens)]
        found = [ids for ids in bodies if ids]
    places: NDArray[np.intp] = (
        np.linspace(0, len(found) - 1, min(config.shown_sentences, len(found))).round().astype(int)
    )
    return [[*given.prefix, *found[i], *given.suffix] for i in places]


def _spelled(model: HookedModel, sequences: Sequences, body: int) -> list[list[int]]:
    found = []
    for text in sequences.text or ():
        # the window's first and last sentence may be cut off
        for start, end in sentence_spans(text)[1:-1]:
            ids, _ = token_offsets(model.tokenizer, " ".join(text[start:end].split()))
            if _SHORTEST <= len(ids) <= body:
                found.append(ids)
    return found


def _patterns(model: HookedModel, rows: list[list[int]], heads: list[tuple[str, int]], data: str) -> list[pd.DataFrame]:
    parts, sites = [], {site for site, _ in heads}
    for number, ids in enumerate(rows):
        probe = SelectedRows(queries=range(len(ids)))
        sequence = Sequences.padded([ids], source=data)
        run = model.run(**pass_arguments(model, sequence), probes=[probe], sites=sites, **without_logits(model))
        for site, head in heads:
            pattern = run.readings(probe)[site].values[0, head]
            query, key = (pattern >= _LEAST).nonzero(as_tuple=True)
            columns = {"query": query, "key": key, "weight": pattern[query, key]}
            numbers = {name: np.asarray(torch.as_tensor(values).cpu()) for name, values in columns.items()}
            named = {"site": site, "layer": model.site(site).layer, "head": head, "data": data, "sequence": number}
            parts.append(pd.DataFrame({**named, **numbers}))
    return parts
