"""The same questions asked of the model: its scores and its scale, and what other files ask of its heads."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import pandas as pd
from torch import Tensor

from analyses.attention_design.claims import Claim, Curve, Number, Panel
from analyses.attention_design.claims import tables as as_tables
from analyses.attention_design.config import Config
from analyses.attention_design.features_on_heads import features
from analyses.attention_design.subspaces import subspaces
from interp import HookedModel
from interp.attention.edits import ScaleExponent
from interp.attention.probes import Entropy, MaxWeight, RowMean
from interp.attention.rows import Rows
from interp.data import RepeatedTokens, Sequences, Vocabulary, prefix_tokens, repeated_tokens
from interp.errors import UserError
from interp.model_data import pass_arguments, reads_text, reads_tokens, text_windows, within_context
from interp.models.recording import Run
from interp.results import Workspace
from interp.statistics import mean_interval, spearman_interval

TOPIC = "model"
SHIFTS = (-0.3, -0.2, -0.1, -0.05, 0.0, 0.05, 0.1, 0.2, 0.3)


@dataclass(frozen=True, eq=False)
class ScoreDeviation(RowMean):
    """Standard deviation of a row's scores over the keys that it may read."""

    needs: ClassVar[frozenset[str]] = frozenset({"scores"})

    def measure(self, rows: Rows) -> tuple[Tensor, Tensor]:
        """Of rows with at least two keys."""
        assert rows.scores is not None
        allowed = rows.allowed.expand(rows.scores.shape)
        n = allowed.sum(-1)
        scores = rows.scores.masked_fill(~allowed, 0.0)
        mean = scores.sum(-1) / n.clamp_min(1)
        off = (scores - mean[..., None]).masked_fill(~allowed, 0.0)
        return (off.square().sum(-1) / (n - 1).clamp_min(1)).sqrt(), n >= 2


def tables(model: HookedModel, config: Config, work: Workspace) -> dict[str, pd.DataFrame]:
    """The tables of what can be asked of this model, and its heads' scores; what cannot is recorded as left out."""
    text = _text(model, config, work)
    found, heads = [], pd.DataFrame()
    if text is not None:
        asked = [ScoreDeviation(first_position=16), MaxWeight(first_position=16), Entropy()]
        run = model.run(**pass_arguments(model, text), probes=asked, keep="qk")
        measured = {name: run.values(i).mean(1) for i, name in enumerate(("deviation", "max", "entropy"))}
        heads = heads_table(run, "repeated" if isinstance(text, RepeatedTokens) else "text")
        found = [deviations(model, measured), *features(model, run.traces, measured, config.seed, work)]
        try:
            model.require_loss()
        except UserError as error:
            work.skip("loss under other scale exponents", str(error))
        else:
            alphas = {
                -math.log(trace.scale) / math.log(trace.query.shape[-1])
                for trace in run.traces.values()
                if trace.scale > 0
            }
            if len({round(alpha, 6) for alpha in alphas}) == 1:
                found.append(scale(model, text, round(alphas.pop(), 4)))
            else:
                work.skip("loss under other scale exponents", "its sites have different scales, or none on the core")
    return {**as_tables([*found, *subspaces(model, work)]), "heads": heads}


def deviations(model: HookedModel, measured: dict[str, Tensor]) -> Claim:
    """What scores are like after training."""
    deviation = measured["deviation"].flatten().numpy()
    sharp = measured["max"].flatten().numpy()
    kept = np.isfinite(deviation)
    deviation, sharp = deviation[kept], sharp[kept]
    within = float(np.mean((deviation > 0.5) & (deviation < 2)))
    relation = spearman_interval(deviation, sharp)
    order = np.sort(deviation)
    return Claim(
        "trained-deviation",
        TOPIC,
        "After the division by √d, scores stay near unit variance.",
        "The argument is about random vectors. Training moves queries and keys until heads are as sharp as they are "
        "useful; "
        "correlated q and k give scores of order √d after the division (the case of Yang et al. 2022 for 1/d).",
        f"Over {len(deviation)} heads the standard deviation of a row's scores is {np.median(deviation):.2f} in the "
        "median, from "
        f"{order[0]:.2f} to {order[-1]:.1f}; {within:.0%} of the heads lie between ½ and 2. Heads of larger deviation "
        "are "
        f"sharper: rank correlation with the largest weight {float(relation.value):.2f}.",
        (
            Number("median standard deviation of a head's scores", float(np.median(deviation)), n=len(deviation)),
            Number(
                "share of heads within a factor of 2 of 1, said to be all",
                within,
                expected=0.95,
                relation="at least",
                source="said",
            ),
            Number(
                "rank correlation of deviation and largest weight",
                float(relation.value),
                float(relation.low),
                float(relation.high),
                n=len(deviation),
            ),
        ),
        (
            Panel(
                "Scores of trained heads",
                "standard deviation of a row's scores",
                "share of heads below it",
                (Curve("heads", order, np.linspace(0, 1, len(order))),),
                "log",
            ),
        ),
        said="Scores have unit variance.",
        data=str(model.info.get("name", "the model")),
    )


