"""What the weights alone say: copying, the size of what a head writes, and composition with earlier heads."""

from collections.abc import Callable
from typing import Any, Literal, get_args

import numpy as np
import pandas as pd
import torch
from numpy.typing import NDArray

from analyses.head_specialization.config import Config
from interp import HookedModel
from interp.circuits import (
    Composition,
    Weights,
    composition,
    composition_by_rotation,
    copying_eigenvalues,
    copying_logits,
    ov_norms,
    rotations,
)
from interp.data import repeated_tokens
from interp.errors import UserError
from interp.model_data import vocabulary_of
from interp.results import Workspace
from interp.results.tables import empty_table, joined
from interp.statistics import mean_interval

Path = Literal["query", "key", "value"]
_TOKENS, _SEQUENCES = 25, 32  # Olsson et al. 2022: 25 random tokens
#: Distances of query and key at which the QK product of a rotary model is taken.
DISTANCES = {"report": (0, 1), "full": (0, 1, 2, 4, 8, 16)}
COMPOSITION: dict[str, Any] = {
    "source_site": str, "source_layer": int, "source_head": int, "target_site": str, "target_layer": int,
    "target_head": int, "path": str, "distance": float, "value": float, "expected": float, "excess": float, "note": str,
}  # fmt: skip


def tables(model: HookedModel, config: Config, work: Workspace) -> dict[str, pd.DataFrame]:
    """``weights``: rows of the table ``heads`` with data "weights"; ``composition``.

    Values are NaN, with the reason in ``note``, where a head has no direct path to the logits or the weights cannot be
    read.
    """
    try:
        weights = Weights.from_transformers(model.module, output_head_loaded=model.output_head_loaded)
    except UserError as reason:
        work.skip("copying and composition", str(reason))
        rows = [_rows(model, metric, {}, str(reason)) for metric in ("copying", "copying_eigenvalues", "ov_norm")]
        return {"weights": pd.concat(rows, ignore_index=True), "composition": empty_table(COMPOSITION)}
    return {"weights": _heads(model, weights, config, work), "composition": compositions(model, weights, config, work)}


def compositions(model: HookedModel, weights: Weights, config: Config, work: Workspace) -> pd.DataFrame:
    """The table ``composition``: of each head with each head of later layers of its stack.

    Where positions are rotary, the product of queries and keys depends on their distance, and so does composition into
    them. Where queries and keys are normed, no weights say what it is: left out.
    """
    parts = [empty_table(COMPOSITION)]
    normed = next((site.scores_caveat for site in weights.sites if "pass through" in site.scores_caveat), "")
    if normed:
        work.skip("composition into queries and keys from the weights", normed)
    for path in get_args(Path):
        if path == "value":
            parts.append(_composed(model, composition(weights, path), path, float("nan")))
            if not len(parts[-1]):
                work.skip("composition", "no two heads of one stack read and write one stream without norms between")
        elif not normed:
            parts += [
                _composed(model, found, path, at) for at, found in _at_distances(model, weights, path, config, work)
            ]
    return joined(parts)


def _at_distances(
    model: HookedModel, weights: Weights, path: Path, config: Config, work: Workspace
) -> list[tuple[float, Composition]]:
    if not any("rotary" in site.scores_caveat for site in weights.sites):
        return [(float("nan"), composition(weights, path))]
    try:
        turned = rotations(model.module, DISTANCES[config.budget])
    except UserError as reason:
        if path == "query":
            work.skip("composition by distance", f"{reason}; it is taken for a key at the query's own position")
        return [(0.0, composition(weights, path))]
    return list(zip(map(float, turned), composition_by_rotation(weights, path, list(turned.values())), strict=True))


def _composed(model: HookedModel, found: Composition, path: str, distance: float) -> pd.DataFrame:
    names = {site.path: site.name for site in model.sites}
    heads = pd.DataFrame(found.heads, columns=["path", "layer", "head"])
    source, target = np.nonzero(~np.isnan(found.value.numpy()))
    value = found.value.numpy()[source, target]
    sites = np.array([names.get(each, each) for each in heads["path"]], dtype=object)
    note = found.note if np.isnan(distance) else "; ".join(p for p in found.note.split("; ") if "rotary" not in p)
    made = {
        "source_site": sites[source], "source_layer": heads["layer"].to_numpy()[source],
        "source_head": heads["head"].to_numpy()[source], "target_site": sites[target],
        "target_layer": heads["layer"].to_numpy()[target], "target_head": heads["head"].to_numpy()[target],
        "path": path, "distance": distance, "value": value, "expected": found.chance, "excess": value - found.chance,
        "note": note,
    }  # fmt: skip
    return pd.DataFrame(made)


def _heads(model: HookedModel, weights: Weights, config: Config, work: Workspace) -> pd.DataFrame:
    vocabulary = vocabulary_of(model)
    n_tokens = min(_TOKENS, len(vocabulary.usable))
    drawn = repeated_tokens(vocabulary, n_tokens, n=_SEQUENCES, seed=config.seed).tokens[:, :n_tokens]
    metrics: dict[str, Callable[[], list[tuple[Any, torch.Tensor, torch.Tensor, torch.Tensor, str]]]] = {
        "copying": lambda: [(s.site, s.value, s.chance, s.samples, s.note) for s in copying_logits(weights, drawn)],
        # for a randomly rotated W_OV the score is as likely to have one sign as the other: chance is 0
        "copying_eigenvalues": lambda: [
            (s.site, s.value, torch.where(s.value.isnan(), torch.nan, 0.0), s.samples, s.note)
            for s in copying_eigenvalues(weights, draws=0)
        ],
        "ov_norm": lambda: [
            (site, value, torch.full_like(value, torch.nan), value.new_empty(0, len(value)), site.values_caveat)
            for site, value in ov_norms(weights)
        ],
    }
    parts = []
    for metric, score in work.progress(list(metrics.items()), "weights"):
        by_path = {site.path: rest for site, *rest in score()}
        parts.append(_rows(model, metric, by_path, "no forward pass reached this module", config.seed))
    return pd.concat(parts, ignore_index=True)


def _rows(
    model: HookedModel, metric: str, by_path: dict[str, list[Any]], otherwise: str, seed: int = 0
) -> pd.DataFrame:
    parts = []
    for site in model.sites:
        nothing: NDArray[np.float64] = np.full(site.n_heads, np.nan)
        value, chance, samples, note = by_path.get(site.path, [nothing, nothing, nothing[None][:0], otherwise])
        value, low, high, n = np.asarray(value), nothing, nothing, 0
        if metric == "copying" and len(samples):
            interval = mean_interval(np.asarray(samples), bounds=(-1.0, 1.0), seed=seed)
            low, high, n = interval.low, interval.high, interval.n
        said = f"not applicable: {note or otherwise}"
        remark = note if metric == "ov_norm" else ""
        parts.append(
            pd.DataFrame(
                {
                    "site": site.name, "layer": site.layer, "head": np.arange(site.n_heads), "metric": metric,
                    "data": "weights", "value": value, "ci_low": low, "ci_high": high, "chance": np.asarray(chance),
                    "control": np.nan, "p_corrected": np.nan, "n": n, "half": "all",
                    "note": np.where(np.isnan(value), said, remark),
                }
            )
        )  # fmt: skip
    return pd.concat(parts, ignore_index=True)
