"""Two real episodes: imported by the command, a judge fitted to one and shown on the other. Skips without the data."""

from pathlib import Path

import numpy as np
import pytest
from conftest import SHARED_DATA

from reward_models.registry import load_judge
from reward_models.targets import boundary_progress
from robo_rl.app.cli import main
from robo_rl.data import read_episodes
from robo_rl.data.subtasks import read_subtasks

VIDEOS = SHARED_DATA / "clean_table"
ROOT = Path(__file__).parents[1]


@pytest.mark.skipif(not VIDEOS.exists(), reason=f"{VIDEOS} is not on this machine")
def test_a_hop_judge_of_one_real_episode_follows_the_other(tmp_path: Path) -> None:
    """64 pixels, 3 frames a second: enough for the order of what happens. Chance would correlate with nothing."""
    data = tmp_path / "data"
    assert main(["import", str(VIDEOS), f"--out={data}", "--size=64", "--fps=3"]) == 0
    subtasks = data / "labels" / "subtasks.csv"
    fit = [
        "reward",
        "fit",
        str(ROOT / "configs" / "judges" / "hop.yaml"),
        f"--data={data}",
        f"--out={tmp_path / 'hop'}",
    ]
    quick = ["--fit.steps=120", "--fit.trunk_steps=60", "--fit.batch_size=8", "--fit.clips.max_stride=2.0"]
    assert main([*fit, f"--subtasks={subtasks}", "--episodes=0", *quick]) == 0
    assert main(["reward", "score", str(tmp_path / "hop"), str(data)]) == 0
    episodes = read_episodes(data)
    parts = read_subtasks(subtasks, episodes)
    assert [len(part.names) for part in parts.values()] == [16, 16]
    progress = load_judge(tmp_path / "hop").score(episodes.select([1]))[0].progress
    truth = boundary_progress(parts[1].frames, len(progress))
    assert np.corrcoef(progress, truth)[0, 1] > 0.7
    page = tmp_path / "page.html"
    table = data / "rewards" / "hop.parquet"
    assert main(["reward", "show", str(data), str(table), f"--out={page}", f"--subtasks={subtasks}"]) == 0
    assert page.read_text().count("data-frame=") == 32
