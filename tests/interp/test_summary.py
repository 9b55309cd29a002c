"""What a terminal is told of a result."""

import pandas as pd

from interp.results import Result
from interp.summary import called_heads, heads_told, strongest_heads


def test_names_of_scores_do_not_run_into_their_heads() -> None:
    metrics = ["entropy", "a_score_with_a_name_that_is_longer_than_any_other"]
    rows = [
        {"site": "blocks.0.attn", "layer": 0, "head": 1, "metric": metric, "data": "text", "value": 0.5, "ci_low": 0.4,
         "ci_high": 0.6}
        for metric in metrics
    ]  # fmt: skip
    lines = strongest_heads(Result("toy", {"heads": pd.DataFrame(rows)}, {}))
    assert lines[1] == f"{metrics[1]} (text)  L0H1 0.50 [0.40, 0.60]"
    assert lines[0].index("L0H1") == lines[1].index("L0H1")


def kinds(*rows: tuple[int, str, float, bool]) -> Result:
    table = pd.DataFrame(rows, columns=["head", "kind", "value", "called"])
    limits = {"induction": 0.4, "sink": 0.3, "redundant": 0.05}
    threshold = [limits[kind] for kind in table["kind"]]
    return Result("toy", {"kinds": table.assign(site="blocks.0.attn", layer=0, threshold=threshold)}, {})


def test_kinds_come_with_their_number_and_their_surest_heads() -> None:
    result = kinds(
        (0, "induction", 0.5, True), (1, "induction", 0.9, True), (1, "induction", 0.6, True), (2, "sink", 0.1, False),
        (2, "redundant", 0.04, True), (3, "redundant", 0.01, True),
    )  # fmt: skip
    assert called_heads(result) == [
        "4 of 4 heads are called something:",
        "  induction     2  L0H1 0.90, L0H0 0.50",
        "  redundant     2  L0H3 0.01, L0H2 0.04",
        "  no head: sink",
    ]
    assert called_heads(result, count=1)[1] == "  induction     2  L0H1 0.90 and 1 more"
    assert heads_told(result) == called_heads(result)


def test_where_no_head_is_called_anything_that_is_said() -> None:
    assert called_heads(kinds((0, "sink", 0.1, False))) == ["none of 1 heads are called anything", "  no head: sink"]


def test_many_scores_are_cut_and_counted() -> None:
    row = {"site": "blocks.0.attn", "layer": 0, "head": 1, "data": "text", "value": 0.5, "ci_low": 0.4, "ci_high": 0.6}
    result = Result("toy", {"heads": pd.DataFrame([{**row, "metric": f"m{i}"} for i in range(14)])}, {})
    lines = heads_told(result)
    assert len(lines) == 13
    assert lines[-1] == "and 2 further scores in the table heads"
