"""What the model itself does: loss along the repeats, what copying is worth, in-context learning."""

import numpy as np
import pandas as pd

from analyses.induction_heads.config import Config
from analyses.induction_heads.inputs import Inputs
from analyses.induction_heads.measures import later_rows, why_no_loss
from interp import HookedModel
from interp.results import Workspace
from interp.results.tables import empty_table
from interp.statistics import mean_interval

_BY_POSITION = {
    "data": str, "copy": int, "position": int, "loss": float, "ci_low": float, "ci_high": float, "n": int,
}  # fmt: skip
_ON_REPEATS = ("loss_first_copy", "loss_later_copies", "copying_gain")


def tables(
    model: HookedModel, losses: pd.DataFrame, given: Inputs, config: Config, work: Workspace
) -> dict[str, pd.DataFrame]:
    """The tables ``loss_by_position`` and ``behaviour``, from the losses that `measures.measure` took."""
    why = why_no_loss(model)
    behaviour = pd.DataFrame([*on_repeats(losses, given, config, why), in_context_learning(losses, given, config, why)])
    if why:
        work.skip("everything that needs a loss", why)
        return {"loss_by_position": empty_table(_BY_POSITION), "behaviour": behaviour}
    parts = [_by_position(losses, data, given, config) for data in ("repeated", "unrepeated")]
    return {"loss_by_position": pd.concat(parts, ignore_index=True), "behaviour": behaviour}


def _wide(losses: pd.DataFrame, data: str) -> pd.DataFrame:
    """Losses as [sequence, position]."""
    return losses[losses["data"] == data].pivot(index="sequence", columns="position", values="loss")


def _by_position(losses: pd.DataFrame, data: str, given: Inputs, config: Config) -> pd.DataFrame:
    """Loss of the token at each position of the copies, with ``copy`` counted from 0."""
    wide = _wide(losses, data)
    copy = (wide.columns.to_numpy() - given.repeated.start) // given.repeated.period
    inside = (copy >= 0) & (copy < given.repeated.repeats)
    interval = mean_interval(wide.to_numpy()[:, inside], bounds=(0.0, np.inf), seed=config.seed)
    return pd.DataFrame(
        {
            "data": data, "copy": copy[inside], "position": wide.columns.to_numpy()[inside], "loss": interval.value,
            "ci_low": interval.low, "ci_high": interval.high, "n": interval.n,
        }
    )  # fmt: skip


def on_repeats(losses: pd.DataFrame, given: Inputs, config: Config, why: str = "") -> list[dict[str, object]]:
    """Mean loss on the first copy, on the tokens of later copies that could be copied, and the difference.

    Args:
        losses: that `measures.measure` took.
        why: the model has no loss, where it has none.
    """
    if why:
        return [_none(metric, "repeated", why) for metric in _ON_REPEATS]
    wide = _wide(losses, "repeated")
    start, period = given.repeated.start, given.repeated.period
    # the first copy's first token has nothing of the copy before it; a later copy's is the first that can be told
    first = wide.loc[:, (wide.columns > start) & (wide.columns < start + period)].mean(axis=1)
    later = wide[(later_rows(given.repeated) + 1).tolist()].mean(axis=1)
    values = dict(zip(_ON_REPEATS, (first, later, first - later), strict=True))
    return [_row(metric, "repeated", value.to_numpy(), None, config) for metric, value in values.items()]


def on_text(losses: pd.DataFrame, given: Inputs, config: Config, why: str = "") -> dict[str, object]:
    """Mean loss over the positions of text; arguments as in `on_repeats`."""
    if why or given.text is None:
        return _none("loss", "text", why or "no text was read")
    return _row("loss", "text", _wide(losses, "text").mean(axis=1).to_numpy(), given.units("text"), config)


def in_context_learning(losses: pd.DataFrame, given: Inputs, config: Config, why: str = "") -> dict[str, object]:
    """Loss late in a window of text minus loss early, each averaged over some positions (Olsson et al. 2022).

    Arguments as in `on_repeats`.
    """
    metric, data = "in_context_learning", "text"
    if why:
        return _none(metric, data, why)
    if given.text is None:
        return _none(metric, data, "no text was read")
    wide, last = _wide(losses, data), given.text.n_positions - 1
    early, late, around, note = config.early, config.late, config.around, ""
    if late + around > last:
        late = last - around
        early = late // 10
        note = (
            f"positions {early} and {late} instead of {config.early} and {config.late}: windows have {last + 1} tokens"
        )
    around = min(around, early - 1)
    if early < 1 or late - around <= early + around:
        return _none(metric, data, f"windows of {last + 1} tokens are too short to tell early from late")
    near = [
        wide.loc[:, (wide.columns >= at - around) & (wide.columns <= at + around)].mean(axis=1) for at in (early, late)
    ]
    return {**_row(metric, data, (near[1] - near[0]).to_numpy(), given.units(data), config), "note": note}


def _row(metric: str, data: str, values: np.ndarray, units: np.ndarray | None, config: Config) -> dict[str, object]:
    interval = mean_interval(values, units, seed=config.seed)
    known = {"value": interval.value, "ci_low": interval.low, "ci_high": interval.high}
    return {"metric": metric, "data": data, **{k: float(v) for k, v in known.items()}, "n": int(interval.n), "note": ""}


def _none(metric: str, data: str, note: str) -> dict[str, object]:
    missing = dict.fromkeys(("value", "ci_low", "ci_high"), np.nan)
    return {"metric": metric, "data": data, **missing, "n": 0, "note": f"not applicable: {note}"}
