"""Intervals and tests by hand, and against scipy."""

import math

import numpy as np
import pytest
from scipy import stats

from robo_rl.errors import DataError
from robo_rl.statistics import (
    auroc,
    bootstrap_mean_interval,
    brier,
    mcnemar_exact,
    paired_difference_interval,
    pearson,
    wilson_interval,
)


def outcomes(both, only_a, only_b, neither):
    a = [1] * both + [1] * only_a + [0] * only_b + [0] * neither
    b = [1] * both + [0] * only_a + [1] * only_b + [0] * neither
    return np.array(a), np.array(b)


def test_wilson_by_hand():
    # 1 of 2 at z = 1.959964, z^2 = 3.841459: centre .5; half = z sqrt(.25/2 + z^2/16) / (1 + z^2/2)
    # = 1.959964 * sqrt(.125 + .240091) / 2.920729 = .405474
    rate = wilson_interval(1, 2)
    assert rate.value == 0.5
    assert rate.low == pytest.approx(0.094526, abs=1e-5)
    assert rate.high == pytest.approx(0.905474, abs=1e-5)
    assert rate.count == 2


@pytest.mark.parametrize(("k", "n"), [(0, 7), (7, 7), (3, 50), (109, 300), (1, 1)])
@pytest.mark.parametrize("confidence", [0.8, 0.95, 0.99])
def test_wilson_agrees_with_scipy(k, n, confidence):
    theirs = stats.binomtest(k, n).proportion_ci(confidence, method="wilson")
    ours = wilson_interval(k, n, confidence)
    assert (ours.low, ours.high) == pytest.approx((theirs.low, theirs.high), abs=1e-12)


def test_a_rate_of_no_trials_is_not_zero():
    rate = wilson_interval(0, 0)
    assert math.isnan(rate.value)
    assert math.isnan(rate.low)
    assert not rate.defined
    assert rate.reason == "no trials"
    with pytest.raises(DataError, match="3 of 2"):
        wilson_interval(3, 2)
    with pytest.raises(DataError, match="confidence"):
        wilson_interval(1, 2, 95)


def test_mcnemar_by_hand():
    # 1 against 5: p = 2 (C(6,0) + C(6,1)) / 2^6 = 14 / 64
    test = mcnemar_exact(*outcomes(3, 1, 5, 2))
    assert (test.both, test.only_a, test.only_b, test.neither) == (3, 1, 5, 2)
    assert test.p_value == pytest.approx(14 / 64)


@pytest.mark.parametrize(("b", "c"), [(0, 1), (4, 4), (10, 31), (12, 3), (0, 9)])
def test_mcnemar_agrees_with_scipy(b, c):
    assert mcnemar_exact(*outcomes(5, b, c, 5)).p_value == pytest.approx(stats.binomtest(b, b + c).pvalue)


def test_mcnemar_without_differences_and_without_pairs():
    assert mcnemar_exact(*outcomes(4, 0, 0, 3)).p_value == 1
    empty = mcnemar_exact(np.array([]), np.array([]))
    assert math.isnan(empty.p_value)
    assert empty.reason == "no pairs"
    with pytest.raises(DataError, match="3 results against 2"):
        mcnemar_exact(np.ones(3), np.ones(2))
    with pytest.raises(DataError, match="number 1 is 2"):
        mcnemar_exact(np.array([1, 2]), np.array([1, 0]))


def test_paired_difference_is_newcombes_published_example():
    # Newcombe 1998 (paired), table III, method 10: 36, 12, 2, 0 of 50 -> .2 (.0569, .3404)
    interval = paired_difference_interval(*outcomes(36, 12, 2, 0))
    assert interval.value == pytest.approx(0.2)
    assert (round(interval.low, 4), round(interval.high, 4)) == (0.0569, 0.3404)


def test_paired_difference_by_hand_with_agreeing_pairs():
    # 10, 2, 1, 7 of 20: rates .6 and .55. phi: 70 - 2 = 68, corrected 68 - 10 = 58, over
    # sqrt(12 * 8 * 11 * 9) = 97.488; phi = .594945. Wilson from scipy; then the square-and-add formula
    interval = paired_difference_interval(*outcomes(10, 2, 1, 7))
    a = stats.binomtest(12, 20).proportion_ci(0.95, method="wilson")
    b = stats.binomtest(11, 20).proportion_ci(0.95, method="wilson")
    phi = 58 / math.sqrt(12 * 8 * 11 * 9)
    down, up = (0.6 - a.low, b.high - 0.55), (a.high - 0.6, 0.55 - b.low)
    low = 0.05 - math.sqrt(down[0] ** 2 - 2 * phi * down[0] * down[1] + down[1] ** 2)
    high = 0.05 + math.sqrt(up[0] ** 2 - 2 * phi * up[0] * up[1] + up[1] ** 2)
    assert (interval.low, interval.high) == pytest.approx((low, high))
    # pairing narrows it: the interval without phi is wider
    assert interval.high - interval.low < math.hypot(*down) + math.hypot(*up)


def test_paired_difference_changes_sign_with_the_order():
    a, b = outcomes(20, 9, 3, 8)
    forward, backward = paired_difference_interval(a, b), paired_difference_interval(b, a)
    assert (forward.value, forward.low, forward.high) == pytest.approx((-backward.value, -backward.high, -backward.low))


