"""The whole loop on a tiny experiment: what it leaves, that it goes on after a kill, and that the seed decides."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import pytest
import torch
from safetensors.numpy import load_file

from robo_rl.app import cli, steps
from robo_rl.app.config import load_config
from robo_rl.app.pipeline import plan
from robo_rl.data import read_episodes, read_reward_table
from robo_rl.loops.stages import fingerprint

STEPS = 60
CONFIG = f"""
name: micro
seed: 3
processes: 2
group_size: 4
rounds: 1
arms: [bc_continued, filtered_bc]
accept_failed_audit: true
sim:
  type: tabletop
  options: {{tasks: [bowl], num_cubes: 1, num_pads: 0, spread: 0.5, horizon: 20, size: 32}}
demos: {{episodes: 5, disturbance: 0.1, horizon: 60}}
policy: {{channels: 8, denoise_steps: 2, flow_draws: 2}}
imitation: {{steps: {STEPS}, batch_size: 8, log_every: 5, warmup_steps: 5, checkpoint_every_s: 0.0}}
rollouts: {{episodes: 8}}
judge:
  model: {{channels: 8, dim: 16, layers: 1, queries: 4, values: 4, map_size: 4}}
  fit: {{steps: 8, batch_size: 4}}
  held_out: 0.25
credit: {{hop: 4, demo_weight: gate, folds: 2, critic: {{steps: 20, batch_size: 32}}}}
update: {{trainer: {{steps: 10, batch_size: 8, log_every: 5, warmup_steps: 2}}}}
evaluation: {{episodes: 8}}
report: {{title: Micro, frame_size: 32, episodes_per_group: 1}}
"""
POLICIES = ("imitation", "improved", "filtered_bc", "bc_continued")
EVALUATIONS = [f"evaluate-{name}" for name in ("imitation", "improved-1", "filtered_bc-1", "bc_continued-1")]
STAGES = {
    *("demos", "imitation", "rollouts-1", "judge-1", "credit-1", "outcomes-1", "showcase"),
    *("improved-1", "filtered_bc-1", "bc_continued-1"),
    *EVALUATIONS,
}
PATIENCE = 300.0  # seconds: the machine may be busy


def start(config: Path, out: Path) -> subprocess.Popen[str]:
    """`robo-rl run` in a process group of its own, so that all of it can be killed at once."""
    return subprocess.Popen(
        [sys.executable, "-m", "robo_rl.app.cli", "run", str(config), f"--out={out}"],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
    )


def finish(process: subprocess.Popen[str]) -> str:
    try:
        said, _ = process.communicate(timeout=PATIENCE)
    finally:
        end_group(process)
    assert process.returncode == 0, said
    return said


def end_group(process: subprocess.Popen[str]) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()


def kill_when(process: subprocess.Popen[str], there: Callable[[], bool]) -> None:
    """SIGKILL the whole group as soon as something is there; it must be caught at work."""
    until = time.monotonic() + PATIENCE
    while not there() and process.poll() is None and time.monotonic() < until:
        time.sleep(0.005)
    caught = process.poll() is None and there()
    end_group(process)
    said, _ = process.communicate()
    assert caught, said


@pytest.fixture(scope="module")
def config_file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("experiment") / "micro.yaml"
    path.write_text(CONFIG)
    return path


@pytest.fixture(scope="module")
def finished(config_file: Path, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, str]:
    """A run that nothing disturbed: its folder and what it printed."""
    out = tmp_path_factory.mktemp("whole") / "run"
    return out, finish(start(config_file, out))


def summary_of(out: Path) -> dict[str, Any]:
    return json.loads((out / "summary.json").read_text())


# --- what a run leaves --------------------------------------------------------------------------------


def test_every_stage_leaves_its_outputs_and_nothing_half_written(finished):
    out, said = finished
    assert {path.name for path in (out / "stages").iterdir()} == STAGES
    expected = ["run.json", "summary.json", "report.html", "stages/demos/dataset/meta/info.json"]
    expected += [f"stages/{name}/evaluation.json" for name in EVALUATIONS]
    expected += ["stages/judge-1/judge/model.safetensors", "stages/judge-1/audit.json", "stages/judge-1/quality.json"]
    expected += ["stages/credit-1/credit.npz", "stages/credit-1/rewards-0.parquet", "stages/showcase/views.json"]
    for name in ("imitation", "improved-1", "filtered_bc-1", "bc_continued-1"):
        expected += [f"stages/{name}/policy/model.safetensors", f"stages/{name}/training/metrics.jsonl"]
    assert [name for name in expected if not (out / name).is_file()] == []
    assert [str(path) for path in out.rglob("*partial*")] == []
    assert said.splitlines()[-1] == f"report: {out / 'report.html'}"


def test_the_summary_has_every_number(finished):
    out, said = finished
    summary = summary_of(out)
    for name in POLICIES:
        row = summary[name]
        assert set(row) == {"n", "successes", "wilson_low", "wilson_high", "mean_success_steps"}
        assert row["n"] == 8
        kept = json.loads((out / f"stages/{EVALUATIONS[POLICIES.index(name)]}/evaluation.json").read_text())
        assert row["successes"] == sum(kept["episodes"]["success"])
        # Wilson at 0 of 8 with z = 1.96: high = z^2 / (n + z^2) = 3.8415 / 11.8415 = 0.3244; it never leaves [0, 1]
        if row["successes"] == 0:
            assert row["wilson_high"] == pytest.approx(0.3244, abs=1e-4)
            assert row["mean_success_steps"] is None
        assert 0 <= row["wilson_low"] <= row["successes"] / 8 <= row["wilson_high"] <= 1
    for key in ("paired_p", "paired_p_vs_filtered_bc"):
        assert 0 < summary[key] <= 1
    assert {"auroc", "voc", "vroc", "ece", "audit"} <= set(summary["judge"])
    assert set(summary["judge"]["audit"].values()) <= {"pass", "warn", "fail"}
    assert len(summary["judge"]["audit"]) >= 8
    assert summary["seconds"]["all_stages"] == pytest.approx(
        sum(summary["seconds"][name] for name in STAGES), abs=0.1 + 0.001 * len(STAGES)
    )
    assert summary["seconds"]["wall"] > 0
    assert 0.1 < summary["peak_rss_gb"] < 64
    assert summary["versions"]["torch"] == torch.__version__.partition("+")[0]
    assert summary["seed"] == 3
    assert isinstance(summary["commit"], str)
    assert summary["verdict"] in said


def test_json_files_hold_no_nan(finished):
    # NaN is not JSON: other readers refuse the file
    def refuse(word: str) -> None:
        raise AssertionError(word)

    out, _ = finished
    files = sorted(out.rglob("*.json"))
    assert len(files) > 20
    for path in files:
        try:
            json.loads(path.read_text(), parse_constant=refuse)
        except AssertionError as error:
            pytest.fail(f"{path.relative_to(out)} holds {error}")


def test_judged_credit_belongs_to_the_data_it_was_made_for(finished):
    stages = finished[0] / "stages"
    demos, rollouts = (read_episodes(stages / name / "dataset") for name in ("demos", "rollouts-1"))
    assert len(demos) == 5
    assert all(episode.success for episode in demos)
    assert len(rollouts) == 8
    for place, part in enumerate((demos, rollouts)):
        signals = read_reward_table(stages / "credit-1" / f"rewards-{place}.parquet", part)
        assert [signal.episode_id for signal in signals] == [episode.episode_id for episode in part]
    with np.load(stages / "credit-1" / "credit.npz") as credit:
        assert len(credit["weight"]) == demos.num_frames + rollouts.num_frames
        assert (credit["weight"][: demos.num_frames][demos.is_final] == 0).all()


# --- continuing ---------------------------------------------------------------------------------------


def test_a_second_run_skips_every_stage(finished, config_file, capsys):
    out, _ = finished
    before = {path: path.stat().st_mtime_ns for path in (out / "stages").rglob("*") if path.is_file()}
    kept = summary_of(out)
    assert cli.main(["run", str(config_file), f"--out={out}"]) == 0
    said = capsys.readouterr()
    assert {line.partition(":")[0] for line in said.err.splitlines() if "already done" in line} == STAGES
    assert "started" not in said.err
    assert {path: path.stat().st_mtime_ns for path in (out / "stages").rglob("*") if path.is_file()} == before
    again = summary_of(out)
    assert again.pop("commit") is not None  # the tree may have changed in between
    kept.pop("commit")
    assert again == kept


def evaluation_of(out: Path, stage: str) -> dict[str, Any]:
    content = json.loads((out / "stages" / stage / "evaluation.json").read_text())
    content["episodes"].pop("seconds")  # a clock is no result
    content["summary"].pop("seconds_per_episode")
    return content


def without_clock(summary: dict[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in summary.items() if key not in ("seconds", "peak_rss_gb", "commit")}


def same_parameters(one: Path, two: Path) -> bool:
    mine, other = load_file(one), load_file(two)
    return mine.keys() == other.keys() and all(np.array_equal(mine[key], other[key]) for key in mine)


def assert_same_results(one: Path, two: Path) -> None:
    """Evaluations, summaries, parameters, experience and credit of two runs are equal, bit for bit."""
    for stage in ("demos", "rollouts-1"):
        mine, other = (read_episodes(root / "stages" / stage / "dataset") for root in (one, two))
        np.testing.assert_array_equal(mine.flat_actions, other.flat_actions)
        np.testing.assert_array_equal(mine.flat_state, other.flat_state)
    parameters = sorted(path.relative_to(one) for path in (one / "stages").rglob("*.safetensors"))
    assert parameters == sorted(path.relative_to(two) for path in (two / "stages").rglob("*.safetensors"))
    differ = [str(name) for name in parameters if not same_parameters(one / name, two / name)]
    assert differ == []  # all of them at once: the earliest stage among them is where it began
    with (
        np.load(one / "stages/credit-1/credit.npz") as mine,
        np.load(two / "stages/credit-1/credit.npz") as other,
    ):
        np.testing.assert_array_equal(mine["weight"], other["weight"])
    for stage in EVALUATIONS:
        assert evaluation_of(one, stage) == evaluation_of(two, stage)
    assert without_clock(summary_of(one)) == without_clock(summary_of(two))


def test_a_run_killed_twice_and_continued_is_the_same_run(finished, config_file, tmp_path):
    whole, out = finished[0], tmp_path / "run"
    stages = out / "stages"

    checkpoint = stages / "imitation.partial" / "training" / "training_state.pt"
    process = start(config_file, out)
    kill_when(process, checkpoint.exists)
    assert 0 < torch.load(checkpoint, weights_only=True)["step"] < STEPS  # in the middle of a stage
    assert (stages / "demos").is_dir()
    assert not (stages / "imitation").exists()

    def recording() -> bool:
        return any((stages / "rollouts-1.partial").glob("dataset.partial*"))

    process = start(config_file, out)
    kill_when(process, recording)
    assert (stages / "imitation").is_dir()
    assert not (stages / "rollouts-1").exists()
    assert not (out / "summary.json").exists()

    said = finish(start(config_file, out))
    assert "demos: already done" in said
    assert "imitation: already done" in said
    assert "rollouts-1: started" in said
    assert [str(path) for path in out.rglob("*partial*")] == []
    assert_same_results(whole, out)
    # the log of the interrupted training is the log of one training
    rows = [(root / "stages/imitation/training/metrics.jsonl").read_text() for root in (whole, out)]
    assert rows[0] == rows[1]


def test_no_process_outlives_a_killed_run(config_file, tmp_path):
    out = tmp_path / "run"
    process = start(config_file, out)
    try:
        until = time.monotonic() + PATIENCE
        while not (out / "stages" / "demos.partial").exists() and time.monotonic() < until:
            time.sleep(0.01)
        family = psutil.Process(process.pid).children(recursive=True)
        assert family
        process.kill()  # only the parent: nobody tells the others
        process.wait()
        _, alive = psutil.wait_procs(family, timeout=60)
        assert alive == []
    finally:
        end_group(process)
        process.communicate()


# --- what decides the result ----------------------------------------------------------------------------


def nothing(done: int, total: int) -> None:
    """A report that nobody reads."""


def test_the_seed_decides_the_demonstrations_and_the_policy(finished, config_file, tmp_path):
    kept = read_episodes(finished[0] / "stages/demos/dataset")
    found = {}
    for seed in (3, 4):
        config = load_config(config_file, [f"--seed={seed}", "--imitation.steps=3"])
        folder = tmp_path / str(seed)
        folder.mkdir()
        steps.collect_demos(folder, nothing, config, workers=0)
        steps.train_imitation(folder, nothing, config, finished[0] / "stages/demos/dataset")
        found[seed] = (read_episodes(folder / "dataset"), load_file(folder / "policy" / "model.safetensors"))
    # the same seed in this process and in the run's worker processes: the same episodes
    np.testing.assert_array_equal(found[3][0].flat_actions, kept.flat_actions)
    assert found[4][0].fingerprint != kept.fingerprint
    assert not np.array_equal(found[4][0].flat_state[0], kept.flat_state[0])
    differs = [key for key in found[3][1] if not np.array_equal(found[3][1][key], found[4][1][key])]
    assert len(differs) > 10


def changed_stages(config_file: Path, override: str) -> set[str]:
    def marks(overrides: list[str]) -> dict[str, str]:
        known: dict[str, str] = {}
        for stage in plan(load_config(config_file, overrides), Path("anywhere")).stages:
            known[stage.name] = fingerprint(stage, known)
        return known

    before, after = marks([]), marks([override])
    assert before.keys() == after.keys()
    return {name for name in before if before[name] != after[name]}


@pytest.mark.parametrize(
    ("override", "expected"),
    [
        ("--seed=4", STAGES),
        ("--demos.episodes=6", STAGES),
        ("--evaluation.episodes=9", {*EVALUATIONS, "showcase"}),
        ("--report.frame_size=64", {"showcase"}),
        ("--credit.hop=2", {"credit-1", "improved-1", "evaluate-improved-1", "showcase"}),
        ("--judge.held_out=0.5", {"judge-1", "credit-1", "improved-1", "evaluate-improved-1", "showcase"}),
        ("--rollouts.episodes=9", STAGES - {"demos", "imitation", "evaluate-imitation"}),
        ("--processes=1", set()),  # how many work at once decides nothing
        ("--name=other", set()),
    ],
)
def test_a_changed_setting_redoes_what_depends_on_it_and_nothing_else(config_file, override, expected):
    if override.startswith("--rollouts"):
        expected = expected - {"bc_continued-1", "evaluate-bc_continued-1"}  # it learns from demonstrations alone
    assert changed_stages(config_file, override) == expected


def test_arms_and_rounds_are_as_asked(config_file):
    config = load_config(config_file, ["--rounds=2", "--arms=[filtered_bc]"])
    made = plan(config, Path("anywhere"))
    names = [stage.name for stage in made.stages]
    assert {"judge-2", "credit-2", "improved-2", "filtered_bc-2", "rollouts-2-improved"} <= set(names)
    assert not any(name.startswith("bc_continued") for name in names)
    assert made.evaluations["improved"] == ["evaluate-improved-1", "evaluate-improved-2"]
    place = {name: number for number, name in enumerate(names)}
    for stage in made.stages:  # a stage comes after what it needs
        assert all(place[name] < place[stage.name] for name in stage.after)
    only = plan(replace(config, arms=()), Path("anywhere"))
    assert set(only.evaluations) == {"imitation", "improved"}
