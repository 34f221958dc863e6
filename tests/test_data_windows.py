"""What each frame may be used for: the table of METHODS 1.4, row by row."""

import numpy as np
import pytest
from data_sample import episode

from robo_rl.credit.kinds import efficiency_ok, outcome_labels
from robo_rl.data import find_windows, read_episodes, write_episodes
from robo_rl.data.windows import WindowKind, kinds, segments, suffix
from robo_rl.types import Controller, Outcome

P, H, S, X = Controller.POLICY, Controller.HUMAN, Controller.SCRIPT, Controller.PAUSED
LETTERS = {
    WindowKind.DEMO: "D",
    WindowKind.AUTONOMOUS_SUCCESS: "A",
    WindowKind.AUTONOMOUS_FAILURE: "a",
    WindowKind.PRE_INTERVENTION: "P",
    WindowKind.INTERVENTION: "I",
    WindowKind.SUFFIX_SUCCESS: "S",
    WindowKind.SUFFIX_FAILURE: "s",
    WindowKind.EXCLUDED: "-",
}


def driven(controllers: str, outcome: Outcome, number: int = 0):
    steps = np.array([{"P": P, "H": H, "S": S, "X": X}[letter] for letter in controllers], np.int8)
    return episode(number, len(steps), images={}, controller=steps, outcome=outcome)


@pytest.mark.parametrize(
    ("controllers", "outcome", "expected"),
    [
        # fully autonomous: the whole trajectory carries the outcome
        ("PPPP", Outcome.SUCCESS, "AAAA"),
        ("PPPP", Outcome.FAILURE, "aaaa"),
        ("PPPP", Outcome.TIMEOUT, "aaaa"),
        ("PPPP", Outcome.UNKNOWN, "----"),
        ("PPPP", Outcome.ABORT, "----"),
        # mixed: what the policy did before or between interventions has no label
        ("PPHHPP", Outcome.SUCCESS, "PPIISS"),
        ("PPHHPP", Outcome.FAILURE, "PPIIss"),
        ("PPHHPP", Outcome.TIMEOUT, "PPIIss"),
        ("PHPHP", Outcome.SUCCESS, "PIPIS"),
        # nobody knows how it ended: the person's steps are still good examples
        ("PPHHPP", Outcome.UNKNOWN, "PPII--"),
        ("PPHHPP", Outcome.ABORT, "------"),
        # the person finishes the task: no suffix, hence no label from this episode
        ("PPHH", Outcome.SUCCESS, "PPII"),
        # the person begins
        ("HHPP", Outcome.SUCCESS, "IISS"),
        # a script that corrects a policy intervenes like a person
        ("PSSP", Outcome.SUCCESS, "PIIS"),
        # demonstrations; those that are known to have failed are not imitated
        ("HHHH", Outcome.SUCCESS, "DDDD"),
        ("SSSS", Outcome.SUCCESS, "DDDD"),
        ("HHHH", Outcome.UNKNOWN, "DDDD"),
        ("HHHH", Outcome.FAILURE, "----"),
        ("SSSS", Outcome.TIMEOUT, "----"),
        ("HHHH", Outcome.ABORT, "----"),
        # pauses are never used, and are no intervention
        ("PPXPP", Outcome.SUCCESS, "AA-AA"),
        ("PXHXP", Outcome.SUCCESS, "P-I-S"),
        ("HXXH", Outcome.SUCCESS, "D--D"),
        ("XXXX", Outcome.SUCCESS, "----"),
    ],
)
def test_kinds(controllers, outcome, expected):
    found = kinds(driven(controllers, outcome))
    assert found.dtype == np.int8
    assert "".join(LETTERS[WindowKind(kind)] for kind in found) == expected


def test_segments_are_runs_of_one_controller():
    assert segments(np.array([0, 0, 1, 1, 0, 3], np.int8)).tolist() == [0, 0, 1, 1, 2, 3]
    assert segments(np.array([2], np.int8)).tolist() == [0]


def test_the_suffix_is_the_policy_after_the_last_intervention():
    assert suffix(np.array([P, H, P, H, X, P, P], np.int8)).tolist() == [False] * 5 + [True] * 2
    assert not suffix(np.array([P, P], np.int8)).any()
    assert not suffix(np.array([P, H], np.int8)).any()


@pytest.fixture(scope="module")
def episodes(tmp_path_factory):
    root = tmp_path_factory.mktemp("datasets") / "windows"
    recorded = [
        driven("PPHHPP", Outcome.SUCCESS, 0),  # rows 0 to 6
        driven("PPP", Outcome.FAILURE, 1),  # rows 7 to 10
        driven("SSS", Outcome.SUCCESS, 2),  # rows 11 to 14
        driven("PXP", Outcome.ABORT, 3),  # rows 15 to 18
        driven("PPHH", Outcome.SUCCESS, 4),  # rows 19 to 23
    ]
    write_episodes(root, recorded)
    return read_episodes(root)


def flags(text: str) -> list[bool]:
    return [letter == "1" for letter in text.replace(" ", "")]


def test_masks_of_a_dataset(episodes):
    w = find_windows(episodes)
    letters = "".join(LETTERS[WindowKind(kind)] for kind in w.kind)
    assert letters == "PPIISS-" + "aaa-" + "DDD-" + "----" + "PPII-"
    assert w.kind.dtype == np.int8
    assert w.segment.tolist() == [0, 0, 1, 1, 2, 2, 2, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1, 2, 2, 0, 0, 1, 1, 1]
    assert w.suffix.tolist() == flags("0000110 0000 0000 0000 00000")
    assert w.outcome_ok.tolist() == flags("0000110 1110 0000 0000 00000")
    # a step has a successor unless the controller changes after it; the final observation is a successor, and has none
    assert w.td_ok.tolist() == flags("1010110 1110 1110 0000 10110")
    assert w.actor_ok.tolist() == flags("0011110 1110 1110 0000 00110")


def test_masks_agree_with_the_labels_that_credit_takes(episodes):
    w = find_windows(episodes)
    np.testing.assert_array_equal(w.outcome_ok, ~np.isnan(outcome_labels(w.kind)))
    success = np.array([one.success for one in episodes])[episodes.episode_of_frame]
    # interventions teach the efficiency head only where the episode succeeded (0 and 4); so does the suffix of 0
    assert efficiency_ok(w.kind, success).tolist() == flags("0011110 0000 0000 0000 00110")


def test_no_transition_crosses_an_episode_or_a_controller(episodes):
    w = find_windows(episodes)
    (steps,) = np.nonzero(w.td_ok)
    assert (episodes.episode_of_frame[steps] == episodes.episode_of_frame[steps + 1]).all()
    assert (w.segment[steps] == w.segment[steps + 1]).all()
    for masks in (w.outcome_ok, w.td_ok, w.actor_ok, w.suffix):
        assert masks.shape == (episodes.num_frames,)
        assert not masks[episodes.is_final].any()
