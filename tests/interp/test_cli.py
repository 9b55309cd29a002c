"""The command line, with analyses and a model that cost nothing (`toy_package`), found by their entry points."""

import errno
import json
import os
import random
import signal
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass, field
from importlib.metadata import EntryPoint
from pathlib import Path
from types import SimpleNamespace
from typing import Any, Literal

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pandas.testing import assert_frame_equal

import interp
from interp import plugins
from interp.cli import main
from interp.errors import UserError
from interp.flags import default_out, parse, to_flags
from interp.results import RunFolder, load, storage
from interp.running import is_out_of_memory

ROOT = Path(__file__).parents[2]
TOY = Path(__file__).parent / "toy_package"


@dataclass
class Shell:
    """Types commands into a fresh folder, in this process."""

    capture: pytest.CaptureFixture[str]
    log: Path
    out: str = ""
    err: str = ""

    def __call__(self, command: str) -> int:
        try:
            code = main(command.split())
        except SystemExit as left:  # tyro, after --help or a wrong flag
            code = int(left.code or 0)
        self.out, self.err = self.capture.readouterr()
        return code

    def computed(self) -> str:
        """The steps that were computed since this was last asked, as ``"0 1 2 "``."""
        text = self.log.read_text()
        self.log.write_text("")
        return text


