"""What weights say of a model whose weights are not known: nothing, with the reason."""

import torch

import interp
from analyses.head_specialization import weights
from analyses.head_specialization.config import Config
from interp.results import Workspace
from tests import own_models


def test_a_module_of_ones_own_has_rows_with_the_reason() -> None:
    model = interp.load(own_models.build(), torch.zeros(2, 8, dtype=torch.long))
    work = Workspace()
    rows = weights.tables(model, Config(), work)["weights"]
    assert len(rows) == 3 * sum(site.n_heads for site in model.sites)
    assert set(rows["value"].isna()) == {True}
    assert all(note.startswith("not applicable: ") for note in rows["note"])
    assert work.left_out[0]["part"] == "copying and composition"
