"""Normalisation, effective sample size, smoothing and look ahead by hand."""

import math

import numpy as np
import pytest

from robo_rl.credit.normalise import effective_sample_size, unit_mean, weight_entropy, weight_summary
from robo_rl.credit.segments import frame_deltas, look_ahead
from robo_rl.credit.smoothing import smooth_within_episodes
from robo_rl.errors import DataError


def test_unit_mean_is_over_the_valid_samples():
    # valid 1 and 3, mean 2 -> .5, 1.5; the third is not valid and gets 0, not 7 / 2
    valid = np.array([True, True, False])
    np.testing.assert_allclose(unit_mean(np.array([1.0, 3, 7]), valid), [0.5, 1.5, 0])
    # a mask that is forgotten changes the scale: 11 / 3
    np.testing.assert_allclose(unit_mean(np.array([1.0, 3, 7])), np.array([1, 3, 7]) * 3 / 11)


def test_unit_mean_per_batch_would_not_be_the_same():
    # two batches [1, 3] and [10, 10]: per batch a weight of 10 and one of 1 .. 3 become equal on average
    weight = np.array([1.0, 3, 10, 10])
    per_batch = np.concatenate([unit_mean(weight[:2]), unit_mean(weight[2:])])
    assert unit_mean(weight)[3] / unit_mean(weight)[0] == pytest.approx(10)
    assert per_batch[3] / per_batch[0] == pytest.approx(2)


def test_effective_sample_size_and_entropy_by_hand():
    # (1 + 2 + 3)^2 / (1 + 4 + 9) = 36 / 14
    assert effective_sample_size(np.array([1.0, 2, 3])) == pytest.approx(36 / 14)
    assert effective_sample_size(np.ones(7)) == pytest.approx(7)
    assert effective_sample_size(np.array([0.0, 5])) == 1
    # shares 1/4, 3/4: ln 4 - (3/4) ln 3
    assert weight_entropy(np.array([1.0, 3, 0])) == pytest.approx(math.log(4) - 0.75 * math.log(3))
    assert weight_entropy(np.ones(8)) == pytest.approx(math.log(8))


def test_summary_by_hand():
    summary = weight_summary(np.array([0.0, 1, 2, 9]), np.array([True, True, True, False]))
    # ess (0 + 1 + 2)^2 / 5 = 1.8 of 3 samples
    assert summary["samples"] == 3
    assert summary["positive"] == pytest.approx(2 / 3)
    assert summary["mean"] == pytest.approx(1)
    assert summary["max"] == 2
    assert summary["ess"] == pytest.approx(1.8)
    assert summary["ess_share"] == pytest.approx(0.6)


@pytest.mark.parametrize(
    ("weight", "words"),
    [
        ([0.0, 0.0], "no sample has positive weight: 2 of 2 samples are valid, all are 0"),
        ([], "no sample has positive weight"),
        ([1.0, -1.0], "sample 1"),
        ([np.nan, 1.0], "sample 0"),
        ([np.inf, 1.0], "sample 0"),
    ],
)
def test_weights_that_cannot_be_used(weight, words):
    for function in (unit_mean, effective_sample_size, weight_entropy):
        with pytest.raises(DataError, match=words):
            function(np.array(weight))


def test_smoothing_leaves_a_countdown_alone_and_never_mixes_episodes():
    lengths = np.array([9, 1, 6])
    lines = np.concatenate([-np.arange(8, -1, -1.0), [100.0], -np.arange(5, -1, -1.0)])
    np.testing.assert_allclose(smooth_within_episodes(lines, lengths, 5), lines)


def test_smoothing_by_hand():
    # width 3: ends keep their value (window shrinks to 1), the middle is (0 + 9 + 3) / 3
    assert smooth_within_episodes(np.array([0.0, 9, 3]), np.array([3]), 3).tolist() == [0, 4, 3]
    # width 5 of five rows: rows 1 and 3 have room for 3 only
    smoothed = smooth_within_episodes(np.array([5.0, 0, 0, 0, 10]), np.array([5]), 5)
    np.testing.assert_allclose(smoothed, [5, 5 / 3, 3, 10 / 3, 10])
    assert smooth_within_episodes(np.array([1.0, 2]), np.array([2]), 1).tolist() == [1, 2]
    with pytest.raises(DataError, match="odd"):
        smooth_within_episodes(np.zeros(4), np.array([4]), 2)


def test_smoothing_reduces_noise_by_the_width():
    # the variance of a mean of 9 independent values is a ninth
    noise = np.random.default_rng(0).normal(size=20_000)
    smoothed = smooth_within_episodes(noise, np.array([20_000]), 9)
    assert smoothed.var() == pytest.approx(1 / 9, rel=0.1)


def test_look_ahead_by_hand():
    ids = np.array([4, 4, 4, 7, 7])
    assert look_ahead(ids, 2, 5).tolist() == [2, 2, 2, 5, 5]
    assert look_ahead(ids, 2, 4).tolist() == [2, 2, 2, 4, 4]


def test_frame_deltas_at_the_end_of_an_episode():
    values, lengths = np.array([0.0, 1, 3, 6, 5.0, 9]), np.array([4, 2])
    # hop 2, rows 0-3: 3, 5, then the look ahead stops: 6 - 3, 0; rows 4-5: 4, 0
    assert frame_deltas(values, lengths, 2, end="clamp").tolist() == [3, 5, 3, 0, 4, 0]
    # the last two rows take the last window 6 - 1 = 5; the short episode its gain of 4 in one row, times 2
    assert frame_deltas(values, lengths, 2, end="last_window").tolist() == [3, 5, 5, 5, 8, 8]
    with pytest.raises(DataError, match="sum to 5"):
        frame_deltas(values, np.array([4, 1]), 2, end="clamp")
    with pytest.raises(DataError, match="end must be"):
        frame_deltas(values, lengths, 2, end="wrap")
