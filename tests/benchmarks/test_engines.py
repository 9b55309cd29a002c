"""The benchmark of the engines: every way reads the same statistics, fits find what they are given, and what cannot be
run is said. Nothing here asserts a time."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.testing import assert_close

from benchmarks import attention, engine_tables, engines, machine
from interp.errors import UsageError


def test_every_way_gives_the_same_output_and_statistics() -> None:
    torch.manual_seed(0)
    query, key, value = (torch.randn(1, n, 70, attention.D_HEAD) for n in (6, 2, 2))
    whole = attention.eager(query, key, value)
    for way in (attention.sdpa, attention.bare, attention.row_blocks, attention.two_calls):
        answer = way(query, key, value)
        assert_close(answer.output, whole.output, rtol=1e-5, atol=1e-5)
        for name, found in answer.statistics.items():
            assert_close(found.double(), whole.statistics[name].double(), rtol=1e-5, atol=1e-5)
    assert set(attention.two_calls(query, key, value).statistics) == {"entropy"}


def test_a_way_that_this_machine_cannot_go_is_left_out_with_the_reason() -> None:
    query, key, value = (torch.randn(1, 2, 16, attention.D_HEAD) for _ in range(3))
    found = attention.compare(query, key, value, 2, ["sdpa", "basic", "fused"])
    assert found["left_out"] == {"fused": "needs a CUDA device"}
    assert {way: len(seconds) for way, seconds in found["seconds"].items()} == {"sdpa": 2, "basic": 2}
    assert found["held_bytes"] >= 0
    assert found["difference"] < 1e-5


def test_fits_find_exponents_and_the_context_that_fits() -> None:
    lengths = [1024, 2048, 4096, 8192]
    assert engine_tables.exponent(lengths, [3e-9 * n**1.7 for n in lengths]) == pytest.approx(1.7)
    assert engine_tables.exponent(lengths[:2], [1.0, 2.0]) is None
    linear = [1e6 + 4000.0 * n for n in lengths]
    assert engine_tables.largest_context(lengths, linear, 1e6 + 4000.0 * 100_000) == pytest.approx(100_000, rel=1e-3)
    square = [1e6 + 4000.0 * n + 72.0 * n**2 for n in lengths]
    limit = 1e6 + 4000.0 * 50_000 + 72.0 * 50_000**2
    assert engine_tables.largest_context(lengths, square, limit) == pytest.approx(50_000, rel=1e-3)
    assert engine_tables.largest_context(lengths, linear, 10.0) is None, "less than what is held at any length"


def test_it_writes_tables_figure_and_every_measurement(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    ran: list[list[str]] = []

    def process(_threads: int | None, words: list[object]) -> dict[str, Any]:
        ran.append([str(word) for word in words])
        length, first = int(ran[-1][3]), ran[-1].index("--ways") + 1
        ways = ran[-1][first : ran[-1].index("--rounds")]
        seconds = {way: [length**2 * 1e-8 * (i + 1)] * 3 for i, way in enumerate(ways) if way != "fused"}
        return {
            "seconds": seconds, "difference": 0.0, "statistics_off": {"two_calls": 1e-7},
            "left_out": {"fused": "needs a CUDA device"} if "fused" in ways else {}, "held_bytes": 3000 * length,
            "load": 0.0, "threads": 1,
        }  # fmt: skip

    monkeypatch.setattr(engines, "in_a_process", process)
    monkeypatch.setattr(machine, "available_bytes", lambda: 64 << 30)
    flags = ["--lengths", "1024", "4096", "16384", "--memory-limit", "8", "--device", "cpu", "--out", str(tmp_path)]
    assert engines.main(flags) == 0
    page = (tmp_path / "engines.md").read_text()
    assert "| 16,384 | eager | – | – | – | – | not run: needs about 19 GB, 8 GB are free or allowed |" in page
    assert page.count("needs a CUDA device") == 1
    assert "| all | fused | – | – | – | – | needs a CUDA device |" in page
    assert "| row blocks | 2.00 | 1.00 |" in page
    saved = json.loads((tmp_path / "engines.json").read_text())
    over = {(row["length"], row["way"]): row["over_sdpa"] for row in saved["summary"]}
    assert over[4096, "basic"] == pytest.approx(2)
    assert all((tmp_path / f"engines{suffix}").stat().st_size > 1000 for suffix in (".png", ".svg"))
    assert sum("16384" in words for words in ran) == 5, "one process of times, four of memory"


def test_settings_that_make_no_sense_are_refused() -> None:
    with pytest.raises(UsageError, match="set against it"):
        engines.Config(ways=("basic",))
    with pytest.raises(UsageError, match="multiple"):
        engines.Config(n_heads=9, n_kv_heads=2)
