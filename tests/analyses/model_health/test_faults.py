"""Every planted fault is found, and in the same model without it nothing is."""

import pandas as pd
import pytest

from analyses.model_health import SCHEMAS, Config, run
from interp.results import Workspace, check_tables
from tests.analyses.model_health.faults import FAULTS, Fault, Model, sound


def checks(model: object, config: Config | None = None) -> pd.DataFrame:
    result = run(model, config or Config(), Workspace())  # type: ignore[arg-type]
    check_tables(result.analysis, result.tables, SCHEMAS)
    return result.tables["checks"]


@pytest.mark.parametrize("name", FAULTS)
def test_the_fault_is_found(name: str) -> None:
    fault = FAULTS[name]
    found = checks(fault.load(), fault.config).set_index("check")
    assert found.loc[fault.check, "verdict"] in {"warn": ("warn", "fail"), "fail": ("fail",)}[fault.verdict]
    assert found.loc[fault.check, "advice"]
    if fault.site is not None:
        assert found.loc[fault.check, "site"] == fault.site


@pytest.mark.parametrize("causal", [True, False])
def test_without_a_fault_none_is_found(causal: bool) -> None:
    fault = Fault(lambda: Model(sound(causal=causal)), "")
    found = checks(fault.load())
    assert found.loc[found["verdict"].isin(["warn", "fail"])].empty
