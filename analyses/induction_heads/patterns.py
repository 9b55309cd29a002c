"""The strongest heads' own patterns, on one sequence of repeated tokens and on one stretch of text."""

from collections import Counter
from itertools import pairwise

import numpy as np
import pandas as pd
import torch
from jaxtyping import Int
from torch import Tensor

from analyses.induction_heads.config import Config
from analyses.induction_heads.inputs import Inputs, around_sequences
from analyses.induction_heads.kinds import KINDS, Head, ranked, threshold
from analyses.induction_heads.scores import Scores
from interp import HookedModel
from interp.ablation import without_logits
from interp.attention.probes import SelectedRows
from interp.data import Sequences, repeated_tokens, token_texts
from interp.model_data import pass_arguments, within_context
from interp.results.tables import empty_table, joined

_LEAST = 0.005  # smaller weights are not kept
_COLUMNS = {
    "site": str, "layer": int, "head": int, "data": str, "sequence": int, "query": int, "key": int, "weight": float,
}  # fmt: skip


def tables(model: HookedModel, given: Inputs, found: Scores, config: Config) -> dict[str, pd.DataFrame]:
    """The tables ``patterns`` (weights of at least 0.005) and ``tokens``.

    Of the text, the stretch is shown in which most pairs of neighbouring tokens come again: there induction has
    something to say.
    """
    heads = _heads(found, config)
    parts, tokens = [empty_table(_COLUMNS)], []
    for data, sequence in _sequences(model, given, config).items():
        ids = sequence.tokens[0].tolist()
        named = {
            "data": data,
            "sequence": 0,
            "position": range(len(ids)),
            "token": ids,
            "text": token_texts(model.tokenizer, ids),
        }
        tokens.append(pd.DataFrame(named))
        if heads:
            parts.append(_patterns(model, sequence, heads).assign(data=data, sequence=0))
    patterns = joined(parts)
    return {"patterns": patterns.reindex(columns=list(_COLUMNS)), "tokens": pd.concat(tokens, ignore_index=True)}


def telling_stretch(tokens: Int[Tensor, "sequence position"], length: int) -> tuple[int, int]:
    """The sequence, and the start in it, of the stretch in which most pairs of neighbouring tokens come again."""
    best, place = -1, (0, 0)
    for number, ids in enumerate(tokens.tolist()):
        for start in range(0, max(1, len(ids) - length + 1), max(1, length // 4)):
            pairs = Counter(pairwise(ids[start : start + length]))
            again = sum(count > 1 for count in pairs.values())
            if again > best:
                best, place = again, (number, start)
    return place


def _heads(found: Scores, config: Config) -> list[Head]:
    """The strongest heads by prefix matching, and the strongest of each other kind if it is above its threshold."""
    means = {kind: ranked(found.names, found.values[metric, "repeated"]) for kind, metric in KINDS.items()}
    chosen = list(means["induction"])[: config.shown]
    for kind in ("previous_token", "duplicate_token"):
        chosen += [head for head, mean in list(means[kind].items())[:1] if mean > threshold(kind, config)]
    return list(dict.fromkeys(chosen))


def _sequences(model: HookedModel, given: Inputs, config: Config) -> dict[str, Sequences]:
    around = around_sequences(model)
    special = len(around["prefix"]) + len(around["suffix"])
    room = within_context(model, config.shown_tokens)
    period = min(given.repeated.period, (room - special) // 2)
    shown: dict[str, Sequences] = {
        "repeated": repeated_tokens(given.vocabulary, period, 2, 1, seed=config.seed, **around)
    }
    if given.text is not None:
        number, start = telling_stretch(given.text.tokens, room)
        stretch = given.text.tokens[number, start : start + room]
        shown["text"] = Sequences.padded([stretch.tolist()], source=given.text.source)
    return shown


def _patterns(model: HookedModel, sequence: Sequences, heads: list[Head]) -> pd.DataFrame:
    probe = SelectedRows(queries=range(sequence.n_positions))
    sites = {site for site, _ in heads}
    run = model.run(**pass_arguments(model, sequence), probes=[probe], sites=sites, **without_logits(model))
    parts = []
    for site, head in heads:
        pattern = run.readings(probe)[site].values[0, head]
        query, key = (pattern >= _LEAST).nonzero(as_tuple=True)
        columns = {"query": query, "key": key, "weight": pattern[query, key]}
        numbers = {name: np.asarray(torch.as_tensor(values).cpu()) for name, values in columns.items()}
        parts.append(pd.DataFrame({"site": site, "layer": model.site(site).layer, "head": head, **numbers}))
    return pd.concat(parts, ignore_index=True)
