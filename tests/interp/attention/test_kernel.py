"""The kernels compile for a GPU, whether or not there is one: the interpreter takes much that the compiler refuses."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("triton", reason="Triton is not installed (it comes for Linux alone)")

COMPILE = """
from triton import compile
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource
from interp.attention import kernel

NUMBERS = dict(GROUP=3, HEAD=24, WIDTH=32, VALUE=20, VALUE_WIDTH=32, ROWS=64, COLUMNS=32, BIN_WIDTH=16)
NUMBERS["FEATURE_WIDTH"] = 16
OPTIONAL = ("DISTANCE", "HISTOGRAM", "MASSES", "FEATURES", "SINKS", "SLOPES", "BIAS", "ADDED", "SLOTS", "VALID",
            "window", "softcap")
HALF, BYTES, INTEGERS = ("OUT", "Q", "K", "V", "BIAS"), ("VALID", "COUNTS"), ("SLOTS",)

def kind(name):
    if name == "softcap":
        return "fp32"
    if not name.isupper():
        return "i32"
    return "*" + ("bf16" if name in HALF else "u8" if name in BYTES else "i32" if name in INTEGERS else "fp32")

for function in (kernel.forward, kernel.received):
    for everything in (False, True):
        fixed = NUMBERS | dict(CAUSAL=everything, BINS=9 * everything, N_FEATURES=5 * everything)
        if not everything:
            fixed |= dict.fromkeys(OPTIONAL)
        fixed = {name: value for name, value in fixed.items() if name in function.arg_names}
        types = {name: "constexpr" if name in fixed else kind(name) for name in function.arg_names}
        made = compile(ASTSource(function, types, fixed), target=GPUTarget("cuda", 90, 32), options={"num_warps": 4})
        print(len(made.asm["cubin"]), made.metadata.shared)
"""


def test_they_compile_with_everything_and_with_nothing(tmp_path: Path) -> None:
    environment = {name: value for name, value in os.environ.items() if name != "TRITON_INTERPRET"}
    done = subprocess.run(
        [sys.executable, "-c", COMPILE], cwd=Path(__file__).parents[3], capture_output=True, text=True, check=False,
        env=environment | {"TRITON_CACHE_DIR": str(tmp_path)},
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-3000:]
    sizes = [tuple(map(int, line.split())) for line in done.stdout.splitlines()]
    assert len(sizes) == 4
    assert all(code > 0 and shared < 99 << 10 for code, shared in sizes), "what a block may hold on chip"
