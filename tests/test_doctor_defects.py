"""The doctor and one defect at a time: each is found by its name, and nothing else is called wrong."""

import json
import shutil
from collections.abc import Callable, Iterable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq
import pytest
from doctor_sample import (
    EPISODES,
    FPS,
    SIZE,
    STEPS,
    changed,
    data_file,
    dataset,
    edit_column,
    edit_json,
    episodes_file,
    film,
    sound,
)

from robo_rl.data import write_episodes
from robo_rl.data.doctor import Finding, diagnose
from robo_rl.data.video import VideoWriter
from robo_rl.types import Controller, Outcome, Trajectory

ROWS = STEPS + 1
Episodes = list[Trajectory]


def wrong(findings: Iterable[Finding]) -> set[str]:
    return {finding.name for finding in findings if finding.severity != "note"}


def the(findings: Iterable[Finding], name: str) -> Finding:
    (one,) = [finding for finding in findings if finding.name == name]
    return one


# --- numbers and labels -------------------------------------------------------------------------------------------


def each(change: Callable[[Trajectory], Trajectory]) -> Callable[[Episodes], Episodes]:
    return lambda episodes: [change(one) for one in episodes]


def only(number: int, change: Callable[[Trajectory], dict]) -> Callable[[Episodes], Episodes]:
    return lambda episodes: changed(episodes, number, **change(episodes[number]))


def put(array: np.ndarray, place: object, value: object) -> np.ndarray:
    out = array.copy()
    out[place] = value
    return out


def later(one: Trajectory, steps: int) -> Trajectory:
    """Actions come `steps` rows after the motion that they caused; negative: before."""
    return replace(one, actions=np.roll(one.actions, steps, axis=0))


def absolute(one: Trajectory, scale: float = 1.0) -> Trajectory:
    """Commands are the places to go to: the state of the next row."""
    return replace(one, actions=(scale * one.state[1:]).astype(np.float32))


def in_degrees(one: Trajectory) -> dict:
    return {"state": one.state * np.float32(57.3), "actions": one.actions}


def copy_of_0(one: Trajectory) -> dict:
    first = sound(0)
    return {"actions": first.actions, "state": first.state}


def flicker(one: Trajectory) -> dict:
    return {"controller": put(one.controller, slice(10, 12), Controller.HUMAN)}


def mixed_gripper(one: Trajectory) -> dict:
    return {"actions": put(one.actions, (slice(None), 2), (one.actions[:, 2] + 1) / 2)}


def nearly_constant(one: Trajectory) -> Trajectory:
    noise = np.random.default_rng(one.index).normal(0, 1e-7, len(one.state)).astype(np.float32)
    return replace(one, state=np.column_stack([one.state, np.float32(0.001) + noise]))


