"""No check raises an alarm where nothing is wrong."""

from typing import Any

import pytest
import torch

import interp
from analyses.model_health import SCHEMAS, Config, run
from interp.results import Workspace, check_tables
from tests import families
from tests.interp.models.transformer import small
from tests.zoo import ZOO

pytestmark = [
    pytest.mark.filterwarnings("ignore:flex_attention called without torch.compile"),
    pytest.mark.filterwarnings("ignore:enable_nested_tensor is True"),
    pytest.mark.filterwarnings("ignore:`torch.jit:DeprecationWarning"),
]

ITS_OWN_WEIGHTS = ("t5",)
"""T5 does not scale its scores and makes up for it in its initial weights: with `families.make`'s, which do not, its
scores are as wide as the check says."""
FAULTY = {
    "plain_bidirectional": "order_blindness",  # no positions
    "multi_query": "score_deviation",  # no scale
    "multi_query_bidirectional": "score_deviation",
}
"""Kinds of the small transformer whose options are a fault by themselves, and the check that says so."""


def alarms(model: Any, config: Config | None = None) -> list[str]:
    result = run(model, config or Config(), Workspace())
    check_tables(result.analysis, result.tables, SCHEMAS)
    checks = result.tables["checks"]
    bad = checks[checks["verdict"].isin(["warn", "fail"])]
    return [f"{row.check} {row.value:.3g} at {row.site} ({row.note})" for row in bad.itertuples()]


@pytest.mark.parametrize("family", families.FAMILIES)
def test_a_family_with_random_weights(family: str) -> None:
    if family in ITS_OWN_WEIGHTS:
        kind, config, arguments = families.FAMILIES[family]
        torch.manual_seed(0)
        module = getattr(families.hf, kind)(getattr(families.hf, config)(**arguments)).eval()
    else:
        module = families.make(family)
    assert alarms(interp.load(module)) == []


@pytest.mark.parametrize("name", ZOO)
def test_a_sound_module(name: str) -> None:
    torch.manual_seed(0)
    entry = ZOO[name]()
    assert alarms(interp.load(entry.module.eval(), entry.example)) == []


@pytest.mark.parametrize("kind", [*small.CAUSAL, *small.BIDIRECTIONAL])
def test_the_small_transformer(kind: str) -> None:
    expected = [FAULTY[kind]] if kind in FAULTY else []
    assert [alarm.split()[0] for alarm in alarms(interp.load(small.small(kind)))] == expected


@pytest.mark.parametrize("name", ["tiny-2l", "tiny-1l"])
def test_a_trained_toy(name: str) -> None:
    assert alarms(interp.load(name)) == []


def test_minilm(minilm: interp.HookedModel) -> None:
    assert alarms(minilm) == []


def test_smollm2(smollm2: interp.HookedModel) -> None:
    assert alarms(smollm2, Config(length=64, sequences=2)) == []


@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16])
@pytest.mark.parametrize("family", ["llama", "bert"])
def test_other_types(family: str, dtype: torch.dtype) -> None:
    assert alarms(interp.load(families.make(family, dtype=dtype))) == []
