"""How much freedom the output leaves to the attention of a transformer's heads.

One row of a head's attention is replaced by the farthest one, in Jensen–Shannon divergence, with which the model's
output stays where it is. docs/attention-freedom.md says what that shows and how it is found.
"""

# inputs.py         sequences, and which queries in them
# choosing.py       importance, which heads, mean rows
# rows.py           one row: its keys, its sink, its values
# continuations.py  a sequence run again and again with one row changed
# polytope.py       the farthest row within linear bounds
# nullspace.py      the farthest row with the same head output, and with random values
# responses.py      what a few runs tell about every row
# search.py         the farthest row with the same output, up to ε
# substitutes.py    rows that need no search; which keys matter
# measuring.py      all of it, row by row
# worth.py          whether freedom predicts what a head's mean pattern does
# tables.py         the tables

from __future__ import annotations

import pandas as pd

from analyses.adversarial_attention.config import Config
from analyses.adversarial_attention.heads import choosing, inputs, measuring, tables, worth
from interp import HookedModel
from interp.errors import UserError
from interp.results import Workspace

__all__ = ["freedom_tables"]


def freedom_tables(
    model: HookedModel, config: Config, work: Workspace
) -> tuple[dict[str, pd.DataFrame], dict[str, dict[str, str]]]:
    """All tables of this half, and what its sequences are.

    Raises:
        UserError: the model gives no output, reads no tokens, or has no such heads. (Where the classifiers' half is
            asked for as well, a model that this half cannot be asked of is left out, with the reason.)
    """
    try:
        _check(model)
        given = inputs.make(model, config, work)
    except UserError as reason:
        if config.part == "heads":
            raise
        work.skip("the model's own heads", str(reason))
        return {}, {}
    made = work.step("importance", lambda: {"importance": choosing.importance(model, given)})
    heads = choosing.chosen(model, made["importance"], config)
    found = measuring.measure(model, given, heads, config, work)
    rows = found["freedom_rows"]
    effects = work.step("mean-pattern", lambda: {"effects": _effects(model, given, heads, config, work)})["effects"]
    searched = rows.loc[rows["searched"]]
    if not config.is_full:
        total = sum(site.n_heads for site in model.sites)
        if len(heads) < total:
            work.skip(f"{total - len(heads)} of {total} heads", "budget is report: --heads all, or --budget full")
        if config.places is None:
            work.skip(
                "more rows of every head", "budget is report; full searches 6, with more starts, rounds and levels"
            )
    return {
        "heads": tables.heads_table(rows, made["importance"], config),
        "freedom_by_keys": tables.by_keys(rows, config),
        "freedom_worth": worth.worth(searched, made["importance"], effects, config.seed),
        **found,
    }, given.described


def _effects(
    model: HookedModel, given: inputs.Inputs, heads: list[choosing.Head], config: Config, work: Workspace
) -> pd.DataFrame:
    open_heads = [head for head in heads if model.site(head[0]).source != "softmax"]
    if not open_heads:
        work.skip("the mean pattern's effect", "the model computes its own attention, so no mean pattern was made")
        return pd.DataFrame({name: [] for name in ("site", "layer", "head", "sequence", "document", "effect")})
    return worth.mean_pattern_effects(model, given, open_heads, work)


def _check(model: HookedModel) -> None:
    if model.is_encoder_decoder:
        raise UserError("rows of attention are changed in models with one stack; this one has an encoder and a decoder")
    output = model.run(**model.inputs.example(model)).logits
    if output is None:
        raise UserError(
            "this model gives no distribution over tokens or classes, so there is no output that attention could leave "
            "unchanged"
        )
    in_memory = str(model.info.get("source", "")).startswith(("given", "factory"))  # its head is whatever it was given
    if not (model.output_head_loaded or in_memory):
        raise UserError("this model's output head was not in its checkpoint, so its output means nothing")
