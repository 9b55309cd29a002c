"""What does each head attend to, and how sure is that? Kinds of token, distances, relations between words.

The measures of Clark et al. 2019, Voita et al. 2019, Kovaleva et al. 2019, Kobayashi et al. 2020, Gu et al. 2025 and
Elhage et al. 2021, with chance levels, controls and intervals. docs/head-specialization.md says how each number comes
about.
"""

# config.py       settings, and the papers' thresholds
# inputs.py       windows of text, what is a sink in them; batches
# measures.py     what is read off the attention, window by window
# scores.py       the tables heads, offsets and distances
# kinds.py        which heads are called what
# stability.py    whether other text ranks the heads alike
# weights.py      copying, norms, composition
# comparing.py    how far every pair of heads is apart
# clustering.py   heads in clusters and in two dimensions, and how stable that is
# groups.py       the tables of groups, and heads that are redundant
# sentences.py    a treebank's sentences as tokens, and which pairs a head can see
# syntax.py       relations: a head's accuracy against the best fixed offset
# mentions.py     coreference: a head's accuracy against nearest mention and same word
# pooled.py       accuracies over documents, with intervals
# patterns.py     notable heads' strongest edges on three sentences
# schemas.py      what the tables look like
# reproduce_clark.py  BERT-base beside Clark et al.'s numbers

from analyses.head_specialization import (
    groups,
    inputs,
    kinds,
    measures,
    mentions,
    patterns,
    scores,
    sentences,
    stability,
    syntax,
    weights,
)
from analyses.head_specialization.config import Config
from analyses.head_specialization.schemas import SCHEMAS
from interp import HookedModel
from interp.model_data import pass_arguments
from interp.results import Result, Workspace
from interp.results.tables import joined

__all__ = ["MEMORY_SETTINGS", "SCHEMAS", "Config", "run"]

MEMORY_SETTINGS = ("tokens_per_pass", "window")


def run(model: HookedModel, config: Config, work: Workspace) -> Result:
    """All tables of the analysis.

    Raises:
        UserError: the model reads no tokens, or the settings, a text or the treebank do not fit it.
    """
    given = inputs.make(model, config, work)
    measured = work.step("attention", lambda: measures.measure(model, given, config, work))["scores"]
    found = scores.Scores.of(model, measured, given, config)
    names, main = measures.metrics(model), found[given.main.data]
    parsed = sentences.read(model, given, config, work)
    relations = work.step("syntax", lambda: syntax.tables(model, parsed, config, work))["relations"]
    same = work.step("coreference", lambda: mentions.tables(model, parsed, given, config, work))["coreference"]
    of_weights = work.step("weights", lambda: weights.tables(model, config, work))
    passes = [pass_arguments(model, given.main.select(rows)[0]) for rows in inputs.batches(given.main, config)]
    alike = work.step("groups", lambda: groups.tables(model, passes, given.main.units, config, work))
    of_text = [scores.heads_table(each, names, config, work) for each in found.values()]
    called = [
        kinds.by_score(main, config, work),
        kinds.syntactic(relations, config),
        kinds.coreference(same, config),
        alike.pop("redundant"),
    ]
    all_kinds = joined(called)
    tables = {
        "heads": joined([*of_text, *syntax.head_rows(relations), *mentions.head_rows(same), of_weights["weights"]]),
        "kinds": all_kinds,
        "distances": scores.distances_table(main, given.main.sequences.n_positions),
        "offsets": scores.offsets_table(main),
        "relations": relations,
        "coreference": same,
        "composition": of_weights["composition"],
        **alike,
        "stability": stability.table(found, names, work),
        **work.step("patterns", lambda: patterns.tables(model, given, all_kinds, config)),
    }
    if not config.is_full:
        _say_what_full_adds(config, work)
    return Result("head-specialization", tables, {"inputs": given.described | sentences.described(parsed)})


def _say_what_full_adds(config: Config, work: Workspace) -> None:
    full = Config(budget="full")
    if config.window is None and config.windows is None:
        work.skip(
            f"{full.n_windows} windows of {full.window_length} tokens",
            f"budget is report, which reads {config.n_windows} of {config.window_length}",
        )
    if config.treebank is not None and config.sentences is None:
        work.skip("the whole treebank", f"budget is report, which reads {config.n_sentences} sentences at most")
