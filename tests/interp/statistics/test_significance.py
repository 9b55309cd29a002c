import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.testing import assert_allclose, assert_array_equal
from scipy import stats

from interp.statistics import benjamini_hochberg, paired_p, significance, too_few


def scipys_p(differences, n_resamples) -> float:
    result = stats.permutation_test(
        (differences,),
        np.mean,
        permutation_type="samples",
        alternative="greater",
        n_resamples=n_resamples,
        rng=np.random.default_rng(0),
    )
    return float(result.pvalue)


@given(st.lists(st.integers(-4, 4), min_size=2, max_size=8), st.integers(-2, 2))
def test_exact_p_is_scipys_ties_and_zeros_included(values, control):
    values, control = np.array(values), np.full(len(values), control)
    assert paired_p(values, control) == pytest.approx(scipys_p(values - control, np.inf))
    # in tenths, sums that tie differ by rounding
    assert paired_p(values / 10, control / 10) == paired_p(values, control)


def test_drawn_p_is_near_scipys():
    rng = np.random.default_rng(0)
    values, control = rng.normal(0.3, 1, size=(20, 3)), rng.normal(size=(20, 3))
    p = paired_p(values, control, n_draws=50_000)
    expected = [scipys_p(column, 50_000) for column in (values - control).T]
    assert_allclose(p, expected, atol=0.01)  # sd of a drawn share: at most 0.2%


def test_drawn_p_is_never_zero_and_small_enough_to_survive_correction():
    n_heads = 300
    values = np.random.default_rng(0).normal(size=(32, n_heads))
    values[:, 7] += 10
    p = paired_p(values, np.zeros_like(values))
    assert p[7] == 1 / (30_000 + 1)
    corrected = benjamini_hochberg(p)
    assert corrected[7] <= 0.05


def test_p_values_of_no_difference_are_uniform():
    p = paired_p(np.random.default_rng(0).normal(size=(20, 1000)), np.zeros((20, 1000)), n_draws=2000)
    assert stats.kstest(p, "uniform").pvalue > 0.001
    assert (p <= 0.05).mean() == pytest.approx(0.05, abs=0.021)  # three sd


def test_missing_pairs_are_left_out():
    values, control = np.array([[0.4, 0.1], [0.3, 0.2], [0.6, 0.3], [0.2, 0.1]]), np.zeros((4, 2))
    values[0, 1] = control[2, 1] = np.nan
    assert_allclose(paired_p(values, control), [1 / 16, 1 / 4])


def test_units_are_averaged_first():
    values = np.array([0.5, 0.1, 0.2, 0.3])
    assert paired_p(values, np.zeros(4), ["a", "a", "b", "b"]) == 1 / 4


@pytest.mark.parametrize("n", [1, 3])
def test_fewer_than_two_pairs_have_no_p(n):
    values = np.full((n, 2), np.nan)
    values[0] = 1.0
    assert np.isnan(paired_p(values, np.zeros((n, 2)))).all()


def test_no_difference_at_all_has_p_one():
    for n in (5, 20):
        assert paired_p(np.full(n, 0.3), np.full(n, 0.3)) == 1


def test_control_must_be_paired():
    with pytest.raises(ValueError, match=r"paired with values, shape \[4, 2\]; got \[3, 2\]"):
        paired_p(np.zeros((4, 2)), np.zeros((3, 2)))


@pytest.mark.parametrize("n", [6, 20])
def test_blocks_and_trailing_axes_do_not_matter(n, monkeypatch):
    values, control = np.random.default_rng(0).normal(size=(2, n, 3, 2))
    whole = paired_p(values, control, n_draws=1000)
    assert whole.shape == (3, 2)
    assert_array_equal(paired_p(values, control, n_draws=1000), whole)
    monkeypatch.setattr(significance, "_ELEMENTS", 100)
    if n == 6:
        assert_array_equal(paired_p(values, control), whole)
    else:  # other draws
        assert_allclose(paired_p(values, control, n_draws=1000), whole, atol=0.08)


def test_correction_is_scipys_within_each_family():
    rng = np.random.default_rng(0)
    p, family = rng.random((4, 5)) ** 3, rng.choice(["induction", "previous_token"], size=(4, 5))
    corrected = benjamini_hochberg(p, family)
    for name in np.unique(family):
        assert_allclose(corrected[family == name], stats.false_discovery_control(p[family == name]))
    assert_allclose(benjamini_hochberg(p).ravel(), stats.false_discovery_control(p.ravel()))


def test_correction_leaves_out_nan():
    p = np.array([0.01, np.nan, 0.04, 0.5])
    corrected = benjamini_hochberg(p)
    assert np.isnan(corrected[1])
    assert_allclose(corrected[[0, 2, 3]], stats.false_discovery_control([0.01, 0.04, 0.5]))
    assert np.isnan(benjamini_hochberg([np.nan, np.nan])).all()


def test_correction_refuses_what_is_no_p_value():
    with pytest.raises(ValueError, match=r"within 0 and 1; got 0\.5 to 1\.5"):
        benjamini_hochberg([0.5, 1.5])
    with pytest.raises(ValueError, match="one label per p-value"):
        benjamini_hochberg([0.5, 0.5], ["a"])


@given(st.integers(1, 20), st.integers(1, 6000))
def test_too_few_is_where_no_single_head_could_be_significant(n_units, n_heads):
    least = np.full(n_heads, 1.0)
    least[0] = 1 / 2**n_units
    assert bool(too_few(n_units, n_heads)) == (benjamini_hochberg(least)[0] > 0.05)


def test_too_few_says_how_many_are_needed():
    assert "use at least 13" in too_few(6, 270)
    assert too_few(12, 270)
    assert not too_few(13, 270)
