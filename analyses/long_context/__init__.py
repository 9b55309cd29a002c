"""Which heads fetch something from far back, how far they reach, and what does attention become over long inputs?

A needle is hidden in text of growing length at growing depth, and asked for at the end. While the model predicts the
answer, each head is asked where it looks (retrieval heads, Wu et al. 2024). Inputs are read piece by piece with a
key–value cache, so that memory grows with their length and never with its square. docs/long-context.md says how.
"""

# config.py     settings, and what the budgets run
# needles.py    needles, haystacks, inputs
# retrieval.py  where each head looks while the answer is predicted; statistics of the haystack's rows
# tables.py     the tables
# schemas.py    what they look like

import numpy as np

from analyses.long_context import tables
from analyses.long_context.config import Config
from analyses.long_context.needles import Hidden, hide, make_needles, read_haystack
from analyses.long_context.retrieval import STATISTICS, Found, measure
from analyses.long_context.schemas import SCHEMAS
from interp import HookedModel
from interp.data import prefix_tokens
from interp.errors import UserError
from interp.results import Result, Workspace

__all__ = ["MEMORY_SETTINGS", "SCHEMAS", "Config", "run"]

MEMORY_SETTINGS = ("piece", "batch")


def run(model: HookedModel, config: Config, work: Workspace) -> Result:
    """All tables of the analysis.

    Raises:
        UserError: the model predicts no next token of a text, or a length does not fit its context or the needle.
    """
    model.require_loss()
    if model.d_vocab is None:
        name = model.info.get("name", "this model")
        raise UserError(f"needles are hidden in tokens, but {name} does not say how many there are (vocab_size)")
    lengths = config.lengths_within(model.n_ctx)
    if model.n_ctx is not None and lengths[-1] > model.n_ctx:
        raise UserError(f"the longest length, {lengths[-1]}, is beyond the model's context of {model.n_ctx} tokens")
    haystack = read_haystack(model, config.text, lengths[-1] * config.n_needles, config.seed, work)
    depths = np.linspace(0, 1, config.n_depths) if config.n_depths > 1 else np.array([0.5])
    places = [(length, float(depth)) for length in lengths for depth in depths]
    needles = make_needles(model, config.n_needles * len(places), config.seed, config.needle)
    prefix = prefix_tokens(model.tokenizer, model.config)
    measured = []
    for i, (length, depth) in enumerate(work.progress(places, "lengths and depths")):
        some = needles[i * config.n_needles : (i + 1) * config.n_needles]
        hidden = hide(some, haystack, prefix, length, depth, apart=model.tokenizer is None)
        measured.append((hidden, _in_batches(model, hidden, config)))
    if not config.is_full and config.lengths is None and (model.n_ctx is None or lengths[-1] < model.n_ctx):
        end = "as long as wanted" if model.n_ctx is None else f"to {model.n_ctx:,} tokens, the end of the context"
        work.skip("longer inputs", f"budget is report; --lengths names others, and full goes {end}")
    found = {
        "heads": tables.heads(model, measured),
        "kinds": tables.kinds(model, measured, config),
        "retrieval": tables.retrieval(model, measured),
        "copied": tables.copied(measured),
        "by_length": tables.by_length(model, measured),
    }
    return Result("long-context", found, {})


def _in_batches(model: HookedModel, hidden: Hidden, config: Config) -> Found:
    """`measure` on a few inputs at a time."""
    parts = []
    for first in range(0, len(hidden.tokens), config.batch):
        some = slice(first, first + config.batch)
        part = Hidden(
            hidden.tokens[some],
            hidden.in_needle[some],
            hidden.rows[some],
            hidden.answers[some],
            hidden.needles[some],
            hidden.length,
            hidden.depth,
        )
        parts.append(measure(model, part, config.piece))
    score, attended, copied, loss = (
        np.concatenate([getattr(part, name) for part in parts]) for name in ("score", "attended", "copied", "loss")
    )
    statistics = {name: np.concatenate([part.statistics[name] for part in parts]) for name in STATISTICS}
    return Found(score, attended, copied, loss, statistics)