NUMBERS: dict[str, tuple[Callable[[Episodes], Episodes], str, str]] = {
    # name -> how to make it, severity, where
    "duplicate-episode": (only(2, copy_of_0), "error", "episode e2"),
    "short-episode": (lambda all_: [*all_, sound(10, 6)], "warning", "episode e10"),
    "odd-length": (lambda all_: [*all_, sound(10, 400)], "warning", "episode e10"),
    "no-instruction": (only(1, lambda one: {"instruction": " "}), "warning", "episode e1"),
    "generic-instruction": (
        only(1, lambda one: {"instruction": "Do the task.", "task": "other"}),
        "warning",
        "episode e1",
    ),
    "untidy-instruction": (
        only(1, lambda one: {"instruction": "open the  door ", "task": "other"}),
        "warning",
        "episode e1",
    ),
    "instruction-spellings": (only(1, lambda one: {"instruction": "Lift the cube!"}), "warning", "dataset"),
    "shared-instruction": (only(1, lambda one: {"task": "wave"}), "warning", "dataset"),
    "no-outcome": (only(1, lambda one: {"outcome": Outcome.UNKNOWN}), "warning", "dataset"),
    "no-success": (each(lambda one: replace(one, outcome=Outcome.FAILURE)), "warning", "dataset"),
    "all-success": (each(lambda one: replace(one, outcome=Outcome.SUCCESS)), "note", "dataset"),
    "flickering-control": (only(1, flicker), "warning", "episode e1"),
    "idle-episode": (only(1, lambda one: {"actions": np.zeros_like(one.actions)}), "warning", "episode e1"),
    "dead-state": (only(1, lambda one: {"state": np.ones_like(one.state)}), "warning", "episode e1"),
    "constant-action": (
        each(lambda one: replace(one, actions=one.actions * np.float32([1, 0, 1]))),
        "warning",
        "dataset",
    ),
    "near-constant": (each(nearly_constant), "warning", "dataset"),
    "constant-state": (
        each(lambda one: replace(one, state=np.column_stack([one.state, np.ones(len(one.state), np.float32)]))),
        "note",
        "dataset",
    ),
    "action-outlier": (only(1, lambda one: {"actions": put(one.actions, (3, 0), 7.0)}), "warning", "episode e1"),
    "far-value": (only(1, lambda one: {"state": put(one.state, (9, 1), 400.0)}), "warning", "episode e1"),
    "mixed-units": (only(1, in_degrees), "error", "episode e1"),
    "still-gripper": (
        each(lambda one: replace(one, actions=put(one.actions, (slice(None), 2), 1.0))),
        "warning",
        f"episodes e0, e1 and {EPISODES - 2} more",
    ),
    "one-sided-gripper": (
        each(lambda one: replace(one, actions=put(one.actions, (slice(None), 2), 0.7 + 0.3 * one.actions[:, 2]))),
        "note",
        "dataset",
    ),
    "gripper-range": (
        each(lambda one: replace(one, actions=one.actions * np.float32([1, 1, 100]))),
        "warning",
        "dataset",
    ),
    "mixed-gripper": (only(1, mixed_gripper), "error", "episode e1"),
    "gripper-sign": (only(1, lambda one: {"actions": one.actions * np.float32([1, 1, -1])}), "error", "episode e1"),
    "flipped-axis": (only(1, lambda one: {"actions": one.actions * np.float32([-1, 1, 1])}), "error", "episode e1"),
    "mixed-action-kind": (only(1, lambda one: {"actions": absolute(one).actions}), "error", "episode e1"),
    "action-late": (each(lambda one: later(one, 2)), "error", "dataset"),
    "slow-state": (each(lambda one: later(one, -4)), "warning", "dataset"),
    "action-is-state": (each(lambda one: replace(one, actions=one.state[:-1])), "error", "dataset"),
    "units-differ": (each(lambda one: absolute(one, 1000.0)), "warning", "dataset"),
}
# What comes with a defect and is true of it as well.
ALSO = {
    "still-gripper": {"constant-action"},
}


def test_a_sound_dataset_has_no_findings(tmp_path):
    write_episodes(tmp_path / "data", dataset())
    found = diagnose(tmp_path / "data")
    assert [finding.name for finding in found.findings] == ["no-camera"]
    # an action of 1 moves the hand by STEP at once
    facts = found.facts["actions"]
    assert facts["kinds"] == ["delta", "delta", "absolute"]
    assert facts["lag_steps"] == 0
    assert (facts["gripper_range"], facts["gripper_levels"]) == ([-1.0, 1.0], [-1.0, 1.0])
    assert found.facts["steps"] == [STEPS, STEPS, STEPS]


@pytest.mark.parametrize("name", NUMBERS)
def test_a_defect_in_the_numbers_is_found(tmp_path, name):
    make, severity, where = NUMBERS[name]
    write_episodes(tmp_path / "data", make(dataset()))
    findings = diagnose(tmp_path / "data").findings
    found = the(findings, name)
    assert (found.severity, found.where) == (severity, where)
    assert found.advice
    assert wrong(findings) <= {name} | ALSO.get(name, set())
    json.dumps(found.to_json())


def test_tasks_may_use_the_gripper_differently(tmp_path):
    # "lift" opens and closes, "push" goes from 0 to 1: no mistake, as all episodes of a task agree
    episodes = [replace(one, **mixed_gripper(one)) if one.task == "push" else one for one in dataset()]
    write_episodes(tmp_path / "data", episodes)
    assert wrong(diagnose(tmp_path / "data").findings) == set()


# --- files ----------------------------------------------------------------------------------------------------------


FRONT = "videos/observation.images.front/chunk-000/file-000.mp4"
INFO, STATS = "meta/info.json", "meta/stats.json"


@pytest.fixture(scope="module")
def saved(tmp_path_factory) -> Path:
    root = tmp_path_factory.mktemp("doctor") / "saved"
    write_episodes(root, (replace(one, reward=reward(one)) for one in dataset(pictures=True)))
    return root


def reward(one: Trajectory) -> np.ndarray:
    """1 at the last step of a success."""
    return np.append(np.zeros(STEPS - 1), one.success).astype(np.float32)


