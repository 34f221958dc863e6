"""Baseline weights by hand, and RA-BC against a plain loop."""

import math

import numpy as np
import pytest

from robo_rl.credit.baselines import (
    aw_bc_weights,
    awr_weights,
    demo_only_weights,
    filtered_bc_weights,
    imit_recap_weights,
    plain_bc_weights,
    rabc_weights,
)
from robo_rl.errors import DataError

ALL_KINDS = np.arange(8, dtype=np.int8)  # demo, success, failure, before, intervention, suffix +, suffix -, excluded


def test_weights_by_kind():
    assert plain_bc_weights(ALL_KINDS).tolist() == [1, 1, 1, 1, 1, 1, 1, 0]
    assert filtered_bc_weights(ALL_KINDS).tolist() == [1, 1, 0, 0, 1, 1, 0, 0]
    assert demo_only_weights(ALL_KINDS).tolist() == [1, 0, 0, 0, 0, 0, 0, 0]


def test_awr_by_hand():
    weight = awr_weights(np.array([0.0, 0.5, -1.0, 1e6]), beta=0.5, max_weight=20)
    np.testing.assert_allclose(weight, [1, math.e, math.exp(-2), 20], rtol=1e-6)
    with pytest.raises(DataError, match="beta > 0"):
        awr_weights(np.zeros(1), beta=0)


def test_imit_recap_by_hand():
    # gamma .5: 0 + .5 * 4 - 1 = 1; 0 + .5 * 2 - 4 = -3; -1 + .5 * V(s_T) - 2: at a true end -3, else -1 + 5 - 2 = 2
    values, reward = np.array([1.0, 4, 2, 10]), np.array([0.0, 0, -1])
    assert imit_recap_weights(values, reward, True, gamma=0.5).tolist() == [1, 0, 0]
    assert imit_recap_weights(values, reward, False, gamma=0.5).tolist() == [1, 0, 1]
    # the threshold is met at equality
    assert imit_recap_weights(values, reward, True, gamma=0.5, threshold=1.0).tolist() == [1, 0, 0]
    with pytest.raises(DataError, match=r"\(4,\)"):
        imit_recap_weights(values[:3], reward, True)


def loop_rabc(progress, lengths, hop, kappa=0.01, epsilon=1e-6):
    """Frame by frame, as lerobot's RABCWeights does it before it rescales a batch."""
    bounds, start = [], 0
    for length in lengths:
        bounds += [(start, start + length)] * length
        start += length
    deltas = []
    for index, (_, end) in enumerate(bounds):
        future = index + hop if index + hop < end else end - 1
        missing = math.isnan(progress[index]) or math.isnan(progress[future])
        deltas.append(math.nan if missing else progress[future] - progress[index])
    known = [d for d in deltas if not math.isnan(d)]
    mu = max(sum(known) / len(known), 0.0)
    sigma = max(math.sqrt(sum((d - sum(known) / len(known)) ** 2 for d in known) / len(known)), epsilon)
    weights = []
    for d in deltas:
        if math.isnan(d) or d > kappa:
            weights.append(1.0)
        elif d >= 0:
            weights.append(min(max((d - (mu - 2 * sigma)) / (4 * sigma + epsilon), 0.0), 1.0))
        else:
            weights.append(0.0)
    return weights


@pytest.mark.parametrize("hop", [1, 7, 60])
@pytest.mark.parametrize("slope", [0.02, -0.02])
def test_rabc_equals_a_loop(hop, slope):
    rng = np.random.default_rng(5)
    lengths = np.array([30, 1, 55, 12])
    progress = np.cumsum(rng.normal(slope, 0.02, lengths.sum()))
    progress[[3, 40]] = np.nan
    ours = rabc_weights(progress, lengths, hop=hop, end="clamp", missing="one")
    np.testing.assert_allclose(ours, loop_rabc(progress, lengths, hop), atol=1e-6)


def test_rabc_by_hand():
    # gains over 1 frame .004, .1, -.1, and 0 at the end: mu = .001, s = sqrt(mean square - mu^2)
    progress = np.array([0.0, 0.004, 0.104, 0.004])
    s = math.sqrt((0.004**2 + 0.1**2 + 0.1**2) / 4 - 0.001**2)
    soft = [(gain - (0.001 - 2 * s)) / (4 * s + 1e-6) for gain in (0.004, 0.0)]
    weight = rabc_weights(progress, np.array([4]), hop=1, end="clamp")
    np.testing.assert_allclose(weight, [soft[0], 1, 0, soft[1]], rtol=1e-5)


