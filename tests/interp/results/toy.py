"""A result and a step of no meaning, to be saved and read."""

import math
from collections.abc import Callable

import pandas as pd

from interp.results import Result

MODEL = {"name": "toy", "weights_sha256": "a" * 64, "dtype": "float32", "device": "cpu"}
OTHER = MODEL | {"name": "other", "weights_sha256": "b" * 64}
PRINT = "f" * 64


def heads(value: float = 0.5) -> pd.DataFrame:
    return pd.DataFrame(
        {
            "site": ["blocks.0.attn", "blocks.0.attn"],
            "layer": [0, 0],
            "head": [0, 1],
            "metric": "prefix_matching",
            "data": "repeated",
            "value": [value, math.nan],
            "ci_low": [value - 0.1, math.nan],
            "ci_high": [value + 0.1, math.nan],
            "chance": 0.01,
            "p_corrected": [0.001, math.nan],
            "n": [3, 0],
            "note": ["", "no eligible row"],
        }
    )


def result(value: float = 0.5, name: str = "toy") -> Result:
    return Result(
        name, {"heads": heads(value), "extra": pd.DataFrame({"x": [value]})}, {"model": MODEL, "value": value}
    )


def table_of(value: str, computed: list[str]) -> Callable[[], dict[str, pd.DataFrame]]:
    def compute() -> dict[str, pd.DataFrame]:
        computed.append(value)
        return {"t": pd.DataFrame({"x": [value]})}

    return compute
