"""The doctor: finds what was broken on purpose, and nothing in a sound dataset."""

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from data_sample import episode

from robo_rl.data import write_episodes
from robo_rl.data.doctor import Finding, examine, table
from robo_rl.types import Controller, Outcome, Trajectory

STEPS = 24


def sound(number: int, **changes) -> Trajectory:
    """Actions in [-1, 1], a gripper that opens and closes, a state that moves, both outcomes."""
    outcome = Outcome.SUCCESS if number % 4 < 2 else Outcome.FAILURE
    policy = np.full(STEPS, Controller.POLICY, np.int8)
    return episode(number, STEPS, cameras=("front",), **({"outcome": outcome, "controller": policy} | changes))


def sound_dataset(**changes) -> list[Trajectory]:
    """Twelve episodes; `changes` apply to the second."""
    return [sound(number, **(changes if number == 1 else {})) for number in range(12)]


def diagnose(tmp_path, episodes) -> list[Finding]:
    write_episodes(tmp_path / "data", episodes)
    return examine(tmp_path / "data")


def said(findings: list[Finding]) -> list[tuple[str, str, str]]:
    return [(finding.severity, finding.where, finding.what) for finding in findings]


def test_a_sound_dataset_has_no_findings(tmp_path):
    findings = diagnose(tmp_path, sound_dataset())
    assert findings == []
    assert table(findings) == "nothing found"


def frozen_pictures() -> dict[str, np.ndarray]:
    images = sound(1).images["front"].copy()
    images[5:17] = images[4]  # frames 4 to 16: 12 steps of the same picture, at 10 fps more than a second
    return {"front": images}


def duplicate(number: int) -> dict:
    one = sound(number)
    return {"actions": one.actions, "state": one.state}


def still_gripper() -> np.ndarray:
    actions = sound(1).actions.copy()
    actions[:, -1] = 1.0
    return actions


def far_action() -> np.ndarray:
    actions = sound(1).actions.copy()
    actions[3, 0] = 7.0
    return actions


def flicker() -> np.ndarray:
    controller = np.zeros(STEPS, np.int8)
    controller[10:12] = Controller.HUMAN
    return controller


def edit_column(root: Path, key: str, change: Callable[[np.ndarray], np.ndarray]) -> None:
    (path,) = (root / "data").rglob("*.parquet")
    frames = pq.read_table(path)
    values = pa.array(change(frames[key].to_numpy().copy()))
    pq.write_table(frames.set_column(frames.column_names.index(key), key, values), path)


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        (
            {"images": frozen_pictures()},
            ("error", "episode e1", "camera 'front' shows the same picture for over 10 steps while the robot moves"),
        ),
        (
            {"images": {"front": np.full((STEPS + 1, 32, 32, 3), 9, np.uint8)}},
            ("error", "episode e1", "camera 'front' shows one colour only"),
        ),
        (duplicate(0), ("error", "episode e1", "the same actions and states as an earlier episode")),
        (
            {"actions": far_action()},
            ("warning", "episode e1", "actions reach 7, though nearly all lie in [-1, 1]"),
        ),
        (
            {"state": np.ones((STEPS + 1, 3), np.float32)},
            ("warning", "episode e1", "actions change, the proprioception does not"),
        ),
        ({"outcome": Outcome.UNKNOWN}, ("warning", "dataset", "1 of 12 episodes have no outcome")),
        ({"instruction": " "}, ("warning", "episode e1", "no instruction")),
        ({"task": "wave"}, ("note", "task 'wave'", "1 episode")),
        (
            {"actions": still_gripper()},
            ("note", "episode e1", "the last action, usually the gripper, stays the same in 1 of 12 episodes"),
        ),
        ({"controller": flicker()}, ("warning", "episode e1", "control changes within 3 steps")),
        ({"controller": flicker()}, ("note", "episode e1", "the controller changes")),
    ],
)
def test_what_was_broken_is_found(tmp_path, changes, expected):
    assert expected in said(diagnose(tmp_path, sound_dataset(**changes)))


def test_a_camera_may_rest_while_the_robot_rests(tmp_path):
    state = sound(1).state.copy()
    state[4:17] = state[4]
    assert diagnose(tmp_path, sound_dataset(images=frozen_pictures(), state=state)) == []


def test_a_camera_may_rest_for_a_moment(tmp_path):
    images = sound(1).images["front"].copy()
    images[5:14] = images[4]  # frames 4 to 13: 9 steps, less than a second
    assert diagnose(tmp_path, sound_dataset(images={"front": images})) == []


