"""Why is attention as it is? Every claim that is made about it, measured.

Each claim is stated, what theory predicts is said, something is measured that could refute it, and the verdict is
computed from the numbers. Most parts need no model: they are closed forms, exact identities, counts, and small models
trained on tasks whose answer is known. Some are asked of the model. docs/attention-design.md goes through them.
"""

# config.py          settings, sections
# claims.py          what an experiment gives, and its verdict
# tasks.py           small tasks, and the training of small models on them
# formula.py         a weighted mean: what it can do and what it cannot
# scaling.py         why scores are divided by √d
# saturation.py      what a softmax that has made up its mind passes on
# floating_point.py  exp's limits, and the mask before the softmax
# kernels.py         attention as kernel regression; features in place of the kernel
# heads.py           several heads instead of one
# masks.py           encoder and decoder
# positions.py       order, distance, lengths beyond the trained one
# depth.py           norms and residuals
# cost.py            memory, caches, windows, experts
# on_model.py        the model's own scores and scale; features_on_heads.py, subspaces.py: its heads

from collections.abc import Callable

from analyses.attention_design import (
    claims,
    cost,
    depth,
    floating_point,
    formula,
    heads,
    kernels,
    masks,
    on_model,
    positions,
    saturation,
    scaling,
)
from analyses.attention_design.config import Config
from analyses.attention_design.schemas import SCHEMAS
from interp import HookedModel
from interp.results import Result, Workspace
from interp.results.tables import joined

__all__ = ["MEMORY_SETTINGS", "QUICK", "SCHEMAS", "Config", "run"]

MEMORY_SETTINGS = ("tokens", "windows")
QUICK = {"training": False}

SECTIONS: dict[str, Callable[[Config], list[claims.Claim]]] = {
    "formula": formula.claims,
    "scaling": scaling.claims,
    "saturation": saturation.claims,
    "floating-point": floating_point.claims,
    "kernels": kernels.claims,
    "heads": heads.claims,
    "masks": masks.claims,
    "positions": positions.claims,
    "depth": depth.claims,
    "cost": cost.claims,
}


def run(model: HookedModel, config: Config, work: Workspace) -> Result:
    """All tables of the analysis: a row for each claim, its measurements, and the curves of its figures."""
    parts = []
    for topic in work.progress([each for each in SECTIONS if each in config.topics], "sections"):
        parts.append(work.step(topic, lambda topic=topic: claims.tables(SECTIONS[topic](config))))
    of_model = work.step("model", lambda: on_model.tables(model, config, work))
    heads_table = of_model.pop("heads")
    parts.append(of_model)
    tables = {name: joined([part[name] for part in parts]) for name in parts[0]}
    if len(heads_table):
        tables["heads"] = heads_table
    if not config.training:
        work.skip("claims that need small models trained", "training is off")
    if not config.is_full and config.seeds is None:
        work.skip("ten seeds a setting, and depths up to 48 layers", "budget is report; full runs them")
    return Result("attention-design", tables, {})