def test_paired_bootstrap_agrees_with_newcombe_for_many_pairs():
    a, b = outcomes(400, 90, 40, 470)
    exact = paired_difference_interval(a, b)
    drawn = paired_difference_interval(a, b, method="bootstrap", rng=np.random.default_rng(0))
    assert (drawn.value, exact.value) == pytest.approx((0.05, 0.05))
    assert (drawn.low, drawn.high) == pytest.approx((exact.low, exact.high), abs=0.004)
    with pytest.raises(DataError, match="rng"):
        paired_difference_interval(a, b, method="bootstrap")
    assert paired_difference_interval(np.array([]), np.array([])).reason == "no pairs"


def test_bootstrap_of_independent_values_is_the_normal_interval():
    values = np.random.default_rng(1).normal(3, 2, 2000)
    interval = bootstrap_mean_interval(values, rng=np.random.default_rng(2), resamples=4000)
    half = 1.96 * values.std() / math.sqrt(2000)
    assert interval.value == values.mean()
    assert interval.high - interval.low == pytest.approx(2 * half, rel=0.05)


def test_bootstrap_redraws_episodes_not_frames():
    # 20 episodes of 50 equal frames hold 20 facts, not 1000: the interval is sqrt(50) = 7.07 times as wide
    per_episode = np.random.default_rng(3).normal(size=20)
    values, clusters = np.repeat(per_episode, 50), np.repeat(np.arange(20), 50)
    wide = bootstrap_mean_interval(values, clusters, rng=np.random.default_rng(4), resamples=4000)
    narrow = bootstrap_mean_interval(values, rng=np.random.default_rng(4), resamples=4000)
    assert (wide.high - wide.low) / (narrow.high - narrow.low) == pytest.approx(math.sqrt(50), rel=0.1)
    assert wide.count == 20


def test_bootstrap_weighs_clusters_by_their_size():
    # clusters 0 (three values of 1) and 1 (one value of 0): mean .75; a draw is 1, .75 or 0 at 1:2:1
    interval = bootstrap_mean_interval(np.array([1.0, 1, 1, 0]), np.array([7, 7, 7, 9]), rng=np.random.default_rng(0))
    assert (interval.value, interval.low, interval.high) == (0.75, 0, 1)
    # the middle half of the draws holds one of each: .75, not the mean .5 of the two clusters' means
    middle = bootstrap_mean_interval(
        np.array([1.0, 1, 1, 0]), np.array([7, 7, 7, 9]), 0.3, rng=np.random.default_rng(0)
    )
    assert (middle.low, middle.high) == (0.75, 0.75)


def test_bootstrap_of_nothing_and_of_one_cluster():
    rng = np.random.default_rng(0)
    assert math.isnan(bootstrap_mean_interval(np.array([]), rng=rng).value)
    one = bootstrap_mean_interval(np.array([1.0, 3]), np.array([0, 0]), rng=rng)
    assert one.value == 2
    assert math.isnan(one.low)
    assert "one cluster" in one.reason
    with pytest.raises(DataError, match="number 1 is nan"):
        bootstrap_mean_interval(np.array([1.0, math.nan]), rng=rng)


def test_bootstrap_repeats_with_its_seed():
    values = np.random.default_rng(0).normal(size=50)
    first, second = (bootstrap_mean_interval(values, rng=np.random.default_rng(5)) for _ in range(2))
    assert first == second


def test_auroc_by_hand():
    # successes 3, 2; failures 2, 1: pairs 3>2, 3>1, 2=2 (half), 2>1: 3.5 of 4
    assert auroc(np.array([3.0, 2, 2, 1]), np.array([1, 1, 0, 0])).value == 3.5 / 4
    assert auroc(np.zeros(4), np.array([1, 1, 0, 0])).value == 0.5
    undefined = auroc(np.array([1.0, 2]), np.array([1, 1]))
    assert math.isnan(undefined.value)
    assert undefined.reason == "2 successes and 0 failures"
    with pytest.raises(DataError, match="number 0 is nan"):
        auroc(np.array([math.nan, 1]), np.array([0, 1]))


def test_outcome_tau_is_two_auroc_minus_one():
    rng = np.random.default_rng(6)
    scores, labels = rng.integers(0, 6, 60).astype(float), rng.integers(0, 2, 60)
    difference = np.sign(scores[labels == 1][:, None] - scores[labels == 0][None, :])
    assert 2 * auroc(scores, labels).value - 1 == pytest.approx(difference.mean())
    mann_whitney = stats.mannwhitneyu(scores[labels == 1], scores[labels == 0]).statistic
    assert auroc(scores, labels).value == pytest.approx(mann_whitney / difference.size)


def test_brier_by_hand():
    # (.2^2 + .5^2) / 2
    assert brier(np.array([0.8, 0.5]), np.array([1, 0])).value == pytest.approx(0.145)
    assert brier(np.array([]), np.array([])).reason == "no labelled samples"
    with pytest.raises(DataError, match=r"number 0 is 1\.5"):
        brier(np.array([1.5]), np.array([1]))


def test_pearson_by_hand():
    # deviations -1, 0, 1 and -1, -1, 2: 3 / sqrt(2 * 6)
    assert pearson(np.array([1.0, 2, 3]), np.array([0.0, 0, 3])).value == pytest.approx(3 / math.sqrt(12))
    constant = pearson(np.array([1.0, 2, 3]), np.full(3, 0.1))
    assert math.isnan(constant.value)
    assert "constant" in constant.reason
    with pytest.raises(DataError, match="number 1 is nan"):
        pearson(np.array([1.0, math.nan]), np.zeros(2))
