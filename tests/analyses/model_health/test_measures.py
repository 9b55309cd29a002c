"""Single measures against brute force and closed forms."""

import math
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.testing import assert_close

import interp
from analyses.model_health import Config, run
from analyses.model_health.checks import Check, overall, table
from analyses.model_health.cost import costs, fewer_kv_heads
from analyses.model_health.numerics import in_dtype
from analyses.model_health.scores import METRICS, SoftmaxRows, jacobian_norm
from analyses.model_health.subject import subject_of
from interp.attention import Mask, attend
from interp.results import Workspace
from tests import families
from tests.analyses.model_health.faults import Model, example, sound


@settings(max_examples=40, deadline=None)
@given(st.integers(2, 9), st.floats(0.1, 40.0), st.integers(0, 1000))
def test_the_jacobian_s_norm_is_that_of_the_jacobian(n: int, width: float, seed: int) -> None:
    scores = width * torch.randn(3, n, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    exact = [torch.autograd.functional.jacobian(lambda s: s.softmax(-1), row).norm() for row in scores]  # type: ignore[union-attr]
    assert_close(jacobian_norm(scores.softmax(-1)), torch.stack(exact), rtol=1e-6, atol=1e-15)


def test_the_jacobian_of_a_row_on_one_key_keeps_its_digits() -> None:
    e = 1e-12
    assert_close(float(jacobian_norm(torch.tensor([1 - e, e], dtype=torch.float64))), 2 * e, rtol=1e-6, atol=0)
    assert float(jacobian_norm(torch.tensor([0.0, 1.0, 0.0]))) == 0


def test_rows_are_measured_as_numpy_does() -> None:
    generator = torch.Generator().manual_seed(0)
    q, k, v = (torch.randn(2, 3, 7, 5, generator=generator, dtype=torch.float64) for _ in range(3))
    _, (reading,) = attend(4 * q, k, v, Mask(causal=True), probes=[SoftmaxRows()])  # type: ignore[misc]
    scores = (4 * q @ k.transpose(-1, -2) / math.sqrt(5)).numpy()
    wanted = np.zeros((2, 3, len(METRICS)))
    for b, h, i in np.ndindex(2, 3, 7):
        if i:
            s = scores[b, h, i, : i + 1]
            p = np.exp(s - s.max()) / np.exp(s - s.max()).sum()
            entropy = -(p * np.log(p)).sum()
            jacobian = np.linalg.norm(np.diag(p) - np.outer(p, p))
            wanted[b, h] += [p.max(), p.max() > 0.99, entropy, entropy / math.log(i + 1), s.std(), jacobian]
    np.testing.assert_allclose(reading.values.numpy(), wanted / 6, rtol=1e-6)


def test_cost_is_that_of_the_closed_form() -> None:
    model = interp.load(families.make("llama"))  # 3 layers, 6 heads of 8, 2 kv heads, d_model 48, MLP of 64, 97 tokens
    found = costs(subject_of(model), Config(context=1000))
    linear = 3 * (48 * 48 + 2 * 48 * 16 + 48 * 48 + 3 * 48 * 64) + 48 * 97
    assert found.linear == pytest.approx(2 * linear, rel=0.01)  # rotary angles are products as well
    assert found.per_token() == 3 * 2 * 2 * 8 * 4
    assert found.cache(1000) == 1000 * found.per_token()
    assert found.per_token(kv_heads=1) * 2 == found.per_token()
    assert found.eager(1000, every_layer=True) == 3 * 6 * 1000**2 * 4
    assert found.flops(1000) - 1000 * found.linear == 3 * 4 * 6 * 8 * 1000**2
    assert fewer_kv_heads(12, 6) == [4, 3, 2, 1]


def test_a_window_caps_the_cache() -> None:
    found = costs(subject_of(interp.load(families.make("mistral"))), Config(context=1000))
    assert found.cache(1000) == 7 * found.per_token()


def test_an_encoder_keeps_no_cache() -> None:
    assert costs(subject_of(interp.load(families.make("bert"))), Config()).cached == ()


def test_the_model_comes_back_as_it_was() -> None:
    module = Model(sound()).train()
    before = {name: tensor.clone() for name, tensor in module.state_dict().items()}
    frozen = next(module.parameters()).requires_grad_(False)
    run(interp.load(module, example(), verify=False), Config(), Workspace())
    assert module.training
    assert not frozen.requires_grad
    assert all(parameter.grad is None for parameter in module.parameters())
    for name, tensor in module.state_dict().items():
        assert torch.equal(tensor, before[name])


def test_another_type_for_a_while() -> None:
    module = torch.nn.BatchNorm1d(3)
    data = module.weight.data
    with in_dtype(module, torch.float16):
        assert module.weight.dtype is torch.float16
        assert module.running_mean is not None
        assert module.running_mean.dtype is torch.float16
    assert module.weight.data_ptr() == data.data_ptr()
    assert module.weight.dtype is torch.float32
    assert module.running_mean.dtype is torch.float32


@pytest.mark.parametrize(
    ("value", "worse", "verdict"),
    [(0.5, "above", "ok"), (1.5, "above", "warn"), (2.5, "above", "fail"), (math.nan, "above", "fail"),
     (2.5, "below", "ok"), (math.inf, "above", "fail")],
)  # fmt: skip
def test_verdicts(value: float, worse: Any, verdict: str) -> None:
    limits = {"warn_at": 1.0, "fail_at": 2.0} if worse == "above" else {"warn_at": 2.0, "fail_at": 1.0}
    check = Check("future_leak", "leaks", "?", "x", "advice", worse=worse, **limits)
    row = check.judge(value)
    assert row.verdict == verdict
    assert bool(row.advice) == (verdict in ("warn", "fail"))
    frame = table([row, check.not_applicable("because")])
    assert overall(frame) == verdict
    assert np.isfinite(frame["value"].dropna()).all()
    assert list(frame["layer"]) == [pd.NA, pd.NA]


def test_settings_are_checked() -> None:
    for wrong in ({"context": 0}, {"requests": 0}, {"memory": 0.0}, {"sequences": 1}):
        with pytest.raises(ValueError, match=next(iter(wrong))):
            Config(**wrong)  # type: ignore[arg-type]
