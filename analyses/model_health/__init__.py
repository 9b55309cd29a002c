"""What goes wrong silently in a model's attention?

Leaks of the future, of padding and between sequences, missing positions, softmaxes that are frozen, gradients that do
not arrive, numbers that are none, norms over the wrong axis, heads that are there twice or for nothing, and what a long
context costs. Each check measures a value and gives a verdict (ok, warn, fail, or not applicable and why) with advice.
docs/model-health.md says how each is measured and why its limits are where they are.
"""

# config.py       settings, and every check with its limits and their reasons
# checks.py       what a check is; the table of them
# subject.py      the model's input taken apart; what a run of it shows
# leaks.py        the future, padding, batch, mode, order
# scores.py       what the softmax is fed and gives
# gradients.py    gradients and activations by depth
# numerics.py     NaN, infinity, rows that are no distributions
# norms.py        norms over the wrong axis
# redundancy.py   heads there twice or for nothing
# cost.py         operations, patterns, keys and values
# inputs.py       the text that attention's statistics are taken on
# schemas.py      what the tables look like

from analyses.model_health import cost, gradients, inputs, leaks, norms, numerics, redundancy, scores
from analyses.model_health.checks import overall, table
from analyses.model_health.config import CHECKS, Config
from analyses.model_health.schemas import SCHEMAS
from analyses.model_health.subject import Subject, subject_of
from interp import HookedModel
from interp.models.modes import evaluating
from interp.results import Result, Workspace

__all__ = ["MEMORY_SETTINGS", "SCHEMAS", "VERIFY", "Config", "run"]

MEMORY_SETTINGS = ("length", "sequences")
VERIFY = False  # a model that is ill may not agree with itself; that is for the checks to say


def run(model: HookedModel, config: Config, work: Workspace) -> Result:
    """All tables of the analysis: checks, heads, depth, cost, memory.

    Raises:
        UserError: the text is none, or the model cannot be run on its example.
    """
    with evaluating(model.module):
        subject = subject_of(model, seed=config.seed)
        read, data = inputs.read(subject, config, work)
        tables = work.step("checks", lambda: _tables(subject, read, data, config))
    return Result("model-health", tables, {"verdict": overall(tables["checks"])})


def _tables(subject: Subject, read: Subject, data: str, config: Config) -> dict:
    measured, told = scores.measure(read), scores.distance(subject)
    depth, costs = gradients.measure(subject), cost.costs(subject, config)
    rows = [
        *leaks.rows(subject, config),
        scores.told_by_position(subject, told),
        *scores.rows(read, measured, config),
        *gradients.rows(subject, depth),
        *numerics.rows(subject),
        *norms.rows(subject),
        *redundancy.rows(read, measured, depth),
        *cost.rows(costs, config),
    ]
    order = list(CHECKS)
    rows.sort(key=lambda row: order.index(row.check))
    return {
        "checks": table(rows),
        "heads": scores.heads(measured, told, data, config.seed),
        "depth": depth.table(subject),
        **cost.tables(costs, config),
    }
