"""The chapter on a model's health, against tables whose answer is planted."""

from dataclasses import replace
from typing import Any

import pandas as pd
import pytest

from interp.results import Result
from reports import style
from reports.chapters import Chapter
from reports.chapters.model_health import chapter
from reports.figures import model_health as draw
from tests.reports.chapter_parts import NO_RUN


def check(name: str, verdict: str, value: float, **more: Any) -> dict[str, Any]:
    row = {
        "family": "leaks", "check": name, "question": "Is it?", "site": "", "layer": pd.NA, "head": pd.NA,
        "value": value, "unit": "relative change", "warn_at": float("nan"), "fail_at": 1e-4, "worse": "above",
        "verdict": verdict, "advice": "Mend it." if verdict in ("warn", "fail") else "", "note": "seen here",
    }  # fmt: skip
    return row | more


@pytest.fixture
def result() -> Result:
    checks = pd.DataFrame([
        check("future_leak", "ok", 0.0),
        check("softmax_jacobian", "warn", 5e-7, family="softmax", site="blocks.1.attn", layer=1, head=3, warn_at=1e-6,
              fail_at=1e-7, worse="below"),
        check("row_sums", "fail", 0.5, family="numbers", site="blocks.0.attn", layer=0, fail_at=1e-3),
        check("order_blindness", "not applicable", float("nan"), note="a causal mask tells order by itself"),
        check("kv_cache", "ok", 3 * 2.0**20, family="cost", unit="bytes", fail_at=float("nan")),
    ])  # fmt: skip
    checks[["layer", "head"]] = checks[["layer", "head"]].astype("Int64")
    heads = pd.DataFrame(
        [
            {"site": f"blocks.{layer}.attn", "layer": layer, "head": head, "metric": "saturated_rows", "data": "text",
             "value": 0.1 * head, "ci_low": 0.0, "ci_high": 1.0, "chance": 0.0, "p_corrected": float("nan"), "n": 4.0,
             "note": ""}
            for layer in range(2) for head in range(8)
        ]
    )  # fmt: skip
    depth = pd.DataFrame(
        [{"site": f"blocks.{i}", "layer": i, "metric": "activation_rms", "value": 2.0**i} for i in range(3)]
    )
    cost = pd.DataFrame([{"quantity": "flops", "value": 1e9, "unit": "FLOP", "kv_heads": 0, "context": 4096,
                          "requests": 1}])  # fmt: skip
    memory = pd.DataFrame(
        [{"context": n, "what": what, "bytes": float(n * scale)} for n in (128, 4096, 16384)
         for what, scale in (("eager, every layer", n), ("eager, one layer", n / 2), ("here", 64), ("kv cache", 900))]
    )  # fmt: skip
    tables = {"checks": checks, "heads": heads, "depth": depth, "cost": cost, "memory": memory}
    return Result("model-health", tables, {"model": {"name": "tiny-lantern"}, "config": {"budget": "report"}})


@pytest.fixture
def made(result: Result) -> Chapter:
    return chapter(result, NO_RUN)


def test_it_opens_with_the_verdicts(made: Chapter) -> None:
    assert made.lead is not None
    assert made.lead.text == (
        "Of 4 checks of tiny-lantern, one check fails and one check warns: row sums and softmax jacobian; one does not "
        "apply."
    )


def test_what_is_wrong_comes_first_with_advice(made: Chapter) -> None:
    first, second, *rest = made.findings
    assert first.verdict.text == "Row sums fails at blocks.0.attn."
    assert second.verdict.text == "Softmax jacobian warns at blocks.1.attn, L1H3."
    assert "Mend it." in [sentence.text for sentence in first.support]
    assert "5e−07" in second.support[0].text
    told = " ".join(sentence.text for finding in rest for sentence in finding.support)
    assert "Future leak 0." in told
    assert "Kv cache 3 MiB." in told
    assert any("a causal mask tells order by itself" in s.text for finding in rest for s in finding.support)


def test_a_sound_model_is_called_so(result: Result) -> None:
    checks = result.tables["checks"]
    tables = {**result.tables, "checks": checks.loc[checks["verdict"].isin(["ok", "not applicable"])]}
    made = chapter(replace(result, tables=tables), NO_RUN)
    assert made.lead is not None
    assert "none warns or fails" in made.lead.text


def test_every_figure_is_drawn(made: Chapter) -> None:
    assert made.opening is not None
    names = [plate.name for plate in made.plates]
    assert names == ["saturated-rows", "by-depth", "memory", "health-maps"]
    with style.paper():
        for plate in (made.opening, *made.plates):
            svg, png = style.render(plate.draw())
            assert svg
            assert png


def test_marks_stand_where_the_values_are(result: Result) -> None:
    checks = result.tables["checks"].iloc[:3]
    with style.paper():
        _, (ax,) = style.canvas(5, 3)
        draw.headroom(checks, ax)
    marks = [(line.get_xdata()[0], line.get_ydata()[0]) for line in ax.lines if len(line.get_xdata()) == 1]  # type: ignore[arg-type,index]
    assert marks == [(1e-6, 0), (pytest.approx(2.0), 1), (pytest.approx(500.0), 2)]


def test_a_run_without_tables_says_nothing(result: Result) -> None:
    made = chapter(replace(result, tables={}), NO_RUN)
    assert made.lead is None
    assert made.opening is None
    assert made.findings == ()
