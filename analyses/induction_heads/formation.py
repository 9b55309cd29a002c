"""How the heads form: losses and head scores at each checkpoint of a training run, beside those of a control."""

import re
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

import interp
from analyses.induction_heads.config import Config
from analyses.induction_heads.inputs import Inputs, around_sequences
from analyses.induction_heads.losses import in_context_learning, on_repeats, on_text
from analyses.induction_heads.measures import measure, why_no_loss
from analyses.induction_heads.scores import NO_ROW, SHARE, Scores, control_of
from interp import HookedModel, UserError
from interp.data import Sequences, copied_segments, repeated_tokens, unrepeated_tokens
from interp.model_data import within_context
from interp.models.bundled import BUNDLED, Toy
from interp.models.training import checkpoint_folders
from interp.results import Workspace
from interp.results.tables import empty_table
from interp.statistics import mean_interval

METRICS = ("prefix_matching", "previous_token")
_NOT_READ = "not read: "  # how the note of a checkpoint begins that could not be loaded or measured
_RUN = {"run": str, "is_control": bool, "step": int, "checkpoint": str}
_ENDS = {"value": float, "ci_low": float, "ci_high": float}
MODEL_COLUMNS = {**_RUN, "metric": str, "data": str, **_ENDS, "n": int, "note": str}
HEAD_COLUMNS = {
    **_RUN, "site": str, "layer": int, "head": int, "metric": str, "data": str, **_ENDS, "chance": float,
    "control": float, "n": int, "note": str,
}  # fmt: skip
_SEED = 2**31  # beside the user's: tokens that picked no head, and that no toy was trained on (their seeds are below)
_SEGMENT = (8, 31)  # tokens of a copied segment, where there is no text


@dataclass(frozen=True)
class Moment:
    """A checkpoint: its step in training, its name (folder or revision), and what loads it."""

    step: int
    name: str
    load: Callable[[], HookedModel]


@dataclass(frozen=True)
class Training:
    """A training run by its checkpoints, ascending; ``is_control``: of a model to compare with."""

    name: str
    is_control: bool
    moments: tuple[Moment, ...]


def trainings(model: HookedModel, config: Config) -> list[Training]:
    """The training runs that the settings ask for; none where they ask for none.

    Raises:
        UserError: a folder holds no checkpoints, the model brings none, or it is no hub model and has no revisions.
    """
    name = str(model.info.get("name", "model"))
    if config.revisions is not None:
        if name.lower() in BUNDLED or Path(name).exists():
            raise UserError(f"revisions are a hub model's, and {name} is on this machine: give --checkpoints a folder")
        steps = _steps(config.revision_names)
        moments = [Moment(steps[r], r, partial(_load, model, name, r)) for r in config.revision_names]
        return [Training(name, False, tuple(sorted(moments, key=lambda moment: moment.step)))]
    if config.checkpoints is None:
        return []
    folders = [Path(folder) for folder in config.checkpoints] or _brought_along(name)
    return [
        Training(
            folder.resolve().name,
            number > 0,
            tuple(Moment(s, p.name, partial(_load, model, str(p))) for s, p in checkpoint_folders(folder).items()),
        )
        for number, folder in enumerate(folders)
    ]


def tables(
    model: HookedModel, followed: list[Training], given: Inputs, config: Config, work: Workspace
) -> dict[str, pd.DataFrame]:
    """The tables ``formation``, of what the model does, and ``formation_heads``, of what each of its heads does.

    All checkpoints are measured on the same sequences, which are others than those of the table ``heads``. A checkpoint
    that cannot be loaded or measured is left out, with a row in ``formation`` that says why.

    Raises:
        UserError: of a training run, no checkpoint could be read.
    """
    parts: dict[str, list[pd.DataFrame]] = {"formation": [], "formation_heads": []}
    shown = _inputs(model, given, config) if followed else given
    moments = [(number, training, moment) for number, training in enumerate(followed) for moment in training.moments]
    for number, training, moment in work.progress(moments, "checkpoints"):
        made = work.step(
            f"formation-{number}-{moment.step}",
            lambda training=training, moment=moment: _at(training, moment, shown, config, work),
        )
        for name, table in made.items():
            parts[name].append(table)
    columns = {"formation": MODEL_COLUMNS, "formation_heads": HEAD_COLUMNS}
    joined = {name: _joined(found, columns[name]) for name, found in parts.items()}
    for training in followed:
        _check_some_read(training, joined["formation"])
    return joined


def _check_some_read(training: Training, table: pd.DataFrame) -> None:
    rows = table.loc[(table["run"] == training.name) & (table["is_control"] == training.is_control)]
    unread = rows.loc[rows["note"].str.startswith(_NOT_READ)]
    if len(unread) == len(rows):
        first = unread.iloc[0]
        raise UserError(
            f"none of the {len(unread)} checkpoints of {training.name} can be read; the first, {first['checkpoint']}: "
            f"{first['note'].removeprefix(_NOT_READ)}"
        )


