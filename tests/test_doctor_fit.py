"""The doctor and those who use a dataset: a policy, a judge, a simulator, a test set. And the command itself."""

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from doctor_sample import EPISODES, SIZE, dataset, sound
from safetensors.numpy import save_file

from robo_rl.app import cli
from robo_rl.data import write_episodes
from robo_rl.data.doctor import diagnose

ENV = """
name: tiny
sim: {type: tabletop, options: {tasks: [bowl], num_cubes: 1, num_pads: 0, horizon: 8, size: 64}}
"""


@pytest.fixture(scope="module")
def saved(tmp_path_factory) -> Path:
    root = tmp_path_factory.mktemp("fit") / "saved"
    write_episodes(root, dataset(pictures=True))
    return root


def picture(size: int) -> dict:
    return {"type": "VISUAL", "shape": [3, size, size]}


def policy(folder: Path, *, kind: str = "compact_vla", mode: str = "MEAN_STD", **changes) -> Path:
    """A policy folder of lerobot's layout without parameters: the doctor needs none.

    `walk` draws actions evenly from [-1, 1]: mean 0, deviation 0.58; the gripper is -1 or 1.
    """
    inputs = {f"observation.images.{name}": picture(SIZE) for name in ("front", "wrist")}
    inputs |= {"observation.state": {"type": "STATE", "shape": [3]}, **changes.pop("inputs", {})}
    config = {"type": kind, "input_features": inputs, "output_features": {"action": {"type": "ACTION", "shape": [3]}}}
    step = {
        "registry_name": "normalizer_processor",
        "config": {"norm_map": {"ACTION": mode, "STATE": "IDENTITY", "VISUAL": "IDENTITY"}},
        "state_file": "normaliser.safetensors",
    }
    renaming = {"registry_name": "rename_observations_processor", "config": {"rename_map": changes.pop("renamed", {})}}
    stats = {"mean": [0, 0, 0], "std": [0.58, 0.58, 1.0], "min": [-1] * 3, "max": [1] * 3} | changes.pop("stats", {})
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps(config | changes))
    (folder / "policy_preprocessor.json").write_text(json.dumps({"steps": [renaming, step]}))
    tensors = {f"action.{name}": np.array(values, np.float32) for name, values in stats.items()}
    save_file(tensors, folder / "normaliser.safetensors")
    return folder


def findings_of(*arguments: object, out: Path) -> tuple[int, dict[str, dict]]:
    """(exit code, name -> finding) of the command."""
    code = cli.main(["doctor", *map(str, arguments), f"--json={out}"])
    found = json.loads(out.read_text())["findings"]
    return code, {finding["name"]: finding for finding in found}


# --- policies -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("mode", ["MEAN_STD", "MIN_MAX"])
def test_a_policy_that_fits(saved, tmp_path, mode, capsys):
    assert findings_of(saved, f"--policy={policy(tmp_path / 'p', mode=mode)}", out=tmp_path / "o.json") == (0, {})
    assert capsys.readouterr().out.endswith("nothing found\n")


@pytest.mark.parametrize(
    ("changes", "name", "severity"),
    [
        ({"inputs": {"observation.images.side": picture(SIZE)}}, "missing-camera", "error"),
        ({"inputs": {"observation.images.front": picture(64)}}, "size-mismatch", "error"),
        ({"kind": "act", "inputs": {"observation.images.front": picture(64)}}, "small-frames", "note"),
        (
            {"kind": "act", "inputs": {"observation.images.front": {"type": "VISUAL", "shape": [3, 32, 48]}}},
            "stretched-frames",
            "note",
        ),
        ({"inputs": {"observation.state": {"type": "STATE", "shape": [7]}}}, "dim-mismatch", "error"),
        ({"output_features": {"action": {"type": "ACTION", "shape": [7]}}}, "dim-mismatch", "error"),
        # (0 - 0.9) / 0.58 = 1.6 deviations; 0.58 / 0.01 = 58 times as wide
        ({"stats": {"mean": [0.9, 0, 0]}}, "policy-stats", "warning"),
        ({"stats": {"std": [0.01, 0.58, 1.0]}}, "policy-stats", "error"),
        ({"stats": {"std": [0.0, 0.58, 1.0]}}, "policy-stats-constant", "error"),
        # degrees: the data fills a 57th of the range
        ({"mode": "MIN_MAX", "stats": {"min": [-57.3] * 3, "max": [57.3] * 3}}, "policy-stats", "error"),
        # three quarters of the actions lie outside
        ({"mode": "MIN_MAX", "stats": {"min": [-0.25, -1, -1], "max": [0.25, 1, 1]}}, "policy-stats", "error"),
        ({"mode": "QUANTILES"}, "policy-stats-missing", "error"),
    ],
)
def test_a_policy_that_does_not_fit(saved, tmp_path, changes, name, severity):
    folder = policy(tmp_path / "p", **changes)
    code, found = findings_of(saved, f"--policy={folder}", out=tmp_path / "o.json")
    assert list(found) == [name]
    assert (found[name]["severity"], found[name]["where"]) == (severity, f"policy {folder}")
    assert code == (1 if severity == "error" else 0)


