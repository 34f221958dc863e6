"""The command line: users' mistakes end in one line and exit code 2, and leave nothing half-written."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import pytest
import torch

from robo_rl.app import cli, steps
from robo_rl.app.config import load_config
from robo_rl.data import read_episodes, write_episodes
from robo_rl.policies.storage import load_policy, save_policy
from robo_rl.types import Controller, Outcome, Trajectory

CONFIG = """
name: tiny
processes: 1
group_size: 2
accept_failed_audit: true
sim: {type: tabletop, options: {tasks: [bowl], num_cubes: 1, num_pads: 0, spread: 0.5, horizon: 8, size: 16}}
policy: {channels: 8, denoise_steps: 2, flow_draws: 2}
imitation: {steps: 2, batch_size: 4, log_every: 1, warmup_steps: 1}
update: {trainer: {steps: 2, batch_size: 4, log_every: 1, warmup_steps: 1}}
judge:
  trunk: scratch
  model: {channels: 8, dim: 16, layers: 1, queries: 4, values: 4, map_size: 4}
  fit: {steps: 2, trunk_steps: 1, batch_size: 2, trunk_batch_size: 2}
credit: {hop: 2, folds: 2, critic: {steps: 5, batch_size: 16}}
evaluation: {episodes: 2}
"""
STATE_DIM = 11  # of the tabletop world


def make_trajectory(number: int, outcome: Outcome, controller: Controller, camera: str, fps: float) -> Trajectory:
    rng = np.random.default_rng(number)
    steps_taken = 6 + number
    return Trajectory(
        episode_id=f"{outcome}-{number}",
        instruction="put the red cube into the bowl",
        images={name: rng.integers(0, 255, (steps_taken + 1, 16, 16, 3), np.uint8) for name in (camera, "wrist")},
        state=rng.normal(size=(steps_taken + 1, STATE_DIM)).astype(np.float32),
        actions=rng.uniform(-1, 1, (steps_taken, 4)).astype(np.float32),
        controller=np.full(steps_taken, controller, np.int8),
        outcome=outcome,
        fps=fps,
    )


def write(
    root: Path, outcome: Outcome, controller: Controller = Controller.POLICY, camera: str = "front", fps: float = 10.0
) -> Path:
    write_episodes(root, (make_trajectory(n, outcome, controller, camera, fps) for n in range(4)))
    return root


@dataclass(frozen=True)
class World:
    """Files that a user would have: an experiment, datasets, a policy and a judge."""

    root: Path
    config: Path
    demos: Path
    won: Path
    lost: Path
    policy: Path
    judge: Path


def call(arguments: list[object], capsys: pytest.CaptureFixture[str]) -> tuple[int, str]:
    """Exit code, and what was said on stderr."""
    code = cli.main([str(argument) for argument in arguments])
    return code, capsys.readouterr().err


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> World:
    root = tmp_path_factory.mktemp("user")
    config = root / "tiny.yaml"
    config.write_text(CONFIG)
    made = World(
        root=root,
        config=config,
        demos=write(root / "demos", Outcome.SUCCESS, Controller.SCRIPT),
        won=write(root / "won", Outcome.SUCCESS),
        lost=write(root / "lost", Outcome.TIMEOUT),
        policy=root / "policy-of-tiny",
        judge=root / "judge",
    )
    assert cli.main(["train", str(config), f"--data={made.demos}", f"--out={made.policy}"]) == 0
    assert (
        cli.main(["reward", "fit", str(config), f"--data={made.won}", f"--data={made.lost}", f"--out={made.judge}"])
        == 0
    )
    return made


def refused(world: World, arguments: list[object], capsys: pytest.CaptureFixture[str]) -> str:
    """The one line said about a mistake; nothing may have appeared or vanished beside it."""
    before = sorted(path for path in world.root.rglob("*") if ".cache" not in path.parts)
    code, said = call(arguments, capsys)
    assert code == 2, said
    assert "Traceback" not in said
    complaints = [line for line in said.splitlines() if line.startswith("robo-rl: ")]
    assert len(complaints) == 1, said
    assert said.endswith(complaints[0] + "\n")
    # what comes before the complaint is progress: "train: started"
    assert all(": " in line for line in said.splitlines())
    assert sorted(path for path in world.root.rglob("*") if ".cache" not in path.parts) == before
    return complaints[0].removeprefix("robo-rl: ").replace(str(world.root), "here")


# --- the surface --------------------------------------------------------------------------------------------


def test_help_answers_at_once_and_without_torch():
    code = (
        "import sys, time\n"
        "from robo_rl.app.cli import main\n"
        "try:\n    main(['--help'])\n"
        "except SystemExit as end:\n"
        "    heavy = {'torch', 'lerobot', 'mujoco', 'pyarrow', 'draccus'} & set(sys.modules)\n"
        "    print('RESULT', end.code, time.process_time(), sorted(heavy))\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True)
    assert "usage: robo-rl" in done.stdout
    _, exit_code, seconds, heavy = done.stdout.splitlines()[-1].split(" ", 3)
    assert (exit_code, heavy) == ("0", "[]")
    assert float(seconds) < 2.0  # of the processor: a busy machine does not count


@pytest.mark.parametrize("command", ["run", "collect", "train", "reward", "eval", "report", "doctor"])
def test_every_command_has_help(command, capsys):
    with pytest.raises(SystemExit) as end:
        cli.main([command, "--help"])
    assert end.value.code == 0
    assert f"usage: robo-rl {command}" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["fly"], "invalid choice: 'fly'"),
        ([], "required"),
        (["collect", "x.yaml"], "--out"),
        (["reward", "guess"], "invalid choice: 'guess'"),
        (["collect", "x.yaml", "--out=d", "--episodes=many"], "invalid int value: 'many'"),
    ],
)
def test_a_command_line_that_makes_no_sense_ends_with_code_2(arguments, said, capsys):
    with pytest.raises(SystemExit) as end:
        cli.main(arguments)
    assert end.value.code == 2
    assert said in capsys.readouterr().err


# --- mistakes -----------------------------------------------------------------------------------------------


def test_unknown_flags_and_keys(world, capsys):
    assert refused(world, ["run", world.config, "--fast"], capsys) == (
        "run: '--fast' is not understood; see `robo-rl run --help`"
    )
    assert refused(world, ["doctor", world.demos, "--seed=3"], capsys).startswith("doctor: '--seed=3'")
    out = f"--out={world.root / 'new'}"
    assert refused(world, ["run", world.config, "--imitation.stepz=3", out], capsys) == (
        "here/tiny.yaml: imitation.stepz: unknown key; did you mean 'steps'?"
    )
    assert refused(world, ["run", world.root / "none.yaml", out], capsys).startswith("here/none.yaml: no such file")


def test_wrong_options_of_a_part_stop_a_run_before_it_starts(world, capsys):
    out = f"--out={world.root / 'new'}"
    for override, key in (
        ("--sim.options.horison=3", "sim.options.horison: unknown key; did you mean 'horizon'?"),
        ("--demos.expert.sped=3", "demos.expert.sped: unknown key; did you mean 'speed'?"),
        ("--judge.model.dims=3", "judge.model.dims: unknown key; did you mean 'dim'?"),
        ("--judge.fit.step=3", "judge.fit.step: unknown key; did you mean 'steps'?"),
        ("--policy.n_action_steps=99", "n_action_steps must be between 1 and chunk_size (8), got 99"),
    ):
        assert key in refused(world, ["run", world.config, override, out], capsys)


def test_a_dataset_that_is_missing_or_no_dataset(world, capsys):
    out = f"--out={world.root / 'new'}"
    for command in (
        ["train", world.config, "--data={}", out],
        ["reward", "fit", world.config, "--data={}", out],
        ["reward", "score", world.judge, "{}"],
        ["reward", "audit", world.judge, "{}"],
    ):
        for folder, message in (("nowhere", "no such dataset folder"), ("policy-of-tiny", "not a LeRobotDataset")):
            arguments = [str(part).format(world.root / folder) for part in command]
            assert message in refused(world, arguments, capsys)


def test_a_corrupt_table_is_named(world, capsys, tmp_path):
    broken = world.root / "broken"
    shutil.copytree(world.demos, broken)
    table = next((broken / "data").rglob("*.parquet"))
    table.write_bytes(b"PAR1 this is no table")
    try:
        said = refused(world, ["train", world.config, f"--data={broken}", f"--out={world.root / 'new'}"], capsys)
        assert str(table.relative_to(world.root)) in said
    finally:
        shutil.rmtree(broken)


def test_an_empty_dataset_is_named(world, capsys):
    empty = world.root / "empty"
    shutil.copytree(world.demos, empty)
    info = json.loads((empty / "meta/info.json").read_text())
    (empty / "meta/info.json").write_text(json.dumps(info | {"total_episodes": 0, "total_frames": 0}))
    try:
        said = refused(world, ["train", world.config, f"--data={empty}", f"--out={world.root / 'new'}"], capsys)
        assert said == "here/empty: the dataset has no episodes"
    finally:
        shutil.rmtree(empty)


@pytest.fixture
def other_camera(world):
    yield write(world.root / "top", Outcome.SUCCESS, camera="top")
    shutil.rmtree(world.root / "top")


@pytest.fixture
def other_rate(world):
    yield write(world.root / "fast", Outcome.SUCCESS, fps=30.0)
    shutil.rmtree(world.root / "fast")


def test_a_dataset_without_the_policys_or_the_judges_camera(world, other_camera, capsys):
    out = f"--out={world.root / 'new'}"
    said = refused(
        world,
        ["train", world.config, f"--data={other_camera}", f"--policy={world.policy}", "--credit.type=filtered_bc", out],
        capsys,
    )
    assert said == (
        "policy here/policy-of-tiny does not fit this dataset: "
        "here/top: camera 'front' is missing; the dataset has top, wrist"
    )
    said = refused(world, ["reward", "score", world.judge, other_camera], capsys)
    assert "'front'" in said
    said = refused(
        world, ["reward", "fit", world.config, f"--data={other_camera}", f"--judge={world.judge}", out], capsys
    )
    assert "'front'" in said


def test_datasets_of_different_rates_are_not_mixed(world, other_rate, capsys):
    said = refused(
        world,
        [
            *("train", world.config, f"--data={world.demos}", f"--data={other_rate}", f"--policy={world.policy}"),
            *("--credit.type=filtered_bc", f"--out={world.root / 'new'}"),
        ],
        capsys,
    )
    assert said == "here/fast: recorded at 30 fps, but here/demos at 10 fps"


def test_nothing_is_learned_from_failures_alone(world, capsys):
    out = f"--out={world.root / 'new'}"
    said = refused(world, ["train", world.config, f"--data={world.lost}", out], capsys)
    assert said == "here/lost: nothing to imitate: no demonstration and no episode that succeeded"
    said = refused(world, ["reward", "fit", world.config, f"--data={world.lost}", out], capsys)
    assert said == "a judge needs episodes that succeeded; none of 4 did"
    update = ["train", world.config, f"--data={world.lost}", f"--policy={world.policy}", out]
    said = refused(world, [*update, f"--judge={world.judge}"], capsys)
    assert said == "critics: cross-fitting in 2 folds needs at least 2 successful episodes, got 0"
    said = refused(world, [*update, "--credit.type=filtered_bc"], capsys)
    assert "no sample has positive weight" in said


def test_successes_alone_teach_with_an_efficiency_gate(world, capsys):
    # viability has one class and says "certain"; the gate then looks at efficiency alone
    out = world.root / "from-successes"
    code, said = call(
        [
            *("train", world.config, f"--data={world.demos}", f"--data={world.won}"),
            *(f"--policy={world.policy}", f"--judge={world.judge}", f"--out={out}"),
        ],
        capsys,
    )
    assert code == 0, said
    try:
        load_policy(out)
        assert not out.with_name("from-successes.partial").exists()
    finally:
        shutil.rmtree(out)


def test_a_judge_is_needed_for_judged_credit(world, capsys):
    update = ["train", world.config, f"--data={world.won}", f"--policy={world.policy}", f"--out={world.root / 'new'}"]
    assert refused(world, update, capsys) == "train: credit.type=habc needs --judge; or choose filtered_bc or bc"
    said = refused(world, [*update, f"--judge={world.root / 'nowhere'}"], capsys)
    assert said == "here/nowhere: not a judge folder, config.json is missing"


def test_a_policy_folder_that_is_missing(world, capsys):
    nowhere = f"--policy={world.root / 'nowhere'}"
    for command in (
        ["eval", world.config, nowhere],
        ["collect", world.config, nowhere, f"--out={world.root / 'new'}"],
        ["train", world.config, nowhere, f"--data={world.won}", f"--out={world.root / 'new'}"],
    ):
        said = refused(world, command, capsys)
        assert said == "here/nowhere: not a policy folder, config.json is missing; train one with `robo-rl train`"


def test_what_exists_is_never_overwritten(world, capsys):
    for command in (
        ["collect", world.config, f"--out={world.won}"],
        ["train", world.config, f"--data={world.demos}", f"--out={world.policy}"],
        ["reward", "fit", world.config, f"--data={world.won}", f"--out={world.judge}"],
    ):
        said = refused(world, command, capsys)
        assert "already exists; choose another --out or remove it" in said


def test_a_policy_that_says_nan_moves_nothing(world, capsys):
    loaded = load_policy(world.policy)
    with torch.no_grad():
        for parameter in loaded.policy.parameters():
            parameter.fill_(float("nan"))
    broken = world.root / "nan-policy"
    save_policy(broken, loaded.policy, loaded.normaliser)
    try:
        said = refused(
            world, ["eval", world.config, f"--policy={broken}", f"--out={world.root / 'result.json'}"], capsys
        )
        assert "an action is not finite (seed 1000003, index 0, step 0)" in said
    finally:
        shutil.rmtree(broken)


def test_a_policy_of_another_world_is_refused_with_the_reason(world, capsys):
    out = f"--out={world.root / 'result.json'}"
    evaluate = ["eval", world.config, f"--policy={world.policy}", out]
    said = refused(world, [*evaluate, "--sim.options.size=32"], capsys)
    assert said == (
        "policy 'policy-of-tiny' was made for frames of (16, 16) pixels; this world's camera 'front' draws (32, 32)"
    )
    said = refused(world, [*evaluate, "--sim.options.cameras=[front]"], capsys)
    assert said == "policy 'policy-of-tiny' needs camera 'wrist'; the world has front"


def test_an_interrupted_training_goes_on_with_the_same_command_only(world, capsys, monkeypatch):
    out = world.root / "interrupted"
    partial = out.with_name("interrupted.partial")
    real = steps.train_imitation

    def stop(folder: Path, *rest: object) -> None:
        (folder / "half.txt").write_text("half")
        raise KeyboardInterrupt

    command = ["train", world.config, f"--data={world.demos}", f"--out={out}"]
    monkeypatch.setattr(steps, "train_imitation", stop)
    code, said = call(command, capsys)
    assert (code, said.splitlines()[-1]) == (130, "robo-rl: interrupted; the same command continues")
    assert not out.exists()
    seen = []

    def look(folder: Path, *rest: object) -> None:
        seen.append((folder / "half.txt").exists())
        raise KeyboardInterrupt

    monkeypatch.setattr(steps, "train_imitation", look)
    call(command, capsys)
    call([*command, "--seed=9"], capsys)  # another experiment: what lies there is of no use
    assert seen == [True, False]
    monkeypatch.setattr(steps, "train_imitation", real)
    assert call(command, capsys)[0] == 0
    assert not partial.exists()
    assert not (out / "inputs.json").exists()
    shutil.rmtree(out)


def test_scores_and_doctor_of_a_good_dataset(world, capsys, tmp_path):
    table = tmp_path / "scores.parquet"
    assert call(["reward", "score", world.judge, world.won, f"--out={table}"], capsys)[0] == 0
    assert table.is_file()
    assert list(tmp_path.iterdir()) == [table]
    assert cli.main(["doctor", str(world.root / "nowhere")]) in (1, 2)
    capsys.readouterr()


def test_collect_writes_what_was_asked_for(world, capsys):
    out = world.root / "collected"
    command = ["collect", world.config, f"--policy={world.policy}", "--episodes=2", f"--out={out}"]
    try:
        assert call(command, capsys)[0] == 0
        episodes = read_episodes(out)
        assert len(episodes) == 2
        assert {episode.controller[0] for episode in episodes} == {Controller.POLICY}
        config = load_config(world.config)
        assert all(len(episode) <= 8 for episode in episodes)
        assert replace(config, seed=0) == config  # the seed of the rollouts is that of round 1
        assert {episode.seed for episode in episodes} == {1}
    finally:
        shutil.rmtree(out, ignore_errors=True)


def test_the_module_can_be_run_and_fails_in_one_line():
    environment = os.environ | {"PYTHONWARNINGS": "ignore"}
    done = subprocess.run(
        [sys.executable, "-m", "robo_rl.app.cli", "run", "/nowhere.yaml"],
        capture_output=True,
        text=True,
        env=environment,
        timeout=120,
        check=False,
    )
    assert done.returncode == 2
    assert done.stderr == ("robo-rl: /nowhere.yaml: no such file; the project's own experiments are in configs/\n")
