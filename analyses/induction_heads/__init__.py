"""Which heads are induction heads, and does the model need them?

An induction head attends from a token to the one that followed its previous occurrence, and so lets the model go on as
it went on last time (Elhage et al. 2021; Olsson et al. 2022). Every head is scored on random tokens that repeat and on
their control that does not; then it is asked what the heads copy, what the model does with repeats, what breaks without
the heads, what feeds them, and how far back they reach. docs/induction-heads.md says how each number comes about.
"""

# config.py       settings, and what the budgets run
# inputs.py       repeated tokens, their control, text; batches
# measures.py     what is read off the attention, sequence by sequence
# scores.py       the table heads: means, intervals, chance, controls
# kinds.py        which heads are called what
# weights.py      copying, from the weights alone
# losses.py       loss by position, what copying is worth, in-context learning
# causes.py       loss without the strongest heads
# feeding.py      which previous-token heads feed which induction heads
# reaching.py     prefix matching at longer periods
# formation.py    losses and heads at each checkpoint of a training run
# patterns.py     the strongest heads' patterns on two sequences
# schemas.py      what the tables look like

from analyses.induction_heads import (
    causes,
    feeding,
    formation,
    inputs,
    kinds,
    losses,
    measures,
    patterns,
    reaching,
    scores,
    weights,
)
from analyses.induction_heads.config import Config
from analyses.induction_heads.schemas import SCHEMAS
from interp import HookedModel
from interp.results import Result, Workspace

__all__ = ["MEMORY_SETTINGS", "SCHEMAS", "Config", "run"]

MEMORY_SETTINGS = ("tokens_per_pass",)


def run(model: HookedModel, config: Config, work: Workspace) -> Result:
    """All tables of the analysis.

    Raises:
        UserError: the model reads no tokens, the settings do not fit its context or vocabulary, the text is none, or
            there are no checkpoints where they were asked for.
    """
    followed = formation.trainings(model, config)
    given = inputs.make(model, config, work)
    measured = work.step("attention", lambda: measures.measure(model, given, config, work))
    found = scores.Scores.of(model, measured["scores"], given)
    heads = scores.heads_table(found, config, work)
    copying = work.step("copying", lambda: weights.copying(model, given, config, work))["copying"]
    top = kinds.Selection.of(found, config)
    tables = {
        "heads": scores.joined(heads, copying),
        "kinds": kinds.table(found, config),
        **losses.tables(model, measured["losses"], given, config, work),
        "ablation": causes.table(model, given, top, config, work),
        "composition": feeding.table(model, given, top, config, work),
        "reach": reaching.table(model, given, found, config, work),
        **formation.tables(model, followed, given, config, work),
        **work.step("patterns", lambda: patterns.tables(model, given, found, config)),
    }
    inputs.say_what_full_adds(model, config, work, ablates=len(tables["ablation"]) > 0)
    return Result("induction-heads", tables, {"inputs": given.described})