def _at(training: Training, moment: Moment, given: Inputs, config: Config, work: Workspace) -> dict[str, pd.DataFrame]:
    """Both tables' rows of one checkpoint."""
    known = {
        "run": training.name, "is_control": training.is_control, "step": moment.step, "checkpoint": moment.name,
    }  # fmt: skip
    try:
        model = moment.load()
        measured = measure(model, given, config, work)
        made = {"formation": _of_model(model, measured["losses"], given, config),
                "formation_heads": _of_heads(model, measured["scores"], given, config)}  # fmt: skip
    except (UserError, OSError) as reason:
        why = " ".join(str(reason).split())
        work.skip(f"checkpoint {moment.name} of {training.name}", why)
        missing = {"metric": "loss", "data": _data(given), **dict.fromkeys(_ENDS, np.nan), "n": 0}
        made = {
            "formation": pd.DataFrame([{**missing, "note": f"{_NOT_READ}{why}"}]),
            "formation_heads": empty_table({}),
        }
    columns = {"formation": MODEL_COLUMNS, "formation_heads": HEAD_COLUMNS}
    return {name: table.assign(**known).reindex(columns=list(columns[name])) for name, table in made.items()}


def _of_model(model: HookedModel, losses: pd.DataFrame, given: Inputs, config: Config) -> pd.DataFrame:
    """Loss on text, in-context learning there, and loss on the first and the later copies of repeated tokens."""
    why = why_no_loss(model)
    measures = (on_text, in_context_learning)
    rows = [*(each(losses, given, config, why) for each in measures), *on_repeats(losses, given, config, why)]
    named = pd.DataFrame(rows)
    return named.assign(data=named["data"].where(named["data"] != "text", _data(given)))


def _of_heads(model: HookedModel, measured: pd.DataFrame, given: Inputs, config: Config) -> pd.DataFrame:
    """Prefix matching and attention to the previous token of every head, on repeated tokens."""
    found, parts = Scores.of(model, measured, given), []
    for metric in METRICS:
        values, against = found.values[metric, "repeated"], control_of(metric, "repeated")
        interval = mean_interval(values, bounds=SHARE, seed=config.seed)
        other = None if against is None else found.values[against.metric, against.data]
        undefined = [found.undefined.get((site, metric), NO_ROW) for site in found.heads["site"]]
        parts.append(
            found.heads.assign(
                metric=metric, data="repeated", value=interval.value, ci_low=interval.low, ci_high=interval.high,
                chance=_mean(found.chance[metric, "repeated"]), control=np.nan if other is None else _mean(other),
                n=interval.n, note=np.where(np.isnan(interval.value), undefined, ""),
            )
        )  # fmt: skip
    return pd.concat(parts, ignore_index=True)


def _inputs(model: HookedModel, given: Inputs, config: Config) -> Inputs:
    """Fresh repeated tokens and their control, and the text; where there is none, tokens with a copied segment."""
    n, seed, around = config.checkpoint_sequences, config.seed + _SEED, around_sequences(model)
    size = {"period": given.repeated.period, "repeats": config.repeats, "n": n, "seed": seed, **around}
    text = given.text
    if text is None:
        prefix = around["prefix"]
        length = within_context(model, config.window)
        longest = min(_SEGMENT[1], (length - len(prefix)) // 2)
        text = copied_segments(
            given.vocabulary, length, n, shortest=min(_SEGMENT[0], longest), longest=longest, seed=seed, prefix=prefix
        )
    some: Sequences = text.select(slice(0, n))
    return replace(
        given,
        repeated=repeated_tokens(given.vocabulary, **size),
        unrepeated=unrepeated_tokens(given.vocabulary, **size),
        text=some,
    )


def _data(given: Inputs) -> str:
    """What stands in the place of text."""
    return "copied_segments" if hasattr(given.text, "copied_length") else "text"


def _load(model: HookedModel, name: str, revision: str | None = None) -> HookedModel:
    """A checkpoint as its model was loaded; that the core computes what the model does was verified on the model."""
    return interp.load(name, revision=revision, device=str(model.device), dtype=model.dtype, verify=False)


def _brought_along(name: str) -> list[Path]:
    """The folder of a model that holds its own checkpoints, and that of its control."""
    toy = BUNDLED.get(name.lower())
    if isinstance(toy, Toy):
        control = [BUNDLED[toy.control].place()] if toy.control else []
        return [toy.place(), *control]
    if Path(name).is_dir():
        return [Path(name)]
    raise UserError(
        f"{name} brings no checkpoints along: give --checkpoints the folder that they lie in, or --revisions the names "
        "of a hub model's"
    )


def _steps(revisions: list[str]) -> dict[str, int]:
    """The number at the end of each revision's name; their places in the list where some have none, or two the same."""
    ends = [re.search(r"(\d+)$", name) for name in revisions]
    steps = [int(end[1]) for end in ends if end]
    numbers = steps if len(set(steps)) == len(revisions) else range(len(revisions))
    return dict(zip(revisions, numbers, strict=True))


def _mean(values: Any) -> Any:
    """Mean over sequences that have a value; NaN where none has."""
    n = (~np.isnan(values)).sum(0)
    return np.where(n > 0, np.nansum(values, axis=0) / np.maximum(n, 1), np.nan)


def _joined(parts: list[pd.DataFrame], columns: dict[str, type]) -> pd.DataFrame:
    """Rows of all checkpoints."""
    full = [part for part in parts if len(part)]
    return pd.concat(full, ignore_index=True) if full else empty_table(columns)
