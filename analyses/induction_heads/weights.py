"""What heads copy, by their weights alone: rows of the table ``heads`` with data "weights"."""

from collections.abc import Callable

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from analyses.induction_heads.config import Config
from analyses.induction_heads.inputs import Inputs
from interp import HookedModel
from interp.circuits import CopyingScores, Weights, copying_eigenvalues, copying_logits
from interp.data import repeated_tokens
from interp.errors import UserError
from interp.results import Workspace
from interp.statistics import mean_interval

_TOKENS = 25  # Olsson et al. 2022
_ROTATIONS = {"report": 32, "full": 1000}


def copying(model: HookedModel, given: Inputs, config: Config, work: Workspace) -> dict[str, pd.DataFrame]:
    """Both copying scores of every head.

    ``copying`` is Olsson et al.'s score on as many sequences of 25 random tokens as there are repeated ones, with an
    interval over them; ``copying_eigenvalues`` is Elhage et al.'s, a number of the weights, with the range (95 %) of
    the same score under random rotations of W_OV in ``null_low`` and ``null_high``. There are no p-values: no paired
    control exists for weights.

    Returns:
        ``copying``: rows of the table ``heads``; value NaN and a note where a head has no direct path to the logits.
    """
    try:
        weights = Weights.from_transformers(model.module, output_head_loaded=model.output_head_loaded)
    except UserError as reason:
        work.skip("copying", str(reason))
        rows = [_rows(model, metric, {}, str(reason), config) for metric in ("copying", "copying_eigenvalues")]
        return {"copying": pd.concat(rows, ignore_index=True)}
    n_tokens = min(_TOKENS, len(given.vocabulary.usable))
    drawn = repeated_tokens(given.vocabulary, n_tokens, n=config.sequences, seed=config.seed).tokens[:, :n_tokens]
    metrics: dict[str, Callable[[], list[CopyingScores]]] = {
        "copying": lambda: copying_logits(weights, drawn),
        "copying_eigenvalues": lambda: copying_eigenvalues(weights, _ROTATIONS[config.budget], config.seed),
    }
    parts = []
    for metric, score in work.progress(list(metrics.items()), "copying scores"):
        by_path = {each.site.path: each for each in score()}
        parts.append(_rows(model, metric, by_path, "no forward pass reached this module", config))
    return {"copying": pd.concat(parts, ignore_index=True)}


def _rows(
    model: HookedModel, metric: str, by_path: dict[str, CopyingScores], otherwise: str, config: Config
) -> pd.DataFrame:
    parts = []
    for site in model.sites:
        found = by_path.get(site.path)
        note = f"not applicable: {otherwise if found is None else found.note}"
        nothing = np.full(site.n_heads, np.nan)
        value = nothing if found is None else found.value.numpy()
        samples = np.empty((0, site.n_heads)) if found is None else found.samples.numpy()
        ends = _interval(samples, config) if metric == "copying" else (nothing, nothing, 0)
        null = (
            np.quantile(samples, [0.025, 0.975], axis=0) if metric != "copying" and len(samples) else (nothing, nothing)
        )
        parts.append(
            pd.DataFrame(
                {
                    "site": site.name, "layer": site.layer, "head": np.arange(site.n_heads), "metric": metric,
                    "data": "weights", "value": value, "ci_low": ends[0], "ci_high": ends[1],
                    "chance": nothing if found is None else found.chance.numpy(), "control": np.nan,
                    "p_corrected": np.nan, "n": ends[2], "note": np.where(np.isnan(value), note, ""),
                    "null_low": null[0], "null_high": null[1],
                }
            )
        )  # fmt: skip
    return pd.concat(parts, ignore_index=True)


def _interval(
    samples: NDArray[np.float64], config: Config
) -> tuple[NDArray[np.float64], NDArray[np.float64], NDArray[np.int64] | int]:
    if not len(samples):
        nothing = np.full(samples.shape[1], np.nan)
        return nothing, nothing, 0
    interval = mean_interval(samples, bounds=(-1.0, 1.0), seed=config.seed)
    return interval.low, interval.high, interval.n
