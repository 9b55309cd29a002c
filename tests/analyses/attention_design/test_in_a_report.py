"""A report trains no models, unless everything is asked for."""

from analyses import attention_design
from interp.flags import Report, config_for
from interp.plugins import Analysis


def test_a_report_trains_nothing_and_the_full_budget_does() -> None:
    analysis = Analysis("attention-design", attention_design)
    assert analysis.config_class().training
    assert not config_for(analysis, Report()).training
    assert config_for(analysis, Report(budget="full")).training
