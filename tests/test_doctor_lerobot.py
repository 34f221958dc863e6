"""The doctor and datasets recorded with plain lerobot: as it writes them, and with what goes wrong in recording."""

import json
import logging
import shutil
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from doctor_sample import FPS, SIZE, data_file, edit_column, edit_json, film

from robo_rl.data.doctor import Finding, diagnose

EPISODES, FRAMES = 6, 40
NAMES = ["shoulder.pos", "elbow.pos", "gripper.pos"]
NUMBERS = {"dtype": "float32", "shape": (3,), "names": NAMES}

Arm = Callable[[np.ndarray, np.ndarray, int], tuple[np.ndarray, np.ndarray]]


def swing(number: int) -> np.ndarray:
    """Commanded positions (FRAMES, 3) in degrees, the gripper in per cent: smooth, as a person moves a leader arm."""
    rng = np.random.default_rng(number)
    time = np.arange(FRAMES)[:, None] / FPS
    phase, rate = rng.uniform(0, 6, 3), rng.uniform(2, 4, 3)
    return (np.sin(phase + rate * time) * [60, 40, 45] + [10, -20, 50]).astype(np.float32)


def follow(command: np.ndarray) -> np.ndarray:
    """Half of the way to the commanded position is gone in each step."""
    state = np.empty_like(command)
    state[0] = command[0]
    for frame in range(1, len(command)):
        state[frame] = state[frame - 1] + 0.5 * (command[frame - 1] - state[frame - 1])
    return state


def record(root: Path, *, video: bool, arm: Arm = lambda state, command, number: (state, command)) -> Path:
    logging.getLogger("lerobot.utils.import_utils").setLevel(logging.CRITICAL)
    from lerobot.datasets.lerobot_dataset import LeRobotDataset

    top = {"dtype": "video" if video else "image", "shape": (SIZE, SIZE, 3), "names": ["height", "width", "channels"]}
    features = {"observation.images.top": top, "observation.state": NUMBERS, "action": NUMBERS}
    data = LeRobotDataset.create("local/arm", fps=int(FPS), features=features, root=root, use_videos=video)
    for number in range(EPISODES):
        command = swing(number)
        state, command = arm(follow(command), command, number)
        for frame, image in enumerate(film(number, FRAMES, 0)):
            row = {"observation.images.top": image, "observation.state": state[frame], "action": command[frame]}
            data.add_frame({**row, "task": "put the cube into the box"})
        data.save_episode()
    data.finalize()
    return root


@pytest.fixture(scope="module")
def filmed(tmp_path_factory) -> Path:
    return record(tmp_path_factory.mktemp("arm") / "filmed", video=True)


@pytest.fixture(scope="module")
def pictured(tmp_path_factory) -> Path:
    return record(tmp_path_factory.mktemp("arm") / "pictured", video=False)


def findings_of(root: Path) -> dict[str, Finding]:
    return {finding.name: finding for finding in diagnose(root).findings}


@pytest.mark.parametrize("kind", ["filmed", "pictured"])
def test_nothing_but_notes_on_what_lerobot_recorded(kind, request):
    found = diagnose(request.getfixturevalue(kind))
    assert [finding for finding in found.findings if finding.severity != "note"] == []
    # nobody said how the episodes ended, and the actions are degrees
    assert {finding.name for finding in found.findings} == {"no-outcome", "action-range"}
    assert found.facts["frames_decoded"] == EPISODES * FRAMES
    facts = found.facts["actions"]
    assert facts["kinds"] == ["absolute"] * 3
    assert (facts["units"], facts["gripper"], facts["gripper_named"]) == ("degrees or counts", [2], True)
    # a change of the command at t shows in the state from t + 1 to t + 2 on, half of it in the first step
    assert 0 <= facts["lag_steps"] <= 2


def radians(state: np.ndarray, command: np.ndarray, number: int) -> tuple[np.ndarray, np.ndarray]:
    return state / np.float32(57.296), command


def one_in_radians(state: np.ndarray, command: np.ndarray, number: int) -> tuple[np.ndarray, np.ndarray]:
    return (state, command) if number != 2 else (state / np.float32(57.296), command / np.float32(57.296))