def scale(model: HookedModel, text: Sequences, alpha: float) -> Claim:
    """Loss when every head's scale is set to d^−a, for exponents a around the model's own."""
    d_head = model.sites[0].d_head
    exponents = [round(alpha + shift, 4) for shift in SHIFTS]
    losses = []
    for exponent in exponents:
        heads = {(site.name, h): exponent for site in model.sites for h in range(site.n_heads)}
        losses.append(_losses(model, text, [ScaleExponent(heads)]))
    change = np.stack(losses) - _losses(model, text, [])
    found = mean_interval(change.T)
    best = exponents[int(np.argmin(found.value))]
    others = [i for i, shift in enumerate(SHIFTS) if shift]
    low, high = SHIFTS.index(-0.1), SHIFTS.index(0.1)
    return Claim(
        "scale-edited",
        TOPIC,
        "A trained model depends on the scale it was trained with.",
        "W_Q and W_K could take up any constant factor in training; afterwards they have. Another exponent α sharpens "
        "(smaller) "
        f"or flattens (larger) every head by d^(own − α), with d = {d_head} and the model's own exponent {alpha:g}.",
        f"Of the exponents tried, the loss is least at α = {best:g}. At {exponents[low]:g} it changes by "
        f"{found.value[low]:+.2f} "
        f"nats, at {exponents[high]:g} by {found.value[high]:+.2f} (scores {d_head**0.1:.2f} times as far apart, and "
        "as near).",
        (
            Number(
                "upper end of the change of the loss, least of all other exponents",
                float(np.nanmin(found.high[others])) if np.isfinite(found.high[others]).any() else math.nan,
                expected=0.0,
                relation="at least",
                unit="nats",
                n=len(text),
            ),
            Number("exponent of least loss", best),
            *(
                Number(
                    f"change of the loss at α = {a:g}",
                    float(found.value[i]),
                    float(found.low[i]),
                    float(found.high[i]),
                    unit="nats",
                    n=len(text),
                )
                for i, a in enumerate(exponents)
            ),
        ),
        (
            Panel(
                "Loss under another scale",
                "scale exponent α",
                "change of the loss (nats)",
                (Curve("all heads", exponents, found.value, found.low, found.high),),
                reference=0.0,
                reference_name="unchanged",
            ),
        ),
        not_shown="One exponent for all heads; a single head may be better off with another.",
        data=str(model.info.get("name", "the model")),
    )


def heads_table(run: Run, data: str) -> pd.DataFrame:
    """The long table of the first probe's readings, the scores' deviation, with intervals over windows."""
    rows = []
    for site, values in zip(run.sites, run.values(0), strict=True):
        found = mean_interval(values.numpy())
        for head in range(site.n_heads):
            value = float(found.value[head])
            rows.append(
                {
                    "site": site.name,
                    "layer": site.layer,
                    "head": head,
                    "metric": "score_deviation",
                    "data": data,
                    "value": value,
                    "ci_low": float(found.low[head]),
                    "ci_high": float(found.high[head]),
                    "chance": math.nan,
                    "p_corrected": math.nan,
                    "n": int(found.n[head]),
                    "note": "" if math.isfinite(value) else "no row of 16 keys",
                }
            )
    return pd.DataFrame(rows)


def _text(model: HookedModel, config: Config, work: Workspace) -> Sequences | None:
    """Windows of text; random tokens that repeat for a model without a tokenizer; None for one that reads no tokens."""
    if not reads_tokens(model):
        work.skip("what is measured on the model", "it reads no tokens")
        return None
    length = within_context(model, config.tokens)
    if not reads_text(model, config.text):
        work.note(
            "The model came without a tokenizer: what is measured on it is measured on random tokens that repeat."
        )
        prefix = prefix_tokens(None, model.config)
        vocabulary = Vocabulary.of_size(model.d_vocab or 0, set(prefix))
        period = (length - len(prefix)) // 2
        return repeated_tokens(
            vocabulary, period, 2, config.windows, seed=config.seed, prefix=prefix, context=model.n_ctx
        )
    return text_windows(model, config.text, length, n=config.windows, seed=config.seed)


def _losses(model: HookedModel, text: Sequences, edits: list[ScaleExponent]) -> np.ndarray:
    """Mean loss of each window under some edits."""
    loss = model.token_loss(text.tokens, None if bool(text.valid.all()) else text.valid, edits=edits)
    return loss.double().nanmean(-1).numpy()
