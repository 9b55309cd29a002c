"""The command ``interp``. Does not import torch before a model is needed.

Exit codes: 0; 1 for a failure, with one line of reason on standard error, and for what `doctor --fail-on` asks for; 2
for a wrong command; 130 after Ctrl-C.
"""

import errno
import os
import shlex
import sys
from collections.abc import Sequence
from dataclasses import replace
from importlib import import_module
from importlib.metadata import EntryPoint
from pathlib import Path
from types import ModuleType
from typing import Any, NoReturn

from rich.console import Console

import interp
from interp.errors import RunFolderError, UsageError, UserError
from interp.flags import (
    Compare,
    Page,
    Prune,
    Report,
    Running,
    Verdict,
    config_for,
    default_out,
    parse,
    reading_tokens,
    run_flags,
    to_flags,
)
from interp.plugins import (
    ANALYSES,
    CHAPTERS,
    Analysis,
    find_analysis,
    find_page,
    first_line,
    in_order,
    installed,
    unknown,
)
from interp.results import Result, RunFolder, save
from interp.results.folder import check_usable
from interp.results.provenance import versions
from interp.results.storage import to_json, write_file
from interp.running import Order, check_free, memory_advice, run_into
from interp.summary import checks_table, counted, heads_told

USAGE = """\
usage: interp COMMAND ...

  interp report [MODEL] [flags]       run the analyses on a model (else tiny-2l); draw one HTML page
  interp run ANALYSIS MODEL [flags]   run one analysis; its settings are flags
  interp doctor MODEL [flags]         what goes wrong silently in its attention, check by check; for CI: --fail-on
  interp list                         the analyses that are installed
  interp page RUN                     draw the page of a finished run again
  interp prune MODEL --out FOLDER     cut heads out of a model and save the smaller one
  interp compare RUN RUN              which heads differ between two runs, and by how much
  interp --version

Each command explains its flags: interp report --help, interp run ANALYSIS --help.
"""

_TEXTS = (".txt", ".jsonl", ".ndjson", ".npy")


def main(argv: Sequence[str] | None = None) -> int:
    """Carry out one command and return its exit code."""
    argv = list(sys.argv[1:] if argv is None else argv)
    return _guarded(lambda: _dispatch(argv), ["interp", *argv])


def run_module(module: ModuleType) -> NoReturn:
    """Run an analysis's module as a program: ``python analyses/induction_heads.py --model MODEL [flags]``.

    For the module's own ``if __name__ == "__main__": run_module(sys.modules[__name__])``, or a package's
    ``__main__.py``. The analysis is named after its file, or its package's folder.
    """
    file = Path(module.__file__ or "analysis.py")
    name = file.parent.name if file.stem == "__init__" else file.stem
    argv = sys.argv[1:]

    def run() -> int:
        analysis = Analysis(name.replace("_", "-"), module)
        flags = parse(run_flags(analysis, positional=False), argv, prog=f"{name}.py", description=analysis.question)
        return _run(analysis, flags, ["python", sys.argv[0], *argv])

    sys.exit(_guarded(run, ["python", sys.argv[0], *argv]))


def _dispatch(argv: list[str]) -> int:
    command, rest = (argv[0], argv[1:]) if argv else ("--help", [])
    match command:
        case "report":
            return _report(parse(Report, rest, prog="interp report"), ["interp", *argv])
        case "run":
            return _run_named(rest, ["interp", *argv])
        case "doctor":
            return _doctor(rest, ["interp", *argv])
        case "prune":
            return _prune(parse(Prune, rest, prog="interp prune"))
        case "page":
            return _page(parse(Page, rest, prog="interp page"))
        case "compare":
            return _compare(parse(Compare, rest, prog="interp compare"))
        case "list":
            return _list(rest)
        case "--version":
            _say(f"interp {versions().get('interp-attention', '(not installed)')}")
            return 0
        case "-h" | "--help" | "help":
            _say(USAGE.rstrip())
            return 0
    known = ["report", "run", "doctor", "prune", "compare", "list", "page"]
    raise UsageError(f"{unknown('command', command, known)} (interp --help)")


