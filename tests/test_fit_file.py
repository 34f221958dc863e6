"""Judge files: `robo-rl reward fit` on a description of one judge, killed and continued."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import judge_toy as toy
import pytest
from tiny_models import tiny

from reward_models.registry import load_judge
from robo_rl.app.cli import main
from robo_rl.app.config import read_tree
from robo_rl.app.fit_file import episode_numbers, fit_file, human_labels, is_judge_file
from robo_rl.app.fitters import FITTERS, fitter
from robo_rl.data import read_episodes, write_episodes
from robo_rl.errors import ConfigError, DataError

ROOT = Path(__file__).parents[1]
FILES = sorted(path for path in (ROOT / "configs" / "judges").glob("*.yaml") if read_tree(path)["type"] in FITTERS)
SMALL = """
type: causal
name: small
backbone: {type: compact}
objectives: {progress: {}, td_success: {}}
stride: 3
fit: {steps: 30, trunk_steps: 20, batch_size: 4, checkpoint_every: 5}
"""


@pytest.fixture(scope="module")
def dataset(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("data") / "toy"
    write_episodes(folder, toy.episodes(8))
    return folder


def nothing(done: int, total: int) -> None:
    """No progress bar."""


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_every_file_in_configs_is_understood(path: Path) -> None:
    assert is_judge_file(path)
    fitter(read_tree(path), str(path))


def test_experiments_are_not_judge_files() -> None:
    assert not is_judge_file(ROOT / "configs" / "tabletop.yaml")


def test_overrides_reach_the_judge(dataset: Path, tmp_path: Path) -> None:
    file = tmp_path / "small.yaml"
    file.write_text(SMALL)
    changes = ["--stride=2", "--fit.steps=4", "--fit.trunk_steps=2", "--backbone.dim=48"]
    judge = fit_file(file, changes, [dataset], tmp_path / "judge", report=nothing)
    assert (judge.config.stride, judge.network.backbone.dim) == (2, 48)
    assert not (tmp_path / "judge.partial").exists()
    signals = load_judge(tmp_path / "judge").score(read_episodes(dataset))
    assert [len(s.progress) for s in signals] == [len(e) + 1 for e in read_episodes(dataset)]
    more = fit_file(file, changes, [dataset], tmp_path / "more", report=nothing, previous=tmp_path / "judge")
    assert more.model_id != judge.model_id


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ("--fit.step=3", "judge.fit.step: unknown key; did you mean 'steps'"),
        ("--objectives.guess={}", "objectives.guess: not known"),
        ("--type=gvl", "type 'gvl' is not fitted"),
        ("--fit.steps=0", "judge.fit.steps must be positive"),
    ],
)
def test_mistakes_name_the_file_and_the_key(dataset: Path, tmp_path: Path, change: str, says: str) -> None:
    file = tmp_path / "small.yaml"
    file.write_text(SMALL)
    with pytest.raises(ConfigError, match=says) as raised:
        fit_file(file, [change], [dataset], tmp_path / "judge", report=nothing)
    assert "small.yaml" in str(raised.value)
    assert not (tmp_path / "judge").exists()


def test_an_existing_folder_is_not_overwritten(dataset: Path, tmp_path: Path) -> None:
    file = tmp_path / "small.yaml"
    file.write_text(SMALL)
    with pytest.raises(DataError, match="already exists"):
        fit_file(file, [], [dataset], tmp_path, report=nothing)


def command(file: Path, dataset: Path, out: Path) -> list[str]:
    return ["reward", "fit", str(file), f"--data={dataset}", f"--out={out}"]


def test_a_killed_fit_ends_with_the_same_judge(dataset: Path, tmp_path: Path) -> None:
    """SIGKILL as soon as a checkpoint is there; the same command goes on and gives the very same parameters."""
    file = tmp_path / "small.yaml"
    file.write_text(SMALL)
    assert main(command(file, dataset, tmp_path / "whole")) == 0
    out = tmp_path / "killed"
    process = subprocess.Popen(
        [sys.executable, "-m", "robo_rl.app.cli", *command(file, dataset, out)],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        env=os.environ | {"PYTHONPATH": str(ROOT)},
    )
    checkpoint = out.with_name("killed.partial") / "checkpoint.pt"
    waited = time.monotonic() + 120
    while not checkpoint.exists() and time.monotonic() < waited and process.poll() is None:
        time.sleep(0.01)
    assert checkpoint.exists(), "the fit ended before it wrote a checkpoint"
    process.send_signal(signal.SIGKILL)
    process.wait()
    assert not out.exists()
    written = checkpoint.stat().st_mtime_ns
    assert main(command(file, dataset, out)) == 0
    assert load_judge(out).model_id == load_judge(tmp_path / "whole").model_id
    assert written > 0
    assert not checkpoint.exists()


def test_label_files_reach_the_fit(dataset: Path, tmp_path: Path) -> None:
    episodes = read_episodes(dataset)
    last = len(episodes[0])
    (tmp_path / "steps.csv").write_text(f"episode_index,from_frame,to_frame,label\n0,0,{last},-1\n")
    (tmp_path / "pairs.csv").write_text("episode_a,episode_b,preferred\n0,2,b\n1,3,tie\n")
    files = {"directions": tmp_path / "steps.csv", "preferences": tmp_path / "pairs.csv"}
    file = tmp_path / "small.yaml"
    file.write_text(SMALL)
    labels = human_labels(episodes, files)
    assert set(labels.direction[0].tolist()) == {-1}
    assert labels.preferences == [((2, 0, -1), (0, 0, -1))]
    with pytest.raises(ConfigError, match="belong to one dataset, but 2 were given"):
        fit_file(file, [], [dataset, dataset], tmp_path / "judge", report=nothing, labels=files)
    options = [f"--{name}={path}" for name, path in files.items()]
    quick = ["--fit.steps=2", "--fit.trunk_steps=1", "--objectives={tri_state: {}, progress: {}}"]
    assert main([*command(file, dataset, tmp_path / "judge"), *options, *quick]) == 0
    (tmp_path / "pairs.csv").write_text("episode_a,episode_b,preferred\n0,77,b\n")
    assert main([*command(file, dataset, tmp_path / "other"), *options, *quick]) == 2


def test_comparisons_of_people_and_of_a_model_are_fitted(
    dataset: Path, tmp_path: Path, tmp_path_factory: pytest.TempPathFactory
) -> None:
    file = tmp_path / "preference.yaml"
    file.write_text("type: preference\nname: better\nfit: {steps: 3, held_out: 0.0}\n")
    assert main(command(file, dataset, tmp_path / "none")) == 2  # nothing to learn from
    pairs = tmp_path / "pairs.csv"
    pairs.write_text("episode_a,frame_a,episode_b,frame_b,preferred\n0,1,0,8,b\n2,9,2,0,a\n")
    assert main([*command(file, dataset, tmp_path / "people"), f"--preferences={pairs}"]) == 0
    model = tiny("gemma3", tmp_path_factory.getbasetemp() / "tiny")
    asked = [
        *command(file, dataset, tmp_path / "model"),
        f"--ask={{path: {model}, pairs: 12, margin: 0.0, min_mass: 0.0}}",
    ]
    assert main(asked) == 0
    for name in ("people", "model"):
        signals = load_judge(tmp_path / name).score(read_episodes(dataset))
        assert "reward" in signals[0].extra


def test_a_similarity_judge_is_fitted(dataset: Path, tmp_path: Path, tmp_path_factory: pytest.TempPathFactory) -> None:
    file = tmp_path / "similarity.yaml"
    model = tiny("siglip", tmp_path_factory.getbasetemp() / "tiny")
    file.write_text(f"type: similarity\npath: {model}\nfit: {{steps: 3, batch_size: 4}}\n")
    assert main(command(file, dataset, tmp_path / "judge")) == 0
    assert len(load_judge(tmp_path / "judge").score(read_episodes(dataset))) == 8


def test_some_episodes_with_their_labels(dataset: Path, tmp_path: Path) -> None:
    assert episode_numbers("0, 3-5", 8) == [0, 3, 4, 5]
    for text, says in (("1,x", "'x' is neither"), ("2-9", "there is no episode 8; the data has 8")):
        with pytest.raises(ConfigError, match=says):
            episode_numbers(text, 8)
    file = tmp_path / "small.yaml"
    file.write_text(SMALL)
    quick = ["--fit.steps=2", "--fit.trunk_steps=1"]
    some = fit_file(file, quick, [dataset], tmp_path / "some", report=nothing, chosen="0-3")
    whole = fit_file(file, quick, [dataset], tmp_path / "whole", report=nothing)
    assert some.model_id != whole.model_id
