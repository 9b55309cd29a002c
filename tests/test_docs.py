"""The examples of the documentation run, and do what the text around them says."""

import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

import interp
from interp.results import RunFolder, Workspace, check_tables, save

ROOT = Path(__file__).parents[1]


def examples(page: str) -> list[str]:
    """The Python blocks of a page."""
    return re.findall(r"^```python\n(.*?)^```$", (ROOT / page).read_text(), flags=re.DOTALL | re.MULTILINE)


def test_the_example_of_the_readme(
    smollm2: "interp.HookedModel", monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setitem(vars(interp), "load", lambda name: smollm2)
    (example,) = examples("README.md")
    found: dict[str, pd.DataFrame] = {}
    exec(compile(example, "README.md", "exec"), found)
    assert found["heads"].nlargest(3, "value").index.tolist() == [(18, 6), (17, 3), (17, 4)]
    assert capsys.readouterr().out.count("tensor(") == 1


@pytest.fixture
def package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The analysis and the chapter of docs/writing-an-analysis.md as a package of modules."""
    analysis, chapter = examples("docs/writing-an-analysis.md")
    (tmp_path / "close_attention.py").write_text(analysis)
    (tmp_path / "close_attention_chapter.py").write_text(chapter)
    monkeypatch.syspath_prepend(tmp_path)
    return tmp_path


def test_the_example_of_an_analysis(package: Path, smollm2: "interp.HookedModel", tmp_path: Path) -> None:
    import close_attention  # pyright: ignore[reportMissingImports]
    import close_attention_chapter  # pyright: ignore[reportMissingImports]

    work = Workspace()
    result = close_attention.run(smollm2, close_attention.Config(sequences=3, length=16), work)
    check_tables(result.analysis, result.tables)
    heads = result.tables["heads"]
    assert len(heads) == 270
    assert heads["value"].between(0, 1).all()
    exact = np.mean([4 / (row + 1) for row in range(3, 16)])  # a uniform row puts 4 of its row + 1 keys close by
    assert heads["chance"].to_numpy() == pytest.approx(exact)
    assert work.left_out == [{"part": "three quarters of the sequences", "reason": "budget is report"}]

    save(result, tmp_path / "run")
    chapter = close_attention_chapter.chapter(result, RunFolder(tmp_path / "run"))
    best = heads.loc[heads["value"].idxmax()]
    assert chapter.lead.text.startswith(f"L{best['layer']}H{best['head']} keeps {best['value']:.0%}")


def test_the_example_of_an_analysis_has_a_command(package: Path) -> None:
    help = subprocess.run(
        [sys.executable, str(package / "close_attention.py"), "--help"],
        cwd=ROOT, env={"PYTHONPATH": str(ROOT), "PATH": ""}, capture_output=True, text=True, check=True,
    ).stdout  # fmt: skip
    for words in ("How much of each head's attention stays close by", "--reach", "How many tokens back", "--model"):
        assert words in help


def test_the_tutorial_on_attentions_design() -> None:
    """Its blocks are one program, whose assertions are what the text says."""
    blocks = examples("docs/attention-design.md")
    assert len(blocks) >= 8
    exec(compile("\n".join(blocks), "docs/attention-design.md", "exec"), {})


ELSEWHERE = {"writing-an-analysis", "attention-design", "toy-models"}  # run above, or in a test of their own
PAGES = [page.stem for page in sorted((ROOT / "docs").glob("*.md")) if examples(f"docs/{page.name}")]


@pytest.mark.parametrize("page", [page for page in PAGES if page not in ELSEWHERE])
def test_the_blocks_of_a_page_run_one_after_the_other(
    page: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest
) -> None:
    """Pasted in their order into one session, in an empty folder; names that no block defines are an error."""
    load, blocks = interp.load, examples(f"docs/{page}.md")
    if any("smollm2" in block for block in blocks):
        smollm2 = request.getfixturevalue("smollm2")
        monkeypatch.setattr(interp, "load", lambda x, *rest: smollm2 if x == "smollm2-135m" else load(x, *rest))
    monkeypatch.chdir(tmp_path)
    exec(compile("\n".join(blocks), f"docs/{page}.md", "exec"), {})


def test_the_example_of_long_inputs() -> None:
    (example,) = examples("docs/long-context.md")
    found: dict[str, Any] = {}
    exec(compile(example, "docs/long-context.md", "exec"), found)
    assert found["entropy"].shape == (2, 4)