def _report(flags: Report, command: Sequence[str]) -> int:
    """Every analysis that can be run is run: one that fails is named at the end and does not take the others along."""
    analyses = in_order(find_analysis(name) for name in _chosen(flags.analyses))
    configs = {analysis.name: config_for(analysis, flags) for analysis in analyses}
    for name in ("seed", "text"):
        if getattr(flags, name) is not None and not any(hasattr(config, name) for config in configs.values()):
            raise UsageError(f"--{name}: none of {', '.join(configs)} has such a setting")
    draw = find_page()
    out = flags.running.out or default_out(flags.model)
    check_usable(out)
    model = _load(flags)
    failures = []
    with RunFolder.claim(out, model.info, force=flags.running.force) as folder:
        orders = {name: _order(name, config, flags, command) for name, config in configs.items()}
        for analysis in analyses:
            check_free(folder, analysis, model.info, configs[analysis.name], orders[analysis.name])
        for analysis in analyses:
            try:
                result, taken_over = run_into(folder, analysis, model, configs[analysis.name], orders[analysis.name])
            except (UserError, ValueError) as error:
                if flags.running.debug or isinstance(error, RunFolderError):
                    raise
                failures.append(f"{analysis.name}: {_one_line(error)}")
            else:
                _say_left_out(result, taken_over)
        if failures and not folder.analyses():
            raise UserError("; ".join(failures))
        page = draw(folder.path)
    for failure in failures:
        _complain(failure)
    _say(page)
    return 1 if failures else 0


def _run_named(argv: list[str], command: Sequence[str]) -> int:
    """``interp run``: the analysis comes first, because the flags are its own."""
    if not argv or argv[0] in ("-h", "--help"):
        _say("usage: interp run ANALYSIS MODEL [flags]\n\nwhere ANALYSIS is one of")
        _list([])
        _say("\nand `interp run ANALYSIS --help` explains its flags.")
        return 0 if argv else 2
    if argv[0].startswith("-"):
        raise UsageError(f"the analysis comes first: interp run ANALYSIS MODEL [flags]; got {argv[0]}")
    analysis = find_analysis(argv[0])
    prog = f"interp run {analysis.name}"
    return _run(
        analysis,
        parse(run_flags(analysis, positional=True), argv[1:], prog=prog, description=analysis.question),
        command,
    )


def _run(analysis: Analysis, flags: Any, command: Sequence[str]) -> int:
    config, running = reading_tokens(flags.config, flags.inputs), flags.running
    out = running.out or default_out(flags.model)
    check_usable(out)
    model = _load(flags, verify=analysis.verify)
    with RunFolder.claim(out, model.info, force=running.force) as folder:
        order = _order(analysis.name, config, flags, command)
        result, taken_over = run_into(folder, analysis, model, config, order)
        _say_left_out(result, taken_over)
    for line in heads_told(result):
        _say(line)
    _say(folder.path / analysis.name)
    _complain(f"interp page {folder.path} draws it", "")
    return 0


def _doctor(argv: list[str], command: Sequence[str]) -> int:
    """``interp doctor``: runs `model-health`, says what it found as a table, a page and JSON, and judges by it."""
    analysis = find_analysis("model-health")
    flags = parse(
        run_flags(analysis, positional=True, more=Verdict), argv, prog="interp doctor", description=analysis.question
    )
    out = flags.running.out or default_out(flags.model)
    check_usable(out)
    draw = find_page()
    config = reading_tokens(flags.config, flags.inputs)
    model = _load(flags, verify=analysis.verify)
    with RunFolder.claim(out, model.info, force=flags.running.force) as folder:
        order = _order(analysis.name, config, flags, command)
        result, taken_over = run_into(folder, analysis, model, config, order)
        _say_left_out(result, taken_over)
        page = draw(folder.path)
    checks, verdict = result.tables["checks"], result.provenance["verdict"]
    report = {"model": model.info.get("name"), "verdict": verdict, "counts": counted(checks)}
    text = to_json(report | {"checks": checks.astype(object).where(checks.notna(), None).to_dict("records")})
    if flags.more.json == Path("-"):
        _say(text.rstrip())
    else:
        terminal = Console(width=None if sys.stdout.isatty() else 160)
        terminal.print(checks_table(checks))
        _say(f"{verdict}: {', '.join(f'{n} {name}' for name, n in report['counts'].items() if n)}")
        _say(page)
        if flags.more.json is not None:
            write_file(flags.more.json, text)
    bad = {"fail": ("fail",), "warn": ("warn", "fail"), None: ()}[flags.more.fail_on]
    return 1 if verdict in bad else 0


def _page(flags: Page) -> int:
    folder = RunFolder(flags.run)
    if not folder.analyses():
        raise UserError(
            f"{flags.run} has no finished analysis to draw; `interp report MODEL --out {flags.run}` makes one"
        )
    _say(find_page()(folder.path))
    return 0


def _prune(flags: Prune) -> int:
    carry_out = import_module("interp.prune_command").carry_out  # which needs torch
    with memory_advice(("batch_size", "length")):
        _say(carry_out(flags, _say))
    return 0