def shifted(state: np.ndarray, command: np.ndarray, number: int) -> tuple[np.ndarray, np.ndarray]:
    """The recorder wrote commands four frames late."""
    return state, np.concatenate([command[:1].repeat(4, 0), command[:-4]])


def copied(state: np.ndarray, command: np.ndarray, number: int) -> tuple[np.ndarray, np.ndarray]:
    return state, state


def always_open(state: np.ndarray, command: np.ndarray, number: int) -> tuple[np.ndarray, np.ndarray]:
    command = command.copy()
    command[:, 2] = 90
    return state, command


def turned_gripper(state: np.ndarray, command: np.ndarray, number: int) -> tuple[np.ndarray, np.ndarray]:
    command = command.copy()
    if number == 2:
        command[:, 2] = 100 - command[:, 2]
    return state, command


def half_open(state: np.ndarray, command: np.ndarray, number: int) -> tuple[np.ndarray, np.ndarray]:
    """All within [-1, 1], and the gripper between 0.5 and 1."""
    command = command / np.float32([100, 100, 200])
    return state, command + np.float32([0, 0, 0.5])


@pytest.mark.parametrize(
    ("arm", "name", "severity"),
    [
        (radians, "units-differ", "warning"),
        (one_in_radians, "mixed-units", "error"),
        (shifted, "action-late", "error"),
        (copied, "action-is-state", "error"),
        (always_open, "still-gripper", "warning"),
        (turned_gripper, "gripper-sign", "error"),
        (half_open, "one-sided-gripper", "warning"),
    ],
)
def test_what_goes_wrong_with_an_arm_is_found(tmp_path, arm, name, severity):
    found = findings_of(record(tmp_path / "data", video=False, arm=arm))
    assert found[name].severity == severity
    also = {"still-gripper": {"constant-action"}, "one-sided-gripper": {"units-differ"}}.get(name, set())
    assert {f.name for f in found.values() if f.severity != "note"} <= {name} | also
    if name == "gripper-sign":
        assert found[name].where == "episode data-000002"


def generic(root: Path) -> None:
    import pyarrow.parquet as pq

    for path, key, value in (
        (root / "meta" / "tasks.parquet", "task", ["task"]),
        (next((root / "meta" / "episodes").rglob("*.parquet")), "tasks", [["task"]] * EPISODES),
    ):
        table = pq.read_table(path)
        key = key if key in table.column_names else "__index_level_0__"
        pq.write_table(table.set_column(table.column_names.index(key), key, [value]), path)


@pytest.mark.parametrize(
    ("spoil", "name", "severity"),
    [
        (generic, "generic-instruction", "warning"),
        (lambda root: edit_column(data_file(root), "timestamp", lambda t: t * 0.5), "bad-timestamps", "error"),
        (
            lambda root: edit_json(root, "meta/stats.json", lambda f: f["action"].update(mean=[0.0, 0.0, 0.0])),
            "stale-stats",
            "error",
        ),
        (lambda root: next(root.rglob("*.mp4")).unlink(), "bad-episode", "error"),
    ],
)
def test_damage_to_a_dataset_of_lerobot_is_found(filmed, tmp_path, spoil, name, severity):
    shutil.copytree(filmed, tmp_path / "data")
    spoil(tmp_path / "data")
    found = findings_of(tmp_path / "data")
    assert {f.name for f in found.values() if f.severity != "note"} == {name}
    assert found[name].severity == severity


def test_a_broken_picture_in_a_table_names_its_episode(pictured, tmp_path):
    import pyarrow as pa
    import pyarrow.parquet as pq

    shutil.copytree(pictured, tmp_path / "data")
    path, key = data_file(tmp_path / "data"), "observation.images.top"
    table = pq.read_table(path)
    cells = table[key].to_pylist()
    cells[3 * FRAMES + 4]["bytes"] = b"no picture"
    column = pa.array(cells, table.schema.field(key).type)
    pq.write_table(table.set_column(table.column_names.index(key), key, column), path)
    found = findings_of(tmp_path / "data")["bad-episode"]
    assert found.where == "episode data-000003"
    assert f"image {3 * FRAMES + 4} of '{key}' cannot be decoded" in found.what


def test_the_findings_are_json(filmed):
    assert json.loads(json.dumps(diagnose(filmed).to_json()))["counts"]["error"] == 0
