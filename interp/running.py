"""Running an analysis into a run folder: what is taken over, what is computed, what is refused."""

import shlex
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from typing import Any

from interp.errors import RunFolderError, UserError
from interp.plugins import Analysis
from interp.results import Result, RunFolder, Workspace, code_sha256, fingerprint, provenance
from interp.results.storage import plain

_WORDS_OF_FULL_MEMORY = ("can't allocate memory", "not enough memory", "out of memory")


@dataclass(frozen=True)
class Order:
    """How an analysis is to be run.

    Attributes:
        command: what was typed.
        rerun: the command that makes this analysis's result alone.
        resume: take over an interrupted run's steps, and replace what was finished with other inputs.
        force: compute again what is finished.
    """

    command: Sequence[str]
    rerun: Sequence[str]
    resume: bool = False
    force: bool = False


def run_into(folder: RunFolder, analysis: Analysis, model: Any, config: Any, order: Order) -> tuple[Result, bool]:
    """The result of an analysis, from the folder if it is finished there with the same inputs; and whether it was.

    Raises:
        RunFolderError: the folder holds this analysis with other inputs, or interrupted, and neither ``resume`` nor
            ``force`` says what to do with it.
        UserError: memory did not suffice.
    """
    check_free(folder, analysis, model.info, config, order)
    inputs = inputs_of(folder, analysis, model.info, config)
    if folder.fingerprint(analysis.name) == inputs and not order.force:
        return folder.load(analysis.name), True
    if order.force:
        folder.forget_steps(analysis.name)
    work = folder.workspace(analysis.name, inputs, analysis.uses)
    started = datetime.now(UTC)
    with memory_advice(analysis.memory_settings):
        result = analysis.module.run(model, config, work)
    if result.analysis != analysis.name:
        raise ValueError(f"the analysis {analysis.name} returned a Result named {result.analysis!r}; names must agree")
    made = _provenance(result, model.info, config, work, started, order)
    made |= {"engines": sorted(getattr(getattr(model, "seam", None), "engines", ()))}
    made |= {"fingerprint": inputs, "code_sha256": code_sha256(analysis.module)}
    result = replace(result, provenance=made)
    folder.save(result, fingerprint=inputs, schemas=analysis.schemas)
    return result, False


def inputs_of(folder: RunFolder, analysis: Analysis, model_info: Mapping[str, Any], config: Any) -> str:
    """The fingerprint of everything that an analysis's numbers depend on, in this run folder."""
    used = {name: folder.fingerprint(name) for name in analysis.uses}
    code = code_sha256(analysis.module)
    return fingerprint(analysis.name, config, model_info, code, version=analysis.version, used=used)


@contextmanager
def memory_advice(settings: Sequence[str]) -> Iterator[None]:
    """Turn an out-of-memory error into one that says which flags to lower."""
    try:
        yield
    except (MemoryError, RuntimeError) as error:
        if not is_out_of_memory(error):
            raise
        flags = [f"a lower --{name.replace('_', '-')}" for name in settings]
        ways = ", ".join([*flags, "--dtype bfloat16", "--device cpu"])
        raise UserError(f"out of memory: try {ways}; what is finished stays for --resume") from error


def is_out_of_memory(error: BaseException) -> bool:
    """Whether an error says that memory is used up; on a CPU, torch says so by a bare RuntimeError."""
    torch = sys.modules.get("torch")
    if isinstance(error, MemoryError) or (torch is not None and isinstance(error, torch.OutOfMemoryError)):
        return True
    return isinstance(error, RuntimeError) and any(words in str(error) for words in _WORDS_OF_FULL_MEMORY)


def check_free(folder: RunFolder, analysis: Analysis, model_info: Mapping[str, Any], config: Any, order: Order) -> None:
    """Whether an analysis may be run into a folder, asked of all before the first is run.

    Raises:
        RunFolderError: as for `run_into`.
    """
    inputs = inputs_of(folder, analysis, model_info, config)
    if order.resume or order.force or folder.fingerprint(analysis.name) == inputs:
        return
    if folder.fingerprint(analysis.name) is not None:
        raise RunFolderError(
            f"{folder.path} holds {analysis.name} with other inputs ({_difference(folder, analysis, config)}); "
            "--resume replaces it when the new one is finished, --out chooses another folder"
        )
    if folder.has_steps(analysis.name, inputs):
        raise RunFolderError(
            f"{folder.path} holds an interrupted {analysis.name}; --resume goes on with it, --force starts again"
        )


def _difference(folder: RunFolder, analysis: Analysis, config: Any) -> str:
    there, wanted = folder.load(analysis.name).provenance.get("config", {}), plain(config)
    changed = [f"{name} {there.get(name)}, now {value}" for name, value in wanted.items() if there.get(name) != value]
    return "; ".join(changed) or "the same settings, but other code, text, device, versions or findings of others"


def _provenance(
    result: Result, model_info: Mapping[str, Any], config: Any, work: Workspace, started: datetime, order: Order
) -> dict[str, Any]:
    known = provenance(
        model_info,
        config,
        started=started,
        command=order.command,
        seconds_before=work.seconds_before,
        left_out=work.left_out,
        notes=work.notes,
    )
    return {**result.provenance, **known, "rerun": shlex.join(order.rerun)}