def fps_of_15(root: Path) -> None:
    # frames are 1/15 s apart, though the dataset says 1/10
    edit_column(data_file(root), "timestamp", lambda times: times * (10 / 15))


def without(key: str) -> Callable[[Path], None]:
    def drop(root: Path) -> None:
        pq.write_table(pq.read_table(data_file(root)).drop_columns([key]), data_file(root))

    return drop


def column(key: str, change: Callable[[np.ndarray], np.ndarray]) -> Callable[[Path], None]:
    return lambda root: edit_column(data_file(root), key, change)


def row(number: int, value: object) -> Callable[[np.ndarray], np.ndarray]:
    return lambda values: put(values, number, value)


def rows_of(episode: int) -> slice:
    return slice(episode * ROWS, (episode + 1) * ROWS)


def info(change: Callable[[dict], object]) -> Callable[[Path], None]:
    return lambda root: edit_json(root, INFO, change)


def stats(change: Callable[[dict], object]) -> Callable[[Path], None]:
    return lambda root: edit_json(root, STATS, change)


def refilm(frames: int = EPISODES * ROWS, fps: float = FPS, size: int = SIZE) -> Callable[[Path], None]:
    def make(root: Path) -> None:
        video = VideoWriter(root / FRONT, fps=fps, height=size, width=size)
        pictures = np.concatenate([film(number, ROWS, 0) for number in range(EPISODES + 1)])
        video.add(np.pad(pictures, ((0, 0), (0, size - SIZE), (0, size - SIZE), (0, 0)))[:frames])
        video.close()

    return make


def tasks(texts: list[str]) -> Callable[[Path], None]:
    def make(root: Path) -> None:
        table = pq.read_table(root / "meta" / "tasks.parquet")
        at = table.column_names.index("task")
        pq.write_table(table.set_column(at, "task", [texts]), root / "meta" / "tasks.parquet")

    return make


def span(root: Path) -> None:
    edit_column(
        episodes_file(root), "videos/observation.images.front/to_timestamp", lambda ends: put(ends, 3, ends[3] - 0.5)
    )


def stale(facts: dict) -> None:
    facts["action"]["mean"] = [0.5, 0.5, 0.5]


FILES: dict[str, tuple[Callable[[Path], object], str, str]] = {
    "unreadable": (info(lambda facts: facts.update(codebase_version="v2.1")), "error", ""),
    "strange-fps": (info(lambda facts: facts.update(fps=500)), "warning", "dataset"),
    "bad-timestamps": (fps_of_15, "error", f"episodes e0, e1 and {EPISODES - 2} more"),
    "no-timestamps": (without("timestamp"), "warning", "dataset"),
    "bad-frame-index": (column("frame_index", row(4 * ROWS + 7, 3)), "error", "episode e4"),
    "task-mismatch": (column("task_index", lambda n: put(n, rows_of(2), 1)), "error", "episode e2"),
    "no-tasks": (lambda root: (root / "meta" / "tasks.parquet").unlink(), "error", "meta/tasks.parquet"),
    "duplicate-task": (tasks(["push the cube", "push the cube"]), "warning", "meta/tasks.parquet"),
    "outcome-contradicts": (column("next.success", row(3 * ROWS - 2, True)), "error", "episode e2"),
    # success at the last step of e1 is row 29 + 31 = 60; the reward is in the same row
    "reward-contradicts": (column("next.reward", row(2 * ROWS - 2, 0.0)), "warning", "episode e1"),
    "early-done": (column("next.done", row(2 * ROWS + 5, True)), "warning", "episode e2"),
    "bad-reward": (column("next.reward", row(2 * ROWS + 5, np.nan)), "error", "episode e2"),
    "stale-stats": (stats(stale), "error", STATS),
    "no-stats": (lambda root: (root / STATS).unlink(), "warning", STATS),
    "bad-stats": (stats(lambda facts: facts["action"].update(std=[float("nan"), 1, 1])), "error", STATS),
    "missing-stats": (stats(lambda facts: facts.pop("observation.state")), "error", STATS),
    "stats-width": (stats(lambda facts: facts["action"].update(std=[1.0, 1.0])), "error", STATS),
    "stats-count": (stats(lambda facts: facts["action"].update(count=[7])), "warning", STATS),
    "image-stats-scale": (
        stats(lambda facts: facts["observation.images.front"].update(mean=[[[90.0]]] * 3)),
        "error",
        STATS,
    ),
    "video-fps": (refilm(fps=25.0), "error", FRONT),
    "frame-size": (refilm(size=48), "error", FRONT),
    "short-video": (refilm(frames=EPISODES * ROWS - 5), "error", FRONT),
    "long-video": (refilm(frames=EPISODES * ROWS + 5), "warning", FRONT),
    "video-span": (span, "error", "episode e3"),
    "wrong-width": (info(lambda facts: facts["features"]["action"].update(shape=[4])), "error", "dataset"),
    "wrong-names": (info(lambda facts: facts["features"]["action"].update(names=["x", "y"])), "warning", "dataset"),
}
ALSO |= {
    "strange-fps": {"bad-timestamps", "video-fps", "video-span", "short-video"},
    "outcome-contradicts": {"reward-contradicts"},
    "duplicate-task": {"task-mismatch"},
    "bad-reward": {"stale-stats"},
    "frame-size": {"bad-episode"},
    "short-video": {"bad-episode"},
}


