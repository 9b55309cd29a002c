import numpy as np
import pytest
from numpy.testing import assert_allclose
from scipy import stats

from interp.statistics import correlation, ends_over_sequences, spearman_interval


@pytest.mark.parametrize("n", [10, 50])
def test_rank_correlation_is_scipys_ties_included(n):
    x, y = np.random.default_rng(0).integers(0, 6, size=(2, n))
    assert spearman_interval(x, y).value == pytest.approx(stats.spearmanr(x, y)[0])


@pytest.mark.parametrize("n", [10, 20])
def test_interval_covers_the_true_correlation(n):
    rng = np.random.default_rng(0)
    true = 6 / np.pi * np.arcsin(0.6 / 2)  # Spearman's ρ of normal pairs with r = 0.6
    covered = 0
    for _ in range(300):
        x, e = rng.normal(size=(2, n))
        interval = spearman_interval(x, 0.6 * x + 0.8 * e, n_resamples=400)
        covered += interval.low <= true <= interval.high
    assert 0.91 <= covered / 300 <= 0.985  # sd 1.3%


def test_resamples_are_those_of_a_loop(monkeypatch):
    x, y = np.random.default_rng(0).normal(size=(2, 30))
    got = spearman_interval(x, x + y, n_resamples=4000)
    rng = np.random.default_rng(9)
    drawn = [rng.integers(30, size=30) for _ in range(2000)]
    expected = np.quantile([stats.spearmanr(x[i], (x + y)[i])[0] for i in drawn], [0.025, 0.975])
    assert_allclose([got.low, got.high], expected, atol=0.03)
    monkeypatch.setattr(correlation, "_ELEMENTS", 1000)
    in_blocks = spearman_interval(x, x + y, n_resamples=4000)
    assert_allclose(in_blocks, got)


def test_missing_values_and_units():
    x, y = np.arange(12.0), np.arange(12.0) ** 2
    x[3] = y[7] = np.nan
    assert spearman_interval(x, y).n == 10
    assert spearman_interval(x, y, units=np.arange(12) // 2).n == 6


def test_perfect_and_undefined_correlations():
    x = np.arange(10.0)
    assert spearman_interval(x, x) == (1.0, 1.0, 1.0, 10)
    assert np.isnan(spearman_interval(x, np.ones(10)).value)
    few = spearman_interval(x[:3], x[:3])
    assert few.value == 1
    assert np.isnan([few.low, few.high]).all()
    assert np.isnan(spearman_interval(x * np.nan, x).value)


def test_only_pairs_are_correlated():
    with pytest.raises(ValueError, match="of the same length"):
        spearman_interval(np.zeros(3), np.zeros(4))
    with pytest.raises(ValueError, match="of the same length"):
        spearman_interval(np.zeros((3, 2)), np.zeros((3, 2)))


def test_ends_over_sequences_are_those_of_the_formula():
    drawn = np.random.default_rng(0).uniform(0.1, 0.5, size=500)
    low, high = ends_over_sequences(0.6, np.append(drawn, np.nan), 9, level=0.9)
    z = np.arctanh(drawn) - np.arctanh(drawn).mean()
    w = np.sqrt(9 / 8) * stats.t.ppf(0.95, 8) / stats.norm.ppf(0.95)
    assert_allclose([low, high], np.tanh(np.arctanh(0.6) - w * np.quantile(z, [0.95, 0.05])))


def test_ends_over_sequences_are_missing_where_nothing_is_known():
    drawn = np.full(10, 0.5)
    assert np.isnan(ends_over_sequences(0.5, drawn, 1)).all()
    assert np.isnan(ends_over_sequences(np.nan, drawn, 9)).all()
    assert np.isnan(ends_over_sequences(0.5, np.where(np.arange(10) < 5, np.nan, drawn), 9)).all()
    assert_allclose(ends_over_sequences(1.0, np.ones(10), 9), 1.0, atol=1e-8)
