import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays
from numpy.testing import assert_allclose
from scipy import stats
from scipy.spatial import distance

from interp.statistics import bernoulli, jensen_shannon, kl_divergence, total_variation


@st.composite
def distributions(draw):
    """Two distributions over the same outcomes, with exact zeros and tiny masses."""
    size = draw(st.integers(2, 7))
    weights = arrays(np.float64, size, elements=st.just(0.0) | st.floats(1e-300, 1.0))
    pair = []
    for w in (draw(weights), draw(weights)):
        w = w if w.sum() > 0 else np.ones(size)
        pair.append(w / w.sum())
    return pair


@given(distributions())
def test_against_scipy(pair):
    p, q = pair
    assert_allclose(kl_divergence(of=p, from_=q), stats.entropy(p, q), atol=1e-12)
    middle = (p + q) / 2  # scipy's own jensenshannon takes the root of rounding below zero
    expected = (stats.entropy(p, middle) + stats.entropy(q, middle)) / 2
    assert_allclose(jensen_shannon(p, q), expected, atol=1e-12)
    assert_allclose(total_variation(p, q), distance.cityblock(p, q) / 2, atol=1e-12)


@given(distributions())
def test_ranges_and_symmetry(pair):
    p, q = pair
    assert 0 <= jensen_shannon(p, q) <= np.log(2)
    assert_allclose(jensen_shannon(p, q), jensen_shannon(q, p), atol=1e-15)
    assert 0 <= total_variation(p, q) <= 1
    assert kl_divergence(of=p, from_=q) >= 0
    assert jensen_shannon(p, p) == total_variation(p, p) == kl_divergence(of=p, from_=p) == 0


def test_zero_masses():
    p, q = [1.0, 0.0], [0.0, 1.0]
    assert kl_divergence(of=p, from_=q) == np.inf
    assert kl_divergence(of=p, from_=[0.5, 0.5]) == pytest.approx(np.log(2))
    assert jensen_shannon(p, q) == pytest.approx(np.log(2))
    assert jensen_shannon([1 - 5e-324, 5e-324], [1.0, 0.0]) == 0  # its half underflows
    assert total_variation(p, q) == 1


def test_kl_arguments_cannot_be_swapped_silently():
    with pytest.raises(TypeError):
        kl_divergence([0.5, 0.5], [0.1, 0.9])  # pyright: ignore[reportCallIssue]


def test_leading_axes_broadcast():
    rng = np.random.default_rng(0)
    p, q = rng.dirichlet(np.ones(5), size=(3, 1, 2)), rng.dirichlet(np.ones(5), size=(4, 1))
    assert jensen_shannon(p, q).shape == (3, 4, 2)
    assert jensen_shannon(p, q)[1, 2, 0] == pytest.approx(jensen_shannon(p[1, 0, 0], q[2, 0]))


@given(st.floats(0, 1), st.floats(0, 1))
def test_total_variation_of_a_sigmoid_is_its_change(p, q):
    assert total_variation(bernoulli(p), bernoulli(q)) == pytest.approx(abs(p - q))


@pytest.mark.parametrize(
    ("p", "message"),
    [
        (0.7, "p must have outcomes on its last axis"),
        ([0.7], "p must add up to 1 .* got 0.7 .*bernoulli"),
        ([0.5, 0.4], "p must add up to 1"),
        ([1.2, -0.2], "p must hold probabilities"),
        ([np.nan, 1.0], "p must hold probabilities"),
        ([0.2, 0.3, 0.5], "same outcomes; got 3 and 2"),
    ],
)
def test_what_is_no_distribution_is_refused(p, message):
    for divergence in (jensen_shannon, total_variation):
        with pytest.raises(ValueError, match=message):
            divergence(p, [0.5, 0.5])


def test_single_precision_rows_are_accepted():
    row = np.random.default_rng(0).dirichlet(np.ones(8192)).astype(np.float32)
    assert jensen_shannon(row, row) == 0
