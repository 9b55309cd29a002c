"""Is attention an explanation? How far it can be changed without the output noticing.

Asked of attention classifiers that are trained for it (Jain & Wallace 2019; Wiegreffe & Pinter 2019; Serrano & Smith
2019), and of the heads of a transformer. docs/adversarial-attention.md and docs/attention-freedom.md say how each
number comes about.
"""

# config.py       settings, and what the budgets run
# schemas.py      what the tables look like
# classifiers/    the first half: classifiers with one layer of attention
# heads/          the second half: heads of the model that is given

from analyses.adversarial_attention import classifiers
from analyses.adversarial_attention.config import Config
from analyses.adversarial_attention.heads import freedom_tables
from analyses.adversarial_attention.schemas import SCHEMAS, with_absent
from interp import HookedModel
from interp.results import Result, Workspace

__all__ = ["MEMORY_SETTINGS", "QUICK", "SCHEMAS", "Config", "run"]

MEMORY_SETTINGS = ("instances_per_pass", "copies")
QUICK = {"part": "heads"}


def run(model: HookedModel, config: Config, work: Workspace) -> Result:
    """All tables of the analysis; those of a part that was not asked for are empty.

    Raises:
        UserError: the labelled texts cannot be read or learned from, or the settings do not fit them.
    """
    tables, about = {}, {}
    if config.part != "both":
        other = "the classifiers" if config.part == "heads" else "the heads of the model"
        work.skip(other, f"--part {config.part} leaves them out; `interp run adversarial-attention` runs both")
    if config.part in ("both", "classifiers"):
        made, about["data"] = classifiers.tables(config, work, device=model.device)
        tables |= made
    if config.part in ("both", "heads"):
        made, about["sequences"] = freedom_tables(model, config, work)
        tables |= made
    return Result("adversarial-attention", with_absent(tables), about)
