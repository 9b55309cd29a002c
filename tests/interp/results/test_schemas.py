"""Tables that break their schema, and names that are no names, are not saved."""

import math
from pathlib import Path
from typing import Any

import pandas as pd
import pandera.pandas as pa
import pytest

from interp.results import Result, RunFolder, Workspace, check_tables, load, save
from tests.interp.results.toy import MODEL, heads, result


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"note": ["", " "]}, "row 1: a value that is NaN needs its reason"),
        ({"ci_low": [0.9, math.nan]}, "row 0: ci_low must not be above ci_high"),
        ({"layer": [0, -1]}, r"layer: greater_than_or_equal_to\(0\) \(got -1\)"),
        ({"layer": [0.0, 1.0]}, "layer: must hold whole numbers"),
        ({"value": [math.inf, 0.5]}, r"value: must be finite or NaN \(got inf\)"),
        ({"value": "high"}, "value: must hold numbers"),
        ({"p_corrected": [1.5, 0.5]}, "p_corrected: less_than_or_equal_to"),
        ({"metric": "Prefix Matching"}, r"metric: str_matches.* \(got Prefix Matching\)"),
        ({"n": [-1, 0]}, "n: greater_than_or_equal_to"),
    ],
)
def test_a_table_of_heads_that_breaks_the_contract_is_not_saved(
    tmp_path: Path, change: dict[str, Any], reason: str
) -> None:
    with pytest.raises(ValueError, match=f"toy: the table heads breaks its schema: .*{reason}"):
        save(Result("toy", {"heads": heads().assign(**change)}), tmp_path)
    assert RunFolder(tmp_path).analyses() == []


@pytest.mark.parametrize("column", ["site", "layer", "head", "metric", "data", "value", "ci_low", "chance", "n"])
def test_every_column_of_heads_is_needed(column: str) -> None:
    with pytest.raises(ValueError, match=rf"column_in_dataframe \(got {column}\)"):
        check_tables("toy", {"heads": heads().drop(columns=column)})


def test_an_analysis_checks_tables_of_its_own(tmp_path: Path) -> None:
    schemas = {"extra": pa.DataFrameSchema({"x": pa.Column(float, pa.Check.lt(0.6))})}
    with RunFolder.claim(tmp_path, MODEL) as run:
        run.save(result(0.5), schemas=schemas)
        with pytest.raises(ValueError, match="toy: the table extra breaks its schema"):
            run.save(result(0.7), schemas=schemas)
        with pytest.raises(ValueError, match="no table absent, which its SCHEMAS describe"):
            run.save(result(0.5), schemas={"absent": schemas["extra"]})
        with pytest.raises(ValueError, match="breaks its schema"):  # its own schema for heads does not replace ours
            check_tables("toy", {"heads": heads().drop(columns="n")}, {"heads": pa.DataFrameSchema({})})
    assert load(tmp_path, "toy").tables["extra"]["x"].item() == 0.5


@pytest.mark.parametrize("name", ["", "../up", ".hidden", "a/b", "-flag", "a b"])
def test_names_that_are_no_file_names_are_refused(tmp_path: Path, name: str) -> None:
    for bad in (Result(name, {}), Result("toy", {name: heads()})):
        with pytest.raises(ValueError, match=r"the name of an? (analysis|table) is letters"):
            save(bad, tmp_path)
    with pytest.raises(ValueError, match="the name of a step is letters"):
        Workspace().step(name, dict)


def test_a_named_index_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"table t: tables have no named index; got \['layer'\]: use reset_index"):
        save(Result("toy", {"t": heads().set_index("layer")}), tmp_path)


def test_a_column_of_mixed_kinds_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="table t: a column mixes kinds"):
        save(Result("toy", {"t": pd.DataFrame({"x": [1, "one"]})}), tmp_path)