@pytest.fixture
def shell(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Shell:
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(TOY)
    import toy_interp  # pyright: ignore[reportMissingImports]

    monkeypatch.setitem(vars(interp), "load", toy_interp.load)
    monkeypatch.setattr(plugins, "metadata", SimpleNamespace(entry_points=toy_interp.entry_points))
    log = tmp_path / "log"
    log.write_text("")
    monkeypatch.setenv("TOY_LOG", str(log))
    return Shell(capsys, log)


@pytest.fixture
def failing(monkeypatch: pytest.MonkeyPatch) -> Callable[[int | None, str], None]:
    """``failing(1, "interrupt")`` makes the toy's step 1 fail; ``failing(None, "")`` heals it."""

    def fail(step: int | None, how: str) -> None:
        monkeypatch.setenv("TOY_FAILS_AT", str(step))
        monkeypatch.setenv("TOY_FAILURE", how)

    return fail


# --- report


def test_a_report_is_a_run_folder_with_a_page(shell: Shell) -> None:
    assert shell("report org/model") == 0
    assert shell.out == "runs/org--model/index.html\n"
    assert "toy: left out everything: budget is report" in shell.err
    assert Path("runs/org--model/index.html").read_text().startswith("toy toy-second")
    made = load("runs/org--model", "toy").provenance
    assert made["command"] == "interp report org/model"
    assert made["rerun"] == "interp run toy org/model"
    assert made["model"]["name"] == "org/model"
    assert made["left_out"] == [{"part": "everything", "reason": "budget is report"}]
    assert made["seed"] == 0
    assert made["wall_seconds"] > 0
    assert made["fingerprint"] == RunFolder("runs/org--model").fingerprint("toy")


def test_a_report_without_a_model_is_on_the_toy_that_comes_along(shell: Shell) -> None:
    assert shell("report --seed 3") == 0
    assert shell.out == "runs/tiny-2l/index.html\n"
    assert load("runs/tiny-2l", "toy").provenance["model"]["name"] == "tiny-2l"


def test_a_finished_analysis_is_not_run_again(shell: Shell) -> None:
    shell("report model")
    assert shell.computed() == "0 1 2 "
    for flags in ("", "--resume"):
        assert shell(f"report model {flags}") == 0
        assert "toy: finished before with the same inputs, taken over" in shell.err
        assert shell.out == "runs/model/index.html\n"
        assert shell.computed() == ""
    assert shell("report model --force") == 0
    assert shell.computed() == "0 1 2 "


def test_report_flags_reach_the_analyses_that_know_them(shell: Shell) -> None:
    Path("text.txt").write_text("some text")
    assert shell("report model --analyses toy --budget full --seed 5 --text text.txt --out here") == 0
    made = load("here", "toy").provenance
    assert {"budget": "full", "seed": 5, "text": "text.txt"}.items() <= made["config"].items()
    assert made["rerun"] == "interp run toy model --text text.txt --budget full --seed 5"
    assert RunFolder("here").analyses() == ["toy"]


def test_a_changed_text_is_another_input(shell: Shell) -> None:
    Path("text.txt").write_text("some text")
    command = "report model --analyses toy --text text.txt"
    shell(command)
    Path("text.txt").write_text("another text")
    assert shell(command) == 1
    assert "the same settings, but other code, text" in shell.err
    assert shell(f"{command} --resume") == 0
    assert shell.computed() == "0 1 2 0 1 2 "


@pytest.mark.parametrize("flag", ["--text text.txt", "--seed 3"])
def test_a_flag_that_no_analysis_knows_is_refused(shell: Shell, flag: str) -> None:
    assert shell(f"report model --analyses toy-second {flag}") == 2
    assert f"{flag.split()[0]}: none of toy-second has such a setting" in shell.err


def test_analyses_run_after_those_whose_findings_they_use(shell: Shell) -> None:
    shell("report model --analyses toy-second,toy")
    highest = load("runs/model", "toy-second").tables["highest"]["number"].item()
    assert highest == load("runs/model", "toy").tables["steps"]["number"].max()


def test_an_analysis_is_run_again_when_findings_that_it_used_have_changed(shell: Shell) -> None:
    shell("report model")
    before = load("runs/model", "toy-second").tables["highest"]["number"].item()
    assert shell("run toy model --seed 9 --resume") == 0
    assert shell("report model --seed 9") == 1
    assert "holds toy-second with other inputs" in shell.err
    assert shell("report model --seed 9 --resume") == 0
    after = load("runs/model", "toy-second").tables["highest"]["number"].item()
    assert after != before
    assert after == load("runs/model", "toy").tables["steps"]["number"].max()


def test_one_analysis_that_fails_does_not_take_the_others_along(shell: Shell, failing: Callable[..., None]) -> None:
    failing(1, "value")
    assert shell("report model") == 1
    assert shell.out == "runs/model/index.html\n"
    assert "interp: error: toy: the period 4 is longer than the context 2\n" in shell.err
    assert RunFolder("runs/model").analyses() == ["toy-second"]


def test_a_report_without_any_result_has_no_page(shell: Shell, failing: Callable[..., None]) -> None:
    failing(1, "value")
    assert shell("report model --analyses toy") == 1
    assert shell.out == ""
    assert not Path("runs/model/index.html").exists()


# --- run


def test_run_takes_its_flags_from_the_config(shell: Shell) -> None:
    assert shell("run toy model --period 8 --sequences 2 --offsets 3 4 5 --budget full") == 0
    made = load("runs/model", "toy").provenance
    assert {"period": 8, "sequences": 2, "offsets": [3, 4, 5]}.items() <= made["config"].items()
    assert shell.computed() == "0 1 "
    *heads, place = shell.out.splitlines()
    assert place == "runs/model/toy"
    values = load("runs/model", "toy").tables["steps"]["number"]
    assert len(heads) == 1
    assert heads[0].startswith("prefix_matching (repeated)")
    best = values.idxmax()
    assert f" L0H{best} {values[best]:.2f} [{values[best] - 0.1:.2f}, {values[best] + 0.1:.2f}]" in heads[0]


def test_the_command_that_repeats_a_result_does(shell: Shell) -> None:
    shell("run toy model --offsets 3 -4 --seed 2 --out one")
    rerun = load("one", "toy").provenance["rerun"]
    assert shell(f"{rerun.removeprefix('interp ')} --out two") == 0
    one, two = load("one", "toy"), load("two", "toy")
    assert one.provenance["config"] == two.provenance["config"]
    assert_frame_equal(one.tables["heads"], two.tables["heads"])


def test_flags_of_the_loader_reach_it(shell: Shell) -> None:
    shell("run toy model --device cuda --dtype bfloat16 --trust-remote-code")
    made = load("runs/model", "toy").provenance
    assert {"device": "cuda", "dtype": "bfloat16", "trust_remote_code": True}.items() <= made["model"].items()
    assert made["rerun"] == "interp run toy model --device cuda --dtype bfloat16 --trust-remote-code"
    shell("run toy model --device auto --out spread")
    assert load("spread", "toy").provenance["model"]["device_map"] == "auto"
    shell("run toy model --out plain")
    assert load("plain", "toy").provenance["model"]["trust_remote_code"] is False


def test_other_settings_do_not_replace_a_result_unasked(shell: Shell) -> None:
    shell("run toy model --period 8")
    assert shell("run toy model --period 9") == 1
    assert shell.err == (
        "interp: error: runs/model holds toy with other inputs (period 8, now 9); "
        "--resume replaces it when the new one is finished, --out chooses another folder\n"
    )
    assert load("runs/model", "toy").provenance["config"]["period"] == 8
    assert shell("run toy model --period 9 --resume") == 0
    assert load("runs/model", "toy").provenance["config"]["period"] == 9


def test_another_model_does_not_enter_a_run_folder_unasked(shell: Shell) -> None:
    shell("run toy model --out here")
    assert shell("run toy second-model --out here") == 1
    assert "holds a run of model" in shell.err
    assert load("here", "toy").provenance["model"]["name"] == "model"
    assert shell("run toy second-model --out here --force") == 0
    assert load("here", "toy").provenance["model"]["name"] == "second-model"


def test_a_folder_of_something_else_is_refused_before_a_model_is_loaded(
    shell: Shell, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(vars(interp), "load", lambda *args, **given: pytest.fail("loaded"))
    Path("here").mkdir()
    Path("here/thesis.tex").write_text("")
    for command in ("run toy model --out here --force", "report model --out here --resume"):
        assert shell(command) == 1
        assert shell.err.count("\n") == 1
        assert "is no run folder (it holds thesis.tex)" in shell.err


# --- page and list


def test_the_page_is_drawn_again_without_torch(shell: Shell) -> None:
    shell("report model")
    Path("runs/model/index.html").unlink()
    typed = toy_command("page", "runs/model")
    run = subprocess.run(typed.args, env=typed.env, capture_output=True, text=True, check=True)
    assert run.stdout == "runs/model/index.html\n"
    assert Path("runs/model/index.html").read_text() == "toy toy-second torch=False"


def test_a_page_needs_a_run(shell: Shell) -> None:
    assert shell("page runs/absent") == 1
    assert "runs/absent does not exist" in shell.err
    with RunFolder.claim("empty", {"name": "model"}):
        pass
    assert shell("page empty") == 1
    assert "empty has no finished analysis to draw" in shell.err


def test_list_says_what_each_analysis_asks(shell: Shell) -> None:
    assert shell("list") == 0
    toy, second = shell.out.splitlines()
    assert toy.startswith("  toy         How high random numbers are: an analysis that costs nothing")
    assert second.endswith("uses another's findings.  (tables alone in the report)")


# --- usage


@pytest.mark.parametrize(
    ("command", "said"),
    [
        ("run to model", "unknown analysis 'to'; did you mean toy?"),
        ("run toy_second model", "unknown analysis 'toy_second'; did you mean toy-second"),
        ("report model --analyses toy,xyz", "unknown analysis 'xyz'; there are: toy, toy-second"),
        ("reprot model", "unknown command 'reprot'; did you mean report?"),
        ("run --device cpu toy model", "the analysis comes first: interp run ANALYSIS MODEL [flags]; got --device"),
        ("report model --analyses ,", "--analyses names none"),
        ("list --all", "interp list takes no flags; got --all"),
    ],
)
def test_a_wrong_command_is_said_in_one_line(shell: Shell, command: str, said: str) -> None:
    assert shell(command) == 2
    assert shell.out == ""
    assert shell.err.startswith("interp: error: ")
    assert shell.err.count("\n") == 1
    assert said in shell.err


@pytest.mark.parametrize("command", ["run toy", "run toy model --perod 8", "report model --budget most", "page"])
def test_a_wrong_flag_is_a_usage_error(shell: Shell, command: str) -> None:
    assert shell(command) == 2
    assert not Path("runs").exists()


@pytest.mark.parametrize(
    ("command", "said"),
    [
        ("run toy model --period 0", "period is at least 1; got 0"),
        ("report model --resume --force", "give one of them"),
    ],
)
def test_a_refused_value_is_a_usage_error(shell: Shell, command: str, said: str) -> None:
    assert shell(command) == 2
    assert said in shell.err
    assert not Path("runs").exists()


def test_a_text_that_is_not_there_is_said_before_a_model_is_loaded(shell: Shell) -> None:
    for command in ("report model --analyses toy --text missing.txt", "run toy model --text missing.txt"):
        assert shell(command) == 1
        assert "there is no file 'missing.txt'" in shell.err
        assert not Path("runs").exists()


def test_help_explains(shell: Shell) -> None:
    assert shell("--help") == 0
    assert all(f"interp {command}" in shell.out for command in ("report", "run", "list", "page"))
    assert shell("") == 0
    assert shell("run") == 2
    assert "toy-second" in shell.out
    assert shell("run toy --help") == 0
    for words in ("interp run toy", "MODEL", "How high random numbers are", "--period INT", "Tokens before a repeat",
                  "--resume", "--device"):  # fmt: skip
        assert words in shell.out
    assert shell("report --help") == 0
    assert "--analyses" in shell.out
    assert shell("--version") == 0


# --- failures


def test_a_users_mistake_is_one_line_and_with_debug_a_traceback(shell: Shell, failing: Callable[..., None]) -> None:
    failing(1, "value")
    assert shell("run toy model") == 1
    assert shell.err == "interp: error: the period 4 is longer than the context 2\n"
    for command in ("run toy model --debug --resume", "report model --analyses toy --debug --resume"):
        with pytest.raises(ValueError, match="longer than"):
            main(command.split())
    assert shell("run toy unknown-model") == 1
    assert shell.err == "interp: error: no model 'unknown-model'\n"


def test_a_bug_keeps_its_traceback(shell: Shell, failing: Callable[..., None]) -> None:
    failing(1, "bug")
    with pytest.raises(RuntimeError, match="shapes do not match"):
        shell("run toy model")


@pytest.mark.parametrize("how", ["memory", "torch-memory"])
def test_out_of_memory_says_what_to_lower(shell: Shell, failing: Callable[..., None], how: str) -> None:
    failing(1, how)
    assert shell("run toy model") == 1
    assert shell.err == (
        "interp: error: out of memory: try a lower --sequences, --dtype bfloat16, --device cpu; "
        "what is finished stays for --resume\n"
    )


def test_torchs_own_out_of_memory_is_known(monkeypatch: pytest.MonkeyPatch) -> None:
    class OutOfMemoryError(RuntimeError):
        pass

    monkeypatch.setitem(sys.modules, "torch", SimpleNamespace(OutOfMemoryError=OutOfMemoryError))
    assert is_out_of_memory(OutOfMemoryError("nothing else"))
    assert not is_out_of_memory(RuntimeError("nothing else"))


def test_a_full_disk_is_said_and_what_was_finished_stays(shell: Shell, monkeypatch: pytest.MonkeyPatch) -> None:
    shell("run toy model")
    write = storage._write

    def full(path: Path, data: bytes) -> None:
        if path.name == "meta.json" and json.loads(data).get("step") == "step-2":
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(path))
        write(path, data)

    with monkeypatch.context() as patched:
        patched.setattr(storage, "_write", full)
        assert shell("run toy model --seed 3 --resume") == 1
    assert shell.err == (
        "interp: error: the disk is full; free some space and give the same command with --resume: "
        "what was finished is kept\n"
    )
    assert load("runs/model", "toy").provenance["seed"] == 0
    shell.computed()
    assert shell("run toy model --seed 3 --resume") == 0
    assert shell.computed() == "2 "


def test_ctrl_c_says_how_to_go_on(shell: Shell, failing: Callable[..., None]) -> None:
    failing(1, "interrupt")
    assert shell("report model --force") == 130
    assert shell.err == "interp: interrupted; what is finished stays. To go on: interp report model --resume\n"
    failing(None, "")
    assert shell("report model") == 1
    assert "holds an interrupted toy; --resume goes on with it, --force starts again" in shell.err
    shell.computed()
    assert shell("report model --resume") == 0
    assert shell.computed() == "1 2 "

    whole = load("runs/model", "toy")
    shell("report model --out uninterrupted")
    assert_frame_equal(whole.tables["heads"], load("uninterrupted", "toy").tables["heads"])
    assert whole.provenance["left_out"] == load("uninterrupted", "toy").provenance["left_out"]


def test_force_starts_an_interrupted_run_again(shell: Shell, failing: Callable[..., None]) -> None:
    failing(2, "interrupt")
    shell("run toy model")
    failing(None, "")
    shell.computed()
    assert shell("run toy model --force") == 0
    assert shell.computed() == "0 1 2 "


# --- as processes


@dataclass
class Typed:
    args: list[str]
    env: dict[str, str] = field(default_factory=dict)


def toy_command(*args: str) -> Typed:
    env = {name: value for name, value in os.environ.items() if not name.startswith("TOY_")}
    env["PYTHONPATH"] = os.pathsep.join([str(ROOT), str(TOY)])
    return Typed([sys.executable, "-m", "toy_interp", *args], env)


def heeding_ctrl_c() -> None:
    """A shell starts what it runs in the background deaf to Ctrl-C, and children inherit that."""
    signal.signal(signal.SIGINT, signal.default_int_handler)


def start(typed: Typed) -> subprocess.Popen[str]:
    """A process that has imported everything and is about to carry out its command."""
    process = subprocess.Popen(
        typed.args, env=typed.env, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, preexec_fn=heeding_ctrl_c
    )
    assert process.stderr is not None
    assert process.stderr.readline() == "ready\n"
    return process


STEPS = 40


def check_numbers(run: Path) -> int:
    """The toy's numbers are those of the seed that their provenance names; returns it."""
    found = load(run, "toy")
    seed = found.provenance["seed"]
    numbers = [np.random.default_rng([seed, step]).random() for step in range(STEPS)]
    assert found.tables["steps"]["number"].tolist() == numbers
    return seed


@pytest.mark.parametrize("kills", [3, pytest.param(20, marks=pytest.mark.long)])
def test_killing_a_run_at_any_moment_leaves_nothing_that_is_misread(tmp_path: Path, kills: int) -> None:
    """SIGKILL at random moments of runs, each of which is to replace the one before."""
    chance = random.Random()
    run = tmp_path / "run"

    def begin(seed: int) -> subprocess.Popen[str]:
        settings = ["--sequences", str(STEPS), "--seed", str(seed), "--out", str(run), "--resume"]
        return start(toy_command("run", "toy", "model", *settings))

    begin(0).communicate()
    assert check_numbers(run) == 0
    for seed in range(1, kills + 1):
        process = begin(seed)
        try:
            process.wait(timeout=chance.uniform(0.0, 0.4))
        except subprocess.TimeoutExpired:
            process.send_signal(signal.SIGKILL)
        process.communicate()
        if RunFolder(run).analyses():  # none, if it died just when the new result took the place of the old one
            assert check_numbers(run) <= seed
    process = begin(kills)
    _, said = process.communicate()
    assert process.returncode == 0, said
    assert check_numbers(run) == kills
    assert not [path for path in run.rglob("*") if storage.is_half_written(path)]


@pytest.mark.skipif(os.name != "posix", reason="signals as POSIX has them")
def test_ctrl_c_in_a_terminal_stops_the_process_with_130(tmp_path: Path) -> None:
    process = start(toy_command("run", "toy", "model", "--sequences", "100000", "--out", str(tmp_path / "run")))
    while not (tmp_path / "run" / ".partial").exists():
        assert process.poll() is None
    process.send_signal(signal.SIGINT)
    try:
        out, err = process.communicate(timeout=120)
    finally:
        process.kill()
    assert process.returncode == 130
    assert out == ""
    assert err.startswith("interp: interrupted; what is finished stays. To go on: interp run toy model")
    assert err.count("\n") == 1


@pytest.mark.parametrize("how", [["-m", "toy"], [str(TOY / "toy.py")]])
def test_an_analysis_runs_by_itself(tmp_path: Path, how: list[str]) -> None:
    typed = toy_command()
    (tmp_path / "sitecustomize.py").write_text("import interp, toy_interp\ninterp.load = toy_interp.load\n")
    typed.env["PYTHONPATH"] += os.pathsep + str(tmp_path)
    args = [sys.executable, *how, "--model", "model", "--sequences", "2", "--out", str(tmp_path / "run")]
    run = subprocess.run(args, env=typed.env, capture_output=True, text=True, check=False)
    assert run.returncode == 0, run.stderr
    assert run.stdout.splitlines()[-1] == str(tmp_path / "run" / "toy")
    assert load(tmp_path / "run", "toy").provenance["config"]["sequences"] == 2
    usage = subprocess.run([*args[: 1 + len(how)], "model"], env=typed.env, capture_output=True, text=True, check=False)
    assert usage.returncode == 2


# --- entry points


def test_one_name_declared_by_two_packages_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    def declare(*values: str) -> None:
        points = [EntryPoint("heads", value, plugins.ANALYSES) for value in values]
        monkeypatch.setattr(plugins, "metadata", SimpleNamespace(entry_points=lambda group: points))

    declare("a.heads", "a.heads")  # one package seen twice, as an editable install beside its own checkout is
    assert list(plugins.installed(plugins.ANALYSES)) == ["heads"]
    declare("a.heads", "b.heads")
    with pytest.raises(UserError, match=r"declared twice, as a\.heads and b\.heads"):
        plugins.installed(plugins.ANALYSES)


def test_a_module_that_is_no_analysis_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    for value, said in [("json", "needs a dataclass Config in json"), ("no_such_module", "cannot be imported")]:
        points = [EntryPoint("heads", value, plugins.ANALYSES)]
        monkeypatch.setattr(plugins, "metadata", SimpleNamespace(entry_points=lambda group, points=points: points))
        with pytest.raises(UserError, match=said):
            plugins.find_analysis("heads")


def test_analyses_that_use_each_other_in_a_circle_are_refused() -> None:
    @dataclass
    class Config:
        pass

    def analysis(name: str, uses: str) -> plugins.Analysis:
        module: Any = SimpleNamespace(Config=Config, run=print, USES=(uses,), __name__=name)
        return plugins.Analysis(name, module)

    with pytest.raises(UserError, match="in a circle"):
        plugins.in_order([analysis("a", "b"), analysis("b", "a")])
    assert [each.name for each in plugins.in_order([analysis("a", "b"), analysis("b", "c")])] == ["b", "a"]


# --- flags


@dataclass(frozen=True)
class Inner:
    depth: int = 1


@dataclass(frozen=True)
class Settings:
    period: int = 64
    threshold: float = 0.5
    text: str | None = None
    strict: bool = False
    fast: bool = True
    offsets: tuple[int, ...] = (0, 1)
    budget: Literal["report", "full"] = "report"
    out: Path | None = None
    inner: Inner = field(default_factory=Inner)


@given(
    st.builds(
        Settings,
        period=st.integers(),
        threshold=st.floats(allow_nan=False),
        text=st.one_of(st.none(), st.text("ab -=.", min_size=1).filter(lambda text: text != "None")),
        strict=st.booleans(),
        fast=st.booleans(),
        offsets=st.lists(st.integers(-9, 9), max_size=3).map(tuple),
        budget=st.sampled_from(["report", "full"]),
        out=st.one_of(st.none(), st.just(Path("a/b"))),
        inner=st.builds(Inner, st.integers()),
    )
)
def test_flags_make_the_config_that_they_came_from(settings: Settings) -> None:
    assert parse(Settings, to_flags(settings), prog="toy") == settings


def test_defaults_need_no_flags() -> None:
    assert to_flags(Settings()) == []


@pytest.mark.parametrize(
    ("model", "folder"),
    [
        ("smollm2-135m", "smollm2-135m"),
        ("org/name", "org--name"),
        ("package.module:function", "package.module-function"),
    ],
)
def test_the_default_run_folder_is_named_after_the_model(model: str, folder: str) -> None:
    assert default_out(model) == Path("runs") / folder


def test_the_default_run_folder_of_a_file_or_folder(tmp_path: Path) -> None:
    (tmp_path / "weights.Q4_1.gguf").write_text("")
    assert default_out(str(tmp_path / "weights.Q4_1.gguf")) == Path("runs/weights.Q4_1")
    (tmp_path / "step1000").mkdir()
    assert default_out(f"{tmp_path}/step1000/") == Path("runs/step1000")
