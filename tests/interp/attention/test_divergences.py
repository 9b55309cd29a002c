"""Divergences between heads, streamed, against whole patterns: made by hand, and transformers' own eager ones."""

import math
from dataclasses import replace

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor
from torch.testing import assert_close

from interp.attention import Mask, Trace, Traces, head_divergences
from interp.statistics import jensen_shannon
from tests import eager, families
from tests.interp.attention.cases import Case, cases
from tests.interp.attention.loops import seen


def directly(pattern: Tensor, counts: Tensor) -> tuple[Tensor, Tensor]:
    """Mean JSD of every pair of heads from whole patterns, a row at a time.

    Args:
        pattern: [batch, head, query, outcome], each row that counts adding up to 1.
        counts: [batch, head, query] which rows count.
    """
    batch, n_heads, n_queries, _ = pattern.shape
    values = torch.full((batch, n_heads, n_heads), math.nan, dtype=torch.float64)
    n = torch.zeros(batch, n_heads, n_heads, dtype=torch.long)
    rows = pattern.double().numpy()
    for b in range(batch):
        for i in range(n_heads):
            for j in range(n_heads):
                both = [r for r in range(n_queries) if counts[b, i, r] and counts[b, j, r]]
                n[b, i, j] = len(both)
                if both:
                    values[b, i, j] = float(np.mean(jensen_shannon(rows[b, i, both], rows[b, j, both])))
    return values, n


def with_sink(pattern: Tensor) -> Tensor:
    """A last outcome: what a learned sink took."""
    rest = (1 - pattern.sum(-1, keepdim=True)).clamp_min(0)
    return torch.cat([pattern, rest.masked_fill(rest < 1e-6, 0.0)], -1)


def renormalised(pattern: Tensor, without: Tensor) -> Tensor:
    """Without some keys [batch, key], and without the learned sink."""
    left = pattern.masked_fill(without[:, None, None], 0.0)
    return left / left.sum(-1, keepdim=True).clamp_min(1e-30)


