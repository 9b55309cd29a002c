import numpy as np
import pytest
from numpy.testing import assert_allclose, assert_array_equal
from scipy import stats

from interp.statistics import mean_interval, resampling, simultaneous_lower


def bootstrap_t_by_hand(x, level, n_resamples, seed):
    """One column, one resample after the other, with NumPy's own mean and standard deviation."""
    rng = np.random.default_rng(seed)
    error, ts = x.std(ddof=1) / np.sqrt(len(x)), []
    for _ in range(n_resamples):
        drawn = rng.choice(x, size=len(x))
        ts.append((drawn.mean() - x.mean()) / max(drawn.std(ddof=1) / np.sqrt(len(x)), 0.1 * error))
    low, high = np.quantile(ts, [(1 - level) / 2, (1 + level) / 2])
    return x.mean() - high * error, x.mean() - low * error


def test_bootstrap_is_that_of_a_loop():
    x = np.random.default_rng(1).beta(0.5, 4, size=24)
    interval = mean_interval(x, level=0.9, n_resamples=40_000, seed=3)
    low, high = bootstrap_t_by_hand(x, 0.9, 20_000, seed=4)
    width = high - low
    assert_allclose([interval.low, interval.high], [low, high], atol=0.03 * width)  # 40,000 draws: 1% of the width
    assert interval.value == pytest.approx(x.mean())
    assert interval.n == 24


def test_few_units_take_students_t():
    x = np.random.default_rng(0).normal(size=(15, 4))
    low, high = stats.t.interval(0.8, 14, loc=x.mean(0), scale=stats.sem(x, axis=0))
    interval = mean_interval(x, level=0.8)
    assert_allclose(interval.low, low)
    assert_allclose(interval.high, high)


@pytest.mark.parametrize("draw", ["normal", "skewed"])
def test_intervals_cover_the_true_mean(draw):
    rng = np.random.default_rng(0)
    n_columns = 2000
    x = rng.normal(size=(24, n_columns)) if draw == "normal" else rng.beta(0.3, 3, size=(24, n_columns))
    mean = 0.0 if draw == "normal" else 0.3 / 3.3
    interval = mean_interval(x, n_resamples=1000)
    covered = ((interval.low <= mean) & (mean <= interval.high)).mean()
    # 2000 columns: sd 0.5%; the percentile bootstrap covers 93% and 89% here
    assert 0.935 <= covered <= 0.97


def test_missing_sequences_are_left_out_per_column():
    rng = np.random.default_rng(0)
    x = rng.normal(size=(40, 3))
    holed = x.copy()
    holed[:20, 1] = np.nan
    holed[1:, 2] = np.nan
    interval = mean_interval(holed, n_resamples=20_000)
    alone = mean_interval(x[20:, 1], n_resamples=20_000)
    assert interval.n.tolist() == [40, 20, 1]
    assert_allclose(interval.value, [x[:, 0].mean(), x[20:, 1].mean(), x[0, 2]])
    width = float(alone.high - alone.low)
    assert_allclose([interval.low[1], interval.high[1]], [alone.low, alone.high], atol=0.05 * width)
    assert np.isnan([interval.low[2], interval.high[2]]).all()


def test_a_column_without_values_is_nan():
    interval = mean_interval(np.full((20, 2), np.nan))
    assert np.isnan([interval.value, interval.low, interval.high]).all()
    assert interval.n.tolist() == [0, 0]


def test_windows_of_one_document_are_one_observation():
    rng = np.random.default_rng(0)
    of_document = rng.normal(size=(20, 3))
    windows = np.repeat(of_document, 5, axis=0)
    labels = np.repeat(np.arange(20), 5)
    for got, expected in zip(mean_interval(windows, labels), mean_interval(of_document), strict=True):
        assert_allclose(got, expected)


def test_a_column_does_not_depend_on_its_neighbours_nor_on_blocks(monkeypatch):
    x = np.random.default_rng(0).normal(size=(17, 2, 9))
    whole = mean_interval(x, n_resamples=500)
    assert whole.low.shape == (2, 9)
    monkeypatch.setattr(resampling, "_ELEMENTS", 1600)  # blocks of 3 columns, draws in pieces of 94
    for got, expected in zip(mean_interval(x, n_resamples=500), whole, strict=True):
        assert_allclose(got, expected)
    assert_allclose(mean_interval(x[:, 1, 4], n_resamples=500).low, whole.low[1, 4])


def test_same_seed_same_ends():
    x = np.random.default_rng(0).normal(size=(20, 5))
    assert_array_equal(mean_interval(x, seed=7).low, mean_interval(x, seed=7).low)
    assert (mean_interval(x, seed=7).low != mean_interval(x, seed=8).low).any()
    assert_array_equal(simultaneous_lower(x, seed=7), simultaneous_lower(x, seed=7))


def test_equal_values_have_a_point_for_an_interval():
    for n in (3, 40):
        interval = mean_interval(np.full(n, 0.1))
        assert interval.low == interval.value == interval.high
        assert simultaneous_lower(np.full(n, 0.1)) == interval.value


def test_ends_stay_within_bounds():
    x = np.zeros(20)
    x[0] = 1.0
    assert mean_interval(x).low < 0
    interval = mean_interval(x, bounds=(0, 1))
    assert interval.low == 0
    assert interval.high <= 1
    assert simultaneous_lower(x, bounds=(0, 1)) == 0
    with pytest.raises(ValueError, match="within bounds, 0 to 1; got 0 to 2"):
        mean_interval(2 * x, bounds=(0, 1))


