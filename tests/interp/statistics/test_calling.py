import numpy as np
from numpy.testing import assert_allclose, assert_array_equal

from interp.statistics import benjamini_hochberg, called, paired_p, simultaneous_lower


def planted(n=32, n_heads=40):
    """Head 0 does it; head 1 does it on the control too; head 2 is unsure; the rest do nothing."""
    rng = np.random.default_rng(0)
    values, control = rng.beta(1, 50, size=(2, n, n_heads))
    values[:, 0] = rng.beta(90, 10, size=n)
    values[:, 1], control[:, 1] = rng.beta(90, 10, size=(2, n))
    values[:, 2] = rng.beta(1, 1, size=n)
    return values, control


def test_only_what_is_sure_and_unlike_its_control_is_called():
    values, control = planted()
    calls = called(values, control, 0.4, bounds=(0, 1))
    assert np.flatnonzero(calls.called).tolist() == [0]
    assert "at least 0.8" in calls.reason[0]
    assert "control is 0.02" in calls.reason[0]
    assert "not told apart from its control" in calls.reason[1]
    assert "is not above 0.4" in calls.reason[2]
    assert "is not above 0.4" in calls.reason[3]


def test_parts_are_those_of_the_single_functions():
    values, control = planted()
    calls = called(values, control, 0.4, seed=5)
    assert_allclose(calls.value, values.mean(0))
    assert_allclose(calls.control, control.mean(0))
    assert_array_equal(calls.low, simultaneous_lower(values, seed=5))
    assert_array_equal(calls.p_corrected, benjamini_hochberg(paired_p(values, control, seed=5)))


def test_trailing_axes_are_kept():
    values, control = planted()
    flat, grid = called(values, control, 0.4), called(values.reshape(32, 4, 10), control.reshape(32, 4, 10), 0.4)
    for one, other in zip(flat, grid, strict=True):
        assert other.shape == (4, 10)
        assert_array_equal(one, other.ravel())


def test_without_a_control_there_is_no_p():
    values, _ = planted()
    calls = called(values, None, 0.4)
    assert np.isnan(calls.p_corrected).all()
    assert np.isnan(calls.control).all()
    assert np.flatnonzero(calls.called).tolist() == [0, 1]
    assert "no control is defined" in calls.reason[0]


def test_too_few_sequences_call_nothing_and_say_so():
    values, control = planted(n=5)
    calls = called(values, control, 0.01)
    assert not calls.called.any()
    assert "too few sequences" in calls.reason[0]


def test_heads_without_values_have_their_reasons():
    values, control = planted()
    values[:, 0] = np.nan
    values[1:, 1] = np.nan
    control[:, 2] = np.nan
    values[:, 2] = 0.9
    calls = called(values, control, 0.4)
    assert not calls.called[:3].any()
    assert calls.reason[0] == "not defined: no sequence has an eligible row"
    assert "single sequence" in calls.reason[1]
    assert "fewer than two sequences are paired" in calls.reason[2]
