"""TD-success targets: rules by hand, and a chain with a closed form."""

import numpy as np
import pytest

from robo_rl.credit.td import td_success_targets
from robo_rl.errors import DataError
from robo_rl.types import Outcome

P = np.array([0.1, 0.2, 0.3, 0.4, 0.5])  # T = 4


def test_targets_by_hand():
    # hop 2: p2, p3, p4, p4 (the look ahead stops), z
    target, mask = td_success_targets(P, Outcome.SUCCESS)
    assert target.tolist() == [0.3, 0.4, 0.5, 0.5, 1.0]
    assert mask.all()
    assert td_success_targets(P, Outcome.FAILURE)[0].tolist() == [0.3, 0.4, 0.5, 0.5, 0.0]
    assert td_success_targets(P, Outcome.FAILURE, failure_target=0.3)[0][-1] == 0.3


def test_mixing_with_the_outcome():
    # m = .25: .75 p + .25 * 1
    target, _ = td_success_targets(P, Outcome.SUCCESS, hop=1, mc_mix=0.25)
    np.testing.assert_allclose(target, [0.4, 0.475, 0.55, 0.625, 1.0])
    assert td_success_targets(P, Outcome.SUCCESS, mc_mix=1.0)[0].tolist() == [1.0] * 5


def test_a_timeout_is_a_failure_or_bootstraps():
    assert td_success_targets(P, Outcome.TIMEOUT)[0][-1] == 0
    target, mask = td_success_targets(P, Outcome.TIMEOUT, timeout="bootstrap", mc_mix=0.5)
    assert mask.tolist() == [True] * 4 + [False]
    assert target.tolist() == [0.3, 0.4, 0.5, 0.5, 0]  # no share of an outcome that was not seen


@pytest.mark.parametrize("outcome", [Outcome.ABORT, Outcome.UNKNOWN])
def test_no_label_from_an_abort(outcome):
    target, mask = td_success_targets(P, outcome, mc_mix=0.5)
    assert not mask.any()
    assert not target.any()


def test_a_person_in_between_cuts_the_bootstrap_and_the_outcome():
    # policy, person, policy, policy: row 0 cannot look ahead; row 1 is the person's; 2 and 3 look to 4
    by_policy = np.array([True, False, True, True])
    target, mask = td_success_targets(P, Outcome.SUCCESS, mc_mix=0.5, by_policy=by_policy)
    assert mask.tolist() == [False, False, True, True, True]
    np.testing.assert_allclose(target, [0, 0, 0.75, 0.75, 1])
    # two policy segments (a pause between them): the first looks within itself, without the outcome
    target, mask = td_success_targets(P, Outcome.SUCCESS, mc_mix=0.5, segment_ids=np.array([0, 0, 1, 1]))
    assert mask.tolist() == [True, False, True, True, True]
    np.testing.assert_allclose(target, [0.2, 0, 0.75, 0.75, 1])


def test_when_a_person_finishes_the_task_the_policy_gets_no_outcome():
    by_policy = np.array([True, True, True, False])
    target, mask = td_success_targets(P, Outcome.SUCCESS, mc_mix=0.5, by_policy=by_policy)
    assert mask.tolist() == [True, True, False, False, False]
    assert target.tolist() == [0.3, 0.3, 0, 0, 0]  # p2 twice, pure bootstrap


def walks(p_up, size, episodes, rng):
    """Gambler's ruin on 0..size: success at `size`, failure at 0. Lists of visited states."""
    for _ in range(episodes):
        path = [int(rng.integers(1, size))]
        while 0 < path[-1] < size:
            path.append(path[-1] + (1 if rng.random() < p_up else -1))
        yield np.array(path)


def iterate(paths, size, sweeps=400, **options):
    """Tabular fixed point: p[s] = mean of the targets of all visits to s."""
    p = np.full(size + 1, 0.5)
    for _ in range(sweeps):
        total, count = np.zeros(size + 1), np.zeros(size + 1)
        for path in paths:
            outcome = Outcome.SUCCESS if path[-1] == size else Outcome.FAILURE
            target, mask = td_success_targets(p[path], outcome, **options)
            np.add.at(total, path[mask], target[mask])
            np.add.at(count, path[mask], 1)
        updated = np.where(count > 0, total / np.maximum(count, 1), p)
        if np.abs(updated - p).max() < 1e-6:
            break
        p = updated
    return p


@pytest.mark.parametrize("options", [{"hop": 1}, {"hop": 2}, {"hop": 2, "mc_mix": 0.5}])
def test_iterated_targets_reach_the_success_probability_of_a_chain(options):
    # up with probability .6 of 0..6: P(reach 6 before 0 from s) = (1 - r^s) / (1 - r^6), r = .4 / .6
    ratio, size = 0.4 / 0.6, 6
    exact = (1 - ratio ** np.arange(size + 1)) / (1 - ratio**size)
    paths = list(walks(0.6, size, 600, np.random.default_rng(7)))
    p = iterate(paths, size, sweeps=80, **options)
    # 600 episodes, some hundred visits a state: a standard error near .02
    np.testing.assert_allclose(p, exact, atol=0.06)


def test_a_chain_with_wrong_targets_does_not_reach_it():
    # a failure target of .5 (instead of 0) lifts the answer of every state by half its failure rate
    ratio, size = 0.4 / 0.6, 6
    exact = (1 - ratio ** np.arange(size + 1)) / (1 - ratio**size)
    paths = list(walks(0.6, size, 300, np.random.default_rng(7)))
    p = iterate(paths, size, sweeps=80, hop=2, failure_target=0.5)
    np.testing.assert_allclose(p, exact + 0.5 * (1 - exact), atol=0.06)
    assert np.abs(p - exact).max() > 0.2


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"p_target": np.array([0.1, 1.2, 0.3])}, "frame 1 has 1.2"),
        ({"hop": 0}, "hop"),
        ({"mc_mix": 1.5}, "mc_mix"),
        ({"by_policy": np.ones(3, dtype=bool)}, "by_policy"),
        ({"segment_ids": np.zeros(3)}, r"\(2,\)"),
        ({"timeout": "maybe"}, "timeout"),
    ],
)
def test_targets_name_what_is_wrong(change, words):
    arguments = {"p_target": np.array([0.1, 0.2, 0.3]), "outcome": Outcome.SUCCESS} | change
    with pytest.raises(DataError, match=words):
        td_success_targets(**arguments)
