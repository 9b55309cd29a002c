"""The help of settings, as a terminal shows it."""

from dataclasses import dataclass, field
from typing import Annotated, Literal

import pytest
import tyro
from tyro.conf import FlagCreatePairsOff, OmitArgPrefixes, arg

from interp.help import explain


@dataclass(frozen=True)
class Inner:
    """What stands inside."""

    deep: int | None = None
    """How deep. None: as deep as it goes."""


@dataclass(frozen=True)
class Settings:
    """Settings of a toy."""

    windows: int | None = None
    """How many windows of
    text are read. None: 36;
    with the full budget 64."""
    heads: tuple[int, ...] | None = None
    """Which heads. None: all."""
    budget: Literal["report", "full"] | None = None
    """How much. None: what fits."""
    rounds: int = 7
    """Rounds of the measurement."""
    force: bool = False
    """Compute everything again."""
    training: Annotated[bool, arg(help="Leave out what is trained.")] = True
    """Whether models are trained."""
    text: Annotated[str | None, arg(metavar="FILE")] = None
    """A text. None: the sample."""
    inner: Annotated[Inner, OmitArgPrefixes] = field(default_factory=Inner)


@pytest.fixture
def shown(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> str:
    monkeypatch.setenv("COLUMNS", "200")
    explain(Settings)
    explain(Settings)
    with pytest.raises(SystemExit):
        tyro.cli(Settings, args=["--help"], config=(FlagCreatePairsOff,))
    return " ".join(capsys.readouterr().out.replace("│", " ").split())


def test_help_is_one_paragraph_that_says_the_default_once(shown: str) -> None:
    assert "--windows INT How many windows of text are read. Default: 36; with the full budget 64. --heads" in shown
    assert "--heads [INT ...] Which heads. Default: all." in shown
    assert "--budget {report,full} How much. Default: what fits." in shown
    assert "--rounds INT Rounds of the measurement. (default: 7)" in shown
    assert "--text FILE A text. Default: the sample." in shown
    assert "--deep INT How deep. Default: as deep as it goes." in shown
    assert "None" not in shown


def test_switches_say_what_they_do_and_not_that_they_are_off(shown: str) -> None:
    assert "--force Compute everything again. --no-training Leave out what is trained. --text" in shown


def test_values_are_read_as_before() -> None:
    explain(Settings)
    given = ["--windows", "3", "--heads", "1", "2", "--no-training", "--deep", "4", "--budget", "full"]
    found = tyro.cli(Settings, args=given, config=(FlagCreatePairsOff,))
    assert found == Settings(windows=3, heads=(1, 2), training=False, budget="full", inner=Inner(4))
    assert tyro.cli(Settings, args=[], config=(FlagCreatePairsOff,)) == Settings()
    assert tyro.cli(Settings, args=["--windows", "None"], config=(FlagCreatePairsOff,)) == Settings()
