"""What a report runs its analyses with."""

import pytest

from interp.flags import DEFAULT_MODEL, Report, config_for
from interp.plugins import find_analysis


@pytest.mark.parametrize(
    ("report", "training", "budget"),
    [
        (Report(), False, "report"),
        (Report(model=DEFAULT_MODEL, budget="report"), True, "report"),
        (Report(model="another"), True, "report"),
        (Report(model="another", budget="quick"), False, "report"),
        (Report(budget="full"), True, "full"),
    ],
)
def test_a_quick_report_trains_nothing(report: Report, training: bool, budget: str) -> None:
    config = config_for(find_analysis("attention-design"), report)
    assert (config.training, config.budget) == (training, budget)


def test_settings_of_a_quick_report_are_an_analysis_own() -> None:
    for name in ("attention-design", "adversarial-attention", "induction-heads", "head-pruning"):
        analysis = find_analysis(name)
        config = config_for(analysis, Report())
        assert {key: getattr(config, key) for key in analysis.quick} == dict(analysis.quick)
