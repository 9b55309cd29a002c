"""Which heads matter, how many can go, and which go first?

Heads are scored by what can be had cheaply (importance of Michel et al. 2019, estimates of ablation, weight norms) on
a third of the sequences. On the others heads are ablated one by one, which is what the scores estimate, and pruned
10 % at a time in several orders. Gates that are learned (Voita et al. 2019) choose heads by themselves.
docs/head-pruning.md says how each number comes about.
"""

# config.py      settings, and what the budgets run
# inputs.py      sequences, parts, passes
# metrics.py     what heads matter for
# scores.py      importance and estimates, from gradients and weights
# effects.py     ablations one by one; one head left of each layer
# agreement.py   scores against ablations; importance on another text
# curves.py      orders, and the metric along them
# summary.py     areas under the curves, and the free share
# cost.py        what heads that are cut out save
# gates.py       learned gates
# from_scratch.py  small models with few heads from scratch, against larger ones cut to as few
# schemas.py     what the tables look like

from analyses.head_pruning import agreement, cost, curves, effects, from_scratch, gates, inputs, scores, summary
from analyses.head_pruning.config import Config
from analyses.head_pruning.schemas import SCHEMAS
from interp import HookedModel
from interp.results import Result, Workspace

__all__ = ["MEMORY_SETTINGS", "SCHEMAS", "Config", "run"]

MEMORY_SETTINGS = ("tokens_per_pass",)


def run(model: HookedModel, config: Config, work: Workspace) -> Result:
    """All tables of the analysis.

    Raises:
        UserError: the model reads no tokens, has no metric, or the text does not fit it.
    """
    given = inputs.make(model, config, work)
    data = given.first
    units = data.units(data.reported_on)
    found = scores.score(model, given, config, work)
    chosen = effects.chosen_heads(found, data.name, config)
    if len(chosen) < len(found.heads) and config.ablated is None:
        left = f"{len(found.heads) - len(chosen)} of {len(found.heads)} heads"
        work.skip(f"ablation of {left} one by one", "budget is report; those of highest and lowest importance are")
    samples = effects.samples(model, data, found, chosen, config, work)
    order = curves.orders(model, data, found, samples, config, work)
    values = curves.measured(model, data, order, config, work)
    tables = {
        "heads": scores.heads_table(found, config),
        "effects": effects.table(samples, found, data, config),
        "best_head": effects.best_heads(model, data, found, config, work),
        "agreement": agreement.table(samples, found, data.name, units, config),
        "transfer": agreement.transfer(found, config),
        "order": order,
        "curve": summary.curve_table(values, units, config),
        "areas": summary.area_table(values, units, config),
        "free": summary.free_table(values, units, config),
        "left": curves.left(order),
        "cost": cost.table(model, order, config, work),
        **gates.tables(model, data, found, config, work),
        "from_scratch": from_scratch.table(config, work),
    }
    return Result("head-pruning", tables, {"inputs": given.described})
