"""The examples of docs/toy-models.md run, one after the other."""

import re
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.testing import assert_close

PAGE = Path(__file__).parents[3] / "docs" / "toy-models.md"


def test_the_examples_of_the_page(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    examples = re.findall(r"^```python\n(.*?)^```$", PAGE.read_text(), flags=re.DOTALL | re.MULTILINE)
    assert len(examples) == 4
    found: dict[str, Any] = {}
    for example in examples:
        exec(compile(example, str(PAGE), "exec"), found)
        if "again" in found and "logits" in found:
            whole = found.pop("logits")
            assert_close(torch.cat([found["first"], found["again"]], 1), whole, rtol=0, atol=1e-4)
    assert len(found["history"]) == 30
    assert list(found["folders"]) == [0, 10, 30]
    assert found["toy"].config == found["before"].config
