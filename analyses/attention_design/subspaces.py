"""Whether the model's heads read and write different subspaces, from its weights alone."""

import numpy as np
import torch

from analyses.attention_design.claims import Claim, Number
from interp import HookedModel
from interp.errors import UserError
from interp.results import Workspace
from interp.statistics import mean_interval

TOPIC = "model"


def subspaces(model: HookedModel, work: Workspace) -> list[Claim]:
    """How far heads of a layer read and write different subspaces."""
    try:
        overlaps = {name: subspace_overlaps(model, name) for name in ("W_Q", "W_V")}
    except UserError as error:
        work.skip("subspaces of heads", str(error))
        return []
    if not len(overlaps["W_Q"]):
        work.skip("subspaces of heads", "no layer has two heads with weights of their own")
        return []
    site = model.sites[0]
    chance = site.d_head / model.head_weights(site.name).W_Q.shape[1]
    found = {name: mean_interval(values) for name, values in overlaps.items() if len(values)}
    said = " and ".join(f"{float(f.value):.3f} ({name})" for name, f in found.items())
    return [
        Claim(
            "subspaces",
            TOPIC,
            "Heads look at different subspaces.",
            "The overlap of two heads' subspaces is the mean squared cosine of their principal angles: 1 for the "
            "same subspace, "
            f"d_head/d_model = {chance:.3f} for random ones.",
            f"Between heads of one layer the overlap is {said} on average over layers, where random subspaces have "
            f"{chance:.3f} and "
            "equal ones 1.",
            (
                *(
                    Number(
                        f"overlap of {name} over that of random subspaces",
                        float(f.value) / chance,
                        float(f.low) / chance,
                        float(f.high) / chance,
                        n=int(f.n),
                    )
                    for name, f in found.items()
                ),
                Number(
                    "largest overlap of a layer (mean over pairs)",
                    max(float(np.max(v)) for v in overlaps.values() if len(v)),
                    expected=0.9,
                    relation="at most",
                ),
            ),
            data=str(model.info.get("name", "the model")),
        )
    ]


def subspace_overlaps(model: HookedModel, name: str) -> np.ndarray:
    """Mean overlap of pairs of heads' subspaces, by layer with at least two."""
    means = []
    for site in model.sites:
        weights = getattr(model.head_weights(site.name), name).detach().double()
        if len(weights) < 2 or weights.shape[1] <= weights.shape[2]:
            continue
        bases = torch.linalg.qr(weights).Q  # [head, d_model, d_head]
        pairs = torch.combinations(torch.arange(len(bases)))
        cosines = torch.einsum("pmd,pme->pde", bases[pairs[:, 0]], bases[pairs[:, 1]])
        means.append(float(cosines.square().sum((-1, -2)).mean() / weights.shape[2]))
    return np.array(means)
