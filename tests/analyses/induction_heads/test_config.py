"""Settings: what is refused at once, and what the budgets run."""

from typing import Any

import pytest

from analyses.induction_heads import Config


@pytest.mark.parametrize(
    ("setting", "told"),
    [
        ({"period": 1}, "period must be at least 2"),
        ({"repeats": 1}, "repeats must be at least 2"),
        ({"sequences": 1}, "sequences must be at least 2"),
        ({"seed": -1}, "seed must be at least 0"),
        ({"tokens_per_pass": 0}, "tokens_per_pass must be at least 1"),
        ({"induction_threshold": 0.0}, "between 0 and 1"),
        ({"duplicate_token_threshold": 1.0}, "between 0 and 1"),
        ({"early": 400, "late": 410}, "late must lie beyond early"),
        ({"ablated": ()}, "at least one number of heads"),
        ({"ablated": (0, 3)}, "none below 1"),
        ({"draws": 0}, "draws must be at least 1"),
    ],
)
def test_wrong_settings_are_refused_with_the_rule(setting: dict[str, Any], told: str) -> None:
    with pytest.raises(ValueError, match=told):
        Config(**setting)


def test_budgets() -> None:
    report, full = Config(), Config(budget="full")
    assert report.ablated_sizes == (1, 5, 20)
    assert full.ablated_sizes == (1, 2, 5, 10, 20, 40)
    assert (report.random_draws, full.random_draws) == (3, 10)
    assert (report.ablated_sequences, full.ablated_sequences) == (8, None)
    assert Config(ablated=(7, 3, 3), draws=2, ablated_on=5).ablated_sizes == (3, 7)
    assert Config(draws=2).random_draws == 2


@pytest.mark.parametrize(
    ("config", "context", "longest"),
    [
        (Config(), 8192, 512),
        (Config(), 600, 300),
        (Config(repeats=4), 600, 150),
        (Config(), None, 512),
        (Config(budget="full"), 8192, 4096),
        (Config(budget="full"), None, 512),
        (Config(reach=100), 8192, 100),
        (Config(reach=10_000), 8192, 4096),
    ],
)
def test_the_longest_period(config: Config, context: int | None, longest: int) -> None:
    assert config.longest_period(context) == longest
