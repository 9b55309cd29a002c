import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.testing import assert_allclose, assert_array_equal

from interp.statistics import halves, unit_means

LABELS = st.lists(st.integers(0, 5), min_size=2, max_size=20)


@given(LABELS, st.integers(0, 2**32 - 1))
def test_unit_means_are_those_of_a_loop(labels, seed):
    rng = np.random.default_rng(seed)
    values = rng.normal(size=(len(labels), 2, 3))
    values[rng.random(values.shape) < 0.3] = np.nan
    means = unit_means(values, labels)
    for row, label in enumerate(dict.fromkeys(labels)):  # in the order of first appearance
        mine = values[np.array(labels) == label]
        for head in np.ndindex(2, 3):
            known = [v for v in mine[(slice(None), *head)] if not np.isnan(v)]
            assert_allclose(means[(row, *head)], np.mean(known) if known else np.nan)


def test_every_document_weighs_the_same():
    assert unit_means([0.0, 0.0, 0.0, 1.0], ["long", "long", "long", "short"]).mean() == 0.5


def test_units_may_be_names_numbers_or_tensors():
    torch = pytest.importorskip("torch")
    expected = [2.0, 2.0]
    for labels in (["b", "a", "b"], [7, 1, 7], torch.tensor([7, 1, 7]), np.array([7, 1, 7])):
        assert_array_equal(unit_means([1.0, 2.0, 3.0], labels), expected)


@pytest.mark.parametrize(
    ("values", "units", "message"),
    [
        (1.0, None, "at least one sequence"),
        ([], None, "at least one sequence"),
        ([1.0, np.inf], None, r"infinity at \[1\]"),
        ([1.0, 2.0], ["a"], "one label per sequence, 2; got shape \\[1\\]"),
    ],
)
def test_unusable_values_are_refused(values, units, message):
    with pytest.raises(ValueError, match=message):
        unit_means(values, units)


@given(LABELS, st.integers(0, 99))
def test_halves_keep_units_together_and_are_even(labels, seed):
    labels = [*labels, 98, 99]
    first, second = halves(labels, seed)
    assert sorted([*first, *second]) == list(range(len(labels)))
    units = [{labels[i] for i in half} for half in (first, second)]
    assert not units[0] & units[1]
    assert abs(len(units[0]) - len(units[1])) <= 1


def test_halves_repeat_for_a_seed_and_differ_between_seeds():
    assert_array_equal(halves(20, 1)[0], halves(20, 1)[0])
    assert any((halves(20, 1)[0] != halves(20, seed)[0]).any() for seed in range(2, 5))


def test_one_unit_has_no_halves():
    with pytest.raises(ValueError, match="at least 2 units"):
        halves(["a", "a"], 0)