def test_short_episodes_are_found(tmp_path):
    short = [episode(n, 7, images={}) for n in range(3)]
    assert ("warning", "episodes e0, e1 and 1 more", "fewer than 8 steps") in said(diagnose(tmp_path, short))


@pytest.mark.parametrize(
    ("outcome", "expected"),
    [
        (Outcome.TIMEOUT, ("warning", "dataset", "no episode succeeded")),
        (Outcome.SUCCESS, ("note", "dataset", "every episode succeeded")),
    ],
)
def test_outcomes_that_do_not_differ_are_found(tmp_path, outcome, expected):
    findings = said(diagnose(tmp_path, [replace(one, outcome=outcome) for one in sound_dataset()]))
    assert findings == [expected]


def test_demonstrations_may_all_succeed(tmp_path):
    script = np.full(STEPS, Controller.SCRIPT, np.int8)
    assert diagnose(tmp_path, [sound(n, outcome=Outcome.SUCCESS, controller=script) for n in range(12)]) == []


def test_actions_in_other_units_are_a_note(tmp_path):
    findings = said(diagnose(tmp_path, [replace(one, actions=one.actions * 90) for one in sound_dataset()]))
    assert [(severity, where) for severity, where, _ in findings] == [("note", "dataset")]
    assert findings[0][2].startswith("actions reach 9") or findings[0][2].startswith("actions reach 8")


def test_an_action_that_never_changes_is_found(tmp_path):
    silent = [replace(one, actions=one.actions * np.float32([0, 1])) for one in sound_dataset()]
    assert said(diagnose(tmp_path, silent)) == [("warning", "dataset", "action 0 never changes")]


def test_timestamps_that_drift_are_found(tmp_path):
    write_episodes(tmp_path / "data", sound_dataset())
    late = 0.05 * (np.arange(12 * 25) // 25 == 1)  # episode e1 has rows 25 to 49; half a frame late at 10 fps
    edit_column(tmp_path / "data", "timestamp", lambda times: times + late.astype(np.float32))
    assert said(examine(tmp_path / "data")) == [("error", "episode e1", "timestamps are not frame number / fps")]
    (path,) = (tmp_path / "data" / "data").rglob("*.parquet")
    pq.write_table(pq.read_table(path).drop_columns(["timestamp"]), path)
    assert said(examine(tmp_path / "data")) == [("warning", "dataset", "there are no timestamps")]


def test_rewards_that_are_not_finite_are_found(tmp_path):
    write_episodes(tmp_path / "data", sound_dataset(reward=np.zeros(STEPS, np.float32)))
    edit_column(tmp_path / "data", "next.reward", lambda reward: np.where(np.arange(len(reward)) == 29, np.inf, reward))
    assert said(examine(tmp_path / "data")) == [("error", "episode e1", "rewards that are not finite")]


def test_a_strange_rate_is_found(tmp_path):
    fast = [replace(one, fps=500.0, images={}) for one in sound_dataset()]
    assert ("warning", "dataset", "recorded at 500 fps") in said(diagnose(tmp_path, fast))


def test_two_episodes_with_one_name_are_found(tmp_path):
    write_episodes(tmp_path / "data", sound_dataset())
    path = tmp_path / "data" / "meta" / "robo_episodes.parquet"
    facts = pq.read_table(path)
    names = ["e0", "e0", *facts["episode_id"].to_pylist()[2:]]
    pq.write_table(facts.set_column(facts.column_names.index("episode_id"), "episode_id", pa.array(names)), path)
    assert said(examine(tmp_path / "data")) == [("error", "episode e0", "several episodes have this id")]


def test_a_dataset_that_cannot_be_read_is_one_error(tmp_path):
    (finding,) = examine(tmp_path / "nothing")
    assert finding.severity == "error"
    assert "no such dataset folder" in finding.what
    write_episodes(tmp_path / "data", sound_dataset())
    (tmp_path / "data" / "meta" / "info.json").write_text(json.dumps({"codebase_version": "v2.1"}))
    assert "convert_dataset_v21_to_v30" in examine(tmp_path / "data")[0].what


def test_the_worst_comes_first_and_columns_are_aligned(tmp_path):
    findings = diagnose(
        tmp_path, sound_dataset(images=frozen_pictures(), outcome=Outcome.UNKNOWN, task="wave", instruction="wave")
    )
    assert [finding.severity for finding in findings] == ["error", "warning", "note"]
    lines = table(findings).splitlines()
    assert len(lines) == 3
    begin = [line.index(finding.what) for line, finding in zip(lines, findings, strict=True)]
    assert len(set(begin)) == 1
    assert "label them" in lines[1]
