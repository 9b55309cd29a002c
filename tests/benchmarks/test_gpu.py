"""The GPU benchmark goes through: every part, at small sizes."""

import sys
from pathlib import Path

import pytest

pytest.importorskip("triton", reason="Triton is not installed (it comes for Linux alone)")

from benchmarks import gpu
from interp.attention import launch


def test_it_goes_through_and_says_where(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    usual = launch.tile
    monkeypatch.setattr(sys, "argv", ["gpu", "--quick", "--out", str(tmp_path)])
    assert gpu.main() == 0
    told = capsys.readouterr().out
    assert "| 16 | bfloat16 |" in told
    assert "too far" not in told
    assert (tmp_path / "gpu.json").exists()
    assert (tmp_path / "gpu.md").read_text() in told
    assert launch.tile is usual