def test_a_policy_may_rename_cameras_and_leave_some_empty(saved, tmp_path):
    empty = {"observation.images.empty_camera_0": picture(480), "observation.images.base": picture(SIZE)}
    folder = policy(tmp_path / "p", inputs=empty, renamed={"observation.images.front": "observation.images.base"})
    assert findings_of(saved, f"--policy={folder}", out=tmp_path / "o.json") == (0, {})


# --- judges -----------------------------------------------------------------------------------------------------------


def test_a_judge_file_and_its_members(saved, tmp_path):
    (tmp_path / "one.yaml").write_text("type: gvl\npath: nowhere\ncameras: [front, top]\nimage_size: 224\n")
    (tmp_path / "all.yaml").write_text(f"type: ensemble\nmembers: [{tmp_path / 'one.yaml'}]\n")
    code, found = findings_of(saved, f"--judge={tmp_path / 'all.yaml'}", out=tmp_path / "o.json")
    assert code == 1
    assert found["missing-camera"]["evidence"] == {"needed": "top", "dataset": ["front", "wrist"]}
    assert found["small-frames"]["evidence"] == {"needed": [224, 224], "dataset": [SIZE, SIZE]}
    assert len(found) == 2


def test_a_judge_folder(saved, tmp_path):
    for name, cameras, expected in (("good", ["wrist"], {}), ("bad", ["side"], {"missing-camera"})):
        (tmp_path / name).mkdir()
        facts = {"type": "compact_judge", "model": {"cameras": cameras}}
        (tmp_path / name / "config.json").write_text(json.dumps(facts))
        _, found = findings_of(saved, f"--judge={tmp_path / name}", out=tmp_path / "o.json")
        assert set(found) == set(expected)


# --- simulators -------------------------------------------------------------------------------------------------------


def test_a_simulator_says_what_it_needs(tmp_path):
    (tmp_path / "env.yaml").write_text(ENV)
    # 20 fps for a world of 10 Hz; 32 pixels for 64; 3 and 3 numbers for 11 and 4
    write_episodes(tmp_path / "data", (replace(one, fps=20.0) for one in dataset(pictures=True)))
    code, found = findings_of(tmp_path / "data", f"--env={tmp_path / 'env.yaml'}", out=tmp_path / "o.json")
    assert code == 1
    assert found["fps-mismatch"]["evidence"] == {"needed": 10.0, "dataset": 20.0}
    assert found["size-mismatch"]["evidence"] == {"needed": [64, 64], "dataset": [SIZE, SIZE]}
    assert found["dim-mismatch"]["evidence"] == {"needed": 4, "dataset": 3}
    assert set(found) == {"fps-mismatch", "size-mismatch", "dim-mismatch"}


def four_wide(number: int, gripper: float, scale: float):
    """Eleven numbers of state and four actions, as the tabletop has; the gripper goes from `gripper` to 1."""
    one = sound(number, pictures=True)
    lifted = np.insert(one.actions, 2, one.actions[:, 0][::-1], axis=1) * np.float32([scale, scale, scale, 1])
    lifted[:, 3] = np.where(lifted[:, 3] > 0, 1.0, gripper)
    state = np.tile(one.state, (1, 4))[:, :11]
    images = {name: frames.repeat(2, 1).repeat(2, 2) for name, frames in one.images.items()}
    return replace(one, actions=lifted, state=state, images=images)


@pytest.mark.parametrize(
    ("gripper", "scale", "expected"),
    [
        (-1.0, 1.0, {}),
        (0.0, 1.0, {"gripper-mismatch": "error"}),
        # 10 % over: 2 x 0.1 / 2.2 = 9 % of the numbers of a dimension are beyond 1
        (-1.0, 1.1, {"action-range-mismatch": "error"}),
    ],
)
def test_a_simulator_and_the_range_of_actions(tmp_path, gripper, scale, expected):
    (tmp_path / "env.yaml").write_text(ENV)
    write_episodes(tmp_path / "data", (four_wide(number, gripper, scale) for number in range(EPISODES)))
    _, found = findings_of(tmp_path / "data", f"--env={tmp_path / 'env.yaml'}", out=tmp_path / "o.json")
    assert {name: one["severity"] for name, one in found.items() if one["where"].startswith("env")} == expected


