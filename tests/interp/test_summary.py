"""What a terminal is told of a result."""

import pandas as pd

from interp.results import Result
from interp.summary import strongest_heads


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