@settings(max_examples=40, deadline=None)
@given(cases((torch.float64,)), st.booleans(), st.integers(0, 9999))
def test_any_mask(case: Case, without_some: bool, seed: int) -> None:
    other = replace(case, query=2 * case.query.flip(-1), key=case.key.roll(1, -1))
    looks = [seen(case), seen(other)]
    traces = Traces({str(number): trace(each) for number, each in enumerate((case, other))})
    batch, n_heads, n_queries, n_keys = case.sizes
    generator = torch.Generator().manual_seed(seed)
    without = torch.rand(batch, n_keys, generator=generator) < 0.3 if without_some else None
    rows = torch.randperm(n_queries, generator=generator)[: max(1, n_queries // 2)]
    pattern = torch.cat([look.pattern for look in looks], 1)
    options = torch.cat([look.permitted.expand(case.sizes) for look in looks], 1)
    if without is None:
        sink = torch.cat([look.sink for look in looks], 1)
        outcomes, options = torch.cat([pattern, sink[..., None]], -1), options.sum(-1) + (case.mask.sinks is not None)
    else:
        outcomes, options = renormalised(pattern, without), (options & ~without[:, None, None]).sum(-1)
    valid = torch.cat([look.valid.expand(batch, n_heads, n_queries) for look in looks], 1)
    chosen = torch.zeros(n_queries, dtype=torch.bool)
    chosen[rows] = True
    values, n = directly(outcomes, (options >= 2) & valid & chosen)
    found = head_divergences(traces, rows=rows, without=without)
    assert (found.n == n).all()
    assert_close(found.values, values, rtol=0, atol=1e-9, equal_nan=True)


def trace(case: Case) -> Trace:
    scale = case.query.shape[-1] ** -0.5 if case.scale is None else case.scale
    return Trace(case.query, case.key, case.mask, scale, case.softcap)


@pytest.mark.parametrize("without_first", [False, True])
@pytest.mark.parametrize("family", ["gpt2", "mistral", "gpt_oss", "bert", "bart"])
def test_transformers_own_patterns(family: str, without_first: bool) -> None:
    model = families.load(families.make(family))
    twin = eager.untouched(model.module)
    arguments = families.example(family)
    if family == "bert":
        arguments["valid"] = torch.ones(2, 13, dtype=torch.bool)
        arguments["valid"][1, 9:] = False
    run = model.run(**arguments, keep="qk")
    names = {"tokens": "input_ids", "valid": "attention_mask", "decoder_tokens": "decoder_input_ids"}
    patterns, _ = eager.patterns(twin, **{names[name]: value for name, value in arguments.items()})
    by_site = eager.by_site(patterns, run.sites)
    for stack in {(site.stack, site.kind) for site in run.sites}:
        sites = [site.name for site in run.sites if (site.stack, site.kind) == stack]
        pattern = torch.cat([by_site[name] for name in sites], 1).double()
        valid = arguments.get("valid", torch.ones(2, pattern.shape[2], dtype=torch.bool))
        without = torch.zeros(1, pattern.shape[3], dtype=torch.bool)
        without[:, 0] = without_first
        options = ((pattern > 0) & ~without[:, None, None]).sum(-1)
        if without_first:
            outcomes = renormalised(pattern, without.expand(2, -1))
        else:
            outcomes, options = with_sink(pattern), options + (family == "gpt_oss")
        values, n = directly(outcomes, (options >= 2) & valid[:, None])
        found = head_divergences(run.traces, sites, without=without if without_first else None)
        assert (found.n == n).all()
        assert_close(found.values, values, rtol=0, atol=1e-5, equal_nan=True)


def test_extremes_in_float32() -> None:
    """Rows that share nothing are ln 2 apart, equal rows 0, weights down to the smallest numbers included."""
    query = torch.zeros(1, 3, 4, 2)
    query[0, 0, :, 0], query[0, 1, :, 0], query[0, 2, :, 0] = 90.0, -90.0, 90.0
    key = torch.zeros(1, 3, 4, 2)
    key[..., 0] = torch.tensor([1.0, 0.5, 0.25, 0.0])
    found = head_divergences(Traces({"only": Trace(query, key, Mask(), 1.0, None)}))
    apart = jensen_shannon(*torch.softmax(torch.tensor([[90.0, 45, 22.5, 0], [-90, -45, -22.5, 0]]).double(), -1))
    assert_close(found.values[0, 0, 1], torch.tensor(float(apart)).double(), rtol=0, atol=1e-6)
    assert float(found.values[0, 0, 2]) < 1e-6
    assert (found.values.diagonal(dim1=1, dim2=2) == 0).all()
    assert (found.values <= math.log(2)).all()


def test_blocks_do_not_matter(monkeypatch: pytest.MonkeyPatch) -> None:
    model = families.load(families.make("gpt2"))
    run = model.run(families.tokens(2, 40), keep="qk")
    whole = head_divergences(run.traces)
    monkeypatch.setattr("interp.attention.divergences._BLOCK_CELLS", dict.fromkeys(("cpu", "cuda"), 1))
    monkeypatch.setattr("interp.attention.divergences._PAIR_CELLS", dict.fromkeys(("cpu", "cuda"), 1))
    assert_close(head_divergences(run.traces).values, whole.values, rtol=0, atol=1e-6)


def test_a_draw_of_rows_is_an_unbiased_estimate() -> None:
    model = families.load(families.make("gpt2"))
    run = model.run(families.tokens(1, 40), keep="qk")
    whole = head_divergences(run.traces)
    rows = torch.arange(40)
    parts = [head_divergences(run.traces, rows=rows[start::4]) for start in range(4)]
    total = sum(part.values.nan_to_num() * part.n for part in parts)
    assert_close(total / sum(part.n for part in parts), whole.values, rtol=0, atol=1e-6)


def test_what_cannot_be_compared_is_refused() -> None:
    model = families.load(families.make("bart"))
    run = model.run(**families.example("bart"), keep="qk")
    with pytest.raises(ValueError, match=r"equal batches, queries and keys; got .*\[2, 13, 13\] and \[2, 9, 9\]"):
        head_divergences(run.traces)
    sites = [name for name in run.traces if name.startswith("encoder")]
    with pytest.raises(ValueError, match=r"rows must be queries, 0 … 12; got 0 … 13"):
        head_divergences(run.traces, sites, rows=torch.tensor([0, 13]))
    with pytest.raises(ValueError, match=r"without must be \[1 or 2, 13\]"):
        head_divergences(run.traces, sites, without=torch.zeros(1, 9, dtype=torch.bool))
    with pytest.raises(ValueError, match="at least one site"):
        head_divergences(Traces({}))


@pytest.mark.parametrize("name", ["smollm2", "minilm"])
@pytest.mark.parametrize("without_first", [False, True])
def test_real_models(name: str, without_first: bool, request: pytest.FixtureRequest) -> None:
    """To 1e-5 against eager patterns, on pairs of heads drawn at random."""
    model = request.getfixturevalue(name)
    tokens = torch.randint(1000, 20_000, (1, 48), generator=torch.Generator().manual_seed(0))
    run = model.run(tokens, keep="qk")
    patterns, _ = eager.patterns(eager.untouched(model.module), input_ids=tokens)
    pattern = torch.cat(list(eager.by_site(patterns, run.sites).values()), 1).double()
    without = torch.zeros(1, 48, dtype=torch.bool)
    without[:, 0] = without_first
    found = head_divergences(run.traces, without=without if without_first else None)
    outcomes = renormalised(pattern, without)
    counts = ((pattern > 0) & ~without[:, None, None]).sum(-1) >= 2
    pairs = torch.randint(pattern.shape[1], (60, 2), generator=torch.Generator().manual_seed(1))
    for pair in pairs:
        values, n = directly(outcomes[:, pair], counts[:, pair])
        assert int(found.n[0, pair[0], pair[1]]) == int(n[0, 0, 1])
        assert_close(found.values[0, pair[0], pair[1]], values[0, 0, 1], rtol=0, atol=1e-5)