@pytest.mark.parametrize("level", [0, 1, 95])
def test_level_is_a_probability(level):
    for interval in (mean_interval, simultaneous_lower):
        with pytest.raises(ValueError, match="level must lie between 0 and 1"):
            interval(np.zeros(4), level=level)


@pytest.mark.parametrize(("n", "correlation"), [(8, 0.0), (16, 0.0), (32, 0.0), (32, 0.7)])
def test_lower_ends_hold_for_all_heads_at_once(n, correlation):
    rng = np.random.default_rng(0)
    n_trials, n_heads, missed = 400, 50, 0
    for _ in range(n_trials):
        shared, own = rng.normal(size=(n, 1)), rng.normal(size=(n, n_heads))
        x = np.sqrt(correlation) * shared + np.sqrt(1 - correlation) * own
        missed += (simultaneous_lower(x, level=0.9, n_resamples=500) > 0).any()
    # sd 1.5%; each head by itself would miss in all but 1% of the trials (0.9^50)
    assert 0.85 <= 1 - missed / n_trials <= 0.985


def test_lower_ends_of_independent_normal_heads_are_near_the_closed_form():
    n, n_heads = 200, 30
    x = np.random.default_rng(0).normal(size=(n, n_heads))
    factor = (x.mean(0) - simultaneous_lower(x)) / stats.sem(x, axis=0)
    assert_allclose(factor, factor[0])  # one for all heads
    assert factor[0] == pytest.approx(stats.t.ppf(0.95 ** (1 / n_heads), n - 1), rel=0.06)


def test_heads_with_few_sequences_take_bonferronis_t():
    x = np.random.default_rng(0).normal(size=(20, 10))
    x[6:, :4] = np.nan
    low = simultaneous_lower(x)
    few = x[:6, :4]
    assert_allclose(low[:4], few.mean(0) - stats.t.ppf(1 - 0.05 / 10, 5) * stats.sem(few, axis=0))
    factor = (x[:, 4:].mean(0) - low[4:]) / stats.sem(x[:, 4:], axis=0)
    assert_allclose(factor, factor[0])


def test_a_head_with_one_sequence_has_no_lower_end_and_takes_no_share():
    x = np.random.default_rng(0).normal(size=(10, 3))
    with_single = x.copy()
    with_single[1:, 0] = np.nan
    low = simultaneous_lower(with_single)
    assert np.isnan(low[0])
    assert_allclose(low[1:], simultaneous_lower(x[:, 1:]))


def test_one_odd_sequence_in_one_head_does_not_swamp_the_others():
    rng = np.random.default_rng(0)
    x = 0.5 + 0.05 * rng.normal(size=(32, 20))
    x[:, 0] = 0.9 + 1e-6 * rng.normal(size=32)
    x[3, 0] = 0.1  # resamples without it have next to no spread
    assert (simultaneous_lower(x)[1:] > 0.35).all()


@pytest.mark.parametrize("n", [3, 15, 40])
def test_shares_of_events_have_the_exact_interval_of_a_binomial(n):
    x = (np.arange(n)[:, None] < [0, 1, n - 1, n]).astype(float)
    interval, lower = mean_interval(x, level=0.9, events=True), simultaneous_lower(x, level=0.9, events=True)
    for column, happened in enumerate((0, 1, n - 1, n)):
        ends = stats.binomtest(happened, n).proportion_ci(0.9, method="exact")
        assert_allclose([interval.low[column], interval.high[column]], [ends.low, ends.high])
        one_sided = stats.binomtest(happened, n, alternative="greater").proportion_ci(1 - 0.1 / 4, method="exact")
        assert lower[column] == pytest.approx(one_sided.low)


def test_what_happened_in_all_units_is_not_certain():
    rng = np.random.default_rng(0)
    x = (rng.random((16, 2000)) < 0.9).astype(float)
    interval = mean_interval(x, events=True)
    assert ((interval.low <= 0.9) & (interval.high >= 0.9)).mean() >= 0.95  # as a mass: 0.8, its 1s are points
    trials = (rng.random((200, 16, 40)) < 0.9).astype(float)
    assert np.mean([(simultaneous_lower(x, events=True) <= 0.9).all() for x in trials]) >= 0.95  # as masses: 0


def test_shares_of_events_that_are_no_yes_or_no_take_the_intervals_of_means():
    rng = np.random.default_rng(0)
    x = rng.integers(0, 4, (20, 5)) / 3
    x[:, 4] = np.nan
    x[0, 4] = 1.0
    mean, shares = mean_interval(x, bounds=(0, 1)), mean_interval(x, events=True)
    for field in ("value", "low", "high", "n"):
        assert_array_equal(getattr(shares, field), getattr(mean, field))
    assert_array_equal(simultaneous_lower(x, events=True), simultaneous_lower(x, bounds=(0, 1)))
    wide = mean_interval([0.0, 1.0, 1 / 3], events=True)  # Student's t alone goes from −0.8 to 1.7
    assert (float(wide.low), float(wide.high)) == (0.0, 1.0)
    holed = np.where(np.arange(20)[:, None] < 6, [[1.0]], np.nan)
    assert mean_interval(holed, events=True).low[0] == pytest.approx(0.025 ** (1 / 6))