def _compare(flags: Compare) -> int:
    from rich.console import Console

    from interp.compared import as_json, show
    from interp.comparison import compare
    from interp.results.storage import to_json

    names = None if flags.analyses is None else _chosen(flags.analyses)
    found = compare(RunFolder(flags.before), RunFolder(flags.after), names)
    if flags.json:
        _say(to_json(as_json(found)).rstrip())
    else:
        show(found, Console(width=None if sys.stdout.isatty() else 160))
    if flags.out is not None:
        save(found.result(), flags.out)
        page = find_page()(flags.out)
        _complain(f"{page}", "") if flags.json else _say(page)
    return 0


def _list(argv: list[str]) -> int:
    if argv:
        raise UsageError(f"interp list takes no flags; got {' '.join(argv)}")
    points, chapters = _installed_analyses(), installed(CHAPTERS)
    width = max(map(len, points))
    for name, point in points.items():
        without = "" if name in chapters else "  (tables alone in the report)"
        _say(f"  {name:{width}}  {first_line(point)}{without}")
    return 0


def _chosen(names: str | None) -> list[str]:
    if names is None:
        return list(_installed_analyses())
    if not (chosen := [name.strip() for name in names.split(",") if name.strip()]):
        raise UsageError("--analyses names none; `interp list` shows what there is")
    return chosen


def _installed_analyses() -> dict[str, EntryPoint]:
    if not (points := installed(ANALYSES)):
        raise UserError("no analysis is installed: install the package (pip install -e .)")
    return points


def _load(flags: Any, *, verify: bool = True) -> Any:
    """The hooked model; what was not asked for is left to `interp.load`.

    A text that is not there is said first, also for a model that would not come to read it.
    """
    text = getattr(flags, "text", None) or getattr(getattr(flags, "config", None), "text", None)
    named = isinstance(text, str) and not text.startswith("hub:")
    if named and Path(str(text)).suffix in _TEXTS and not Path(str(text)).exists():
        raise UserError(f"there is no file {text!r}")
    running: Running = flags.running
    place = "device_map" if running.device == "auto" else "device"
    given = {place: running.device, "dtype": running.dtype, "example": flags.inputs}
    asked: dict[str, Any] = {key: value for key, value in given.items() if value is not None}
    if not verify:
        asked["verify"] = False
    with memory_advice(()):
        return interp.load(flags.model, trust_remote_code=running.trust_remote_code, **asked)


def _order(analysis: str, config: Any, flags: Any, command: Sequence[str]) -> Order:
    shared = to_flags(replace(flags.running, out=None, resume=False, force=False, debug=False))
    given = [] if flags.inputs is None else ["--inputs", flags.inputs]
    rerun = ["interp", "run", analysis, flags.model, *to_flags(config), *given, *shared]
    return Order(command, rerun, flags.running.resume, flags.running.force)


def _guarded(command: Any, typed: Sequence[str]) -> int:
    """Run ``command()``; errors that are a person's to mend become one line and an exit code."""
    if not sys.stderr.isatty():
        os.environ.setdefault("TQDM_DISABLE", "1")  # progress bars of transformers and the hub; read on import
    try:
        return command()
    except KeyboardInterrupt:
        again = [word for word in typed if word not in ("--resume", "--force")]
        _complain(f"interrupted; what is finished stays. To go on: {shlex.join([*again, '--resume'])}", "")
        return 130
    except (UserError, ValueError, ArithmeticError, OSError) as error:
        if "--debug" in typed:
            raise
        _complain(_os_reason(error) if isinstance(error, OSError) else _one_line(error))
        return 2 if isinstance(error, UsageError) else 1


def _os_reason(error: OSError) -> str:
    match error.errno:
        case errno.ENOSPC | errno.EDQUOT:
            return (
                "the disk is full; free some space and give the same command with --resume: what was finished is kept"
            )
        case errno.EACCES | errno.EPERM | errno.EROFS:
            what = error.filename or "a file"
            return f"{what} may not be read or written ({error.strerror}); --out chooses another place"
    return _one_line(error)


def _say_left_out(result: Result, taken_over: bool) -> None:
    if taken_over:
        _complain(f"{result.analysis}: finished before with the same inputs, taken over", "")
    for part in result.provenance.get("left_out", ()):
        _complain(f"{result.analysis}: left out {part['part']}: {part['reason']}", "")


def _one_line(error: BaseException) -> str:
    return " ".join(str(error).split()) or type(error).__name__


def _say(text: object) -> None:
    sys.stdout.write(f"{text}\n")


def _complain(text: str, kind: str = "error: ") -> None:
    sys.stderr.write(f"interp: {kind}{text}\n")


if __name__ == "__main__":
    sys.exit(main())