def test_a_sound_dataset_with_pictures_has_no_findings(saved):
    found = diagnose(saved)
    assert found.findings == []
    assert found.facts["frames_decoded"] == EPISODES * ROWS
    assert not (saved / ".cache").exists()


@pytest.mark.parametrize("name", FILES)
def test_a_defect_in_the_files_is_found(saved, tmp_path, name):
    spoil, severity, where = FILES[name]
    root = tmp_path / "data"
    shutil.copytree(saved, root)
    spoil(root)
    findings = diagnose(root).findings
    found = the(findings, name)
    assert (found.severity, found.where) == (severity, where or str(root))
    assert wrong(findings) <= {name} | ALSO.get(name, set())


def test_what_is_wrong_is_told_in_numbers(saved, tmp_path):
    shutil.copytree(saved, tmp_path / "data")
    fps_of_15(tmp_path / "data")
    found = the(diagnose(tmp_path / "data").findings, "bad-timestamps")
    assert found.evidence["timestamps_fps"] == pytest.approx(15, rel=1e-3)
    # frame 30 is at 30 / 15 = 2 s, where the dataset would have frame 20: 10 frames off
    assert found.evidence["frames_off"] == pytest.approx(10, rel=1e-3)
    assert "they tell of 15 fps, meta/info.json of 10" in found.advice


# --- pictures ---------------------------------------------------------------------------------------------------------


def front(one: Trajectory, images: np.ndarray) -> Trajectory:
    return replace(one, images={**one.images, "front": images})


def slow_camera(one: Trajectory) -> Trajectory:
    """5 new pictures a second: every second one repeats the one before."""
    return front(one, one.images["front"][np.arange(ROWS) // 2 * 2])


def stopped(one: Trajectory) -> dict:
    return {"images": front(one, one.images["front"][np.minimum(np.arange(ROWS), 12)]).images}


def dark(one: Trajectory) -> dict:
    return {"images": front(one, np.full_like(one.images["front"], 9)).images}


PICTURES: dict[str, tuple[Callable[[Episodes], Episodes], str, str]] = {
    "frozen-camera": (only(1, stopped), "error", "episode e1"),
    "blank-camera": (only(1, dark), "error", "episode e1"),
    "repeated-frames": (each(slow_camera), "warning", "dataset"),
    "same-camera": (each(lambda one: front(one, one.images["wrist"])), "error", "dataset"),
}


@pytest.mark.parametrize("name", PICTURES)
def test_a_defect_in_the_pictures_is_found(tmp_path, name):
    make, severity, where = PICTURES[name]
    write_episodes(tmp_path / "data", make(dataset(pictures=True)))
    findings = diagnose(tmp_path / "data").findings
    found = the(findings, name)
    assert (found.severity, found.where) == (severity, where)
    assert wrong(findings) == {name}
    if name == "repeated-frames":
        # half of the pictures are new: 10 fps / 2
        assert found.evidence["camera_fps"] == pytest.approx(5, abs=0.2)
    if name == "frozen-camera":
        assert found.evidence["stills"]["e1"] == (12, STEPS)


def test_a_sample_of_the_frames_is_enough_to_see_a_stopped_camera(tmp_path):
    stuck = [replace(one, **stopped(one)) for one in (sound(n, pictures=True) for n in range(EPISODES))]
    write_episodes(tmp_path / "data", stuck)
    found = diagnose(tmp_path / "data", frames=64)
    # two stretches of 32 frames or as long as the episode: of the first and of the last
    assert found.facts["frames_decoded"] == 2 * ROWS
    assert the(found.findings, "frozen-camera").where == "episodes e0, e9"
    assert diagnose(tmp_path / "data", frames=0).findings == []