# --- train and test ---------------------------------------------------------------------------------------------------


def test_episodes_that_are_in_both_sets(tmp_path):
    write_episodes(tmp_path / "train", dataset())
    other = [sound(number, episode_id=f"t{number}", seed=4) for number in range(20, 25)]
    write_episodes(tmp_path / "apart", other)
    assert not [f for f in diagnose(tmp_path / "apart", against=tmp_path / "train").findings if f.severity != "note"]
    # the same episode under another name, and one of another robot that began where e3 did
    write_episodes(tmp_path / "test", [sound(7, episode_id="new"), *other, sound(30, episode_id="again", index=3)])
    found = {f.name: f for f in diagnose(tmp_path / "test", against=tmp_path / "train").findings}
    assert (found["leaked-episode"].severity, found["leaked-episode"].where) == ("error", "episode new")
    assert found["leaked-episode"].evidence["copies"] == {"new": "e7"}
    # index 30 is not in the training set, but `again` says task push, seed 3, index 3, which e3, of task lift, is not
    assert "same-initial-state" not in found
    write_episodes(tmp_path / "same", [*other, sound(31, episode_id="again", index=3)])
    found = {f.name: f for f in diagnose(tmp_path / "same", against=tmp_path / "train").findings}
    assert found["same-initial-state"].where == "episode again"


# --- the command --------------------------------------------------------------------------------------


def test_exit_codes(saved, tmp_path, capsys):
    assert cli.main(["doctor", str(saved)]) == 0
    said = capsys.readouterr().out.splitlines()
    assert said[0] == (
        "10 episodes of 30 to 30 steps (median 30), 310 frames at 10 fps; front 32x32, wrist 32x32; "
        "310 frames of each camera looked at"
    )
    assert said[1] == "2 instructions; outcomes: 4 failure, 6 success"
    assert said[2].startswith(
        "3 actions, within [-1, 1], delta, 0 steps before the motion; gripper by position: action 2"
    )
    (saved / "meta" / "tasks.parquet").rename(tmp_path / "tasks.parquet")
    assert cli.main(["doctor", str(saved)]) == 1
    (tmp_path / "tasks.parquet").rename(saved / "meta" / "tasks.parquet")
    assert "no-tasks" in capsys.readouterr().out
    (tmp_path / "empty").mkdir()
    (tmp_path / "empty" / "config.json").write_text("{}")
    (tmp_path / "broken.yaml").write_text("type: [")
    for wrong, said_of_it in (
        ([tmp_path / "nowhere"], "no such dataset folder"),
        ([saved, f"--against={tmp_path / 'nowhere'}"], "no such dataset folder"),
        ([saved, f"--policy={tmp_path}"], "not a policy folder, config.json is missing"),
        ([saved, f"--policy={tmp_path / 'empty'}"], "says nothing of input_features"),
        ([saved, f"--judge={tmp_path}"], "not a judge folder, config.json is missing"),
        ([saved, f"--judge={tmp_path / 'empty'}"], "it says no type"),
        ([saved, f"--judge={tmp_path / 'broken.yaml'}"], "not YAML"),
        ([saved, f"--env={tmp_path / 'none.yaml'}"], "no such file"),
        ([saved, "--frames=-1"], "--frames must not be negative"),
        ([saved, f"--json={tmp_path / 'no' / 'o.json'}"], "cannot be written"),
    ):
        assert cli.main(["doctor", *map(str, wrong)]) == 2, wrong
        assert said_of_it in capsys.readouterr().err


def test_a_dataset_of_the_old_version_is_told_how_to_become_new(tmp_path, capsys):
    (tmp_path / "old" / "meta").mkdir(parents=True)
    (tmp_path / "old" / "meta" / "info.json").write_text(json.dumps({"codebase_version": "v2.1"}))
    assert cli.main(["doctor", str(tmp_path / "old"), f"--json={tmp_path / 'o.json'}"]) == 1
    assert "python -m lerobot.scripts.convert_dataset_v21_to_v30" in capsys.readouterr().out
    written = json.loads((tmp_path / "o.json").read_text())
    assert written["counts"] == {"error": 1, "warning": 0, "note": 0}
    assert written["facts"] == {}