def test_rabc_keeps_the_frames_that_complete_the_task():
    # progress rises evenly to 1: every frame is as good as the next; lerobot's end gives the last frame a
    # soft weight near 0 because the look ahead has nowhere to go
    progress, lengths = np.tile(np.linspace(0, 1, 101), 3), np.array([101] * 3)
    assert (rabc_weights(progress, lengths, hop=10) == 1).all()
    # gains: .1 in 91 of 101 frames, then .09 .. 0; only the last frame is not above kappa = .01 (.01 is not,
    # by rounding it may be): gain 0 gives (0 - (mu - 2 s)) / 4 s with mu = (91 * .1 + .45) / 101, s as below
    gains = np.append(np.full(91, 0.1), np.arange(9, -1, -1) / 100)
    soft = (2 * gains.std() - gains.mean()) / (4 * gains.std() + 1e-6)
    flawed = rabc_weights(progress, lengths, hop=10, end="clamp")
    assert (flawed[:99] == 1).all()
    assert flawed[100] == pytest.approx(max(soft, 0), abs=1e-5)
    assert flawed[100] < 0.2


def test_a_missing_score_is_an_error_never_one():
    progress = np.array([0.0, np.nan, 1.0])
    with pytest.raises(DataError, match=r"frame 1 \(1 such frames\)"):
        rabc_weights(progress, np.array([3]), hop=1)
    with pytest.raises(DataError, match="frame 1"):
        aw_bc_weights(progress, np.array([3]), hop=1)


def test_aw_bc_equation_5_by_hand():
    # two episodes of 3 frames, hop 1, clamp: gains .2, .4, 0 and .1, -.1, 0: mean .1
    # L_seq = Lbar, so the factor is 1; s^2 = (.01 + .09 + .01 + 0 + .04 + .01) / 6
    progress = np.array([0.0, 0.2, 0.6, 0.0, 0.1, 0.0])
    gains, s = np.array([0.2, 0.4, 0, 0.1, -0.1, 0]), math.sqrt(0.16 / 6)
    lengths = np.array([3, 3])
    weight = aw_bc_weights(progress, lengths, hop=1, variant="eq5", end="clamp")
    np.testing.assert_allclose(weight, (gains - (0.1 - 2 * s)) / (4 * s + 1e-6), rtol=1e-5)
    assert weight[3] == pytest.approx(0.5, abs=1e-5)  # the mean sample
    # hard rules: above kappa 1, at or below 0 nothing
    hard = aw_bc_weights(progress, lengths, hop=1, end="clamp")
    assert hard.tolist() == [1, 1, 0, 1, 0, 0]
    # between the two, the soft weight: kappa .15 leaves .1 at its 0.5
    soft = aw_bc_weights(progress, lengths, hop=1, kappa=0.15, end="clamp")
    np.testing.assert_allclose(soft, [1, 1, 0, 0.5, 0, 0], atol=1e-5)


def test_aw_bc_undoes_the_length_of_an_episode():
    # a linear episode of 20 frames gains .1 of its length in 2 frames, one of 40 in 4: the same speed,
    # relative to its own length; times L_seq / Lbar both gain alike, so every weight is the mean one
    lengths = np.array([21, 41])
    progress = np.concatenate([np.linspace(0, 1, 21), np.linspace(0, 1, 41)])
    # gain per row 1/20 * 21/31 against 1/40 * 41/31: equal up to 21/20 : 41/40
    weight = aw_bc_weights(progress, lengths, hop=1, variant="eq5")
    raw = aw_bc_weights(progress, lengths, hop=1, variant="eq5", fragment=np.array([True, True]))
    gain = np.concatenate([np.full(21, 21 / 20 / 31), np.full(41, 41 / 40 / 31)])
    low, high = gain.mean() - 2 * gain.std(), gain.mean() + 2 * gain.std()
    np.testing.assert_allclose(weight, (gain - low) / (high - low + 1e-6), atol=1e-4)
    # fragments have no factor: gains 1/20 and 1/40
    gain = np.concatenate([np.full(21, 1 / 20), np.full(41, 1 / 40)])
    low, high = gain.mean() - 2 * gain.std(), gain.mean() + 2 * gain.std()
    np.testing.assert_allclose(raw, (gain - low) / (high - low + 1e-6), atol=1e-4)


def test_aw_bc_variant_must_be_known():
    with pytest.raises(DataError, match="variant"):
        aw_bc_weights(np.zeros(3), np.array([3]), variant="eq6")
