"""Every architecture reads the same and computes the same by either engine: the fused one on a GPU where there is one,
else in Triton's interpreter."""

from typing import Any

import pytest
import torch
from torch.testing import assert_close

from interp.attention import probes
from interp.attention.core import Engine
from tests.families import ENCODER_DECODERS, FAMILIES, OWN_SOFTMAX, example, load, make

pytest.importorskip("triton", reason="Triton is not installed (it comes for Linux alone)")
DEVICE = "cuda" if torch.cuda.is_available() else "cpu"  # without a GPU in Triton's interpreter: tests/conftest.py
LENGTH = 24


def given(family: str) -> dict[str, Any]:
    """Two sequences, of which the second ends early (the tokens of a decoder as well)."""
    inputs = example(family, length=LENGTH)
    if family != "vit":
        inputs["valid"] = torch.arange(LENGTH) < torch.tensor([[LENGTH], [LENGTH - 5]])
    if family in ENCODER_DECODERS:
        n = inputs["decoder_tokens"].shape[1]
        inputs["decoder_valid"] = torch.arange(n) < torch.tensor([[n], [n - 3]])
    return {name: tensor.to(DEVICE) for name, tensor in inputs.items()}


@pytest.mark.parametrize("family", FAMILIES)
def test_both_engines_give_equal_statistics_and_outputs(family: str) -> None:
    model = load(make(family).to(DEVICE))
    read = (*probes.basic(), probes.RelativeEntropy(), probes.MassReceived())
    runs = []
    engines: tuple[Engine, ...] = ("blocked", "fused")
    for engine in engines:
        model.seam.engines.clear()
        model.engine = engine
        runs.append(model.run(**given(family), probes=read))
        assert model.seam.engines == ({"dense"} if family in OWN_SOFTMAX else {engine})
    theirs, ours = runs
    for probe in read:
        mine = ours.readings(probe)
        for site, reading in theirs.readings(probe).items():
            assert (mine[site].n == reading.n).all()
            assert_close(mine[site].values, reading.values, rtol=2e-5, atol=2e-5, equal_nan=True)
    for name, expected in theirs.output.items():
        if isinstance(expected, torch.Tensor):
            assert_close(ours.output[name], expected, rtol=1e-4, atol=1e-4, msg=lambda m, n=name: f"{n}: {m}")
