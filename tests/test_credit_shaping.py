"""Shaping telescopes; hops round-trip."""

import numpy as np
import pytest

from robo_rl.credit.shaping import (
    consistency_weight,
    fuse_backward,
    fuse_consistent,
    fuse_forward,
    fuse_incremental,
    fuse_mean,
    hop_label,
    shaping_reward,
)
from robo_rl.errors import DataError


def discounted(rewards, gamma, chunk, steps):
    """Sum of gamma^(steps before) r, as an agent that acts in chunks counts it."""
    return sum(gamma ** min(i * chunk, steps) * r for i, r in enumerate(rewards))


@pytest.mark.parametrize("gamma", [1.0, 0.97])
@pytest.mark.parametrize("chunk", [1, 4, 7, 100])
def test_shaping_of_a_finished_episode_telescopes(gamma, chunk):
    # sum_t g^t (g p[t+1] - p[t]) = g^T p[T] - p[0], and p[T] = 0 at a true end: the total is -p[0],
    # whatever the policy did in between, also when the last chunk is cut short (T = 18)
    rng = np.random.default_rng(1)
    potential = rng.uniform(0.1, 1, 19)
    rewards = shaping_reward(potential, gamma=gamma, terminated=True, chunk=chunk)
    assert len(rewards) == -(-18 // chunk)
    assert discounted(rewards, gamma, chunk, 18) == pytest.approx(-potential[0])
    # at a timeout the last state keeps its potential: gamma^T p[T] more
    kept = shaping_reward(potential, gamma=gamma, terminated=False, chunk=chunk)
    assert discounted(kept, gamma, chunk, 18) == pytest.approx(gamma**18 * potential[-1] - potential[0])


def test_known_wrong_shapings_break_the_law():
    potential, gamma = np.array([0.2, 0.5, 0.9, 1.0]), 0.9
    kept = shaping_reward(potential, gamma=gamma, terminated=False)
    # potential kept at a true end: the total depends on where the episode ended
    assert discounted(kept, gamma, 1, 3) != pytest.approx(-0.2)
    # plain differences, without gamma: the total is not gamma^T p[T] - p[0] either
    assert discounted(np.diff(potential), gamma, 1, 3) != pytest.approx(gamma**3 - 0.2)
    # gamma instead of gamma^k over a chunk of 3
    wrong = gamma * potential[3] - potential[0]
    assert shaping_reward(potential, gamma=gamma, terminated=False, chunk=3)[0] != pytest.approx(wrong)


def test_shaping_by_hand_and_leaves_its_input_alone():
    potential = np.array([0.5, 1.0, 0.8])
    # .9 * 1 - .5 = .4; .9 * 0 - 1 = -1 (terminal)
    np.testing.assert_allclose(shaping_reward(potential, gamma=0.9, terminated=True), [0.4, -1])
    assert potential.tolist() == [0.5, 1.0, 0.8]
    with pytest.raises(DataError, match="gamma"):
        shaping_reward(potential, gamma=1.2, terminated=True)


def test_hop_labels_by_hand():
    # .5 -> .75: half of what is left; .5 -> .125: back by three quarters of what was reached
    np.testing.assert_allclose(
        hop_label([0.5, 0.5, 1.0, 0.0, 1.0], [0.75, 0.125, 1.0, 0.0, 0.0]), [0.5, -0.75, 0, 0, -1]
    )


def test_hops_round_trip_the_potential():
    rng = np.random.default_rng(0)
    phi = np.concatenate([[0.0], rng.uniform(0, 1, 200), [1.0, 0.0, 1.0]])
    hops = hop_label(phi[:-1], phi[1:])
    np.testing.assert_allclose(fuse_incremental(hops), phi, atol=1e-12)
    np.testing.assert_allclose(fuse_forward(hop_label(np.zeros(len(phi)), phi)), phi)
    np.testing.assert_allclose(fuse_backward(hop_label(np.ones(len(phi)), phi)), phi)
    # all three agree, so does their mean, and full trust (w = 1) keeps it
    np.testing.assert_allclose(fuse_mean(phi, phi, phi), phi)
    np.testing.assert_allclose(fuse_consistent(phi, phi, hops, alpha=3.0), phi, atol=1e-12)


def test_fusion_stays_in_the_unit_interval_for_any_hops():
    rng = np.random.default_rng(2)
    for _ in range(20):
        hops, forward, backward = rng.uniform(-1, 1, 50), rng.uniform(0, 1, 51), rng.uniform(0, 1, 51)
        for phi in (fuse_incremental(hops), fuse_consistent(forward, backward, hops, alpha=1.0)):
            assert ((phi >= 0) & (phi <= 1)).all()
    # adding up hops plainly leaves it: .9 + .9
    assert np.cumsum([0.9, 0.9])[-1] > 1
    assert fuse_incremental(np.array([0.9, 0.9]))[-1] == pytest.approx(0.99)


def test_consistency_by_hand():
    # F .2, B .6: mean .4, D = 1; exp(-2)
    weight = consistency_weight(np.array([0.2, 0.5]), np.array([0.6, 0.5]), alpha=2.0, epsilon=0.0)
    np.testing.assert_allclose(weight, [np.exp(-2), 1])
    # phi_0 = 0, w = 1: .5 * (mean .4 + hop .5 of 1) = .45
    phi = fuse_consistent(np.array([0.0, 0.4]), np.array([0.0, 0.4]), np.array([0.5]), alpha=2.0)
    assert phi[1] == pytest.approx(0.45)


def test_a_frame_whose_views_disagree_moves_nothing():
    phi = fuse_consistent(np.array([0.0, 0.0]), np.array([0.0, 1.0]), np.array([1.0]), alpha=50.0)
    assert phi[1] == pytest.approx(0, abs=1e-12)


def test_hops_outside_their_range_are_named():
    with pytest.raises(DataError, match=r"hop 1 is 1\.5"):
        fuse_incremental(np.array([0.0, 1.5]))
    with pytest.raises(DataError, match="join 2 states"):
        fuse_consistent(np.zeros(3), np.zeros(3), np.zeros(1), alpha=1.0)
